"""Define the expressions and the tasks of a write, and plan the write of a Dask collection."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
from dask._task_spec import DataNode, List, Task, TaskRef
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.typing import Key

from dask_tfrecord.codec import RecordType
from dask_tfrecord.collection.expr import lineage
from dask_tfrecord.collection.expr.optimizations import RowSink
from dask_tfrecord.collection.frames import pandas_to_arrow
from dask_tfrecord.collection.frames.pandas_to_arrow import index_levels
from dask_tfrecord.collection.frames.schema_plan import (
    NEW_DATASET,
    Existing,
    GivenTypes,
    chosen_forms,
    plan_schema,
    rounded_in_frame,
    text_columns,
)
from dask_tfrecord.collection.row_splits import assign_splits
from dask_tfrecord.collection.scheduler import check_cluster
from dask_tfrecord.dataset.shuffle.merge import regroup, write_target
from dask_tfrecord.dataset.shuffle.spill import Route, Shuffle, Spill, source_of, spill
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.snapshot.model import Commit
from dask_tfrecord.dataset.write.append_schema import fixed_columns
from dask_tfrecord.dataset.write.operations import Operation
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import commit, written
from dask_tfrecord.errors import TFRecordError, located
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.keywords.splits import Splits
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.redaction import redact_errors


@redact_errors
def write_partition(
    partition: pd.DataFrame,
    run: WriteRun,
    write_index: bool | None,
    shuffle: Shuffle | None,
    index: int,
    count: int,
    route: Route | None,
) -> Sequence[FileEntry] | Sequence[Spill]:
    """Write the files of a partition. For a shuffle, write a spill file for later tasks instead."""
    try:
        with located(path=_partition_path(run, index, count), function="to_tfrecord"):
            with fixed_columns(run.columns, run.appends):
                table = pandas_to_arrow.to_table(
                    partition,
                    run.columns,
                    write_index=write_index,
                    lossy=run.options.lossy,
                    is_dask=True,
                    fitted=run.fitted,
                )
            if shuffle is None or route is None:
                return run.write(table, index, count)
            return [spill(run, table, index, shuffle, route)]
    finally:
        if shuffle is not None:
            _release_memory()


def list_spills(spills: list[Sequence[Spill]]) -> list[Spill]:
    return list(chain.from_iterable(spills))


@redact_errors
def regroup_rows(
    spills: list[Spill], run: WriteRun, shuffle: Shuffle, route: Route, group: int
) -> Sequence[Spill]:
    """Read the spilled rows of a group of partitions, and spill them again by partition."""
    try:
        return regroup(run, spills, group, shuffle, route)
    finally:
        _release_memory()


@redact_errors
def write_shuffled(
    spills: list[Spill], run: WriteRun, shuffle: Shuffle, route: Route, index: int, sources: int
) -> Sequence[FileEntry]:
    """Write the files of one shuffled partition from the spill files."""
    try:
        with located(path=_partition_path(run, index, shuffle.npartitions), function="to_tfrecord"):
            return write_target(run, spills, index, shuffle, route)
    except TFRecordError as error:
        if error.record is None:
            raise
        source, row = source_of(error.record)
        raise error.replaced(record=row, path=_partition_path(run, source, sources)) from None
    finally:
        _release_memory()


def _release_memory() -> None:
    """Return Arrow's unused memory to the system, so that Dask does not pause the worker."""
    pa.default_memory_pool().release_unused()


def _partition_path(run: WriteRun, index: int, count: int) -> str:
    """Return the path to show in an error about a partition that has no file yet."""
    return f"{run.store.public()}, partition {index:,} of {count:,}"


@redact_errors
def commit_files(run: WriteRun, operation: Operation, entries: list[Sequence[FileEntry]]) -> Commit:
    with located(path=run.store.public(), function="to_tfrecord"):
        return written(run, commit(run, operation, chain.from_iterable(entries)))


class _Step(Expr):
    """Base class of the steps of a write, which need all input columns and return no pandas objects."""

    @property
    def _meta(self) -> None:
        return None

    @property
    def _projection_columns(self) -> list[str]:
        columns: list[str] = self.frame.columns
        return columns

    def _divisions(self) -> tuple[None, ...]:
        return (None, None)


class WriteTFRecord(_Step, RowSink):
    """A complete write, before Dask lowers it to steps. The expression has one partition, whose result is the
    `Commit`.
    """

    _parameters: ClassVar = ["frame", "run", "operation", "write_index", "shuffle"]

    def _lower(self) -> Expr:
        check_cluster()
        files = WritePartitions(self.frame, self.run, self.write_index, self.shuffle)
        if self.shuffle is not None:
            files = WriteShuffled(files, self.run, self.shuffle)
        return CommitTFRecord(files, self.run, self.operation)


class WritePartitions(_Step, Blockwise):
    """The step that writes each partition of a collection, or spills the rows of each partition.

    The number of partitions may change when Dask lowers the input.
    """

    _parameters: ClassVar = ["frame", "run", "write_index", "shuffle"]

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
        count = self.frame.npartitions
        route = Route.plan(count, self.shuffle.npartitions) if self.shuffle else None
        return Task(name, write_partition, partition, *self.operands[1:], index, count, route)


