"""Missing, added and changed bytes: only the damaged records are lost, however long they claim to be.

Modules: files.find_blocks, files.record_file, files.window, files.splits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import oracle
import pandas as pd
import pyarrow as pa
import pytest
from damaged_files import framed_bytes, framed_number, holed_files, kept_records
from hypothesis import given
from hypothesis import strategies as st
from split_table import read_table

from dask_tfrecord import CorruptRecordWarning, read_tfrecord, verify
from dask_tfrecord.dataset.read.discovery import one_by_one
from dask_tfrecord.files import record_file, window
from dask_tfrecord.files.damage import DamagePolicy, Losses
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import find_blocks
from dask_tfrecord.files.record_file import count_records
from dask_tfrecord.files.splits import Split, cut
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::dask_tfrecord.CorruptRecordWarning"),
]

SCHEMAS = {
    "example": Schema.from_arrow(pa.schema({"n": pa.int64(), "offset": pa.int64()})),
    "bytes": Schema.from_arrow(pa.schema({"record": pa.binary()}), record_type="bytes"),
}


@contextmanager
def windows_of(size: int) -> Iterator[None]:
    with (
        patch.object(record_file, "WINDOW_BYTES", size),
        patch("dask_tfrecord.files.find_blocks.WINDOW_BYTES", size),
        patch("dask_tfrecord.files.find_blocks.detect", lambda head: None),
        patch.object(window, "detect", lambda head: None),
    ):
        yield


def splits_of(store: Store, data: bytes, blocksize: int, options: ReadOptions) -> tuple[Split, ...]:
    file = FileInfo(store.join("data"), len(data))
    found = find_blocks(store, [file], options, one_by_one, task_bytes=max(64, blocksize), block_bytes=1)
    return tuple(Split(file, *one) for one in cut(file.size or 0, found[file.path], blocksize))


@given(
    holed_files().filter(len),
    st.sampled_from(["example", "bytes"]),
    st.sampled_from([30, 200, 1 << 22]),
    st.sampled_from([1, 50, 300, 1 << 20]),
)
def test_what_is_kept_is_what_a_search_of_every_byte_keeps(
    data: bytes, record_type: str, window: int, blocksize: int
) -> None:
    """The same rows for each size of window and block, and each lost byte is in the quarantine."""
    store = Store.at("memory://holed")
    store.fs.pipe_file("/holed/data", data)
    log = Store.at("memory://holed-log")
    if log.fs.exists(log.root):
        log.fs.rm(log.root, recursive=True)
    damage = DamagePolicy("quarantine", quarantine=log)
    options = ReadOptions(compression=None, damage=damage, offset_column="offset")
    kept, lost = kept_records(data)
    with windows_of(window):
        splits = splits_of(store, data, blocksize, options)
        losses = [Losses(options.damage) for _ in splits]
        tables = [
            read_table(store, split, SCHEMAS[record_type], options, losses=one)
            for split, one in zip(splits, losses, strict=True)
        ]
        table = pa.concat_tables(tables)
        if record_type == "example":
            assert table["offset"].to_pylist() == [at for at, _ in kept]
        else:
            assert table["record"].to_pylist() == [data[at + 12 : end - 4] for at, end in kept]
        assert sum(one.count for one in losses) == len(lost)
        assert sum(count_records(store, split, options) for split in splits) == len(kept)
    noted = [
        pd.read_parquet(log.fs.open(path))
        for path in (log.fs.find(log.root) if log.fs.exists(log.root) else [])
    ]
    columns = pd.concat(noted).sort_values("offset") if noted else pd.DataFrame(columns=["bytes", "offset"])
    assert b"".join(columns["bytes"]) == b"".join(data[start:stop] for start, stop in lost)


def hole(after: int) -> bytes:
    """The first 30 bytes of a record that claims this many bytes after them."""
    empty = len(framed_bytes(b"x" * 1000)) - 1000
    return framed_bytes(b"x" * (after + 30 - empty))[:30]


SMALL = b"".join(framed_number(100) for _ in range(400))
ONE = len(framed_number(100))


@pytest.mark.parametrize("claimed", [50 * ONE + 11, 50 * ONE, len(SMALL), len(SMALL) // 2, 100 * len(SMALL)])
@pytest.mark.parametrize("blocksize", [None, "2 kiB"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_hole_loses_one_record_wherever_its_length_points(
    tmp_path: Path, claimed: int, blocksize: str | None, compression: str | None
) -> None:
    """The length may point into a record, to the start of one, to the end of the file or beyond it."""
    data = SMALL + hole(claimed) + SMALL
    assert len(kept_records(SMALL[: 60 * ONE] + hole(claimed) + SMALL[: 60 * ONE])[1]) == 1
    path = tmp_path / "data.tfrecord"
    path.write_bytes(oracle.compress(data, compression))
    options = {"on_corrupt": "skip", "max_corrupt": 1, "blocksize": blocksize}
    ddf = read_tfrecord(path, schema=pa.schema({"n": pa.int64()}), record_type="example", **options)
    with pytest.warns(CorruptRecordWarning, match="skipped 1 damaged record or range, 30 bytes"):
        assert ddf["n"].compute().tolist() == [100] * 800
    assert len(ddf) == 800
    report = verify(path)
    assert report[["records", "damaged", "damaged_bytes"]].iloc[0].tolist() == [800, 1, 30]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("blocksize", [None, 100])
def test_records_inside_a_damaged_record_are_no_rows(
    tmp_path: Path, last: bool, blocksize: int | None
) -> None:
    """A changed byte leaves the length right: the next record, or the end, follows."""
    outer = bytearray(framed_bytes(b"".join(map(framed_number, range(20)))))
    outer[20] ^= 1
    data = framed_number(1) + outer + (b"" if last else framed_number(2))
    (tmp_path / "data").write_bytes(data)
    types = pa.schema({"n": pa.int64()})
    options = {"on_corrupt": "skip", "max_corrupt": 1, "blocksize": blocksize}
    ddf = read_tfrecord(tmp_path / "data", schema=types, record_type="example", **options)
    assert ddf["n"].compute().tolist() == ([1] if last else [1, 2])
    assert len(ddf) == 2 - last
