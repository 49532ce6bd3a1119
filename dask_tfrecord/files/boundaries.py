"""Where the records of large files begin that nobody has written down: found in parallel, then proven.

A stretch of a file may begin inside a record, whose payload may hold whole TFRecord files. So what a stretch
says is a claim only: the first record that it found, and where the walk from there came out. From the file's
start on each claim is then compared with where the walk before it came out, and a false one is replaced by a
walk from there. The walk reads lengths and their checksums; where one is damaged it goes on as readers do.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

from dask_tfrecord.codec import HEADER_BYTES, find_record, frame_size, scan
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.files.entry import BLOCK_BYTES, Block, FileEntry
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import WINDOW_BYTES
from dask_tfrecord.files.splits import BlockIndex
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.open_file import FileReader
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store

# Calls a function with each argument, in parallel maybe, and gives the results in their order.
ComputeEach: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]

# The least that is worth a task.
TASK_BYTES = 1 << 24


class _Stretch(NamedTuple):
    """A part of a file, and what to find in it."""

    file: FileInfo
    size: int
    start: int
    stop: int
    every: int
    max_record_bytes: int


class _Walk(NamedTuple):
    """A walk from record to record: from where, to the first at or after the stretch's end, and what it met.

    ``places`` are offsets and numbers, counted from the walk's first, of records.
    """

    start: int
    stop: int
    records: int
    places: list[tuple[int, int]]
    damaged: list[int]


def index_large_files(
    store: Store,
    files: Sequence[FileInfo],
    known: Sequence[FileEntry | BlockIndex | None],
    options: ReadOptions,
    blocksize: int | None,
    compute_each: ComputeEach,
) -> list[FileEntry | BlockIndex | None]:
    """What is known of each file, with the records of those located that are larger than a partition."""
    unknown = [
        file
        for file, entry in zip(files, known, strict=True)
        if blocksize and file.size and file.size > blocksize and not (entry and entry.blocks)
    ]
    if not blocksize or not unknown:
        return list(known)
    found = find_blocks(
        store,
        unknown,
        options,
        compute_each,
        task_bytes=max(blocksize, TASK_BYTES),
        block_bytes=min(blocksize, BLOCK_BYTES),
    )
    return [found.get(file.path, entry) for file, entry in zip(files, known, strict=True)]


def find_blocks(
    store: Store,
    files: Sequence[FileInfo],
    options: ReadOptions,
    compute_each: ComputeEach,
    *,
    task_bytes: int,
    block_bytes: int,
) -> dict[str, BlockIndex]:
    """The records of those of the files that are not compressed, by path; of others nothing is known.

    Parameters
    ----------
    store : Store
        Where they are.
    files : sequence of FileInfo
        The files; those whose sizes nobody knows are left out.
    options : ReadOptions
        How they are read.
    compute_each : callable
        Runs the tasks.
    task_bytes : int
        Bytes of a file that one task scans.
    block_bytes : int
        Minimum distance in bytes from the start of one block to the start of the next.
    """
    if options.compression not in ("infer", None):
        return {}
    sized = [file for file in files if file.size]
    are_plain = compute_each(partial(_is_plain, store), sized)
    plain = [file for file, is_plain in zip(sized, are_plain, strict=True) if is_plain]
    parts = [_stretches(file, task_bytes, block_bytes, options) for file in plain]
    claims = iter(compute_each(partial(_claim, store), [one for part in parts for one in part]))
    claimed = [[(one, next(claims)) for one in part] for part in parts]
    found = compute_each(partial(_prove, store), claimed)
    return {file.path: located for file, located in zip(plain, found, strict=True)}


@redact_errors
def _is_plain(store: Store, file: FileInfo) -> bool:
    """Whether a file is not compressed, and can be read from anywhere."""
    size = file.size or 0
    with store.open(file.path, size, 0, min(HEADER_BYTES, size), file.stamp) as source:
        if detect(source.peek(HEADER_BYTES)) is not None:
            return False
    try:
        with store.open(file.path, size, size - 1, size, file.stamp) as source:
            source.peek(1)
    except CorruptRecordError:
        raise
    except TFRecordError:  # by a web server that sends whole files only
        return False
    return True


def _stretches(file: FileInfo, length: int, every: int, options: ReadOptions) -> list[_Stretch]:
    size = file.size or 0
    starts = range(0, size, length)
    limit = options.max_record_bytes
    return [_Stretch(file, size, start, min(start + length, size), every, limit) for start in starts]


@redact_errors
def _claim(store: Store, stretch: _Stretch) -> _Walk | None:
    """The walk from the first record that seems to begin in the stretch; None if none does."""
    with _View(store, stretch, stretch.start) as view:
        if stretch.start and not _seek(view, stretch, lenient=False):
            return None
        return _walk(view, stretch)


@redact_errors
def _prove(store: Store, claims: Sequence[tuple[_Stretch, _Walk | None]]) -> BlockIndex:
    """What is true of a file, of which the first record, whatever it is, begins at its start."""
    position = records = 0
    blocks = [Block(0, 0, 0)]
    damaged: list[int] = []
    for stretch, claim in claims:
        if position >= stretch.stop:  # a record that begins before it ends after it
            continue
        walk = claim if claim and claim.start == position else _walk_from(store, stretch, position)
        for place, number in walk.places:
            if place >= blocks[-1].offset + stretch.every:
                blocks.append(Block(place, place, records + number))
        damaged += walk.damaged
        records += walk.records
        position = walk.stop
    return BlockIndex(records, tuple(blocks), tuple(damaged))


def _walk_from(store: Store, stretch: _Stretch, start: int) -> _Walk:
    with _View(store, stretch, start) as view:
        return _walk(view, stretch)


def _walk(view: "_View", stretch: _Stretch) -> _Walk:
    """Walk from where the view is to the stretch's end."""
    start = view.offset
    records = 0
    places: list[tuple[int, int]] = []
    damaged: list[int] = []
    while view.offset < stretch.stop:
        view.fill(HEADER_BYTES)
        data = view.data[: stretch.stop - view.offset]
        scanned = scan(
            data,
            final=False,
            verify_crc=False,
            every=stretch.every,
            max_record_bytes=stretch.max_record_bytes,
        )
        if scanned.offsets and scanned.numbers:
            offsets, numbers = scanned.offsets.to_pylist(), scanned.numbers.to_pylist()
            places += [(view.offset + at, records + n) for at, n in zip(offsets, numbers, strict=True)]
            records += scanned.records
            view.advance(scanned.consumed)
            continue
        length = _length(view, stretch)
        if len(view.data) < length <= min(WINDOW_BYTES, stretch.stop - view.offset):
            view.fill(length)
        elif length:  # need not be seen as a whole, or goes on behind the stretch
            places.append((view.offset, records))
            records += 1
            view.advance(length)
        else:
            damaged.append(view.offset)
            view.advance(1)
            _seek(view, stretch, lenient=True)
    return _Walk(start, view.offset, records, places, damaged)


