"""Find the blocks of large uncompressed files that no snapshot describes.

Tasks scan the ranges of a file in parallel. A range may begin inside a record, whose payload may contain
whole TFRecord files. Scanning a range yields only a claim: it says where the range's first record starts, and
where the walk from there ended. When all ranges are scanned, the claims are checked in order, from the start
of the file. A claim is true if the claimed walk starts where the previous walk ended. A false claim is
replaced by a new walk from the end of the previous walk.

A walk verifies the lengths and the checksums of records. After damage, a walk continues at the record at
which a reader with ``on_corrupt="skip"`` would continue. With ``on_corrupt="raise"``, a walk does not verify
the payload of a record that is longer than ``WINDOW_BYTES`` or ends after the scanned range.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from dask_tfrecord.codec import HEADER_BYTES, Inference, find_record, frame_size, scan
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.files.entry import Block
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.splits import BlockIndex, groups_by_bytes
from dask_tfrecord.files.window import WINDOW_BYTES, Intact, Window, record_bounds
from dask_tfrecord.storage.filesystem import is_web
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.reader import FileReader
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store

# The type of a function that works like `map`, but may make the calls in parallel. The results are in the
# order of the arguments.
ComputeEach: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]

# The smallest range of a file, in bytes, for which a separate scan task is worth the overhead.
TASK_BYTES = 1 << 24


class _Range(NamedTuple):
    """The bytes ``start`` to ``stop - 1`` of a file, which one task scans for blocks."""

    file: FileInfo
    size: int
    start: int
    stop: int
    block_bytes: int
    options: ReadOptions


class _Walk(NamedTuple):
    """Describe the records from byte ``start`` up to the first record at or after the end of a range.

    ``blocks`` contains the offset and the index of each record at which a block may start. Indices are
    counted from ``start``, and a damaged record or range counts as one record. ``damaged`` contains the
    offset of the first damaged record or range after each block, and possibly offsets of later damage.
    """

    start: int
    stop: int
    records: int
    blocks: list[tuple[int, int]]
    damaged: list[int]


def find_blocks(
    store: Store,
    files: Sequence[FileInfo],
    options: ReadOptions,
    compute_each: ComputeEach,
    *,
    task_bytes: int,
    block_bytes: int,
) -> dict[str, BlockIndex]:
    """Return a dict that maps the path of each uncompressed file of known size to the file's blocks.

    Each scan task reads up to ``task_bytes`` bytes of one or more files. Blocks are at least ``block_bytes``
    apart.
    """
    if options.compression not in ("infer", None):
        return {}
    sized = [file for file in files if file.size]
    are_plain = store.for_each(partial(_is_plain, store), sized)
    plain = [file for file, is_plain in zip(sized, are_plain, strict=True) if is_plain]
    ranges = [
        [
            _Range(file, size, start, min(start + task_bytes, size), block_bytes, options)
            for start in range(0, size, task_bytes)
        ]
        for file in plain
        if (size := file.size)
    ]
    every = [*chain.from_iterable(ranges)]
    tasks = [every[group] for group in groups_by_bytes((one.stop - one.start for one in every), task_bytes)]
    walks = chain.from_iterable(compute_each(partial(_scan_ranges, store), tasks))
    claims = [[(part, next(walks)) for part in parts] for parts in ranges]
    indexes = compute_each(partial(_prove, store), claims)
    return {file.path: index for file, index in zip(plain, indexes, strict=True)}


def _is_plain(store: Store, file: FileInfo) -> bool:
    """Return True if a file is uncompressed and the store can read it from any byte."""
    size = file.size or 0
    with store.open(file.path, size, 0, min(HEADER_BYTES, size), file.stamp) as reader:
        if detect(reader.peek(HEADER_BYTES)) is not None:
            return False
    if not is_web(store.fs):
        return True
    try:
        with store.open(file.path, size, size - 1, size, file.stamp) as reader:
            reader.peek(1)
    except CorruptRecordError:
        raise
    except TFRecordError:  # the file is on a web server that sends only whole files
        return False
    return True


@redact_errors
def _scan_ranges(store: Store, parts: Sequence[_Range]) -> list[_Walk | None]:
    """Scan some ranges. On a remote store, request the next ranges while one of them is scanned."""
    wanted = [
        ByteRange(part.file.path, part.start, part.stop, part.file.stamp, part.file.size) for part in parts
    ]
    with store.reading_ahead(wanted) as ahead:
        return [_scan_range(ahead, part) for part in parts]


def _scan_range(store: Store, part: _Range) -> _Walk | None:
    """Walk over the records of a range, from the first byte at which a record seems to begin.

    Return None if no record seems to begin in the range.
    """
    with _FileWindow(store, part, part.start) as window:
        if part.start and not _seek(window, part, lenient=False):
            return None
        return _walk(window, part)


@redact_errors
def _prove(store: Store, claims: Sequence[tuple[_Range, _Walk | None]]) -> BlockIndex:
    """Check the claims about the ranges of a file, and replace false claims.

    The first walk must begin at byte 0.
    """
    position = records = 0
    blocks = [Block(0, 0, 0)]
    damaged: list[int] = []
    for part, claim in claims:
        if position >= part.stop:  # a record begins before the range and ends at or after the range's end
            continue
        walk = claim if claim and claim.start == position else _walk_from(store, part, position)
        for offset, number in walk.blocks:
            if offset >= blocks[-1].offset + part.block_bytes:
                blocks.append(Block(offset, offset, records + number))
        damaged += walk.damaged
        records += walk.records
        position = walk.stop
    return BlockIndex(records, tuple(blocks), tuple(damaged))


def _walk_from(store: Store, part: _Range, start: int) -> _Walk:
    with _FileWindow(store, part, start) as window:
        return _walk(window, part)


def _walk(window: "_FileWindow", part: _Range) -> _Walk:
    """Walk from the window's first record to the first record at or after the end of the range."""
    options = part.options
    if options.verify_crc and options.damage.skips:
        return _walk_past_damage(window, part)
    start = window.offset
    records = 0
    blocks: list[tuple[int, int]] = []
    damaged: list[int] = []
    rules: dict[str, Any] = {"verify_crc": options.verify_crc, "max_record_bytes": options.max_record_bytes}
    while window.offset < part.stop:
        window.fill(HEADER_BYTES)
        data = window.data[: part.stop - window.offset]
        scanned = scan(data, final=False, every=part.block_bytes, **rules)
        if scanned.offsets and scanned.numbers:
            offsets, numbers = scanned.offsets.to_pylist(), scanned.numbers.to_pylist()
            blocks += [(window.offset + at, records + n) for at, n in zip(offsets, numbers, strict=True)]
            records += scanned.records
            window.advance(scanned.consumed)
            continue
        length = 0 if scanned.damage else _frame_size_at(window, part)
        if len(window.data) < length <= min(WINDOW_BYTES, part.stop - window.offset):
            window.fill(length)
            continue
        if length:  # skip a record that is longer than a window or ends after the scanned range
            blocks.append((window.offset, records))
            window.advance(length)
        else:
            damaged.append(window.offset)
            _skip_damage(window, part)
        records += 1
    return _Walk(start, window.offset, records, blocks, damaged)


