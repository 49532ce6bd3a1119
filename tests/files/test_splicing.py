"""Files that are spliced or lose records: the rest is unchanged, statistics are true, damage is found.

Modules: files.splice.
"""

import bz2
import gzip
import itertools
import lzma
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from servers import LinkedStore
from store_link import Traffic
from stored_rows import ROWS, SCHEMA, check, foreign, write

from dask_tfrecord import open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.errors import CorruptRecordError, FileChangedError, TFRecordError
from dask_tfrecord.files import file_writer
from dask_tfrecord.files import splice as splicing
from dask_tfrecord.files.entry import Block, FileEntry
from dask_tfrecord.files.splice import RecordMask, remove_records, splice
from dask_tfrecord.storage.store import Store

every = pytest.mark.parametrize("compression", [None, *CODECS])
SMALL_BLOCK = 10_000

# The numbers of rows of the sources; some sources have no rows, one row, or several blocks.
COUNTS = [0, 5, 1200, 0, 1, 300, 294, 1200, 0]

DECOMPRESS: dict[Compression | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "gzip": gzip.decompress,
    "zlib": zlib.decompress,
    "bz2": bz2.decompress,
    "xz": lzma.decompress,
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", SMALL_BLOCK)
    monkeypatch.setattr(splicing, "BLOCK_BYTES", SMALL_BLOCK)
    monkeypatch.setattr(splicing, "_CHUNK_BYTES", 4099)  # so that regions of a file cross chunks


def write_sources(root: Path, compression: Compression | None) -> list[FileEntry]:
    """Write the rows to several files, with other levels in every second file."""
    starts = itertools.accumulate(COUNTS, initial=0)
    return [
        write(
            root,
            ROWS[start : start + count],
            f"source-{at}",
            compression,
            CODECS[compression].levels[-1] if compression and at % 2 else None,
        )
        for at, (start, count) in enumerate(zip(starts, COUNTS, strict=False))
    ]


def spliced(root: Path, sources: list[FileEntry], compression: Compression | None) -> FileEntry:
    store = Store.at(root)
    return splice(store, sources, compression, store.join("spliced"), "spliced")


@every
def test_a_spliced_file_is_equal_to_a_file_that_was_written_at_once(
    tmp_path: Path, compression: Compression | None
) -> None:
    whole = write(tmp_path, ROWS, "whole", compression)
    entry = spliced(tmp_path, write_sources(tmp_path, compression), compression)
    check(tmp_path, entry)
    content = {name: (tmp_path / name).read_bytes() for name in ("whole", "spliced")}
    if decompress := DECOMPRESS.get(compression):
        assert decompress(content["spliced"]) == decompress(content["whole"])
    described = {one.name: one for one in whole.statistics}
    assert {one.name: one for one in entry.statistics} == described
    sizes = [stop.content - start.content for start, stop in itertools.pairwise(entry.blocks)]
    assert max(sizes) <= SMALL_BLOCK
    assert len(entry.blocks) <= 2 * len(whole.blocks)
    nothing = spliced(
        tmp_path, [write(tmp_path, ROWS[:0], f"no-{at}", compression) for at in (0, 1, 2)], compression
    )
    check(tmp_path, nothing, ROWS[:0])
    assert (tmp_path / "spliced").read_bytes() == (tmp_path / "no-0").read_bytes()


@pytest.mark.parametrize("compression", [None, "gzip", "zlib", "zstd"])
def test_sources_that_cannot_be_copied_are_written_again(
    tmp_path: Path, compression: Compression | None
) -> None:
    write(tmp_path, ROWS[:2000], "plain", None)
    content = (tmp_path / "plain").read_bytes()
    cut = write(tmp_path, ROWS[:100], "start", None).bytes
    members = gzip.compress(content[:cut]) + gzip.compress(b"") + gzip.compress(content[cut:]) + b"\0" * 512
    sources = [
        foreign(tmp_path, "members", members, 2000),
        foreign(tmp_path, "nothing", gzip.compress(b"") * 2, 0),
        write(tmp_path, ROWS[2000:2400], "ours", compression),
        foreign(tmp_path, "empty", b"", 0),
        write(tmp_path, ROWS[2400:2700], "zlib", "zlib"),
        write(tmp_path, ROWS[2700:], "no codec", None),
    ]
    check(tmp_path, spliced(tmp_path, sources, compression))


@every
def test_changed_sources_are_never_copied(tmp_path: Path, compression: Compression | None) -> None:
    sources = [
        write(tmp_path, ROWS[:50], "first", compression),
        write(tmp_path, ROWS[50:], "second", compression),
    ]
    path = tmp_path / "second"
    good, source = path.read_bytes(), random.Random(3)
    places = {0, 3, 9, 10, len(good) - 1, len(good) - 9, *(source.randrange(len(good)) for _ in range(20))}
    for place in places:
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << source.randrange(8)]) + good[place + 1 :])
        with pytest.raises((CorruptRecordError, FileChangedError)) as raised:
            spliced(tmp_path, sources, compression)
        assert raised.value.path == str(path)
    for data in (good[:-1], good + b"\0"):
        path.write_bytes(data)
        with pytest.raises(FileChangedError, match="bytes when it was listed"):
            spliced(tmp_path, sources, compression)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        spliced(tmp_path, sources, compression)
    assert not (tmp_path / "spliced").exists()
    assert {one.name for one in tmp_path.iterdir()} == {"first"}


