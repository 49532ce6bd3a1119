"""The checksum of a file comes from those of its records, and shows the same changes as a second pass.

Modules: files.storage.store, files.file_writer.
"""

import random
from pathlib import Path

import oracle
import pyarrow as pa
import pytest
from split_table import read_table

from dask_tfrecord.codec import _kernel
from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.errors import FileChangedError, TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_options import ReadOptions, WriteOptions
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows, write_files
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

# Sizes of payloads around the size from which on the kernel combines checksums.
SIZES = [0, 1, 300, 2047, 2048, 2049, 5000]
SCHEMA = Schema.from_arrow(pa.schema({"record": pa.binary()}), record_type="bytes")


def payloads(rng: random.Random, count: int) -> list[bytes]:
    return [rng.randbytes(rng.choice([*SIZES, rng.randrange(10_000)])) for _ in range(count)]


def write(root: Path, compression: Compression | None, rows: list[bytes]) -> FileEntry:
    store = Store.at(root)
    table = pa.table({"record": rows})
    [entry] = write_files(
        store,
        lambda directory, number: (store.join("data"), "data"),
        GroupedRows([(table, None)], [DirectoryGroup("", (), len(rows))]),
        SCHEMA,
        WriteOptions(compression=compression),
    )
    return entry


def outcome(root: Path, checksum: int | None) -> tuple[object, ...]:
    """Return the rows of the file, or the error of reading the file with this checksum in a snapshot."""
    path = root / "data"
    split = Split(FileInfo(str(path), path.stat().st_size, "", checksum))
    try:
        return ("rows", read_table(Store.at(root), split, SCHEMA, ReadOptions()).to_pydict())
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
    rows = [*map(rng.randbytes, SIZES), *payloads(rng, 20)]
    entry = write(tmp_path, compression, rows)
    path = tmp_path / "data"
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
    entry = write(tmp_path, None, rows)
    assert entry.crc32c == _kernel.crc32c((tmp_path / "data").read_bytes(), 0, "table")
    assert outcome(tmp_path, entry.crc32c) == ("rows", {"record": rows})
    assert outcome(tmp_path, entry.crc32c ^ 1)[0] is FileChangedError
