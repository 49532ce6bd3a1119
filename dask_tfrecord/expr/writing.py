"""Define the expressions and the tasks of a write."""

from dataclasses import replace
from itertools import chain
from typing import ClassVar

import pandas as pd
import pyarrow as pa
from dask._task_spec import List, Task, TaskRef
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr._collection import DataFrame, Scalar
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.typing import Key

from dask_tfrecord.cluster import check_cluster
from dask_tfrecord.dataset.shuffle.merge import write_target
from dask_tfrecord.dataset.shuffle.spill import Shuffle, Spill, source_of, spill
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.commit import commit
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.frames import pandas_to_arrow, text_guard
from dask_tfrecord.lazy import cached_property


def write(
    ddf: DataFrame,
    run: WriteRun,
    *,
    write_index: bool | None,
    computed_text: tuple[str, ...] = (),
    shuffle: Shuffle | None = None,
) -> Scalar:
    """Return a lazy scalar of Dask.

    Computing the scalar writes the dataset and returns the snapshot of the dataset.
    """
    return new_collection(WriteTFRecord(ddf.expr, run, write_index, computed_text, shuffle))


@redact_errors
def write_partition(
    partition: pd.DataFrame,
    run: WriteRun,
    write_index: bool | None,
    computed_text: tuple[str, ...],
    shuffle: Shuffle | None,
    index: int,
    count: int,
) -> tuple[FileEntry, ...] | Spill:
    """Write the files of a partition, or a spill file from which the shuffled partitions read the rows."""
    try:
        if shuffle is None:
            return run.write(_to_table(partition, run, write_index, computed_text), index, count)
        return spill(run, _to_table(partition, run, write_index, computed_text), index, count, shuffle)
    except TFRecordError as error:
        raise error.located(path=_partition_path(run, index, count)) from None
    finally:
        if shuffle is not None:
            _release_memory()


@redact_errors
def write_shuffled(spills: list[Spill], run: WriteRun, shuffle: Shuffle, index: int) -> tuple[FileEntry, ...]:
    """Write the files of one shuffled partition from the spill files. This function runs in a Dask task."""
    try:
        return write_target(run, spills, index, shuffle)
    except TFRecordError as error:
        if error.record is not None:
            source, row = source_of(error.record)
            error = error.replaced(record=row, path=_partition_path(run, source, len(spills)))
        raise error.located(path=_partition_path(run, index, shuffle.npartitions)) from None
    finally:
        _release_memory()


def _release_memory() -> None:
    """Release memory that Arrow does not use to the system, so that Dask does not pause the worker."""
    pa.default_memory_pool().release_unused()


def _to_table(
    partition: pd.DataFrame, run: WriteRun, write_index: bool | None, computed_text: tuple[str, ...]
) -> pa.Table:
    """Convert a partition to an Arrow table, and raise if text that was computed earlier holds printed
    objects.
    """
    table = pandas_to_arrow.to_table(partition, run.columns, write_index=write_index, lossy=run.options.lossy)
    for name in computed_text:
        text_guard.check_text(table[name], name)
    return table


def _partition_path(run: WriteRun, index: int, count: int) -> str:
    """Return the text that replaces the path in an error about a partition that has no file."""
    return f"{run.store.public(run.store.root)}, partition {index:,} of {count:,}"


@redact_errors
def commit_files(run: WriteRun, entries: list[tuple[FileEntry, ...]]) -> Snapshot:
    """Commit the files of all partitions, and return the new snapshot. This function runs in a Dask task."""
    return commit(run, chain.from_iterable(entries))


class _Step(Expr):
    """Base class of the expressions that are the steps of a write.

    Each step needs all columns of its input, and returns no pandas objects.
    """

    @property
    def _meta(self) -> None:
        return None

    @property
    def _projection_columns(self) -> list[str]:
        columns: list[str] = self.frame.columns
        return columns

    def _divisions(self) -> tuple[None, ...]:
        return (None, None)


class WriteTFRecord(_Step):
    """The Dask expression for a whole write, before the expression is lowered.

    The result of its only partition is the snapshot.
    """

    _parameters: ClassVar = ["frame", "run", "write_index", "computed_text", "shuffle"]

    def _lower(self) -> Expr:
        check_cluster()
        run = replace(self.run, replaceable=frozenset())  # only the commit needs this set, which may be large
        files = WritePartitions(self.frame, run, self.write_index, self.computed_text, self.shuffle)
        if self.shuffle is not None:
            files = WriteShuffled(files, run, self.shuffle)
        return CommitTFRecord(files, self.run)


class WritePartitions(_Step, Blockwise):
    """The Dask expression that writes each partition of a collection. A task returns the file entries of its
    partition, or describes the spill file of its partition.

    The number of partitions may change when the input is lowered.
    """

    _parameters: ClassVar = ["frame", "run", "write_index", "computed_text", "shuffle"]

    @cached_property
    def _name(self) -> str:
        return f"{'totfrecord' if self.shuffle is None else 'spillrows'}-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        count: int = self.frame.npartitions
        return (None,) * (count + 1)

    def _broadcast_dep(self, dep: Expr) -> bool:
        return False

    def _task(self, name: Key, index: int) -> Task:
        partition = TaskRef((self.frame._name, index))
        return Task(name, write_partition, partition, *self.operands[1:], index, self.frame.npartitions)


class WriteShuffled(_Step):
    """The Dask expression that writes each shuffled partition from all spill files.

    Each task returns the entries of the files that it wrote.
    """

    _parameters: ClassVar = ["frame", "run", "shuffle"]

    @cached_property
    def _name(self) -> str:
        return f"totfrecord-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        count: int = self.shuffle.npartitions
        return (None,) * (count + 1)

    def _layer(self) -> dict[Key, Task]:
        # One task collects the descriptions of all spill files in a list. If each writer depended on each
        # spill file, the graph would have (spill files x writers) edges.
        listed = f"spilled-{self.deterministic_token}"
        spills = List(*(TaskRef(key) for key in self.frame.__dask_keys__()))
        writers = [(self._name, index) for index in range(self.shuffle.npartitions)]
        tasks = [
            Task(key, write_shuffled, TaskRef(listed), self.run, self.shuffle, key[1]) for key in writers
        ]
        return {listed: Task(listed, list, spills), **dict(zip(writers, tasks, strict=True))}


class CommitTFRecord(_Step):
    """The Dask expression that commits the files of all partitions in one task."""

    _parameters: ClassVar = ["frame", "run"]

    def _layer(self) -> dict[Key, Task]:
        entries = List(*(TaskRef(key) for key in self.frame.__dask_keys__()))
        key = (self._name, 0)
        return {key: Task(key, commit_files, self.run, entries)}