def _walk_past_damage(window: "_FileWindow", part: _Range) -> _Walk:
    """Walk over all records and damaged ranges in the same way as a reader that skips damage."""
    check = Inference("bytes", max_record_bytes=part.options.max_record_bytes).check
    start, records = window.offset, 0
    blocks: list[tuple[int, int]] = []
    damaged: list[int] = []
    wanted = WINDOW_BYTES
    while True:
        window.fill(wanted)
        data, offset = window.data, window.offset
        checked = check(data, final=window.end == part.size, limit=part.size - offset)
        intact = Intact.of(checked, data, offset, records)
        offsets = intact.offsets(record_bounds(intact.data)[:-1])
        lost = offset + checked.starts[int(checked.continues) :]
        stops = [
            int(places[at])
            for places in (offsets, lost)
            if (at := places.searchsorted(part.stop)) < len(places)
        ]
        offsets, lost = offsets[offsets < part.stop], lost[lost < part.stop]
        # Two blocks that this function finds may be less than ``block_bytes`` apart. `_prove` omits a block
        # that is too close to the previous block.
        _, firsts = np.unique(offsets // part.block_bytes, return_index=True)
        starts = offsets[firsts]
        blocks += zip(starts.tolist(), intact.numbers.of_all(firsts).tolist(), strict=True)
        _, firsts = np.unique(starts.searchsorted(lost), return_index=True)
        damaged += lost[firsts].tolist()
        records += len(offsets) + len(lost)
        window.advance(checked.consumed)
        is_done = window.offset >= part.stop and not checked.is_open
        if stops or is_done or window.offset == part.size:
            return _Walk(start, min([*stops, window.offset]), records, blocks, damaged)
        wanted = WINDOW_BYTES if checked.consumed else 2 * len(data) + HEADER_BYTES


def _skip_damage(window: "_FileWindow", part: _Range) -> None:
    start = window.offset
    _seek(window, part, lenient=True)
    if window.offset == start:  # `_seek` accepted the damaged record's length, and did not move the window
        window.advance(frame_size(window.data))


def _frame_size_at(window: "_FileWindow", part: _Range) -> int:
    """Return the size of the window's first frame, or 0 if the header is damaged or the file is too short."""
    header = window.data[:HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        return 0
    if scan(header, final=False, max_record_bytes=part.options.max_record_bytes).damage:
        return 0
    size = frame_size(header)
    return size if window.offset + size <= part.size else 0


def _seek(window: "_FileWindow", part: _Range, *, lenient: bool) -> bool:
    """Move the window to the next record. Return True if the next record begins in the range.

    If ``lenient`` is True, the search may continue to the end of the file. If ``lenient`` is False, the
    search stops at the end of the range.
    """
    while window.offset < (part.size if lenient else part.stop):
        found = find_record(
            window.data,
            0,
            final=window.end == part.size,
            lenient=lenient,
            max_record_bytes=part.options.max_record_bytes,
            limit=part.size - window.offset,
        )
        window.advance(found.offset)
        if found.proven:
            return window.offset < part.stop
        # To accept a record, the search needs its whole frame, and the header of the next one.
        window.fill(found.size + HEADER_BYTES if found.size else len(window.data) + 1)
    return False


class _FileWindow(Window):
    """A window over an uncompressed file that can skip bytes without reading them.

    The file is opened at the offset `end`, which follows the bytes in view. If this offset is inside the
    range, the file is opened up to the end of the range. After the range, the file is opened for at most
    `WINDOW_BYTES` bytes at a time.
    """

    def __init__(self, store: Store, part: _Range, offset: int) -> None:
        super().__init__(self._read, WINDOW_BYTES, offset, part.size)
        self._store = store
        self._range = part
        self._opened = ExitStack()
        self._reader: FileReader | None = None
        self._position = offset  # the offset in the file from which `_reader` reads next

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _read(self, view: memoryview) -> int:
        file, size = self._range.file, self._range.size
        while self.end < size:
            if self._reader is None or self._position != self.end:
                self._opened.close()
                stop = self._range.stop if self.end < self._range.stop else min(self.end + WINDOW_BYTES, size)
                opened = self._store.open(file.path, file.size, self.end, stop, file.stamp)
                self._reader, self._position = self._opened.enter_context(opened), self.end
            if read := self._reader.readinto(view):
                self._position += read
                return read
            self._reader = None
        return 0
