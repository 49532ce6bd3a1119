"""Damage raises by default; if it is skipped, exactly the damaged records are lost.

Modules: files.damage, files.record_file, codec, files.file_options, files.find_blocks, files.window,
files.splits.
"""

import gzip
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from damaged_files import framed_number, holed_files, kept_records
from encoded import encoded_views
from hypothesis import given
from hypothesis import strategies as st
from split_table import read_table, whole_file

from dask_tfrecord import CorruptRecordError
from dask_tfrecord.codec import Column, Decoder, Encoder, scan
from dask_tfrecord.dataset.read.discovery import one_by_one
from dask_tfrecord.files import record_file, window
from dask_tfrecord.files.damage import DamagePolicy, Losses
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import find_blocks
from dask_tfrecord.files.record_file import RecordFile
from dask_tfrecord.files.splits import Split, cut
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

SKIP = ReadOptions(damage=DamagePolicy("skip"))
NUMBERS = Schema.from_arrow(pa.schema({"n": pa.int64()}))


pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::dask_tfrecord.CorruptRecordWarning"),
]


def passed_over(
    path: Path, *, splits: list[Split] | None = None, schema: Schema = NUMBERS, to: Path | None = None
) -> tuple[list[int], pd.DataFrame]:
    """The numbers that are read, and the quarantine's log of the lost bytes in the order of the file."""
    store, split = whole_file(path)
    folder = to or path.parent / f"_quarantine-{path.name}-{len(splits or ())}"
    options = ReadOptions(damage=DamagePolicy("quarantine", quarantine=Store.at(folder)))
    rows: list[int] = []
    for part in splits or [split]:
        losses = Losses(options.damage)
        rows += read_table(store, part, schema, options, losses=losses)["n"].to_pylist()
    columns = ["file", "offset", "length", "reason", "bytes"]
    log = pd.read_parquet(folder) if folder.exists() else pd.DataFrame(columns=columns)
    return rows, log.sort_values("offset", ignore_index=True)


def lost_ranges(log: pd.DataFrame) -> list[tuple[int, int]]:
    """The lost ranges of bytes; adjacent ranges are merged."""
    found: list[tuple[int, int]] = []
    for offset, length in zip(log["offset"], log["length"], strict=True):
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + length
        else:
            found.append((offset, offset + length))
    return found


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    lengths = [end - start for start, end in spans]
    return lost_ranges(pd.DataFrame({"offset": [start for start, _ in spans], "length": lengths}))


# --- many records ----------------------------------------------------------------------------------

