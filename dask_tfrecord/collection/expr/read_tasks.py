"""Define the tasks of a read, and what a task carries to another process.

All tasks of a read share one reader, which contains the file list of the read plan. A task is an index into
the list of partitions. A pickled task contains the files of its own partition and of some neighbours, so that
the size of a task does not depend on the number of files, and a graph contains each file once.
"""

import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Self

import cloudpickle
import numpy as np
import numpy.typing as npt
import pandas as pd
from dask._task_spec import Task
from dask.dataframe import methods
from dask.typing import Key

from dask_tfrecord.collection.frames import arrow_to_pandas
from dask_tfrecord.collection.scheduler import warn_client
from dask_tfrecord.dataset.query.predicates import Predicate
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.read.task import Partition
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.errors import READ, CorruptRecordWarning, located
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.redaction import redact_errors

# Tasks are pickled with the splits of their neighbours, about this many splits together. With fewer splits, a
# graph with many tasks would be larger. With more splits, a single task would be larger.
_SPLITS = 32

# A process keeps this many parts of reads.
_KEPT_PARTS = 64


@redact_errors
def read_partition(
    partition: Partition,
    dtypes: dict[str, str],
    index: Levels,
    is_sorted: bool,
    columns_name: str | None,
) -> pd.DataFrame:
    with located(path=lambda: partition.file_names, function=READ):
        table, numbers = partition.read_possible(partial(warn_client, category=CorruptRecordWarning))
        row_ranges = partition.row_ranges if numbers is None else None
        frame = arrow_to_pandas.to_pandas(table, partition.schema, row_ranges, dtypes)
    if numbers is not None:
        frame.index = pd.Index(numbers)
    frame.columns.name = columns_name
    return arrow_to_pandas.with_index(frame, index, is_sorted=is_sorted) if index else frame


def read_key(
    partitions: list[Partition],
    dtypes: dict[str, str],
    index: Levels,
    is_sorted: bool,
    columns_name: str | None,
) -> pd.DataFrame:
    """Read all partitions that belong to one key into a single DataFrame."""
    frame = read_each(read_partition, partitions, dtypes, index, is_sorted, columns_name)
    return frame if index else frame.reset_index(drop=True)


def read_each(read: Callable[..., pd.DataFrame], parts: Sequence[Any], *arguments: Any) -> pd.DataFrame:
    """Call `read_partition` or `read_key` with each of ``parts``, and concatenate the rows."""
    frame: pd.DataFrame = methods.concat([read(part, *arguments) for part in parts])
    return frame


@dataclass(frozen=True, eq=False)
class Reader:
    """Read partitions in the tasks of a read. Call the object with the number of a task.

    ``token`` identifies the reader. Task ``n`` reads the partitions
    ``partitions[n * step : (n + 1) * step]``. ``arguments`` are those of `read_partition` after the first.
    """

    token: str
    plan: ReadPlan
    partitions: Sequence[int]
    step: int
    schema: Schema
    predicate: Predicate | None
    skips_rows: bool
    arguments: tuple[dict[str, str], Levels, bool, str | None]

    def __dask_tokenize__(self) -> str:
        return self.token

    def __call__(self, number: int) -> pd.DataFrame:
        function = read_partition if self.plan.keys is None else read_key
        parts = self._parts(number)
        if len(parts) == 1:  # so that the traceback of an error shows few frames of this package
            return function(parts[0], *self.arguments)
        return read_each(function, parts, *self.arguments)

    def partitions_of(self, number: int) -> list[Partition]:
        """Return the partitions that a task reads."""
        parts = self._parts(number)
        return parts if self.plan.keys is None else [one for part in parts for one in part]

    @cached_property
    def _partitioner(self) -> Callable[[int], Partition]:
        # The index counts all rows of a key, so a read with ``partition_by`` must not skip individual rows.
        skips_rows = self.skips_rows and self.plan.keys is None
        return self.plan.partitioner(self.schema, self.predicate, skips_rows=skips_rows)

    def _indices_of(self, first: int, stop: int) -> Sequence[int]:
        return self.partitions[first * self.step : stop * self.step]

    def _parts(self, number: int) -> list[Any]:
        return [*map(self._part, self._indices_of(number, number + 1))]

    def _part(self, index: int) -> Any:
        """Return one partition of the dataset, or all partitions of a key."""
        if self.plan.keys is None:
            return self._partitioner(index)
        numbers = self.plan.keys[index]
        partitions = [*map(self._partitioner, numbers)]
        if len(numbers) > 1 and self.predicate is not None and any(one.splits for one in partitions):
            # If some files of a key were skipped, the index values of the remaining rows would change.
            partitions = [*map(self.plan.partitioner(self.schema), numbers)]
        return partitions

    # -- Pickled tasks ---------------------------------------------------------------------------------------

    def pickled(self, number: int) -> "PickledReader":
        """Return a reader for a task and its neighbours. Pickling a graph pickles each such reader once."""
        group = int(self._groups[number])
        if group not in self._pickled:  # other threads may add the same group
            first, stop = np.searchsorted(self._groups, [group, group + 1]).tolist()
            part = self.plan.of_partitions(self._indices_of(first, stop), self.predicate)
            rows = zlib.compress(pickle.dumps(part), level=1)
            self._pickled[group] = PickledReader(self.token, self._common, rows, first)
        return self._pickled[group]

    @cached_property
    def _pickled(self) -> dict[int, "PickledReader"]:
        return {}

    @cached_property
    def _groups(self) -> npt.NDArray[np.int64]:
        """For each task, the number of its group. Only one task of a group can have many splits."""
        counts = self.plan.split_counts[np.asarray(self.partitions)]
        ends = np.cumsum(np.add.reduceat(np.maximum(counts, 1), np.arange(0, len(counts), self.step)))
        groups: npt.NDArray[np.int64] = np.append(0, ends[:-1]) // _SPLITS
        return groups

    @cached_property
    def _common(self) -> bytes:
        """The pickled reader without the files."""
        # The tasks of a cluster may need classes of the main module, which only cloudpickle can send.
        reader = replace(self, plan=self.plan.without_files(), partitions=())
        return zlib.compress(cloudpickle.dumps(reader))


@dataclass(frozen=True)
class PickledReader:
    """The reader of consecutive tasks; ``first`` is the number of the first."""

    token: str
    common: bytes
    rows: bytes
    first: int

    def __dask_tokenize__(self) -> str:
        return self.token

    def __call__(self, number: int) -> pd.DataFrame:
        return _unpickled(self.common, self.rows)(number - self.first)

    def pickled(self, _: int) -> Self:
        return self


@lru_cache(_KEPT_PARTS)
def _unpickled(common: bytes, rows: bytes) -> Reader:
    reader, (partitions, keys) = _unpickled_common(common), pickle.loads(zlib.decompress(rows))
    plan = replace(reader.plan, partitions=partitions, keys=keys)
    return replace(reader, plan=plan, partitions=range(len(plan.split_counts)))


@lru_cache(_KEPT_PARTS)
def _unpickled_common(common: bytes) -> Reader:
    reader: Reader = cloudpickle.loads(zlib.decompress(common))
    return reader


class ReadTask(Task):
    """A read task that stores its number instead of its partitions.

    A graph may contain very many tasks. While a graph is built, Python's garbage collector repeatedly visits
    all objects in it except numbers.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        [number] = self.args
        return _read_task, (self.key, self.func.pickled(number), number)


def _read_task(key: Key, reader: PickledReader, number: int) -> ReadTask:
    return ReadTask(key, reader, number, _data_producer=True)
