"""Files read together, and records read by number: the rows stay the same.

Modules: files.record_file, files.selected_records, storage.reader.
"""

import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import CorruptRecordError, FileChangedError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.collection import numbered_rows
from dask_tfrecord.dataset.read import column_reads, task
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files import file_writer, record_file, selected_records
from dask_tfrecord.files.record_file import TableReader
from dask_tfrecord.storage.reader import FileReader

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEMA = pa.schema({"n": pa.int32(), "x": pa.dictionary(pa.int32(), pa.string())})


def record(n: int, **more: Any) -> bytes:
    return oracle.features_file([{"n": ("int64", [n]), "x": ("bytes", [str(n % 7).encode()]), **more}])


def records(first: int, count: int) -> bytes:
    return b"".join(map(record, range(first, first + count)))


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


# The content of a file, by the number of its first record. Two files of "half" are together a whole file.
FILES: dict[str, Callable[[int], bytes]] = {
    "empty": lambda n: b"",
    "one record": record,
    "many records": lambda n: records(n, 300),
    "gzip": lambda n: oracle.compress(records(n, 20), "gzip"),
    "empty gzip": lambda n: oracle.compress(b"", "gzip"),
    "gzip that expands": lambda n: oracle.compress(record(n) * 5000, "gzip"),
    "damaged payload": lambda n: flipped(records(n, 5), len(records(n, 3)) - 9),
    "damaged length": lambda n: flipped(records(n, 5), len(records(n, 2)) + 2),
    "cut off": lambda n: records(n, 5)[:-7],
    "half": lambda n: records(n, 4)[:-20],
    "other half": lambda n: records(n - 1, 4)[-20:],
    "cut off gzip": lambda n: oracle.compress(records(n, 20), "gzip")[:-3],
    "another format": lambda n: b"PAR1" + bytes(100),
    "too large a value": lambda n: records(n, 3) + record(2**40),
    "another kind": lambda n: records(n, 3) + record(n, x=("int64", [1])),
    "unknown feature": lambda n: records(n, 2) + record(n, y=("int64", [1])),
}
GOOD = ["empty", "one record", "many records", "gzip", "empty gzip"]

OPTIONS: list[dict[str, Any]] = [
    {},
    {"include_path_column": True, "read_options": {"include_offset_column": True}},
    {"on_corrupt": "skip", "include_path_column": True},
    {"on_corrupt": "skip", "read_options": {"max_corrupt": 1}},
    {"read_options": {"verify_crc": False}, "columns": ["x"]},
    {"columns": []},
    {"filters": [("n", ">", 100)], "read_options": {"include_offset_column": True}},
    {"compression": None, "extra": "ignore"},
    {"compression": "gzip"},
    {"record_type": "bytes", "schema": None},
    {"read_options": {"max_record_bytes": 20}},
]


def outcome(folder: Path, options: dict[str, Any]) -> list[Any]:
    """The rows of each partition, or the error, and the warnings."""
    found: list[Any] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            ddf = read_tfrecord(folder, **{"schema": SCHEMA, "record_type": "example", **options})
            for part in ddf.partitions:
                frame = part.compute()
                found += [frame.to_dict("list"), len(frame)]
                if "filters" not in options:  # which may leave unused categories
                    found += [frame[name].cat.categories.tolist() for name in frame.select_dtypes("category")]
        except Exception as error:  # the error is compared
            found.append((type(error), str(error)))
    return [*found, [str(one.message) for one in warned]]


def check_same(folder: Path, options: dict[str, Any]) -> list[Any]:
    together = outcome(folder, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_reads, "groups_of_small_files", lambda splits: [[split] for split in splits])
        assert together == outcome(folder, options)
    return together


@pytest.mark.sampled
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("bad", sorted(FILES.keys() - GOOD - {"other half"}))
def test_files_together_are_files_one_by_one(tmp_path: Path, bad: str, options: dict[str, Any]) -> None:
    source = random.Random(bad)
    names = [*source.choices(GOOD, k=6), bad, *["other half"] * (bad == "half"), *source.choices(GOOD, k=3)]
    for number, name in enumerate(names):
        (tmp_path / f"{number:02}").write_bytes(FILES[name](100 * number))
    check_same(tmp_path, options)


