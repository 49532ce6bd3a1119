"""Splits of files on any store: a read returns exactly the rows of the split, or raises.

Modules: files.window.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import fsspec
import oracle
import pyarrow as pa
import pytest
import s3fs
from servers import Web, s3_server, web_server
from split_table import read_table, whole_file

from dask_tfrecord import CorruptRecordError, TFRecordError, read_tfrecord
from dask_tfrecord.codec import scan
from dask_tfrecord.codec.codecs import CODECS, Compression, suffix_of
from dask_tfrecord.files import file_writer
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.file_options import ReadOptions, WriteOptions
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows, write_files
from dask_tfrecord.files.record_file import RecordFile
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage import read_ahead
from dask_tfrecord.storage.store import Store

ROWS = 3_000
TABLE = pa.table({"n": pa.array(range(ROWS)), "text": [f"row {n}" * (n % 9) for n in range(ROWS)]})
SCHEMA = Schema.from_arrow(TABLE.schema)
EVERY: list[Compression | None] = [None, *CODECS]


@dataclass
class Written:
    """The table in a file for each compression, and the offsets of the blocks."""

    root: Path
    blocks: dict[Compression | None, tuple[Block, ...]]

    def name(self, compression: Compression | None) -> str:
        return f"data.tfrecord{suffix_of(compression)}"

    def bytes(self, compression: Compression | None = None) -> bytes:
        return (self.root / self.name(compression)).read_bytes()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    store = Store.at(tmp_path_factory.mktemp("written"))
    found = Written(Path(store.root), {})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_writer, "BLOCK_BYTES", 30_000)
        for compression in EVERY:
            name = found.name(compression)

            def place(_: str, __: int, name: str = name) -> tuple[str, str]:
                return store.join(name), name

            whole = GroupedRows([(TABLE, None)], [DirectoryGroup("", (), TABLE.num_rows)])
            [entry] = write_files(store, place, whole, SCHEMA, WriteOptions(compression, lossy="allow"))
            found.blocks[compression] = entry.blocks
        yield found


@pytest.fixture(scope="module")
def web(written: Written) -> Iterator[Web]:
    with web_server(written.root) as server:
        yield server


@pytest.fixture
def server(web: Web) -> Iterator[Web]:
    """The server; its faults are removed after the test."""
    usual = {name: getattr(web, name) for name in ("ranges", "says_so", "lie", "cut")}
    web.asked.clear()
    yield web
    for name, value in usual.items():
        setattr(web, name, value)


@pytest.fixture(scope="module")
def places(written: Written, web: Web) -> Iterator[dict[str, tuple[str, dict[str, Any]]]]:
    """The directory of the files, and the storage options to read it."""
    with s3_server() as options:
        s3 = s3fs.S3FileSystem(**options)
        s3.call_s3("create_bucket", Bucket="ranges")
        memory = fsspec.filesystem("memory")
        for compression in EVERY:
            name = written.name(compression)
            s3.pipe_file(f"ranges/{name}", written.bytes(compression))
            memory.pipe_file(f"/ranges/{name}", written.bytes(compression))
        yield {
            "local": (str(written.root), {}),
            "memory": ("memory://ranges", {}),
            "s3": ("s3://ranges", options),
            "http": (web.url, {}),
        }
        memory.rm("/ranges", recursive=True)


@contextmanager
def requests_of(size: int) -> Iterator[None]:
    """Let every request for a range ask for this number of bytes."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"_SIZES": (size,), "_ONE_REQUEST": 1, "_SMALLEST": 1, "BLOCK_BYTES": 1}.items():
            patched.setattr(read_ahead, name, value)
        patched.setattr(read_ahead, "_FEWEST", 1)
        yield


def at(place: tuple[str, dict[str, Any]], name: str) -> tuple[str, dict[str, Any]]:
    return f"{place[0]}/{name}", place[1]


