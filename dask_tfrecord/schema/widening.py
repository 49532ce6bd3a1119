"""Find the type of a column after an append whose rows have another type, without changing a stored value."""

import pyarrow as pa
from pyarrow import types

from dask_tfrecord.schema.conversion import same_layout
from dask_tfrecord.schema.storage_types import is_large_list, is_list


def widened(one: pa.DataType, other: pa.DataType, *, numbers: bool = True) -> pa.DataType | None:
    """Return the wider of two types, or None if neither type holds all values of the other.

    If ``numbers`` is False, only the null type is widened, also inside lists and structs.

    A type is wider than another type only if records store equal values of both types in the same way. An
    integer type is wider than a shorter integer type whose values it holds, and a float type is wider than
    a shorter float type. Every type is wider than the null type. Lists and structs are compared by the types
    of their items and fields.
    """
    if same_layout(one, other) or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if numbers and types.is_integer(one) and types.is_integer(other):
        return _wider_integer(one, other)
    if numbers and types.is_floating(one) and types.is_floating(other):
        return max(one, other, key=lambda type_: type_.bit_width)
    if is_list(one) and is_list(other):
        return _wider_list(one, other, numbers)
    if types.is_struct(one) and types.is_struct(other):
        return _wider_struct(one, other, numbers)
    return None


def holds_null(type_: pa.DataType) -> bool:
    """Return True if a type is the null type, or a list or struct type with the null type inside."""
    if types.is_struct(type_):
        return any(holds_null(item.type) for item in type_)
    return holds_null(type_.value_type) if is_list(type_) else bool(types.is_null(type_))


def _wider_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    narrow, wide = sorted((one, other), key=lambda type_: type_.bit_width)
    is_signed = types.is_signed_integer(wide)
    if narrow.bit_width < wide.bit_width and (is_signed or types.is_unsigned_integer(narrow)):
        return wide
    return None


def _wider_list(one: pa.DataType, other: pa.DataType, numbers: bool) -> pa.DataType | None:
    size = getattr(one, "list_size", -1)
    item = widened(one.value_type, other.value_type, numbers=numbers)
    if item is None or size != getattr(other, "list_size", -1):
        return None
    return pa.large_list(item) if is_large_list(one) else pa.list_(item, size)


def _wider_struct(one: pa.StructType, other: pa.StructType, numbers: bool) -> pa.StructType | None:
    if [item.name for item in one] != [item.name for item in other]:
        return None
    pairs = zip(one, other, strict=True)
    fields = [(mine.name, widened(mine.type, theirs.type, numbers=numbers)) for mine, theirs in pairs]
    return None if any(type_ is None for _, type_ in fields) else pa.struct(fields)
