"""Convert Arrow values to another Arrow type without changing the values, and find the wider of two types.

This module does not depend on pandas or on the columns of a dataset. A conversion is exact if converting the
result back gives equal values, where -0.0 equals 0 and NaN equals NaN. If the caller allows rounding, floats
may be rounded to the nearest shorter float.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dask_tfrecord.schema.logical_types import (
    canonical_type,
    innermost,
    is_binary,
    is_list,
    is_text,
    leaf_types,
    scalar_kind,
    with_item,
)
from dask_tfrecord.schema.storage_values import (
    MisfitError,
    RoundedError,
    check_range,
    integer_type,
    structs,
    with_values,
)

# Maps the name of each family of scalar types to a function that returns True for its types. The function
# `family` adds two families of timestamps, and the family "number" for all other scalar types that features
# can store.
_FAMILIES = {
    "text": is_text,
    "bytes": is_binary,
    "date": types.is_date,
    "time": types.is_time,
    "duration": types.is_duration,
}
_ZONED = "timestamp with a time zone"

# Families whose values a `Writer` converts to each other. A conversion to another time zone raises.
_KINDS = {"bytes": "text", "date": "timestamp", _ZONED: "timestamp"}


def convert(array: pa.Array, type_: pa.DataType, *, rounded: bool = False) -> pa.Array:
    """Convert an Arrow array to another type. Raise if the conversion would change a value.

    If ``rounded`` is True, floats and decimals are rounded to the nearest float of type ``type_``. If
    ``rounded`` is False, a value that would be rounded raises RoundedError. If the conversion would change a
    value other than by rounding, raise MisfitError with the row index of the value. If Arrow cannot convert
    between the types, pyarrow raises an exception.
    """
    if array.type == type_:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return convert(array.storage, type_, rounded=rounded)
    if types.is_run_end_encoded(array.type):
        return convert(pc.run_end_decode(array), type_, rounded=rounded)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, convert(array, type_.storage_type, rounded=rounded))
    if types.is_dictionary(type_):
        return _categories(array, type_, rounded=rounded)
    if types.is_dictionary(array.type):
        return convert(_decoded(array), type_, rounded=rounded)
    if array.null_count == len(array):
        return pa.nulls(len(array), type_)
    if types.is_struct(array.type) and types.is_struct(type_):
        return _structs(array, type_, rounded=rounded)
    if is_list(array.type) and is_list(type_):
        return with_values(array, type_, lambda values, item: convert(values, item, rounded=rounded))
    return _scalars(array, type_, rounded=rounded)


def family(type_: pa.DataType) -> str:
    """Return the family of a scalar type, such as "number". Values of types from different families are never
    equal.
    """
    if types.is_timestamp(type_):
        return "timestamp" if type_.tz is None else _ZONED
    known = next((name for name, test in _FAMILIES.items() if test(type_)), None)
    return known or ("number" if scalar_kind(type_) else str(type_))


def has_all(categories: pa.Array, others: pa.Array) -> bool:
    """Return True if ``categories`` contains all of ``others``."""
    if others.equals(categories):
        return True
    return bool(pc.all(pc.is_in(others.cast(categories.type), value_set=categories), min_count=0).as_py())


def _categories(array: pa.Array, type_: pa.DataType, *, rounded: bool) -> pa.Array:
    """Convert an array to the dictionary type ``type_``. Keep the codes if the category types differ only in
    memory layout.
    """
    if not types.is_dictionary(array.type):
        array = convert(array, type_.value_type, rounded=rounded).dictionary_encode()
    elif not same_layout(array.type.value_type, type_.value_type):
        array = convert(_decoded(array), type_.value_type, rounded=rounded).dictionary_encode()
    codes, categories = array.indices.cast(type_.index_type), array.dictionary.cast(type_.value_type)
    return pa.DictionaryArray.from_arrays(codes, categories, ordered=type_.ordered)


def _structs(array: pa.StructArray, type_: pa.StructType, *, rounded: bool) -> pa.StructArray:
    names = [item.name for item in array.type]
    if names != [item.name for item in type_]:
        raise MisfitError(_first_true(array.is_valid()), f"a struct of {names} does not fit {type_}")
    pairs = zip(array.flatten(), type_, strict=True)
    fields = [convert(values, item.type, rounded=rounded) for values, item in pairs]
    return structs(type_, array.is_valid(), fields)


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    """Replace the codes of a dictionary array with the categories. Categories of a view type, such as
    string_view, are converted first, because Arrow's ``take`` rejects them.
    """
    categories = array.dictionary
    return convert(categories, canonical_type(categories.type)).take(array.indices)


def same_layout(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if two types are equal or differ only in memory layout, as string and large_string do.

    Nested types are compared at all levels.
    """
    return bool(source == target or _layout(source) == _layout(target))


