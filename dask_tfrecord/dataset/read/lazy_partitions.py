"""Define the partitions of a version, whose files are listed only when a file or a row is needed.

The number of rows and the size of a version are known without its file list.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tfrecord.dataset.query.predicates import Predicate
from dask_tfrecord.dataset.snapshot.entry_log import Totals
from dask_tfrecord.files.splits import Partitions
from dask_tfrecord.files.storage.file_list import FileList
from dask_tfrecord.lazy import cached_property


class LazyPartitions(Partitions):
    """Partitions of all files of a version, which ``make`` computes at first use.

    ``token`` determines the partitions: equal tokens mean equal partitions. If a predicate is passed to
    ``make``, the result may lack files in which no row passes the predicate.
    """

    def __init__(self, token: str, totals: Totals, make: Callable[[Predicate | None], Partitions]) -> None:
        self._token, self.totals, self._make_listed = token, totals, make

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.token, self.totals, self._listed)

    @cached_property
    def _listed(self) -> Partitions:
        return self._make_listed(None)

    def matching(self, predicate: Predicate) -> Partitions:
        """Return the partitions without some files in which no row passes the predicate."""
        return self._listed if "_listed" in vars(self) else self._make_listed(predicate)

    @property
    def files(self) -> FileList:
        return self._listed.files

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return self._listed.starts

    @property
    def blocks(self) -> FileList | None:
        return self._listed.blocks

    @property
    def token(self) -> str:
        return self._token

    def select(self, columns: Callable[[str], bool]) -> Partitions:
        return _restored(self.token, self.totals, super().select(columns))


def _restored(token: str, totals: Totals, made: Partitions) -> LazyPartitions:
    return LazyPartitions(token, totals, lambda _: made)