def test_descriptions_that_contradict_the_file_are_refused(tmp_path: Path) -> None:
    write(tmp_path, ROWS, "plain", None)
    content = (tmp_path / "plain").read_bytes()
    stored = foreign(tmp_path, "stored", gzip.compress(content), len(ROWS))
    # The stream does not end with a flush
    for lie in (replace(stored, blocks=(Block(10, 0, 0),)), replace(stored, records=2999)):
        with pytest.raises(TFRecordError) as raised:
            spliced(tmp_path, [lie], "gzip")
        assert raised.value.path == str(tmp_path / "stored")
    outside = replace(stored, blocks=(Block(10, 0, 0), Block(stored.bytes - 1, 1, 1)))
    for source in (stored, outside):
        check(tmp_path, spliced(tmp_path, [source], "gzip"))


def test_a_column_keeps_statistics_only_if_all_files_with_records_know_them(tmp_path: Path) -> None:
    sources = [
        write(tmp_path, ROWS[:0], "a", None),
        write(tmp_path, ROWS[:9], "b", None),
        write(tmp_path, ROWS[9:], "c", None),
    ]
    unknown = replace(sources[2], statistics=sources[2].statistics[1:])
    names = [one.name for one in spliced(tmp_path, [*sources[:2], unknown], None).statistics]
    assert names == ["x", "text", "list", "null"]
    no_bound = replace(sources[1], statistics=(sources[1].statistics[0]._replace(max=None),))
    [n] = spliced(tmp_path, [no_bound, sources[2]], None).statistics
    assert (n.min, n.max, n.nulls) == (0, None, 429)


# --- files without some of their records ---


def removed(root: Path, source: FileEntry, mask: RecordMask, compression: Compression | None) -> FileEntry:
    store = Store.at(root)
    return remove_records(store, source, mask, SCHEMA, compression, store.join("new"), "new")


def check_statistics(entry: FileEntry, rows: pa.Table) -> None:
    """Check that the numbers of nulls and the bounds are exact."""
    assert len(entry.statistics) == rows.num_columns
    for one in entry.statistics:
        values: list[Any] = [value for value in rows[one.name].to_pylist() if value is not None]
        assert one.nulls == len(rows) - len(values)
        is_list = one.name == "list"
        known = [len(value) for value in values] if is_list else [value for value in values if value == value]
        expected = (min(known), max(known)) if known else (None, None)
        assert (one[4:] if is_list else one[1:3]) == expected


