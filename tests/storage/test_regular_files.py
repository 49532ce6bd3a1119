"""Pipes, devices, loops of links, directories, and files that decode to gigabytes, in place of metadata.

Modules: files.bounded_parquet, storage.local_disk.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_tfrecord import TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot import versions
from dask_tfrecord.files import bounded_parquet
from dask_tfrecord.files.bounded_parquet import open_parquet, read_bounded
from dask_tfrecord.storage.store import Store

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes"),
]


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "directory": Path.mkdir,
    "a terabyte": sparse,
}
REASON = "a pipe, a socket or a device|links lead in a loop|is a directory|larger than the limit|magic bytes"


@pytest.fixture(params=KINDS)
def put(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Replace a file by something else."""

    def replace(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        KINDS[request.param](path)

    return replace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    to_tfrecord(pa.table({"n": [1, 2, 3]}), root, columnar=["n"])
    return root


def numbers(root: Path, **options: Any) -> list[int]:
    return sorted(read_tfrecord(root, **options)["n"].compute().tolist())


def test_a_snapshot_that_is_no_regular_file_raises_and_use_snapshot_false_does_without_it(
    root: Path, put: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / "_tfrecord" / "00000001.parquet"
    put(path)
    for read in (
        lambda: read_tfrecord(root),
        lambda: to_tfrecord(pa.table({"n": [4]}), root, append=True),
        lambda: open_dataset(root).history(),
    ):
        with pytest.raises(TFRecordError, match=REASON) as error:
            read()
        assert error.value.path == str(path)
    monkeypatch.setattr(versions, "open_list", lambda *_: pytest.fail("the snapshot was opened"))
    assert numbers(root, use_snapshot=False) == [1, 2, 3]
    assert open_dataset(root, use_snapshot=False).to_table()["n"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["replaced.json", "kept.json"])
def test_a_list_of_a_write_that_is_no_regular_file_raises(
    root: Path, put: Callable[[Path], None], name: str
) -> None:
    [run] = {path.name.split("-")[1] for path in root.glob("part-*")}
    path = root / "_tfrecord" / "staging" / run / name
    put(path)
    with pytest.raises(TFRecordError, match=REASON) as error:
        numbers(root, use_snapshot=False)
    assert error.value.path == str(path)


def test_an_exports_list_that_is_no_regular_file_raises(root: Path, put: Callable[[Path], None]) -> None:
    path = root / "_tfrecord" / "exports.json"
    put(path)
    with pytest.raises(TFRecordError, match=REASON) as error:
        open_dataset(root).export("tfds")
    assert error.value.path == str(path)


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_a_description_that_is_no_regular_file_raises(
    root: Path, put: Callable[[Path], None], name: str
) -> None:
    open_dataset(root).export("tfds")
    (root / "_tfrecord").rename(root.parent / "metadata")
    put(root / name)
    with pytest.raises(TFRecordError, match=REASON) as error:
        read_tfrecord(root)
    assert error.value.path == str(root / name)


def test_metadata_that_is_no_directory_is_no_metadata_or_raises(root: Path, tmp_path: Path) -> None:
    (root / "_tfrecord").rename(tmp_path / "metadata")
    (root / "_tfrecord").write_bytes(b"")
    assert numbers(root, use_snapshot=False) == [1, 2, 3]
    assert open_dataset(root).cleanup() == []
    (root / "_tfrecord").unlink()
    (root / "_tfrecord").symlink_to("_tfrecord")
    for read in (lambda: read_tfrecord(root), lambda: open_dataset(root).cleanup()):
        with pytest.raises(TFRecordError, match=r"_tfrecord: the (links lead in a loop|directory is a link)"):
            read()


@pytest.mark.parametrize("name", ["_tfrecord/staging", "_tfrecord/columns", "_tfrecord/kept", "k=1"])
def test_a_write_names_what_stands_where_it_needs_a_directory(tmp_path: Path, name: str) -> None:
    root, place = tmp_path / "data", tmp_path / "data" / name
    to_tfrecord(pa.table({"n": [1], "k": [0]}), root, partition_on="k")
    for stand in (os.mkfifo, Path.touch):
        stand(place)
        with pytest.raises(TFRecordError, match=r"a file has the name of|move the files") as error:
            to_tfrecord(pa.table({"n": [2], "k": [1]}), root, partition_on="k", append=True)
        assert error.value.path == str(place)
        place.unlink()
    assert numbers(root) == [1]


def test_a_directory_of_kept_files_that_is_a_loop_of_links_raises(root: Path) -> None:
    open_dataset(root).delete([("n", "==", 3)])
    kept = root / "_tfrecord" / "kept"
    kept.rename(root.parent / "kept")
    kept.symlink_to("kept")
    with pytest.raises(TFRecordError, match=r"kept.*: the links lead in a loop"):
        numbers(root, version=1)
    assert numbers(root) == [1, 2]


def test_a_schema_that_is_no_regular_file_raises(
    root: Path, tmp_path: Path, put: Callable[[Path], None]
) -> None:
    for name in ("schema.pbtxt", "features.json"):
        put(tmp_path / name)
        with pytest.raises(TFRecordError, match=REASON) as error:
            read_tfrecord(root, schema=tmp_path / name)
        assert error.value.path == str(tmp_path / name)


def test_records_are_decoded_if_a_column_file_is_no_regular_file(
    root: Path, put: Callable[[Path], None]
) -> None:
    [path] = (root / "_tfrecord" / "columns").iterdir()
    put(path)
    assert numbers(root, columns=["n"]) == [1, 2, 3]


def test_a_data_file_that_becomes_a_pipe_after_the_plan_raises(root: Path) -> None:
    planned = read_tfrecord(root, use_snapshot=False, blocksize=None)
    found = open_dataset(root)
    [path] = root.glob("part-*")
    path.unlink()
    os.mkfifo(path)
    for read in (planned.compute, lambda: found.take([0]), found.to_table):
        with pytest.raises(TFRecordError):
            read()


def test_a_small_snapshot_of_gigabytes_raises(root: Path) -> None:
    path = root / "_tfrecord" / "00000001.parquet"
    metadata, count = pq.read_metadata(path).metadata, 8_000_000
    numbers_ = pa.array(np.zeros(count, np.int64))
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array(["a" * 400]))
    table = pa.table({"path": names, "bytes": numbers_, "records": numbers_})
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table, row_group_size=count)
        writer.add_key_value_metadata(metadata)
    path.write_bytes(oracle.with_footer_checksum(path.read_bytes()))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(TFRecordError, match=r"would take more than [0-9,]+ bytes of memory"):
        read_tfrecord(root)
    assert numbers(root, use_snapshot=False) == [1, 2, 3]


