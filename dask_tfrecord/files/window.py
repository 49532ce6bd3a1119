"""A view that moves over a stream of records, in bounded memory. Knows no files."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from dask_tfrecord.codec import HEADER_BYTES, Damage, frame_size
from dask_tfrecord.codec.lookalikes import LOOK_BYTES
from dask_tfrecord.errors import CorruptRecordError, FileChangedError


class Window:
    """Moves over a stream of records: whole ones leave it at the front, more bytes come in at the end.

    Iterating gives the bytes in view, each time starting where `advance` left off. The buffer is the same
    one again and again, so what was given is valid only until the next step.

    Parameters
    ----------
    readinto : callable
        Fills a view with the next bytes and returns how many; 0 at the end.
    size : int
        Bytes of the buffer at first. It doubles when a record is longer, so never by more than is there.
    offset : int
        Where the stream begins in the file's content.
    stop : int, optional
        Where it ends there, if known: a record that claims to go beyond is damage at once.

    Attributes
    ----------
    offset : int
        Where in the file's content the bytes in view begin.
    stop : int, optional
        Where the stream ends there.
    final : bool
        Whether the bytes in view are the last.
    head : bytes
        The first bytes of all, which tell what it is if it is no TFRecord file.
    """

    def __init__(
        self, readinto: Callable[[memoryview], int], size: int, offset: int = 0, stop: int | None = None
    ) -> None:
        self._readinto = readinto
        self._buffer = _buffer(size if stop is None else min(size, stop - offset + 1))
        self._start = self._end = 0
        self.stop = stop
        self._failure: CorruptRecordError | None = None
        self.offset = offset
        self.final = False
        self.head = b""

    def __iter__(self) -> Iterator[memoryview]:
        while not self.final:
            yield self._fill()
            if self._failure:
                raise self._failure

    @property
    def broken(self) -> CorruptRecordError | None:
        """What keeps the bytes after those in view from being decompressed, if anything does."""
        return None if isinstance(self._failure, FileChangedError) else self._failure

    def overrun(self, record: int, start: int, end: int) -> Damage | None:
        """The damage of the record at ``end`` of the view, if it claims to go on past the stream's end.

        It is number ``record`` of those from ``start`` on.
        """
        head = self._buffer[self._start + end : self._end][:HEADER_BYTES]
        if self.stop is None or self.final or len(head) < HEADER_BYTES:
            return None
        claim, left = frame_size(head), self.stop - self.offset - end
        return None if claim <= left else Damage(record, end - start, 0, _claims(claim, left), -1, "")

    def advance(self, count: int) -> None:
        """Let go of bytes at the front."""
        self._start += count
        self.offset += count

    def _fill(self) -> memoryview:
        tail = self._end - self._start
        buffer = self._buffer
        if tail == len(buffer):
            self._check_claim()
            buffer = _buffer(2 * tail)
        buffer[:tail] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, tail
        try:
            while self._end < len(buffer) and not self.final:
                count = self._readinto(buffer[self._end :])
                self._end += count
                self.final = count == 0
        except CorruptRecordError as failure:  # to be told after the damage that may lie before it
            self._failure = failure
        self.head = self.head or bytes(buffer[: min(self._end, LOOK_BYTES)])
        return buffer[: self._end]

    def _check_claim(self) -> None:
        claim = frame_size(self._buffer)
        if self.stop is not None and self.offset + claim > self.stop:
            raise CorruptRecordError(_claims(claim, self.stop - self.offset), offset=self.offset)


def _claims(claim: int, left: int) -> str:
    return f"the record claims {claim:,} bytes, the file has {left:,} more"


def _buffer(size: int) -> memoryview:
    """Memory that takes up room only when it is written to."""
    return memoryview(pa.allocate_buffer(size)).cast("B")
