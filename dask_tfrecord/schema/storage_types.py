"""Arrow arrays <-> the few storage types that features have. Knows types and values, no columns or records.

`store` and `load` are each other's inverse wherever the feature can hold the value; where it cannot they
raise `MisfitError` with the row. Both go through whole arrays; no value is touched by Python.
"""

from collections.abc import Callable
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dask_tfrecord.codec import Kind
from dask_tfrecord.errors import SchemaError

Offsets = npt.NDArray[np.int64]

INT64_MAX = 2**63 - 1

_KINDS: dict[Kind, tuple[Callable[[pa.DataType], bool], ...]] = {
    "int64": (
        types.is_boolean,
        types.is_integer,
        types.is_date,
        types.is_time,
        types.is_timestamp,
        types.is_duration,
    ),
    "float": (types.is_floating, types.is_decimal),
    "bytes": (
        types.is_binary,
        types.is_large_binary,
        types.is_binary_view,
        types.is_fixed_size_binary,
    ),
    "string": (types.is_string, types.is_large_string, types.is_string_view),
}
_ADVICE: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (types.is_null, "name the type of its values with schema="),
    (types.is_struct, "make each of its fields a column"),
    (types.is_map, "make its keys and its values two list columns"),
)
_READY = (pa.int64(), pa.float32(), pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


class MisfitError(Exception):
    """A value that the target type cannot hold; ``row`` counts in the array that was converted."""

    def __init__(self, row: int, problem: str, advice: str | None = None) -> None:
        super().__init__(problem)
        self.row = row
        self.problem = problem
        self.advice = advice

    def in_list(self, offsets: Offsets) -> Self:
        """The same for the list that holds the value."""
        return type(self)(_list_of(self.row, offsets), self.problem, self.advice)


def is_list(type_: pa.DataType) -> bool:
    """Whether values of this type are lists of any kind."""
    return _is_list_view(type_) or any(
        test(type_) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list)
    )


def describe(type_: pa.DataType) -> tuple[Kind, int]:
    """Feature kind and list depth of a type.

    Raises
    ------
    SchemaError
        For a type whose values no feature can hold; without the column's name.
    """
    if isinstance(type_, pa.FixedShapeTensorType):
        return describe(type_.storage_type)
    usable = not _fails_in_arrow(type_)
    if is_list(type_) and usable:
        kind, depth = describe(type_.value_type)
        return kind, depth + 1
    if types.is_dictionary(type_) and usable:
        kind, depth = describe(type_.value_type)
        if not depth:
            return kind, 0
    if usable:
        for kind, tests in _KINDS.items():
            if any(test(type_) for test in tests):
                return kind, 0
    advice = next((text for test, text in _ADVICE if test(type_)), "convert it or leave the column out")
    raise SchemaError(f"TFRecord has no feature for the type {type_}", advice=advice)


def _fails_in_arrow(type_: pa.DataType) -> bool:
    """Decimals that Arrow cannot make from floats or sort into categories, and values of no length."""
    if types.is_dictionary(type_):
        return bool(types.is_decimal(type_.value_type) and type_.value_type.bit_width < 128)
    if types.is_fixed_size_list(type_):
        return bool(type_.list_size == 0)
    if types.is_fixed_size_binary(type_):
        return bool(type_.byte_width == 0)
    return bool(types.is_decimal(type_) and type_.scale < 0)


def innermost(type_: pa.DataType) -> pa.DataType:
    """The type of single values: inside of lists, of categories and of tensors."""
    if isinstance(type_, pa.BaseExtensionType):
        return innermost(type_.storage_type)
    if is_list(type_) or types.is_dictionary(type_):
        return innermost(type_.value_type)
    return type_


