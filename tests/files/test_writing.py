"""Written files: blocks where a read can start, limits of size, reproducible bytes, and checksums.

Modules: files.file_writer, storage.store.
"""

import bz2
import itertools
import lzma
import random
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from memory import growth
from split_table import read_table, whole_file

from dask_tfrecord.codec import _kernel
from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.errors import FileChangedError, SchemaError, TFRecordError
from dask_tfrecord.files import file_writer
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions, WriteOptions
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows, write_files
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

every = pytest.mark.parametrize("compression", [None, *CODECS])
deflates = pytest.mark.parametrize("compression", ["gzip", "zlib"])
SMALL_BLOCK = 10_000


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", SMALL_BLOCK)


small_blocks = pytest.mark.usefixtures("_small_blocks")


def payloads(sizes: list[int]) -> pa.Table:
    """A table of random bytes, which no codec can compress."""
    source = random.Random(5)
    return pa.table({"record": pa.array([source.randbytes(size) for size in sizes], pa.binary())})


def numbers(rows: int) -> pa.Table:
    return pa.table(
        {"n": pa.array(range(rows)), "text": pa.array([f"row {n % 100}" * (n % 7) for n in range(rows)])}
    )


def write(
    root: Path, table: pa.Table, groups: list[DirectoryGroup] | None = None, **options: Any
) -> list[FileEntry]:
    """Write the table below ``root``; one column of bytes becomes records of raw bytes."""
    plain = table.schema.types == [pa.binary()]
    schema = Schema.from_arrow(table.schema, "bytes" if plain else "example")
    store = Store.at(root)

    def place(directory: str, index: int) -> tuple[str, str]:
        name = f"{directory}{index}.tfrecord"
        return store.join(name), name

    whole = [DirectoryGroup("", (), table.num_rows)]
    threads = options.pop("threads", None)
    given = WriteOptions(**{"lossy": "allow", **options})
    return write_files(
        store, place, GroupedRows([(table, None)], groups or whole), schema, given, threads=threads
    )


def read(root: Path, entry: FileEntry, schema: pa.Schema) -> pa.Table:
    plan = Schema.from_arrow(schema, "bytes" if schema.types == [pa.binary()] else "example")
    return read_table(*whole_file(root / entry.path), plan, ReadOptions())


def inflate_from(stored: bytes, compression: Compression | None) -> bytes:
    """Decompress the file from the offset of a block with other libraries."""
    if compression is None:
        return stored
    if compression in ("gzip", "zlib"):
        return zlib.decompressobj(-15).decompress(stored)
    others: dict[str, Callable[[bytes], bytes]] = {"bz2": bz2.decompress, "xz": lzma.decompress}
    if compression in others:
        return others[compression](stored)
    return bytes(pa.CompressedInputStream(pa.BufferReader(stored), compression).read())


@every
@small_blocks
def test_reading_can_start_at_every_block(tmp_path: Path, compression: Compression | None) -> None:
    table = payloads([1_234] * 50 + [25_000] + [0, 1] * 50)
    records = [payload.as_py() for payload in table["record"]]
    [entry] = write(tmp_path, table, compression=compression)
    stored = (tmp_path / entry.path).read_bytes()
    content = oracle.records_file(records)
    assert len(entry.blocks) > 6
    for block in entry.blocks:
        rest = inflate_from(stored[block.offset :], compression)
        assert rest == content[block.content :]
        assert oracle.frames(rest) == records[block.record :]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_blocks_hold_about_a_mebibyte(tmp_path: Path, compression: Compression | None) -> None:
    [entry] = write(tmp_path, numbers(100_000), compression=compression)
    begins = [block.content for block in entry.blocks]
    lengths = [end - begin for begin, end in itertools.pairwise(begins)]
    assert len(lengths) > 2
    assert all(0.99 * 2**20 < length <= 2**20 for length in lengths)


@pytest.mark.sampled
@every
@pytest.mark.parametrize("rows", [0, 1, 30_000])
def test_what_is_written_is_read_and_the_receipt_says_what_was_stored(
    tmp_path: Path, compression: Compression | None, rows: int
) -> None:
    table = numbers(rows)
    [entry] = write(tmp_path, table, [DirectoryGroup("", ("x", None), rows)], compression=compression)
    stored = (tmp_path / entry.path).read_bytes()
    assert (entry.path, entry.records, entry.bytes) == ("0.tfrecord", rows, len(stored))
    assert entry.crc32c == oracle.crc32c(stored)
    assert entry.values == ("x", None)
    assert len(entry.blocks) == (0 if rows == 0 else 1 if rows == 1 else 2)
    assert read(tmp_path, entry, table.schema) == table


