"""Convert columns of Python objects to Arrow arrays.

Each object must equal the value that Arrow stores for it, so a conversion changes no value. Lists, tuples and
arrays count as equal if their items are equal.
"""

import datetime
from array import array
from collections import deque
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.types import infer_dtype

from dask_tfrecord.schema.conversion import convert, family
from dask_tfrecord.schema.logical_types import in_nanoseconds, innermost, is_list

# Arrow silently drops details that a type cannot hold, such as the nanoseconds of a pandas timestamp, the
# fraction of a float among integers, or the time zone of a datetime. The converted array is compared with the
# objects, unless all objects are of one kind that Arrow is known to convert exactly.

Objects = npt.NDArray[np.object_]

# Sequence types for which Arrow cannot infer a list type.
SEQUENCES = (pd.Series, pd.Index, pd.api.extensions.ExtensionArray, array, deque, range)

# Sets have no order, so they equal no list. Arrow would store the values of a set as a list.
SETS = (set, frozenset)

# The kinds of objects, as returned by `infer_dtype`, that Arrow converts exactly to the inferred type.
_EXACT_KINDS = ("string", "bytes", "boolean", "integer", "floating", "decimal")

# Maps a kind of objects to the family of Arrow types to which Arrow converts the objects exactly.
_FAMILIES = {"string": "text", "bytes": "bytes"}

_MIXED = "the values are of several kinds, and no single type holds all of them"
_KEYS = "the dicts have different keys"


def to_arrow(column: "pd.Series[Any]", type_: pa.DataType | None, *, rounded: bool) -> pa.Array:
    """Convert an object column to an Arrow array of the given type, or of a type inferred from the objects.

    Objects that pandas considers missing become null. A NaN inside a list or a dict stays NaN and does not
    become null. Raise one of `CONVERSION_ERRORS` if no Arrow type can hold all objects, or if a value would
    change.
    """
    values, missing = column.to_numpy(), column.isna().to_numpy()
    kind = infer_dtype(column, skipna=True)
    if type_ is None:
        return _infer(values, missing)
    holds_lists = is_list(innermost_storage(type_))
    if holds_lists and kind in ("string", "bytes"):
        raise TypeError("it is a string, not a list")  # Arrow would convert a string to its characters
    if not holds_lists and _FAMILIES.get(kind) == family(type_):
        return _arrow_array(values, missing, type_)
    if holds_lists:
        values = _with_lists(values, type_)
    try:
        inferred = _infer(values, missing, type_)
    # Arrow raises one of these errors for integers beyond 64 bits, for example.
    except (OverflowError, TypeError, pa.ArrowException):
        inferred = _arrow_array(values, missing, type_)
        if not _are_equal(values[~missing], inferred.drop_null(), is_inferred=False):
            raise
    _check_family(inferred.type, type_)
    return convert(inferred, type_, rounded=rounded)