def _layout(type_: pa.DataType) -> pa.DataType:
    """Return one common type for all types that differ from ``type_`` only in memory layout."""
    if types.is_dictionary(type_):
        return pa.dictionary(pa.int32(), _layout(type_.value_type), type_.ordered)
    if types.is_struct(type_):
        return pa.struct([(item.name, _layout(item.type)) for item in type_])
    if is_list(type_):
        return pa.list_(_layout(type_.value_type), getattr(type_, "list_size", -1))
    if is_text(type_):
        return pa.string()
    return pa.binary() if is_binary(type_) and not types.is_fixed_size_binary(type_) else type_


def _scalars(array: pa.Array, type_: pa.DataType, *, rounded: bool) -> pa.Array:
    source = array.type
    if same_layout(source, type_):
        return array.cast(type_)
    families = {family(source), family(type_)}
    if _ZONED in families and families & {"timestamp", "date", "time"}:
        problem = f"{source} cannot be converted to {type_}: only one of the two has a time zone"
        advice = "convert the column with .dt.tz_localize(...) or .dt.tz_convert(...) first"
        raise MisfitError(_first_true(array.is_valid()), problem, advice)
    if types.is_floating(type_) and (types.is_floating(source) or types.is_decimal(source)):
        return _floats(array, type_, rounded=rounded)
    converted = _cast(array, type_)
    check_range(converted)
    _check_same(array, converted, array, _cast(converted, source))
    return converted


