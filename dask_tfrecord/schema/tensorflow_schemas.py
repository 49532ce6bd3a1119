"""Convert schemas of TensorFlow Metadata and feature specs of TensorFlow to columns.

The file ``schema.proto`` of TensorFlow Metadata defines what a schema contains. Schema files have protobuf's
text format (https://protobuf.dev/reference/protobuf/textformat-spec/). Feature specs describe the features
that ``tf.io.parse_example`` parses. The shapes of the columns follow the tensor representations that TFX
derives from a schema. This module imports neither TensorFlow nor TensorFlow Metadata, and recognises their
classes by name.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.stored_form import Integers, RowPartition, Size, StoredForm
from dask_tfrecord.schema.tfmd_message import enum_name, parse

# The name of the schema file in a TFX directory.
SCHEMA_FILE = "schema.pbtxt"

# The type of a protobuf message, which is `Any` because the message class is created at run time.
Message: TypeAlias = Any

# TFX describes the feature lists of SequenceExamples as the fields of a struct with this name.
SEQUENCE = "##SEQUENCE##"

# TFX does not read features in these lifecycle stages.
_UNUSED = ("DEPRECATED", "DISABLED", "PLANNED", "ALPHA", "DEBUG_ONLY", "VALIDATION_DERIVED")

# Maps each `integer_format` of a TensorFlow Metadata time domain to the Arrow type of the column.
TIMES = {
    "UNIX_SECONDS": pa.timestamp("s"),
    "UNIX_MILLISECONDS": pa.timestamp("ms"),
    "UNIX_MICROSECONDS": pa.timestamp("us"),
    "UNIX_NANOSECONDS": pa.timestamp("ns"),
    "UNIX_DAYS": pa.date32(),
}

# Maps the bounds of an integer domain to the type with exactly these bounds.
_NARROW = {
    (np.iinfo(name).min, np.iinfo(name).max): pa.type_for_alias(name)
    for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")
}

# A bytes feature with one of these domains contains text.
_TEXT_DOMAINS = ("natural_language_domain", "url_domain")


class _Values(NamedTuple):
    type: pa.DataType
    categories: pa.Array | None = None
    spellings: tuple[str, str] | None = None


def is_message(value: object) -> bool:
    """Return True for a ``Schema`` message of TensorFlow Metadata."""
    class_ = type(value)
    return class_.__name__ == "Schema" and class_.__module__.startswith("tensorflow_metadata.")


def metadata_schema(text: str) -> Schema:
    """Return the columns that a TensorFlow Metadata schema in protobuf's text format describes.

    Raise SchemaError if the text is not a schema of TensorFlow Metadata, or if no column can represent a
    feature.
    """
    try:
        message = parse(text)
        fields = tuple(_fields(message))
    except SchemaError:
        raise
    except (ValueError, OverflowError) as error:
        raise SchemaError(
            f"the text is not a schema of TensorFlow Metadata: {error}",
            "pass a schema.pbtxt that TFX or TensorFlow Data Validation wrote",
        ) from None
    if not fields:
        raise SchemaError("the schema describes no features", "pass a schema.pbtxt with at least one feature")
    has_lists = any(item.features[0].depth == 2 for item in fields)
    return Schema(fields, "sequence_example" if has_lists else "example")


def _fields(schema: Message) -> Iterator[Field]:
    features = {_name_of(item): item for item in schema.feature}
    if len(features) < len(schema.feature):
        names = [_name_of(item) for item in schema.feature]
        problem = "the schema describes two features with this name"
        advice = "remove one of the two features from the schema"
        raise _problem(next(name for name in names if names.count(name) > 1), problem, advice)
    tensors = _tensors(schema)
    joined = {
        key: _ragged(key, one, features, schema)
        for key, one in tensors.items()
        if one.HasField("ragged_tensor") and not _is_feature_list(key, one.ragged_tensor)
    }
    hidden = {one.feature for form in joined.values() for one in form.partitions if one is not None}
    shapes = {one.dense_tensor.column_name: one.dense_tensor for one in tensors.values()}
    for name, item in features.items():
        if of_values := [(key, form) for key, form in joined.items() if form.value_feature == name]:
            yield from (Field.in_form(*one) for one in of_values)
        elif name in joined:
            problem = "a feature and a ragged tensor of other features have this name"
            raise _problem(name, problem, "rename the ragged tensor in tensor_representation_group")
        elif name not in hidden and _is_used(item):
            if name == SEQUENCE and item.HasField("struct_domain"):
                yield from _feature_lists(item, schema, features)
            else:
                yield _field(name, item, schema, shapes.get(name))


def _is_used(item: Message) -> bool:
    return not item.deprecated and enum_name(item, "lifecycle_stage") not in _UNUSED


def _feature_lists(struct: Message, schema: Message, others: Collection[str]) -> Iterator[Field]:
    """Yield a column of lists of lists for each feature list. TFX reads each as such a ragged tensor."""
    for item in filter(_is_used, struct.struct_domain.feature):
        name = _name_of(item)
        if name in others:
            problem = "a feature of the context and a feature list have this name"
            raise _problem(name, problem, "remove one of the two features from the schema")
        values = _values(name, item, schema)
        type_ = pa.binary() if values.spellings is not None else values.type
        yield Field(name, pa.list_(pa.list_(type_)))


def _is_feature_list(key: str, tensor: Message) -> bool:
    """Return True if a ragged tensor is a feature list, which `_feature_lists` describes."""
    return [*tensor.feature_path.step] == [SEQUENCE, key] and not tensor.partition


def _field(name: str, item: Message, schema: Message, dense: Message | None) -> Field:
    values = _values(name, item, schema)
    shape = _shape(name, item, dense)
    is_scalar = shape is not None and shape in ((), (1,))
    if is_scalar:
        shape = ()
    is_required = shape is not None and _is_required(item) and not _has(dense, "default_value")
    if not is_required and values.spellings is None:
        # Optional scalars, and lists of any length, need no `StoredForm`, because an absent feature becomes
        # null.
        if shape is None:
            type_ = values.type if values.categories is None else pa.string()
            return Field(name, pa.list_(type_), spec="lists")
        if is_scalar and values.categories is not None:
            return Field(name, pa.dictionary(pa.int32(), pa.string()), values.categories)
        if is_scalar:
            return Field(name, values.type)
    return Field.in_form(
        name,
        StoredForm(
            values.type,
            shape or (),
            () if shape is not None else (None,),
            is_optional=not is_required,
            categories=values.categories if is_scalar else None,
            spellings=values.spellings,
        ),
    )


def _name_of(item: Message) -> str:
    if not item.name:
        raise ValueError("a feature has no name")
    name: str = item.name
    return name


def _is_required(item: Message) -> bool:
    """Return True if all records must have the feature."""
    # A feature that belongs only to some environments, such as the label of a model, is absent in all other
    # environments.
    if item.not_in_environment or item.in_environment:
        return False
    return bool(item.presence.min_fraction >= 1)


def _has(message: Message | None, field: str) -> bool:
    return message is not None and message.HasField(field)


# -- The type of the values ---------------------------------------------------------------------------------


def _values(name: str, item: Message, schema: Message) -> _Values:
    kind = enum_name(item, "type") if item.HasField("type") else ""
    if kind == "INT":
        return _Values(_integer_type(item))
    if kind == "FLOAT":
        return _Values(pa.float32())
    if kind == "BYTES":
        return _bytes_values(name, item, schema)
    what = f"has the type {kind}" if kind else "has no type in the schema"
    raise _problem(
        name,
        f"the feature {what}, which no column can read",
        "remove the feature from the schema, or set its lifecycle_stage to DEPRECATED; without schema=, the "
        "types are inferred from the records",
    )


def _integer_type(item: Message) -> pa.DataType:
    if item.HasField("bool_domain"):
        return pa.bool_()
    if item.HasField("time_domain"):
        return TIMES.get(enum_name(item.time_domain, "integer_format"), pa.int64())
    bounds = item.int_domain.min, item.int_domain.max
    return _NARROW.get(bounds, pa.int64())  # other bounds restrict the values, not the type


def _bytes_values(name: str, item: Message, schema: Message) -> _Values:
    if item.HasField("bool_domain"):
        spellings = item.bool_domain.false_value, item.bool_domain.true_value
        if spellings[0] == spellings[1]:
            problem = "the bool_domain of the feature does not say which bytes stand for true and false"
            advice = "set true_value and false_value, or remove bool_domain to read the bytes"
            raise _problem(name, problem, advice)
        return _Values(pa.bool_(), spellings=spellings)
    if item.HasField("string_domain") or item.HasField("domain"):
        texts = _domain_values(name, item, schema)
        if texts:
            return _Values(pa.string(), pa.array(dict.fromkeys(texts), pa.string()))
        return _Values(pa.string())
    is_text = any(map(item.HasField, _TEXT_DOMAINS)) or item.time_domain.HasField("string_format")
    return _Values(pa.string() if is_text else pa.binary())


def _domain_values(name: str, item: Message, schema: Message) -> list[str]:
    if item.HasField("string_domain"):
        return list(item.string_domain.value)
    for domain in schema.string_domain:
        if domain.name == item.domain:
            return list(domain.value)
    raise _problem(
        name,
        f"the feature has the domain {item.domain!r}, but the schema has no string_domain with this name",
        "add the string_domain to the schema, or remove the domain of the feature",
    )


# -- The shape of the values --------------------------------------------------------------------------------


def _shape(name: str, item: Message, dense: Message | None) -> tuple[Size, ...] | None:
    """Return the shape of a feature's tensor, or None if the number of values differs between records."""
    described = next((one for one in (item, dense) if _has(one, "shape")), None)
    if described is not None:
        shape = tuple(dim.size if dim.HasField("size") else -1 for dim in described.shape.dim)
        if min(shape, default=0) < 0:
            problem = f"the shape {list(shape)} of the feature has a dimension without a size"
            raise _problem(name, problem, "set the size of the dimension, or replace shape by value_count")
        return shape
    counts = list(item.value_counts.value_count) or [item.value_count]
    if len(counts) > 1:
        problem = f"the feature has {len(counts)} levels of nested values, which Examples cannot hold"
        advice = "replace value_counts by value_count, or describe the levels by a ragged_tensor"
        raise _problem(name, problem, advice)
    least, most = counts[0].min, counts[0].max
    return (least,) if least == most and least > 0 else None


