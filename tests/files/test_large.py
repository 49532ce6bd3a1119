"""Files, offsets and columns beyond 2 and 4 GiB, and the memory of large reads.

Modules: files.record_file, files.find_blocks, files.window.
"""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pandas as pd
import psutil
import pyarrow as pa
import pytest
from encoded import encoded_views
from memory import growth
from split_table import read_table, whole_file

from dask_tfrecord import CorruptRecordError
from dask_tfrecord.codec import Encoder
from dask_tfrecord.dataset.read.task import Partition
from dask_tfrecord.files import record_file
from dask_tfrecord.files.damage import DamagePolicy, Losses
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import RecordFile
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

GIB = 1 << 30
STARTS = [2 * GIB - 7, 2 * GIB, 4 * GIB - 7, 4 * GIB, 40 * GIB + 3]
TYPES = pa.schema({"n": pa.int64(), "at": pa.int64(), "from": record_file.PATH_TYPE})
OPTIONS = ReadOptions(path_column="from", offset_column="at")
COLUMNS = Schema(Schema.from_arrow(TYPES).fields, "example")


def frames(count: int) -> bytes:
    return oracle.features_file([{"n": ("int64", [n])} for n in range(count)])


def offsets(count: int) -> list[int]:
    """The offset of each record of ``frames``, and the end."""
    return [len(frames(number)) for number in range(count + 1)]


def sparse(path: Path, start: int, content: bytes, after: int = 0) -> None:
    """A sparse file of zeros with the content at ``start``."""
    with path.open("wb") as file:
        file.seek(start)
        file.write(content)
        file.truncate(start + len(content) + after)
    if path.stat().st_blocks * 512 > GIB:
        pytest.skip("this disk has no sparse files")


def expected(start: int, count: int) -> list[tuple[int, int]]:
    return [(n, start + at) for n, at in enumerate(offsets(count)[:-1])]


@pytest.mark.parametrize("start", STARTS)
def test_a_split_beyond_any_32_bits_of_a_plain_file(tmp_path: Path, start: int) -> None:
    """The record numbers of the split are as large as its offsets."""
    content = frames(100)
    sparse(tmp_path / "data", start, content + frames(3), after=GIB)
    store, split = whole_file(tmp_path / "data")
    stop = start + len(content)
    part = Split(split.file, Block(start, start, start), Block(stop, stop, start + 100))
    table = read_table(store, part, COLUMNS, OPTIONS)
    assert list(zip(table["n"].to_pylist(), table["at"].to_pylist(), strict=True)) == expected(start, 100)
    assert RecordFile(store, part, OPTIONS).count() == 100


@pytest.mark.parametrize("start", STARTS)
def test_damage_beyond_any_32_bits_tells_where_it_is(tmp_path: Path, start: int) -> None:
    content = bytearray(frames(10))
    at, end = offsets(10)[7:9]
    content[at + 20] ^= 1
    sparse(tmp_path / "data", start, bytes(content))
    store, split = whole_file(tmp_path / "data")
    part = Split(split.file, Block(start, start, start))
    with pytest.raises(CorruptRecordError) as caught:
        read_table(store, part, COLUMNS, OPTIONS)
    assert (caught.value.record, caught.value.offset) == (start + 7, start + at)
    assert f"record {start + 7:,} (byte {start + at:,})" in str(caught.value)
    policy = DamagePolicy("quarantine", None, Store.at(tmp_path / "log"))
    options = ReadOptions(offset_column="at", damage=policy)
    losses = Losses(options.damage)
    table = read_table(store, part, COLUMNS.select(["n", "at"]), options, losses=losses)
    assert table["n"].to_pylist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    log = pd.read_parquet(tmp_path / "log")
    assert (log["offset"].tolist(), log["length"].tolist()) == ([start + at], [end - at])


@pytest.mark.parametrize(
    ("stored", "content"),
    [*zip(STARTS, STARTS, strict=True), (STARTS[0], STARTS[-1]), (STARTS[-1], STARTS[0])],
)
def test_a_split_beyond_any_32_bits_of_a_gzip_file(tmp_path: Path, stored: int, content: int) -> None:
    """The stored offset, the decompressed offset, or both are beyond 32 bits."""
    stream = zlib.compressobj(wbits=-15)
    first = stream.compress(frames(50)) + stream.flush(zlib.Z_FULL_FLUSH)
    rest = stream.compress(frames(50)) + stream.flush(zlib.Z_FULL_FLUSH)
    sparse(tmp_path / "data.tfrecord.gz", stored, first + rest)
    store, split = whole_file(tmp_path / "data.tfrecord.gz")
    start = Block(stored, content, content)
    stop = Block(stored + len(first), content + len(frames(50)), content + 50)
    table = read_table(store, Split(split.file, start, stop), COLUMNS, OPTIONS)
    assert list(zip(table["n"].to_pylist(), table["at"].to_pylist(), strict=True)) == expected(content, 50)


