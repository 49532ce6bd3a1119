"""docs/format.md is enough: a program written from it reads our datasets without our library.

Modules: dataset.snapshot.versions, dataset.write.operations, files.file_writer.
"""

import base64
import datetime
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_tfrecord import TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files import file_writer

pytestmark = pytest.mark.usefixtures("one_thread")

PROGRAM = Path(__file__).parents[1] / "helpers" / "format_reader.py"
ROWS = 300


def everything() -> pa.Table:
    """A column of each kind, with nulls."""
    numbers = range(ROWS)
    odd = np.arange(ROWS) % 2 == 1
    day = datetime.date(2026, 1, 1)
    moment = datetime.datetime(2026, 1, 1)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "small": pa.array([n % 100 for n in numbers], pa.uint8(), mask=odd),
            "flag": pa.array([n % 3 == 0 for n in numbers], pa.bool_(), mask=odd),
            "x": pa.array([n / 8 for n in numbers], pa.float32(), mask=odd),
            "wide": pa.array([n / 4 for n in numbers], pa.float64()),
            "text": pa.array([f"line {n} é" * (n % 40) for n in numbers], pa.string(), mask=odd),
            "data": pa.array([bytes([n % 256]) * (n % 60) for n in numbers], pa.binary()),
            "day": pa.array([day + datetime.timedelta(n) for n in numbers], pa.date32(), mask=odd),
            "at": pa.array([moment + datetime.timedelta(0, n) for n in numbers], pa.timestamp("ms", "UTC")),
            "list": pa.array([list(range(n % 5)) if n % 7 else None for n in numbers], pa.list_(pa.int64())),
            "words": pa.array([["a", "b"][: n % 3] for n in numbers], pa.list_(pa.string())),
        }
    )


def collection(table: pa.Table, npartitions: int = 2) -> dd.DataFrame:
    return dd.from_pandas(table.to_pandas(types_mapper=pd.ArrowDtype), npartitions=npartitions)


