"""Map the Arrow types of columns to the features that store them, and users' type names to Arrow types.

The module converts types, never values.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from dask_tfrecord.codec import Kind
from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError

_ADVICE: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (types.is_null, "name the type of its values"),
    # Struct columns are stored field by field, so `_find` returns a struct only if it is nested in another
    # type.
    (
        types.is_struct,
        "make each of its fields a list column, which can be a list of lists in sequence examples, or "
        "serialize the values to bytes",
    ),
    (types.is_map, "make its keys and its values two list columns"),
    (types.is_interval, "make its months, days and nanoseconds three columns"),
)


@lru_cache(maxsize=1024)  # cached, because the columns of a dataset have few different types
def kind_and_depth(type_: pa.DataType) -> tuple[Kind, int]:
    """Return the kind of the feature that stores values of a type, and the depth of the type's lists.

    Raise SchemaError if no feature can store the type. The error does not name the column; `of_column` adds
    the name.
    """
    found = _find(type_)
    if isinstance(found, pa.DataType):
        advice = next((text for test, text in _ADVICE if test(found)), None)
        instead = None if advice else _storable(type_)
        raise SchemaError(
            f"TFRecord has no feature for the type {found}",
            advice or (None if instead else "leave the column out"),
            remedies=[Remedy("schema", instead, "store the values")] if instead else (),
            function="",
        )
    return found


def of_column(error: SchemaError, name: str) -> SchemaError:
    """Copy an error raised by `kind_and_depth`, and add the name of the column."""
    remedies = [remedy._replace(value={name: remedy.value}) for remedy in error.remedies]
    return error.replaced(feature=name, remedies=remedies)


def _find(type_: pa.DataType) -> tuple[Kind, int] | pa.DataType:
    """Return the kind and the depth of a type. If no feature can hold the type, return the unsupported type,
    which may be nested in ``type_``.
    """
    if isinstance(type_, pa.FixedShapeTensorType):
        return _find(type_.storage_type)
    if _is_unsupported(type_):
        return type_
    if is_list(type_) or types.is_dictionary(type_):
        found = _find(type_.value_type)
        if isinstance(found, pa.DataType):
            return found
        kind, depth = found
        if is_list(type_):
            return kind, depth + 1
        return type_ if depth else (kind, 0)
    found_kind = scalar_kind(type_)
    return type_ if found_kind is None else (found_kind, 0)


def scalar_kind(type_: pa.DataType) -> Kind | None:
    """Return the kind of the feature that stores values of a scalar type, or None for any other type."""
    if is_text(type_):
        return "string"
    if is_binary(type_):
        return "bytes"
    if types.is_floating(type_) or types.is_decimal(type_):
        return "float"
    return "int64" if types.is_boolean(type_) or types.is_integer(type_) or is_temporal(type_) else None


def is_text(type_: pa.DataType) -> bool:
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def is_binary(type_: pa.DataType) -> bool:
    is_variable = types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_)
    return bool(is_variable or types.is_fixed_size_binary(type_))


def is_temporal(type_: pa.DataType) -> bool:
    """Return True for dates, times, timestamps and durations, and False for Arrow's intervals."""
    return bool(types.is_temporal(type_) and not types.is_interval(type_))


def _storable(type_: pa.DataType) -> pa.DataType | None:
    """Return a storable type that can hold the values of ``type_``, if any."""
    if not isinstance(_find(type_), pa.DataType):
        return type_
    if isinstance(type_, pa.BaseExtensionType):
        return pa.bool_() if isinstance(type_, pa.Bool8Type) else _storable(type_.storage_type)
    if types.is_fixed_size_binary(type_):
        return pa.binary()
    if types.is_decimal(type_):
        digits = type_.precision - type_.scale
        return pa.decimal128(digits, 0) if digits <= 38 else pa.float64()
    if is_list(type_):
        item = _storable(type_.value_type)
        return pa.list_(item) if item else None
    is_encoded = types.is_dictionary(type_) or types.is_run_end_encoded(type_)
    return _storable(type_.value_type) if is_encoded else None


def _is_unsupported(type_: pa.DataType) -> bool:
    """Return True for fixed-size types of size 0, for decimals with a negative scale, which Arrow cannot
    convert, and for decimals of fewer than 128 bits in a dictionary, which Arrow cannot use as categories.
    """
    if types.is_dictionary(type_):
        return bool(types.is_decimal(type_.value_type) and type_.value_type.bit_width < 128)
    if types.is_fixed_size_list(type_):
        return bool(type_.list_size == 0)
    if types.is_fixed_size_binary(type_):
        return bool(type_.byte_width == 0)
    return bool(types.is_decimal(type_) and type_.scale < 0)


