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

from dask_tfrecord import frame, printed, shuffling
from dask_tfrecord.dataset.commit import WriteRun
from dask_tfrecord.dataset.snapshot import FileEntry, Snapshot
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.expr.telling import tell
from dask_tfrecord.expr.text import Texts
from dask_tfrecord.shuffling import Shuffle


def write(
    ddf: DataFrame,
    run: WriteRun,
    *,
    write_index: bool | None,
    texts: Texts = (),
    shuffle: Shuffle | None = None,
) -> Scalar:
    """The collection whose one value is the snapshot of what was written."""
    if shuffle is None:
        return new_collection(WriteTFRecord(ddf.expr, run, write_index, texts, False))
    rows = new_collection(PackRows(ddf.expr, _of_tasks(run), write_index, texts, shuffle))
    moved = rows.shuffle(on=shuffling.TARGET, npartitions=shuffle.npartitions, ignore_index=True, force=True)
    return new_collection(WriteTFRecord(moved.expr, run, False, (), True))


def _of_tasks(run: WriteRun) -> WriteRun:
    """The run as each task gets it: the names of the files that the commit removes may be many."""
    return replace(run, replaceable=frozenset())


def write_partition(
    partition: pd.DataFrame,
    run: WriteRun,
    write_index: bool | None,
    texts: Texts,
    packed: bool,
    index: int,
    count: int,
) -> tuple[FileEntry, ...]:
    """The task that writes a partition."""
    try:
        if packed:
            return run.write(
                shuffling.unpack(partition, run.columns, partition_on=run.partition_on), index, count
            )
        return run.write(_to_table(partition, run, write_index, texts), index, count)
    except TFRecordError as error:
        raise error.located(path=_named(run, index, count)) from None
    finally:
        if packed:
            # Arrow keeps what it frees; a worker that is full of that is paused until it has room: for ever.
            pa.default_memory_pool().release_unused()


def pack_partition(
    partition: pd.DataFrame,
    run: WriteRun,
    write_index: bool | None,
    texts: Texts,
    shuffle: Shuffle,
    index: int,
    count: int,
) -> pd.DataFrame:
    """The task that makes the rows of a partition ready to be shuffled."""
    try:
        table = _to_table(partition, run, write_index, texts)
        return shuffling.pack(
            table, run.columns, index, partition_on=run.partition_on, lossy=run.lossy, shuffle=shuffle
        )
    except TFRecordError as error:
        raise error.located(path=_named(run, index, count)) from None


def _to_table(partition: pd.DataFrame, run: WriteRun, write_index: bool | None, texts: Texts) -> pa.Table:
    """The rows of a partition, whose text is looked at where nothing is known of its origin."""
    table = frame.to_table(partition, run.columns, write_index=write_index, lossy=run.lossy)
    for name, computed in texts:
        first = printed.first(table[name])
        printed.check_text(first, name)
        if computed and printed.may_be_collections(first):
            problem = f"the text of {name!r} looks like printed lists or dicts"
            tell(f"{problem}; {printed.advice(name)}.", UserWarning)
    return table


def _named(run: WriteRun, index: int, count: int) -> str:
    """What messages call a partition that has no file yet."""
    return f"{run.store.public(run.store.root)}, partition {index:,} of {count:,}"


def commit(run: WriteRun, receipts: list[tuple[FileEntry, ...]]) -> Snapshot:
    """The task that shows what was written."""
    return run.commit([file for files in receipts for file in files])


class _AllColumns(Expr):
    """What all expressions of a write have in common: the need of all columns."""

    @property
    def _projection_columns(self) -> list[str]:
        columns: list[str] = self.frame.columns
        return columns


class _PerPartition(_AllColumns, Blockwise):
    """A task for each partition, which knows its number and counts from the lowered frame."""

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


class PackRows(_PerPartition):
    """The rows as frames of a few simple columns."""

    _parameters: ClassVar = ["frame", "run", "write_index", "texts", "shuffle"]
    _prefix: ClassVar = "packrows"
    _function = staticmethod(pack_partition)

    @cached_property
    def _meta(self) -> pd.DataFrame:
        return shuffling.empty_rows()


class _Write(_AllColumns):
    """What the expressions of a write have in common: no value of pandas."""

    _parameters: ClassVar = ["frame", "run", "write_index", "texts", "packed"]

    @property
    def _meta(self) -> None:
        return None


class WriteTFRecord(_Write):
    """Writes a collection; its one partition is the snapshot."""

    def _divisions(self) -> tuple[None, None]:
        return (None, None)

    def _lower(self) -> Expr:
        written = WritePartitions(self.frame, _of_tasks(self.run), self.write_index, self.packed)
        return CommitTFRecord(written, self.run)


class WritePartitions(_Write, _PerPartition):
    """Writes each partition and gives the receipts of its files."""

    _prefix: ClassVar = "totfrecord"
    _function = staticmethod(write_partition)


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
        return {key: Task(key, commit, self.run, receipts)}
