"""Locate the intact records of a window: compute their numbers and offsets in the file."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import scan
from dask_tfrecord.codec.checked import Checked, Ints

_NONE = np.zeros(0, np.int64)
_ZERO = np.zeros(1, np.int64)


def record_offsets(data: memoryview) -> Ints:
    """Return the positions at which records begin in data that consists of intact records only."""
    found: Ints = pa.array(scan(data, final=True, offsets=True, verify_crc=False).offsets).to_numpy()
    return found


class Numbers(NamedTuple):
    """Compute the numbers of intact records in the file. In this numbering, a damaged range counts as one
    record.

    Parameters
    ----------
    first : int
        The number of the window's first record, or of the damaged range before that record.
    damaged : numpy.ndarray
        For each damaged range, the number of intact records before the range.
    """

    first: int
    damaged: Ints = _NONE

    def of(self, row: int) -> int:
        """Return the number in the file of the intact record with index ``row``."""
        return int(self.of_all(np.array([row]))[0])

    def of_all(self, rows: Ints) -> Ints:
        """Return the numbers in the file of the intact records with the indices ``rows``."""
        found: Ints = self.first + rows + np.searchsorted(self.damaged, rows, side="right")
        return found


class Intact(NamedTuple):
    """The intact records of a window, joined to one sequence of bytes without the damaged ranges.

    Parameters
    ----------
    data : memoryview
        The joined bytes of the intact records. If the window has no damage, ``data`` is a view of the window.
    numbers : Numbers
        The numbers of the intact records in the file.
    start : int
        Decompressed offset in the file of the window's first byte.
    gaps : numpy.ndarray
        For each damaged range, the number of bytes of ``data`` that lie before the range.
    removed : numpy.ndarray
        Element n is the total number of bytes in the first n damaged ranges. Element 0 of the array is 0.
    """

    data: memoryview
    numbers: Numbers
    start: int
    gaps: Ints = _NONE
    removed: Ints = _ZERO

    @classmethod
    def of(cls, checked: Checked, data: memoryview, start: int, record: int) -> "Intact":
        """Return the intact records of a window that begins at byte ``start`` and record ``record`` of the
        file.
        """
        removed = np.concatenate([[0], np.cumsum(checked.ends - checked.starts)])
        new = checked.records_before[int(checked.continues) :]
        numbers = Numbers(record, new)
        return cls(checked.intact(data), numbers, start, checked.starts - removed[:-1], removed)

    def offsets(self, positions: Ints) -> Ints:
        """Convert the positions in ``data`` at which records begin to decompressed offsets in the file."""
        found: Ints = (
            positions + self.start + self.removed[np.searchsorted(self.gaps, positions, side="right")]
        )
        return found
