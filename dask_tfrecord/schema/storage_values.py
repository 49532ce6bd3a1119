"""Convert Arrow arrays to the types that features can store, and back.

`store` and `load` convert whole arrays. `load` is the inverse of `store` for every value that a feature can
hold. For a value that does not fit the target type, both functions raise `MisfitError` with its row. If a
record has none of the features of a struct, the struct is null. If a struct is not null but all of its fields
are, the record gets a marker: a feature with the struct's name. The module does not depend on columns or
records.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dask_tfrecord.errors import Remedy
from dask_tfrecord.schema.logical_types import is_large_list, is_list, is_list_view, kind_and_depth

Offsets = npt.NDArray[np.int64]
INT64_MAX = 2**63 - 1

# The Arrow types of scalar values that the kernel encodes.
STORAGE_TYPES = (pa.int64(), pa.float32(), pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


class MisfitError(Exception):
    """Signal that the target type cannot hold a value.

    ``row`` is the row of the value in the array that was converted. ``wider`` is a suggested type that can
    hold the value, or None.
    """

    def __init__(
        self, row: int, problem: str, advice: str | None = None, wider: pa.DataType | None = None
    ) -> None:
        super().__init__(problem)
        self.row = row
        self.problem = problem
        self.advice = advice
        self.wider = wider

    def in_list(self, offsets: Offsets) -> Self:
        """Return a copy of the error in which ``row`` is the row of the list that contains the value."""
        wider = None if self.wider is None else pa.list_(self.wider)
        row = int(np.searchsorted(offsets, self.row, side="right")) - 1
        return type(self)(row, self.problem, self.advice, wider)


ROUND = Remedy("lossy", "allow", "store the nearest float")


class RoundedError(MisfitError):
    """Signal that a value would be rounded, because no float of the target type equals the value."""


def store(array: pa.Array, *, exact: bool) -> pa.Array:
    """Convert an array, whose type `kind_and_depth` must accept, to a type that the kernel encodes.

    If ``exact`` is True, raise RoundedError for a value that would be rounded to a 32-bit float. Raise
    MisfitError for a value that no feature can store.
    """
    if is_stored(array):
        return array
    type_ = array.type
    if types.is_null(type_):  # all values of the column are null
        return pa.nulls(len(array), pa.list_(pa.binary()))
    if isinstance(type_, pa.BaseExtensionType):
        return store(array.storage, exact=exact)
    if types.is_dictionary(type_):
        return store(array.dictionary_decode(), exact=exact)
    if is_list(type_):
        return _store_list(array, exact=exact)
    if types.is_temporal(type_):
        check_range(array)
        return array.view(integer_type(type_)).cast(pa.int64())
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
    """Return True if the kernel can encode an array unchanged, so that `store` returns the array itself."""
    return array.type in STORAGE_TYPES or (_is_encodable(array.type) and not _has_null_elements(array))


def storage_bytes(array: pa.Array) -> int:
    """Estimate how many bytes of values `store` would copy. The result is 0 if `store` copies nothing."""
    if is_stored(array):
        return 0
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return storage_bytes(array.storage)
    if types.is_struct(type_):
        return 8 * len(array) + sum(map(storage_bytes, array.flatten()))
    if is_list(type_):
        values = array.flatten()
        return 8 * len(array) + (storage_bytes(values) or int(values.nbytes))
    if types.is_null(type_) or kind_and_depth(type_)[0] in ("int64", "float"):
        return 8 * len(array)
    if types.is_dictionary(type_):
        lengths = pc.binary_length(store(array.dictionary, exact=False)).take(array.indices)
        return 8 * len(array) + (pc.sum(lengths).as_py() or 0)
    return 8 * len(array) + int(array.nbytes)


def load(array: pa.Array, type_: pa.DataType, categories: pa.Array | None = None) -> pa.Array:
    """Convert stored values to a logical type: the inverse of `store`.

    ``categories`` are the first categories of a dictionary type. For an ordered type, ``categories`` contains
    all categories. Raise MisfitError for a value that the type cannot hold.
    """
    if array.type == type_:
        return array
    if types.is_null(type_):
        has_values = pc.greater(pc.list_value_length(array), 0)
        _raise_at_first(has_values, lambda _: "the record holds bytes, the column is null", wider=pa.binary())
        return pa.nulls(len(array))
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
        _raise_at_first(
            pc.not_equal(pc.binary_length(array), width),
            lambda row: f"the value has {len(array[row].as_py())} bytes, the column {width}",
            wider=pa.binary(),
        )
    return array.cast(type_)


def _is_encodable(type_: pa.DataType) -> bool:
    if type_ in STORAGE_TYPES:
        return True
    return is_list(type_) and not is_list_view(type_) and _is_encodable(type_.value_type)


def _has_null_elements(array: pa.Array) -> bool:
    """Return True if the values array of a list array has nulls at any level, even outside all lists."""
    return is_list(array.type) and (array.values.null_count > 0 or _has_null_elements(array.values))


def integer_type(type_: pa.DataType) -> pa.DataType:
    """Return the integer type with as many bits as a type of dates, times or durations."""
    return pa.int32() if type_.bit_width == 32 else pa.int64()


def _raise_at_first(
    mask: pa.Array,
    problem: Callable[[int], str],
    advice: str | None = None,
    *,
    wider: pa.DataType | None = None,
    error: type[MisfitError] = MisfitError,
) -> None:
    """Raise ``error`` for the first row in which the mask is true. ``problem`` takes the row index and
    returns the error message.
    """
    row = pc.index(mask, True).as_py()
    if row >= 0:
        raise error(row, problem(row), advice, wider)


def list_offsets(lists: pa.Array) -> Offsets:
    """Return the start of each list in ``lists.flatten()``, followed by the end of the last list."""
    lengths = lists.sizes if is_list_view(lists.type) else pc.list_value_length(lists)
    lengths = pc.if_else(lists.is_valid(), lengths, 0)
    return np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)])


def _make_list(type_: pa.DataType, offsets: Offsets, values: pa.Array, nulls: pa.Array) -> pa.Array:
    if types.is_large_list(type_):
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, type=type_, mask=nulls)
    narrow = pa.array(offsets).cast(pa.int32())
    return pa.ListArray.from_arrays(narrow, values, type=type_, mask=nulls)


def _store_list(lists: pa.Array, *, exact: bool) -> pa.Array:
    values, offsets = lists.flatten(), list_offsets(lists)
    try:
        _raise_at_first(
            values.is_null(),
            lambda _: "the list holds a null, which TFRecord cannot store",
            "fill or drop the nulls inside the lists",
        )
        stored = store(values, exact=exact)
    except MisfitError as misfit:
        raise misfit.in_list(offsets) from None
    type_ = pa.large_list(stored.type) if is_large_list(lists.type) else pa.list_(stored.type)
    return _make_list(type_, offsets, stored, lists.is_null())


def in_steps(lists: pa.Array, size: int) -> pa.Array:
    """Convert stored lists to lists of lists, which feature lists store. Each step has ``size`` values."""
    values = lists.flatten()
    edges = np.arange(0, len(values) + size, size)
    steps = pa.ListArray.from_arrays(pa.array(edges, pa.int32()), values)
    return _make_list(pa.list_(steps.type), list_offsets(lists) // size, steps, lists.is_null())


def without_steps(lists: pa.Array, size: int) -> pa.Array:
    """Join the values of all steps of each feature list: the inverse of `in_steps`.

    Raise MisfitError for a step that does not have exactly ``size`` values, and suggest a list of lists.
    """
    steps, offsets = lists.flatten(), list_offsets(lists)
    counts = pc.fill_null(pc.list_value_length(steps), 0)
    try:
        _raise_at_first(
            pc.not_equal(counts, size),
            lambda row: f"a step of the feature list has {counts[row]} values, where the column needs {size}",
            wider=steps.type,
        )
    except MisfitError as misfit:
        raise misfit.in_list(offsets) from None
    return _make_list(steps.type, offsets * size, steps.flatten(), lists.is_null())


def _store_uint64(array: pa.Array) -> pa.Array:
    stored = array.view(pa.int64())
    _raise_at_first(
        pc.less(stored, 0),
        lambda row: (
            f"{array[row]} is above 2^63-1, the largest integer that TFRecord holds, in uint64 columns too"
        ),
        'store the column as text, for example with .astype("string")',
    )
    return stored


def _store_rounded(array: pa.Array, *, exact: bool) -> pa.Array:
    type_ = array.type
    # Arrow's direct cast of a decimal to float32 can be wrong in the last one or two bits.
    wide = array.cast(pa.float64())
    stored = wide.cast(pa.float32())
    _raise_at_first(
        pc.and_(pc.is_inf(stored), pc.is_finite(wide)),
        lambda row: f"{array[row]} is too large for TFRecord's 32-bit floats and would become inf",
        "scale the column or store it as a string",
    )
    if types.is_decimal(type_):
        _raise_at_first(
            _exceeds_decimal(stored, type_),
            lambda row: f"{array[row]} becomes {stored[row]} as a 32-bit float, which {type_} cannot hold",
            "give the decimal more digits or store it as a string",
        )
    if exact:
        back = load(stored, type_)
        _raise_at_first(
            pc.and_(pc.not_equal(back, array), pc.invert(pc.is_nan(wide))),
            lambda row: f"{array[row]} would come back as {back[row]}: TFRecord has 32-bit floats only",
            "store the column as a string",
            error=RoundedError,
        )
    return stored


def _exceeds_decimal(floats: pa.Array, type_: pa.DataType) -> pa.Array:
    limit = 10.0 ** (type_.precision - type_.scale)
    return pc.greater_equal(pc.abs(floats).cast(pa.float64()), limit)


def _range(type_: pa.DataType) -> tuple[int, int] | None:
    """Return the least and the greatest integer that a type can hold, or None if every int64 fits."""
    if types.is_boolean(type_):
        return 0, 1
    if types.is_time(type_):
        return 0, _DAY[type_.unit] - 1
    if types.is_integer(type_) or types.is_date32(type_):
        limits = np.iinfo(np.int32 if types.is_date32(type_) else type_.to_pandas_dtype())
        return int(limits.min), min(int(limits.max), INT64_MAX)
    return None


def check_range(array: pa.Array) -> None:
    """Raise MisfitError for invalid values that Arrow arrays can contain.

    Two kinds of values are invalid: a time that is not within one day, and a date64 with a time of day.
    """
    if types.is_time(array.type) or types.is_date64(array.type):
        _check_integers(array.view(integer_type(array.type)), array.type)


def _check_integers(array: pa.Array, type_: pa.DataType, wider: pa.DataType | None = None) -> None:
    """Raise MisfitError for the first integer that is not a valid value of an Arrow type."""
    misfits = None
    if types.is_date64(type_):
        days = pc.multiply(pc.divide(array, _DAY["ms"]), _DAY["ms"])
        misfits = pc.not_equal(days, array)
    elif (limits := _range(type_)) is not None:
        misfits = pc.or_(pc.less(array, limits[0]), pc.greater(array, limits[1]))
    if misfits is not None:
        advice = "correct the value" if wider is None else None
        _raise_at_first(misfits, lambda row: f"{array[row]} does not fit {type_}", advice, wider=wider)


def _load_integer(array: pa.Array, type_: pa.DataType) -> pa.Array:
    _check_integers(array, type_, pa.int64())
    if types.is_boolean(type_) or types.is_integer(type_):
        return array.cast(type_)
    return array.cast(integer_type(type_)).view(type_)


def _load_float(array: pa.Array, type_: pa.DataType) -> pa.Array:
    wide = array.cast(pa.float64())
    if types.is_float16(type_):
        loaded = array.cast(type_)
        back = loaded.cast(pa.float64())
        _refuse_float(pc.and_(pc.not_equal(wide, back), pc.invert(pc.is_nan(wide))), array, type_)
        return loaded
    if not types.is_decimal(type_):
        return wide.cast(type_)
    _refuse_float(pc.or_(pc.invert(pc.is_finite(array)), _exceeds_decimal(array, type_)), array, type_)
    loaded = wide.cast(type_)
    _refuse_float(_is_not_a_stored_decimal(loaded.cast(pa.float64()), array), array, type_)
    return loaded


def _refuse_float(mask: pa.Array, array: pa.Array, type_: pa.DataType) -> None:
    _raise_at_first(mask, lambda row: f"{array[row]} does not fit {type_}", wider=pa.float32())


def _is_not_a_stored_decimal(decimals: pa.Array, floats: pa.Array) -> pa.Array:
    """Return a mask that is True for floats that differ from the stored form of the nearest decimal.

    A decimal differs from its nearest float by at most half the distance between two adjacent floats. Because
    Arrow's division is inexact in the last bits, the limit is 0.5000001 times this distance instead of 0.5
    times.
    """
    numbers = floats.fill_null(0).to_numpy(zero_copy_only=False)
    steps = pa.array(np.spacing(np.abs(numbers)).astype(np.float64) * 0.5000001)
    return pc.greater(pc.abs(pc.subtract(decimals, floats.cast(pa.float64()))), steps)


def with_values(
    lists: pa.Array, type_: pa.DataType, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """Convert an array of lists to the list type ``type_``. ``convert`` converts the values in the lists."""
    values, offsets, nulls = lists.flatten(), list_offsets(lists), lists.is_null()
    if types.is_fixed_size_list(type_):
        size = type_.list_size
        _raise_at_first(
            pc.and_(pc.not_equal(pc.list_value_length(lists), size), lists.is_valid()),
            lambda row: f"the list holds {len(lists[row])} values, the column {size}",
            wider=pa.list_(type_.value_type),
        )
    try:
        loaded = convert(values, type_.value_type)
    except MisfitError as misfit:
        raise misfit.in_list(offsets) from None
    if not types.is_fixed_size_list(type_):
        return _make_list(type_, offsets, loaded, nulls)
    if lists.null_count:
        loaded = loaded.take(_fixed_size_positions(offsets, type_.list_size, nulls))
    return pa.FixedSizeListArray.from_arrays(loaded, type=type_, mask=nulls)


def _fixed_size_positions(offsets: Offsets, size: int, nulls: pa.Array) -> pa.Array:
    """For each list, return the positions of its ``size`` values, or ``size`` nulls if the list is null."""
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
            _raise_at_first(
                unknown,
                lambda row: f"{values[row].as_py()!r} is not one of the column's ordered categories",
                wider=type_.value_type,
            )
        elif pc.any(unknown, min_count=0).as_py():
            categories = pa.concat_arrays([categories, values.filter(unknown).unique()])
            codes = pc.index_in(values, value_set=categories)
    return pa.DictionaryArray.from_arrays(codes, categories, ordered=type_.ordered)


def with_marker(array: pa.StructArray, features: Sequence[pa.Array]) -> list[pa.Array]:
    """Return the marker of an array of structs, followed by ``features``, which store the fields of the
    structs.
    """
    needs_marker = reduce(pc.and_, (one.is_null() for one in features), array.is_valid())
    return [pc.if_else(needs_marker, pa.scalar(1, pa.int64()), None), *features]


def from_marker(type_: pa.StructType, marker: pa.Array, fields: Sequence[pa.Array]) -> pa.StructArray:
    """Create an array of structs from the marker and the fields, as the inverse of `with_marker`."""
    return structs(type_, reduce(pc.or_, (one.is_valid() for one in fields), marker.is_valid()), fields)


def structs(type_: pa.StructType, is_valid: pa.BooleanArray, fields: Sequence[pa.Array]) -> pa.StructArray:
    # `StructArray.from_arrays` refuses structs without fields, and nulls in fields that are not nullable.
    _, validity = pa.concat_arrays([is_valid]).buffers()
    return pa.Array.from_buffers(type_, len(is_valid), [validity], children=list(fields))
