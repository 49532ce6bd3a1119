"""The options that say what is read are those of `read_tfrecord`; `--where` means what Python means.

Modules: cli.options.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import click
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Run
from other_writers import events, fill
from small_frames import flip

import dask_tfrecord
from dask_tfrecord.cli import options
from dask_tfrecord.cli.options import parse
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.schema.fields import Schema

SKIP = ("--on-corrupt", "skip")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A directory with a cut file, a text file, an empty file, and 200 rows in two whole files."""
    frame = pd.DataFrame({"x": range(300), "name": [f"n{number}" for number in range(300)]})
    written, path = tmp_path / "written", tmp_path / "damaged"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=3), written)
    path.mkdir()
    for number, file in enumerate(sorted(written.glob("part-*"))):
        shutil.copy(file, path / f"{number}.tfrecord")
    cut = path / "1.tfrecord"
    cut.write_bytes(cut.read_bytes()[:200])  # 4 records, and a part of the fifth
    (path / "empty.tfrecord").touch()
    (path / "notes.txt").write_text("These are notes about the data, and no records.\n")
    return path


def test_one_damaged_file_of_a_directory_stops_no_command(run: Run, damaged: Path) -> None:
    for command in ("describe", "head", "cat", "count", "schema"):
        assert "1.tfrecord" in run(command, damaged, code=1).stderr
    assert run("schema", damaged, *SKIP).stdout == "name: string\nx: int64\n"
    for command in (["count"], ["convert", damaged.parent / "out", "--overwrite"]):
        result = run(command[0], damaged, *command[1:], *SKIP, "--max-corrupt", 5)
        assert f"{damaged}/1.tfrecord: skipped 1 damaged record or range" in result.stderr
        assert (
            "1.tfrecord" in run(command[0], damaged, *command[1:], *SKIP, "--max-corrupt", 0, code=1).stderr
        )
    run("cat", damaged, "--on-corrupt", "quarantine", code=1)


def test_the_rows_of_head_do_not_hide_the_damage_between_them(run: Run, damaged: Path) -> None:
    flip(damaged / "0.tfrecord", 60)  # in the second record
    result = run("head", damaged / "0.tfrecord", "-n", 3, *SKIP)
    assert [json.loads(line)["x"] for line in result.stdout.splitlines()] == [0, 2, 3]
    assert "skipped 1 damaged record" in result.stderr


def test_another_dataset_gives_the_columns(run: Run, damaged: Path, tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(pa.table({"name": ["a"], "x": pa.array([1], pa.int16())}), tmp_path / "other")
    use = ("--schema", tmp_path / "other")
    assert run("schema", damaged, *use).stdout == "name: string\nx: int16\n"
    assert run("head", damaged, "-n", 1, *use).stdout == '{"name": "n0", "x": 0}\n'
    run("head", damaged, *use, "--type", "x=int8", code=2)
    error = run("head", damaged, "--schema", damaged, code=1).stderr
    assert (
        f"no snapshot; check the path, or run dask-tfrecord add-snapshot {damaged} to make a snapshot"
        in error
    )


def test_files_are_read_without_their_snapshot(run: Run, people: Path) -> None:
    shutil.copy(next(people.glob("part-*")), people / "more.tfrecord")
    assert "more.tfrecord" in run("count", people, code=1).stderr
    assert int(run("count", people, "--no-snapshot").stdout) > 3
    assert json.loads(run("describe", people, "--no-snapshot", "--json").stdout)["version"] is None
    assert "version" in run("count", people, "--no-snapshot", "--version", 1, code=1).stderr


ONLY_TFRECORD = "--no-snapshot", "--infer all", "--version 1", "--schema people", "--quarantine lost"


@pytest.mark.parametrize("options", ["--on-corrupt skip", *ONLY_TFRECORD, "--max-corrupt 1"])
def test_options_of_tfrecord_alone(
    run: Run, people: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(people.parent)
    Path("a.csv").write_text("x\n1\n")
    given = options.split()
    assert given[0] in run("convert", "a.csv", "out", *given, code=2).stderr
    assert not Path("out").exists()


def test_options_that_do_not_fit_are_errors_of_usage(run: Run, people: Path) -> None:
    run("schema", people, "--as", "pbtxt", *SKIP, code=2)
    run("count", people, *SKIP, "--max-corrupt", "few", code=2)


WHERE = ("--where", "x > 1 or name == 'a'", "--where", "x < 3 or name == 'd'")
JOINED = {
    "count": lambda path: ["count", path, *WHERE],
    "cat": lambda path: ["cat", path, *WHERE],
    "head": lambda path: ["head", path, *WHERE],
    "compact": lambda path: ["compact", path, *WHERE],
    "convert of csv": lambda path: ["convert", path.parent / "a.csv", path.parent / "out", *WHERE],
    "convert": lambda path: ["convert", path, path.parent / "out", *WHERE],
}


@pytest.mark.parametrize("name", JOINED)
def test_several_conditions_are_joined_by_and(run: Run, tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"x": [0, 1, 2, 3], "name": list("abcd")})
    expected = frame[
        ((frame["x"] > 1) | (frame["name"] == "a")) & ((frame["x"] < 3) | (frame["name"] == "d"))
    ]
    path = tmp_path / "few"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=4), path)
    frame.to_csv(tmp_path / "a.csv", index=False)
    printed = run(*JOINED[name](path)).stdout
    if name == "count":
        assert printed == f"{len(expected)}\n"
    elif name == "compact":
        assert len(dask_tfrecord.open_dataset(path).files) == 3  # the last two files became one
    else:
        if name.startswith("convert"):
            printed = run("cat", tmp_path / "out").stdout
        rows = [json.loads(line) for line in printed.splitlines()]
        assert [row["x"] for row in rows] == expected["x"].tolist()