def is_list(type_: pa.DataType) -> bool:
    """Return True for every list type: list, large_list, fixed_size_list and list views."""
    is_plain = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    return bool(is_plain or is_list_view(type_))


def list_depth(type_: pa.DataType) -> int:
    """Return the number of nested list levels of a type."""
    return 1 + list_depth(type_.value_type) if is_list(type_) else 0


def innermost(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.BaseExtensionType):
        return innermost(type_.storage_type)
    if is_list(type_) or types.is_dictionary(type_):
        return innermost(type_.value_type)
    return type_


def leaf_types(type_: pa.DataType) -> list[pa.DataType]:
    """Return the innermost types of a type: one for each leaf of a struct, and otherwise one."""
    type_ = innermost(type_)
    if not types.is_struct(type_):
        return [type_]
    return [leaf for item in type_ for leaf in leaf_types(item.type)]


def row_shape(type_: pa.DataType) -> list[int] | None:
    """Return the shape of one value of a column, or None for lists of any length."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return list(type_.shape)
    if types.is_fixed_size_list(type_):
        of_value = row_shape(type_.value_type)
        return None if of_value is None else [type_.list_size, *of_value]
    return None if is_list(type_) else []


def value_type(type_: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary type. Return a type that is not a dictionary type unchanged.

    Statistics, partition values and filters use the value type of a column.
    """
    return type_.value_type if types.is_dictionary(type_) else type_


def is_lossy(type_: pa.DataType) -> bool:
    """Return True if storing values of this type rounds them to 32-bit floats."""
    return any(types.is_float64(leaf) or types.is_decimal(leaf) for leaf in leaf_types(type_))


def canonical_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that a column has after it was written and read again.

    A view type such as string_view becomes the plain type, such as string. The codes of a dictionary type
    become 32-bit integers.
    """
    return with_leaves(type_, lambda leaf: leaf)


def with_leaves(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the canonical form of a type, with ``change`` applied to each innermost type."""
    if types.is_dictionary(type_):
        return pa.dictionary(pa.int32(), with_leaves(type_.value_type, change), type_.ordered)
    if types.is_struct(type_):
        return pa.struct([item.with_type(with_leaves(item.type, change)) for item in type_])
    if types.is_string_view(type_) or types.is_binary_view(type_):
        return change(pa.string() if types.is_string_view(type_) else pa.binary())
    if not is_list(type_):
        return change(type_)
    return with_item(type_, type_.value_field.with_type(with_leaves(type_.value_type, change)))


def with_item(type_: pa.DataType, item: pa.DataType | pa.Field) -> pa.DataType:
    """Return a list type with a different item type. A list view becomes a list."""
    if types.is_fixed_size_list(type_):
        return pa.list_(item, type_.list_size)
    return pa.large_list(item) if is_large_list(type_) else pa.list_(item)


def in_nanoseconds(type_: pa.DataType) -> pa.DataType:
    """Return a type in which timestamps and durations, at any level of nesting, have the unit nanosecond."""

    def finest(leaf: pa.DataType) -> pa.DataType:
        if types.is_timestamp(leaf):
            return pa.timestamp("ns", leaf.tz)
        return pa.duration("ns") if types.is_duration(leaf) else leaf

    return with_leaves(type_, finest)


def is_list_view(type_: pa.DataType) -> bool:
    return bool(types.is_list_view(type_) or types.is_large_list_view(type_))


def is_large_list(type_: pa.DataType) -> bool:
    """Return True for types of lists and list views with 64-bit offsets."""
    return bool(types.is_large_list(type_) or types.is_large_list_view(type_))


_PYTHON = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), bytes: pa.binary()}
_NAMES = {"str": pa.string(), "bytes": pa.binary(), "boolean": pa.bool_(), "int": pa.int64()}

# Names with several meanings, and the names of these meanings. "float" has 32 bits in Arrow and 64 bits in
# NumPy. "byte" is an 8-bit integer in NumPy and Spark, and bytes in the package tfrecord.
_AMBIGUOUS = {"float": '"float32" or "float64"', "byte": '"int8" or "binary"'}