def value_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values: of a dictionary type its value type, else the type itself."""
    return type_.value_type if types.is_dictionary(type_) else type_


def is_lossy(type_: pa.DataType) -> bool:
    """Whether storing values of this type rounds them to 32-bit floats."""
    type_ = innermost(type_)
    return bool(types.is_float64(type_) or types.is_decimal(type_))


def plain(type_: pa.DataType) -> pa.DataType:
    """The type as it is read back: no views, which only differ in layout, and 32-bit category codes."""
    if types.is_string_view(type_):
        return pa.string()
    if types.is_binary_view(type_):
        return pa.binary()
    if types.is_dictionary(type_):
        return pa.dictionary(pa.int32(), plain(type_.value_type), type_.ordered)
    if not is_list(type_):
        return type_
    item = type_.value_field.with_type(plain(type_.value_type))
    if types.is_fixed_size_list(type_):
        return pa.list_(item, type_.list_size)
    return pa.large_list(item) if _is_large(type_) else pa.list_(item)


def store(array: pa.Array, *, exact: bool) -> pa.Array:
    """Values as the kernel takes them; with ``exact``, a value that would be rounded is a `MisfitError`."""
    if is_stored(array):
        return array
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return store(array.storage, exact=exact)
    if types.is_dictionary(type_):
        return store(array.dictionary_decode(), exact=exact)
    if is_list(type_):
        return _store_list(array, exact=exact)
    if types.is_date(type_) or types.is_time(type_) or types.is_timestamp(type_) or types.is_duration(type_):
        check_range(array)
        return array.view(_integer_of(type_)).cast(pa.int64())
    if types.is_uint64(type_):
        return _store_uint64(array)
    if types.is_boolean(type_) or types.is_integer(type_):
        return array.cast(pa.int64())
    if types.is_float16(type_):
        return array.cast(pa.float32())
    if types.is_string_view(type_):
        return array.cast(pa.large_string())
    if types.is_binary_view(type_) or types.is_fixed_size_binary(type_):
        return array.cast(pa.large_binary())
    return _store_rounded(array, exact=exact)


def is_stored(array: pa.Array) -> bool:
    """Whether values are as the kernel takes them, so that `store` copies nothing."""
    return array.type in _READY or (_is_ready(array.type) and not _has_null_elements(array))


def storage_bytes(array: pa.Array) -> int:
    """About how much memory `store` takes for its result: none where it copies nothing."""
    if is_stored(array):
        return 0
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return storage_bytes(array.storage)
    if is_list(type_):
        values = array.flatten()
        return 8 * len(array) + (storage_bytes(values) or int(values.nbytes))
    if types.is_null(type_) or describe(type_)[0] in ("int64", "float"):
        return 8 * len(array)
    if types.is_dictionary(type_):
        lengths = pc.binary_length(store(array.dictionary, exact=False)).take(array.indices)
        return 8 * len(array) + (pc.sum(lengths).as_py() or 0)
    return 8 * len(array) + int(array.nbytes)


def load(array: pa.Array, type_: pa.DataType, categories: pa.Array | None = None) -> pa.Array:
    """What `store` or the kernel made, as the type it came from.

    ``categories`` come first, in this order, among those of a dictionary type; an ordered one has no others.
    """
    if array.type == type_:
        return array
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, load(array, type_.storage_type))
    if types.is_dictionary(type_):
        return _load_dictionary(load(array, type_.value_type), type_, categories)
    if is_list(type_):
        return with_values(array, type_, load)
    if types.is_int64(array.type):
        return _load_integer(array, type_)
    if types.is_float32(array.type):
        return _load_float(array, type_)
    if types.is_fixed_size_binary(type_):
        width = type_.byte_width
        _refuse(
            pc.not_equal(pc.binary_length(array), width),
            lambda row: f"the value has {len(array[row].as_py())} bytes, the column {width}",
            "pass pa.binary() for the column in schema=",
        )
    return array.cast(type_)


def _is_list_view(type_: pa.DataType) -> bool:
    return bool(types.is_list_view(type_) or types.is_large_list_view(type_))


def _is_large(type_: pa.DataType) -> bool:
    return bool(types.is_large_list(type_) or types.is_large_list_view(type_))


def _is_ready(type_: pa.DataType) -> bool:
    if type_ in _READY:
        return True
    return is_list(type_) and not _is_list_view(type_) and _is_ready(type_.value_type)


def _has_null_elements(array: pa.Array) -> bool:
    """Whether the children of a list hold any null, be it in a part that no list refers to."""
    return is_list(array.type) and (array.values.null_count > 0 or _has_null_elements(array.values))


def _integer_of(type_: pa.DataType) -> pa.DataType:
    return pa.int32() if type_.bit_width == 32 else pa.int64()


def _refuse(mask: pa.Array, problem: Callable[[int], str], advice: str | None = None) -> None:
    row = pc.index(mask, True).as_py()
    if row >= 0:
        raise MisfitError(row, problem(row), advice)


def _list_of(value: int, offsets: Offsets) -> int:
    return int(np.searchsorted(offsets, value, side="right")) - 1


def _offsets(lists: pa.Array) -> Offsets:
    """Where each list begins in ``lists.flatten()``, and where the last one ends."""
    lengths = lists.sizes if _is_list_view(lists.type) else pc.list_value_length(lists)
    lengths = pc.if_else(lists.is_valid(), lengths, 0)
    return np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)])


def _make_list(type_: pa.DataType, offsets: Offsets, values: pa.Array, nulls: pa.Array) -> pa.Array:
    if types.is_large_list(type_):
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, type=type_, mask=nulls)
    narrow = pa.array(offsets).cast(pa.int32())
    return pa.ListArray.from_arrays(narrow, values, type=type_, mask=nulls)


def _store_list(lists: pa.Array, *, exact: bool) -> pa.Array:
    values, offsets = lists.flatten(), _offsets(lists)
    try:
        _refuse(
            values.is_null(),
            lambda _: "the list holds a null, which TFRecord cannot store",
            "fill or drop the nulls inside the lists",
        )
        stored = store(values, exact=exact)
    except MisfitError as misfit:
        raise misfit.in_list(offsets) from None
    type_ = pa.large_list(stored.type) if _is_large(lists.type) else pa.list_(stored.type)
    return _make_list(type_, offsets, stored, lists.is_null())


def _store_uint64(array: pa.Array) -> pa.Array:
    stored = array.view(pa.int64())
    _refuse(
        pc.less(stored, 0),
        lambda row: f"{array[row]} is above 2^63-1, the largest integer that TFRecord holds",
        "store it as a string or as bytes",
    )
    return stored


def _store_rounded(array: pa.Array, *, exact: bool) -> pa.Array:
    """float64 and decimals as 32-bit floats."""
    type_ = array.type
    wide = array.cast(pa.float64())  # Arrow's direct way from a decimal to float32 is off by a bit or two
    stored = wide.cast(pa.float32())
    _refuse(
        pc.and_(pc.is_inf(stored), pc.is_finite(wide)),
        lambda row: f"{array[row]} is too large for TFRecord's 32-bit floats and would become inf",
        "scale the column or store it as a string",
    )
    if types.is_decimal(type_):
        _refuse(
            _is_beyond(stored, type_),
            lambda row: f"{array[row]} becomes {stored[row]} as a 32-bit float, which {type_} cannot hold",
            "give the decimal more digits or store it as a string",
        )
    if exact:
        back = load(stored, type_)
        _refuse(
            pc.and_(pc.not_equal(back, array), pc.invert(pc.is_nan(wide))),
            lambda row: f"{array[row]} would come back as {back[row]}: TFRecord has 32-bit floats only",
            'pass lossy="allow" to store the nearest 32-bit float, or store the column as a string',
        )
    return stored


def _is_beyond(floats: pa.Array, type_: pa.DataType) -> pa.Array:
    limit = 10.0 ** (type_.precision - type_.scale)
    return pc.greater_equal(pc.abs(floats).cast(pa.float64()), limit)


def _range(type_: pa.DataType) -> tuple[int, int] | None:
    """Smallest and largest int64 that the type holds, None if it holds all."""
    if types.is_boolean(type_):
        return 0, 1
    if types.is_time(type_):
        return 0, _DAY[type_.unit] - 1
    if types.is_integer(type_) or types.is_date32(type_):
        limits = np.iinfo(np.int32 if types.is_date32(type_) else type_.to_pandas_dtype())
        return int(limits.min), min(int(limits.max), INT64_MAX)
    return None


def check_range(array: pa.Array) -> None:
    """Refuse times beyond a day and dates with a time, which Arrow's arrays can hold and readers misread."""
    if types.is_time(array.type) or types.is_date64(array.type):
        _check_integers(array.view(_integer_of(array.type)), array.type, "correct the value")


