"""How much the tests try that have more cases than time.

The strides are those of the sweeps that let an operation fail, kill a process or stop a thread.

A sweep tries a sample of the operations of a change: every n-th, where n is the stride.
``DASK_TFRECORD_FAULTS=1`` lets the sweeps on the local disk and on S3 try every operation, and the
sweeps on other stores every 45th.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

IS_FULL = "DASK_TFRECORD_FAULTS" in os.environ


def every(stride: int) -> int:
    """Return the stride of a sweep: the given one, or the value of DASK_TFRECORD_FAULTS."""
    return int(os.environ.get("DASK_TFRECORD_FAULTS", stride))


# The stride on the stores that run the same code as the local disk or S3.
OTHERS = 45 if IS_FULL else 91

# The number of random examples of each property, which the continuous integration raises to 100 at night.
EXAMPLES = int(os.environ.get("DASK_TFRECORD_EXAMPLES", "10"))
IS_QUICK = EXAMPLES < 100


def sampled(cases: Sequence[T], start: int) -> Sequence[T]:
    """Return every case, or every third from a start on if few random examples are wanted."""
    return cases[start % 3 :: 3] if IS_QUICK else cases