def _floats(array: pa.Array, type_: pa.DataType, *, rounded: bool) -> pa.Array:
    """Convert floats and decimals to a floating-point type. Raise if a value would become infinite."""
    wide = array.cast(pa.float64())
    converted = wide.cast(type_)
    back = converted.cast(pa.float64())
    row = _first_true(pc.and_(pc.is_inf(back), pc.is_finite(wide)))
    if row >= 0:
        raise MisfitError(row, f"{array[row]} is too large for {type_} and would become infinite")
    if not rounded:
        _check_same(array, converted, wide, back, RoundedError)
        if types.is_decimal(array.type):
            _check_same(array, converted, array, wide.cast(array.type), RoundedError)
    return converted


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast an array with Arrow, through a third type if Arrow has no cast between the two types."""
    source = array.type
    if types.is_decimal(source) and types.is_decimal(type_):
        return array.cast(type_)
    # Arrow's direct cast of a decimal to a float can be wrong in the last one or two bits.
    if types.is_decimal(source) and types.is_floating(type_):
        return array.cast(pa.float64()).cast(type_)
    for one, other in ((source, type_), (type_, source)):
        if types.is_float16(one) and not types.is_floating(other):
            return _cast_through(array, pa.float32(), type_)
        if types.is_boolean(one) and types.is_decimal(other):
            return _cast_through(array, pa.int64(), type_)
        if types.is_integer(one) and types.is_temporal(other) and one != integer_type(other):
            return _cast_through(array, integer_type(other), type_)
    wide = pa.decimal256(76, type_.scale) if types.is_decimal(type_) else type_
    # Arrow casts integers only to a decimal type that can represent all values of the integer type.
    if types.is_integer(source) and wide != type_:
        return array.cast(wide).cast(type_)
    return array.cast(type_)


def _cast_through(array: pa.Array, between: pa.DataType, type_: pa.DataType) -> pa.Array:
    return _cast(_cast(array, between), type_)


def _check_same(
    array: pa.Array,
    converted: pa.Array,
    before: pa.Array,
    after: pa.Array,
    error: type[MisfitError] = MisfitError,
) -> None:
    before, after = _comparable(before), _comparable(after)
    if before.equals(after):
        return
    same = pc.fill_null(pc.equal(before, after), False)
    row = _first_true(pc.invert(pc.or_(same, pc.and_(before.is_null(), after.is_null()))))
    if row >= 0:
        raise error(row, f"{_value_text(array, row)} would become {_value_text(converted, row)}")


def _comparable(array: pa.Array) -> pa.Array:
    """Convert an array to values that Arrow can compare.

    NaN becomes null, so that NaN equals NaN. Replacing NaN with null hides no difference, because no
    conversion changes NaN to null or null to NaN.
    """
    if types.is_floating(array.type):
        wide = array.cast(pa.float64())
        return pc.if_else(pc.is_nan(wide), None, wide)
    if types.is_decimal(array.type) and array.type.bit_width < 128:
        return array.cast(pa.decimal128(array.type.precision, array.type.scale))
    return array


def _value_text(array: pa.Array, row: int) -> str:
    try:
        return repr(array[row].as_py())
    # The value is a date outside Python's range, or has nanoseconds that Python cannot represent without
    # pandas.
    except (OverflowError, ValueError):
        return str(array.slice(row, 1).to_string()).strip("[]\n ")


def _first_true(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())


def widened(
    one: pa.DataType, other: pa.DataType, *, numbers: bool = True, is_stored: bool = True
) -> pa.DataType | None:
    """Return the wider of two types, or None if neither can hold all values of the other.

    A type counts as wider than another only if records store equal values of the two types identically. Every
    type is wider than the null type. Two decimal types have a common type with enough digits for both. Lists
    are compared by their item types, and structs by their field types. If ``numbers`` is False, integers and
    floats are not widened. If ``is_stored`` is True, the result must not change how stored decimals are read.
    """
    if same_layout(one, other) or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if numbers and types.is_integer(one) and types.is_integer(other):
        return _wider_integer(one, other)
    if numbers and types.is_floating(one) and types.is_floating(other):
        return max(one, other, key=lambda type_: type_.bit_width)
    if types.is_decimal(one) and types.is_decimal(other):
        return wider_decimal(one, other, stored=(one, other) if is_stored else ())

    def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
        return widened(one, other, numbers=numbers, is_stored=is_stored)

    if is_list(one) and is_list(other):
        return _wider_list(one, other, wider)
    if types.is_struct(one) and types.is_struct(other):
        return _wider_struct(one, other, wider)
    return None


def fitting(
    existing: pa.DataType, rows: pa.DataType, *, numbers: bool, is_inferred: bool
) -> pa.DataType | None:
    """Return the type to which the rows of an append are converted, or None if they do not fit.

    ``existing`` is the type of the column in the dataset, and ``rows`` its type in the rows. Integers fit a
    float column and floats fit an integer column, because the conversion raises for a value that would
    change. If ``is_inferred`` is True, nobody has chosen the type ``rows``, because it comes from the values
    of Python objects. Such rows fit each type of the same family. ``numbers`` has the same meaning as in
    `widened`.
    """
    if types.is_null(rows):
        return rows
    if (wider := widened(existing, rows, numbers=numbers)) is not None:
        return wider
    if types.is_decimal(existing) and types.is_decimal(rows):
        return wider_decimal(existing, rows, stored=(existing,))
    for one, other in ((existing, rows), (rows, existing)):
        if types.is_integer(one) and types.is_floating(other):
            return existing
    return _of_family(existing, rows, numbers=numbers) if is_inferred else None


def _of_family(existing: pa.DataType, rows: pa.DataType, *, numbers: bool) -> pa.DataType | None:
    def fits(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
        return fitting(one, other, numbers=numbers, is_inferred=True)

    if isinstance(existing, pa.FixedShapeTensorType) and is_list(rows):
        return existing if fits(existing.value_type, innermost(rows)) == existing.value_type else None
    if is_list(existing) and is_list(rows):
        item = fits(existing.value_type, rows.value_type)
        if item is None or types.is_null(item):
            return None if item is None else existing
        return with_item(existing, item)
    if types.is_struct(existing) and types.is_struct(rows):
        types_of_rows = {item.name: item.type for item in rows}
        if {item.name for item in existing} != types_of_rows.keys():
            return None
        fields = {item.name: fits(item.type, types_of_rows[item.name]) for item in existing}
        if None in fields.values():
            return None
        nothing = {item.name: item.type for item in existing if types.is_null(fields[item.name])}
        return pa.struct({**fields, **nothing})
    if types.is_dictionary(existing):
        return existing if fits(existing.value_type, rows) == existing.value_type else None
    is_bool = types.is_boolean(existing), types.is_boolean(rows)
    return existing if family(existing) == family(rows) and is_bool[0] == is_bool[1] else None


def check_kind(array: pa.Array, type_: pa.DataType) -> None:
    """Raise MisfitError if the values of an array never equal values of the existing column's type.

    Such a conversion would store a number or a time as text, or a number as a time. Also raise for the first
    float that may be a rounded integer, if ``type_`` is an integer type: pandas stores integers beside
    missing values as float64, which does not hold every integer beyond 2^53.
    """
    if array.null_count < len(array) and not _is_alike(array.type, type_):
        problem = f"values of type {array.type} are never equal to values of type {type_}"
        raise MisfitError(_first_true(array.is_valid()), problem, "convert the values first")
    if not (types.is_floating(array.type) and types.is_integer(type_)):
        return
    bits = {16: 11, 32: 24, 64: 53}[array.type.bit_width]
    wide = array.cast(pa.float64())
    row = _first_true(pc.and_(pc.is_finite(wide), pc.greater_equal(pc.abs(wide), 2.0**bits)))
    if row >= 0:
        problem = f"{array[row]} may be a rounded integer, because {array.type} does not hold all integers"
        raise MisfitError(row, f"{problem} beyond 2^{bits}", "make the column Int64 where it is loaded")


def _is_alike(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if values of two types can be equal, or if features store them alike, as text and bytes."""
    source, target = innermost(source), innermost(target)
    if types.is_null(source) or types.is_null(target):
        return True
    if types.is_struct(source) and types.is_struct(target):
        fields = {item.name: item.type for item in target}
        return all(_is_alike(item.type, fields.get(item.name, pa.null())) for item in source)
    return _KINDS.get(family(source), family(source)) == _KINDS.get(family(target), family(target))