def _check_integers(array: pa.Array, type_: pa.DataType, advice: str) -> None:
    """Refuse the integers that are no values of the type."""
    misfits = None
    if types.is_date64(type_):
        days = pc.multiply(pc.divide(array, _DAY["ms"]), _DAY["ms"])
        misfits = pc.not_equal(days, array)
    elif (limits := _range(type_)) is not None:
        misfits = pc.or_(pc.less(array, limits[0]), pc.greater(array, limits[1]))
    if misfits is not None:
        _refuse(misfits, lambda row: f"{array[row]} does not fit {type_}", advice)


def _load_integer(array: pa.Array, type_: pa.DataType) -> pa.Array:
    _check_integers(array, type_, "pass pa.int64() or another wider type for the column in schema=")
    if types.is_boolean(type_) or types.is_integer(type_):
        return array.cast(type_)
    return array.cast(_integer_of(type_)).view(type_)


def _load_float(array: pa.Array, type_: pa.DataType) -> pa.Array:
    wide = array.cast(pa.float64())
    if types.is_float16(type_):
        loaded = array.cast(type_)
        back = loaded.cast(pa.float64())
        _refuse_float(pc.and_(pc.not_equal(wide, back), pc.invert(pc.is_nan(wide))), array, type_)
        return loaded
    if not types.is_decimal(type_):
        return wide.cast(type_)
    _refuse_float(pc.or_(pc.invert(pc.is_finite(array)), _is_beyond(array, type_)), array, type_)
    loaded = wide.cast(type_)
    _refuse_float(_is_off(loaded.cast(pa.float64()), array), array, type_)
    return loaded