def _tensors(schema: Message) -> dict[str, Message]:
    """Return the tensor representations of the default group, whose name is empty."""
    tensors: dict[str, Message] = {}
    for group in schema.tensor_representation_group:
        if not group.key:
            tensors |= {entry.key: entry.value for entry in group.value.tensor_representation}
    return tensors


def _ragged(key: str, tensor: Message, features: Mapping[str, Message], schema: Message) -> StoredForm:
    """Return the form of a ragged tensor, whose values and row lengths are stored in separate features."""
    ragged = tensor.ragged_tensor
    steps = list(ragged.feature_path.step)
    if len(steps) != 1 or steps[0] not in features:
        raise _problem(
            key,
            f"the schema has no feature {'/'.join(steps)!r}, which holds the values of the ragged_tensor",
            "name a feature in feature_path, or remove the ragged_tensor",
        )
    (name,), sizes, partitions = steps, list[Size](), list[RowPartition | None]()
    values = _values(name, features[name], schema)
    for partition in ragged.partition:
        uniform = partition.uniform_row_length
        if uniform < 1 and not partition.row_length:
            raise _problem(
                key,
                "a partition of the ragged_tensor has neither a row_length nor a positive uniform_row_length",
                "correct the partition",
            )
        sizes.append(uniform or None)
        partitions.append(None if uniform else RowPartition("row_lengths", partition.row_length))
    return StoredForm(
        values.type,
        lengths=(None, *sizes),
        spellings=values.spellings,
        value_feature=name,
        partitions=tuple(partitions),
    )


