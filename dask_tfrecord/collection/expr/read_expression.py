"""Define the expression of a read.

The module `optimizations` decides how the optimizer may change the read expression.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from dask._task_spec import Task
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

from dask_tfrecord.collection.expr.needed_partitions import NeededPartitions, Origin
from dask_tfrecord.collection.expr.optimizations import decision, partitions_per_task
from dask_tfrecord.collection.expr.read_tasks import Reader, ReadTask
from dask_tfrecord.collection.frames import arrow_to_pandas
from dask_tfrecord.collection.scheduler import check_cluster
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.read.task import Partition
from dask_tfrecord.dataset.snapshot.metadata import Levels
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


# A tuple: a read plan, the indices of the partitions that each task reads, and the partitions themselves.
PlannedRead: TypeAlias = tuple[ReadPlan, list[list[int]], list[list[Partition]]]


class ReadTFRecord(PartitionsFiltered, BlockwiseIO):
    """The Dask expression that reads the partitions of a dataset.

    The read skips files and blocks in which no row can meet ``predicate``, but does not filter the rows that
    it reads. ``ignores_partitions`` is True if every consumer ignores the boundaries of partitions, so that
    one task may read several partitions. ``skips_rows`` is True if the read may leave out individual rows for
    which the predicate is false. ``leaves_out`` is True if partitions in which no row meets ``predicate``
    need no task.
    """

    _defaults: ClassVar = {
        "columns": None,
        "_partitions": None,
        "predicate": None,
        "ignores_partitions": False,
        "skips_rows": False,
        "leaves_out": False,
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
        """The columns that are read, including those that become the index."""
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
        return ReadTask(name, self._reader, index, _data_producer=True)

    @cached_property
    def _reader(self) -> Reader:
        return self.reader(self._name, self._partitions)

    def reader(self, name: str, partitions: Sequence[int], step: int = 1) -> Reader:
        """Return the callable of the tasks of ``name``, which read ``step`` partitions each."""
        return Reader(
            name,
            self.dataset,
            partitions,
            step,
            self._schema,
            self.predicate,
            self.operand("skips_rows"),
            (self._dtypes, self.operand("index"), self._has_divisions, self.dataset.columns_name),
        )

    def planned(self) -> PlannedRead:
        numbers = [self._numbers(index) for index in self._partitions]
        return self.dataset, numbers, [*map(self._reader.partitions_of, range(self.npartitions))]

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
        if decided != tuple(map(self.operand, decided._fields)):
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
    def _has_rows(self) -> npt.NDArray[np.bool_]:
        """For each partition, True if the partition can have rows that pass ``predicate``."""
        if self.predicate is None:
            return np.ones(self.npartitions, bool)
        has_task, keys = self.dataset.has_task(self.predicate), self.dataset.keys
        if keys is not None:
            has_task = np.array([has_task[one.start : one.stop].any() for one in keys])
        return np.asarray(has_task[np.asarray(self._partitions)])

    @cached_property
    def needed(self) -> Sequence[int]:
        """The partitions that tasks read after fusing, or after leaving out partitions.

        Partitions without rows that can pass ``predicate`` are left out. If partitions are not fused, one of
        these partitions remains. At least one partition always remains.
        """
        return (
            self._partitions if self._has_rows.all() else [self._partitions[at] for at in self._kept.tolist()]
        )

    @property
    def step(self) -> int:
        """The number of partitions that each task reads after fusing."""
        if not self._is_fused:
            return 1
        count = len(self.needed)
        return partitions_per_task(self._schema, self.dataset.schema, count, self._column_file_bytes)

    @cached_property
    def _column_file_bytes(self) -> int | None:
        """The average size of the column files of a partition if its task decodes no records."""
        size = self.dataset.column_file_bytes(self._schema)
        return None if size is None else size // self.dataset.npartitions

    @property
    def decodes_records(self) -> bool:
        """Return False if the column files have all columns that the read needs."""
        return self._column_file_bytes is None

    @cached_property
    def _kept(self) -> npt.NDArray[np.int64]:
        """The positions of the partitions that are not left out."""
        kept = self._has_rows.copy()
        if not (self._is_fused and kept.any()):
            kept[self._empty] = True
        return np.flatnonzero(kept)

    @property
    def _empty(self) -> int:
        """The position of the first partition without rows that can pass ``predicate``, or 0."""
        return int(self._has_rows.argmin())

    @property
    def _is_fused(self) -> bool:
        is_fused: bool = self.ignores_partitions and not self._has_divisions
        return is_fused

    @cached_property
    def _fusion_compression_factor(self) -> float:
        """The number of tasks after fusing, divided by the number of partitions: at most 1."""
        if not self._is_fused:
            return 1
        return -(-len(self.needed) // self.step) / len(self._partitions)

    def _lower(self) -> Any:
        check_cluster()  # workers may have joined the cluster since the read was planned
        return super()._lower()

    def _tune_up(self, parent: Expr) -> Expr | None:
        if self._fusion_compression_factor < 1:
            return parent.substitute(self, FusedReads(self))
        if not self.operand("leaves_out") or len(self._kept) == self.npartitions:
            return None
        origin = Origin(self, self._kept, self._empty)
        return parent.substitute(self, NeededPartitions(FusedReads(self), origin))


def planned_reads(expr: Expr) -> list[PlannedRead]:
    """Return the reads of an expression after the rewrites of Dask's optimizer. The partitions of a read are
    not fused.
    """
    every = (
        one.operand("_expr") if isinstance(one, FusedReads) else one
        for one in expr.optimize(fuse=False).walk()
    )
    reads = {one._name: one for one in every if isinstance(one, ReadTFRecord)}
    return [read.planned() for read in reads.values()]


class FusedReads(FusedIO):
    _pickle_functools_cache = False

    @cached_property
    def _name(self) -> str:
        return f"read_tfrecord-fused-{self.deterministic_token}"

    @cached_property
    def _fusion_buckets(self) -> list[Sequence[int]]:
        read = self.operand("_expr")
        needed, step = read.needed, read.step
        return [needed[start : start + step] for start in range(0, len(needed), step)]

    @cached_property
    def _reader(self) -> Reader:
        read: ReadTFRecord = self.operand("_expr")
        return read.reader(self._name, read.needed, read.step)

    def _task(self, name: Key, index: int) -> Task:
        return ReadTask(name, self._reader, index, _data_producer=True)
