"""Damage raises by default; if it is skipped, exactly the damaged records are lost.

Modules: files.damage, files.record_file, codec, files.file_options.
"""

import gzip
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from damaged_files import framed_number
from encoded import encoded_views
from split_table import read_table

from dask_tfrecord import CorruptRecordError
from dask_tfrecord.codec import Column, Decoder, Encoder, scan
from dask_tfrecord.files import record_file
from dask_tfrecord.files.damage import DamagePolicy, Losses
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import count_records
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import list_files, table_infos
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.fields import Schema

SKIP = ReadOptions(damage=DamagePolicy("skip"))
NUMBERS = Schema.from_arrow(pa.schema({"n": pa.int64()}))


pytestmark = pytest.mark.usefixtures("one_thread")


def whole(path: Path) -> tuple[Store, Split]:
    store, files, *_ = list_files(path)
    [file] = table_infos(files)
    return store, Split(file)


def passed_over(
    path: Path, *, splits: list[Split] | None = None, schema: Schema = NUMBERS, to: Path | None = None
) -> tuple[list[int], pd.DataFrame]:
    """The numbers that are read, and the quarantine's log of the lost bytes in the order of the file."""
    store, split = whole(path)
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


# --- one million records -------------------------------------------------------------------------------

RECORDS = 1_000_000
PLACES = {"length": (0, 8), "length checksum": (8, 12), "payload": (12, -4), "payload checksum": (-4, None)}


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "np.ndarray[Any, Any]", list[int]]:
    """A file, the offsets of its records and of its end, and the numbers of the damaged records."""
    columns = [Column("n", "int64", 0), Column("text", "string", 0)]
    numbers = np.arange(RECORDS)
    batch = pa.record_batch({"n": numbers, "text": pa.array(["x" * (n % 23) for n in range(RECORDS)])})
    content = bytearray().join(bytes(view) for view in encoded_views(Encoder(columns, "example"), batch))
    starts = scan(content, final=True, offsets=True).offsets.to_numpy()
    starts = np.append(starts, len(content))
    source = random.Random(7)
    chosen = set(source.sample(range(RECORDS), RECORDS // 100 - 1_500))
    chosen |= {0, RECORDS - 1}
    for first in source.sample(range(RECORDS - 10), 500):  # neighbours
        chosen |= set(range(first, first + 4))
    for record in chosen:
        start, end = PLACES[source.choice(list(PLACES))]
        stop = starts[record + 1] - starts[record]
        first, last = start % stop, stop if end is None else (end % stop or stop)
        content[starts[record] + source.randrange(first, last)] ^= 1 << source.randrange(8)
    path = tmp_path_factory.mktemp("million") / "data.tfrecord"
    path.write_bytes(content)
    return path, starts, sorted(chosen)


def undamaged(chosen: list[int]) -> list[int]:
    mask = np.ones(RECORDS, bool)
    mask[chosen] = False
    kept: list[int] = np.flatnonzero(mask).tolist()
    return kept


def test_one_percent_of_a_million_records_damaged_is_exactly_what_is_lost(
    million: tuple[Path, "np.ndarray[Any, Any]", list[int]], tmp_path: Path
) -> None:
    path, starts, chosen = million
    assert 0.009 * RECORDS < len(chosen) < 0.011 * RECORDS
    rows, log = passed_over(path, to=tmp_path / "log")
    assert rows == undamaged(chosen)
    spans = [(int(starts[n]), int(starts[n + 1])) for n in chosen]
    assert lost_ranges(log) == joined(spans)
    content = path.read_bytes()
    assert all(
        content[offset : offset + length] == data
        for offset, length, data in zip(log["offset"], log["length"], log["bytes"], strict=True)
    )
    assert set(log["file"]) == {str(path)}


@pytest.mark.parametrize("parts", [2, 37])
def test_splits_of_a_million_records_lose_the_same(
    million: tuple[Path, "np.ndarray[Any, Any]", list[int]], tmp_path: Path, parts: int
) -> None:
    """Each split is read alone; splits begin at intact records."""
    path, starts, chosen = million
    damaged = set(chosen)
    store, split = whole(path)
    firsts = [next(n for n in range(k * RECORDS // parts, RECORDS) if n not in damaged) for k in range(parts)]
    firsts[0] = 0
    blocks = [Block(int(starts[n]), int(starts[n]), n) for n in firsts]
    splits = [Split(split.file, a, b) for a, b in zip(blocks, [*blocks[1:], None], strict=True)]
    rows, log = passed_over(path, splits=splits[::-1], to=tmp_path / "log")
    assert sorted(rows) == undamaged(chosen)
    assert lost_ranges(log) == joined([(int(starts[n]), int(starts[n + 1])) for n in chosen])
    kept = np.setdiff1d(np.arange(firsts[1], firsts[2] if parts > 2 else RECORDS), chosen)
    assert count_records(store, splits[1], SKIP) == len(kept)


def test_a_million_records_within_gzip_lose_the_same(
    million: tuple[Path, "np.ndarray[Any, Any]", list[int]], tmp_path: Path
) -> None:
    path, starts, chosen = million
    packed = tmp_path / "data.tfrecord.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), 1))
    rows, log = passed_over(packed, to=tmp_path / "log")
    assert rows == undamaged(chosen)
    assert lost_ranges(log) == joined([(int(starts[n]), int(starts[n + 1])) for n in chosen])


# --- small files ---------------------------------------------------------------------------------------


def flipped_bits(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Flip each bit of the content in turn: the offset of the byte, and the damaged content."""
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bit // 8, bytes(damaged)


def test_every_single_bit_that_flips_raises(tmp_path: Path) -> None:
    content = b"".join(map(framed_number, [1, 2, 3]))
    path = tmp_path / "data.tfrecord"
    for _, damaged in flipped_bits(content):
        path.write_bytes(damaged)
        store, split = whole(path)
        with pytest.raises(CorruptRecordError):
            read_table(store, split, NUMBERS, ReadOptions())
        with pytest.raises(CorruptRecordError):
            count_records(store, split, ReadOptions())


def test_every_single_bit_that_flips_loses_its_record_only(tmp_path: Path) -> None:
    frames = list(map(framed_number, [1, 2, 3]))
    content = b"".join(frames)
    ends = np.cumsum([len(one) for one in frames])
    path = tmp_path / "data.tfrecord"
    for at, damaged in flipped_bits(content):
        path.write_bytes(damaged)
        store, split = whole(path)
        record = int(np.searchsorted(ends, at, side="right"))
        losses = Losses(SKIP.damage)
        options = ReadOptions(compression=None, damage=SKIP.damage)
        found = read_table(store, split, NUMBERS, options, losses=losses)["n"].to_pylist()
        assert found == [n for n in [1, 2, 3] if n != record + 1]
        assert losses.count == 1


GARBAGE = random.Random(3).randbytes(5_000)
SHAPES: dict[str, tuple[list[Any], list[int]]] = {
    "garbage first": ([GARBAGE, 1, 2], [0]),
    "garbage last": ([1, 2, GARBAGE], [2]),
    "garbage between": ([1, GARBAGE, 2], [1]),
    "garbage often": ([1, GARBAGE, 2, 3, GARBAGE[:7], 4], [1, 4]),
    "zeros first": ([bytes(1000), 1, 2], [0]),
    "zeros between": ([1, bytes(999), 2], [1]),
    "zeros last": ([1, 2, bytes(12)], [2]),
    "a few zeros last": ([1, 2, bytes(5)], [2]),
    "a cut payload last": ([1, 2, framed_number(3)[:-5]], [2]),
    "a cut length last": ([1, 2, framed_number(3)[:7]], [2]),
    "a head missing": ([framed_number(1)[9:], 2, 3], [0]),
    "a middle missing, and a record that its length claims": ([1, framed_number(2)[:20], 3, 4], [1]),
    "a long garbage": ([1, GARBAGE * 100, 2], [1]),
    "nothing but garbage": ([GARBAGE], [0]),
    "nothing but zeros": ([bytes(100)], [0]),
    "no message": ([1, oracle.frame(b"\xff\xff\xff"), 2], [1]),
    "no messages": ([oracle.frame(b"\xff")] * 2 + [1], [0, 1]),
    "the largest length": ([1, struct.pack("<Q", 2**31 - 1), 2], [1]),
}


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
@pytest.mark.parametrize("window", [32, 1000, 1 << 22])
@pytest.mark.parametrize("shape", SHAPES)
def test_damage_of_every_shape_takes_no_record_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, window: int, compression: str | None
) -> None:
    """The result does not depend on the size of the window, and the log has exactly the lost bytes."""
    monkeypatch.setattr(record_file, "WINDOW_BYTES", window)
    parts, lost = SHAPES[shape]
    stored = [part if isinstance(part, bytes) else framed_number(part) for part in parts]
    path = tmp_path / "data.tfrecord"
    path.write_bytes(oracle.compress(b"".join(stored), compression))
    rows, log = passed_over(path)
    assert rows == [part for part in parts if not isinstance(part, bytes)]
    ends = np.cumsum([0, *map(len, stored)])
    assert lost_ranges(log) == joined([(int(ends[at]), int(ends[at + 1])) for at in lost])
    assert b"".join(log["bytes"]) == b"".join(stored[at] for at in lost)


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
    table = read_table(*whole(tmp_path / "data"), NUMBERS, ReadOptions())
    assert table["n"].to_pylist() == [n % 2 for n in range(7)]


@pytest.mark.usefixtures("short_calls")
def test_damage_after_what_one_call_decodes_is_passed_over_where_it_is(tmp_path: Path) -> None:
    good, bad = [framed_number(n % 2) for n in range(7)], oracle.frame(b"no message")
    (tmp_path / "data").write_bytes(b"".join([*good[:5], bad, *good[5:]]))
    rows, log = passed_over(tmp_path / "data")
    assert rows == [n % 2 for n in range(7)]
    assert log["bytes"].tolist() == [bad]
