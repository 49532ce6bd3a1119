"""Define the expression and the tasks of a read.

The module `optimizations` decides how the optimizer may change the read expression.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

import pandas as pd
from dask._task_spec import Task
from dask.dataframe import methods
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr._collection import DataFrame
from dask.dataframe.dask_expr._expr import (
    Expr,
    Index,
    Lengths,
    Literal,
    PartitionsFiltered,
    determine_column_projection,
)
from dask.dataframe.dask_expr._reductions import Len
from dask.dataframe.dask_expr._util import _convert_to_list
from dask.dataframe.dask_expr.io import BlockwiseIO
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.typing import Key

from dask_tfrecord.collection.expr.optimizations import decision, partitions_per_task
from dask_tfrecord.collection.frames import arrow_to_pandas
from dask_tfrecord.collection.scheduler import check_cluster, warn_client
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.dataset.read.read_task import Partition
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.errors import READ, CorruptRecordWarning, located
from dask_tfrecord.files.storage.store_failures import redact_errors
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.fields import Schema


def read(
    dataset: ReadPlan,
    columns: list[str] | None,
    *,
    dtypes: dict[str, str] | None = None,
    index: Levels = (),
    divisions: tuple[Any, ...] | None = None,
) -> DataFrame:
    """Create the Dask collection that reads a dataset.

    ``dtypes`` maps columns to dtype names, as in `to_pandas`. Columns that are not in ``dtypes`` are
    Arrow-backed. ``index`` contains a pair (column name, level name) for each index level.
    """
    return new_collection(
        ReadTFRecord(dataset, columns, dtypes=dtypes, index=index, known_divisions=divisions)
    )


@redact_errors
def read_partition(
    partition: Partition,
    dtypes: dict[str, str],
    index: Levels = (),
    is_sorted: bool = False,
    columns_name: str | None = None,
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


class Reader:
    """Read partitions in the tasks of a read. Call the object with the indices of the partitions to read."""

    def __init__(self, read: "ReadTFRecord") -> None:
        self._token = read._name
        self._plan, self._schema, self._predicate = read.dataset, read._schema, read.predicate
        # The index counts all rows of a key, so a read with ``partition_by`` must not skip individual rows.
        skips_rows = read.operand("skips_rows") and self._plan.keys is None
        self._partition = self._plan.partitioner(self._schema, self._predicate, skips_rows=skips_rows)
        levels = read.operand("index")
        self._arguments = (read._dtypes, levels, read._has_divisions, read.dataset.columns_name)

    def __dask_tokenize__(self) -> str:
        return self._token

    def __call__(self, *indices: int) -> pd.DataFrame:
        function, *arguments = self.call(*indices)
        frame: pd.DataFrame = function(*arguments)
        return frame

    def call(self, *indices: int) -> tuple[Any, ...]:
        """Return a function that reads the rows, and the arguments of the function. The function needs no
        read plan.
        """
        function = read_partition if self._plan.keys is None else read_key
        parts = [*map(self._part, indices)]
        if len(parts) == 1:
            return function, parts[0], *self._arguments
        return read_each, function, parts, *self._arguments

    def partitions(self, index: int) -> list[Partition]:
        part = self._part(index)
        return part if isinstance(part, list) else [part]

    def _part(self, index: int) -> Partition | list[Partition]:
        """Return what a task reads: one partition of the dataset, or all partitions of a key."""
        if self._plan.keys is None:
            return self._partition(index)
        numbers = self._plan.keys[index]
        partitions = [*map(self._partition, numbers)]
        if len(numbers) > 1 and self._predicate is not None and any(one.splits for one in partitions):
            # If some files of a key were skipped, the index values of the remaining rows would change.
            partitions = [*map(self._plan.partitioner(self._schema), numbers)]
        return partitions


class ReadTask(Task):
    """A read task that stores the indices of partitions instead of the partitions.

    A graph may contain very many tasks. While a graph is built, Python's garbage collector repeatedly visits
    all objects in the graph except numbers. A pickled task contains its partitions instead of the read plan,
    so the size of the task does not depend on the number of files.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Task, _data_producer=True), (self.key, *self.func.call(*self.args))


