"""What a dataset's columns are: names, Arrow types, and the features that hold them.

Knows Arrow and the kernel's columns, no files, no pandas and no Dask; how values change hands is `casts`.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, get_args

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import Column, Kind, RecordType
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.storage_types import MisfitError, describe, is_lossy, load, plain, store

__all__ = ["Field", "Lossy", "RecordType", "Schema"]

Lossy = Literal["warn", "allow", "raise"]

# What casts raise for values that do not fit, and Arrow for two types between which it has no cast.
_NO_CAST = (MisfitError, pa.ArrowInvalid, pa.ArrowNotImplementedError)


@dataclass(frozen=True)
class Field:
    """One column.

    Parameters
    ----------
    name : str
        Name of the column and of the feature.
    type : pyarrow.DataType
        The logical type, which is what users see.
    categories : pyarrow.Array, optional
        For a dictionary type: the categories known from the start, in their order. When the type is ordered
        there are no others.
    """

    name: str
    type: pa.DataType
    categories: pa.Array | None = field(default=None, hash=False)

    @property
    def kind(self) -> Kind:
        """Kind of the feature."""
        return self.column.kind

    @property
    def depth(self) -> int:
        """0 for a scalar, 1 for a list, 2 for a list of lists."""
        return self.column.depth

    @cached_property
    def column(self) -> Column:
        """What the kernel needs to know."""
        if pa.types.is_null(self.type):  # never more than present without a value
            return Column(self.name, "bytes", 1)
        return Column(self.name, *describe(self.type))

    @property
    def lossy(self) -> bool:
        """Whether values are rounded to 32-bit floats."""
        return is_lossy(self.type)

    def store(self, array: pa.Array, *, lossy: Lossy) -> pa.Array:
        """The column's values as the kernel takes them."""
        if array.type != self.type and plain(array.type) != self.type:
            raise SchemaError(f"the values are {array.type}, the column is {self.type}", feature=self.name)
        if pa.types.is_null(self.type):
            return pa.nulls(len(array), pa.list_(pa.binary()))
        try:
            if self.categories is not None and self.type.ordered:
                load(array.dictionary_decode(), self.type, self.categories)
            return store(array, exact=lossy == "raise")
        except _NO_CAST as error:
            raise self._error(error) from None

    def load(self, array: pa.Array) -> pa.Array:
        """The kernel's values as the column's type."""
        if pa.types.is_null(self.type):
            array = _only_nulls(array, self.name)
        try:
            return load(array, self.type, self.categories)
        except _NO_CAST as error:
            raise self._error(error) from None

    def no_rows(self) -> pa.Array:
        """An array of this type without values; a dictionary's holds the known categories."""
        empty = pa.nulls(0, self.type)
        if self.categories is None:
            return empty
        return pa.DictionaryArray.from_arrays(empty.indices, self.categories, ordered=self.type.ordered)

    def _error(self, error: Exception) -> SchemaError:
        if isinstance(error, MisfitError):
            return SchemaError(error.problem, record=error.row, feature=self.name, advice=error.advice)
        return SchemaError(f"pyarrow {pa.__version__} cannot convert {self.type}: {error}", feature=self.name)


