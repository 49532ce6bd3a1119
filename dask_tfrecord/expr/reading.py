"""The expressions of a read, what they take in of others around them, and their tasks."""

from dataclasses import replace
from functools import cached_property, reduce
from typing import Any, ClassVar, cast

import pandas as pd
from dask._task_spec import Task
from dask.dataframe import methods
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr._collection import DataFrame
from dask.dataframe.dask_expr._expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    And,
    Assign,
    Between,
    Binop,
    Elemwise,
    Expr,
    Filter,
    FinalizeComputeDF,
    Index,
    Invert,
    Isin,
    IsNa,
    Lengths,
    Literal,
    NotNull,
    Or,
    PartitionsFiltered,
    Projection,
    ResetIndex,
    _DelayedExpr,
    determine_column_projection,
)
from dask.dataframe.dask_expr._groupby import SingleAggregation
from dask.dataframe.dask_expr._indexing import Loc
from dask.dataframe.dask_expr._reductions import All, Count, Len, Max, Mean, Sum, Unique, ValueCounts
from dask.dataframe.dask_expr._reductions import Any as Any_
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr._util import _convert_to_list
from dask.dataframe.dask_expr.io import BlockwiseIO
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.tokenize import tokenize
from dask.typing import Key

from dask_tfrecord.cluster import check_cluster, warn_client
from dask_tfrecord.dataset.partition import Partition
from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.dataset.query import filters, predicates
from dask_tfrecord.dataset.query.comparison_keys import WrongTypeError
from dask_tfrecord.dataset.query.predicates import Operator, Predicate, Unsure
from dask_tfrecord.dataset.snapshot.model import Levels
from dask_tfrecord.errors import CorruptRecordWarning, SchemaError
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.frames import arrow_to_pandas
from dask_tfrecord.schema.model import Field, Schema


def read(
    dataset: Dataset,
    columns: list[str] | None,
    *,
    numpy: list[str] | None = None,
    index: Levels = (),
    divisions: tuple[Any, ...] | None = None,
) -> DataFrame:
    """The collection of a dataset's partitions; the columns in ``numpy`` are not backed by Arrow.

    The columns of ``index`` become the index, with ``divisions`` if they are known.
    """
    found = ReadTFRecord(dataset, columns, numpy=numpy, index=index, known_divisions=divisions)
    return new_collection(found)


@redact_errors
def read_partition(
    partition: Partition, numpy: list[str], index: Levels = (), in_order: bool = False
) -> pd.DataFrame:
    """The task that reads a partition."""
    table = partition.read(_warn)
    try:
        found = arrow_to_pandas.to_pandas(table, partition.schema, partition.row_ranges, numpy)
    except SchemaError as error:
        raise error.located(path=partition.file_names) from None
    return arrow_to_pandas.with_index(found, index, in_order=in_order) if index else found


def _warn(message: str) -> None:
    warn_client(message, CorruptRecordWarning)


def read_partitions(partitions: list[Partition], *how: Any) -> pd.DataFrame:
    """The task that reads several partitions as one."""
    found: pd.DataFrame = methods.concat([read_partition(partition, *how) for partition in partitions])
    return found


# Reads are fused to no fewer tasks, so that all cores of a cluster have some.
_LEAST_PARTITIONS = 64

# What gives the same however the rows are divided into partitions, as long as their order stays.
_GATHERING = (Sum, Max, Any_, All, Len, Mean, Count, Unique, ValueCounts, FinalizeComputeDF)


