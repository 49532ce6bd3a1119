"""Hold the damage that was found in framed records, as arrays with an element for each damaged range."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer

from dask_tfrecord.codec import _kernel

Ints = npt.NDArray[np.int64]


class Checked(NamedTuple):
    """The intact records and the damaged ranges in the first ``consumed`` bytes of some data.

    A damaged range is either one record whose length is considered correct, or all bytes up to the next
    record.

    Parameters
    ----------
    records, consumed : int
        The number of intact records, and the total number of bytes of these records and of the damaged
        ranges.
    continues : bool
        True if the first damaged range continues the last damaged range of the data before.
    is_open : bool
        True if the last damaged range may continue in the data that follows.
    starts, ends : numpy.ndarray
        The position of each damaged range's first byte, and the position after its last byte.
    records_before : numpy.ndarray
        For each damaged range, the number of intact records before the range.
    reasons : numpy.ndarray
        For each damaged range, the reason for the damage, as an index into `texts`.
    texts : tuple of str
        The texts of the reasons for damage.
    """

    records: int
    consumed: int
    continues: bool
    is_open: bool
    starts: Ints
    ends: Ints
    records_before: Ints
    reasons: Ints
    texts: tuple[str, ...]

    @classmethod
    def from_kernel(cls, fields: tuple[Any, ...]) -> "Checked":
        """Convert the tuple that the kernel's `Inference.check` returns to a `Checked`."""
        arrays = [pa.array(column).to_numpy() for column in fields[4:8]]
        return cls._make((*fields[:4], *arrays, tuple(fields[8])))

    @classmethod
    def one_range(cls, length: int, reason: str, *, continues: bool) -> "Checked":
        """Return the result for data in which every byte is damaged."""
        zero, end = np.zeros(1, np.int64), np.array([length])
        return cls(0, length, continues, False, zero, end, zero, zero, (reason,))

    def with_first_reason(self, reason: str) -> "Checked":
        """Return a copy of the result in which the first damaged range has another reason."""
        reasons = self.reasons.copy()
        reasons[0] = len(self.texts)
        return self._replace(reasons=reasons, texts=(*self.texts, reason))

    def intact(self, data: Buffer) -> memoryview:
        """Return the joined bytes of the intact records of the data.

        The bytes are copied only if there is damage.
        """
        if not len(self.starts):
            return memoryview(data)[: self.consumed]
        return memoryview(self._take(data, 0).buffers()[2] or b"")

    def damaged(self, data: Buffer) -> pa.Array:
        """Return a copy of the bytes of each damaged range, as a large_binary array."""
        return self._take(data, 1)

    def _take(self, data: Buffer, first: int) -> pa.Array:
        """Copy every second span of the data: the intact spans if ``first`` is 0, the damaged ranges if
        ``first`` is 1.
        """
        bounds = np.zeros(2 * len(self.starts) + 2, np.int64)
        bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = self.starts, self.ends, self.consumed
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        spans = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
        return pa.array(_kernel.take_bytes(spans, np.arange(first, len(spans), 2).data))
