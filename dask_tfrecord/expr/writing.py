"""The expressions of a write, and their tasks."""

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import pandas as pd
import pyarrow as pa
from dask._task_spec import List, Task, TaskRef
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr._collection import DataFrame, Scalar
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.typing import Key

from dask_tfrecord.cluster import check_cluster, warn_client
from dask_tfrecord.dataset.shuffling import Shuffle, Spill, source_of, spill, write_target
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.commit import commit
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.expr.string_conversion import UnverifiedText
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.frames import pandas_to_arrow, stringified


def write(
    ddf: DataFrame,
    run: WriteRun,
    *,
    write_index: bool | None,
    unverified_text: UnverifiedText = (),
    shuffle: Shuffle | None = None,
) -> Scalar:
    """Return a lazy scalar: the snapshot of the written dataset. Computing it writes."""
    return new_collection(WriteTFRecord(ddf.expr, run, write_index, unverified_text, shuffle))


@redact_errors
def write_partition(
    partition: pd.DataFrame,
    run: WriteRun,
    write_index: bool | None,
    unverified_text: UnverifiedText,
    index: int,
    count: int,
) -> tuple[FileEntry, ...]:
    """Write the files of a partition."""
    try:
        return run.write(_to_table(partition, run, write_index, unverified_text), index, count)
    except TFRecordError as error:
        raise error.located(path=_partition_path(run, index, count)) from None


@redact_errors
def spill_partition(
    partition: pd.DataFrame,
    run: WriteRun,
    write_index: bool | None,
    unverified_text: UnverifiedText,
    shuffle: Shuffle,
    index: int,
    count: int,
) -> Spill:
    """Write the rows of a partition to a spill file, from which the shuffled partitions read."""
    try:
        return spill(run, _to_table(partition, run, write_index, unverified_text), index, shuffle)
    except TFRecordError as error:
        raise error.located(path=_partition_path(run, index, count)) from None
    finally:
        _release_memory()


@redact_errors
def write_shuffled(spills: list[Spill], run: WriteRun, shuffle: Shuffle, index: int) -> tuple[FileEntry, ...]:
    """Write the files of a shuffled partition."""
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
    """Return memory that Arrow has freed to the system, so that Dask does not pause the worker."""
    pa.default_memory_pool().release_unused()


def _to_table(
    partition: pd.DataFrame, run: WriteRun, write_index: bool | None, unverified_text: UnverifiedText
) -> pa.Table:
    """Convert a partition to Arrow, and check text of unknown origin for printed objects."""
    table = pandas_to_arrow.to_table(partition, run.columns, write_index=write_index, lossy=run.options.lossy)
    for name, was_computed in unverified_text:
        strings = stringified.sample_strings(table[name])
        stringified.check_text(strings, name)
        if was_computed and stringified.may_be_collections(strings):
            problem = f"the text of {name!r} looks like printed lists or dicts"
            warn_client(f"{problem}; {stringified.advice(name)}.")
    return table


def _partition_path(run: WriteRun, index: int, count: int) -> str:
    """The path in errors for a partition that has no file yet."""
    return f"{run.store.public(run.store.root)}, partition {index:,} of {count:,}"


@redact_errors
def commit_files(run: WriteRun, entries: list[tuple[FileEntry, ...]]) -> Snapshot:
    """Commit the files of all partitions."""
    return commit(run, [file for files in entries for file in files])


class _AllColumns(Expr):
    """An expression that needs all columns of its frame."""

    @property
    def _projection_columns(self) -> list[str]:
        columns: list[str] = self.frame.columns
        return columns


class _PerPartition(_AllColumns, Blockwise):
    """One task per partition of the frame, whose number of partitions may change when it is lowered."""

    _prefix: ClassVar[str]

    @cached_property
    def _name(self) -> str:
        return f"{self._prefix}-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        count: int = self.frame.npartitions
        return (None,) * (count + 1)

    def _broadcast_dep(self, dep: Expr) -> bool:
        return False

    def _task(self, name: Key, index: int) -> Task:
        partition = TaskRef((self.frame._name, index))
        return Task(name, self._function, partition, *self.operands[1:], index, self.frame.npartitions)


class _NoFrame(Expr):
    """An expression whose result is not a pandas object."""

    @property
    def _meta(self) -> None:
        return None


class WriteTFRecord(_NoFrame, _AllColumns):
    """The whole write, before it is lowered. Its only partition is the snapshot."""

    _parameters: ClassVar = ["frame", "run", "write_index", "unverified_text", "shuffle"]

    def _divisions(self) -> tuple[None, None]:
        return (None, None)

    def _lower(self) -> Expr:
        check_cluster()
        run = replace(self.run, replaceable=frozenset())  # only the commit needs these files, perhaps many
        if self.shuffle is None:
            files = WritePartitions(self.frame, run, self.write_index, self.unverified_text)
        else:
            spills = SpillPartitions(self.frame, run, self.write_index, self.unverified_text, self.shuffle)
            files = WriteShuffled(spills, run, self.shuffle)
        return CommitTFRecord(files, self.run)


class WritePartitions(_NoFrame, _PerPartition):
    """Writes each partition. The results are the entries of its files."""

    _parameters: ClassVar = ["frame", "run", "write_index", "unverified_text"]
    _prefix: ClassVar = "totfrecord"
    _function = staticmethod(write_partition)


class SpillPartitions(_NoFrame, _PerPartition):
    """Writes the rows of each partition to a spill file. The results describe the spill files."""

    _parameters: ClassVar = ["frame", "run", "write_index", "unverified_text", "shuffle"]
    _prefix: ClassVar = "spillrows"
    _function = staticmethod(spill_partition)


class WriteShuffled(_NoFrame):
    """Writes each shuffled partition from all spill files. The results are the entries of its files."""

    _parameters: ClassVar = ["frame", "run", "shuffle"]

    @cached_property
    def _name(self) -> str:
        return f"totfrecord-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        count: int = self.shuffle.npartitions
        return (None,) * (count + 1)

    def _layer(self) -> dict[Key, Task]:
        # A task collects the spills in a list. Without it, the graph had spills times writers edges.
        listed = f"spilled-{self.deterministic_token}"
        spills = List(*(TaskRef(key) for key in self.frame.__dask_keys__()))
        writers = [(self._name, index) for index in range(self.shuffle.npartitions)]
        tasks = [
            Task(key, write_shuffled, TaskRef(listed), self.run, self.shuffle, key[1]) for key in writers
        ]
        return {listed: Task(listed, list, spills), **dict(zip(writers, tasks, strict=True))}


class CommitTFRecord(_NoFrame):
    """The task that commits the files of all partitions."""

    _parameters: ClassVar = ["frame", "run"]

    def _divisions(self) -> tuple[None, None]:
        return (None, None)

    def _layer(self) -> dict[Key, Task]:
        entries = List(*(TaskRef(key) for key in self.frame.__dask_keys__()))
        key = (self._name, 0)
        return {key: Task(key, commit_files, self.run, entries)}