class ReadTFRecord(PartitionsFiltered, BlockwiseIO):
    """The partitions of a dataset.

    It takes in projections, so that other columns are never decoded, and predicates, so that files are not
    opened in which they are true for no row. The filters that the predicates come from stay where they are.
    """

    _parameters: ClassVar = [
        "dataset",
        "columns",
        "_partitions",
        "predicate",
        "_gathered",
        "numpy",
        "index",
        "known_divisions",
    ]
    _defaults: ClassVar = {
        "columns": None,
        "_partitions": None,
        "predicate": None,
        "_gathered": False,
        "numpy": None,
        "index": (),
        "known_divisions": None,
    }
    _absorb_projections = True
    _pickle_functools_cache = False

    def __reduce__(self) -> tuple[Any, ...]:
        """What travels to the scheduler: statistics only if there is something to look up in them."""
        make, operands = super().__reduce__()
        if self.predicate is None and self.dataset.filters is None:
            lean = replace(self.dataset, entries={})
            operands = tuple(lean if one is self.dataset else one for one in operands)
        return make, operands

    @property
    def columns(self) -> list[str]:
        levels = self._levels
        return [name for name in self._schema.names if name not in levels]

    @property
    def _levels(self) -> list[str]:
        """The columns that become the index."""
        return [column for column, _ in self.operand("index")]

    @cached_property
    def _schema(self) -> Schema:
        """What is read: the columns, and those that become the index."""
        schema: Schema = self.dataset.schema
        columns = self.operand("columns")
        return schema if columns is None else schema.select([*columns, *self._levels])

    @cached_property
    def _meta(self) -> pd.DataFrame:
        meta = arrow_to_pandas.empty_meta(self._schema, self.numpy_names)
        index = self.operand("index")
        return arrow_to_pandas.with_index(meta, index) if index else meta

    @cached_property
    def _name(self) -> str:
        return f"read_tfrecord-{self.deterministic_token}"

    def _divisions(self) -> tuple[Any, ...]:
        known: tuple[Any, ...] | None = self.operand("known_divisions")
        return (None,) * (self.dataset.npartitions + 1) if known is None else known

    def _filtered_task(self, name: Key, index: int) -> Task:
        return Task(name, read_partition, self._partition_at(index), *self.how, _data_producer=True)

    @property
    def how(self) -> tuple[Any, ...]:
        """The arguments of the tasks that are the same for all."""
        return self.numpy_names, self.operand("index"), self.operand("known_divisions") is not None

    @property
    def numpy_names(self) -> list[str]:
        """The columns that are read and not backed by Arrow."""
        return [name for name in self.operand("numpy") or () if name in self._schema.names]

    def _partition_at(self, index: int) -> Partition:
        partition: Partition = self.dataset.partition(index, self._schema, self.predicate)
        by_divisions = self.operand("known_divisions") is not None and index == self._partitions[0]
        return self.dataset.with_file_checks(partition, self._partitions) if by_divisions else partition

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        decided = self._decide(dependents)
        if decided != (self.predicate, self._gathered):
            changed = dict(zip(("predicate", "_gathered"), decided, strict=True))
            return parent.substitute(self, self.substitute_parameters(changed))
        if isinstance(parent, Lengths | Len):
            return self._count(parent)
        if isinstance(parent, Index):
            return self._narrow_for_index(parent, dependents)
        return super()._simplify_up(parent, dependents)

    def _narrow_for_index(self, parent: Expr, dependents: Any) -> Expr | None:
        """An index needs no columns, but those of other parents are read with it, so as to read once."""
        if not dependents.get(self._name):
            return None  # in the pass that makes this read, its parents are not all known
        wanted = _convert_to_list(determine_column_projection(self, parent, dependents))
        columns = [name for name in self.columns if name in wanted]
        return Index(self._narrowed(columns)) if columns != self.columns else None

    def _count(self, parent: Expr) -> Expr | None:
        """The lengths, if a snapshot knows them; else of no columns, which are counted without decoding."""
        lengths = tuple(self.dataset.count(index) for index in self._partitions)
        if None not in lengths and self.dataset.is_unchanged(self._partitions):
            return Literal(lengths if isinstance(parent, Lengths) else sum(lengths))
        if not self._schema.fields:
            return None
        return type(parent)(self.substitute_parameters({"columns": [], "index": (), "known_divisions": None}))

    def _narrowed(self, columns: list[str]) -> Expr:
        return self.substitute_parameters({"columns": columns})

    @property
    def _gathered(self) -> bool:
        """Whether nothing can tell how the rows are divided into partitions."""
        return bool(self.operand("_gathered"))

    @cached_property
    def _fusion_compression_factor(self) -> float:
        """One by the number of partitions that become one, because little of each is wanted.

        Yet so many tasks stay that all cores have some, for whatever the columns, all bytes are read.
        """
        if not self._gathered or self.operand("known_divisions") is not None:
            return 1
        wanted, every = (sum(map(_width, schema.fields)) for schema in (self._schema, self.dataset.schema))
        together = min(every // max(wanted, 1), len(self._partitions) // _LEAST_PARTITIONS)
        return 1 / max(together, 1)

    def _lower(self) -> Any:
        check_cluster()  # it may have other workers than when the read was planned
        return super()._lower()

    def _tune_up(self, parent: Expr) -> Expr | None:
        if self._fusion_compression_factor >= 1:
            return None
        return parent.substitute(self, FusedReads(self))

    def _decide(self, dependents: Any) -> tuple[Predicate | None, bool]:
        """What is known of the rows that are needed, and whether they may be divided otherwise.

        Once for each pass of the optimizer, at its start: what it makes later has parents it does not tell.
        """
        known, decided = self.__dict__.get("_decided", (None, None))
        if known is not dependents:
            decided = (self.predicate, self._gathered)
            if dependents.get(self._name):
                decided = (self._find_predicate(dependents), self._gathered or self._may_fuse(dependents))
            self.__dict__["_decided"] = (dependents, decided)
        return cast("tuple[Predicate | None, bool]", decided)

    def _may_fuse(self, dependents: Any) -> bool:
        return len(self._partitions) > _LEAST_PARTITIONS and _is_gathered(self, dependents)

    def _find_predicate(self, dependents: Any) -> Predicate | None:
        """What is true for all rows that are needed, as all of them meet one filter or another.

        What comes to other reads of the same rows is the same, so that the rows of all stay the same.
        """
        ends = _filters_of(self, dependents)
        if not ends:
            return None
        found = sorted({_predicate_of(_mask_of(one)) for one in ends}, key=repr)
        predicate = reduce(predicates.Or, found)
        return predicate if self.dataset.can_prune(predicate) else None

    def _is_of_same_rows(self, other: "ReadTFRecord") -> bool:
        chosen = [one.operand("_partitions") for one in (self, other)]
        return bool(tokenize(self.dataset) == tokenize(other.dataset) and chosen[0] == chosen[1])


class FusedReads(FusedIO):
    """Several partitions of a read in each task."""

    @cached_property
    def _name(self) -> str:
        return f"read_tfrecord-fused-{self.deterministic_token}"

    def _task(self, name: Key, index: int) -> Task:
        read = self.operand("_expr")
        partitions = [read._partition_at(at) for at in self._fusion_buckets[index]]
        return Task(name, read_partitions, partitions, *read.how, _data_producer=True)


def _is_gathered(read: ReadTFRecord, dependents: Any) -> bool:
    """Whether all ways of a read's rows, and of no others, lead to what takes all rows together.

    Only then it makes no difference how the rows are divided.
    """
    seen, waiting = {read._name}, [read]
    while waiting:
        parents = _new_parents(waiting.pop(), dependents, seen)
        if parents is None:
            return False
        for parent in parents:
            if isinstance(parent, Elemwise | Filter) and _is_all_of(parent, read):
                waiting.append(parent)
            elif not _takes_all_rows(parent):
                return False
    return True


def _new_parents(found: Expr, dependents: Any, seen: set[str]) -> list[Expr] | None:
    """What is made of an expression, but for what was seen before; None if nothing is."""
    parents = {one._name: one for link in dependents.get(found._name, ()) if (one := link()) is not None}
    new = [one for name, one in parents.items() if name not in seen]
    seen.update(parents)
    return new if parents else None


def _is_all_of(found: Expr, read: ReadTFRecord) -> bool:
    """Whether an expression is computed row by row from a read alone."""
    if found._name == read._name or not found.ndim:
        return True
    if not isinstance(found, Elemwise | Filter) or isinstance(found, ResetIndex):  # which counts them anew
        return False
    rows = [one for one in found.dependencies() if one.ndim]
    if len(rows) > 1 and any(isinstance(below, Filter) for one in rows for below in one.walk()):
        return False  # Dask may align filtered rows with others by their labels, which fusing repeats
    return all(_is_all_of(one, read) for one in found.dependencies())


def _takes_all_rows(parent: Expr) -> bool:
    if isinstance(parent, SingleAggregation):
        return bool(parent.operand("sort"))  # else groups come in an order of their own
    if isinstance(parent, Repartition):
        return bool(parent.operand("new_partitions") == 1)
    return isinstance(parent, _GATHERING)


def _width(field: Field) -> int:
    """About how many bytes a value takes, in comparison to those of other columns."""
    try:
        return int(field.type.bit_width) // 8 + 1
    except ValueError:  # of strings, bytes and lists
        return 32 * (1 + field.depth)


def _filters_of(read: ReadTFRecord, dependents: Any) -> list[Filter | Loc] | None:
    """The filters that end all ways of a read's rows, by operations that look at one row at a time.

    None if some way goes elsewhere, or if a filter brings in rows from elsewhere too.
    """
    ends: list[Filter | Loc] = []
    seen, waiting = {read._name}, [read]
    while waiting:
        parents = _new_parents(waiting.pop(), dependents, seen)
        if parents is None:
            return None
        for parent in parents:
            if isinstance(parent, Filter) or (isinstance(parent, Loc) and parent.cindexer is None):
                ends.append(parent)
                below = _reads_below(parent, read)
                if below is None:
                    return None
                waiting += [one for one in below if one._name not in seen]
                seen |= {one._name for one in below}
            elif isinstance(parent, Elemwise):
                waiting.append(parent)
            else:
                return None
    return ends


def _reads_below(end: Filter | Loc, read: ReadTFRecord) -> list[ReadTFRecord] | None:
    """What a filter's rows and mask are computed from, row by row; None if not all of it is of the read."""
    found, waiting = [], end.dependencies()
    while waiting:
        one = waiting.pop()
        if isinstance(one, ReadTFRecord) and one._is_of_same_rows(read):
            found.append(one)
        elif isinstance(one, Elemwise):
            waiting += one.dependencies()
        elif one.ndim:
            return None
    return found


def _mask_of(one: Filter | Loc) -> Expr:
    return one.predicate if isinstance(one, Filter) else one.iindexer


_SYMBOLS: dict[type[Expr], Operator] = {EQ: "==", NE: "!=", LT: "<", LE: "<=", GT: ">", GE: ">="}
_MIRRORED: dict[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_BOUNDS: dict[str, tuple[Operator, Operator]] = {
    "both": (">=", "<="),
    "left": (">=", "<"),
    "right": (">", "<="),
    "neither": (">", "<"),
}


def _predicate_of(found: Expr) -> Predicate:
    """What an expression says of the columns of its read, as far as it can be told."""
    try:
        return _parse(found)
    except (ArithmeticError, TypeError, ValueError):  # pandas may know how to compare such values
        return Unsure()


def _parse(found: Expr) -> Predicate:
    if isinstance(found, And | Or):
        combine = predicates.And if isinstance(found, And) else predicates.Or
        return combine(_predicate_of(found.left), _predicate_of(found.right))
    if isinstance(found, Invert):
        return predicates.Not(_predicate_of(found.frame))
    if isinstance(found, Binop) and type(found) in _SYMBOLS:
        symbol, column, value = _SYMBOLS[type(found)], found.left, found.right
        if isinstance(value, Expr):
            symbol, column, value = _MIRRORED.get(symbol, symbol), value, column
        if isinstance(value, Expr):
            return Unsure()
        return filters.compare_in_pandas(_field_of(column), symbol, value)
    if isinstance(found, Between) and found.inclusive in _BOUNDS:
        least, most = _BOUNDS[found.inclusive]
        field = _field_of(found.frame)
        return predicates.And(
            filters.compare_in_pandas(field, least, found.left),
            filters.compare_in_pandas(field, most, found.right),
        )
    if isinstance(found, Isin) and isinstance(found.operand("values"), _DelayedExpr):
        values = found.operand("values").obj.compute(scheduler="sync")
        return filters.is_in_pandas(_field_of(found.frame), values)
    if isinstance(found, IsNa | NotNull):
        missing = predicates.IsNull(_field_of(found.frame).name)
        return missing if isinstance(found, IsNa) else predicates.Not(missing)
    return filters.compare_in_pandas(_field_of(found), "==", True)  # a column of booleans as the mask


def _field_of(found: Any) -> Field:
    """The column of a read that an expression is."""
    if isinstance(found, Index) and isinstance(found.frame, ReadTFRecord) and len(found.frame._levels) == 1:
        return cast(Field, found.frame.dataset.schema.select(found.frame._levels).fields[0])
    name = found.operand("columns") if isinstance(found, Projection) else None
    frame = found
    while isinstance(frame, Projection) or (isinstance(frame, Assign) and name not in frame.keys):
        frame = frame.frame
    if not isinstance(name, str) or not isinstance(frame, ReadTFRecord):
        raise WrongTypeError("it is no column of the dataset")
    field: Field = frame.dataset.schema.select([name]).fields[0]
    return field