@dataclass(frozen=True)
class Schema:
    """The columns of a dataset and the message that each of its records is."""

    fields: tuple[Field, ...]
    record_type: RecordType = "example"

    @classmethod
    def from_arrow(
        cls,
        schema: pa.Schema,
        record_type: RecordType = "example",
        *,
        categories: Mapping[str, pa.Array] | None = None,
    ) -> Self:
        """The plan for these columns, if TFRecord can hold them.

        Views become the plain types they are read back as. A column of the null type can only be missing.

        Parameters
        ----------
        schema : pyarrow.Schema
            Names and logical types.
        record_type : "example", "sequence_example" or "bytes"
            What each record is.
        categories : mapping of str to pyarrow.Array, optional
            The known categories of dictionary columns.

        Raises
        ------
        SchemaError
            For a name or a type that such records cannot hold.
        """
        if record_type not in get_args(RecordType):
            raise SchemaError(f"unknown record_type {record_type!r}; known are {_list(get_args(RecordType))}")
        check_names(schema.names)
        known = categories or {}
        fields = tuple(Field(item.name, plain(item.type), known.get(item.name)) for item in schema)
        for item in fields:
            _check_type(item, record_type)
        if record_type == "bytes":
            _check_payload(fields)
        return cls(fields, record_type)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [item.name for item in self.fields]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns as the kernel needs them."""
        return tuple(item.column for item in self.fields)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns with their logical types."""
        return pa.schema([(item.name, item.type) for item in self.fields])

    @property
    def lossy_names(self) -> list[str]:
        """The columns whose values are rounded to 32-bit floats."""
        return [item.name for item in self.fields if item.lossy]

    def select(self, names: Iterable[str]) -> Self:
        """The schema of these columns, in this order."""
        known = {item.name: item for item in self.fields}
        wanted = list(names)
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise SchemaError(f"no column is named {_list(unknown)}; there are {_list(self.names)}")
        return type(self)(tuple(known[name] for name in wanted), self.record_type)

    def no_rows(self) -> pa.RecordBatch:
        """A batch without rows; its dictionaries hold the known categories."""
        return pa.RecordBatch.from_arrays([item.no_rows() for item in self.fields], schema=self.arrow)

    def to_storage(self, batch: pa.RecordBatch, *, lossy: Lossy) -> pa.RecordBatch:
        """Logical values as the kernel takes them; zero-copy where the types allow.

        Raises
        ------
        SchemaError
            Naming the row of the batch and the column of a value that cannot be stored, or, with
            ``lossy="raise"``, that would not come back as it is.
        """
        if batch.schema.names != self.names:
            raise SchemaError(f"the columns are {_list(batch.schema.names)} instead of {_list(self.names)}")
        pairs = zip(self.fields, batch.columns, strict=True)
        return pa.RecordBatch.from_arrays(
            [item.store(array, lossy=lossy) for item, array in pairs], names=self.names
        )

    def from_storage(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the kernel decoded, as the logical types.

        Raises
        ------
        SchemaError
            Naming the row of the batch and the column of a value that does not fit the column's type.
        """
        if batch.schema.equals(self.arrow):  # of many columns, new batches cost as much as their values
            return batch
        pairs = zip(self.fields, batch.columns, strict=True)
        return pa.RecordBatch.from_arrays([item.load(array) for item, array in pairs], schema=self.arrow)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types: readable by people, and exact in ``arrow``, a base64 Arrow stream of no rows."""
        columns = [
            {"name": item.name, "type": str(item.type), "kind": item.kind, "depth": item.depth}
            for item in self.fields
        ]
        return {
            "record_type": self.record_type,
            "columns": columns,
            "known_categories": [item.name for item in self.fields if item.categories is not None],
            "arrow": base64.b64encode(self._ipc()).decode("ascii"),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The schema that `to_json` described.

        Raises
        ------
        SchemaError
            For anything that `to_json` did not make.
        """
        try:
            stream = base64.b64decode(value["arrow"], validate=True)
            with pa.ipc.open_stream(stream) as reader:
                empty = reader.read_all()
            known = {
                name: empty.column(name).combine_chunks().dictionary for name in value["known_categories"]
            }
            if not empty.schema.names and value["record_type"] in get_args(RecordType):
                return cls((), value["record_type"])  # of records without features
            return cls.from_arrow(empty.schema, value["record_type"], categories=known)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise SchemaError(f"the stored schema is not readable: {error}") from error

    def _ipc(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.arrow) as writer:
            writer.write_batch(self.no_rows())
        return bytes(sink.getvalue())


def _list(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names)) or "none"


def check_names(names: Sequence[object]) -> None:
    """Refuse names that cannot be the keys of a record."""
    if not names:
        raise SchemaError("there are no columns to store", advice="keep at least one column")
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise SchemaError(
            f"column names must be strings, not {_list(strange)}",
            advice="rename with ddf.rename(columns=str)",
        )
    if "" in names:
        raise SchemaError("a column has an empty name", advice="rename it")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise SchemaError(
            f"several columns are named {_list(repeated)}, a record holds each name once",
            advice="rename them",
        )


def _check_type(item: Field, record_type: RecordType) -> None:
    try:
        depth = item.depth
    except SchemaError as error:
        raise error.located(feature=item.name) from None
    if depth > (1 if record_type == "example" else 2):
        raise SchemaError(
            f"{item.type} nests lists deeper than record_type={record_type!r} does",
            feature=item.name,
            advice='pass record_type="sequence_example"' if depth == 2 else "flatten the lists",
        )


def _check_payload(fields: Sequence[Field]) -> None:
    """Records of bytes are the values of one column."""
    if len(fields) != 1 or fields[0].kind not in ("bytes", "string") or fields[0].depth:
        names = _list(item.name for item in fields)
        raise SchemaError(
            f'record_type="bytes" stores exactly one binary or string column, not {names}',
            advice='select such a column, or pass record_type="example"',
        )


def _only_nulls(array: pa.Array, name: str) -> pa.Array:
    """A column of the null type, if no record holds a value for it."""
    row = pc.index(pc.greater(pc.list_value_length(array), 0), True).as_py()
    if row >= 0:
        raise SchemaError(
            "the record holds bytes, the column is null",
            record=row,
            feature=name,
            advice=f'pass schema={{"{name}": pa.binary()}}',
        )
    return pa.nulls(len(array))
