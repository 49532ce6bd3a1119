"""Convert pandas columns of Python objects to Arrow arrays whose values equal the objects.

Arrow silently drops details that a type cannot hold: the nanoseconds of a pandas timestamp, the fraction of a
float among integers, the time zone of a datetime. Therefore the converted array is compared with the objects,
unless all objects are of one kind that Arrow is known to convert exactly. The module `object_columns` does
not know schemas.
"""

import datetime
from array import array
from collections import deque
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.types import infer_dtype

from dask_tfrecord.schema.conversion import convert, family
from dask_tfrecord.schema.storage_types import innermost, is_list

Objects = npt.NDArray[np.object_]

# Types of sequences for which Arrow cannot infer a list type.
_SEQUENCES = (pd.Series, pd.Index, pd.api.extensions.ExtensionArray, array, deque, range)

# Kinds of objects, as pandas names them, that Arrow converts exactly to the type that Arrow infers.
_EXACT_KINDS = ("string", "bytes", "boolean", "integer", "floating", "decimal")

# Map from kinds of objects to a family of types; Arrow converts the kind exactly to every type of the family.
_FAMILIES = {"string": "text", "bytes": "bytes"}

_MIXED = "the values are of several kinds, and no single type holds all of them"


def to_arrow(column: "pd.Series[Any]", type_: pa.DataType | None, *, rounded: bool) -> pa.Array:
    """Convert an object column to an Arrow array of the given type. If ``type_`` is None, infer the type from
    the objects.

    Objects that pandas considers missing become null. A NaN inside a list is a value and not a null.

    Raises
    ------
    ValueError, TypeError, OverflowError, pyarrow.ArrowException
        If no Arrow type can hold all objects, or if the objects are not of the given type.
    MisfitError
        If converting an object to the given type would change its value.
    """
    values, missing = column.to_numpy(), column.isna().to_numpy()
    kind = infer_dtype(column, skipna=True)
    if kind.startswith("mixed"):
        _check_scalars(values[~missing])
    if type_ is None:
        return _infer(values, missing)
    if is_list(type_) and kind in ("string", "bytes"):
        raise TypeError("it is a string, not a list")  # Arrow would make a list of the string's letters
    if not is_list(type_) and _FAMILIES.get(kind) == family(type_):
        return _arrow_array(values, missing, type_)
    if is_list(type_):
        values = _sequences_to_lists(values)
    try:
        inferred = _infer(values, missing)
    # Arrow raises this for integers beyond 64 bits, for example.
    except (OverflowError, TypeError, pa.ArrowException):
        inferred = _arrow_array(values, missing, type_)
        if not _are_equal(values[~missing], inferred.drop_null(), is_inferred=False):
            raise
    _check_family(inferred.type, type_)
    return convert(inferred, type_, rounded=rounded)


def _sequences_to_lists(values: Objects) -> Objects:
    """Replace sequences such as a Series by lists.

    Without this step, Arrow would convert the values of the sequences without checks.
    """
    if not any(issubclass(kind, _SEQUENCES) for kind in set(map(type, values))):
        return values
    return _object_array([list(value) if isinstance(value, _SEQUENCES) else value for value in values])


def _check_scalars(present: Objects) -> None:
    """Raise if NumPy datetimes are mixed with other NumPy scalars, because Arrow crashes on such a
    mixture.
    """
    scalars = {kind for kind in set(map(type, present)) if issubclass(kind, np.generic)}
    if np.datetime64 in scalars and len(scalars) > 1:
        raise ValueError(_MIXED)


def _arrow_array(values: Objects, missing: npt.NDArray[np.bool_], type_: pa.DataType | None) -> pa.Array:
    return pa.array(values, type=type_, mask=missing, from_pandas=False)


def _infer(values: Objects, missing: npt.NDArray[np.bool_]) -> pa.Array:
    """Convert objects to the Arrow type that Arrow infers.

    If the time unit of this type is too coarse, use nanoseconds.
    """
    inferred = _arrow_array(values, missing, None)
    present = values[~missing]
    if _are_exact(present) or _are_equal(present, inferred.drop_null()):
        return inferred
    finer_type = _in_nanoseconds(inferred.type)
    if finer_type != inferred.type:
        finer = _arrow_array(values, missing, finer_type)
        if _are_equal(present, finer.drop_null()):
            return finer
    if set(map(type, present)) == {dict} and len(set(map(frozenset, present))) > 1:
        raise ValueError("the dicts have different keys")
    raise ValueError(_MIXED)


def _in_nanoseconds(type_: pa.DataType) -> pa.DataType:
    if is_list(type_):
        return pa.list_(_in_nanoseconds(type_.value_type))
    if pa.types.is_timestamp(type_):
        return pa.timestamp("ns", type_.tz)
    return pa.duration("ns") if pa.types.is_duration(type_) else type_


def _are_exact(present: Objects) -> bool:
    """Return True if all objects have the same kind or NumPy dtype, and Arrow converts this kind exactly."""
    if infer_dtype(present, skipna=False) in _EXACT_KINDS:
        return True
    if set(map(type, present)) == {np.ndarray}:
        dtypes = {values.dtype for values in present}
        return len(dtypes) == 1 and dtypes.pop().kind in "biufSU"
    return False


def _are_equal(present: Objects, converted: pa.Array, *, is_inferred: bool = True) -> bool:
    """Return True if the converted values equal the objects by Python's comparison. A NaN counts as equal to
    a NaN.

    ``is_inferred`` is True if Arrow inferred the type from the objects. In this case, lists of some kinds of
    values need no comparison.
    """
    kinds = set(map(type, present))
    if is_list(converted.type):
        # Arrow converts some NumPy scalars to empty lists.
        if any(issubclass(kind, np.generic) for kind in kinds):
            return False
        if np.ma.MaskedArray in kinds:  # Arrow converts the masked values of an array, too
            return False
        values = _object_array([value for value in chain.from_iterable(present) if value is not None])
        if is_inferred and _are_exact(values):
            return True
        return _are_equal(values, converted.flatten().drop_null(), is_inferred=is_inferred)
    if len(present) != len(converted):  # Arrow considers more objects as missing than pandas does
        return False
    if np.ndarray in kinds:  # NumPy considers an array of one number equal to the number
        return False
    # NumPy considers a timedelta equal to a number.
    if np.timedelta64 in kinds and not pa.types.is_duration(converted.type):
        return False
    if pa.types.is_timestamp(converted.type) and converted.type.tz is not None:
        if any(getattr(value, "tzinfo", None) is None for value in present):
            return False
        # Python considers a time that a clock change repeats unequal to every time in another time zone.
        converted = converted.cast(pa.timestamp(converted.type.unit, "UTC"))
        present = _object_array([value.astimezone(datetime.UTC) for value in present])
    objects = _object_array(converted.to_pylist())
    return not np.any((present != objects) & ((present == present) | (objects == objects)))


def _object_array(values: list[Any]) -> Objects:
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _check_family(source: pa.DataType, target: pa.DataType) -> None:
    """Raise TypeError if values of two types can never be equal, such as strings of digits and numbers."""
    source, target = innermost(source), innermost(target)
    if not pa.types.is_null(source) and family(source) != family(target):
        raise TypeError(f"Python objects of type {source} never equal values of type {target}")