REPEATED = {
    "count people --version 1 --version 1": "--version",
    "count people --json --json": "--json",
    "head people -n 1 --rows 2": "-n or --rows",
    "cat people --record-type example --record-type bytes": "--record-type",
    "count people --schema people --schema people": "--schema",
    "count people --type born=int8 --type born=int16": "'born'",
    "count people --storage-options a=1 --storage-options a=2": "'a'",
    "delete people --where x==1 --yes --keep-versions --no-keep-versions": "--no-keep-versions",
    "expire people --versions 1 --versions 2": "--versions",
    "cleanup people --older-than 1d --older-than 2d": "--older-than",
    "compact people --threads 1 --threads 2": "--threads",
    "convert people out --compression gzip --compression none": "--compression",
    "convert people out --to csv --to parquet": "--to",
    "add-snapshot people --split all --split all": "--split",
    "serve people --to tcp://127.0.0.1:0 --to tcp://127.0.0.1:0": "--to",
    "--traceback --traceback count people": "--traceback",
}


@pytest.mark.parametrize("arguments", REPEATED)
def test_an_option_with_one_value_is_refused_the_second_time(
    run: Run, people: Path, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(people.parent)
    error = run(*arguments.split(), code=2).stderr
    assert f"{REPEATED[arguments]} is passed twice, but has one value; pass it once" in error


def test_splits_and_names_are_collected(run: Run, tmp_path: Path) -> None:
    ddf = dd.from_dict({"x": [1, 2, 3], "k": ["a", "b", "c"], "l": [1, 1, 1]}, npartitions=1)
    for number, name in enumerate(["train", "eval", "test"]):
        directory = tmp_path / "tfx" / f"Split-{name}"
        dask_tfrecord.to_tfrecord(ddf.partitions[0].head(number + 1, compute=False), directory)
    for splits, rows in ((["train"], 1), (["train", "eval"], 3), (["train,test", "eval"], 6)):
        given = [part for split in splits for part in ("--split", split)]
        assert run("count", tmp_path / "tfx", *given).stdout == f"{rows}\n"
    out = tmp_path / "out"
    run("convert", tmp_path / "tfx" / "Split-test", out, "--partition-on", "k", "--partition-on", "l")
    assert json.loads(
        run("head", out, "--columns", "x", "--columns", "k,l").stdout.splitlines()[0]
    ).keys() == {
        "x",
        "k",
        "l",
    }


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("expire people --keep 3", "expire has no option --keep; did you mean --versions?"),
        ("compact people --keep", "compact has no option --keep; did you mean --keep-versions?"),
        ("cleanup people --older 3", "did you mean --older-than?"),
        ("restore people --version 3", "pass VERSION without the option name, as in restore PATH 1"),
        (
            "verify people --deep",
            "verify has no option --deep; dask-tfrecord verify --help lists its options",
        ),
        ("head people --limit 3", "did you mean --rows?"),
        ("count people --wher x==1", "did you mean --where?"),
        ("serve people --port 80", "did you mean --to?"),
    ],
)
def test_an_unknown_option_names_the_one_that_is_meant(run: Run, arguments: str, advice: str) -> None:
    assert advice in run(*arguments.split(), code=2).stderr


