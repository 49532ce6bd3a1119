"""The options that say what is read are those of `read_tfrecord`: damage, inference, schema and snapshot.

Modules: cli.options.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from conftest import Run
from other_writers import events, fill

import dask_tfrecord

READING = ("inspect", "head", "cat", "count", "schema", "convert")
SKIP = ("--on-corrupt", "skip")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A directory with a cut file, a text file, an empty file, and 200 rows in two whole files."""
    frame = pd.DataFrame({"x": range(300), "name": [f"n{number}" for number in range(300)]})
    written = tmp_path / "written"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=3), written)
    path = tmp_path / "damaged"
    path.mkdir()
    for number, file in enumerate(sorted(written.glob("part-*"))):
        shutil.copy(file, path / f"{number}.tfrecord")
    cut = path / "1.tfrecord"
    cut.write_bytes(cut.read_bytes()[:200])  # 4 records, and a part of the fifth
    (path / "empty.tfrecord").touch()
    (path / "notes.txt").write_text("These are notes about the data, and no records.\n")
    return path


def _use(run: Run, command: str, path: Path, *options: object, code: int = 0) -> Result:
    target = [path.parent / "out", "--overwrite", "--json"] if command == "convert" else []
    rows = {"head": ["-n", "1000"], "inspect": ["-n", "1000", "--json"]}.get(command, [])
    return run(command, path, *target, *rows, *options, code=code)


def _rows(command: str, result: Result) -> Any:
    if command in ("head", "cat"):
        return result.stdout.count("\n")
    if command == "inspect":
        return len(json.loads(result.stdout)["first_rows"])
    return json.loads(result.stdout)["rows"] if command == "convert" else int(result.stdout)


@pytest.mark.parametrize("command", READING)
def test_one_damaged_file_of_a_directory_stops_no_command(run: Run, damaged: Path, command: str) -> None:
    assert "1.tfrecord" in _use(run, command, damaged, code=1).stderr
    result = _use(run, command, damaged, *SKIP)
    if command == "schema":
        assert result.stdout == "x: int64\nname: string\n"
        return
    assert _rows(command, result) == 204
    assert f"{damaged}/1.tfrecord: skipped 1 damaged record or range" in result.stderr


@pytest.mark.parametrize("command", ["cat", "count", "convert"])
def test_a_limit_of_damage_is_an_error_that_names_the_option(run: Run, damaged: Path, command: str) -> None:
    assert "1.tfrecord" in _use(run, command, damaged, *SKIP, "--max-corrupt", 0, code=1).stderr
    assert _rows(command, _use(run, command, damaged, *SKIP, "--max-corrupt", 5)) == 204


def test_lost_bytes_are_stored(run: Run, damaged: Path, tmp_path: Path) -> None:
    for command in ("cat", "count"):
        place = tmp_path / f"lost by {command}"
        _use(run, command, damaged, "--on-corrupt", "quarantine", "--quarantine", place)
        lost = pq.read_table(place).to_pylist()
        assert b"".join(one["bytes"] for one in lost if one["file"].endswith("1.tfrecord"))
    run("cat", damaged, "--on-corrupt", "quarantine", code=1)


def test_the_rows_of_head_do_not_hide_the_damage_between_them(run: Run, damaged: Path) -> None:
    cut = damaged / "1.tfrecord"
    data = bytearray((damaged / "0.tfrecord").read_bytes())
    data[60] ^= 1  # in the second record
    cut.write_bytes(data)
    result = run("head", cut, "-n", 3, *SKIP)
    assert [json.loads(line)["x"] for line in result.stdout.splitlines()] == [0, 2, 3]
    assert "skipped 1 damaged record" in result.stderr


def test_all_records_show_the_columns(run: Run, tmp_path: Path) -> None:
    frames = [pd.DataFrame({"x": [1]})] * 10
    frames[5] = pd.DataFrame({"x": [1], "rare": ["a"]})
    for number, frame in enumerate(frames):
        ddf = dd.from_pandas(frame, npartitions=1)
        dask_tfrecord.to_tfrecord(ddf, tmp_path / f"one{number}")
    files = [next((tmp_path / f"one{number}").glob("part-*")) for number in range(10)]
    assert "rare" in run("schema", *files, "--infer", "all").stdout
    assert run("cat", *files, "--infer", "all").stdout.count("\n") == 10


def test_another_dataset_gives_the_columns(run: Run, damaged: Path, tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": ["a"], "x": pd.array([1], "int16[pyarrow]")})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "other")
    use = ("--schema", tmp_path / "other")
    assert run("schema", damaged, *use).stdout == "name: string\nx: int16\n"
    assert run("head", damaged, "-n", 1, *use).stdout == '{"name": "n0", "x": 0}\n'
    run("head", damaged, *use, "--type", "x=int8", code=2)
    error = run("head", damaged, "--schema", damaged, code=1).stderr
    assert f"no snapshot; check the path, or run dask-tfrecord index {damaged} to make a snapshot" in error


def test_files_are_read_without_their_snapshot(run: Run, people: Path) -> None:
    shutil.copy(next(people.glob("part-*")), people / "more.tfrecord")
    assert "more.tfrecord" in run("count", people, code=1).stderr
    assert int(run("count", people, "--no-snapshot").stdout) > 3
    assert json.loads(run("inspect", people, "--no-snapshot", "--json").stdout)["version"] is None
    assert "version" in run("count", people, "--no-snapshot", "--version", 1, code=1).stderr


@pytest.mark.parametrize(
    "options",
    [
        SKIP,
        ("--no-snapshot",),
        ("--infer", "all"),
        ("--version", "1"),
        ("--schema", "people"),
        ("--quarantine", "lost"),
        ("--max-corrupt", "1"),
    ],
)
def test_options_of_tfrecord_are_not_for_other_files(
    run: Run, people: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(people.parent)
    Path("a.csv").write_text("x\n1\n")
    assert options[0] in run("convert", "a.csv", "out", *options, code=2).stderr
    assert not Path("out").exists()


def test_an_option_that_a_form_of_the_schema_lacks_is_refused(run: Run, people: Path) -> None:
    run("schema", people, "--as", "pbtxt", *SKIP, code=2)


def test_a_limit_that_is_no_number_is_an_error_of_usage(run: Run, people: Path) -> None:
    run("count", people, *SKIP, "--max-corrupt", "few", code=2)


def test_a_warning_advises_options(run: Run, tmp_path: Path) -> None:
    path = fill(tmp_path / "events", {"events.out": events(9)})
    for command in ("count", "index"):
        (line,) = run(command, path).stderr.splitlines()
        assert "pass --record-type bytes to read them as bytes without this warning" in line
