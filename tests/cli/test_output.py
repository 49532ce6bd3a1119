"""What is printed: no characters that control a terminal, strict JSON, tables that cut no name or number.

Modules: cli.output, cli.failures.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Run

import dask_tfrecord
from dask_tfrecord_launcher import COMMANDS

# An escape sequence, C0 and C1 controls, line breaks, an override of the direction of text, an invisible tag.
HOSTILE = "\x1b[2J\x07\x7f\x9b31m\r\nname\x85\u2028\u202eevil\u2066\u200b\ufeff\U000e0041"

# By the definition of terminals and of Unicode, not by the package.
_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0041]"
)

# The arguments behind the path, for each command that ends by itself.
USES: dict[str, list[list[str]]] = {
    "inspect": [[], ["--json"]],
    "head": [[], ["--json"]],
    "cat": [[], ["--json"]],
    "count": [[], ["--json"], ["--where", "nothing == 1"]],
    "schema": [[], ["--json"], *(["--as", form] for form in ("python", "pbtxt"))],
    "verify": [[], ["--json"]],
    "index": [[], ["--json"]],
    "cleanup": [[], ["--dry-run", "--json"]],
    "convert": [["out.jsonl", "--dry-run"], ["out.jsonl", "--dry-run", "--json"]],
    "export": [["--format", "idx"], ["--format", "tfds", "--json"]],
    "compact": [[], ["--json"]],
    "repair": [[], ["--dry-run", "--json"]],
    "delete": [["--where", f"column({HOSTILE!r}) == {HOSTILE!r}", "--yes", "--keep-versions"]],
    "history": [[], ["--json"]],
    "restore": [["1"], ["2", "--json"], ["1"]],
    "expire": [["--versions", "1"], ["--versions", "1", "--json"]],
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A dataset, files without a snapshot one of which is damaged, and a path that does not exist."""
    folder = tmp_path_factory.mktemp("hostile")
    frame = pd.DataFrame({HOSTILE: [HOSTILE, f"{HOSTILE}2"], f"{HOSTILE}key": [HOSTILE] * 2})
    ddf = dd.from_pandas(frame, npartitions=1)
    written = folder / "written"
    dask_tfrecord.to_tfrecord(ddf, written, partition_on=f"{HOSTILE}key")
    shutil.copytree(written, folder / f"dataset{HOSTILE}")
    (file,) = written.glob("*/part-*")
    foreign = folder / f"foreign{HOSTILE}"
    foreign.mkdir()
    (foreign / f"a{HOSTILE}.tfrecord").write_bytes(file.read_bytes())
    (foreign / f"b{HOSTILE}.tfrecord").write_bytes(file.read_bytes()[:-3])
    return [written, folder / f"dataset{HOSTILE}", foreign, folder / f"nothing{HOSTILE}"]


def _surviving(text: str) -> list[str]:
    return [line for line in text.split("\n") if _CONTROL.search(line)]


def test_the_uses_are_those_of_all_commands() -> None:
    assert {*USES, "serve"} == {*COMMANDS}


@pytest.mark.parametrize("command", USES)
def test_no_command_prints_characters_that_control_the_terminal(
    run: Run, hostile: list[Path], command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in hostile:
        for arguments in USES[command]:
            result = run(command, path, *arguments, code=None)
            assert _surviving(result.stdout) == []
            assert _surviving(result.stderr) == []
            if result.exit_code in (1, 2):
                assert result.stderr.split("\n")[-2].startswith("Error: ")
            elif "--json" in arguments and command not in ("head", "cat"):
                json.loads(result.stdout, parse_constant=pytest.fail)


def test_arguments_and_tracebacks_print_no_such_characters_either(run: Run, hostile: list[Path]) -> None:
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


def test_rows_on_a_terminal_are_safe_and_a_value_stays_on_its_line(
    run: Run, hostile: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_tfrecord.cli.output.is_terminal", lambda: True)
    text = run("cat", hostile[0]).stdout
    assert _surviving(text) == []
    assert text.count("\n") == 4  # titles, two rows, and the number of columns that do not fit
    assert r"\x1b[2J\x07\x7f\x9b31m\r\nname" in text


def test_escapes_in_json_lose_nothing(run: Run, hostile: list[Path]) -> None:
    rows = [json.loads(line) for line in run("cat", hostile[0], "--columns", HOSTILE).stdout.splitlines()]
    assert rows == [{HOSTILE: HOSTILE}, {HOSTILE: f"{HOSTILE}2"}]
    assert json.loads(run("inspect", hostile[0], "--json").stdout)["columns"][0]["min"] == HOSTILE


def test_json_is_strict_for_values_that_json_lacks(run: Run, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "float": pa.array([float("-inf"), float("inf"), float("nan")], pa.float32()),
        "bytes": pa.array([b"\xff", b"\x00", None], pa.binary()),
        "time": pa.array([1, 2, None], pa.timestamp("s", "UTC")),
        "null": pa.array([None, None, None], pa.duration("ms")),
    }
    frame = pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data")
    described = json.loads(run("inspect", tmp_path / "data", "--json").stdout, parse_constant=pytest.fail)
    bounds = {column["name"]: (column["min"], column["max"]) for column in described["columns"]}
    assert bounds["float"] == ("-Infinity", "Infinity")
    assert bounds["bytes"] == ("AA==", "/w==")
    assert bounds["time"] == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z")
    assert described["first_rows"][2] == {"float": "NaN", "bytes": None, "time": None, "null": None}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A dataset of 80 columns with similar names, some of them with long types."""
    frame = pd.DataFrame({f"wind_of_station_{number:03d}": [460 + number] for number in range(80)})
    frame["category"] = pd.Categorical(["a"])
    frame["at"] = pd.Timestamp("2024-01-31", tz="America/Argentina/Buenos_Aires")
    path = tmp_path_factory.mktemp("wide") / "wide"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), path)
    return path, frame


@pytest.mark.parametrize("width", [None, 40, 80, 120, 300])
def test_tables_fit_without_a_cut_name_or_number(
    run: Run, wide: tuple[Path, pd.DataFrame], width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    path, frame = wide
    text = run("inspect", path, "-n", 0).stdout
    words = text.replace(",", " ").split()
    assert [name for name in frame.columns if words.count(name) != 1] == []
    assert [number for number in frame.iloc[0, :80] if words.count(str(number)) < 2] == []
    lines = text.splitlines()[8:]  # behind the path, which may be long
    assert max(map(len, lines)) <= max(width or 120, 60)  # one type alone has nearly 60 characters


def test_a_long_number_and_a_long_name_are_printed_in_full(run: Run, tmp_path: Path) -> None:
    name = "n" * 60
    types = pd.ArrowDtype(pa.decimal128(38, 0))
    frame = pd.DataFrame({name: pd.array([1 << 126], types), "text": "x" * 60})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data", lossy="allow")
    text = run("inspect", tmp_path / "data").stdout
    assert text.count(name) == 2
    assert str(1 << 126) in text.partition("first 1 rows")[2]
    assert "x" * 41 not in text.partition("first 1 rows")[2]