@pytest.mark.parametrize("values", [pa.array([7] * 10_000), pa.array(["x" * 100] * 10_000), pa.nulls(10_000)])
def test_the_memory_of_rows_is_bounded(values: pa.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": values, "b.c": values})
    pq.write_table(table, sink)
    data = sink.getvalue().to_pybytes()
    for columns in (None, ["b.c"]):
        found = read_bounded(open_parquet(data), len(data), columns=columns)
        assert found.equals(table if columns is None else table.select(columns))
    monkeypatch.setattr(bounded_parquet, "_BASE", 50_000)
    monkeypatch.setattr(bounded_parquet, "_RATIO", 1)
    with pytest.raises(ValueError, match="bytes of memory"):
        read_bounded(open_parquet(data), len(data))
    monkeypatch.setattr(bounded_parquet, "_BASE", 5_000_000)
    assert read_bounded(open_parquet(data), len(data)).equals(table)


@pytest.mark.parametrize("url", ["data", "memory://metadata"])
def test_the_size_of_metadata_is_bounded(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.at(url)
    for size in (0, 9, 10):
        with store.create(store.join("file")) as file:
            file.write(bytes(size))
        assert store.read_file(store.join("file"), 10) == bytes(size)
    with store.create(store.join("file")) as file:
        file.write(bytes(11))
    with pytest.raises(ValueError, match="larger than the limit of 10 bytes"):
        store.read_file(store.join("file"), 10)
    with pytest.raises(FileNotFoundError):
        store.read_file(store.join("file/below"), 10)
