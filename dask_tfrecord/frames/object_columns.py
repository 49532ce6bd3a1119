"""Columns of Python objects -> Arrow arrays of values that equal these objects. Knows no schemas.

Arrow's own way drops what a type cannot hold: the nanoseconds of a pandas timestamp, the fraction of a float
among integers, the time zone of a datetime. What Arrow made is therefore compared with the objects, except
for columns of one kind that Arrow is known to convert exactly.
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

# Sequences of which Arrow infers no type.
_SEQUENCES = (pd.Series, pd.Index, pd.api.extensions.ExtensionArray, array, deque, range)

# What pandas calls columns of one kind, which Arrow converts exactly to the type that it infers.
_UNIFORM = ("string", "bytes", "boolean", "integer", "floating", "decimal")

# Of these kinds, Arrow makes every type of the family at once.
_FAMILIES = {"string": "text", "bytes": "bytes"}


def to_arrow(column: "pd.Series[Any]", type_: pa.DataType | None, *, rounded: bool) -> pa.Array:
    """The objects as values of a type, or of the type that they show.

    Missing is what pandas calls missing; a NaN inside a list is a value.

    Raises
    ------
    ValueError, TypeError, OverflowError, pyarrow.ArrowException
        If no type holds all objects, or not the wanted one.
    MisfitError
        For an object that the wanted type holds only with another value.
    """
    values, missing = column.to_numpy(), column.isna().to_numpy()
    kind = infer_dtype(column, skipna=True)
    if kind.startswith("mixed"):
        _check_scalars(values[~missing])
    if type_ is None:
        return _infer(values, missing)
    if is_list(type_) and kind in ("string", "bytes"):
        raise TypeError("it is one string, not a list")  # Arrow would take it for a list of its letters
    if not is_list(type_) and _FAMILIES.get(kind) == family(type_):
        return _make(values, missing, type_)
    if is_list(type_):
        values = _with_lists(values)
    try:
        found = _infer(values, missing)
    except (OverflowError, TypeError, pa.ArrowException):  # such as integers beyond 64 bits
        found = _make(values, missing, type_)
        if not _are_same(values[~missing], found.drop_null(), inferred=False):
            raise
    _check_family(found.type, type_)
    return convert(found, type_, rounded=rounded)


def _with_lists(values: Objects) -> Objects:
    """The objects with lists in place of the other sequences, whose values Arrow converts unchecked."""
    if not any(issubclass(kind, _SEQUENCES) for kind in set(map(type, values))):
        return values
    return _objects([list(value) if isinstance(value, _SEQUENCES) else value for value in values])


def _check_scalars(present: Objects) -> None:
    """Refuse NumPy's datetimes among its other scalars, with which Arrow crashes."""
    scalars = {kind for kind in set(map(type, present)) if issubclass(kind, np.generic)}
    if np.datetime64 in scalars and len(scalars) > 1:
        raise ValueError("the values are of several kinds, and no single type holds all of them")


def _make(values: Objects, missing: npt.NDArray[np.bool_], type_: pa.DataType | None) -> pa.Array:
    return pa.array(values, type=type_, mask=missing, from_pandas=False)


def _infer(values: Objects, missing: npt.NDArray[np.bool_]) -> pa.Array:
    """The objects as the type that Arrow infers, with nanoseconds if any of them has some."""
    found = _make(values, missing, None)
    present = values[~missing]
    if _are_uniform(present) or _are_same(present, found.drop_null()):
        return found
    finer = _with_nanoseconds(found.type)
    if finer != found.type:
        found = _make(values, missing, finer)
        if _are_same(present, found.drop_null()):
            return found
    raise ValueError("the values are of several kinds, and no single type holds all of them")


def _with_nanoseconds(type_: pa.DataType) -> pa.DataType:
    if is_list(type_):
        return pa.list_(_with_nanoseconds(type_.value_type))
    if pa.types.is_timestamp(type_):
        return pa.timestamp("ns", type_.tz)
    return pa.duration("ns") if pa.types.is_duration(type_) else type_


def _are_uniform(present: Objects) -> bool:
    """Whether the objects are of one kind that Arrow converts exactly, or arrays of one such kind."""
    if infer_dtype(present, skipna=False) in _UNIFORM:
        return True
    if set(map(type, present)) == {np.ndarray}:
        kinds = {values.dtype for values in present}
        return len(kinds) == 1 and kinds.pop().kind in "biufSU"
    return False


def _are_same(present: Objects, found: pa.Array, *, inferred: bool = True) -> bool:
    """Whether the values equal the objects, as Python compares them; NaN equals itself.

    Arrow converts some kinds exactly to the type that it ``inferred``, but to no other one.
    """
    kinds = set(map(type, present))
    if is_list(found.type):
        if any(issubclass(kind, np.generic) for kind in kinds):  # Arrow takes some for empty lists
            return False
        if np.ma.MaskedArray in kinds:  # of which Arrow takes the masked values, too
            return False
        values = _objects([value for value in chain.from_iterable(present) if value is not None])
        known = inferred and _are_uniform(values)
        return known or _are_same(values, found.flatten().drop_null(), inferred=inferred)
    if len(present) != len(found):  # Arrow takes more for null than pandas does
        return False
    if np.ndarray in kinds:  # NumPy calls an array of one number equal to the number,
        return False
    if np.timedelta64 in kinds and not pa.types.is_duration(found.type):  # and a length of time, too
        return False
    if pa.types.is_timestamp(found.type) and found.type.tz is not None:
        if any(getattr(value, "tzinfo", None) is None for value in present):
            return False
        # Python calls no time that comes twice in one time zone equal to a time in another one.
        found = found.cast(pa.timestamp(found.type.unit, "UTC"))
        present = _objects([value.astimezone(datetime.UTC) for value in present])
    back = _objects(found.to_pylist())
    return not np.any((present != back) & ((present == present) | (back == back)))


def _objects(values: list[Any]) -> Objects:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _check_family(source: pa.DataType, target: pa.DataType) -> None:
    """Refuse a type whose values never equal the objects; text of digits is no number, for instance."""
    source, target = innermost(source), innermost(target)
    if not pa.types.is_null(source) and family(source) != family(target):
        raise TypeError(f"Python objects of the type {source} never equal values of the type {target}")
