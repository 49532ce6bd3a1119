"""Read pandas DataFrames, Arrow streams and lists of dicts as Arrow tables of the planned schema, without
Dask.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import infer_dtype

from dask_tfrecord.codec import RecordType
from dask_tfrecord.collection.frames import pandas_to_arrow
from dask_tfrecord.collection.frames.pandas_to_arrow import (
    CONVERSION_ERRORS,
    convert_chunks,
    first_line,
    first_misfit,
    holds_set,
    index_levels,
    is_object,
)
from dask_tfrecord.collection.frames.schema_plan import (
    NEW_DATASET,
    Existing,
    GivenTypes,
    chosen_forms,
    plan_arrow_schema,
    plan_schema,
    rounded_columns,
    rounded_in_frame,
    with_read_feature_lists,
)
from dask_tfrecord.collection.row_splits import split_frame, split_table
from dask_tfrecord.dataset.read.inferred_schema import PAYLOAD
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError, located, warn_caller
from dask_tfrecord.keywords.splits import Splits
from dask_tfrecord.schema.conversion import widened
from dask_tfrecord.schema.fields import Field, Lossy, Schema
from dask_tfrecord.schema.form_transport import carried_by_attrs, carried_by_schema
from dask_tfrecord.schema.logical_types import in_nanoseconds
from dask_tfrecord.schema.storage_values import ROUND, MisfitError, RoundedError, structs


def is_records(rows: list[Any]) -> bool:
    """Return True if a list contains only bytes, each of which stands for a complete record."""
    return all(issubclass(kind, bytes) for kind in {*map(type, rows)})


def table_of(rows: list[Any], types: Mapping[str, pa.DataType], title: str) -> pa.Table:
    """Convert a list of dicts to a table. The type of each column is inferred from its values.

    The table contains at least the columns in ``types``, but a column's type may differ from ``types``. A key
    that a dict lacks is null, both in rows and in the dicts of a struct column. ``title`` is the path that
    error messages show. An error about a value contains the position of the row in the list.
    """
    others = {kind.__name__ for kind in {*map(type, rows)} if not issubclass(kind, Mapping)}
    if others:
        problem = f"a list of rows holds {', '.join(sorted(others))}"
        raise TFRecordError(problem, "pass a list of dicts, or a list of bytes", path=title)
    names = dict.fromkeys(chain(types, *rows))
    for name in names:
        if not isinstance(name, str):
            raise SchemaError("a key is not a string", path=title, feature=repr(name))
    columns = {name: _column(name, rows, title) for name in names}
    return pa.table({name: _with_fields(column, types.get(name)) for name, column in columns.items()})


def _column(name: str, rows: list[Any], title: str) -> pa.Array:
    values = [None if one is pd.NA or one is pd.NaT else one for one in map(methodcaller("get", name), rows)]

    def converted(count: int) -> pa.Array:
        some = values[:count]
        if any(map(holds_set, some)):  # Arrow would store a set as a list
            raise TypeError("a set has no order; store its values as a list, such as sorted(the_set)")
        column = pa.array(some)
        # Arrow treats pandas times like Python times, and drops the nanoseconds.
        return pa.array(some, in_nanoseconds(column.type)) if _has_nanoseconds(some, column.type) else column

    try:
        return converted(len(values))
    except CONVERSION_ERRORS as error:
        found = first_misfit("the values have no common type", converted, len(values), error)
        advice = "give all values of a key the same type"
        raise found.replaced(advice=advice, path=title, feature=name) from None


def _has_nanoseconds(values: Iterable[Any], type_: pa.DataType) -> bool:
    """Return True if a value, at any level of nesting, has a nonzero nanosecond component."""
    if in_nanoseconds(type_) == type_:
        return False
    if pa.types.is_list(type_):
        return any(_has_nanoseconds(one, type_.value_type) for one in values if one is not None)
    if pa.types.is_struct(type_):
        known = [one for one in values if one is not None]
        return any(_has_nanoseconds((one.get(item.name) for one in known), item.type) for item in type_)
    return any(getattr(one, "nanosecond", 0) or getattr(one, "nanoseconds", 0) for one in values)


def _with_fields(column: pa.Array, type_: pa.DataType | None) -> pa.Array:
    """Add the fields of ``type_`` that all dicts of a column lack. Order the fields as in ``type_``."""
    if not isinstance(type_, pa.StructType) or not isinstance(column.type, pa.StructType):
        return column
    present = dict(zip([item.name for item in column.type], column.flatten(), strict=True))
    if not {*present} <= {item.name for item in type_}:
        return column  # a later conversion raises an error for a field that ``type_`` lacks
    fields = {
        item.name: _with_fields(present.get(item.name, pa.nulls(len(column))), item.type) for item in type_
    }
    made = pa.struct({name: values.type for name, values in fields.items()})
    return structs(made, column.is_valid(), [*fields.values()])


# Rows are converted together in batches of about _BYTES bytes. A batch of a DataFrame has at most _ROWS rows.
_ROWS = 1 << 16
_BYTES = 1 << 24

# The approximate number of rows that are sampled to estimate the size of a DataFrame.
_SAMPLED_ROWS = 100

# Maps the name of a method to the advice in the error about an unsupported object that has this method.
_ADVICE = {
    "collect": "pass frame.collect(), or a RecordBatchReader",
    "to_dataframe": "pass bag.to_dataframe(meta=...)",
    "to_reader": "pass scanner.to_reader()",
    "scanner": "pass dataset.scanner().to_reader()",
    "to_frame": 'pass column.to_frame("n") for a column "n"',
    "__next__": "pass pyarrow.RecordBatchReader.from_batches(schema, batches) of Arrow batches, or "
    'pandas.DataFrame({"n": list(rows)})',
}


class ArrowStream(Protocol):
    """An object that exports rows as an Arrow C stream, such as a `pyarrow.Table` or a Polars DataFrame."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a PyCapsule with an ArrowArrayStream."""


