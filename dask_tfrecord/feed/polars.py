"""Implement `scan_tfrecord`, which returns a Polars LazyFrame that reads a dataset.

The module uses Polars' interface for external readers, which Polars marks as unstable. The module was checked
with Polars 2.1.
"""

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any, Unpack

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.collection.opened_path import open_columns
from dask_tfrecord.dataset.query.filters import pruning_predicate, read_expression
from dask_tfrecord.dataset.query.predicates import And, Predicate
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.read.task import Partition
from dask_tfrecord.errors import Remedy, SchemaError
from dask_tfrecord.feed.arrow_dataset import PIECE_BYTES, SharedPlan
from dask_tfrecord.feed.rows.sources import checked_names
from dask_tfrecord.keywords.arguments import ReadKeywords
from dask_tfrecord.keywords.public_functions import calling, public_function
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.logical_types import leaf_types
from dask_tfrecord.storage.paths import PathLike

try:
    from polars.io.external_reader import (
        FileReader,
        FileReaderBuilder,
        FilterExpr,
        ReaderCapabilities,
        scan_external_reader,
    )
except ImportError as error:
    raise ImportError(
        f"dask_tfrecord.feed.polars needs polars 2.1 or newer, but polars {pl.__version__} is installed. "
        "With any version, pl.DataFrame(dask_tfrecord.open_dataset(path).batches()) reads a dataset.",
        name="polars",
    ) from error


@public_function
def scan_tfrecord(
    path: PathLike | Sequence[PathLike],
    columns: str | Sequence[str] | None = None,
    **read: Unpack[ReadKeywords],
) -> pl.LazyFrame:
    """Return a Polars LazyFrame that reads a dataset. The data files are read when the query is collected.

    Only the columns of the query are decoded, and only files that can contain a row of the result are opened.
    Polars applies the filters to the rows, so they follow its rules. A slice reads no more rows than it
    needs. With a snapshot, rows are counted, and the last rows found, without a search for records.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `read_tfrecord` accepts.
    columns : str or list of str, optional
        The columns of the frame, in this order. By default, the frame has all columns.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``.

    Returns
    -------
    polars.LazyFrame

    Raises
    ------
    FileNotFoundError
        If the path has no files to read.
    SchemaError
        If the requested columns contradict the columns of the files, or if a column has decimals of 256 bits,
        which Polars does not support.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> import polars as pl
    >>> from dask_tfrecord.feed.polars import scan_tfrecord
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> scan_tfrecord("people").filter(pl.col("born") > 1900).select("name").collect().rows()
    [('Alan',), ('Grace',)]
    """
    plan, selected = open_columns(path, checked_names(columns), PIECE_BYTES, read)
    _check_types(selected.arrow)
    builder = _Builder(plan, selected)
    sources = [str(piece) for piece in range(plan.npartitions)]
    return scan_external_reader(builder, sources=sources, schema=builder.schema)


class _Builder(FileReaderBuilder):
    """Provide Polars with a reader for each piece of a dataset. The readers of a query share one plan."""

    def __init__(self, plan: ReadPlan, columns: Schema) -> None:
        self.plan, self.columns = plan, columns
        self.schema = pl.DataFrame(pa.Table.from_batches([columns.no_rows()])).schema
        self._shared = SharedPlan()

    def reader_capabilities(self) -> ReaderCapabilities:
        return ReaderCapabilities(pre_slice=True, supported_filter="partial")

    def build_file_reader(self, source: str | bytes, multi_scan_context: dict[Any, Any]) -> FileReader:
        return _Reader(self, int(source))

    def explain_properties(self) -> dict[str, str]:
        return {"TFRECORD": self.plan.store.public()}

    def partition(self, piece: int, names: Sequence[str], filters: Sequence[FilterExpr]) -> Partition:
        """Return the `Partition` that reads one piece.

        Skip files in which no row can pass ``filters``, but do not filter the rows.
        """
        known = [one for one in map(_as_arrow, filters) if one is not None]

        def planned() -> Callable[[int], Partition]:
            predicate = reduce(And, map(self._pruning, known)) if known else None
            return self.plan.partitioner(self.columns.select(names), predicate)

        return self._shared.get(([*names], [pickle.dumps(one) for one in known]), planned)(piece)

    def _pruning(self, expression: pc.Expression) -> Predicate:
        return pruning_predicate(read_expression(expression), self.columns, sql_rules=True)


class _Reader(FileReader):
    def __init__(self, builder: _Builder, piece: int) -> None:
        self._builder, self._piece = builder, piece

    def schema(self) -> pl.Schema:
        return self._builder.schema

    def n_rows_in_file(self, limit: int | None = None) -> int:
        return sum(table.num_rows for table in self._tables([], []))

    def collect_batches(
        self,
        *,
        columns: Sequence[str],
        row_index: tuple[str, int] | None,
        pre_slice: tuple[int, int] | None,
        filters: Sequence[FilterExpr],
        num_pipelines: int,
    ) -> Iterator[pl.DataFrame]:
        start, count = pre_slice or (0, sys.maxsize)
        # Polars applies the slice before the filters. With a slice, no file may be left out, because it
        # counts all rows.
        for table in self._tables(columns, [] if pre_slice else filters):
            first = min(start, table.num_rows)
            rows = min(count, table.num_rows - first)  # `Table.slice` does not limit a table without columns
            start, count = start - first, count - rows
            yield pl.DataFrame(table.slice(first, rows)) if columns else pl.DataFrame(height=rows)
            if count <= 0:
                return

    def _tables(self, columns: Sequence[str], filters: Sequence[FilterExpr]) -> Iterator[pa.Table]:
        with calling(scan_tfrecord):
            yield from self._builder.partition(self._piece, columns, filters).stream()


def _check_types(columns: pa.Schema) -> None:
    refused = [field.name for field in columns if any(map(pa.types.is_decimal256, leaf_types(field.type)))]
    if refused:
        others = [name for name in columns.names if name not in refused]
        raise SchemaError(
            f"Polars has no decimals of 256 bits: the column is of type {columns.field(refused[0]).type}",
            remedies=[Remedy("columns", others, "read the other columns")] if others else [],
            feature=refused[0],
            function="",
        )


def _as_arrow(one: FilterExpr) -> pc.Expression | None:
    """Return a filter as a pyarrow expression, or None if Polars cannot convert it."""
    with suppress(Exception):  # Polars raises errors of many classes
        return one.pyarrow_expr
    return None