# A tuple: a read plan, the indices of the partitions that each task reads, and the partitions themselves.
PlannedRead: TypeAlias = tuple[ReadPlan, list[list[int]], list[list[Partition]]]


class ReadTFRecord(PartitionsFiltered, BlockwiseIO):
    """The Dask expression that reads the partitions of a dataset.

    The read skips files and blocks in which no row can meet ``predicate``, but does not filter the rows that
    it reads. ``ignores_partitions`` is True if every consumer ignores the boundaries of partitions, so that
    one task may read several partitions. ``skips_rows`` is True if the read may leave out individual rows for
    which the predicate is false.
    """

    _defaults: ClassVar = {
        "columns": None,
        "_partitions": None,
        "predicate": None,
        "ignores_partitions": False,
        "skips_rows": False,
        "dtypes": None,
        "index": (),
        "known_divisions": None,
    }
    _parameters: ClassVar = ["dataset", *_defaults]
    _absorb_projections = True
    _pickle_functools_cache = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the expression without the statistics of the files if no predicate needs them."""
        make, operands = super().__reduce__()
        if self.predicate is None and self.dataset.filters is None:
            without_statistics = self.dataset.without_statistics()
            operands = tuple(without_statistics if one is self.dataset else one for one in operands)
        return make, operands

    def __str__(self) -> str:
        """Return a summary of the whole dataset, which Dask prints as the last line of a collection."""
        root = self.dataset.store.public()
        return f"ReadTFRecord({root}: {self.dataset.summary})"

    @property
    def columns(self) -> list[str]:
        levels = self.index_columns
        return [name for name in self._schema.names if name not in levels]

    @property
    def index_columns(self) -> list[str]:
        return [column for column, _ in self.operand("index")]

    @cached_property
    def dataset(self) -> ReadPlan:
        """The read plan. The property is cached, because reading a Dask operand by name is much slower."""
        dataset: ReadPlan = self.operand("dataset")
        return dataset

    @cached_property
    def _schema(self) -> Schema:
        """The columns that are read, including the columns that become the index."""
        schema: Schema = self.dataset.schema
        columns = self.operand("columns")
        return schema if columns is None else schema.select([*columns, *self.index_columns])

    @cached_property
    def _meta(self) -> pd.DataFrame:
        meta = arrow_to_pandas.empty_meta(self._schema, self._dtypes)
        meta.columns.name = self.dataset.columns_name
        index = self.operand("index")
        return arrow_to_pandas.with_index(meta, index) if index else meta

    @cached_property
    def _name(self) -> str:
        return f"read_tfrecord-{self.deterministic_token}"

    @property
    def _has_divisions(self) -> bool:
        return self.operand("known_divisions") is not None

    def _divisions(self) -> tuple[Any, ...]:
        known: tuple[Any, ...] | None = self.operand("known_divisions")
        keys = self.dataset.keys
        count = self.dataset.npartitions if keys is None else len(keys)
        return (None,) * (count + 1) if known is None else known

    @cached_property
    def _partitions(self) -> Sequence[int]:
        """The indices of the selected partitions. The result is cached, because every task needs it and
        Dask's own property is slow.
        """
        selected: Sequence[int] | None = self.operand("_partitions")
        return range(len(self._divisions()) - 1) if selected is None else selected

    @cached_property
    def npartitions(self) -> int:
        """The number of selected partitions. The number is cached, because every task needs it and Dask's own
        property is slow.
        """
        return len(self._partitions)

    def _task(self, name: Key, index: int) -> Task:
        return ReadTask(name, self.reader, self._partitions[index], _data_producer=True)

    @cached_property
    def reader(self) -> Reader:
        return Reader(self)

    def planned(self) -> PlannedRead:
        numbers = [self._numbers(index) for index in self._partitions]
        return self.dataset, numbers, [*map(self.reader.partitions, self._partitions)]

    @property
    def _dtypes(self) -> dict[str, str]:
        known: dict[str, str] = self.operand("dtypes") or {}
        return {name: known[name] for name in self._schema.names if name in known}

    def _numbers(self, *indices: int) -> list[int]:
        """Return the indices of the dataset's partitions that the given tasks read."""
        keys = self.dataset.keys
        return [*indices] if keys is None else [number for index in indices for number in keys[index]]

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        count = self.dataset.count
        if isinstance(parent, Len) and count is not None and self.operand("_partitions") is None:
            return Literal(count)  # before anything lists the files
        decided = decision(self, dependents)
        if decided != (self.predicate, self.ignores_partitions, self.skips_rows):
            return parent.substitute(self, self.substitute_parameters(decided._asdict()))
        if isinstance(parent, Lengths | Len):
            return self._count(parent)
        if isinstance(parent, Index):
            return self._project_for_index(parent, dependents)
        return super()._simplify_up(parent, dependents)

    def _project_for_index(self, parent: Expr, dependents: Any) -> Expr | None:
        """Decode only the columns that consumers of the read other than ``parent`` need."""
        if not dependents.get(self._name):
            return None  # the optimizer created the read in this pass, so some consumers are not known
        needed = _convert_to_list(determine_column_projection(self, parent, dependents))
        columns = [name for name in self.columns if name in needed]
        return Index(self.substitute_parameters({"columns": columns})) if columns != self.columns else None

    def _count(self, parent: Expr) -> Expr | None:
        """Return the row count in the snapshot, or an expression that counts records without decoding."""
        known = self.dataset.counts.to_pylist()
        counts = [[known[one] for one in self._numbers(index)] for index in self._partitions]
        if not any(None in of_task for of_task in counts):
            sums = tuple(sum(filter(None, of_task)) for of_task in counts)
            return Literal(sums if isinstance(parent, Lengths) else sum(sums))
        if not self._schema.fields:
            return None
        return type(parent)(self.substitute_parameters({"columns": [], "index": (), "known_divisions": None}))

    @cached_property
    def fused(self) -> list[Sequence[int]]:
        """The partitions that each task reads after fusing.

        Partitions without rows that can pass ``predicate`` are left out, but one partition always remains.
        """
        needed = self._partitions
        if self.predicate is not None:
            has_task = self.dataset.has_task(self.predicate)
            if not has_task.all():
                needed = [one for one in needed if has_task[self._numbers(one)].any()] or needed[:1]
        step = partitions_per_task(self._schema, self.dataset.schema, len(needed))
        return [needed[start : start + step] for start in range(0, len(needed), step)]

    @cached_property
    def _fusion_compression_factor(self) -> float:
        """The number of tasks after fusing, divided by the number of partitions: at most 1."""
        if not self.ignores_partitions or self._has_divisions:
            return 1
        return len(self.fused) / len(self._partitions)

    def _lower(self) -> Any:
        check_cluster()  # workers may have joined the cluster since the read was planned
        return super()._lower()

    def _tune_up(self, parent: Expr) -> Expr | None:
        if self._fusion_compression_factor >= 1:
            return None
        return parent.substitute(self, FusedReads(self))


def planned_reads(expr: Expr) -> list[PlannedRead]:
    """Return the reads of an expression after the rewrites of Dask's optimizer. The partitions of a read are
    not fused.
    """
    every = (
        one.operand("_expr") if isinstance(one, FusedReads) else one
        for one in expr.optimize(fuse=False).walk()
    )
    found = {one._name: one for one in every if isinstance(one, ReadTFRecord)}
    return [read.planned() for read in found.values()]


class FusedReads(FusedIO):
    _pickle_functools_cache = False

    @cached_property
    def _name(self) -> str:
        return f"read_tfrecord-fused-{self.deterministic_token}"

    @cached_property
    def _fusion_buckets(self) -> list[Sequence[int]]:
        fused: list[Sequence[int]] = self.operand("_expr").fused
        return fused

    def _task(self, name: Key, index: int) -> Task:
        return ReadTask(name, self.operand("_expr").reader, *self._fusion_buckets[index], _data_producer=True)
