"""Spliced files: the records, blocks and statistics are those of one written file, and damage is found.

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

import pytest
from stored_rows import ROWS, check, foreign, write

from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.errors import CorruptRecordError, FileChangedError, TFRecordError
from dask_tfrecord.files import file_writer
from dask_tfrecord.files import splice as splicing
from dask_tfrecord.files.entry import Block, FileEntry
from dask_tfrecord.files.splice import splice
from dask_tfrecord.files.storage.store import Store

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


@every
def test_files_without_records_become_one_file_without_records(
    tmp_path: Path, compression: Compression | None
) -> None:
    sources = [write(tmp_path, ROWS[:0], f"source-{at}", compression) for at in range(3)]
    entry = spliced(tmp_path, sources, compression)
    check(tmp_path, entry, ROWS[:0])
    empty = (tmp_path / "source-0").read_bytes()
    assert (tmp_path / "spliced").read_bytes() == empty


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
        with pytest.raises(FileChangedError, match="bytes when the dataset was listed"):
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
    lies = [
        replace(stored, blocks=(Block(10, 0, 0),)),  # the stream does not end with a flush
        replace(stored, records=2999),
    ]
    for lie in lies:
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