RECORDS = 100_000
PLACES = {"length": (0, 8), "length checksum": (8, 12), "payload": (12, -4), "payload checksum": (-4, None)}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "np.ndarray[Any, Any]", list[int]]:
    """A file, the offsets of its records and of its end, and the numbers of the damaged records."""
    columns = [Column("n", "int64", 0), Column("text", "string", 0)]
    numbers = np.arange(RECORDS)
    batch = pa.record_batch({"n": numbers, "text": pa.array(["x" * (n % 23) for n in range(RECORDS)])})
    content = bytearray().join(bytes(view) for view in encoded_views(Encoder(columns, "example"), batch))
    starts = scan(content, final=True, offsets=True).offsets.to_numpy()
    starts = np.append(starts, len(content))
    source = random.Random(7)
    chosen = set(source.sample(range(RECORDS), RECORDS // 100 - 150))
    chosen |= {0, RECORDS - 1}
    for first in source.sample(range(RECORDS - 10), 50):  # neighbours
        chosen |= set(range(first, first + 4))
    for record in chosen:
        start, end = PLACES[source.choice(list(PLACES))]
        stop = starts[record + 1] - starts[record]
        first, last = start % stop, stop if end is None else (end % stop or stop)
        content[starts[record] + source.randrange(first, last)] ^= 1 << source.randrange(8)
    path = tmp_path_factory.mktemp("many") / "data.tfrecord"
    path.write_bytes(content)
    return path, starts, sorted(chosen)


@pytest.mark.parametrize("parts", [1, 2, 37, "gzip"])
def test_one_percent_of_the_records_damaged_is_exactly_what_is_lost(
    many: tuple[Path, "np.ndarray[Any, Any]", list[int]], tmp_path: Path, parts: Any
) -> None:
    """Of the whole file, also within gzip, and of splits that are read alone, from intact records."""
    path, starts, chosen = many
    spans = joined([(int(starts[n]), int(starts[n + 1])) for n in chosen])
    kept = np.flatnonzero(~np.isin(np.arange(RECORDS), chosen))
    content = path.read_bytes()
    splits = None
    if parts == "gzip":
        path = tmp_path / "data.tfrecord.gz"
        path.write_bytes(gzip.compress(content, 1))
    elif parts > 1:
        store, split = whole_file(path)
        firsts = [0, *(int(kept[kept >= k * RECORDS // parts][0]) for k in range(1, parts))]
        blocks = [Block(int(starts[n]), int(starts[n]), n) for n in firsts]
        splits = [Split(split.file, a, b) for a, b in zip(blocks, [*blocks[1:], None], strict=True)][::-1]
        last = firsts[2] if parts > 2 else RECORDS
        assert RecordFile(store, splits[-2], SKIP).count() == ((kept >= firsts[1]) & (kept < last)).sum()
    rows, log = passed_over(path, splits=splits, to=tmp_path / "log")
    assert sorted(rows) == kept.tolist()
    assert lost_ranges(log) == spans
    for offset, length, data in zip(log["offset"], log["length"], log["bytes"], strict=True):
        assert content[offset : offset + length] == data
    assert set(log["file"]) == {str(path)}


# --- small files ---------------------------------------------------------------------------------------


def test_every_single_bit_that_flips_raises_or_loses_its_record_only(tmp_path: Path) -> None:
    frames = list(map(framed_number, [1, 2, 3]))
    content = b"".join(frames)
    ends = np.cumsum([len(one) for one in frames])
    path = tmp_path / "data.tfrecord"
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        store, split = whole_file(path)
        with pytest.raises(CorruptRecordError):
            read_table(store, split, NUMBERS, ReadOptions())
        with pytest.raises(CorruptRecordError):
            RecordFile(store, split, ReadOptions()).count()
        losses = Losses(SKIP.damage)
        options = ReadOptions(compression=None, damage=SKIP.damage)
        found = read_table(store, split, NUMBERS, options, losses=losses)["n"].to_pylist()
        record = int(np.searchsorted(ends, bit // 8, side="right"))
        assert found == [n for n in [1, 2, 3] if n != record + 1], bit
        assert losses.count == 1, bit


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_broken_stream_ends_its_file(tmp_path: Path, compression: str) -> None:
    """The records before the break are read; the incomplete record at the break is in the log."""
    source = random.Random(1)
    records = [
        oracle.features_file([{"n": ("int64", [n]), "x": ("bytes", [source.randbytes(500)])}])
        for n in range(200)
    ]
    stored = oracle.compress(b"".join(records), compression)
    path = tmp_path / "data.tfrecord"
    path.write_bytes(stored[:60_000])
    rows, log = passed_over(path)
    assert 50 < len(rows) < 150
    assert rows == list(range(len(rows)))
    assert log["reason"].tolist() == [f"the {compression} stream is cut off"]
    offset, data = log["offset"][0], log["bytes"][0]
    assert offset == sum(map(len, records[: len(rows)]))
    assert b"".join(records)[offset:].startswith(data)


# --- calls that decode a part of a window --------------------------------------------------------------


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call of a decoder decode two records, as if the rest were beyond 2 GiB."""
    decode, two = Decoder.decode, len(framed_number(0) + framed_number(1))
    monkeypatch.setattr(Decoder, "decode", lambda self, data, final: decode(self, data[:two], final=False))


@pytest.mark.usefixtures("short_calls")
def test_what_the_last_call_of_a_file_does_not_decode_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"".join(framed_number(n % 2) for n in range(7)))
    table = read_table(*whole_file(tmp_path / "data"), NUMBERS, ReadOptions())
    assert table["n"].to_pylist() == [n % 2 for n in range(7)]


@pytest.mark.usefixtures("short_calls")
def test_damage_after_what_one_call_decodes_is_passed_over_where_it_is(tmp_path: Path) -> None:
    good, bad = [framed_number(n % 2) for n in range(7)], oracle.frame(b"no message")
    (tmp_path / "data").write_bytes(b"".join([*good[:5], bad, *good[5:]]))
    rows, log = passed_over(tmp_path / "data")
    assert rows == [n % 2 for n in range(7)]
    assert log["bytes"].tolist() == [bad]


# --- missing, added and changed bytes ---

SCHEMAS = {
    "example": Schema.from_arrow(pa.schema({"n": pa.int64(), "offset": pa.int64()})),
    "bytes": Schema.from_arrow(pa.schema({"record": pa.binary()}), record_type="bytes"),
}


@contextmanager
def windows_of(size: int, compression: str | None) -> Iterator[None]:
    with (
        patch.object(record_file, "WINDOW_BYTES", size),
        patch("dask_tfrecord.files.find_blocks.WINDOW_BYTES", size),
        patch("dask_tfrecord.files.find_blocks.detect", lambda head: None),
        patch.object(window, "detect", lambda head: compression),
    ):
        yield


@given(
    holed_files().filter(len),
    st.sampled_from(["example", "bytes"]),
    st.sampled_from([30, 200, 1 << 22]),
    st.sampled_from([1, 50, 300, 1 << 20, "gzip", "zlib"]),
)
def test_what_is_kept_is_what_a_search_of_every_byte_keeps(
    data: bytes, record_type: str, window: int, blocksize: Any
) -> None:
    """The same rows for each size of window and block, and each lost byte is in the quarantine."""
    store, log = Store.at("memory://holed"), Store.at("memory://holed-log")
    compression = blocksize if isinstance(blocksize, str) else None
    store.fs.pipe_file("/holed/data", oracle.compress(data, compression))
    if log.fs.exists(log.root):
        log.fs.rm(log.root, recursive=True)
    damage = DamagePolicy("quarantine", quarantine=log)
    options = ReadOptions(compression=compression, damage=damage, offset_column="offset")
    file = FileInfo(store.join("data"), store.fs.size("/holed/data"))
    kept, lost = kept_records(data)
    with windows_of(window, compression):
        splits = [Split(file)]
        if not compression:
            sizes = {"task_bytes": max(64, blocksize), "block_bytes": 1}
            found = find_blocks(store, [file], options, one_by_one, **sizes)
            splits = [Split(file, *one) for one in cut(len(data), found[file.path], blocksize)]
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
        assert sum(RecordFile(store, split, options).count() for split in splits) == len(kept)
    paths = log.fs.find(log.root) if log.fs.exists(log.root) else []
    noted = [pd.read_parquet(log.fs.open(path)).set_index("offset")["bytes"] for path in paths]
    in_order = pd.concat(noted).sort_index() if noted else []
    assert b"".join(in_order) == b"".join(data[start:stop] for start, stop in lost)
