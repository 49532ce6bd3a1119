"""Derive the feature specs with which TensorFlow's own parser reads the records of a dataset."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack

import pyarrow as pa
import tensorflow as tf

from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.collection.opened_path import open_columns
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.errors import SchemaError, TFRecordError, short_list
from dask_tfrecord.feed.numpy_columns import (
    checked_fill_nulls,
    is_text_or_binary,
    no_tensor,
    null_integers,
)
from dask_tfrecord.feed.rows.sources import checked_names
from dask_tfrecord.keywords.arguments import ReadKeywords
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import innermost, row_shape, value_type
from dask_tfrecord.storage.paths import PathLike

Tensors: TypeAlias = dict[str, Any]

# The tensor type that TensorFlow's parser returns for each kind of feature.
_PARSED = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string, "string": tf.string}


@dataclass(frozen=True)
class FeatureSpec:
    """The features, casts and scales with which TensorFlow parses the records of a dataset.

    Attributes
    ----------
    context : dict of str to feature
        The argument ``features`` of `tf.io.parse_example`, or ``context_features`` of
        `tf.io.parse_sequence_example`.
    sequence : dict of str to feature
        The argument ``sequence_features`` of `tf.io.parse_sequence_example`. The dict is empty for Examples.
        A list column in a feature list has a ``FixedLenSequenceFeature``, which checks that each step has one
        value. TensorFlow pads it, and `parse` removes the padding.
    casts : dict of str to tf.DType
        The tensor type to which each column is cast after parsing. Columns that the parser already returns
        with the right type are left out.
    scales : dict of str to int
        The number of decimal places of each decimal column.
    """

    context: dict[str, Any]
    sequence: dict[str, Any]
    casts: dict[str, Any]
    scales: dict[str, int]

    def parse(self, records: Any) -> Tensors:
        """Parse a batch of serialized records to tensors that have the types of the columns."""
        if self.sequence:
            context, sequence, lengths = tf.io.parse_sequence_example(records, self.context, self.sequence)
            parsed = {**context, **sequence}
            for name, feature in self.sequence.items():
                if isinstance(feature, tf.io.FixedLenSequenceFeature):
                    parsed[name] = tf.RaggedTensor.from_tensor(parsed[name], lengths=lengths[name])
        else:
            parsed = tf.io.parse_example(records, self.context) if self.context else {}
        for name, dtype in self.casts.items():
            parsed[name] = tf.cast(parsed[name], dtype)
        for name, scale in self.scales.items():
            power = tf.constant(10.0**scale, tf.float64)
            parsed[name] = tf.round(parsed[name] * power) / power
        return parsed

    def code(self) -> str:
        """Return the feature spec as Python code that can be pasted into a program."""
        if not self.sequence:
            return _code(self.context)
        return f"context_features = {_code(self.context)}\nsequence_features = {_code(self.sequence)}"

    def __str__(self) -> str:
        return self.code()


@public_function
def feature_spec(
    path: PathLike | Sequence[PathLike],
    columns: str | Sequence[str] | None = None,
    *,
    fill_nulls: Mapping[str, Any] | None = None,
    **read: Unpack[ReadKeywords],
) -> FeatureSpec:
    """Derive the feature spec with which TensorFlow's own parser reads a dataset.

    Parameters
    ----------
    path : str, path-like or list of these
        A path that `read_tfrecord` accepts. If the dataset has a snapshot, the snapshot says which columns
        contain no nulls.
    columns : str or list of str, optional
        The columns to parse. By default, all columns that are stored in the records are parsed.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column. By default, nulls become NaN in floating-point
        columns, and an empty string in string and binary columns.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters`` and
        ``version``.

    Returns
    -------
    FeatureSpec
        The feature spec of the dataset, which `FeatureSpec.code` returns as Python code. The field ``b`` of a
        struct column ``a`` is the feature "a/b".

    Raises
    ------
    SchemaError
        If a column of integers may have nulls and no value in ``fill_nulls``, if the records are not Examples
        or SequenceExamples, or if ``fill_nulls`` names a list column.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> from dask_tfrecord.feed.tensorflow import feature_spec
    >>> ddf = dd.from_dict({"x": [1, 2], "y": ["a", "b"]}, npartitions=1)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "labelled")
    >>> spec = feature_spec("labelled")
    >>> print(spec)
    {
        'x': tf.io.FixedLenFeature(shape=[], dtype=tf.int64),
        'y': tf.io.FixedLenFeature(shape=[], dtype=tf.string),
    }

    TensorFlow reads and parses the records of the files:

    >>> import tensorflow as tf
    >>> files = dask_tfrecord.open_dataset("labelled").files["path"].tolist()
    >>> for batch in tf.data.TFRecordDataset(files).batch(2).map(spec.parse):
    ...     print(batch["x"].numpy(), batch["y"].numpy())
    [1 2] [b'a' b'b']
    """
    dataset, schema = open_columns(path, checked_names(columns), None, read)
    if names := _other_forms(schema):
        raise SchemaError(
            f"TensorFlow's own parser cannot decode the tensors and sequences of {short_list(names)}",
            "leave them out with columns=, or call tensorflow_dataset, which reads them",
        )
    if problem := _unlike_tensorflow(dataset):
        raise TFRecordError(f"TensorFlow's own parser cannot {problem}", "leave the keyword out")
    leaves = pa.schema([(item.name, item.type) for item in schema.leaves])
    return _spec_of(dataset, schema, checked_fill_nulls(fill_nulls, leaves))


def _other_forms(schema: Schema) -> list[str]:
    """Return the columns whose values TensorFlow's parser does not return as they are stored."""
    return [item.name for item in schema.fields if not _is_parsed(item)]