def ranges(split: Split, blocks: tuple[Block, ...]) -> list[tuple[Split, int, int]]:
    """Every range of consecutive blocks, and its rows."""
    found = []
    for at, start in enumerate(blocks):
        for stop in [*blocks[at + 1 :], None]:
            last = ROWS if stop is None else stop.record
            found.append((replace(split, start=start, stop=stop), start.record, last))
    return found


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "compression"),
    [
        *((kind, compression) for kind in ("local", "memory") for compression in EVERY),
        *((kind, compression) for kind in ("s3", "http") for compression in (None, "gzip", "bz2")),
    ],
)
def test_every_run_of_blocks_alone_holds_exactly_its_rows(
    places: dict[str, Any], written: Written, kind: str, compression: Compression | None
) -> None:
    store, split = whole_file(*at(places[kind], written.name(compression)))
    blocks = written.blocks[compression]
    assert len(blocks) >= 4
    for part, first, last in ranges(split, blocks):
        assert read_table(store, part, SCHEMA, ReadOptions()) == TABLE.slice(first, last - first)
        assert RecordFile(store, part, ReadOptions()).count() == last - first


def test_only_the_bytes_of_the_range_are_asked_for(places: dict[str, Any], server: Web) -> None:
    """Also if a range is longer than one request."""
    store, split = whole_file(*at(places["http"], "data.tfrecord"))
    server.asked.clear()
    start, stop = Block(1_000, 1_000, 0), Block(41_000, 41_000, 0)
    with (
        requests_of(15_000),
        store.open(split.file.path, split.file.size, start.offset, stop.offset) as file,
    ):
        view = memoryview(bytearray(50_000))
        end = 0
        while count := file.readinto(view[end:]):
            end += count
    assert end == 40_000
    asked = sorted(wanted for _, _, wanted in server.asked)
    assert asked == ["bytes=1000-15999", "bytes=16000-30999", "bytes=31000-40999"]


def test_a_compressed_file_is_read_by_its_content_or_says_why_not(
    places: dict[str, Any], written: Written, tmp_path: Path
) -> None:
    """The stored offset of a block may equal its decompressed offset by chance."""
    store, split = whole_file(*at(places["local"], written.name("gzip")))
    block = written.blocks["gzip"][2]
    shifted = replace(split, start=Block(block.offset, block.offset, block.record))
    assert read_table(store, shifted, SCHEMA, ReadOptions()) == TABLE.slice(block.record)
    (tmp_path / "renamed").write_bytes(written.bytes("gzip"))
    store, split = whole_file(tmp_path / "renamed")
    with pytest.raises(TFRecordError, match=r"renamed.*blocksize=None"):
        read_table(store, replace(split, start=written.blocks["gzip"][1]), SCHEMA, ReadOptions())


# --- bad servers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lie", "first"), [(-4, 0), (-30_000, 0), (-30_000, 1), (7, 0), (100_000, 1)])
def test_a_server_that_lies_about_the_size_is_noticed(
    places: dict[str, Any], written: Written, server: Web, lie: int, first: int
) -> None:
    """Also if the wrong size is the end of a record."""
    if lie == -30_000:
        lie = written.blocks[None][-1].offset - len(written.bytes())
    server.lie = lie
    store, split = whole_file(*at(places["http"], "data.tfrecord"))
    assert split.file.size == len(written.bytes()) + lie
    with pytest.raises(CorruptRecordError, match=r"data\.tfrecord.* bytes when .* has [0-9,]+ now"):
        read_table(store, replace(split, start=written.blocks[None][first]), SCHEMA, ReadOptions())


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(("first", "cut"), [(0, 0), (0, 20_000), (1, 0), (1, 1)])
def test_a_server_that_hangs_up_is_an_error(
    places: dict[str, Any], written: Written, server: Web, first: int, cut: int
) -> None:
    store, split = whole_file(*at(places["http"], "data.tfrecord"))
    server.cut = cut
    with pytest.raises((TFRecordError, OSError)):
        read_table(store, replace(split, start=written.blocks[None][first]), SCHEMA, ReadOptions())


@pytest.mark.usefixtures("no_pauses")
def test_no_message_holds_the_secret_of_a_url(server: Web) -> None:
    store, split = whole_file(f"{server.url}/data.tfrecord?Signature=hunter2")
    server.cut = 10
    with pytest.raises(TFRecordError) as caught:
        read_table(store, split, SCHEMA, ReadOptions())
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