COLUMN = """
import sys
import pyarrow as pa
import pyarrow.compute as pc
from dask_tfrecord import read_tfrecord
from dask_tfrecord.codec import Encoder
from dask_tfrecord.codec import Column

image = bytes(1 << 20)  # zeros, which a sparse file does not store
encoder = Encoder([Column("image", "bytes", 0)], "example")
encoder.bind(pa.record_batch({"image": [image]}))
room = bytearray(1 << 21)
_, size, _ = encoder.encode_into(0, room)
start, end = (part for part in bytes(room[:size]).split(image) if part)
count = (2 << 30) // len(image) + 5
with open("data", "wb") as file:
    for _ in range(count):
        file.write(start)
        file.seek(len(image), 1)
        file.write(end)
options = {"schema": pa.schema({"image": pa.binary()}), "record_type": "example"}
frame = read_tfrecord("data", blocksize=None, **options).compute(scheduler="sync")
column = pa.chunked_array(frame["image"].array.__arrow_array__())
assert len(frame) == count and pc.sum(pc.binary_length(column)).as_py() == count * len(image) > 2**31
assert pc.all(pc.equal(column, image)).as_py()
for chunk in column.chunks:
    chunk.validate(full=True)
print(0)
"""


def test_a_column_of_more_than_two_gigabytes_in_one_partition(tmp_path: Path) -> None:
    """The column has several chunks, whose 32-bit offsets do not overflow."""
    if psutil.virtual_memory().available < 6 * GIB:
        pytest.skip("needs 6 GiB of free memory")
    assert growth(COLUMN, tmp_path) == 0


def test_rows_are_chosen_of_a_column_of_more_than_two_gigabytes() -> None:
    chunk = pa.array([bytes(GIB // 16), b"last"])
    table = pa.table({"image": pa.chunked_array([chunk] * 33)})  # all rows share one value in memory
    part: Any = SimpleNamespace(
        read=lambda **_: table,
        stored_columns=Schema(()),
        splits=["split"],
        store=Store.at("memory://"),
        pruned_files=None,
    )
    assert Partition.read_records(part, np.array([1, 65]), 66)["image"].to_pylist() == [b"last"] * 2


# --- memory --------------------------------------------------------------------------------------------

TASK = """
import sys
from memory import peak_kib
from dask_tfrecord import read_tfrecord
from dask_tfrecord.collection.frames import arrow_to_pandas

def read(path):
    dataset = read_tfrecord(path, blocksize=None).expr.dataset
    part = dataset.partition(0, dataset.schema)
    table = part.read()
    size = table.nbytes
    return arrow_to_pandas.to_pandas(table, part.schema), size

small, _ = read("small")
normal = peak_kib()
large, size = read("large")
assert size > 100 << 20, size
print(peak_kib() - normal - 3 * size // 1024)
"""


def numbers(rows: int) -> pa.RecordBatch:
    return pa.record_batch({f"n{at}": np.arange(rows) for at in range(10)})


def lists(rows: int) -> pa.RecordBatch:
    offsets = np.arange(0, 50 * (rows + 1), 50, dtype=np.int32)
    return pa.record_batch({"x": pa.ListArray.from_arrays(offsets, np.arange(50 * rows))})


def images(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"image": [bytes(range(250)) * 400] * rows})


@pytest.mark.parametrize(
    ("make", "rows", "compression"),
    [
        (numbers, 1_500_000, None),
        (lists, 300_000, None),
        (lists, 300_000, "gzip"),
        (images, 1_500, "gzip"),
    ],
)
def test_a_task_takes_three_times_its_decoded_size_and_64_mib(
    tmp_path: Path, make: Callable[[int], pa.RecordBatch], rows: int, compression: str | None
) -> None:
    for name, count in (("small", 100), ("large", rows)):
        batch = make(count)
        encoder = Encoder(Schema.from_arrow(batch.schema).columns, "example")
        write = gzip.open if compression else open
        with write(tmp_path / name, "wb", *([1] if compression else [])) as file:
            for view in encoded_views(encoder, batch):
                file.write(view)
    assert growth(TASK, tmp_path) < 64 * 1024