def _refuse_float(mask: pa.Array, array: pa.Array, type_: pa.DataType) -> None:
    _refuse(
        mask,
        lambda row: f"{array[row]} does not fit {type_}",
        "pass pa.float32() for the column in schema=",
    )


def _is_off(decimals: pa.Array, floats: pa.Array) -> pa.Array:
    """Whether the decimal that is nearest to a 32-bit float is not one that is stored as this float.

    A decimal is stored as a float at most half a step away; the division below is inexact in the last bits.
    """
    numbers = floats.fill_null(0).to_numpy(zero_copy_only=False)
    steps = pa.array(np.spacing(np.abs(numbers)).astype(np.float64) * 0.5000001)
    return pc.greater(pc.abs(pc.subtract(decimals, floats.cast(pa.float64()))), steps)


def with_values(
    lists: pa.Array, type_: pa.DataType, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """Lists of any kind as the list type ``type_``; ``convert`` makes values of its value type."""
    values, offsets, nulls = lists.flatten(), _offsets(lists), lists.is_null()
    if types.is_fixed_size_list(type_):
        size = type_.list_size
        _refuse(
            pc.and_(pc.not_equal(pc.list_value_length(lists), size), lists.is_valid()),
            lambda row: f"the list holds {len(lists[row])} values, the column {size}",
            f"pass pa.list_({type_.value_type}) for the column in schema=",
        )
    try:
        loaded = convert(values, type_.value_type)
    except MisfitError as misfit:
        raise misfit.in_list(offsets) from None
    if not types.is_fixed_size_list(type_):
        return _make_list(type_, offsets, loaded, nulls)
    if lists.null_count:
        loaded = loaded.take(_spread(offsets, type_.list_size, nulls))
    return pa.FixedSizeListArray.from_arrays(loaded, type=type_, mask=nulls)


def _spread(offsets: Offsets, size: int, nulls: pa.Array) -> pa.Array:
    """Positions of the values for lists of one size, null where the list is."""
    positions = offsets[:-1, None] + np.arange(size)
    return pa.array(positions.ravel(), mask=np.repeat(nulls.to_numpy(zero_copy_only=False), size))


def _load_dictionary(values: pa.Array, type_: pa.DataType, categories: pa.Array | None) -> pa.Array:
    if categories is None:
        encoded = values.dictionary_encode()
        codes, categories = encoded.indices, encoded.dictionary
    else:
        codes = pc.index_in(values, value_set=categories)
        unknown = pc.and_(codes.is_null(), values.is_valid())
        if type_.ordered:
            _refuse(
                unknown,
                lambda row: f"{values[row].as_py()!r} is not one of the column's ordered categories",
                f"pass {type_.value_type} for the column in schema=",
            )
        elif pc.any(unknown, min_count=0).as_py():
            categories = pa.concat_arrays([categories, values.filter(unknown).unique()])
            codes = pc.index_in(values, value_set=categories)
    return pa.DictionaryArray.from_arrays(codes, categories, ordered=type_.ordered)
