"""Convert the feature specs of TensorFlow, the argument of ``tf.io.parse_example``, to columns.

The classes of the specs are recognised by their names. TensorFlow is not imported.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.stored_form import Integers, RowPartition, Size, StoredForm

_CLASSES = frozenset(
    {"FixedLenFeature", "FixedLenSequenceFeature", "VarLenFeature", "RaggedFeature", "SparseFeature"}
)
_TYPES = {"int64": pa.int64(), "float32": pa.float32(), "string": pa.binary()}
_PARTITIONS: dict[str, Integers] = {
    "RowLengths": "row_lengths",
    "RowSplits": "row_splits",
    "RowStarts": "row_starts",
    "RowLimits": "row_limits",
    "ValueRowIds": "value_rowids",
}


def is_spec(value: object) -> bool:
    """Return True for the spec of one feature, such as ``tf.io.FixedLenFeature``."""
    class_ = type(value)
    return class_.__name__ in _CLASSES and class_.__module__.partition(".")[0] == "tensorflow"


def schema_of(specs: Mapping[Any, Any]) -> Schema:
    """Return the columns that ``tf.io.parse_example`` would parse with these specs.

    Raises
    ------
    SchemaError
        If no column can express a spec.
    """
    found: dict[str, Field] = {}
    for name, spec in specs.items():
        if not isinstance(name, str) or not is_spec(spec):
            problem = f"{spec!r} is not a feature spec, but other values of schema= are"
            raise SchemaError(problem, "pass only feature specs, or only types of columns", feature=str(name))
        for item in _fields(name, spec):
            if found.setdefault(item.name, item) != item:
                raise _problem(item.name, "two specs describe this column differently", "remove one of them")
    schema = Schema(tuple(found.values()))
    names = [one.name for one in schema.columns]
    if repeated := [name for name in names if names.count(name) > 1]:
        problem = "two specs read this feature, but as different types or with different numbers of values"
        raise _problem(repeated[0], problem, "remove one of the specs")
    return schema


def _fields(name: str, spec: Any) -> Iterator[Field]:
    dtype = str(getattr(spec.dtype, "name", spec.dtype))
    if dtype not in _TYPES:
        known = ", ".join(f"tf.{one}" for one in _TYPES)
        raise _problem(
            name, f"features cannot hold {dtype}", f"use one of {known}, and cast the column after reading"
        )
    type_ = _TYPES[dtype]
    match type(spec).__name__:
        case "FixedLenFeature":
            yield _fixed(name, type_, _shape(name, spec), spec.default_value is not None)
        case "FixedLenSequenceFeature":
            shape = _shape(name, spec)
            form = StoredForm(type_, shape, (None,), is_optional=True)
            yield Field.in_form(name, form) if shape else Field(name, pa.list_(type_))
        case "VarLenFeature":
            yield Field(name, pa.list_(type_))
        case "RaggedFeature":
            yield _ragged(name, type_, spec)
        case "SparseFeature":
            keys = [spec.index_key] if isinstance(spec.index_key, str) else [*spec.index_key]
            for key in keys:
                yield Field(key, pa.list_(pa.int64()))
            yield Field(spec.value_key, pa.list_(type_))


def _fixed(name: str, type_: pa.DataType, shape: tuple[int, ...], is_optional: bool) -> Field:
    if is_optional and not shape:
        return Field(name, type_)
    return Field.in_form(name, StoredForm(type_, shape, is_optional=is_optional))


def _shape(name: str, spec: Any) -> tuple[int, ...]:
    sizes = spec.shape.as_list() if hasattr(spec.shape, "as_list") else spec.shape
    sizes = [sizes] if isinstance(sizes, int) else [*sizes]
    if any(size is None or int(size) < 0 for size in sizes):
        problem = f"the shape {sizes} has an unknown dimension"
        advice = "use FixedLenSequenceFeature if the first dimension is unknown, or RaggedFeature"
        raise _problem(name, problem, advice)
    return tuple(map(int, sizes))


def _ragged(name: str, type_: pa.DataType, spec: Any) -> Field:
    key = spec.value_key or name
    if not spec.partitions and key == name:
        return Field(name, pa.list_(type_))
    sizes, partitions = list[Size](), list[RowPartition | None]()
    for one in spec.partitions:
        kind = type(one).__name__
        if kind == "UniformRowLength" and int(one.length) > 0:
            sizes.append(int(one.length))
            partitions.append(None)
        elif kind in _PARTITIONS:
            sizes.append(None)
            partitions.append(RowPartition(_PARTITIONS[kind], one.key))
        else:
            raise _problem(
                name, f"the partition {one!r} cannot be read", "read the values with a VarLenFeature"
            )
    return Field.in_form(
        name,
        StoredForm(
            type_,
            lengths=(None, *sizes),
            is_optional=not partitions,
            value_feature=key,
            partitions=tuple(partitions),
        ),
    )


def _problem(name: str, problem: str, advice: str) -> SchemaError:
    return SchemaError(problem, advice, feature=name)
