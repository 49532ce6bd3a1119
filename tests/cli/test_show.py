"""`inspect`, `head`, `cat`, `count` and `schema`.

Modules: cli.show, cli.compute.
"""

import json
import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Run
from small_frames import flip

import dask_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files.window import WINDOW_BYTES

ROWS = [
    {"name": "Ada", "born": 1815, "tags": ["a"]},
    {"name": "Alan", "born": 1912, "tags": []},
    {"name": None, "born": 1906, "tags": ["b", "c"]},
]


def _rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_rows_are_json_lines_in_a_pipe(run: Run, people: Path) -> None:
    assert _rows(run("cat", people).stdout) == _rows(run("head", people).stdout) == ROWS
    assert _rows(run("head", people, "-n", 2).stdout) == ROWS[:2]
    assert _rows(run("head", people, "-n", 3, "--where", "born > 1900").stdout) == ROWS[1:]
    assert run("head", people, "-n", 0).stdout == ""
    output = run("cat", people, "--columns", "tags,born", "--where", "name == 'Ada'").stdout
    assert output == '{"tags": ["a"], "born": 1815}\n'
    files = sorted(people.glob("part-*"), reverse=True)
    assert [row["born"] for row in _rows(run("cat", *files).stdout)] == [1906, 1815, 1912]
    files[0].write_bytes(files[0].read_bytes()[:-3])
    result = run("cat", people, code=1)
    assert result.stderr.count("\n") == 1
    assert files[0].name in result.stderr


def test_partition_columns_are_printed(run: Run, tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2, 3], "key": ["a", "b", "a"]})
    dask_tfrecord.to_tfrecord(table, tmp_path / "keys", partition_on="key")
    output = run("cat", tmp_path / "keys", "--where", "key == 'a' and x > 1").stdout
    assert _rows(output) == [{"x": 3, "key": "a"}]
    output = run("cat", tmp_path / "keys", "--columns", "key").stdout
    assert _rows(output) == [{"key": key} for key in ("a", "a", "b")]
    described = json.loads(run("describe", tmp_path / "keys", "--json").stdout)
    assert (described["partition_columns"], described["partition_directories"]) == (["key"], 2)


