"""Let DuckDB, DataFusion and pyarrow query a dataset.

`ArrowDataset` extends `pyarrow.dataset.Dataset`, because query engines accept no other class. They call only
the methods that this module overrides. Arrow's C++ code ignores these methods, and would read the files of
the parent class. The only such file does not exist, so the read raises.
"""

import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow.fs import LocalFileSystem

from dask_tfrecord.collection.numbered_rows import index_array, resolved
from dask_tfrecord.dataset.query.filters import arrow_predicate, columns_of, read_expression
from dask_tfrecord.dataset.query.predicates import And, Predicate
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.read.task import Partition
from dask_tfrecord.errors import SchemaError, TFRecordError, check_instance
from dask_tfrecord.files.record_file import rows_without_columns
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.public_functions import calling, public_function
from dask_tfrecord.keywords.requests import existing_names
from dask_tfrecord.schema.fields import Schema

# The size, in stored bytes, of the pieces into which a dataset is divided. Engines read them in order or in
# parallel. Smaller pieces would slow down reads of column files, which have a fixed cost for each piece.
PIECE_BYTES = 1 << 25

_BATCH_ROWS = 131_072

# The path of the only file that is passed to the parent class. Errors of Arrow's C++ code contain the path.
_MISSING = "/(Arrow cannot read a Dataset: call the methods of the dataset itself)"


class SharedPlan:
    """Cache the latest plan of a read, so that all pieces of a query share the plan."""

    def __init__(self) -> None:
        self._latest: tuple[Any, Callable[[int], Partition]] | None = None

    def get(self, key: Any, plan: Callable[[], Callable[[int], Partition]]) -> Callable[[int], Partition]:
        """Return the latest plan if its key is ``key``.

        If the key differs, call ``plan``, and keep the result.
        """
        latest = self._latest  # another thread may replace `_latest` at any time
        if latest is None or latest[0] != key:
            latest = self._latest = key, plan()
        return latest[1]


class Source(NamedTuple):
    """The rows of an `ArrowDataset`: a plan, the indices of the partitions to read, and the latest reads.

    Each method reads this attribute only once, because a commit in another thread may replace it.
    """

    plan: ReadPlan
    pieces: Sequence[int]
    shared: SharedPlan