class Drip:
    """A file whose reads return one or a few bytes, as pipes and some stores do."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._sizes = itertools.cycle([1, 2, 3, 11, 100])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "Drip":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def readinto(self, view: memoryview) -> int:
        return int(self._file.readinto(view[: next(self._sizes)]))


@pytest.mark.parametrize("compression", EVERY)
def test_short_reads_are_no_end(
    places: dict[str, Any], written: Written, monkeypatch: pytest.MonkeyPatch, compression: Compression | None
) -> None:
    store, split = whole_file(*at(places["local"], written.name(compression)))
    start, stop = written.blocks[compression][1:3]
    opened = store.fs.open
    monkeypatch.setattr(store.fs, "open", lambda *args, **kwargs: Drip(opened(*args, **kwargs)))
    found = read_table(store, replace(split, start=start, stop=stop), SCHEMA, ReadOptions())
    assert found == TABLE.slice(start.record, stop.record - start.record)


# --- files that change ---------------------------------------------------------------------------------


def copied(kind: str, places: dict[str, Any], written: Written, tmp_path: Path) -> tuple[Store, Split]:
    """A copy of the uncompressed file, which the test may change."""
    root, options = (str(tmp_path), {}) if kind == "local" else places[kind]
    fs = fsspec.open(f"{root}/mine.tfrecord", **options).fs
    store = Store.at(f"{root}/mine.tfrecord", options)
    fs.pipe_file(store.root, written.bytes())
    return whole_file(f"{root}/mine.tfrecord", options)


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("none", "inner"),
        ("same size", "whole"),
        ("same size", "inner"),
        ("longer", "inner"),
        ("shorter", "whole"),
        ("gone", "inner"),
    ],
)
def test_a_file_that_changes_between_plan_and_read_raises(
    places: dict[str, Any], written: Written, tmp_path: Path, kind: str, part: str, change: str
) -> None:
    """Also if the bytes of the split did not change."""
    store, split = copied(kind, places, written, tmp_path)
    assert split.file.stamp
    blocks = written.blocks[None]
    if part == "inner":
        split = replace(split, start=blocks[1], stop=blocks[2])
    content = written.bytes()
    new = {"same size": content[:-1] + b"x", "longer": content + content, "shorter": content[:-100]}
    if change == "none":
        found = read_table(store, split, SCHEMA, ReadOptions())
        assert found == TABLE.slice(blocks[1].record, blocks[2].record - blocks[1].record)
        return
    if change == "gone":
        store.fs.rm_file(split.file.path)
        with pytest.raises(FileNotFoundError, match=r"mine\.tfrecord: the file was removed"):
            read_table(store, split, SCHEMA, ReadOptions())
        return
    store.fs.pipe_file(split.file.path, new[change])
    if kind == "local":
        os.utime(split.file.path, (1, 1))
    with pytest.raises(CorruptRecordError, match=r"mine\.tfrecord.*(rewritten since|bytes when)"):
        read_table(store, split, SCHEMA, ReadOptions())


def test_a_link_to_a_file_is_no_change(written: Written, tmp_path: Path) -> None:
    (tmp_path / "link.tfrecord").symlink_to(written.root / "data.tfrecord")
    assert len(read_tfrecord(tmp_path / "link.tfrecord").compute(scheduler="sync")) == ROWS


def test_a_file_that_is_replaced_while_it_is_read_raises(
    places: dict[str, Any], written: Written, tmp_path: Path
) -> None:
    """S3 compares the ETag with every request."""
    store, split = copied("s3", places, written, tmp_path)
    view = memoryview(bytearray(1_000))
    with (
        requests_of(1_000),
        dask.config.set({"dask-tfrecord.in-flight": 0}),
        store.open(split.file.path, split.file.size, 0, None, split.file.stamp) as file,
    ):
        file.readinto(view)
        store.fs.pipe_file(split.file.path, written.bytes()[::-1])
        with pytest.raises(CorruptRecordError, match="rewritten since"):
            file.readinto(view)


@pytest.mark.parametrize("size", [100_000, 300_000, 700_000])
def test_records_may_be_longer_than_the_first_views_of_a_remote_file(size: int) -> None:
    records = [bytes([number]) * (size + number) for number in range(900_000 // size + 2)]
    path = f"memory://long/{size}"
    fsspec.filesystem("memory").pipe_file(path, b"".join(map(oracle.frame, records)))
    found = []
    for chunk in RecordFile(*whole_file(path), ReadOptions()).run(scan, early=True):
        found += [bytes(chunk.data[start + 12 : stop - 4]) for start, stop in pairwise(chunk.bounds)]
    assert found == records
