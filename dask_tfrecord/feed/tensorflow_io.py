"""Convert batches for the Arrow datasets of TensorFlow I/O, and generate code for them.

TensorFlow I/O is not imported. The limits of TensorFlow I/O were checked on version 0.37.1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError
from dask_tfrecord.feed.numpy_columns import fill_value
from dask_tfrecord.keywords.arguments import BatchMode
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.logical_types import is_binary, is_list, is_text, scalar_kind
from dask_tfrecord.schema.storage_values import integer_type

_MODES: dict[BatchMode, str] = {"keep": "keep_remainder", "drop": "drop_remainder", "auto": "auto"}

# Maps a type's Arrow name to TensorFlow's, if they differ.
_DTYPES = {"halffloat": "float16", "float": "float32", "double": "float64", "binary": "string"}


@dataclass(frozen=True)
class Client:
    """Describe what a client receives: batches with the columns of ``source``, cast and without nulls.

    An element of the client's dataset is a batch, or a single row if ``batch_size`` is None.
    """

    source: pa.Schema
    batch_size: int | None
    batch_mode: BatchMode
    fill_nulls: Mapping[str, Any]

    def __post_init__(self) -> None:
        schema = self.schema  # this property raises an error for a type that TensorFlow I/O cannot read
        for name, value in self.fill_nulls.items():
            if value is None or not fill_value(name, _value_type(schema.field(name).type), value).is_valid:
                raise TFRecordError(f"fill_nulls= replaces the nulls of the column {name!r} by null")

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([(item.name, _sent_type(item)) for item in self.source])

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cast a batch to the types in which its columns are sent, and replace nulls."""
        schema = self.schema
        columns = [
            self._convert(item.name, column, item.type)
            for item, column in zip(schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _convert(self, name: str, column: pa.Array, target: pa.DataType) -> pa.Array:
        size = _list_size(column.type) or 0
        column = _storage(column).cast(target)
        filler = self.fill_nulls.get(name)
        if column.null_count:
            if filler is None:
                raise _null_error(name, target, f"{column.null_count:,} nulls")
            new = [filler] * size if types.is_list(target) else filler
            column = pc.coalesce(column, pa.scalar(new, target))
        if not types.is_list(target):
            return column
        if nulls := column.flatten().null_count:
            if filler is None:
                raise _null_error(name, target, f"{nulls:,} nulls inside lists")
            values = column.values.fill_null(pa.scalar(filler, target.value_type))
            column = pa.ListArray.from_arrays(column.offsets, values)
        if self.batch_size is not None or self.batch_mode == "auto":
            _check_lengths(name, column)
        return column

    def code(self, dataset: str, first: str, places: Sequence[str]) -> str:
        """Return Python code that constructs a dataset with a class of `tensorflow_io.arrow`.

        ``first`` is the name of the class's first parameter. ``places`` is the argument for this parameter:
        endpoints or file names.
        """
        arguments = {
            first: repr(list(places)),
            "columns": repr(tuple(range(len(self.source)))),
            "output_types": _tuple(f"tf.{_dtype(item.type)}" for item in self.schema),
            "output_shapes": _tuple(_shape(item.type) for item in self.source),
            "batch_mode": repr(_MODES[self.batch_mode]),
        }
        batched = self.batch_size is not None or self.batch_mode == "auto"
        if self.batch_size is not None and self.batch_mode != "auto":
            arguments["batch_size"] = repr(self.batch_size)
        lines = [
            "import tensorflow as tf",
            "import tensorflow_io.arrow as arrow_io",
            "",
            f"dataset = arrow_io.{dataset}(",
            *(f"    {name}={value}," for name, value in arguments.items()),
            ")",
            f"names = {tuple(self.source.names)!r}",
            "dataset = dataset.map(lambda *columns: dict(zip(names, columns)))",
        ]
        for item in self.source:
            if isinstance(item.type, pa.FixedShapeTensorType):
                shape = [-1, *item.type.shape] if batched else list(item.type.shape)
                tensor = f"tf.reshape(row[{item.name!r}], {shape})"
                lines.append(f"dataset = dataset.map(lambda row: {{**row, {item.name!r}: {tensor}}})")
        return "\n".join(lines)


def _storage(column: pa.Array) -> pa.Array:
    return _storage(column.storage) if isinstance(column.type, pa.BaseExtensionType) else column


def _sent_type(item: pa.Field) -> pa.DataType:
    plain = _plain_type(item.type)
    if plain is None:
        problem = f"TensorFlow I/O cannot read the type {item.type}"
        advice = "leave the column out with columns=, or convert it before it is served"
        raise SchemaError(problem, advice, feature=item.name)
    return plain


def _plain_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type in which values of ``type_`` are sent, or None if TensorFlow I/O cannot read them."""
    if isinstance(type_, pa.BaseExtensionType):
        return _plain_type(type_.storage_type)
    if types.is_dictionary(type_):
        return _plain_type(type_.value_type)
    if is_list(type_):
        inner = _plain_type(type_.value_type)
        return None if inner is None or types.is_list(inner) else pa.list_(inner)
    if types.is_boolean(type_) or types.is_integer(type_) or types.is_floating(type_):
        return type_
    if is_text(type_) or is_binary(type_):
        return pa.string() if is_text(type_) else pa.binary()
    return integer_type(type_) if scalar_kind(type_) == "int64" else None


def _value_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if types.is_list(type_) else type_


def _dtype(type_: pa.DataType) -> str:
    name = str(_value_type(type_))
    return _DTYPES.get(name, name)


def _list_size(type_: pa.DataType) -> int | None:
    if isinstance(type_, pa.BaseExtensionType):
        return _list_size(type_.storage_type)
    return type_.list_size if types.is_fixed_size_list(type_) else None


def _shape(type_: pa.DataType) -> str:
    if not types.is_list(_plain_type(type_)):
        return "[]"
    return repr([_list_size(type_)])


def _tuple(items: Iterable[str]) -> str:
    texts = list(items)
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _null_error(name: str, type_: pa.DataType, what: str) -> SchemaError:
    plain = _value_type(type_)
    value: Any = "" if types.is_string(plain) else b"" if types.is_binary(plain) else 0
    value = False if types.is_boolean(plain) else value
    problem = f"a batch has {what}, and TensorFlow I/O has no nulls"
    remedy = Remedy("fill_nulls", {name: value}, "replace nulls by this value, or another one")
    return SchemaError(problem, "leave the column out with columns=", remedy, feature=name, function="")


def _check_lengths(name: str, column: pa.Array) -> None:
    lengths = pc.min_max(pc.list_value_length(column))
    least, most = lengths["min"].as_py(), lengths["max"].as_py()
    if least != most:
        problem = f"a batch has lists of {least:,} to {most:,} values, which TensorFlow I/O cannot batch"
        remedy = Remedy("batch_size", None, "let the client batch the rows, as padded_batch does")
        raise SchemaError(problem, remedy, feature=name, function="")