# The running program. One process serves all tests, because an import of pyarrow takes longer than a read.
_programs: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module", autouse=True)
def _program() -> Iterator[None]:
    command = [sys.executable, "-I", str(PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        _programs.append(program)
        yield
        _programs.clear()


def run(*arguments: Any) -> dict[str, Any]:
    """Run the reader of the format in a process that cannot import the library."""
    program: Any = _programs[0]
    print(json.dumps([*map(str, arguments)]), file=program.stdin, flush=True)
    answer: dict[str, Any] = json.loads(program.stdout.readline())
    assert "failed" not in answer, answer["failed"]
    return answer


def read(root: Path, *version: int) -> tuple[pa.Table, dict[str, Any]]:
    """The rows that the program reads, and its checks."""
    out = root.parent / "rows.arrow"
    reported = run("read", root, out, *version)
    if "refused" in reported:
        pytest.fail(reported["refused"])
    with pa.memory_map(str(out)) as file:
        return pa.ipc.open_file(file).read_all(), reported


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small blocks, so that a small file has several."""
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 10_000)


def test_the_program_cannot_import_the_library() -> None:
    code = f"import runpy; runpy.run_path({str(PROGRAM)!r}); import dask_tfrecord"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: the library is not there" in result.stderr


@pytest.mark.parametrize("compression", [None, "gzip", "zlib", "zstd", "lz4", "bz2", "xz"])
@pytest.mark.filterwarnings("ignore:TensorFlow reads only")
def test_rows_blocks_checksums_statistics_and_schema(tmp_path: Path, compression: Any) -> None:
    table = everything()
    options = {"custom_metadata": {"who": "me"}, "write_index": False}
    to_tfrecord(collection(table), tmp_path / "a", compression=compression, lossy="allow", **options)
    found, reported = read(tmp_path / "a")
    assert found.equals(table)
    assert (reported["files"], reported["index"]) == (2, [])
    assert reported["blocks"] > 4
    assert reported["statistics"] == 2 * table.num_columns
    assert reported["custom_metadata"] == {"who": "me"}
    metadata = pq.read_metadata(tmp_path / "a" / "_tfrecord" / "00000001.parquet").metadata
    stored = json.loads(metadata[b"dask_tfrecord"])["schema"]["arrow"]
    assert pa.ipc.open_stream(base64.b64decode(stored)).schema.equals(table.schema)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_partition_values(tmp_path: Path, compression: Any) -> None:
    keys = ["plain", "", None, "a/b", "__HIVE_DEFAULT_PARTITION__", "100% é"]
    table = pa.table(
        {
            "key": [keys[n % 6] for n in range(ROWS)],
            "n": range(ROWS),
            "day": [datetime.date(2026, 1, 1 + n % 2) for n in range(ROWS)],
        }
    )
    ddf = collection(table)
    to_tfrecord(ddf, tmp_path / "a", compression=compression, partition_on=["key", "day"])
    found, reported = read(tmp_path / "a")
    assert found.schema.names == ["key", "n", "day"]
    assert found.sort_by("n").to_pylist() == table.to_pylist()
    assert reported["files"] == 12
    assert all("=" in name for name in Snapshot.open(tmp_path / "a").files[0].path.split("/")[:-1])


def test_categories_and_the_index(tmp_path: Path) -> None:
    frame = pd.DataFrame({"c": pd.Categorical(list("xyx"), categories=["z", "y", "x"])})
    frame.index = pd.Index([5, 6, 7], name="id")
    to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "a")
    found, reported = read(tmp_path / "a")
    assert found.to_pydict() == {"id": [5, 6, 7], "c": ["x", "y", "x"]}
    assert reported["categories"] == {"c": ["z", "y", "x"]}
    assert reported["index"] == [["id", "id"]]


@pytest.mark.parametrize(
    ("record_type", "name", "values"),
    [
        ("sequence_example", "steps", lambda n: [[n] * (n % 3)] * (n % 4)),
        ("bytes", "payload", lambda n: bytes([n % 256]) * n),
    ],
)
def test_other_record_types(tmp_path: Path, record_type: Any, name: str, values: Any) -> None:
    numbers = {} if record_type == "bytes" else {"n": range(ROWS)}
    table = pa.table({**numbers, name: [values(n) for n in range(ROWS)]})
    to_tfrecord(collection(table), tmp_path / "a", record_type=record_type, compression="gzip")
    found, reported = read(tmp_path / "a")
    assert found.equals(table)
    assert reported["blocks"] >= 2


@pytest.mark.parametrize("record_type", ["example", "sequence_example"])
def test_structs(tmp_path: Path, record_type: Any) -> None:
    inner = pa.struct({"b": pa.string(), "days": pa.list_(pa.date32())})
    type_ = pa.struct({"x": pa.int8(), "inner": inner, "none": pa.struct({})})
    days = [datetime.date(2026, 1, 2)]
    values = [
        {"x": 1, "inner": {"b": "é", "days": days}, "none": {}},
        {"x": None, "inner": {"b": None, "days": []}, "none": None},
        {"x": None, "inner": {"b": None, "days": None}, "none": None},
        {"x": None, "inner": None, "none": None},
        None,
    ]
    table = pa.table({"n": range(ROWS), "s": pa.array([values[n % 5] for n in range(ROWS)], type_)})
    to_tfrecord(collection(table), tmp_path / "a", record_type=record_type, compression="gzip")
    found, reported = read(tmp_path / "a")
    assert found.equals(table)
    assert reported["statistics"] == 2 * 4  # n, s/x, s/inner/b and s/inner/days in two files


@pytest.mark.usefixtures("appended_snapshots")
def test_appended_and_overwritten_datasets(tmp_path: Path) -> None:
    table = pa.table({"n": range(ROWS)})
    to_tfrecord(collection(table.slice(0, 100)), tmp_path / "a")
    to_tfrecord(collection(table.slice(100)), tmp_path / "a", append=True, compression="gzip")
    found, reported = read(tmp_path / "a")
    assert found.equals(table)
    assert (reported["number"], reported["files"]) == (2, 4)
    runs = open_dataset(tmp_path / "a").history()["run"].tolist()
    to_tfrecord(collection(table.slice(7, 3)), tmp_path / "a", overwrite=True)
    found, reported = read(tmp_path / "a")
    assert found["n"].to_pylist() == [7, 8, 9]
    assert (reported["number"], reported["lists"]) == (3, 1)
    assert reported["commits"] == [*runs, Snapshot.open(tmp_path / "a").run]


@pytest.mark.parametrize("keys", [None, "key"])
def test_changed_and_merged_lists(tmp_path: Path, keys: str | None) -> None:
    """Small writes, which store what they change: each version has the rows and the order of the library."""
    root, keeping, choose = tmp_path / "a", {"keep_versions": True}, random.Random(3)
    for number in range(0, 60, 10):
        table = pa.table({"n": range(number, number + 10), "key": ["b", None, "", "é", "a"] * 2})
        to_tfrecord(
            collection(table), root, append=True, partition_on=keys, write_options={"max_rows_per_file": 2}
        )
    for _ in range(5):
        open_dataset(root).delete([("n", "in", choose.sample(range(60), 4))], **keeping)
    open_dataset(root).compact(filters=[("n", "<", 30)], **keeping)
    open_dataset(root).expire(versions=8)
    to_tfrecord(collection(pa.table({"n": [99], "key": ["b"]}), 1), root, append=True, partition_on=keys)
    newest = Snapshot.open(root).number
    most = 0
    for version in open_dataset(root).history()["version"]:
        found, reported = read(root, version)
        assert found["n"].to_pylist() == read_tfrecord(root, version=version)["n"].compute().tolist()
        assert len(reported["commits"]) == version
        most = max(most, reported["lists"])
    assert newest == 14
    assert most > 2


@pytest.mark.usefixtures("appended_snapshots")
def test_added_columns_and_their_statistics(tmp_path: Path) -> None:
    table = everything()
    old = table.select(["n", "small"])
    to_tfrecord(old.append_column("points", table["list"].cast(pa.list_(pa.int32()))), tmp_path / "a")
    new = table.append_column("points", table["list"])
    to_tfrecord(new, tmp_path / "a", append=True, schema_change="add", lossy="allow")
    found, reported = read(tmp_path / "a")
    assert reported["statistics"] == 2 * new.num_columns
    expected = pa.concat_tables([old.append_column("points", table["list"]), new], promote_options="default")
    assert found.sort_by("n").to_pylist() == expected.select(found.column_names).sort_by("n").to_pylist()


def test_appended_partitions_have_the_order_of_the_library(tmp_path: Path) -> None:
    for numbers in (range(20), range(20, 30), range(30, 60)):
        table = pa.table({"n": numbers, "key": [f"k{n * 7 % (n % 9 + 1)}" for n in numbers]})
        to_tfrecord(collection(table), tmp_path / "a", partition_on="key", append=True)
    found, reported = read(tmp_path / "a")
    assert found["n"].to_pylist() == read_tfrecord(tmp_path / "a")["n"].compute().tolist()
    assert reported["number"] == 3


def test_files_of_a_killed_write_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    table = pa.table({"n": range(ROWS)})
    to_tfrecord(collection(table), tmp_path / "a")
    with monkeypatch.context() as patched:
        patched.setattr("dask_tfrecord.dataset.write.transaction.Transaction._store", kill)
        patched.setattr("dask_tfrecord.api.write.abandon", lambda run: None)
        with pytest.raises(KeyboardInterrupt):
            to_tfrecord(collection(table), tmp_path / "a", append=True)
    found, reported = read(tmp_path / "a")
    assert found.equals(table)
    assert len(reported["ignored"]) == 2


@pytest.mark.usefixtures("appended_snapshots")
@pytest.mark.parametrize("middle", [0, ROWS // 2])
def test_another_program_appends(tmp_path: Path, middle: int) -> None:
    table = pa.table({"n": range(ROWS)})
    for part in (table.slice(0, middle), table.slice(middle)):
        if len(part):
            options = {"compression": "gzip", "custom_metadata": {"who": "me"}, "append": True}
            to_tfrecord(collection(part), tmp_path / "a", **options)
    run("append", tmp_path / "a", 7, 8, 9)
    assert read_tfrecord(tmp_path / "a")["n"].compute().tolist() == [*range(ROWS), 7, 8, 9]
    assert Snapshot.open(tmp_path / "a").custom_metadata == {"who": "me"}
    to_tfrecord(collection(table.slice(0, 2)), tmp_path / "a", append=True)
    assert len(read_tfrecord(tmp_path / "a")) == ROWS + 5


def versioned(root: Path) -> list[list[int]]:
    """Make a dataset of seven versions, of which the first two are expired. Return the rows of the others."""
    table, keeping = pa.table({"n": range(20)}), {"keep_versions": True}
    to_tfrecord(collection(table), root)
    to_tfrecord(collection(table.slice(0, 1), 1), root, append=True)
    to_tfrecord(collection(table.slice(0, 5), 1), root, overwrite=True, **keeping)
    open_dataset(root).delete([("n", "<", 2)], **keeping)
    open_dataset(root).restore(3)
    to_tfrecord(collection(table.slice(5, 2), 1), root, overwrite=True, **keeping)
    open_dataset(root).expire(versions=4)
    return [[0, 1, 2, 3, 4], [2, 3, 4], [0, 1, 2, 3, 4], [5, 6], [5, 6]]


def test_kept_and_expired_versions(tmp_path: Path) -> None:
    expected = versioned(tmp_path / "a")
    for number, rows in enumerate(expected, 3):
        found, reported = read(tmp_path / "a", number)
        assert found["n"].to_pylist() == rows
        assert reported["versions"] == [3, 4, 5, 6, 7]
    assert run("read", tmp_path / "a", "out", 2) == {"refused": "a version of the dataset"}
    run("append", tmp_path / "a", 8)
    history = open_dataset(tmp_path / "a").history()
    assert history["version"].tolist() == [3, 4, 5, 6, 7, 8]
    assert history[["mode", "rows", "details"]].fillna("").iloc[-1].tolist() == ["append", 3, ""]
    assert open_dataset(tmp_path / "a").expire(versions=1, grace="0s").details["expired_versions"] == [
        3,
        4,
        5,
        6,
        7,
    ]
    assert read(tmp_path / "a")[0]["n"].to_pylist() == [5, 6, 8]


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"format_version": 2}, "the format version"),
        ({"format_version": "1"}, "the format version"),
        ({"unknown": [1, {"a": None}]}, None),
    ],
)
def test_what_both_refuse_and_ignore(tmp_path: Path, change: dict[str, Any], refused: str | None) -> None:
    to_tfrecord(collection(pa.table({"n": range(ROWS)})), tmp_path / "a")
    path = tmp_path / "a" / "_tfrecord" / "00000001.parquet"
    table = pq.read_table(path)
    metadata = {**json.loads(table.schema.metadata[b"dask_tfrecord"]), **change}
    table = table.append_column("unknown", pa.nulls(len(table), pa.int8()))
    text = json.dumps(metadata).encode()
    oracle.write_version(table.replace_schema_metadata({b"dask_tfrecord": text}), path)
    reported = run("read", tmp_path / "a", tmp_path / "out")
    assert reported.get("refused") == refused
    if refused:
        with pytest.raises(TFRecordError, match="format version"):
            read_tfrecord(tmp_path / "a")
    else:
        assert len(read_tfrecord(tmp_path / "a")) == ROWS