@pytest.mark.parametrize("options", OPTIONS[:7], ids=str)
def test_intact_files_are_read_together(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(GOOD * 3):
        (tmp_path / f"{number:02}").write_bytes(FILES[name](100 * number))
    check_same(tmp_path, options)
    monkeypatch.setattr(TableReader, "read", None)
    assert outcome(tmp_path, options)[1] > 0


@pytest.mark.parametrize("window", [1, 500, 10_000])
def test_groups_do_not_exceed_a_window(tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "WINDOW_BYTES", window)
    for number, name in enumerate(GOOD * 3):
        (tmp_path / f"{number:02}").write_bytes(FILES[name](100 * number))
    check_same(tmp_path, {"include_path_column": True})


@pytest.mark.parametrize("change", ["same size", "longer", "removed"])
def test_a_changed_file_among_others_is_named(tmp_path: Path, change: str) -> None:
    frame = pd.DataFrame({"n": range(40)})
    to_tfrecord(dd.from_pandas(frame, npartitions=8), tmp_path)
    snapshot = Snapshot.open(tmp_path)
    path = tmp_path / snapshot.files[5].path
    ddf = read_tfrecord(tmp_path)
    assert ddf.npartitions == 1
    status, content = path.stat(), path.read_bytes()
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes(
            oracle.features_file([{"n": ("int64", [5])}] * 5) if change == "same size" else content * 2
        )
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises((FileChangedError, FileNotFoundError), match=path.name):
        ddf.compute()


@pytest.mark.parametrize("name", ["empty", "empty gzip"])
def test_files_without_any_row_have_no_path(tmp_path: Path, name: str) -> None:
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(FILES[name](number))
    frame = read_tfrecord(tmp_path, schema=SCHEMA, include_path_column=True).compute()
    assert (len(frame), list(frame.columns)) == (0, ["n", "x", "path"])


# --- records that are read by number ---


@pytest.fixture(params=[None, "gzip"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files in each of two directories, with blocks of about 50 records."""
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 2_000)
    monkeypatch.setattr(numbered_rows, "BLOCK_BYTES", 1)
    frame = pd.DataFrame({"n": range(1000), "text": [str(n) * (n % 9) for n in range(1000)]})
    frame["half"] = frame["n"] // 500
    to_tfrecord(
        dd.from_pandas(frame, npartitions=4), tmp_path, compression=request.param, partition_on=["half"]
    )
    return tmp_path


def result_of(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # the error is compared
        return type(error), str(error)


def selected(root: Path, rows: Any, **read: Any) -> Any:
    """The result of ``take``, which is the same if whole splits are read."""
    found = result_of(lambda: open_dataset(root, **read).take(rows).to_dict("list"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "_DENSE", 1000)
        assert found == result_of(lambda: open_dataset(root, **read).take(rows).to_dict("list"))
    return found


@pytest.mark.sampled
@pytest.mark.parametrize(
    "read",
    [
        {},
        {"columns": ["text"]},
        {"columns": ["half"]},
        {"read_options": {"verify_crc": False}},
        {"on_corrupt": "skip"},
        {"filters": [("n", ">", 300)]},
        {"include_path_column": True},
    ],
    ids=str,
)
def test_selected_records_are_those_of_the_whole_split(root: Path, read: dict[str, Any]) -> None:
    for count in (1, 10, 400):
        selected(root, np.random.default_rng(count).integers(0, 600, count), **read)


def test_selected_records_of_several_batches_are_joined(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "WINDOW_BYTES", 500)
    monkeypatch.setattr(selected_records, "TABLE_BYTES", 1)
    selected(root, range(0, 600, 10))


def test_other_records_are_not_decoded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableReader, "read", None)
    assert open_dataset(root).take([120, 380, 620])["n"].to_pylist() == [120, 380, 620]
    some_of_each_block = [*range(0, 500, 20)]
    assert open_dataset(root).take(some_of_each_block)["n"].to_pylist() == some_of_each_block


def test_a_damaged_record_raises_if_it_is_selected(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(50_000), "text": ["some text"] * 50_000})
    to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path)
    [file] = Snapshot.open(tmp_path).files
    path = tmp_path / file.path
    status, content = path.stat(), bytearray(path.read_bytes())
    row = 40_000
    at = [at for at in range(len(content)) if content[at : at + 9] == b"some text"][row]
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert selected(tmp_path, [row])[0] is CorruptRecordError
    assert open_dataset(tmp_path).take([row - 1, row + 1])["n"].to_pylist() == [row - 1, row + 1]


def test_a_file_that_is_cut_while_it_is_read_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data.tfrecord"
    file.write_bytes(records(0, 300))
    ddf, before = read_tfrecord(file), FileReader.peek

    def cut(reader: FileReader, count: int) -> bytes:
        head = before(reader, count)
        os.truncate(file, file.stat().st_size - 5)
        return head

    monkeypatch.setattr(FileReader, "peek", cut)
    with pytest.raises(FileChangedError, match=r"has only 12,767 now"):
        ddf.compute()
