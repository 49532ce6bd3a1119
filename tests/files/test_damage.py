"""Damage: raised by default; passed over on request, and then exactly the damaged records are lost."""

import asyncio
import gzip
import random
import struct
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster
from memory import growth

from dask_tfrecord import (
    CorruptRecordError,
    CorruptRecordWarning,
    FileChangedError,
    SchemaError,
    TFRecordError,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.codec import Column, Decoder, Encoder, scan
from dask_tfrecord.files import reading as files
from dask_tfrecord.files.damage import DamagePolicy, Losses
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import count_records, read_table
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import list_files
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.model import Schema

SKIP = ReadOptions(damage=DamagePolicy("skip"))
NUMBERS = Schema.from_arrow(pa.schema({"n": pa.int64()}))
TYPES = pa.schema({"n": pa.int64()})


pytestmark = pytest.mark.usefixtures("one_thread")


def frame(n: int) -> bytes:
    """A record that holds a number; the larger ones are longer."""
    padding = ("bytes", [bytes([n % 256]) * (n % 50)])
    return oracle.features_file([{"n": ("int64", [n]), "padding": padding}])


def whole(path: Path) -> tuple[Store, Split]:
    store, [file], *_ = list_files(path)
    return store, Split(file)


def passed_over(
    path: Path, *, splits: list[Split] | None = None, schema: Schema = NUMBERS, to: Path | None = None
) -> tuple[list[int], pd.DataFrame]:
    """The numbers that are read, and the quarantine's log of the others, in the order of the file."""
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


def stretches(log: pd.DataFrame) -> list[tuple[int, int]]:
    """Where what was lost begins and ends; what touches is one."""
    found: list[tuple[int, int]] = []
    for offset, length in zip(log["offset"], log["length"], strict=True):
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + length
        else:
            found.append((offset, offset + length))
    return found


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    lengths = [end - start for start, end in spans]
    return stretches(pd.DataFrame({"offset": [start for start, _ in spans], "length": lengths}))


# --- one million records -------------------------------------------------------------------------------

RECORDS = 1_000_000
PLACES = {"length": (0, 8), "length checksum": (8, 12), "payload": (12, -4), "payload checksum": (-4, None)}


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "np.ndarray[Any, Any]", list[int]]:
    """A file, where its records begin (and the last one ends), and which of them are damaged."""
    columns = [Column("n", "int64", 0), Column("text", "string", 0)]
    numbers = np.arange(RECORDS)
    batch = pa.record_batch({"n": numbers, "text": pa.array(["x" * (n % 23) for n in range(RECORDS)])})
    content = bytearray().join(bytes(view) for view in Encoder(columns, "example").encode(batch))
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
    assert stretches(log) == joined(spans)
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
    """Each of them alone; their ends are proven records, whatever lies before them."""
    path, starts, chosen = million
    damaged = set(chosen)
    store, split = whole(path)
    firsts = [next(n for n in range(k * RECORDS // parts, RECORDS) if n not in damaged) for k in range(parts)]
    firsts[0] = 0
    blocks = [Block(int(starts[n]), int(starts[n]), n) for n in firsts]
    splits = [Split(split.file, a, b) for a, b in zip(blocks, [*blocks[1:], None], strict=True)]
    rows, log = passed_over(path, splits=splits[::-1], to=tmp_path / "log")
    assert sorted(rows) == undamaged(chosen)
    assert stretches(log) == joined([(int(starts[n]), int(starts[n + 1])) for n in chosen])
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
    assert stretches(log) == joined([(int(starts[n]), int(starts[n + 1])) for n in chosen])


# --- small files ---------------------------------------------------------------------------------------


def test_every_single_bit_that_flips_raises(tmp_path: Path) -> None:
    content = b"".join(map(frame, [1, 2, 3]))
    path = tmp_path / "data.tfrecord"
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        store, split = whole(path)
        with pytest.raises(CorruptRecordError):
            read_table(store, split, NUMBERS, ReadOptions())
        with pytest.raises(CorruptRecordError):
            count_records(store, split, ReadOptions())


def test_every_single_bit_that_flips_loses_its_record_only(tmp_path: Path) -> None:
    frames = list(map(frame, [1, 2, 3]))
    content = b"".join(frames)
    ends = np.cumsum([len(one) for one in frames])
    path = tmp_path / "data.tfrecord"
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        store, split = whole(path)
        record = int(np.searchsorted(ends, bit // 8, side="right"))
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
    "a cut payload last": ([1, 2, frame(3)[:-5]], [2]),
    "a cut length last": ([1, 2, frame(3)[:7]], [2]),
    "a head missing": ([frame(1)[9:], 2, 3], [0]),
    "a middle missing, and a record that its length claims": ([1, frame(2)[:20] + frame(3), 4], [1]),
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
    """Whatever the size of the window; the log has all lost bytes, and no others."""
    monkeypatch.setattr(files, "WINDOW_BYTES", window)
    parts, lost = SHAPES[shape]
    stored = [part if isinstance(part, bytes) else frame(part) for part in parts]
    path = tmp_path / "data.tfrecord"
    path.write_bytes(oracle.compress(b"".join(stored), compression))
    rows, log = passed_over(path)
    assert rows == [part for part in parts if not isinstance(part, bytes)]
    ends = np.cumsum([0, *map(len, stored)])
    assert stretches(log) == joined([(int(ends[at]), int(ends[at + 1])) for at in lost])
    assert b"".join(log["bytes"]) == b"".join(stored[at] for at in lost)


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_broken_stream_ends_its_file(tmp_path: Path, compression: str) -> None:
    """What was decompressed before is read; the half record at its end is in the log."""
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


def test_a_value_that_does_not_fit_its_column_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(oracle.features_file([{"n": ("int64", [1])}, {"n": ("int64", [1, 2])}]))
    ddf = read_tfrecord(path, schema=TYPES, record_type="example", on_corrupt="skip")
    with pytest.raises(SchemaError, match="feature 'n'"):
        ddf.compute()


def test_a_file_that_changed_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(frame(1) + frame(2))
    ddf = read_tfrecord(path, on_corrupt="skip")
    path.write_bytes(frame(1) + frame(2)[:-1])
    with pytest.raises(FileChangedError, match=r"data\.tfrecord.*when the dataset was listed"):
        ddf.compute()


# --- what is said of it --------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two files of five records; in one of them two are damaged."""
    folder = tmp_path / "two"
    folder.mkdir()
    good = b"".join(map(frame, range(5)))
    bad = bytearray(b"".join(map(frame, range(5, 10))))
    bad[len(frame(5)) + 20] ^= 1
    bad[len(bad) - 1] ^= 1
    (folder / "0.tfrecord").write_bytes(good)
    (folder / "1.tfrecord").write_bytes(bad)
    return folder


def read(path: Path, **options: Any) -> Any:
    return read_tfrecord(path, schema=TYPES, record_type="example", blocksize=None, **options)


def test_a_warning_for_each_file_tells_how_much_was_lost_and_where(two: Path) -> None:
    with pytest.warns(CorruptRecordWarning) as caught:
        found = read(two, on_corrupt="skip")["n"].compute().tolist()
    assert found == [0, 1, 2, 3, 4, 5, 7, 8]
    first, end = len(frame(5)), len(frame(5)) + len(frame(6))
    last = sum(len(frame(n)) for n in range(5, 9))
    [message] = [str(warning.message) for warning in caught]
    lost = end - first + len(frame(9))
    assert message == (
        f"{two}/1.tfrecord: skipped 2 damaged records or ranges, {lost:,} bytes: "
        f"bytes {first} to {end}, {last} to {last + len(frame(9))}"
    )


def test_a_warning_stays_short_where_much_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(b"".join(frame(n) + b"?" for n in range(1000)))
    with pytest.warns(CorruptRecordWarning, match="skipped 1,000 .*, 1,000 bytes: .* and 990 more") as caught:
        assert len(read(path, on_corrupt="skip").compute()) == 1000
    assert len(str(caught[0].message)) < 500


def test_nothing_is_said_and_nothing_written_where_nothing_is_damaged(two: Path, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    ddf = read(two / "0.tfrecord", on_corrupt="quarantine", quarantine_path=folder)
    assert len(ddf.compute()) == 5
    assert not folder.exists()


@pytest.mark.parametrize("names", [[], ["n"], ["path"], ["offset"], ["n", "offset", "path"]])
def test_the_rows_are_the_same_whatever_columns_are_read(two: Path, names: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptRecordWarning)
        ddf = read(two, on_corrupt="skip", include_path_column=True, include_offset_column=True)
        assert len(ddf[names].compute()) == len(ddf) == 8


@pytest.mark.parametrize("names", [[], ["record"], ["path"], ["offset"]])
@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_records_of_bytes_need_be_no_messages(tmp_path: Path, names: list[str], on_corrupt: str) -> None:
    (tmp_path / "a").write_bytes(oracle.records_file([b"\xff", b"", b"abc"]))
    options = {"include_path_column": True, "include_offset_column": True, "on_corrupt": on_corrupt}
    ddf = read_tfrecord(tmp_path / "a", record_type="bytes", **options)
    assert len(ddf[names].compute()) == len(ddf) == 3


def test_a_snapshots_counts_are_not_believed_where_damage_is_passed_over(tmp_path: Path) -> None:
    to_tfrecord(dask.dataframe.from_pandas(pd.DataFrame({"n": range(10)}), npartitions=2), tmp_path / "own")
    part = sorted((tmp_path / "own").glob("part-*"))[1]
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    ddf = read_tfrecord(tmp_path / "own", on_corrupt="skip")
    with pytest.warns(CorruptRecordWarning):
        assert len(ddf) == 9


@pytest.mark.parametrize(
    ("most", "allowed"), [(2, True), (1, False), (0, False), (0.41, True), (0.39, False)]
)
def test_more_damage_than_allowed_raises(two: Path, most: float, allowed: bool) -> None:
    """The bounds hold for a partition, here of five records."""
    ddf = read(two, on_corrupt="skip", max_corrupt=most)
    if allowed:
        with pytest.warns(CorruptRecordWarning):
            assert len(ddf.compute()) == 8
    else:
        with pytest.raises(CorruptRecordError, match=r"1\.tfrecord.* are damaged; pass a max_corrupt= above"):
            ddf.compute()


def test_the_quarantine_holds_the_bytes_and_a_retry_replaces_them(two: Path, tmp_path: Path) -> None:
    ddf = read(two, on_corrupt="quarantine", quarantine_path=tmp_path / "log")
    for _ in range(2):
        with pytest.warns(CorruptRecordWarning):
            ddf.compute()
    log = pd.read_parquet(tmp_path / "log")
    content = (two / "1.tfrecord").read_bytes()
    spans = [(offset, offset + length) for offset, length in zip(log["offset"], log["length"], strict=True)]
    assert [content[start:end] for start, end in spans] == log["bytes"].tolist()
    assert log["reason"].tolist() == ["checksum of the record data does not match"] * 2
    assert log["file"].tolist() == [str(two / "1.tfrecord")] * 2
    assert len(list((tmp_path / "log").iterdir())) == 1


def test_a_reader_that_fails_leaves_no_half_log(two: Path, tmp_path: Path) -> None:
    ddf = read(two, on_corrupt="quarantine", quarantine_path=tmp_path / "log", max_corrupt=1)
    with pytest.raises(CorruptRecordError):
        ddf.compute()
    assert not list((tmp_path / "log").glob("*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_corrupt": "ignore"}, "unknown on_corrupt 'ignore'.*'skip'"),
        ({"on_corrupt": "quarantine"}, "pass quarantine_path="),
        ({"quarantine_path": "/tmp/x"}, 'pass on_corrupt="quarantine"'),
        ({"max_corrupt": 3}, 'pass on_corrupt="skip"'),
        ({"on_corrupt": "skip", "max_corrupt": -1}, "max_corrupt=-1 is not a valid limit"),
        ({"on_corrupt": "skip", "max_corrupt": 1.5}, "max_corrupt=1.5 is not a valid limit"),
        ({"on_corrupt": "skip", "max_corrupt": True}, "max_corrupt=True is not a valid limit"),
    ],
)
def test_options_that_mean_nothing_are_refused(two: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        read(two, **options)


def test_a_quarantine_among_the_files_is_refused(two: Path) -> None:
    for place in (two, two / "log"):
        with pytest.raises(TFRecordError, match=r"inside the dataset that is read.*_quarantine"):
            read(two, on_corrupt="quarantine", quarantine_path=place)
    read(two, on_corrupt="quarantine", quarantine_path=two / "_quarantine")


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", memory_limit=0) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_warnings_reach_the_client_of_a_cluster(two: Path, client: Client) -> None:
    with pytest.warns(CorruptRecordWarning, match=r"1\.tfrecord: skipped 2 damaged"):
        client.sync(_compute, client, read(two, on_corrupt="skip")["n"].sum())


async def _compute(client: Client, lazy: Any) -> None:
    """Wait for the result, and for the events that were sent before it."""
    assert await client.compute(lazy) == 30
    await asyncio.sleep(0.5)


# --- memory --------------------------------------------------------------------------------------------

MEASURE = """
import sys, warnings
from memory import peak_kib
import pyarrow as pa
from dask_tfrecord import read_tfrecord

warnings.simplefilter("ignore")
def read(path):
    keep = {"on_corrupt": "quarantine", "quarantine_path": "log"}
    options = keep if sys.argv[3] else {"on_corrupt": "skip"}
    schema = pa.schema({"n": pa.int64()})
    ddf = read_tfrecord(path, schema=schema, record_type="example", **options)
    return ddf.compute(scheduler="sync")["n"].tolist()

assert read(sys.argv[1]) == [1, 2]
normal = peak_kib()
assert read(sys.argv[2]) == [1, 2]
print(peak_kib() - normal)
"""


@pytest.mark.parametrize("quarantine", ["", "yes"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_huge_damaged_stretch_takes_little_memory(
    tmp_path: Path, compression: str | None, quarantine: str
) -> None:
    sizes = {"small": 10_000_000, "huge": 400_000_000}
    block = random.Random(2).randbytes(1_000_000)
    for name, size in sizes.items():
        write = partial(gzip.open, compresslevel=0) if compression else open
        with write(tmp_path / name, "wb") as file:
            file.write(frame(1))
            for _ in range(size // len(block)):
                file.write(block)
            file.write(frame(2))
    assert growth(MEASURE, tmp_path, "small", "huge", quarantine) < 32 * 1024


@pytest.mark.parametrize(
    ("record", "at", "limit", "advice"),
    [
        (0, 0, "1 MiB", "check that it is a TFRecord file"),
        (0, 12, "1 MiB", 'on_corrupt="skip"'),
        (1, 0, "1 MiB", 'on_corrupt="skip"'),
        (1, 12, "1 MiB", 'on_corrupt="skip"'),
        (1, 0, 5, "larger max_record_bytes="),
    ],
)
def test_damage_comes_with_the_keyword_that_mends_it(
    tmp_path: Path, record: int, at: int, limit: Any, advice: str
) -> None:
    one = oracle.features_file([{"n": ("int64", [1])}])
    content = bytearray(2 * one)
    content[record * len(one) + at] ^= limit != 5
    (tmp_path / "a").write_bytes(content)
    schema = pa.schema({"n": pa.int64()})
    with pytest.raises(CorruptRecordError) as caught:
        read_tfrecord(
            tmp_path, schema=schema, record_type="example", blocksize=None, max_record_bytes=limit
        ).compute()
    assert advice in str(caught.value.advice)


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders that leave all but two records to their next call, as they do with what is beyond 2 GiB."""
    decode, two = Decoder.decode, len(frame(0) + frame(1))
    monkeypatch.setattr(Decoder, "decode", lambda self, data, final: decode(self, data[:two], final=False))


@pytest.mark.usefixtures("short_calls")
def test_what_the_last_call_of_a_file_does_not_decode_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"".join(frame(n % 2) for n in range(7)))
    table = read_table(*whole(tmp_path / "data"), NUMBERS, ReadOptions())
    assert table["n"].to_pylist() == [n % 2 for n in range(7)]


@pytest.mark.usefixtures("short_calls")
def test_damage_after_what_one_call_decodes_is_passed_over_where_it_is(tmp_path: Path) -> None:
    good, bad = [frame(n % 2) for n in range(7)], oracle.frame(b"no message")
    (tmp_path / "data").write_bytes(b"".join([*good[:5], bad, *good[5:]]))
    rows, log = passed_over(tmp_path / "data")
    assert rows == [n % 2 for n in range(7)]
    assert log["bytes"].tolist() == [bad]
