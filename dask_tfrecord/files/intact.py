"""The intact records of a window, and where they are in the file."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import scan
from dask_tfrecord.codec.checked import Checked, Ints

_NONE = np.zeros(0, np.int64)
_ZERO = np.zeros(1, np.int64)


def record_offsets(data: memoryview) -> Ints:
    """Return the positions at which intact records begin in data that holds nothing else."""
    found: Ints = pa.array(scan(data, final=True, offsets=True, verify_crc=False).offsets).to_numpy()
    return found


class Numbers(NamedTuple):
    """The numbers in the file of intact records. A damaged range counts as one record.

    Parameters
    ----------
    first : int
        The number of the first record, or of the first damaged range before it.
    damaged : numpy.ndarray
        For each damaged range, the number of intact records before it.
    """

    first: int
    damaged: Ints = _NONE

    def of(self, row: int) -> int:
        """Return the number of an intact record."""
        return int(self.of_all(np.array([row]))[0])

    def of_all(self, rows: Ints) -> Ints:
        """Return the numbers of intact records."""
        found: Ints = self.first + rows + np.searchsorted(self.damaged, rows, side="right")
        return found


class Intact(NamedTuple):
    """The intact records of a window, one after the other.

    Parameters
    ----------
    data : memoryview
        The records. In a window without damage, a view of the window.
    numbers : Numbers
        Their numbers in the file.
    start : int
        Decompressed offset in the file of the window.
    gaps : numpy.ndarray
        For each damaged range, the number of bytes in ``data`` before it.
    removed : numpy.ndarray
        The number of bytes in the first n damaged ranges, for each n from 0 on.
    """

    data: memoryview
    numbers: Numbers
    start: int
    gaps: Ints = _NONE
    removed: Ints = _ZERO

    @classmethod
    def of(cls, checked: Checked, data: memoryview, start: int, record: int) -> "Intact":
        """Return the intact records of a window that begins at this offset and record of the file."""
        removed = np.concatenate([[0], np.cumsum(checked.ends - checked.starts)])
        new = checked.records_before[int(checked.continues) :]
        numbers = Numbers(record, new)
        return cls(checked.intact(data), numbers, start, checked.starts - removed[:-1], removed)

    def offsets(self, positions: Ints) -> Ints:
        """Return the decompressed offsets in the file of positions in ``data``, at which records begin."""
        found: Ints = (
            positions + self.start + self.removed[np.searchsorted(self.gaps, positions, side="right")]
        )
        return found
