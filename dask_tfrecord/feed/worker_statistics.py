"""Share the statistics of DataLoader workers with the process of the training loop."""

from dataclasses import fields

import torch
from torch.utils.data import get_worker_info

from dask_tfrecord.feed.batch_statistics import BatchStatistics
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.record_table import RecordTable

# The largest number of workers whose statistics are counted.
_MAX_WORKERS = 1 << 7

_TYPES = {one.name: type(getattr(BatchStatistics(), one.name)) for one in fields(BatchStatistics)}


class WorkerStatistics:
    """Shared memory with the newest statistics of each worker, in a row for each worker id.

    Only the worker itself changes its row, so the workers need no lock.
    """

    def __init__(self) -> None:
        self._count = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._rows = torch.zeros(_MAX_WORKERS, len(_TYPES), dtype=torch.float64).share_memory_()

    def put(self, counted: Batches | RecordTable) -> None:
        """Store the statistics of an object in this worker. In a process that is no worker, do nothing."""
        info = get_worker_info()
        if info is not None and info.id < _MAX_WORKERS:
            self._count[0], statistics = info.num_workers, counted.statistics
            values = [getattr(statistics, name) for name in _TYPES]
            self._rows[info.id] = torch.tensor(values, dtype=torch.float64)

    def total(self) -> BatchStatistics:
        """Return the sum over the workers of the newest DataLoader."""
        sums = self._rows[: int(self._count[0])].sum(dim=0).tolist()
        return BatchStatistics(*(kind(value) for kind, value in zip(_TYPES.values(), sums, strict=True)))
