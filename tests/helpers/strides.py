"""The strides of the sweeps that let an operation fail, kill a process or stop a thread.

A sweep tries a sample of the operations of a change: every n-th, where n is the stride.
``DASK_TFRECORD_FAULTS=1`` lets every sweep try every operation of every change.
"""

import os

IS_FULL = "DASK_TFRECORD_FAULTS" in os.environ


def every(stride: int) -> int:
    """Return the stride of a sweep: the given one, or the value of DASK_TFRECORD_FAULTS."""
    return int(os.environ.get("DASK_TFRECORD_FAULTS", stride))