def _problem(name: str, problem: str, advice: str) -> SchemaError:
    return SchemaError(problem, advice, feature=name)


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


def feature_spec_schema(specs: Mapping[Any, Any]) -> Schema:
    """Return the columns that ``tf.io.parse_example`` would parse. Raise SchemaError if no column can
    represent a spec.
    """
    fields: dict[str, Field] = {}
    for name, spec in specs.items():
        if not isinstance(name, str) or not is_spec(spec):
            problem = f"{spec!r} is not a feature spec, but other values of schema= are"
            raise SchemaError(problem, "pass only feature specs, or only types of columns", feature=str(name))
        for item in _spec_fields(name, spec):
            if fields.setdefault(item.name, item) != item:
                raise _problem(item.name, "two specs describe this column differently", "remove one of them")
    schema = Schema(tuple(fields.values()))
    names = [one.name for one in schema.columns]
    if repeated := [name for name in names if names.count(name) > 1]:
        problem = "two specs read this feature, but as different types or with different numbers of values"
        raise _problem(repeated[0], problem, "remove one of the specs")
    return schema


def _spec_fields(name: str, spec: Any) -> Iterator[Field]:
    dtype = str(getattr(spec.dtype, "name", spec.dtype))
    if dtype not in _TYPES:
        known = ", ".join(f"tf.{one}" for one in _TYPES)
        raise _problem(
            name, f"features cannot hold {dtype}", f"use one of {known}, and cast the column after reading"
        )
    type_ = _TYPES[dtype]
    match type(spec).__name__:
        case "FixedLenFeature":
            shape, is_optional = _spec_shape(name, spec), spec.default_value is not None
            form = StoredForm(type_, shape, is_optional=is_optional)
            yield Field(name, type_) if is_optional and not shape else Field.in_form(name, form)
        case "FixedLenSequenceFeature":
            shape = _spec_shape(name, spec)
            form = StoredForm(type_, shape, (None,), is_optional=True)
            item = Field.in_form(name, form) if shape else Field(name, pa.list_(type_))
            yield replace(item, spec="scalars")
        case "VarLenFeature":
            yield Field(name, pa.list_(type_), spec="lists")
        case "RaggedFeature":
            yield _ragged_spec(name, type_, spec)
        case "SparseFeature":
            keys = [spec.index_key] if isinstance(spec.index_key, str) else [*spec.index_key]
            for key in keys:
                yield Field(key, pa.list_(pa.int64()), spec="lists")
            yield Field(spec.value_key, pa.list_(type_), spec="lists")


def _spec_shape(name: str, spec: Any) -> tuple[int, ...]:
    sizes = spec.shape.as_list() if hasattr(spec.shape, "as_list") else spec.shape
    sizes = [sizes] if isinstance(sizes, int) else [*sizes]
    if any(size is None or int(size) < 0 for size in sizes):
        problem = f"the shape {sizes} has an unknown dimension"
        advice = "use FixedLenSequenceFeature if the first dimension is unknown, or RaggedFeature"
        raise _problem(name, problem, advice)
    return tuple(map(int, sizes))


def _ragged_spec(name: str, type_: pa.DataType, spec: Any) -> Field:
    key = spec.value_key or name
    if not spec.partitions and key == name:
        return Field(name, pa.list_(type_), spec="lists")
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