_Parse = Callable[..., pa.DataType]
_FORMS: tuple[tuple[re.Pattern[str], _Parse], ...] = (
    (re.compile(r"list<(?:\w+: )?(.+)>"), lambda item: pa.list_(_item(item))),
    (re.compile(r"large_list<(?:\w+: )?(.+)>"), lambda item: pa.large_list(_item(item))),
    (
        re.compile(r"fixed_size_list<(?:\w+: )?(.+)>\[(\d+)\]"),
        lambda item, size: pa.list_(_item(item), int(size)),
    ),
    (re.compile(r"struct<(.*)>"), lambda fields: pa.struct(list(map(_field, _split(fields))))),
    (
        re.compile(r"dictionary<values=(.+), indices=(u?int\d+), ordered=([01])>"),
        lambda values, indices, ordered: pa.dictionary(_item(indices), _item(values), ordered == "1"),
    ),
    (re.compile(r"fixed_size_binary\[(\d+)\]"), lambda width: pa.binary(int(width))),
    (
        re.compile(r"decimal(32|64|128|256)?\((\d+), ?(\d+)\)"),
        lambda bits, *digits: getattr(pa, f"decimal{bits or 128}")(*map(int, digits)),
    ),
    (re.compile(r"(?:timestamp|datetime64)\[(s|ms|us|ns), (?:tz=)?(.+)\]"), pa.timestamp),
    (re.compile(r"(.+)\[py(?:arrow|thon)\]"), lambda name: arrow_type(name)),
)


def arrow_type(given: Any) -> pa.DataType:
    """Return the Arrow type for an Arrow, pandas, NumPy or Python type, or for a type's name.

    Parameters
    ----------
    given : pyarrow.DataType, dtype, type or str
        The type to convert, such as ``pa.int64()``, ``np.dtype("int64")``, ``pd.Int64Dtype()``, ``int`` or
        ``"list<int64>"``.

    Raises
    ------
    ValueError
        If no Arrow type corresponds to ``given``, or if ``given`` has several meanings: ``"float"`` means 32
        bits in Arrow and 64 bits in NumPy, and ``"byte"`` means an integer in NumPy and bytes elsewhere.

    Examples
    --------
    >>> import dask_tfrecord
    >>> dask_tfrecord.arrow_type("list<int64>")
    ListType(list<item: int64>)
    """
    if isinstance(given, pa.DataType):
        return given
    # `given` is a pandas ArrowDtype.
    if isinstance(found := getattr(given, "pyarrow_dtype", None), pa.DataType):
        return found
    if isinstance(given, type) and given in _PYTHON:
        return _PYTHON[given]
    if given is None:  # NumPy would interpret None as float64
        raise TFRecordError("None is not an Arrow type")
    # A NumPy dtype compares equal to its name, so test `isinstance` before comparing with "float".
    if isinstance(given, str) and given in _AMBIGUOUS:
        raise TFRecordError(f'"{given}" is ambiguous; write {_AMBIGUOUS[given]}')
    try:
        return _by_name(given) if isinstance(given, str) else _by_dtype(given)
    # An unknown type, or an unknown type name, raises different exceptions. NumPy and pandas raise TypeError
    # or ValueError, and pandas sometimes raises NotImplementedError. Arrow raises an ArrowException, and
    # lookups in the tables of this module raise KeyError.
    except (KeyError, NotImplementedError, TypeError, ValueError, pa.ArrowException):
        raise TFRecordError(f"{given!r} is not an Arrow type") from None


def _item(name: str) -> pa.DataType:
    """Return the type of a list's values or of a struct's field. In the name of an Arrow type, "float" means
    32 bits.
    """
    return pa.float32() if name == "float" else arrow_type(name)


def _split(fields: str) -> list[str]:
    """Split the text inside ``struct<...>`` into fields. A comma inside a field's type does not separate
    fields.
    """
    parts: list[str] = []
    for text in filter(None, fields.split(", ")):
        if parts and len(re.findall(r"[<(\[]", parts[-1])) > len(re.findall(r"[>)\]]", parts[-1])):
            parts[-1] += f", {text}"
        else:
            parts.append(text)
    return parts


def _field(text: str) -> pa.Field:
    name, _, type_ = text.partition(": ")
    plain = type_.removesuffix(" not null")
    return pa.field(name, _item(plain), nullable=plain == type_)


def _by_name(name: str) -> pa.DataType:
    for pattern, parse in _FORMS:
        if match := pattern.fullmatch(name):
            return parse(*match.groups())
    if name in _NAMES:
        return _NAMES[name]
    try:
        return pa.type_for_alias(name)
    except ValueError:
        # `name` is the name of a nullable pandas dtype, such as "Int64".
        if re.fullmatch("U?Int(8|16|32|64)|Float(32|64)", name):
            return pa.type_for_alias(name.lower())
        return _by_dtype(name)


def _by_dtype(given: Any) -> pa.DataType:
    name = getattr(given, "name", None)
    if type(given).__module__.startswith("pandas") and isinstance(name, str):
        zone = getattr(given, "tz", None)
        return pa.timestamp(given.unit, str(zone)) if zone is not None else _by_name(name)
    return pa.from_numpy_dtype(np.dtype(given))