def may_widen(type_: pa.DataType) -> bool:
    """Return True if later rows of any kind can change a type, because it contains the null type or a
    decimal.
    """
    return any(types.is_null(leaf) or types.is_decimal(leaf) for leaf in leaf_types(type_))


def wider_decimal(
    one: pa.DataType, other: pa.DataType, *, stored: Iterable[pa.DataType]
) -> pa.DataType | None:
    """Return the decimal type with enough digits for two decimal types, or None if there is none.

    Values of the types ``stored`` are already stored as 32-bit floats. Such a value might be read differently
    with more decimal places, so the result is None unless the values are small enough.
    """
    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    for type_ in stored:
        if type_.scale < scale and not _is_read_alike(type_, scale):
            return None
    digits = whole + scale
    for type_ in (one, other):
        if (type_.precision, type_.scale) == (digits, scale):
            return type_
    if digits > 76:
        return None
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def _is_read_alike(type_: pa.DataType, scale: int) -> bool:
    """Return True if the 32-bit floats of all decimals of a type are read alike with ``scale`` places."""
    largest = np.nextafter(np.float32(10.0 ** (type_.precision - type_.scale)), np.float32(0))
    return bool(np.spacing(largest) < 10.0**-scale)


def holds_null(type_: pa.DataType) -> bool:
    """Return True if a type is the null type, or a list or struct type that contains it."""
    return any(map(types.is_null, leaf_types(type_)))


def _wider_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    narrow, wide = sorted((one, other), key=lambda type_: type_.bit_width)
    is_signed = types.is_signed_integer(wide)
    if narrow.bit_width < wide.bit_width and (is_signed or types.is_unsigned_integer(narrow)):
        return wide
    return None


_Wider = Callable[[pa.DataType, pa.DataType], pa.DataType | None]


def _wider_list(one: pa.DataType, other: pa.DataType, wider: _Wider) -> pa.DataType | None:
    item = wider(one.value_type, other.value_type)
    if item is None or getattr(one, "list_size", -1) != getattr(other, "list_size", -1):
        return None
    return with_item(one, item)


def _wider_struct(one: pa.StructType, other: pa.StructType, wider: _Wider) -> pa.StructType | None:
    if [item.name for item in one] != [item.name for item in other]:
        return None
    pairs = zip(one, other, strict=True)
    fields = [(mine.name, wider(mine.type, theirs.type)) for mine, theirs in pairs]
    return None if any(type_ is None for _, type_ in fields) else pa.struct(fields)
