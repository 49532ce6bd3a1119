"""`inspect`, `head`, `cat`, `count` and `schema`.

Modules: cli.show, cli.compute.
"""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Run

import dask_tfrecord
from dask_tfrecord.files.window import WINDOW_BYTES

SCRIPT = Path(sys.executable).parent / "dask-tfrecord"

ROWS = [
    {"name": "Ada", "born": 1815, "tags": ["a"]},
    {"name": "Alan", "born": 1912, "tags": []},
    {"name": None, "born": 1906, "tags": ["b", "c"]},
]


def _rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("command", ["cat", "head"])
def test_rows_are_json_lines_in_a_pipe(run: Run, people: Path, command: str) -> None:
    assert _rows(run(command, people).stdout) == ROWS


def test_head_takes_the_first_rows_over_files(run: Run, people: Path) -> None:
    assert _rows(run("head", people, "-n", 2).stdout) == ROWS[:2]
    assert _rows(run("head", people, "-n", 3, "--where", "born > 1900").stdout) == ROWS[1:]
    assert run("head", people, "-n", 0).stdout == ""


def test_columns_come_in_the_given_order(run: Run, people: Path) -> None:
    output = run("cat", people, "--columns", "tags,born", "--where", "name == 'Ada'").stdout
    assert output == '{"tags": ["a"], "born": 1815}\n'


def test_several_files_are_read_in_the_given_order(run: Run, people: Path) -> None:
    files = sorted(people.glob("part-*"), reverse=True)
    assert [row["born"] for row in _rows(run("cat", *files).stdout)] == [1906, 1815, 1912]


def test_partition_columns_are_printed(run: Run, tmp_path: Path) -> None:
    ddf = dd.from_dict({"x": [1, 2, 3], "key": ["a", "b", "a"]}, npartitions=1)
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "keys", partition_on="key")
    output = run("cat", tmp_path / "keys", "--where", "key == 'a' and x > 1").stdout
    assert _rows(output) == [{"x": 3, "key": "a"}]
    assert _rows(run("cat", tmp_path / "keys", "--columns", "key").stdout) == [
        {"key": key} for key in ("a", "a", "b")
    ]
    described = json.loads(run("inspect", tmp_path / "keys", "--json").stdout)
    assert described["partition_columns"] == ["key"]
    assert described["partition_directories"] == 2


def test_head_reads_only_the_start_of_the_first_file(
    run: Run, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"x": ["y" * 1000] * 20_000}), npartitions=2)
    snapshot = dask_tfrecord.to_tfrecord(ddf, tmp_path / "long")
    last = tmp_path / "long" / snapshot.files[1].path
    data = tmp_path / "long" / snapshot.files[0].path
    damaged = bytearray(data.read_bytes())
    damaged[3 * WINDOW_BYTES // 2] ^= 1  # a read up to here would raise
    times = data.stat()
    data.write_bytes(damaged)
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    opened.clear()
    assert len(_rows(run("head", tmp_path / "long", "-n", 5).stdout)) == 5
    assert str(last) not in opened
    run("cat", tmp_path / "long", code=1)


def test_damage_raises_after_the_rows_before_it(run: Run, people: Path) -> None:
    file = sorted(people.glob("part-*"))[1]
    file.write_bytes(file.read_bytes()[:-3])
    result = run("cat", people, code=1)
    assert result.stderr.count("\n") == 1
    assert file.name in result.stderr


def test_count(run: Run, people: Path) -> None:
    assert run("count", people).stdout == "3\n"
    assert run("count", people, "--where", "not name is None", "--json").stdout == '{\n  "rows": 2\n}\n'
    files = list(people.glob("part-*"))
    assert run("count", *files).stdout == "3\n"


def test_inspect_describes_the_snapshot(run: Run, people: Path) -> None:
    described = json.loads(run("inspect", people, "--json").stdout)
    size = sum(file.stat().st_size for file in people.glob("part-*"))
    assert described["path"] == str(people)
    assert (described["files"], described["rows"], described["bytes"]) == (2, 3, size)
    assert described["codecs"] == ["none"]
    name, born, tags = described["columns"]
    assert (name["nulls"], name["min"], name["max"]) == (1, "Ada", "Alan")
    assert (born["type"], born["nulls"], born["min"], born["max"]) == ("int64", 0, 1815, 1912)
    assert tags["list_lengths"] == [0, 2]
    assert described["first_rows"] == ROWS


def test_inspect_prints_the_same_for_people(run: Run, people: Path) -> None:
    lines = run("inspect", people, "-n", 1).stdout.splitlines()
    assert lines[0].split() == ["path", str(people)]
    assert ["born", "int64", "int64_list", "0", "1815", "1912"] in [line.split() for line in lines]
    assert lines[-1].split() == ["Ada", "1815", '["a"]']


def test_inspect_without_a_snapshot_shows_what_is_not_known(run: Run, people: Path) -> None:
    file = next(people.glob("part-*"))
    described = json.loads(run("inspect", file, "--json", "-n", 0).stdout)
    assert (described["rows"], described["version"]) == (None, None)
    assert {column["nulls"] for column in described["columns"]} == {None}
    assert "not known" in run("inspect", file).stdout


def test_inspect_says_nothing_wrong_of_bounds_that_are_too_long_for_a_snapshot(
    run: Run, tmp_path: Path
) -> None:
    ddf = dd.from_dict({"x": ["b", "a" * 100]}, npartitions=2)
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "long")
    (column,) = json.loads(run("inspect", tmp_path / "long", "--json").stdout)["columns"]
    assert (column["min"], column["max"], column["nulls"]) == (None, None, 0)