def _length(view: "_View", stretch: _Stretch) -> int:
    """Bytes of the record at which the view is; 0 if they are not known, or more than there are."""
    head = view.data[:HEADER_BYTES]
    if len(head) < HEADER_BYTES:
        return 0
    if scan(head, final=False, max_record_bytes=stretch.max_record_bytes).damage:
        return 0
    length = frame_size(head)
    return length if view.offset + length <= stretch.size else 0


def _seek(view: "_View", stretch: _Stretch, *, lenient: bool) -> bool:
    """Move to the next record, or to the end of the file; a strict search ends with the stretch."""
    while view.offset < (stretch.size if lenient else stretch.stop):
        left = stretch.size - view.offset
        found = find_record(
            view.data,
            0,
            final=view.final,
            lenient=lenient,
            max_record_bytes=min(stretch.max_record_bytes, left),
        )
        view.advance(found.offset)
        if found.proven:
            return view.offset < stretch.stop
        # The record that may begin here and the length after it, if the file is that long, must be seen.
        view.fill(found.size + HEADER_BYTES if found.size else len(view.data) + 1)
    return False


class _View:
    """Moves forward over a file; what is in view is bounded, but for a record that must be seen as a whole.

    Attributes
    ----------
    offset : int
        Where in the file the view begins.
    data : memoryview
        The bytes in view, valid until the next step.
    """

    def __init__(self, store: Store, stretch: _Stretch, offset: int) -> None:
        self._store = store
        self._file = stretch.file
        self._size = stretch.size
        self._stop = stretch.stop
        self._buffer = memoryview(bytearray(min(WINDOW_BYTES, stretch.size - offset)))
        self._start = self._end = 0
        self._opened = ExitStack()
        self._source: FileReader | None = None
        self.offset = offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def data(self) -> memoryview:
        return self._buffer[self._start : self._end]

    @property
    def final(self) -> bool:
        """Whether the bytes in view are the last of the file."""
        return self.offset + self._end - self._start == self._size

    def advance(self, count: int) -> None:
        """Let go of bytes at the front, also of some that were never in view."""
        self.offset += count
        self._start += count
        if self._start > self._end:
            self._start = self._end = 0
            self._source = None

    def fill(self, count: int) -> None:
        """Have at least so many bytes in view, or all that are left; more if it costs nothing."""
        count = min(count, self._size - self.offset)
        if self._end - self._start >= count:
            return
        tail = self.data
        buffer = self._buffer if count <= len(self._buffer) else memoryview(bytearray(count))
        buffer[: len(tail)] = tail
        self._buffer, self._start, self._end = buffer, 0, len(tail)
        while self._end < count:
            source = self._source or self._open(self.offset + self._end)
            got = source.readinto(buffer[self._end :])
            self._end += got
            self._source = source if got else None

    def _open(self, position: int) -> FileReader:
        """Read from here on: up to the end of the stretch, or, if that is behind, a window further."""
        self._opened.close()
        stop = self._stop if position < self._stop else min(position + WINDOW_BYTES, self._size)
        file = self._file
        return self._opened.enter_context(self._store.open(file.path, file.size, position, stop, file.stamp))