def test_head_reads_only_the_start_of_the_first_file(run: Run, tmp_path: Path, opened: list[str]) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"x": ["y" * 1000] * 20_000}), npartitions=2)
    dask_tfrecord.to_tfrecord(ddf, tmp_path)
    first, last = Snapshot.open(tmp_path).files
    path = tmp_path / first.path
    times = path.stat()
    flip(path, 3 * WINDOW_BYTES // 2)  # a read up to here would raise
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    opened.clear()
    assert len(_rows(run("head", tmp_path, "-n", 5).stdout)) == 5
    assert str(tmp_path / last.path) not in opened
    run("cat", tmp_path, code=1)


def test_count(run: Run, people: Path) -> None:
    assert run("count", people).stdout == "3\n"
    assert run("count", people, "--where", "not name is None", "--json").stdout == '{\n  "rows": 2\n}\n'
    files = list(people.glob("part-*"))
    assert run("count", *files).stdout == "3\n"


def test_inspect_describes_the_snapshot(run: Run, people: Path, tmp_path: Path) -> None:
    described = json.loads(run("describe", people, "--json").stdout)
    size = sum(file.stat().st_size for file in people.glob("part-*"))
    assert described["path"] == str(people)
    assert (described["files"], described["rows"], described["bytes"]) == (2, 3, size)
    name, born, tags = described["columns"]
    assert (name["nulls"], name["min"], name["max"]) == (1, "Ada", "Alan")
    assert (born["type"], born["nulls"], born["min"], born["max"]) == ("int64", 0, 1815, 1912)
    assert tags["list_lengths"] == [0, 2]
    assert described["first_rows"] == ROWS
    assert (described["column_files"], described["column_bytes"]) == (0, 0)
    options: Any = {"append": True, "compression": "gzip", "columnar": "scalars"}
    dask_tfrecord.to_tfrecord(dask_tfrecord.read_tfrecord(people), people, **options)
    described = json.loads(run("describe", people, "--json").stdout)
    beside = [path.stat().st_size for path in (people / "_tfrecord" / "columns").iterdir()]
    assert described["codecs"] == ["none", "gzip"]
    assert (described["column_files"], described["column_bytes"]) == (1, sum(beside))
    assert f"column bytes   {sum(beside):,}\n" in run("describe", people).stdout
    # Bounds that are too long for a snapshot are not known.
    dask_tfrecord.to_tfrecord(dd.from_dict({"x": ["b", "a" * 100]}, npartitions=2), tmp_path / "long")
    (column,) = json.loads(run("describe", tmp_path / "long", "--json").stdout)["columns"]
    assert (column["min"], column["max"], column["nulls"]) == (None, None, 0)


def test_describe_counts_the_values_of_a_column(run: Run, tmp_path: Path) -> None:
    table = {"label": ["cat", "dog", None, "cat"], "tags": [["b"], [], ["b", "a"], ["b"]], "k": [2, 1, 1, 1]}
    dask_tfrecord.to_tfrecord(pa.table(table), tmp_path / "images", partition_on="k")
    lines = run("describe", tmp_path / "images", "--values", "label").stdout.splitlines()
    assert [line.split() for line in lines[:2]] == [["label", "count", "share"], ["cat", "2", "50.00%"]]
    for name, where, expected in [
        ("label", "k > 0", [("cat", 2), ("dog", 1), (None, 1)]),
        ("tags", "k > 0", [("a", 1), ("b", 3), (None, 1)]),
        ("k", "label == 'cat'", [(1, 1), (2, 1)]),
    ]:
        command = ("describe", tmp_path / "images", "--values", name, "--where", where, "--json")
        found = [tuple(one.values()) for one in json.loads(run(*command).stdout)["values"]]
        assert [count for _, count in found] == sorted((count for _, count in found), reverse=True)
        assert sorted(found, key=str) == sorted(expected, key=str)
    vectors = pa.table({"v": pa.array([[1, 2]], pa.list_(pa.int64(), 2))})
    dask_tfrecord.to_tfrecord(vectors, tmp_path / "vectors")
    assert "column of vectors" in run("describe", tmp_path / "vectors", "--values", "v", code=2).stderr
    error = run("describe", tmp_path / "images", "--values", "lable", code=1).stderr
    assert "Error: --values 'lable': no column is named 'lable'; there are 'label', 'tags'" in error
    points = pa.table({"p": [{"x": 1}, {"x": 1}, None], "o/a": [1, 2, 3], "o/b": [1, 2, 3]})
    dask_tfrecord.to_tfrecord(points, tmp_path / "points")
    found = json.loads(run("describe", tmp_path / "points", "--values", "p/x", "--json").stdout)["values"]
    assert found == [{"value": 1, "count": 2}, {"value": None, "count": 1}]
    assert "the columns o/a, o/b" in run("describe", tmp_path / "points", "--values", "o", code=2).stderr


def test_inspect_without_a_snapshot_shows_what_is_not_known(run: Run, people: Path) -> None:
    file = next(people.glob("part-*"))
    described = json.loads(run("describe", file, "--json", "-n", 0).stdout)
    assert (described["rows"], described["version"]) == (None, None)
    assert {column["nulls"] for column in described["columns"]} == {None}
    assert "not known" in run("describe", file).stdout


def test_the_schema_is_text_code_or_that_of_export(run: Run, people: Path) -> None:
    assert run("schema", people).stdout == "name: string\nborn: int64\ntags: list<item: string>\n"
    names: dict[str, pa.Schema] = {}
    exec(run("schema", people, "--as", "python").stdout, names)
    assert names["schema"].equals(Snapshot.open(people).columns.arrow)
    text = run("schema", people, "--as", "pbtxt").stdout
    (path,) = dask_tfrecord.open_dataset(people).export("tfmd")
    assert text == Path(path).read_text()


@pytest.mark.tensorflow
def test_the_tensorflow_schema_is_code(run: Run, people: Path) -> None:
    text = run("schema", people, "--as", "tensorflow").stdout
    assert "'born': tf.io.FixedLenFeature(shape=[], dtype=tf.int64)" in text


@pytest.mark.parametrize("command", ["head", "describe"])
def test_rows_are_a_table_on_a_terminal(people: Path, quick: Path, command: str) -> None:
    text = _on_a_terminal([quick, command, people])
    assert ["Ada", "1815", '["a"]'] in [line.split() for line in text.splitlines()]


def test_a_terminal_has_a_progress_bar(run: Run, people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    options: dict[str, Any] = {"stdout": writing, "stderr": writing, "env": environment}
    text = b""
    with subprocess.Popen(list(map(str, command)), **options) as process, suppress(OSError):
        os.close(writing)
        # Linux reports the end of a terminal as an error.
        while data := os.read(reading, 1 << 16):
            text += data
    os.close(reading)
    assert process.returncode == 0, text
    return text.decode()


# The bars of all panels.
COLOUR = (0x3B, 0x6E, 0xA5)


def test_a_plot_shows_bars_in_each_panel_and_nothing_else(run: Run, people: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="the oldest Dask is tested without matplotlib")
    run("describe", people, "--plot", tmp_path / "out.png")
    pixels = (image.imread(tmp_path / "out.png")[:, :, :3] * 255).round().astype(int)
    height, width, _ = pixels.shape
    assert 1000 < width < 2000
    assert 400 < height < 1000
    is_bar = (pixels == COLOUR).all(axis=2)[40:]  # below the title of the picture
    lines = np.array_split(is_bar, 2)
    cells = [cell.any() for line in lines for cell in np.array_split(line, 4, axis=1)]
    assert cells == [True] * 5 + [False] * 3
    run("describe", people, "--plot", tmp_path / "out.svg")
    text = (tmp_path / "out.svg").read_text()  # letters are drawn as curves, behind a comment with the text
    titles = ["bytes of a file", "name (1 null)", "born", "tags: list lengths", "tags: values"]
    for title in [*titles, "people: a sample of 3 rows"]:
        assert f"<!-- {title} -->" in text
    dask_tfrecord.to_tfrecord(pa.table({"p": [{"x": 1}, None]}), tmp_path / "points")
    run("describe", tmp_path / "points", "--plot", tmp_path / "points.svg")
    assert "<!-- p.x (1 null) -->" in (tmp_path / "points.svg").read_text()
    assert "png" in run("describe", people, "--plot", tmp_path / "out.txt", code=2).stderr
    assert not (tmp_path / "out.txt").exists()
