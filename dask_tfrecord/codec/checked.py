"""The damage in some framed records: columns with a row for each damaged range."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer

from dask_tfrecord.codec import _kernel

Ints = npt.NDArray[np.int64]


class Checked(NamedTuple):
    """The intact records and the damaged ranges in the first ``consumed`` bytes of some data.

    A damaged range is one record whose length is believed, or goes up to the next record.

    Parameters
    ----------
    records, consumed : int
        The number of intact records, and of bytes with them and the damage.
    continues : bool
        True if the first range continues the last range of the data before.
    is_open : bool
        True if the last range may go on in the data after this.
    starts, ends : numpy.ndarray
        The first byte of each range, and the byte after its last.
    records_before : numpy.ndarray
        The number of intact records before each range.
    reasons : numpy.ndarray
        The reason of each range, as an index into `texts`.
    texts : tuple of str
        The reasons.
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
        """Return the result of a call of the kernel."""
        arrays = [pa.array(column).to_numpy() for column in fields[4:8]]
        return cls._make((*fields[:4], *arrays, tuple(fields[8])))

    @classmethod
    def one_range(cls, length: int, reason: str, *, continues: bool) -> "Checked":
        """Return data of which every byte is damaged."""
        zero, end = np.zeros(1, np.int64), np.array([length])
        return cls(0, length, continues, False, zero, end, zero, zero, (reason,))

    def with_first_reason(self, reason: str) -> "Checked":
        """Replace the reason of the first range."""
        reasons = self.reasons.copy()
        reasons[0] = len(self.texts)
        return self._replace(reasons=reasons, texts=(*self.texts, reason))

    def intact(self, data: Buffer) -> memoryview:
        """Return the bytes of the intact records, one after the other. They are copied if there is damage."""
        if not len(self.starts):
            return memoryview(data)[: self.consumed]
        return memoryview(self._take(data, 0).buffers()[2] or b"")

    def damaged(self, data: Buffer) -> pa.Array:
        """Return a copy of the bytes of each damaged range (large_binary)."""
        return self._take(data, 1)

    def _take(self, data: Buffer, first: int) -> pa.Array:
        """Copy every second span: those between the damaged ranges from 0 on, or the ranges from 1 on."""
        bounds = np.zeros(2 * len(self.starts) + 2, np.int64)
        bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = self.starts, self.ends, self.consumed
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        spans = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
        return pa.array(_kernel.take_bytes(spans, np.arange(first, len(spans), 2).data))