@deflates
@small_blocks
def test_the_same_rows_give_the_same_bytes(tmp_path: Path, compression: Compression) -> None:
    """The bytes do not depend on threads, on the chunks of the table, or on the rows converted at once."""
    table = numbers(20_000)
    cuts = [0, 1, 5, 700, 701, 9_999, 20_000]
    pieces = pa.concat_tables([table.slice(a, b - a) for a, b in itertools.pairwise(cuts)])
    [entry] = write(tmp_path, table, compression=compression)
    for number, (same, threads) in enumerate(itertools.product([table, pieces], [1, 2, 7])):
        assert write(tmp_path / f"{number}", same, compression=compression, threads=threads) == [entry]


@pytest.mark.parametrize(
    ("most", "compression"), [(3, None), (999, "gzip"), (1000, None), (1000, "gzip"), (1001, None)]
)
def test_a_file_has_no_more_rows_than_allowed(
    tmp_path: Path, compression: Compression | None, most: int
) -> None:
    table = numbers(1000)
    entries = write(tmp_path, table, compression=compression, max_rows=most)
    assert [entry.records for entry in entries] == [min(most, 1000 - n) for n in range(0, 1000, most)]
    assert pa.concat_tables([read(tmp_path, entry, table.schema) for entry in entries]) == table