def test_a_warning_advises_options(run: Run, tmp_path: Path) -> None:
    path = fill(tmp_path / "events", {"events.out": events(9)})
    for command in ("count", "add-snapshot"):
        (line,) = run(command, path).stderr.splitlines()
        assert "pass --record-type bytes to read them as bytes without this warning" in line


TABLE = pa.table(
    {
        "x": pa.array([1, 2, 3, 4, None]),
        "name": ["CH", "FR", None, "it's", "CH"],
        "day": pa.array([0, 365, 19_000, None, 20_000], pa.date32()),
        "a-b": pa.array([True, False, None, True, False]),
        "y": pa.array([0.5, float("nan"), 2.0, -1.0, None], pa.float32()),
        "raw": pa.array([b"\x00", b"a", None, b"", b"a"]),
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("2 < x", [2, 3]),
        ("1 < x <= 3", [1, 2]),
        ("not 1 < x <= 3", [0, 3]),
        ("x == 1 or x == 4", [0, 3]),
        ("x in [1, 4]", [0, 3]),
        ("x not in (1, 4)", [1, 2, 4]),
        ("x == None", [4]),
        ("x is not None", [0, 1, 2, 3]),
        ("not x is None", [0, 1, 2, 3]),
        ("x > 1 and (name == 'FR' or name is None)", [1, 2]),
        ("not (x > 1 and name == 'FR')", [0, 3, 4]),
        ("not (x > 1 or name == 'FR')", [0]),
        ('name == "it\'s"', [3]),
        ("name != 'CH'", [1, 3]),
        ("day >= '1971-01-01'", [1, 2, 4]),
        ("column('a-b') == True", [0, 3]),
        ("y > -1.5 and y < 1e0", [0, 3]),
        ("x > 2.5", [2, 3]),
        ("x >= -3", [0, 1, 2, 3]),
        ("raw == b'a'", [1, 4]),
    ],
)
def test_selected_rows(text: str, rows: list[int]) -> None:
    predicate = parse_filters(parse(text), Schema.from_arrow(TABLE.schema))
    mask = predicate.mask(TABLE).fill_null(False).to_pylist()
    assert [row for row, selected in enumerate(mask) if selected] == rows


NOTHING = [
    "",
    "x",
    "x >",
    "x > y",
    "x + 1 > 2",
    "f(x) > 2",
    "x > f()",
    "x.__class__ == 1",
    "x in 3",
    "x is 3",
]
NOTHING += ["__import__('os').system('true') == 0", "[x for x in (1,)] == 1", "1 > 2", "column(x) > 1"]
NOTHING += ["column('x', 'y') > 1", "x > 1; y > 2", "lambda: 0", "x := 1", "(" * 500 + "x > 1" + ")" * 500]


@pytest.mark.parametrize("text", [*NOTHING, " and ".join(["(x == 1 or x == 2)"] * 20)])
def test_everything_else_is_an_error_of_usage(text: str) -> None:
    with pytest.raises(click.UsageError, match="--where"):
        parse(text)


def test_nothing_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("evaluated")

    for name in ("eval", "exec"):
        monkeypatch.setattr(options, name, refuse, raising=False)
    assert parse("x > 3") == [[("x", ">", 3)]]


def test_an_error_says_how_equality_is_written() -> None:
    with pytest.raises(click.UsageError, match="write == to compare"):
        parse("x = 3")
    with pytest.raises(click.UsageError, match=r"^((?!==).)*$"):
        parse("x >= ")
