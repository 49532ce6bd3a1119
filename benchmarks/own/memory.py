"""Measure the peak memory of one task, which handles a partition of 128 MB.

The peak is that of the whole process, with its libraries. Subtract that of `nothing` to compare it with the
partition. A write holds the partition. The jobs that shuffle have four partitions, which are one object.
"""

import os
import tempfile
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord

from .tables import collection, compute_and_drop, memory_folder, scaled

ROWS = 1_600_000  # of 80 bytes
TEXT_BYTES = 56
KEYS = 200
WRITES: dict[str, dict[str, Any]] = {
    "write": {},
    "write gzip": {"compression": "gzip"},
    "partition_on": {"partition_on": "key"},
    "shuffle": {"shuffle": True, "seed": 42},
    "colocate": {"partition_on": "key", "colocate": True},
    "colocate, 9 of 10 rows have one key": {"partition_on": "one", "colocate": True},
}
SHUFFLES = ("shuffle", "colocate", "colocate, 9 of 10 rows have one key")


def frame(rows: int) -> pd.DataFrame:
    random = np.random.default_rng(0)
    letters = random.integers(97, 123, TEXT_BYTES * rows, np.uint8)
    offsets = np.arange(0, TEXT_BYTES * rows + 1, TEXT_BYTES, np.int32)
    text = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    numbers = np.arange(rows)
    return pd.DataFrame(
        {
            "id": numbers,
            "key": numbers % KEYS,
            "one": np.where(numbers % 10, 0, numbers // 10 % KEYS).astype(np.int32),
            "score": random.random(rows, np.float32),
            "text": pd.arrays.ArrowExtensionArray(text),
        }
    )


class Task:
    """Do a job with Dask's scheduler without threads, so that the process does one task at a time."""

    params = ("nothing", "read", "read gzip", *WRITES)
    param_names = ("job",)

    def setup_cache(self) -> str:
        """Write the datasets to read in another process, whose memory does not count."""
        root = os.getcwd()  # a directory that asv removes
        with dask.config.set(scheduler="sync"):
            for job, codec in (("read", None), ("read gzip", "gzip")):
                rows = collection([frame(scaled(ROWS))])
                dask_tfrecord.to_tfrecord(rows, f"{root}/{job}", compression=codec, overwrite=True)
        return root

    def peakmem_task(self, root: str, job: str) -> None:
        with dask.config.set(scheduler="sync"), tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            if job.startswith("read"):
                compute_and_drop(dask_tfrecord.read_tfrecord(f"{root}/{job}", blocksize=None))
            elif job != "nothing":
                made = [frame(scaled(ROWS))] * (4 if job in SHUFFLES else 1)
                dask_tfrecord.to_tfrecord(collection(made), f"{folder}/data", **WRITES[job])
