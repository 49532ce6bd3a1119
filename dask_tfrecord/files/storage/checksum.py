"""CRC-32C of the stored bytes of files: in passing while they are read, and of files read in parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dask_tfrecord.codec import _kernel
from dask_tfrecord.files.storage.open_file import FileReader
from dask_tfrecord.files.storage.store import Store

# Castagnoli's polynomial, and 1, both with the lowest power in the highest bit.
_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31


def followed_by(crc32c: int, next_crc32c: int, next_bytes: int) -> int:
    """The checksum of some bytes and those after them, of which the second part has ``next_bytes``."""
    return _product(crc32c, _power_of_x(8 * next_bytes)) ^ next_crc32c


@dataclass
class Checksum:
    """What was read: its first bytes, how many in all, and their checksum."""

    head: bytes = b""
    bytes: int = 0
    crc32c: int = 0


@dataclass(frozen=True, repr=False)
class ChecksumStore(Store):
    """A store of which all that is read is summed up, one file at a time."""

    checksum: Checksum = field(default_factory=Checksum)

    @contextmanager
    def open(self, *args: Any) -> Iterator[FileReader]:
        """As any store does."""
        with super().open(*args) as source:
            yield ChecksumReader(source, self.checksum)


class ChecksumReader(FileReader):
    """Hands on what another source reads, and sums it up."""

    def __init__(self, source: FileReader, total: Checksum) -> None:
        self._source = source
        self._sum = total
        self.size = source.size

    def peek(self, count: int) -> bytes:
        self._sum.head = self._source.peek(count)
        return self._sum.head

    def readinto(self, view: memoryview) -> int:
        count = self._source.readinto(view)
        self._sum.bytes += count
        self._sum.crc32c = _kernel.crc32c(view[:count], self._sum.crc32c)
        return count


def _power_of_x(exponent: int) -> int:
    """X to this power, modulo the polynomial."""
    power, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            power = _product(power, square)
        square = _product(square, square)
        exponent >>= 1
    return power


def _product(one: int, other: int) -> int:
    """Modulo the polynomial."""
    product = 0
    for power in range(32):
        if one & (_ONE >> power):
            product ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product
