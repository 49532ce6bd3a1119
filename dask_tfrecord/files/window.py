"""Move a window over the decompressed bytes of a split, and locate the intact records in it.

The module decodes no records.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from typing_extensions import Buffer

from dask_tfrecord.codec import (
    HEADER_BYTES,
    Checked,
    Damage,
    Ints,
    crc32c,
    crc32c_of_records,
    frame_size,
    scan,
)
from dask_tfrecord.codec.codecs import Compression, decompressor, detect, is_frame
from dask_tfrecord.codec.other_formats import LOOK_BYTES, OtherFormat, looks_like
from dask_tfrecord.errors import (
    WITHOUT_SNAPSHOT,
    CorruptRecordError,
    FileChangedError,
    Remedy,
    TFRecordError,
    add_snapshot_again,
)
from dask_tfrecord.files.damage import not_tfrecord
from dask_tfrecord.files.entry import is_part
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadCompression, ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.storage.reader import Checksum, FileReader, rewritten, stamp_of
from dask_tfrecord.storage.store import Store

ReadInto = Callable[[memoryview], int]
Allocate = Callable[[int], memoryview]

# The size of a window's buffer in bytes. The buffer grows only if a record is longer.
WINDOW_BYTES = 1 << 22

# The first view of a remote file has this many bytes, and each later one has twice as many, up to the size of
# the window. So the first records are decoded while most of a window is still in flight.
_EARLY_BYTES = 1 << 18

# `Window.fill` first reads to a memory address that is a multiple of this number. Copying a file's bytes to
# an aligned address takes 20% less time than to an unaligned address.
_ALIGNMENT = 64


class Window:
    """A view of bounded size that moves forward over the decompressed bytes of a file.

    Iterating over a window yields the bytes that are currently in view. Between two iterations, the caller
    drops the consumed bytes with `advance`. The next iteration yields the bytes that were not dropped,
    followed by new bytes. All views share one buffer, so a view is valid only until the next iteration.

    If one record fills the buffer of ``size`` bytes, iterating doubles the buffer. A wrong record length
    allocates no memory, because the buffer grows only for bytes that the file really contains.

    ``offset`` and ``stop`` are decompressed offsets in the file. If ``stop`` is known, a record that would
    end after it is damage, and is not read to its end. ``stored`` contains the first `LOOK_BYTES` stored
    bytes, by which other formats are recognised. `advance` updates ``checksum``, the checksum of the consumed
    bytes. ``allocate`` returns memory for the buffer. It is called only if ``stop`` is known, because the
    buffer may otherwise be much larger than the split. ``first`` is the size of the first view, if it should
    be smaller than ``size``.
    """

    def __init__(
        self,
        readinto: ReadInto,
        size: int,
        offset: int = 0,
        stop: int | None = None,
        *,
        stored: bytes = b"",
        codec: Compression | None = None,
        checksum: Checksum | None = None,
        allocate: Allocate | None = None,
        first: int | None = None,
    ) -> None:
        self._readinto = readinto
        # If the split fits into the buffer, the buffer has room for one byte more than the split, so that the
        # read of the last bytes also detects the end.
        self._size = size if stop is None else min(size, stop - offset + 1)
        self._buffer = _allocate(self._size, None if stop is None else allocate)
        self._next = min(first or self._size, self._size)
        self._start = self._end = 0
        self._failure: CorruptRecordError | None = None
        self.offset = offset
        self.stop = stop
        self.final = False
        self._head = b""
        self._stored = stored
        self._codec = codec
        self._checksum = checksum

    def __iter__(self) -> Iterator[memoryview]:
        while not self.final:
            if len(self.data) >= self._size:
                if damage := self.overrun(0, 0, 0):
                    raise CorruptRecordError(damage.reason, offset=self.offset)
                self._size *= 2
            try:
                self.fill(self._next if len(self.data) < self._next else self._size)
            # Raise the error only after the caller has consumed the bytes that precede the damaged bytes.
            except CorruptRecordError as failure:
                self._failure = failure
            self._next = min(2 * self._next, self._size)
            self._head = self._head or bytes(self.data[:LOOK_BYTES])
            yield self.data
            if self._failure:
                raise self._failure

    @property
    def data(self) -> memoryview:
        """The bytes in view. Getting this property does not read more bytes."""
        return self._buffer[self._start : self._end]

    @property
    def end(self) -> int:
        """The decompressed file offset of the first byte after the view."""
        return self.offset + self._end - self._start

    @property
    def decompression_error(self) -> CorruptRecordError | None:
        """The error that the next iteration raises because bytes after the view cannot be decompressed."""
        return None if isinstance(self._failure, FileChangedError) else self._failure

    def other_format(self) -> OtherFormat | None:
        """Return the non-TFRecord format that the file seems to have, or None if it is unknown or the file
        begins with a record. The name of the format mentions the codec of the file.
        """
        is_compressed = self._codec is not None and self._head
        found = looks_like(self._head if is_compressed else self._stored)
        if found is None or is_frame(self._head[:HEADER_BYTES]):
            return None
        return found._replace(name=f"{found.name}, compressed with {self._codec}") if is_compressed else found

    def advance(self, count: int, *, verified: int = 0) -> None:
        """Drop the first ``count`` bytes of the view.

        If ``verified`` is not 0, the dropped bytes are ``verified`` records with correct checksums. From the
        checksums of these records, the window updates the checksum of the file without reading large payloads
        again. ``count`` may exceed the size of the view only if every call of ``readinto`` reads at the
        offset `end`. Dropped bytes beyond the view are never read.
        """
        if self._checksum is not None:
            before = self._checksum.crc32c
            self._checksum.crc32c = crc32c_of_records(self.data[:count], verified, before)
        self.offset += count
        self._start += count
        if self._start > self._end:
            self._start = self._end = 0

    def fill(self, count: int) -> None:
        """Read until the view contains at least ``count`` bytes or the split ends. The buffer grows if
        necessary.
        """
        rest = self.data
        if len(rest) >= count:
            return
        buffer = self._buffer if count + _ALIGNMENT <= len(self._buffer) else _allocate(count)
        start = -len(rest) % _ALIGNMENT
        end = start + len(rest)
        buffer[start:end] = rest
        self._buffer, self._start, self._end = buffer, start, end
        while len(self.data) < count and not self.final:
            read = self._readinto(buffer[self._end :])
            self._end += read
            self.final = read == 0

    def read_all(self) -> memoryview:
        """Return all bytes up to the end of the split, in memory that the window never overwrites."""
        self.fill(self._size)
        while not self.final:
            self.fill(2 * len(self.data))
        data = self.data
        self.advance(len(data))
        return data

    def overrun(self, record: int, start: int, end: int) -> Damage | None:
        """Return a `Damage` if the record at byte ``end`` of the view would end after `stop`, otherwise None.

        ``record`` is the index of this record, counted from the record at byte ``start`` of the view. The
        offset in the `Damage` is also counted from byte ``start``.
        """
        header = self.data[end : end + HEADER_BYTES]
        if self.stop is None or self.final or len(header) < HEADER_BYTES:
            return None
        claimed, left = frame_size(header), self.stop - self.offset - end
        reason = f"the record's length is {claimed:,} bytes, but only {left:,} bytes of the file are left"
        return None if claimed <= left else Damage(record, end - start, 0, reason, -1, "")


def _allocate(size: int, allocate: Allocate | None = None) -> memoryview:
    """Allocate a buffer. The system provides memory for each page only when it is first written."""
    rounded = (size // _ALIGNMENT + 2) * _ALIGNMENT
    return memoryview(pa.allocate_buffer(rounded)).cast("B") if allocate is None else allocate(rounded)


@contextmanager
def open_window(
    store: Store,
    split: Split,
    options: ReadOptions,
    size: int,
    allocate: Allocate | None = None,
    stored: Buffer | None = None,
    *,
    early: bool = False,
) -> Iterator[Window]:
    """Open a window over the decompressed bytes of a split. If the caller has read the stored bytes of the
    split, it passes them as ``stored``, and the file is not opened. With ``early=True``, the first views of a
    remote file are smaller than the window.

    Offsets in errors are counted from the start of the file. Raise CorruptRecordError if the codec of the
    file is not the codec that the options require. On exit, raise CorruptRecordError if the first record is
    damaged and the file looks like another known format. Raise FileChangedError if the CRC-32C of the whole
    file differs from the snapshot. If the stamp (such as the modification time) shows that the file may have
    changed, the CRC-32C is compared before the first record is read.
    """
    file, start, stop = split.file, split.start, split.stop
    known, ends = file.crc32c is not None, (start.offset, stop and stop.offset)
    with store.open(file.path, file.size, *ends, file.stamp, may_be_restamped=known, stored=stored) as reader:
        # The caller may stop before the end of the file, where `checksum` is compared.
        if reader.is_restamped and not options.damage.skips:
            check_content(store, file)
        checksum = Checksum() if must_verify_content(split, options) else None
        head = reader.peek(HEADER_BYTES if start.offset else LOOK_BYTES)
        if start.offset:
            codec = block_compression(split, head[:HEADER_BYTES])
        else:
            codec = detect(head[:HEADER_BYTES])
            _check_compression(codec, options.compression, reader.size)
        end = stop and stop.content
        # The checksum covers compressed bytes, but the window contains decompressed bytes.
        if codec and checksum is not None:
            reader.checksums.append(checksum)
        readinto: ReadInto = reader.readinto
        if codec:
            readinto = decompressor(reader.readinto, codec, inside=start.offset > 0).readinto
            if end is not None:
                readinto = _limited(readinto, end - start.content)
        elif stop is None:
            end = reader.size
        consumed = None if codec else checksum
        window = Window(
            readinto,
            size,
            start.content,
            end,
            stored=head,
            codec=codec,
            checksum=consumed,
            allocate=allocate,
            first=_EARLY_BYTES if early and store.is_remote else None,
        )
        try:
            yield window
            if checksum is not None and checksum.crc32c != file.crc32c:
                raise changed_since_snapshot(store, file.path)
        except CorruptRecordError as error:
            if error.offset == 0 and (found := window.other_format()):
                raise not_tfrecord(found).replaced(record=error.record) from None
            raise


def read_exactly(reader: FileReader, view: memoryview) -> memoryview:
    """Fill a view with the next bytes of a file. ``reader`` raises an error if the file is shorter than its
    listed size.

    ``view`` must not be larger than the rest of the range that ``reader`` reads.
    """
    at = 0
    while at < len(view):
        at += reader.readinto(view[at:])
    return view


def must_verify_content(split: Split, options: ReadOptions) -> bool:
    """Return True if a read of a split must compare the CRC-32C of the file with the snapshot."""
    is_whole = not split.start.offset and split.stop is None
    return is_whole and split.file.crc32c is not None and options.verify_crc and not options.damage.skips


# A process remembers of at most this many files that their content was compared.
_MOST_COMPARED = 1024


def check_file(store: Store, file: FileInfo) -> None:
    """Raise FileChangedError if a file was removed, or is not the one that the listing or snapshot describes.

    If only the stamp of a file differs from the snapshot, compare the CRC-32C of its content.
    """
    if not store.is_restamped(file.path, file.size, file.stamp):
        return
    if file.crc32c is None:
        raise rewritten(store.public(file.path))
    check_content(store, file)


def check_content(store: Store, file: FileInfo) -> None:
    """Raise FileChangedError if the CRC-32C of a file differs from the snapshot. A process reads a file for
    this comparison only once, unless it is rewritten again.
    """
    if _checksum_of(store, file.path, file.size, stamp_of(store.info(file.path))) != file.crc32c:
        raise changed_since_snapshot(store, file.path)


@lru_cache(maxsize=_MOST_COMPARED)
def _checksum_of(store: Store, path: str, size: int | None, stamp: str) -> int:
    """Return the CRC-32C of the file that has ``stamp``."""
    checksum, buffer = 0, memoryview(bytearray(WINDOW_BYTES))
    with replace(store, checksum=None).open(path, size, stamp=stamp) as reader:
        while count := reader.readinto(buffer):
            checksum = crc32c(buffer[:count], checksum)
    return checksum


def _limited(readinto: ReadInto, count: int) -> ReadInto:
    """Return a ``readinto`` function whose calls read at most ``count`` bytes in total."""
    left = count

    def read(view: memoryview) -> int:
        nonlocal left
        got = readinto(view[:left]) if left else 0
        left -= got
        return got

    return read


def block_compression(split: Split, head: bytes) -> Compression | None:
    """Return the codec of a split that begins inside a file. ``head`` contains the first stored bytes of the
    split.

    The name of an uncompressed file may have any suffix, even that of a codec. Only compressed files that
    this library wrote can be split; their codec comes from the snapshot or from the suffix of the file name.
    Raise TFRecordError if neither the snapshot nor the suffix determines the codec.
    """
    codec = split.file.compression
    if split.start.offset == split.start.content and (not codec or is_frame(head)):
        return None
    if codec is None:
        raise TFRecordError(
            f"the file cannot be read from byte {split.start.offset:,} on: it is compressed, and its name "
            "does not end in the suffix of a codec",
            "restore the file's original name",
            Remedy("blocksize", None, "read it as a whole"),
        )
    return codec


def _check_compression(found: Compression | None, wanted: ReadCompression, size: int | None) -> None:
    if wanted not in ("infer", found) and size != 0:
        problem = f"the file's first bytes are not {wanted or 'uncompressed TFRecord'}"
        remedy = Remedy("compression", "infer", "detect the codec of each file by its first bytes")
        raise CorruptRecordError(problem, remedy, offset=0)


def changed_since_snapshot(store: Store, path: str) -> FileChangedError:
    again = add_snapshot_again(store.public(), "again if it was rewritten on purpose")
    return FileChangedError(
        "the content is not the one in the dataset's snapshot (the CRC-32C differs)",
        "restore the file as to_tfrecord wrote it" if is_part(path) else None,
        WITHOUT_SNAPSHOT,
        calls=[] if is_part(path) else [again],
        path=store.public(path),
    )


_NONE = np.zeros(0, np.int64)
_ZERO = np.zeros(1, np.int64)


def record_bounds(data: memoryview) -> Ints:
    """Return the positions at which records begin in ``data``, followed by the end of ``data``. All records
    must be intact.
    """
    return np.append(pa.array(scan(data, final=True, offsets=True, verify_crc=False).offsets), len(data))


class Numbers(NamedTuple):
    """The file-wide indices of a window's intact records. A damaged range counts as one record.

    ``first`` is the index of the window's first record or damaged range. ``damaged`` contains, for each
    damaged range, how many intact records precede it.
    """

    first: int
    damaged: Ints = _NONE

    def of(self, row: int) -> int:
        return int(self.of_all(np.array([row]))[0])

    def of_all(self, rows: Ints) -> Ints:
        found: Ints = self.first + rows + np.searchsorted(self.damaged, rows, side="right")
        return found


class Intact(NamedTuple):
    """The intact records of a window, joined without the damaged ranges between them.

    If no range is damaged, ``data`` is a view of the window, and otherwise a copy. ``start`` is the
    decompressed file offset at which the window begins. ``gaps`` are the positions in ``data`` at which
    damaged ranges were removed. ``removed[n]`` is the total size of the first n damaged ranges.
    """

    data: memoryview
    numbers: Numbers
    start: int
    gaps: Ints = _NONE
    removed: Ints = _ZERO

    @classmethod
    def of(cls, checked: Checked, data: memoryview, start: int, record: int) -> "Intact":
        removed = np.concatenate([[0], np.cumsum(checked.ends - checked.starts)])
        new = checked.records_before[int(checked.continues) :]
        numbers = Numbers(record, new)
        return cls(checked.intact(data), numbers, start, checked.starts - removed[:-1], removed)

    def offsets(self, positions: Ints) -> Ints:
        """Convert record starts from positions in ``data`` to decompressed file offsets."""
        found: Ints = (
            positions + self.start + self.removed[np.searchsorted(self.gaps, positions, side="right")]
        )
        return found