def _is_parsed(item: Field) -> bool:
    form, has_shape = item.form, row_shape(item.type) is not None
    if form is None:
        return not (item.is_feature_list and has_shape)
    return form.is_plain or (has_shape and form.is_flat)


def _unlike_tensorflow(dataset: ReadPlan) -> str | None:
    """Return a requirement of the read that TensorFlow's own reader cannot meet, or None if it meets all."""
    options, no_columns = dataset.options, dataset.schema.select([])
    partition = dataset.partitioner(no_columns)
    if options.damage.skips:
        return "skip damaged records, as on_corrupt= asks"
    if options.compression != "infer":
        return "refuse files of other codecs, as compression= asks"
    if options.max_record_bytes < MAX_RECORD_BYTES:
        return "limit the bytes of a record, as max_record_bytes= asks"
    if any(partition(number).filters is not None for number in range(dataset.npartitions)):
        return "leave out some rows of a file, as filters= asks"
    return None


def _spec_of(dataset: ReadPlan, schema: Schema, fill_nulls: Mapping[str, Any]) -> FeatureSpec:
    if schema.record_type == "bytes":
        problem = "the records are bytes, which TensorFlow's parser does not read"
        raise SchemaError(problem, "map tf.data.TFRecordDataset over the files yourself")
    fields = [item for item in schema.leaves if item.name not in dataset.partition_values]
    non_null = dataset.non_null_columns
    context: dict[str, Any] = {}
    sequence: dict[str, Any] = {}
    casts: dict[str, Any] = {}
    for item in fields:
        parsed, tensor = _PARSED[item.kind], tensor_type(item)
        shape = row_shape(item.type)
        if shape is None:
            of_lists = sequence if item.column.depth == 2 else context
            of_lists[item.name] = _list_feature(parsed, item)
        else:
            default = None if item.name in non_null else _default(item, fill_nulls.get(item.name), shape)
            context[item.name] = tf.io.FixedLenFeature(shape, parsed, default)
        if tensor != parsed:
            casts[item.name] = tensor
    types = {item.name: innermost(item.type) for item in fields}
    scales = {name: type_.scale for name, type_ in types.items() if pa.types.is_decimal(type_)}
    return FeatureSpec(context, sequence, casts, scales)


def _list_feature(parsed: Any, item: Field) -> Any:
    if item.is_feature_list:
        return tf.io.FixedLenSequenceFeature([], parsed, allow_missing=True)
    return tf.io.RaggedFeature(parsed, row_splits_dtype=tf.int64)


def _default(item: Field, given: Any, shape: Sequence[int]) -> Any:
    if given is None:
        defaults: dict[str, Any] = {"float": math.nan, "bytes": b"", "string": ""}
        if item.kind not in defaults:
            raise null_integers(
                item.name, innermost(item.type), "may have null, because no statistics exclude it"
            )
        given = defaults[item.kind]
    return [given] * math.prod(shape) if shape else given


def _code(features: Mapping[str, Any]) -> str:
    lines = [f"    {name!r}: {_feature_code(feature)},\n" for name, feature in features.items()]
    return "{\n" + "".join(lines) + "}"


def _feature_code(feature: Any) -> str:
    given = feature._asdict()
    if isinstance(feature, tf.io.RaggedFeature):
        given = {"dtype": feature.dtype, "row_splits_dtype": feature.row_splits_dtype}
    elif isinstance(feature, tf.io.FixedLenFeature) and given["default_value"] is None:
        del given["default_value"]
    parts = (f"{name}={_value_code(value)}" for name, value in given.items() if name != "validate")
    return f"tf.io.{type(feature).__name__}({', '.join(parts)})"


def _value_code(value: Any) -> str:
    if isinstance(value, tf.DType):
        return f"tf.{value.name}"
    if isinstance(value, float) and math.isnan(value):
        return 'float("nan")'
    if isinstance(value, list):
        return f"[{', '.join(map(_value_code, value))}]"
    return repr(value)


def tensor_type(item: Field) -> Any:
    """Return the TensorFlow type to which a column is converted."""
    type_ = value_type(innermost(item.type))
    if is_text_or_binary(type_):
        return tf.string
    if pa.types.is_temporal(type_):
        return tf.int32 if type_.bit_width == 32 else tf.int64
    if pa.types.is_decimal(type_):
        return tf.float64
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return tf.as_dtype(type_.to_pandas_dtype())
    raise no_tensor(item.name, item.type)