def test_inspect_lists_all_codecs(run: Run, people: Path) -> None:
    ddf = dask_tfrecord.read_tfrecord(people)
    copy = people.parent / "copy"
    dask_tfrecord.to_tfrecord(ddf, copy)
    dask_tfrecord.to_tfrecord(ddf, copy, append=True, compression="gzip")
    assert json.loads(run("inspect", copy, "--json").stdout)["codecs"] == ["none", "gzip"]


def test_the_arrow_schema_is_one_column_per_line(run: Run, people: Path) -> None:
    assert run("schema", people).stdout == "name: string\nborn: int64\ntags: list<item: string>\n"


def test_the_python_schema_is_code_of_the_same_columns(run: Run, people: Path) -> None:
    names: dict[str, pa.Schema] = {}
    exec(run("schema", people, "--as", "python").stdout, names)
    assert names["schema"].equals(dask_tfrecord.Snapshot.open(people).columns.arrow)


def test_the_pbtxt_schema_is_that_of_export(run: Run, people: Path) -> None:
    text = run("schema", people, "--as", "pbtxt").stdout
    (path,) = dask_tfrecord.export(people, "tfmd")
    assert text == Path(path).read_text()


@pytest.mark.tensorflow
def test_the_tensorflow_schema_is_code(run: Run, people: Path) -> None:
    text = run("schema", people, "--as", "tensorflow").stdout
    assert "'born': tf.io.FixedLenFeature(shape=[], dtype=tf.int64)" in text


@pytest.mark.parametrize("command", [["head"], ["cat"], ["inspect"]])
def test_rows_are_a_table_on_a_terminal(people: Path, quick: Path, command: list[str]) -> None:
    text = _on_a_terminal([quick, *command, people])
    assert ["Ada", "1815", '["a"]'] in [line.split() for line in text.splitlines()]


def test_a_terminal_shows_a_progress_bar_on_stderr(
    run: Run, people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_tfrecord.cli.compute.SHORTEST", 0)
    assert "Completed" not in run("verify", people).output
    monkeypatch.setattr("dask_tfrecord.cli.compute.is_terminal", lambda: True)
    result = run("verify", people)
    assert "100% Completed" in result.stderr
    assert "Completed" not in result.stdout


def _on_a_terminal(command: list[object]) -> str:
    """What a command prints if its output and its errors are a terminal."""
    reading, writing = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        list(map(str, command)), stdout=writing, stderr=writing, env=environment
    ) as process:
        os.close(writing)
        text = b""
        while True:
            try:
                data = os.read(reading, 1 << 16)
            except OSError:  # Linux reports the end of a terminal as an error
                break
            if not data:
                break
            text += data
    os.close(reading)
    assert process.returncode == 0, text
    return text.decode()
