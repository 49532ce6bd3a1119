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
from dask_tfrecord.dataset.snapshot.model import FileEntry, Snapshot
from dask_tfrecord.dataset.write.commit import commit
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.expr.string_conversion import Texts
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.frames import pandas_to_arrow, stringified


def write(
    ddf: DataFrame,
    run: WriteRun,
    *,
    write_index: bool | None,
    texts: Texts = (),
    shuffle: Shuffle | None = None,
) -> Scalar:
    """The collection whose one value is the snapshot of what was written."""
    return new_collection(WriteTFRecord(ddf.expr, run, write_index, texts, shuffle))


def _of_tasks(run: WriteRun) -> WriteRun:
    """The run as each task gets it: the names of the files that the commit removes may be many."""
    return replace(run, replaceable=frozenset())


@redact_errors
def write_partition(
    partition: pd.DataFrame, run: WriteRun, write_index: bool | None, texts: Texts, index: int, count: int
) -> tuple[FileEntry, ...]:
    """The task that writes a partition."""
    try:
        return run.write(_to_table(partition, run, write_index, texts), index, count)
    except TFRecordError as error:
        raise error.located(path=_named(run, index, count)) from None


@redact_errors
def spill_partition(
    partition: pd.DataFrame,
    run: WriteRun,
    write_index: bool | None,
    texts: Texts,
    shuffle: Shuffle,
    index: int,
    count: int,
) -> Spill:
    """The task that writes the rows of a partition to a file from which the shuffled partitions read."""
    try:
        return spill(run, _to_table(partition, run, write_index, texts), index, shuffle)
    except TFRecordError as error:
        raise error.located(path=_named(run, index, count)) from None
    finally:
        _release_memory()


@redact_errors
def write_shuffled(spills: list[Spill], run: WriteRun, shuffle: Shuffle, index: int) -> tuple[FileEntry, ...]:
    """The task that writes a shuffled partition."""
    try:
        return write_target(run, spills, index, shuffle)
    except TFRecordError as error:
        if error.record is not None:
            source, row = source_of(error.record)
            error = error.replaced(record=row, path=_named(run, source, len(spills)))
        raise error.located(path=_named(run, index, shuffle.npartitions)) from None
    finally:
        _release_memory()


def _release_memory() -> None:
    """Return to the system what Arrow keeps of freed memory: Dask pauses a worker that holds too much."""
    pa.default_memory_pool().release_unused()


def _to_table(partition: pd.DataFrame, run: WriteRun, write_index: bool | None, texts: Texts) -> pa.Table:
    """The rows of a partition, whose text is looked at where nothing is known of its origin."""
    table = pandas_to_arrow.to_table(partition, run.columns, write_index=write_index, lossy=run.options.lossy)
    for name, computed in texts:
        first = stringified.first(table[name])
        stringified.check_text(first, name)
        if computed and stringified.may_be_collections(first):
            problem = f"the text of {name!r} looks like printed lists or dicts"
            warn_client(f"{problem}; {stringified.advice(name)}.")
    return table


def _named(run: WriteRun, index: int, count: int) -> str:
    """What messages call a partition that has no file yet."""
    return f"{run.store.public(run.store.root)}, partition {index:,} of {count:,}"


@redact_errors
def commit_files(run: WriteRun, receipts: list[tuple[FileEntry, ...]]) -> Snapshot:
    """The task that shows what was written."""
    return commit(run, [file for files in receipts for file in files])


class _AllColumns(Expr):
    """What all expressions of a write have in common: the need of all columns."""

    @property
    def _projection_columns(self) -> list[str]:
        columns: list[str] = self.frame.columns
        return columns


class _PerPartition(_AllColumns, Blockwise):
    """A task for each partition, which knows its number and counts from the lowered pandas_to_arrow."""

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


class _Write(_AllColumns):
    """What the expressions of a write have in common: no value of pandas."""

    @property
    def _meta(self) -> None:
        return None


class WriteTFRecord(_Write):
    """Writes a collection; its one partition is the snapshot."""

    _parameters: ClassVar = ["frame", "run", "write_index", "texts", "shuffle"]

    def _divisions(self) -> tuple[None, None]:
        return (None, None)

    def _lower(self) -> Expr:
        check_cluster()
        run = _of_tasks(self.run)
        if self.shuffle is None:
            files = WritePartitions(self.frame, run, self.write_index, self.texts)
        else:
            spills = SpillPartitions(self.frame, run, self.write_index, self.texts, self.shuffle)
            files = WriteShuffled(spills, run, self.shuffle)
        return CommitTFRecord(files, self.run)


class WritePartitions(_Write, _PerPartition):
    """Writes each partition and gives the receipts of its files."""

    _parameters: ClassVar = ["frame", "run", "write_index", "texts"]
    _prefix: ClassVar = "totfrecord"
    _function = staticmethod(write_partition)


class SpillPartitions(_Write, _PerPartition):
    """Writes the rows of each partition to a spill file and gives the places of the rows in it."""

    _parameters: ClassVar = ["frame", "run", "write_index", "texts", "shuffle"]
    _prefix: ClassVar = "spillrows"
    _function = staticmethod(spill_partition)


class WriteShuffled(Expr):
    """Writes each shuffled partition, from all spill files, and gives the receipts of its files."""

    _parameters: ClassVar = ["frame", "run", "shuffle"]

    @property
    def _meta(self) -> None:
        return None

    @cached_property
    def _name(self) -> str:
        return f"totfrecord-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        count: int = self.shuffle.npartitions
        return (None,) * (count + 1)

    def _layer(self) -> dict[Key, Task]:
        # One list between the spills and the writers: direct edges would be as many as spills times writers.
        listed = f"spilled-{self.deterministic_token}"
        spills = List(*(TaskRef(key) for key in self.frame.__dask_keys__()))
        writers = [(self._name, index) for index in range(self.shuffle.npartitions)]
        tasks = [
            Task(key, write_shuffled, TaskRef(listed), self.run, self.shuffle, key[1]) for key in writers
        ]
        return {listed: Task(listed, list, spills), **dict(zip(writers, tasks, strict=True))}


class CommitTFRecord(Expr):
    """One task over all receipts."""

    _parameters: ClassVar = ["frame", "run"]

    @property
    def _meta(self) -> None:
        return None

    @cached_property
    def _name(self) -> str:
        return f"committfrecord-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, None]:
        return (None, None)

    def _layer(self) -> dict[Key, Task]:
        receipts = List(*(TaskRef(key) for key in self.frame.__dask_keys__()))
        key = (self._name, 0)
        return {key: Task(key, commit_files, self.run, receipts)}