class ArrowDataset(pads.FileSystemDataset):
    """Implement the methods of `Dataset` that query engines call. Subclasses define which rows are read.

    Only the columns of a query are decoded, and only files that can contain a row of the result are opened. A
    query with a limit stops reading as soon as there are enough rows.
    """

    _source: Source
    _selected: Schema

    def _set_parent(self) -> None:
        """Initialise the parent class, whose schema and files are never used."""
        file_format, store = pads.IpcFileFormat(), LocalFileSystem()
        missing = file_format.make_fragment(_MISSING, store)
        super().__init__([missing], pa.schema([]), file_format, store)

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the dataset's columns."""
        return self._selected.arrow

    @public_function
    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator["Fragment"]:
        """Return an iterator of fragments, one for each piece of the dataset's files.

        With a filter, pieces in which no row can pass are left out. The rows of the others are not filtered.
        A filter that is passed to the ``scanner`` of a fragment together with a schema, as by DataFusion,
        follows its rules: NaN is greater than all other numbers, and `isin` returns null for a null.
        """
        source, selected = self._source, self._selected
        pieces = source.pieces
        if filter is not None:
            partition = self._partitioner(source, [], self._predicate(filter, sql_rules=True))
            # DataFusion requires at least one fragment.
            pieces = [piece for piece in pieces if partition(piece).splits] or pieces[:1]
        return (Fragment(source.plan, selected, [one], source.shared) for one in pieces)

    def scanner(
        self,
        columns: Sequence[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        batch_size: int = _BATCH_ROWS,
        batch_readahead: int = 0,
        fragment_readahead: int = 0,
        fragment_scan_options: Any = None,
        use_threads: bool = True,
        cache_metadata: bool | None = None,
        memory_pool: Any = None,
    ) -> "Scan":
        """Return a `Scan`, which reads the rows of a query and has the methods of `pyarrow.dataset.Scanner`.

        Parameters
        ----------
        columns : list of str or dict of str to pyarrow.compute.Expression, optional
            The names of the result's columns, or the expressions that compute them. By default, all columns
            are read.
        filter : pyarrow.compute.Expression, optional
            The condition that a row must meet to be in the result.
        batch_size : int, default 131072
            The maximum number of rows in a batch.
        batch_readahead, fragment_readahead, fragment_scan_options, use_threads, cache_metadata, memory_pool
            These pyarrow parameters have no effect.

        Returns
        -------
        Scan

        Raises
        ------
        SchemaError
            If the dataset has no column with a requested name, or if the columns or the filter cannot be
            computed.
        TFRecordError
            If an argument has a wrong type or value.
        """
        with calling(ArrowDataset.scanner):
            return self._scan(columns, filter, batch_size)

    def _scan(self, columns: Any, filter: Any, batch_size: int, *, sql_rules: bool = False) -> "Scan":
        arguments.count("batch_size", batch_size)
        computed = columns if isinstance(columns, dict) else None
        if computed is not None:
            columns = self._used_by(computed)
        names = (
            self._selected.names if columns is None else existing_names(self._selected, "columns", columns)
        )
        wanted = self._selected.select(names)
        predicate = None if filter is None else self._predicate(filter, sql_rules=sql_rules)
        return Scan(
            self.schema,
            wanted.arrow if computed is None else _compute(wanted.no_rows(), computed).schema,
            partial(self._tables, names, predicate),
            computed,
            batch_size,
        )

    # pyarrow's own methods give no advice for a filter that is not an expression, and `head` truncates
    # floats.

    def to_table(self, *args: Any, **kwargs: Any) -> pa.Table:
        return self.scanner(*args, **kwargs).to_table()

    def to_batches(self, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
        return self.scanner(*args, **kwargs).to_batches()

    def count_rows(self, filter: Any = None, **kwargs: Any) -> int:
        return self.scanner(filter=filter, **kwargs).count_rows()

    def head(self, num_rows: int, *args: Any, **kwargs: Any) -> pa.Table:
        return self.scanner(*args, **kwargs).head(num_rows)

    def _used_by(self, computed: dict[str, Any]) -> list[str]:
        for name, one in computed.items():
            if not isinstance(one, pc.Expression):
                problem = f"columns= needs an expression for the column {name!r}, not {one!r}"
                raise TFRecordError(problem, 'pass an expression, such as pc.field("year")')
        names = self._selected.names
        try:
            used = set().union(*(columns_of(read_expression(one)) for one in computed.values()))
        # All columns are read if those of an expression are unknown. Arrow raises NotImplementedError for an
        # expression that refers to a column by index. LookupError and ValueError mean that Arrow has
        # serialized the expression in an unknown format.
        except (LookupError, NotImplementedError, ValueError):
            return names
        # Return one or more columns, because Arrow would lose the number of rows of a table without columns.
        return [name for name in names if name in used] or names[:1]

    def _predicate(self, filter: Any, *, sql_rules: bool = False) -> Predicate:
        return arrow_predicate(filter, self._selected, sql_rules=sql_rules)

    def _tables(
        self, names: list[str], predicate: Predicate | None, count_only: bool
    ) -> Generator[pa.Table, None, None]:
        with calling(ArrowDataset.scanner):
            source = self._source
            partition = self._partitioner(source, [] if count_only else names, predicate)
            for piece in source.pieces:
                yield from partition(piece).stream()

    def _partitioner(
        self, source: Source, names: list[str], predicate: Predicate | None
    ) -> Callable[[int], Partition]:
        """Plan the read of the columns ``names``, for the rows that pass ``predicate``.

        The fragments of a dataset share the latest plan.
        """

        def planned() -> Callable[[int], Partition]:
            plan = _filtered(source.plan, predicate)
            return plan.partitioner(plan.schema.select(names), plan.filters)

        return source.shared.get((names, pickle.dumps(predicate)), planned)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return all rows as an Arrow stream. Each call reads the dataset again."""
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    # In the parent class, these methods make Arrow read the files, but Arrow cannot read TFRecord files.

    def sort_by(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _refused("sort_by")

    def join(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _refused("join")

    def join_asof(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _refused("join_asof")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        raise TFRecordError("a Dataset cannot replace its schema", "pass schema= or columns= to open_dataset")


for _name in ("to_table", "to_batches", "count_rows", "head"):
    update_wrapper(getattr(ArrowDataset, _name), getattr(pads.Dataset, _name))  # keep pyarrow's docstring


class Fragment(ArrowDataset):
    """A piece of a dataset that an engine can read separately.

    `scanner` has the same signature as `pyarrow.dataset.Fragment.scanner`.
    """

    def __init__(
        self, plan: ReadPlan, selected: Schema, pieces: Sequence[int], shared: SharedPlan | None = None
    ) -> None:
        self._source, self._selected = Source(plan, pieces, shared or SharedPlan()), selected
        self._set_parent()

    def __reduce__(self) -> tuple[Any, ...]:
        return Fragment, (self._source.plan, self._selected, self._source.pieces)

    def __repr__(self) -> str:
        return f"Fragment({self._source.plan.store.public()!r}, pieces {[*self._source.pieces]})"

    def scanner(  # type: ignore[override]  # in pyarrow, too, only the `scanner` of a fragment takes a schema
        self,
        schema: pa.Schema | None = None,
        columns: Any = None,
        filter: pc.Expression | None = None,
        batch_size: int = _BATCH_ROWS,
        **_: Any,
    ) -> "Scan":
        """Return a `Scan`, which reads the rows of a query.

        If ``schema`` is passed, the filter follows DataFusion's rules.
        """
        if schema is not None and not schema.equals(self.schema):
            raise _refused("scanner of a fragment with another schema")
        return self._scan(columns, filter, batch_size, sql_rules=schema is not None)


@dataclass(eq=False, repr=False)
class Scan:
    """The rows of a query on a `Dataset`. Each method call reads the files again.

    The class has the methods of `pyarrow.dataset.Scanner` that engines call. A real Scanner would read
    several files ahead, even if a query needs only a few rows.
    """

    dataset_schema: pa.Schema
    projected_schema: pa.Schema
    _tables: Callable[[bool], Generator[pa.Table, None, None]]
    _computed: dict[str, pc.Expression] | None
    _batch_size: int

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        for table in self._tables(False):
            rows = table if self._computed is None else _compute(table, self._computed)
            yield from rows.to_batches(self._batch_size)

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        return _as_table(list(self.to_batches()), self.projected_schema)

    def count_rows(self) -> int:
        """Count the rows. Decode only the columns that the filter uses."""
        return sum(table.num_rows for table in self._tables(True))

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows or, if ``num_rows`` is negative, all but the last rows, as pandas does."""
        check_instance("num_rows", num_rows, int, np.integer)
        num_rows = int(num_rows) if num_rows >= 0 else self.count_rows() + int(num_rows)
        found: list[pa.RecordBatch] = []
        for batch in self.to_batches() if num_rows > 0 else ():
            found.append(batch.slice(0, min(num_rows, batch.num_rows)))
            num_rows -= batch.num_rows
            if num_rows <= 0:
                break
        return _as_table(found, self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """Read rows by index, or by a boolean mask. Reading stops after the last requested row."""
        array = index_array(indices)
        if array.dtype == bool or (array < 0).any():
            array = resolved(array, self.count_rows())
        numbers, order = np.unique(array, return_inverse=True)
        found: list[pa.RecordBatch] = []
        count = start = 0
        for batch in self.to_batches() if len(numbers) else ():
            first, count = np.searchsorted(numbers, (start, start + batch.num_rows))
            found.append(batch.take(pa.array(numbers[first:count] - start)))
            start += batch.num_rows
            if count == len(numbers):
                break
        if count < len(numbers):
            raise IndexError(f"a row number is out of bounds for {start:,} rows")
        return _as_table(found, self.projected_schema).take(pa.array(order))


def _filtered(plan: ReadPlan, predicate: Predicate | None) -> ReadPlan:
    if predicate is None:
        return plan
    return replace(plan, filters=predicate if plan.filters is None else And(plan.filters, predicate))


def _compute(rows: pa.Table | pa.RecordBatch, columns: dict[str, pc.Expression]) -> pa.Table:
    try:
        return pads.dataset(rows).to_table(columns=columns, use_threads=False)
    except pa.ArrowException as error:
        raise SchemaError(
            f"columns= cannot be computed: {error}",
            "name columns of the dataset, and cast them to types that hold all values",
        ) from None


def _as_table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    if not schema.names:
        return rows_without_columns(sum(batch.num_rows for batch in batches))
    return pa.Table.from_batches(batches, schema)


def _refused(method: str) -> TFRecordError:
    return TFRecordError(
        f"a Dataset has no {method}, because Arrow cannot read the files",
        "call the method of the same name of to_table(), or of an in-memory dataset of to_table()",
    )
