"""What is printed: no characters that control a terminal, strict JSON, tables that cut no name or number.

Modules: cli.output, cli.failures.
"""

import base64
import datetime
import decimal
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st

import dask_tfrecord
from dask_tfrecord.cli.output import json_lines, json_values
from dask_tfrecord_launcher import COMMANDS

# An escape sequence, C0 and C1 controls, line breaks, an override of the direction of text, an invisible tag.
HOSTILE = "\x1b[2J\x07\x7f\x9b31m\r\nname\x85\u2028\u202eevil\u2066\u200b\ufeff\U000e0041"

# By the definition of terminals and of Unicode, not by the package.
_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0041]"
)

# The arguments behind the path, for each command that ends by itself.
DELETED = ["--where", f"column({HOSTILE!r}) == {HOSTILE!r}", "--yes", "--keep-versions"]
PRINTING = ("describe", "head", "cat", "check", "verify", "add-snapshot", "compact", "history")
USES: dict[str, list[list[str]]] = {
    **{command: [[], ["--json"]] for command in PRINTING},
    "count": [[], ["--json"], ["--where", "nothing == 1"]],
    "schema": [[], ["--json"], *(["--as", form] for form in ("python", "pbtxt"))],
    "check": [[], ["--json"]],
    "cleanup": [[], ["--dry-run", "--json"]],
    "convert": [["out.jsonl", "--dry-run"], ["out.jsonl", "--dry-run", "--json"]],
    "export": [["--format", "idx"], ["--format", "tfds", "--json"]],
    "repair": [[], ["--dry-run", "--json"]],
    "delete": [DELETED],
    "restore": [["1"], ["2", "--json"], ["1"]],
    "expire": [["--versions", "1"], ["--versions", "1", "--json"]],
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A dataset, files without a snapshot one of which is damaged, and a path that does not exist."""
    folder = tmp_path_factory.mktemp("hostile")
    frame = pd.DataFrame({HOSTILE: [HOSTILE, f"{HOSTILE}2"], f"{HOSTILE}key": [HOSTILE] * 2})
    written = folder / "written"
    dask_tfrecord.to_tfrecord(frame, written, partition_on=f"{HOSTILE}key")
    shutil.copytree(written, folder / f"dataset{HOSTILE}")
    (file,) = written.glob("*/part-*")
    foreign = folder / f"foreign{HOSTILE}"
    foreign.mkdir()
    (foreign / f"a{HOSTILE}.tfrecord").write_bytes(file.read_bytes())
    (foreign / f"b{HOSTILE}.tfrecord").write_bytes(file.read_bytes()[:-3])
    return [written, folder / f"dataset{HOSTILE}", foreign, folder / f"nothing{HOSTILE}"]


def _surviving(text: str) -> list[str]:
    return [line for line in text.split("\n") if _CONTROL.search(line)]


@pytest.mark.parametrize("command", USES)  # in this order, because some change the dataset
def test_no_command_prints_characters_that_control_the_terminal(
    run: Run, hostile: list[Path], command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in hostile:
        for arguments in USES[command]:
            result = run(command, path, *arguments, code=None)
            assert _surviving(result.stdout + result.stderr) == []
            if result.exit_code in (1, 2):
                assert result.stderr.split("\n")[-2].startswith("Error: ")
            elif "--json" in arguments and command not in ("head", "cat"):
                json.loads(result.stdout, parse_constant=pytest.fail)


def test_arguments_and_tracebacks_print_no_such_characters_either(run: Run, hostile: list[Path]) -> None:
    assert {*USES, "serve"} == {*COMMANDS}
    for arguments in (
        [f"--{HOSTILE}"],
        [HOSTILE],
        ["count", f"--{HOSTILE}"],
        ["count", "x", "--type", f"x={HOSTILE}"],
        ["count", "x", "--where", HOSTILE],
        ["convert", hostile[0], f"out.{HOSTILE}"],
        ["--traceback", "cat", hostile[2]],
    ):
        assert _surviving(run(*arguments, code=None).stderr) == []


def test_rows_on_a_terminal_are_safe_and_escapes_in_json_lose_nothing(
    run: Run, hostile: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.loads(line) for line in run("cat", hostile[0], "--columns", HOSTILE).stdout.splitlines()]
    assert rows == [{HOSTILE: HOSTILE}, {HOSTILE: f"{HOSTILE}2"}]
    assert json.loads(run("describe", hostile[0], "--json").stdout)["columns"][0]["min"] == HOSTILE
    monkeypatch.setattr("dask_tfrecord.cli.output.is_terminal", lambda: True)
    text = run("cat", hostile[0]).stdout
    assert _surviving(text) == []
    assert text.count("\n") == 4  # titles, two rows, and the number of columns that do not fit
    assert r"\x1b[2J\x07\x7f\x9b31m\r\nname" in text


def test_json_is_strict_for_values_that_json_lacks(run: Run, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "float": pa.array([float("-inf"), float("inf"), float("nan")], pa.float32()),
        "bytes": pa.array([b"\xff", b"\x00", None], pa.binary()),
        "time": pa.array([1, 2, None], pa.timestamp("s", "UTC")),
        "null": pa.array([None, None, None], pa.duration("ms")),
    }
    dask_tfrecord.to_tfrecord(pa.table(columns), tmp_path / "data")
    described = json.loads(run("describe", tmp_path / "data", "--json").stdout, parse_constant=pytest.fail)
    bounds = {column["name"]: (column["min"], column["max"]) for column in described["columns"]}
    assert bounds["float"] == ("-Infinity", "Infinity")
    assert bounds["bytes"] == ("AA==", "/w==")
    assert bounds["time"] == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z")
    assert described["first_rows"][2] == {"float": "NaN", "bytes": None, "time": None, "null": None}


STRUCTS = [{'a"': 1, "b": [{"c": None}, {"c": "d"}]}, None, {'a"': None, "b": None}]
TEXTS = ['a"b\\c\n\x00\x1f\x7fé🙂', None, ""]
SECONDS = ["1970-01-01T00:00:00", None, "1970-01-01T00:00:01"]
TENSORS = pa.ExtensionArray.from_storage(
    pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
)


def _values(table: pa.Table) -> list[Any]:
    return [json.loads(line)["x"] for line in bytes(json_lines(table)).splitlines()]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None, -(2**63)]), [1, None, -(2**63)]),
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([True, None, False]), [True, None, False]),
        (pa.array([1.0, 0.1, None, 1e300]), [1.0, 0.1, None, 1e300]),
        (pa.array([math.nan, math.inf, -math.inf]), ["NaN", "Infinity", "-Infinity"]),
        (pa.array([1.5, None], pa.float16()), [1.5, None]),
        (pa.array(TEXTS), TEXTS),
        (pa.array([datetime.date(2024, 1, 31), None]), ["2024-01-31", None]),
        (pa.array([datetime.time(12, 30)], pa.time32("s")), ["12:30:00"]),
        (pa.array([0, None, 1], pa.timestamp("s")), SECONDS),
        (pa.array([1], pa.timestamp("ms", "Europe/Zurich")), ["1970-01-01T00:00:00.001Z"]),
        (pa.array([1_500_000, -1, None], pa.duration("us")), ["1.500000s", "-0.000001s", None]),
        (pa.array([7], pa.duration("s")), ["7s"]),
        (pa.array(["x", None, "y"]).dictionary_encode(), ["x", None, "y"]),
        (pa.nulls(2), [None, None]),
        (pa.array([[["a"], []], None, [None]]), [[["a"], []], None, [None]]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
        (pa.array([[1], None], pa.large_list(pa.int8())), [[1], None]),
        (pa.array([{}, None], pa.struct({})), [{}, None]),
        (pa.array(STRUCTS), STRUCTS),
        (TENSORS, [[1, 2], [3, 4]]),
        (pa.array([], pa.int64()), []),
    ],
    ids=lambda one: str(getattr(one, "type", "")),
)
def test_values_are_exact_in_every_slice(array: pa.Array, expected: list[Any]) -> None:
    assert _values(pa.table({"x": array})) == expected
    assert _values(pa.table({"x": array}).slice(1)) == expected[1:]


def test_numbers_keep_their_digits_and_names_are_escaped() -> None:
    decimals = pa.array([decimal.Decimal("1.50"), decimal.Decimal("-0.01")])
    assert json_values(decimals).to_pylist() == ["1.50", "-0.01"]
    assert json_values(pa.array([1.0, -2.0], pa.float32())).to_pylist() == ["1.0", "-2.0"]
    assert json.loads(bytes(json_lines(pa.table({'a"b': [1], "é\n": [2]})))) == {'a"b': 1, "é\n": 2}


@given(st.lists(st.none() | st.binary(max_size=10)), st.lists(st.none() | st.text()), st.integers(0, 5))
def test_bytes_are_base64_and_texts_stay(
    raw: list[bytes | None], texts: list[str | None], start: int
) -> None:
    expected = [None if value is None else base64.b64encode(value).decode() for value in raw[start:]]
    assert _values(pa.table({"x": pa.array(raw, pa.binary())}).slice(start)) == expected
    table = pa.table({"x": pa.array(texts, pa.string())})
    assert _values(pa.concat_tables([table, table])) == texts * 2


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A dataset of 80 columns with similar names, some of them with long types."""
    frame = pd.DataFrame({f"wind_of_station_{number:03d}": [460 + number] for number in range(80)})
    frame["category"] = pd.Categorical(["a"])
    frame["at"] = pd.Timestamp("2024-01-31", tz="America/Argentina/Buenos_Aires")
    path = tmp_path_factory.mktemp("wide") / "wide"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), path)
    return path, frame


@pytest.mark.parametrize("width", [None, 40, 300])
def test_tables_fit_without_a_cut_name_or_number(
    run: Run, wide: tuple[Path, pd.DataFrame], width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    path, frame = wide
    text = run("describe", path, "-n", 0).stdout
    words = text.replace(",", " ").split()
    assert [name for name in frame.columns if words.count(name) != 1] == []
    assert [number for number in frame.iloc[0, :80] if words.count(str(number)) < 2] == []
    lines = text.splitlines()[8:]  # behind the path, which may be long
    assert max(map(len, lines)) <= max(width or 120, 60)  # one type alone has nearly 60 characters


def test_a_long_number_and_a_long_name_are_printed_in_full(run: Run, tmp_path: Path) -> None:
    name = "n" * 60
    table = pa.table({name: pa.array([1 << 126], pa.decimal128(38, 0)), "text": ["x" * 60]})
    dask_tfrecord.to_tfrecord(table, tmp_path / "data", lossy="allow")
    text = run("describe", tmp_path / "data").stdout
    assert text.count(name) == 2
    assert str(1 << 126) in text.partition("first 1 row")[2]
    assert "x" * 41 not in text.partition("first 1 row")[2]
