"""Convert a schema of TensorFlow Metadata, such as ``schema.pbtxt`` of TFX, to columns.

The source of the format is ``schema.proto`` of TensorFlow Metadata. The shapes of the columns follow the
tensor representations that TFX derives from a schema. TensorFlow Metadata is not imported.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.stored_form import RowPartition, Size, StoredForm
from dask_tfrecord.schema.text_proto import Message, parse

# The name of the file with the schema in a directory of TFX.
SCHEMA_FILE = "schema.pbtxt"

_KINDS = {"1": "BYTES", "2": "INT", "3": "FLOAT", "4": "STRUCT"}
_STAGES = {"1": "PLANNED", "2": "ALPHA", "5": "DEPRECATED", "6": "DEBUG_ONLY", "7": "DISABLED"}

# The stages of features that TFX does not read.
_UNUSED = ("DEPRECATED", "DISABLED", "PLANNED", "ALPHA", "DEBUG_ONLY", "VALIDATION_DERIVED", "9")

# The types of the numbers of a time domain.
TIMES = {
    "UNIX_SECONDS": pa.timestamp("s"),
    "UNIX_MILLISECONDS": pa.timestamp("ms"),
    "UNIX_MICROSECONDS": pa.timestamp("us"),
    "UNIX_NANOSECONDS": pa.timestamp("ns"),
    "UNIX_DAYS": pa.date32(),
}
_TIME_NUMBERS = {"1": "UNIX_SECONDS", "2": "UNIX_MILLISECONDS", "3": "UNIX_MICROSECONDS"} | {
    "4": "UNIX_NANOSECONDS",
    "5": "UNIX_DAYS",
}

# The types whose bounds an integer domain may have.
_NARROW = {
    (np.iinfo(name).min, np.iinfo(name).max): pa.type_for_alias(name)
    for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")
}

# Domains of text in features of bytes.
_TEXT_DOMAINS = ("natural_language_domain", "url_domain")


class _Values(NamedTuple):
    """The type of the values of a feature, and the parts of a `StoredForm` that belong to the type."""

    type: pa.DataType
    categories: pa.Array | None = None
    spellings: tuple[str, str] | None = None


def is_message(value: object) -> bool:
    """Return True for a ``Schema`` message of TensorFlow Metadata. The class is recognised by its name."""
    class_ = type(value)
    return class_.__name__ == "Schema" and class_.__module__.startswith("tensorflow_metadata.")


def schema_of(text: str) -> Schema:
    """Return the columns that a schema of TensorFlow Metadata in protobuf's text format describes.

    Raises
    ------
    SchemaError
        If the text is not such a schema, or if no column can express a feature.
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
    return Schema(fields)


def _fields(schema: Message) -> Iterator[Field]:
    features = {_name_of(item): item for item in schema.messages("feature")}
    if len(features) < len(schema.messages("feature")):
        names = [_name_of(item) for item in schema.messages("feature")]
        problem = "the schema describes two features with this name"
        advice = "remove one of the two features from the schema"
        raise _problem(next(name for name in names if names.count(name) > 1), problem, advice)
    tensors = _tensors(schema)
    joined = {key: _ragged(key, one, features) for key, one in tensors.items() if "ragged_tensor" in one}
    hidden = {one.feature for form in joined.values() for one in form.partitions if one is not None}
    of_values = {form.value_feature: key for key, form in joined.items()}
    shapes = {
        dense.text("column_name"): dense
        for dense in (one.message("dense_tensor") for one in tensors.values())
    }
    for name, item in features.items():
        if name in of_values:
            yield from (
                Field.in_form(key, form) for key, form in joined.items() if form.value_feature == name
            )
        elif name in joined:
            problem = "a feature and a ragged tensor of other features have this name"
            raise _problem(name, problem, "rename the ragged tensor in tensor_representation_group")
        elif name not in hidden and not _is_unused(item):
            yield _field(name, item, schema, shapes.get(name, Message()))


def _field(name: str, item: Message, schema: Message, dense: Message) -> Field:
    """Return the column of a feature. The message ``dense`` is the dense tensor of the feature, if any."""
    values = _values(name, item, schema)
    shape = _shape(name, item, dense)
    is_scalar = shape is not None and shape in ((), (1,))
    if is_scalar:
        shape = ()
    is_required = shape is not None and _is_required(item) and "default_value" not in dense
    if not is_required and values.spellings is None:
        # These columns need no form, because features that are absent become null.
        if shape is None:
            type_ = values.type if values.categories is None else pa.string()
            return Field(name, pa.list_(type_))
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
    name = item.text("name")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name {name!r} of a feature is not valid UTF-8") from None
    if not name:
        raise ValueError("a feature has no name")
    return name


def _is_unused(item: Message) -> bool:
    stage = item.text("lifecycle_stage")
    return _STAGES.get(stage, stage) in _UNUSED or item.text("deprecated") in ("true", "True", "t", "1")


def _is_required(item: Message) -> bool:
    """Return True if all records must have the feature."""
    # A feature that belongs only to some environments, such as the label of a model, is absent in others.
    if "not_in_environment" in item or "in_environment" in item:
        return False
    return _number(item.message("presence").text("min_fraction", "0")) >= 1