class WriteShuffled(_Step):
    """The step that regroups the spill files if necessary, and writes each shuffled partition."""

    _parameters: ClassVar = ["frame", "run", "shuffle"]

    @cached_property
    def _name(self) -> str:
        return f"totfrecord-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        count: int = self.shuffle.npartitions
        return (None,) * (count + 1)

    def _layer(self) -> dict[Key, Task]:
        spills = self.frame.__dask_keys__()
        sources, shuffle = len(spills), self.shuffle
        route = Route.plan(sources, shuffle.npartitions)
        layer: dict[Key, Task] = {}

        def listed(kind: str, number: int, keys: Sequence[Key]) -> TaskRef:
            # One task collects the descriptions of spill files in a list. If each reader depended on each
            # spill file, the graph would have (spill files x readers) edges.
            key = (f"{kind}-{self.deterministic_token}", number)
            layer[key] = Task(key, list_spills, List(*map(TaskRef, keys)))
            return TaskRef(key)

        if route.groups > 1:
            chunks = [
                listed("spilled", number, spills[at : at + route.chunk])
                for number, at in enumerate(range(0, sources, route.chunk))
            ]
            spills = [
                (f"regrouprows-{self.deterministic_token}", group, chunk)
                for group in range(route.groups)
                for chunk in range(route.chunks)
            ]
            for key in spills:
                layer[key] = Task(key, regroup_rows, chunks[key[2]], self.run, shuffle, route, key[1])
        inputs = len(spills) // route.groups
        for group in range(route.groups):
            first = group * route.width
            group_spills = listed("regrouped", group, spills[group * inputs : (group + 1) * inputs])
            for index in range(first, min(first + route.width, shuffle.npartitions)):
                key = (self._name, index)
                layer[key] = Task(key, write_shuffled, group_spills, self.run, shuffle, route, index, sources)
        return layer


class CommitTFRecord(_Step):
    """The step that commits the files of all partitions in one task."""

    _parameters: ClassVar = ["frame", "run", "operation"]

    def _layer(self) -> dict[Key, Task]:
        entries = List(*(TaskRef(key) for key in self.frame.__dask_keys__()))
        key = (self._name, 0)
        return {key: Task(key, commit_files, self.run, self.operation, entries)}


class Committed(_Step):
    """The result of a write that has nothing to do, because an earlier write has committed with its id."""

    _parameters: ClassVar = ["commit"]

    def _layer(self) -> dict[Key, DataNode]:
        key = (self._name, 0)
        return {key: DataNode(key, self.commit)}


def committed(commit: Commit) -> Any:
    """Return a lazy object that computes to ``commit``."""
    return new_collection(Committed(commit))


class CollectionRows:
    """Provide the rows of a Dask DataFrame for a write. `PandasRows` describes the methods."""

    def __init__(self, ddf: dd.DataFrame) -> None:
        self.columns = list(ddf.columns)
        self.columns_name = ddf.columns.name
        self.npartitions: int = ddf.npartitions
        self._ddf = ddf

    def levels(self, write_index: bool | None) -> Levels:
        return index_levels(self._ddf._meta, write_index)

    def plan(
        self,
        schema: GivenTypes,
        record_type: RecordType | None,
        keys: Sequence[str],
        levels: Levels,
        existing: Existing = NEW_DATASET,
    ) -> Schema:
        names = text_columns(self._ddf._meta, schema, levels)
        self._ddf = lineage.check_string_conversions(self._ddf, names)
        planned = plan_schema(
            self._ddf._meta,
            schema=schema,
            record_type=record_type or lineage.nested_record_type(self._ddf),
            write_index=bool(levels),
            sample=self._computed,
            partition_on=keys,
            known=lineage.lost_types(self._ddf),
            existing=existing,
            converted=lineage.converted_columns(self._ddf),
            forms=chosen_forms(lineage.read_forms(self._ddf), schema, existing, record_type),
        )
        planned = lineage.with_feature_lists(self._ddf, planned)
        return planned if record_type else lineage.with_bytes_records(self._ddf, planned, keys)

    def _computed(self, names: list[str]) -> Iterator[pd.DataFrame]:
        """Compute the partitions one by one, with only the named columns."""
        selected = self._ddf[names]
        for index in range(selected.npartitions):
            yield selected.partitions[index].compute()

    def rounded(self, records: Schema, levels: Levels) -> list[str]:
        names = rounded_in_frame(self._ddf._meta, records, write_index=bool(levels))
        # If a column was read with the type that the write stores, the write does not round its values.
        read_types = lineage.read_types(self._ddf, names)
        return [name for name in names if read_types.get(name) != records.arrow.field(name).type]

    def write(
        self,
        run: WriteRun,
        operation: Operation,
        *,
        write_index: bool | None,
        splits: Splits | None,
        shuffle: Shuffle | None,
        npartitions: int,
    ) -> Any:
        ddf = self._ddf if splits is None else assign_splits(self._ddf, splits)
        if shuffle is None and npartitions != ddf.npartitions:
            # With known divisions, Dask could not repartition to an arbitrary number of partitions.
            ddf = ddf.clear_divisions().repartition(npartitions=npartitions)
        return new_collection(WriteTFRecord(ddf.expr, run, operation, write_index, shuffle))