def some(*gone: int | slice) -> RecordMask:
    mask = np.zeros(len(ROWS), bool)
    for rows in gone:
        mask[rows] = True
    return mask


MASKS = {
    "none": some(),
    "first": some(0),
    "last": some(-1),
    "one": some(1230),
    "scattered": some(slice(5, None, 50)),
    "clustered": some(slice(400, 900)),
    "all but one": ~some(77),
    "all with values": ~np.array([value is None for value in ROWS["n"].to_pylist()]),
    "extremes": np.array([value in (0, 999) for value in ROWS["n"].to_pylist()]),
}


@pytest.mark.parametrize(
    ("compression", "name"),
    [
        *itertools.product([None, "gzip"], MASKS),
        *((codec, "clustered") for codec in CODECS if codec != "gzip"),
    ],
)
def test_other_records_and_true_statistics_are_left(
    tmp_path: Path, compression: Compression | None, name: str
) -> None:
    mask = MASKS[name]
    source = write(tmp_path, ROWS, "source", compression)
    entry = removed(tmp_path, source, mask, compression)
    left = ROWS.filter(pa.array(~mask))
    check(tmp_path, entry, left)
    check_statistics(entry, left)
    if name == "none":
        assert entry.crc32c == source.crc32c


def test_records_of_files_of_other_tools_are_removed(tmp_path: Path) -> None:
    write(tmp_path, ROWS, "plain", None)
    content, mask = (tmp_path / "plain").read_bytes(), MASKS["scattered"]
    left = ROWS.filter(pa.array(~mask))
    for name, data in (("gzip", gzip.compress(content)), (None, content)):
        codec: Compression | None = "gzip" if name else None
        entry = removed(tmp_path, foreign(tmp_path, f"a {name}", data, len(ROWS)), mask, codec)
        check(tmp_path, entry, left)
        check_statistics(entry, left)


@every
def test_a_changed_source_is_not_written_again(tmp_path: Path, compression: Compression | None) -> None:
    source = write(tmp_path, ROWS, "source", compression)
    good = (tmp_path / "source").read_bytes()
    for place in (2, len(good) // 2, len(good) - 2):
        changed = good[:place] + bytes([good[place] ^ 8]) + good[place + 1 :]
        (tmp_path / "source").write_bytes(changed)
        with pytest.raises((CorruptRecordError, FileChangedError)):
            removed(tmp_path, source, MASKS["one"], compression)
    assert not (tmp_path / "new").exists()


def test_blocks_with_other_numbers_of_records_are_refused(tmp_path: Path) -> None:
    """Otherwise, other records than the chosen ones would be removed."""
    source = write(tmp_path, ROWS, "source", None)
    lie = list(source.blocks)
    lie[2] = lie[2]._replace(record=lie[2].record - 1)
    with pytest.raises(CorruptRecordError, match="a block has"):
        removed(tmp_path, replace(source, blocks=tuple(lie)), MASKS["last"], None)
    inside = Block(source.blocks[2].offset + 1, source.blocks[2].content + 1, source.blocks[2].record)
    with pytest.raises(CorruptRecordError):
        removed(tmp_path, replace(source, blocks=(*lie[:2], inside, *lie[3:])), MASKS["last"], None)


def test_small_remote_files_are_requested_at_once(linked: LinkedStore) -> None:
    place = linked.new_place()
    for number in range(5):
        frame = pd.DataFrame({"n": [number]})
        to_tfrecord(frame, place, append=number > 0, compression="gzip", storage_options=linked.options)
    with linked.link.recording(rounds=True) as traffic:
        open_dataset(place, storage_options=linked.options).compact()
    read = Traffic(traffic.of("GET", "part-")[1:])  # the first one tells the codec
    assert (len(read), read.trips) == (5, 1)
    rows = read_tfrecord(place, storage_options=linked.direct)["n"].compute()
    assert sorted(rows) == [*range(5)]