def innermost_storage(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


# -- Lists ---------------------------------------------------------------------------------------------------


def _with_lists(values: Objects, type_: pa.DataType) -> Objects:
    """Replace values that Arrow does not convert to lists of ``type_``: sequences such as a Series, and
    arrays of several dimensions.
    """
    if isinstance(type_, pa.FixedShapeTensorType):
        return object_array([_flat(value, tuple(type_.shape)) for value in values])
    kinds = set(map(type, values))
    if any(issubclass(kind, SEQUENCES) for kind in kinds):
        # Arrow does not check the values of a Series.
        values = object_array([list(value) if isinstance(value, SEQUENCES) else value for value in values])
    if np.ndarray in kinds and is_list(type_.value_type):
        values = object_array([_nested(value) for value in values])
    return values


def _flat(value: Any, shape: tuple[int, ...]) -> Any:
    """Return the values of an array, or of nested lists, in the order in which a tensor stores them."""
    nested = np.array(value, dtype=object) if isinstance(value, list | tuple) else value
    if not isinstance(nested, np.ndarray) or nested.ndim < 2:
        return value
    if nested.shape != shape:
        raise ValueError(f"an array has the shape {nested.shape}, the column {shape}")
    return value.ravel() if isinstance(value, np.ndarray) else nested.ravel().tolist()


def _nested(value: Any) -> Any:
    """Turn an array of several dimensions into lists of arrays."""
    return [*map(_nested, value)] if isinstance(value, np.ndarray) and value.ndim > 1 else value


# -- Inference -----------------------------------------------------------------------------------------------


def _infer(values: Objects, missing: npt.NDArray[np.bool_], like: pa.DataType | None = None) -> pa.Array:
    """Convert objects to the type that Arrow infers. Use nanoseconds if the inferred unit is too coarse for a
    value. The fields of structs have the order of the fields of ``like``, if possible.
    """
    present = values[~missing]
    kinds = set(map(type, present))
    _check_kinds(kinds)
    if kinds and all(issubclass(kind, dict) for kind in kinds) and any(present):
        return _infer_struct(present, missing, like)
    if np.ndarray in kinds:
        values = object_array([*map(_without_nat, values)])
        present = values[~missing]
    try:
        inferred = _arrow_array(values, missing, None)
    except TypeError:
        if any(isinstance(value, Decimal) and not value.is_finite() for value in present):
            raise ValueError("no Arrow type holds infinite decimals") from None
        raise
    if _are_exact(present) or _are_equal(present, inferred.drop_null()):
        return inferred
    finer_type = in_nanoseconds(inferred.type)
    if finer_type != inferred.type:
        finer = _arrow_array(values, missing, finer_type)
        if _are_equal(present, finer.drop_null()):
            return finer
    if len(kinds) == 1:
        raise ValueError(f"no Arrow type holds all details of the {next(iter(kinds)).__name__} objects")
    raise ValueError(_MIXED)


def _without_nat(value: Any) -> Any:
    """Turn an array of days, or of times with NaT, into a list. Arrow cannot convert such an array."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "mM" or value.ndim > 1:
        return value
    is_listed = value.dtype == np.dtype("M8[D]") or np.isnat(value).any()
    return pa.array(value).to_pylist() if is_listed else value


def _infer_struct(present: Objects, missing: npt.NDArray[np.bool_], like: pa.DataType | None) -> pa.Array:
    """Convert dicts to structs. Each key is converted like a column, so each field gets its own unit.

    ``missing`` is False for each of the dicts ``present``.
    """
    names = [*present[0]]
    if any(not isinstance(name, str) for name in names):
        raise TypeError("a dict has a key that is not a string")
    if len(set(map(frozenset, present))) > 1:
        raise ValueError(_KEYS)
    types = {item.name: item.type for item in like} if isinstance(like, pa.StructType) else {}
    if set(types) == set(names):
        names = [*types]
    fields = []
    for name in names:
        values = object_array([value[name] for value in present])
        try:
            fields.append(_infer(values, _is_missing(values), types.get(name)))
        except (TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"the values of the key {name!r}: {reason}") from None
    made = pa.StructArray.from_arrays(fields, names)
    return made.take(pa.array(np.cumsum(~missing) - 1, mask=missing)) if missing.any() else made


def _is_missing(values: Objects) -> npt.NDArray[np.bool_]:
    """Return True for each value of a dict that is null. A NaN is a value, as in a list."""
    is_float = [isinstance(value, float | np.floating) for value in values]
    missing: npt.NDArray[np.bool_] = pd.isna(values) & ~np.array(is_float, bool)
    return missing


def _check_kinds(kinds: set[type]) -> None:
    """Raise for objects that Arrow would change or cannot convert without crashing."""
    if any(issubclass(kind, SETS) for kind in kinds):
        raise TypeError("a set has no order, so no list equals it")
    scalars = {kind for kind in kinds if issubclass(kind, np.generic)}
    if np.datetime64 in scalars and len(scalars) > 1:  # Arrow would crash
        raise ValueError(_MIXED)


def _arrow_array(values: Objects, missing: npt.NDArray[np.bool_], type_: pa.DataType | None) -> pa.Array:
    return pa.array(values, type=type_, mask=missing, from_pandas=False)


def _are_exact(present: Objects) -> bool:
    """Return True if all objects have the same kind or NumPy dtype, and Arrow converts this kind exactly."""
    if infer_dtype(present, skipna=False) in _EXACT_KINDS:
        return True
    if set(map(type, present)) == {np.ndarray}:
        dtypes = {values.dtype for values in present}
        return len(dtypes) == 1 and dtypes.pop().kind in "biufSU"
    return False


# -- Comparison ----------------------------------------------------------------------------------------------


def _are_equal(present: Objects, converted: pa.Array, *, is_inferred: bool = True) -> bool:
    """Return True if Python considers the converted values equal to the objects. NaN counts as equal to NaN.

    ``is_inferred`` is True if Arrow inferred the type from the objects. Lists of an inferred type need no
    comparison if Arrow converts the kind of their values exactly.
    """
    kinds = set(map(type, present))
    _check_kinds(kinds)
    if is_list(converted.type):
        # Arrow converts some NumPy scalars to empty lists.
        if any(issubclass(kind, np.generic) for kind in kinds):
            return False
        if np.ma.MaskedArray in kinds:  # Arrow ignores the mask of a masked array
            return False
        values = object_array([value for value in chain.from_iterable(present) if value is not None])
        if is_inferred and _are_exact(values):
            return True
        return _are_equal(values, converted.flatten().drop_null(), is_inferred=is_inferred)
    if len(present) != len(converted):  # Arrow considers more objects missing than pandas does
        return False
    if pa.types.is_struct(converted.type):
        return _are_equal_structs(present, converted, is_inferred=is_inferred)
    if np.ndarray in kinds:  # NumPy considers an array of one number equal to the number
        return False
    # NumPy considers some timedeltas equal to numbers.
    if np.timedelta64 in kinds and not pa.types.is_duration(converted.type):
        return False
    if pa.types.is_timestamp(converted.type) and converted.type.tz is not None:
        if any(getattr(value, "tzinfo", None) is None for value in present):
            return False
        # In Python, a time that occurs twice at a clock change is unequal to every time in another time zone.
        converted = converted.cast(pa.timestamp(converted.type.unit, "UTC"))
        present = object_array([value.astimezone(datetime.UTC) for value in present])
    objects = object_array(converted.to_pylist())
    return not np.any((present != objects) & ((present == present) | (objects == objects)))


def _are_equal_structs(present: Objects, converted: pa.StructArray, *, is_inferred: bool) -> bool:
    names = [item.name for item in converted.type]
    if any(not isinstance(value, dict) or value.keys() != {*names} for value in present):
        raise ValueError(_KEYS)
    for name, field in zip(names, converted.flatten(), strict=True):
        values = object_array([value[name] for value in present])
        values = values[~_is_missing(values)]
        if not _are_equal(values, field.drop_null(), is_inferred=is_inferred):
            return False
    return True


def object_array(values: list[Any]) -> Objects:
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _check_family(source: pa.DataType, target: pa.DataType) -> None:
    """Raise TypeError if values of the two types can never be equal, such as numbers and strings."""
    source, target = innermost(source), innermost(target)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        fields = {item.name: item.type for item in target}
        if {item.name for item in source} == fields.keys():
            for item in source:
                _check_family(item.type, fields[item.name])
            return
    if not pa.types.is_null(source) and family(source) != family(target):
        raise TypeError(f"Python objects of type {source} never equal values of type {target}")
