"""Read a range of a file from start to end, as bytes, and check the size of the file."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fsspec.spec import AbstractBufferedFile

from dask_tfrecord.codec import crc32c
from dask_tfrecord.errors import FileChangedError, TFRecordError
from dask_tfrecord.storage.expected_files import ExpectedFile
from dask_tfrecord.storage.range_requests import REQUEST_BYTES

_T = TypeVar("_T")


class FileReader:
    """Read a range of a file from start to end, and check that the file has the expected size.

    ``is_restamped`` is True if the file may have been rewritten, so that its content must be compared.
    ``stream`` opens the file from its start, for a server that sends only whole files.
    """

    def __init__(
        self,
        file: Any,
        expected: ExpectedFile,
        start: int,
        stop: int | None,
        *,
        is_restamped: bool = False,
        stream: Callable[[], Any] | None = None,
    ) -> None:
        self.is_restamped = is_restamped
        self._file, self._stream = file, stream
        self._expected = expected
        self._position = start
        self._stop = stop
        self._ahead = memoryview(b"")
        self.size = expected.size

    def peek(self, count: int) -> bytes:
        """Return the first ``count`` bytes of the range, or all bytes if the range is shorter. Call `peek`
        before any other read.
        """
        head = memoryview(bytearray(count))
        end = 0
        while end < count and (got := self.readinto(head[end:])):
            end += got
        self._ahead = memoryview(bytes(head[:end]) + bytes(self._ahead))
        return bytes(head[:end])

    def readinto(self, view: memoryview) -> int:
        """Read the next bytes into the start of ``view``. Return the number of bytes read, which is 0 only at
        the end of the range.
        """
        if not self._ahead:
            wanted = None if self._stop is None else self._stop - self._position
            if wanted == 0:
                return 0
            try:
                count = self._read_or_stream(view if wanted is None else view[:wanted], wanted)
            except Exception as error:  # fsspec and the storage libraries raise exceptions of many classes
                self._expected.explain(error)
            self._position += count
            self._check_size(count == 0)
            if not self._ahead:
                return count
        count = min(len(view), len(self._ahead))
        view[:count], self._ahead = self._ahead[:count], self._ahead[count:]
        return count

    def _read_or_stream(self, view: memoryview, wanted: int | None) -> int:
        try:
            return self._read(view, wanted)
        except TFRecordError:  # is a ValueError, too, for example if the file was replaced
            raise
        except ValueError:  # the server sends no ranges
            if self._stream is None:
                raise
            self._file, self._stream, left = self._stream(), None, self._position
            while left and (data := self._file.read(min(left, REQUEST_BYTES))):
                left -= len(data)
            return self._read(view, wanted)

    def _read(self, view: memoryview, wanted: int | None) -> int:
        """Read the next bytes into ``view``, or into `_ahead` if the file sends a request for each read."""
        if isinstance(self._file, AbstractBufferedFile) or not hasattr(self._file, "readinto"):
            most = REQUEST_BYTES if wanted is None else min(wanted, REQUEST_BYTES)
            data = self._file.read(most)
            self._ahead = memoryview(data)
            return len(data)
        count: int = self._file.readinto(view)
        return count

    def _check_size(self, ended: bool) -> None:
        end = self.size if self._stop is None else self._stop
        if end is None:
            return
        if ended and self._position < end:
            raise self._expected.resized(f"only {self._position:,}")
        if self._position > end:
            if self._stop is None:
                raise self._expected.resized(f"more than {end:,}")
            raise FileChangedError(
                "the server sends more bytes than were requested", path=self._expected.path
            )


class _ReaderOfReader(FileReader):
    """Base class of readers that wrap another reader."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self.size = reader.size
        self.is_restamped = reader.is_restamped

    def peek(self, count: int) -> bytes:
        return self._reader.peek(count)


class MovedFileReader(_ReaderOfReader):
    """Read a file from start to end. If a commit moves the file during the read, continue at the new path."""

    def __init__(self, reader: FileReader, start: int, open_at: Callable[[int], FileReader]) -> None:
        super().__init__(reader)
        self._position, self._open_at = start, open_at

    def peek(self, count: int) -> bytes:
        return self._read_again(lambda reader: reader.peek(count))

    def readinto(self, view: memoryview) -> int:
        count = self._read_again(lambda reader: reader.readinto(view))
        self._position += count
        return count

    def _read_again(self, read: Callable[[FileReader], _T]) -> _T:
        """Call ``read`` with the reader. If the file is missing, open it again, and repeat the call.

        Each read may be the first request after the commit.
        """
        try:
            return read(self._reader)
        except FileNotFoundError:
            self._reader = self._open_at(self._position)
            return read(self._reader)


@dataclass
class Checksum:
    """The first bytes of a file, and the number and the CRC-32C of all bytes that were read so far."""

    head: bytes = b""
    bytes: int = 0
    crc32c: int = 0


class ChecksumReader(_ReaderOfReader):
    def __init__(self, reader: FileReader, checksum: Checksum) -> None:
        super().__init__(reader)
        self._checksum = checksum

    def peek(self, count: int) -> bytes:
        self._checksum.head = self._reader.peek(count)
        return self._checksum.head

    def readinto(self, view: memoryview) -> int:
        count = self._reader.readinto(view)
        self._checksum.bytes += count
        self._checksum.crc32c = crc32c(view[:count], self._checksum.crc32c)
        return count


class PartialFile(io.RawIOBase):
    """A file-like object that contains only some ranges of a file."""

    def __init__(self, size: int, parts: Sequence[tuple[int, bytes]]) -> None:
        self._size, self._parts, self._at = size, parts, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, count: int = -1) -> bytes:
        for start, data in self._parts:
            if start <= self._at < start + len(data):
                found = data[self._at - start :][:count]
                self._at += len(found)
                return found
        raise OSError(f"byte {self._at} was not read")