def _number(text: str) -> float:
    return float(text.rstrip("fF") if text.lower() not in ("inf", "-inf") else text)


def _integer(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    is_octal = len(digits) > 1 and digits.startswith("0") and digits.isdecimal()
    return sign * (int(digits, 8) if is_octal else int(digits, 0))


# -- The type of the values ---------------------------------------------------------------------------------


def _values(name: str, item: Message, schema: Message) -> _Values:
    kind = _KINDS.get(item.text("type"), item.text("type"))
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
    if "bool_domain" in item:
        return pa.bool_()
    if "time_domain" in item:
        unit = item.message("time_domain").text("integer_format")
        return TIMES.get(_TIME_NUMBERS.get(unit, unit), pa.int64())
    domain = item.message("int_domain")
    bounds = _integer(domain.text("min", "0")), _integer(domain.text("max", "0"))
    return _NARROW.get(bounds, pa.int64())  # other bounds restrict the values, but do not define a type


def _bytes_values(name: str, item: Message, schema: Message) -> _Values:
    if "bool_domain" in item:
        domain = item.message("bool_domain")
        spellings = domain.text("false_value"), domain.text("true_value")
        if spellings[0] == spellings[1]:
            problem = "the bool_domain of the feature does not say which bytes stand for true and false"
            advice = "set true_value and false_value, or remove bool_domain to read the bytes"
            raise _problem(name, problem, advice)
        return _Values(pa.bool_(), spellings=spellings)
    if "string_domain" in item or "domain" in item:
        texts = _domain_values(name, item, schema)
        if texts:
            return _Values(pa.string(), pa.array(dict.fromkeys(texts), pa.string()))
        return _Values(pa.string())
    is_text = any(one in item for one in _TEXT_DOMAINS) or "string_format" in item.message("time_domain")
    return _Values(pa.string() if is_text else pa.binary())


def _domain_values(name: str, item: Message, schema: Message) -> list[str]:
    """Return the values of the string domain of a feature."""
    if "string_domain" in item:
        return item.message("string_domain").texts("value")
    wanted = item.text("domain")
    for domain in schema.messages("string_domain"):
        if domain.text("name") == wanted:
            return domain.texts("value")
    problem = f"the feature has the domain {wanted!r}, but the schema has no string_domain with this name"
    raise _problem(name, problem, "add the string_domain to the schema, or remove the domain of the feature")


# -- The shape of the values --------------------------------------------------------------------------------


def _shape(name: str, item: Message, dense: Message) -> tuple[Size, ...] | None:
    """Return the shape of the tensor of a feature. None if the number of values differs between records."""
    if "shape" in item or "shape" in dense:
        dims = (item if "shape" in item else dense).message("shape").messages("dim")
        shape = tuple(_integer(dim.text("size", "-1")) for dim in dims)
        if min(shape, default=0) < 0:
            problem = f"the shape {list(shape)} of the feature has a dimension without a size"
            raise _problem(name, problem, "set the size of the dimension, or replace shape by value_count")
        return shape
    counts = item.message("value_counts").messages("value_count") or item.messages("value_count")
    if len(counts) > 1:
        problem = f"the feature has {len(counts)} levels of nested values, which Examples cannot hold"
        advice = "replace value_counts by value_count, or describe the levels by a ragged_tensor"
        raise _problem(name, problem, advice)
    if not counts:
        return None
    least, most = (_integer(counts[0].text(key, "0")) for key in ("min", "max"))
    return (least,) if least == most and least > 0 else None


def _tensors(schema: Message) -> dict[str, Message]:
    """Return the tensor representations of the default group, whose name is empty."""
    found: dict[str, Message] = {}
    for group in schema.messages("tensor_representation_group"):
        if not group.text("key"):
            entries = group.message("value").messages("tensor_representation")
            found |= {entry.text("key"): entry.message("value") for entry in entries}
    return found


def _ragged(key: str, tensor: Message, features: Mapping[str, Message]) -> StoredForm:
    """Return the form of a ragged tensor whose values and row lengths are features of their own."""
    ragged = tensor.message("ragged_tensor")
    steps = ragged.message("feature_path").texts("step")
    if len(steps) != 1 or steps[0] not in features:
        raise _problem(
            key,
            f"the schema has no feature {'/'.join(steps)!r}, which holds the values of the ragged_tensor",
            "name a feature in feature_path, or remove the ragged_tensor",
        )
    (name,), sizes, partitions = steps, list[Size](), list[RowPartition | None]()
    values = _values(name, features[name], Message())
    for partition in ragged.messages("partition"):
        uniform = _integer(partition.text("uniform_row_length", "0"))
        if uniform < 1 and not partition.text("row_length"):
            raise _problem(
                key,
                "a partition of the ragged_tensor has neither a row_length nor a positive uniform_row_length",
                "correct the partition",
            )
        sizes.append(uniform or None)
        partitions.append(None if uniform else RowPartition("row_lengths", partition.text("row_length")))
    return StoredForm(
        values.type,
        lengths=(None, *sizes),
        spellings=values.spellings,
        value_feature=name,
        partitions=tuple(partitions),
    )


def _problem(name: str, problem: str, advice: str) -> Any:
    return SchemaError(problem, advice, feature=name)
