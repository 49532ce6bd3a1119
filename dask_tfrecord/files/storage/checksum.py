"""Compute the CRC-32C of the stored bytes of a file while the file is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dask_tfrecord.codec import crc32c
from dask_tfrecord.files.storage.open_file import FileReader
from dask_tfrecord.files.storage.store import Store


@dataclass
class Checksum:
    """The first bytes of a file, the number of bytes that were read so far, and the CRC-32C of these
    bytes.
    """

    head: bytes = b""
    bytes: int = 0
    crc32c: int = 0


@dataclass(frozen=True, repr=False)
class ChecksumStore(Store):
    """A store that computes the CRC-32C of a file while the file is read.

    Only one file of the store may be open at a time.
    """

    checksum: Checksum = field(default_factory=Checksum)

    @contextmanager
    def open(self, *args: Any) -> Iterator[FileReader]:
        """Open a file in the same way as `Store.open`, and add all bytes that are read to the checksum."""
        with super().open(*args) as reader:
            yield ChecksumReader(reader, self.checksum)


class ChecksumReader(FileReader):
    """A reader that reads through another reader, and adds all bytes that are read to a checksum."""

    def __init__(self, reader: FileReader, checksum: Checksum) -> None:
        self._reader = reader
        self._checksum = checksum
        self.size = reader.size

    def peek(self, count: int) -> bytes:
        self._checksum.head = self._reader.peek(count)
        return self._checksum.head

    def readinto(self, view: memoryview) -> int:
        count = self._reader.readinto(view)
        self._checksum.bytes += count
        self._checksum.crc32c = crc32c(view[:count], self._checksum.crc32c)
        return count