class ArrowArray(Protocol):
    """An object that exports its rows as one Arrow C array, such as a `pyarrow.RecordBatch`."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return PyCapsules with an ArrowSchema and an ArrowArray."""


# The types that `Writer.write` accepts.
Row = Mapping[str, Any] | bytes
Rows = pd.DataFrame | ArrowStream | ArrowArray | Sequence[Mapping[str, Any]] | Sequence[bytes] | Row


class PandasRows:
    """Provide the rows of a pandas DataFrame for a write without Dask.

    The attribute ``kind`` is the name of the object's class, which error messages show. ``columns`` are the
    labels of the columns, and ``columns_name`` is ``DataFrame.columns.name``.
    """

    npartitions = 1

    def __init__(self, frame: pd.DataFrame) -> None:
        self.kind = "DataFrame"
        self.columns = list(frame.columns)
        self.columns_name = frame.columns.name
        self._frame = frame

    def levels(self, write_index: bool | None) -> Levels:
        """Return a pair (column name, level name) for each index level to write."""
        return index_levels(self._frame, write_index)

    def plan(
        self,
        schema: GivenTypes,
        record_type: RecordType | None,
        keys: Sequence[str],
        levels: Levels,
        existing: Existing = NEW_DATASET,
    ) -> Schema:
        """Plan the schema of all columns, including the index levels to write.

        ``keys`` are the partition columns. If ``record_type`` is None, the record type is inferred.
        ``existing`` describes the dataset of an append.
        """
        forms, feature_lists = carried_by_attrs(self._frame.attrs)

        def plan(record_type: RecordType | None) -> Schema:
            return plan_schema(
                self._frame,
                schema=schema,
                record_type=record_type,
                write_index=bool(levels),
                sample=None,
                partition_on=keys,
                known=dict.fromkeys(self._text(levels), pa.string()),
                existing=existing,
                forms=chosen_forms(forms, schema, existing, record_type),
            )

        lists = {*feature_lists} & {*self.columns} - {*keys}
        planned = with_read_feature_lists(plan, record_type, lists, existing)
        return planned if record_type else _without_payloads(planned)

    def _text(self, levels: Levels) -> Iterator[str]:
        """Yield the names of the object columns that contain only text."""
        index = self._frame.index
        columns: list[tuple[str, Any]] = [
            (name, index.get_level_values(at)) for at, (name, _) in enumerate(levels)
        ]
        columns += [(name, self._frame.iloc[:, at]) for at, name in enumerate(self.columns)]
        for name, column in columns:
            if is_object(column.dtype) and infer_dtype(column, skipna=True) == "string":
                yield name

    def rounded(self, records: Schema, levels: Levels) -> list[str]:
        """Return the names of the columns whose values a write may round to shorter floats."""
        return rounded_in_frame(self._frame.iloc[:0], records, write_index=bool(levels))

    def tables(
        self,
        schema: Schema,
        lossy: Lossy,
        splits: Splits | None,
        levels: Levels,
        title: str,
        fitted: Collection[str] = (),
    ) -> Iterator[pa.Table]:
        """Yield all rows as tables of the planned schema.

        An error about a value shows ``title`` as its path, and the position of the row in the source.
        ``fitted`` has the same meaning as in `to_table`.
        """
        sample = self._frame.iloc[:: max(1, len(self._frame) // _SAMPLED_ROWS)]
        row_bytes = sum(_memory_of(column) for _, column in sample.items()) / max(1, len(sample))
        step = max(1, min(_ROWS, int(_BYTES / max(1, row_bytes))))
        for first in range(0, len(self._frame), step):
            part = self._frame.iloc[first : first + step]
            if splits is not None:
                part = split_frame(part, splits, first)
            with located(path=title, first=first):
                table = pandas_to_arrow.to_table(
                    part, schema, write_index=bool(levels), lossy=lossy, fitted=fitted
                )
            yield table

    def close(self) -> None:
        """Do nothing, because a DataFrame has no stream."""


def _memory_of(column: "pd.Series[Any]") -> int:
    """Return the size of a column in bytes. pandas cannot tell that of some Arrow types."""
    if isinstance(column.dtype, pd.ArrowDtype):
        return int(column.array.nbytes)
    return int(column.memory_usage(index=False, deep=True))


class ArrowRows:
    """Provide the rows of an Arrow stream that can be read only once. `PandasRows` describes the methods."""

    npartitions = 1
    columns_name = None

    def __init__(self, kind: str, reader: pa.RecordBatchReader, *, is_of_caller: bool = False) -> None:
        self.kind = kind
        self.columns = reader.schema.names
        self._reader = reader
        self._may_be_read_later = is_of_caller
        self._schema: pa.Schema = reader.schema
        self._rows = 0
        self._peeked: list[pa.RecordBatch] = []

    def levels(self, write_index: bool | None) -> Levels:
        if write_index:
            problem = f"write_index=True needs an index, and {self.kind} has none"
            raise TFRecordError(problem, Remedy("write_index", None, "write all columns"))
        return ()

    def plan(
        self,
        schema: GivenTypes,
        record_type: RecordType | None,
        keys: Sequence[str],
        levels: Levels,
        existing: Existing = NEW_DATASET,
    ) -> Schema:
        coded = [item.name for item in self._schema if pa.types.is_dictionary(item.type)]
        categories = self._first_categories(coded)

        source = self._without_values(existing, keys)
        forms, feature_lists = carried_by_schema(self._schema)

        def plan(record_type: RecordType | None) -> Schema:
            return plan_arrow_schema(
                source,
                categories,
                schema=schema,
                record_type=record_type,
                partition_on=keys,
                existing=existing,
                forms=chosen_forms(forms, schema, existing, record_type),
            )

        lists = {*feature_lists} & {*self.columns} - {*keys}
        planned = with_read_feature_lists(plan, record_type, lists, existing)
        return planned if record_type else _without_payloads(planned)

    def _without_values(self, existing: Existing, keys: Sequence[str]) -> pa.Schema:
        """Return the schema of the stream, with the null type for columns that do not fit the ``existing``
        columns and have no value in the first batch. A value in a later batch raises an error.
        """
        misfits = {
            item.name
            for item in self._schema
            if item.name not in keys and existing.fitting(item.name, item.type, is_inferred=False) is None
        }
        if misfits and not self._peeked and (batch := self._next()) is not None:
            self._peeked.append(batch)
        for batch in self._peeked[:1]:
            empty = {name for name in misfits if batch[name].null_count == batch.num_rows > 0}
            fields = [item.with_type(pa.null()) if item.name in empty else item for item in self._schema]
            return pa.schema(fields, self._schema.metadata)
        return self._schema

    def _first_categories(self, names: list[str]) -> dict[str, pa.Array]:
        """Return the categories of each column, from the first batch in which it has some.

        This method keeps the batches that it reads, so that `tables` can still convert them. The search ends
        after about 16 MiB of batches. Columns without categories in the searched batches are left out.
        """
        categories_by_name: dict[str, pa.Array] = {}
        size = 0
        while len(categories_by_name) < len(names) and size < _BYTES and (batch := self._next()) is not None:
            self._peeked.append(batch)
            size += batch.nbytes
            categories = {name: batch[name].dictionary for name in names if name not in categories_by_name}
            categories_by_name |= {name: values for name, values in categories.items() if len(values)}
        return categories_by_name

    def rounded(self, records: Schema, levels: Levels) -> list[str]:
        return rounded_columns({item.name: item.type for item in self._schema}, records)

    def tables(
        self,
        schema: Schema,
        lossy: Lossy,
        splits: Splits | None,
        levels: Levels,
        title: str,
        fitted: Collection[str] = (),
    ) -> Iterator[pa.Table]:
        first = 0
        for batch in self._batches():
            step = max(1, batch.num_rows * _BYTES // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, step):
                part = pa.Table.from_batches([batch.slice(start, step)])
                if splits is not None:
                    part = split_table(part, splits, first)
                with located(path=title, first=first):
                    columns = [
                        _converted(part[item.name], item, lossy, is_fitted=item.name in fitted)
                        for item in schema.fields
                    ]
                yield pa.Table.from_arrays(columns, schema=schema.arrow)
                first += part.num_rows

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while self._peeked:
            yield self._peeked.pop(0)
        while (batch := self._next()) is not None:
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        self._may_be_read_later = False
        try:
            batch = self._reader.read_next_batch()
        except StopIteration:
            return None
        except Exception as error:  # the program that creates the stream may raise any exception
            raise TFRecordError(
                f"{self.kind} failed after {self._rows:,} rows, and nothing was written: {first_line(error)}"
            ) from error
        self._rows += batch.num_rows
        return batch

    def close(self) -> None:
        """Release the stream, so that a database, for example, can run its next query.

        A reader that the caller opened, and from which nothing was read, stays open.
        """
        if not self._may_be_read_later:
            self._reader.close()


Source: TypeAlias = PandasRows | ArrowRows


def open_source(value: Any) -> Source:
    """Return the rows of a pandas DataFrame, or of an object that exports Arrow data."""
    if isinstance(value, pd.DataFrame):
        return PandasRows(value)
    kind = type(value)
    try:
        if hasattr(kind, "__arrow_c_stream__"):
            # Read from a RecordBatchReader directly, so that its errors keep their classes.
            if isinstance(value, pa.RecordBatchReader):
                return ArrowRows(kind.__name__, value, is_of_caller=True)
            return ArrowRows(kind.__name__, pa.RecordBatchReader.from_stream(value))
        if hasattr(kind, "__arrow_c_array__"):
            batch = pa.record_batch(value)
            return ArrowRows(kind.__name__, pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    except TFRecordError:
        raise
    except Exception as error:  # the program that creates the stream may raise any exception
        problem = f"{kind.__name__} gives no stream of Arrow tables: {first_line(error)}"
        if hasattr(kind, "to_frame"):
            problem = f"{kind.__name__} is one column, not a table"
        raise TFRecordError(problem, _advice(value)) from error
    raise TFRecordError(
        f"{kind.__name__} is not a Dask DataFrame, a pandas DataFrame, or a table or stream of Arrow data",
        _advice(value),
    )


def _advice(value: Any) -> str | None:
    kind = type(value)
    if issubclass(kind, str | os.PathLike):
        return "pass the rows as the first argument, and the path as the second"
    if isinstance(value, Mapping):
        return "pass pandas.DataFrame(rows)"
    items = [value] if isinstance(value, bytes) else value if isinstance(value, list | tuple) else []
    if items and all(isinstance(one, Mapping) for one in items):
        return "pass pyarrow.Table.from_pylist(rows)"
    if items and all(isinstance(one, bytes | bytearray | memoryview) for one in items):
        records = "[rows]" if isinstance(value, bytes) else "rows"
        return f'pass pyarrow.table({{"record": {records}}}) and record_type="bytes" for whole records'
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return "pass pandas.DataFrame(rows).rename(columns=str)"
    is_table = hasattr(kind, "__arrow_c_stream__") and not isinstance(value, pa.ChunkedArray)
    if is_table and not hasattr(kind, "to_frame"):
        return None
    values = "list(rows)" if isinstance(value, Iterable) else "[rows]"
    default = f'pass pandas.DataFrame({{"n": {values}}}) for a column "n"'
    return next((advice for method, advice in _ADVICE.items() if hasattr(kind, method)), default)


def _without_payloads(planned: Schema) -> Schema:
    """Return ``planned``. Warn if the only column has the name and kind of records read as bytes."""
    if [(item.name, item.kind) for item in planned.fields] == [(PAYLOAD.name, "bytes")]:
        warn_caller(
            f"the values of {PAYLOAD.name!r}, which may be whole records, are written as a feature of "
            'Examples; pass record_type="bytes" to write whole records, or record_type="example" to write '
            "features."
        )
    return planned


def _converted(column: pa.ChunkedArray, item: Field, lossy: Lossy, *, is_fitted: bool) -> pa.ChunkedArray:
    if column.type == item.type:
        item.check_categories(column)
        return column
    rounded = lossy != "raise"
    try:
        converted = convert_chunks(column, item.type, rounded=rounded, is_fitted=is_fitted)
    except CONVERSION_ERRORS as error:
        advice = error.advice if isinstance(error, MisfitError) else None
        if is_fitted and pa.types.is_null(item.type):  # the first batch has no value
            advice = "cast the column to the type of the dataset"
        type_ = widened(item.type, column.type, is_stored=False) or column.type
        wider = Remedy("schema", {item.name: type_}, "hold all values of the column")
        remedies = [ROUND] if isinstance(error, RoundedError) else [] if advice else [wider]
        found = first_misfit(
            f"a value does not fit {item.type}",
            lambda rows: convert_chunks(column[:rows], item.type, rounded=rounded, is_fitted=is_fitted),
            len(column),
            error,
        )
        raise found.replaced(advice=advice, remedies=remedies, feature=item.name) from None
    item.check_categories(converted)
    return converted