@small_blocks
@pytest.mark.parametrize(
    ("most", "compression"),
    [
        *((most, None) for most in (1, 115, 116, 231, 232, 10_000, 10_001, 25_000)),
        (115, "gzip"),
        (5_000, "gzip"),
    ],
)
def test_a_file_has_no_more_bytes_than_allowed(
    tmp_path: Path, compression: Compression | None, most: int
) -> None:
    """A file holds as many records of 116 bytes as fit, and at least one."""
    table = payloads([100] * 300)
    entries = write(tmp_path, table, compression=compression, max_bytes=most)
    records = [len(oracle.read_payloads(tmp_path / entry.path)) for entry in entries]
    assert records == [entry.records for entry in entries]
    assert set(records[:-1]) == {max(1, most // 116)}
    assert pa.concat_tables([read(tmp_path, entry, table.schema) for entry in entries]) == table


@small_blocks
@pytest.mark.parametrize(
    ("sizes", "limits", "expected"),
    [
        ([100, 30_000, 100, 100, 30_000], {"max_bytes": 20_000}, [1, 1, 2, 1]),
        ([84] * 100 + [9_984] * 10, {"max_rows": 30, "max_bytes": 20_000}, [30, 30, 30, 11, 2, 2, 2, 2, 1]),
    ],
)
def test_a_record_beyond_a_limit_has_a_file_of_its_own_and_both_limits_hold(
    tmp_path: Path, sizes: list[int], limits: dict[str, int], expected: list[int]
) -> None:
    assert [entry.records for entry in write(tmp_path, payloads(sizes), **limits)] == expected


@pytest.mark.parametrize(
    ("compression", "limits"),
    [(None, {}), ("gzip", {"max_rows": 100}), (None, {"max_bytes": 5_000}), ("gzip", {"max_bytes": 5_000})],
)
def test_parts_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Compression | None, limits: dict[str, int]
) -> None:
    """The files are the same as if each part were written as a separate table."""
    monkeypatch.setattr(file_writer, "_CHUNK_ROWS", 64)
    table = numbers(1000).append_column("small", pa.array([n % 100 for n in range(1000)], pa.int8()))
    sizes = {"a": 300, "b": 1, None: 699}
    parts = [DirectoryGroup(f"{key or 'c'}-", (key,), rows) for key, rows in sizes.items()]
    entries = write(tmp_path / "all", table, parts, compression=compression, **limits)
    first = 0
    for part in parts:
        alone = table.slice(first, part.rows)
        own = [entry for entry in entries if entry.values == part.values]
        separate = write(tmp_path / "alone", alone, [part], compression=compression, **limits)
        assert [replace(entry, path="") for entry in separate] == [replace(entry, path="") for entry in own]
        assert pa.concat_tables([read(tmp_path / "all", entry, table.schema) for entry in own]) == alone
        first += part.rows
    assert {entry.path for entry in entries} == {path.name for path in (tmp_path / "all").iterdir()}


def test_a_bad_value_of_a_later_part_leaves_the_parts_before_it(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([*range(10), 2**63], pa.uint64())})
    sizes = {"a": 6, "b": 4, "c": 1}
    groups = [DirectoryGroup(f"{key}-", (key,), rows) for key, rows in sizes.items()]
    with pytest.raises(SchemaError) as caught:
        write(tmp_path, table, groups)
    assert (caught.value.record, caught.value.path) == (10, str(tmp_path / "c-2.tfrecord"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-0.tfrecord", "b-1.tfrecord"]


MEASURE = """
import random, sys
import numpy as np
import pyarrow as pa
from memory import peak_kib
from dask_tfrecord.dataset.partitioning import group_by_directory
from dask_tfrecord.files.file_options import WriteOptions
from dask_tfrecord.storage.store import Store
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows, write_files
from dask_tfrecord.schema.fields import Schema

rows, keyed = int(sys.argv[3]), bool(sys.argv[4])
fixed = lambda values, size: {"x": pa.FixedSizeListArray.from_arrays(pa.array(values), size)}
make = {
    "numbers": lambda: {f"n{i}": pa.array(np.arange(rows)) for i in range(20)},
    "bits": lambda: {f"b{i}": pa.nulls(rows, pa.bool_()) for i in range(100)},
    "small": lambda: {f"b{i}": pa.array(np.zeros(rows, np.int8)) for i in range(60)},
    "doubles": lambda: {f"x{i}": pa.array(np.full(rows, 0.5)) for i in range(10)},
    "text": lambda: {f"t{i}": pa.array(np.arange(10**9, 10**9 + rows)).cast(pa.string()) for i in range(10)},
    "lists": lambda: fixed(np.ones(60 * rows, np.int8), 60),
    "category": lambda: {"c": pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int8)), pa.array(["long " * 50]))},
    "images": lambda: {"image": pa.array([random.randbytes(500_000)] * rows)},
    "long lists": lambda: fixed(np.full(rows << 20, -1), 1 << 20),
}[sys.argv[1]]
table = pa.table({**make(), "key": np.random.default_rng(1).integers(0, 100, rows)})
schema = Schema.from_arrow(table.schema).select(table.column_names[:-1])
table = table if keyed else table.drop_columns("key")
store = Store.at("out")
options = WriteOptions(sys.argv[2] or None, lossy="allow")

def write(table):
    grouped = GroupedRows([(table, None)], [DirectoryGroup("", (), len(table))])
    if keyed:
        grouped = group_by_directory(table, ["key"], max_directories=100)
    place = lambda directory, _: (store.join(f"a{directory}"), "a")
    write_files(store, place, grouped, schema, options, threads=16)

write(table.slice(0, 1000 if keyed else 1))
normal = peak_kib()
write(table)
print(peak_kib() - normal - keyed * table.nbytes // 1024)
"""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("table", "rows", "compression", "keyed"),
    [
        ("numbers", 750_000, "gzip", ""),
        ("bits", 500_000, "", ""),
        ("doubles", 1_500_000, "", ""),
        ("lists", 500_000, "", ""),
        ("category", 1_000_000, "", ""),
        ("images", 400, "gzip", ""),
        ("images", 400, "zstd", ""),
        ("long lists", 16, "", ""),
        ("numbers", 1_000_000, "", "keyed"),
        ("small", 400_000, "", "keyed"),
        ("text", 800_000, "gzip", "keyed"),
        ("lists", 1_000_000, "", "keyed"),
    ],
)
def test_a_write_takes_little_memory(
    tmp_path: Path, table: str, rows: int, compression: str, keyed: str
) -> None:
    """At most 64 MiB more than the table, for any content and number of threads; with keys, a sorted copy."""
    assert growth(MEASURE, tmp_path, table, compression, str(rows), keyed) < 64 * 1024


# --- checksums, which come from those of the records ---

# Sizes of payloads around the size from which on the kernel combines checksums.
SIZES = [0, 1, 300, 2047, 2048, 2049, 5000]
RECORDS = Schema.from_arrow(pa.schema({"record": pa.binary()}), record_type="bytes")


def records(rows: list[bytes]) -> pa.Table:
    return pa.table({"record": pa.array(rows, pa.binary())})


def outcome(root: Path, checksum: int | None) -> tuple[object, ...]:
    """Return the rows of the file, or the error of reading the file with this checksum in a snapshot."""
    path = root / "0.tfrecord"
    split = Split(FileInfo(str(path), path.stat().st_size, "", checksum))
    try:
        return ("rows", read_table(Store.at(root), split, RECORDS, ReadOptions()).to_pydict())
    except TFRecordError as error:
        return type(error), error.problem, error.offset, error.record


def changes(rng: random.Random, data: bytes, rows: list[bytes] | None) -> dict[str, bytes]:
    """Return files that differ from ``data``, of which ``rows`` are the records if it is not compressed."""
    changed: dict[str, bytes] = {}
    # For an uncompressed file: headers, payloads and footers, at each byte of some of them.
    places = {rng.randrange(len(data)) for _ in range(20)}
    if rows is not None:
        at = 0
        for row in rows[:8]:
            places |= {*range(at, at + 13), *range(at + 11 + len(row), at + 16 + len(row))}
            at += 16 + len(row)
    for place in sorted(places & {*range(len(data))}):
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        changed[f"bit of byte {place}"] = bytes(flipped)
    for cut in (1, 4, 5, len(data) // 2):
        changed[f"{cut} bytes cut"] = data[:-cut]
    changed["bytes after the end"] = data + b"\0" * 20
    place = rng.randrange(len(data))
    changed["bytes between"] = data[:place] + rng.randbytes(9) + data[place:]
    if rows is not None:  # other records, all intact
        others = {
            "two records exchanged": [rows[1], rows[0], *rows[2:]],
            "one record fewer": rows[:-1],
            "one record twice": [*rows, rows[-1]],
            **{f"another record of {size} bytes": [*rows, rng.randbytes(size)] for size in SIZES[1:]},
        }
        changed |= {name: oracle.records_file(records) for name, records in others.items()}
    return changed


@pytest.mark.parametrize("compression", [None, *CODECS])
def test_any_change_of_a_file_is_reported_as_by_a_pass_over_all_bytes(
    tmp_path: Path, compression: Compression | None
) -> None:
    rng = random.Random(str(compression))
    rows = [*map(rng.randbytes, [*SIZES, *(rng.choice([*SIZES, rng.randrange(10_000)]) for _ in range(20))])]
    [entry] = write(tmp_path, records(rows), compression=compression)
    path = tmp_path / entry.path
    data = path.read_bytes()
    assert (entry.bytes, entry.crc32c) == (len(data), oracle.crc32c(data))
    assert outcome(tmp_path, entry.crc32c) == ("rows", {"record": rows})
    for name, changed in changes(rng, data, None if compression else rows).items():
        path.write_bytes(changed)
        expected = outcome(tmp_path, None)
        found = outcome(tmp_path, entry.crc32c)
        if expected[0] == "rows" and changed != data:  # all records are intact, but the file is another
            assert found[0] is FileChangedError, name
        else:
            assert found == expected, name


def test_records_that_exceed_a_window_and_a_block_have_the_checksum_of_their_bytes(tmp_path: Path) -> None:
    rows = [*map(random.Random(1).randbytes, [9_000_000, 10, 1_100_000, 3_000_000, 0, 4_000_000])]
    [entry] = write(tmp_path, records(rows))
    assert entry.crc32c == _kernel.crc32c((tmp_path / entry.path).read_bytes(), 0, "table")
    assert outcome(tmp_path, entry.crc32c) == ("rows", {"record": rows})
    assert outcome(tmp_path, entry.crc32c ^ 1)[0] is FileChangedError


# --- TensorFlow ----------------------------------------------------------------------------------------

TF_BUFFER = 256 << 10  # the size of TensorFlow's buffer for compressed bytes


@pytest.fixture(scope="module")
def tf_records() -> Callable[[list[Path], str], list[bytes]]:
    """The records that TensorFlow reads from files, one after the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf

    def records(paths: list[Path], compression: str) -> list[bytes]:
        dataset = tf.data.TFRecordDataset(list(map(str, paths)), compression_type=compression.upper())
        return [record for batch in dataset.batch(1000).as_numpy_iterator() for record in batch]

    return records


@pytest.mark.tensorflow
@deflates
@pytest.mark.parametrize("end", ["file", "block"])
@small_blocks
def test_tensorflow_reads_all_wherever_a_file_or_a_block_ends(
    tmp_path: Path, tf_records: Callable[[list[Path], str], list[bytes]], compression: Compression, end: str
) -> None:
    """The end is before, at and after the end of TensorFlow's buffer."""
    shifts, before, size, after = range(120), [], TF_BUFFER - 220, [1000] * 50
    if end == "file":
        [entry] = write(tmp_path, payloads([1000] * 256 + [500]), compression=compression)
        shifts, before, size, after = range(-40, 41), [1000] * 256, 500 + TF_BUFFER - entry.bytes, []
    ends, paths, expected = set(), [], []
    for shift in shifts:
        table = payloads([*before, size + shift, *after])
        [entry] = write(tmp_path / str(shift), table, compression=compression)
        ends.add((entry.bytes if end == "file" else entry.blocks[1].offset) - TF_BUFFER)
        paths.append(tmp_path / str(shift) / entry.path)
        expected += table["record"].to_pylist()
    assert tf_records(paths, compression) == expected
    assert ends >= set(range(-10, 11))
