"""Convert arrays of structs to the features that store the fields of the structs, and back.

A record without any feature of a struct has a null. A struct whose fields are all null has no features
either, so its record gets a marker: a feature with the name of the struct.
"""

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc


def with_marker(array: pa.StructArray, features: Sequence[pa.Array]) -> list[pa.Array]:
    """Return the features of an array of structs, the first of which is the marker.

    Parameters
    ----------
    array : pyarrow.StructArray
        The structs to store.
    features : sequence of pyarrow.Array
        The values of all features that store the fields of the structs.
    """
    needs_marker = reduce(pc.and_, (one.is_null() for one in features), array.is_valid())
    return [pc.if_else(needs_marker, pa.scalar(1, pa.int64()), None), *features]


def from_marker(type_: pa.StructType, marker: pa.Array, fields: Sequence[pa.Array]) -> pa.StructArray:
    """Return the structs with the given marker and fields: the inverse of `with_marker`."""
    return structs(type_, reduce(pc.or_, (one.is_valid() for one in fields), marker.is_valid()), fields)


def structs(type_: pa.StructType, is_valid: pa.BooleanArray, fields: Sequence[pa.Array]) -> pa.StructArray:
    """Return an array of structs with the given fields, and with nulls where ``is_valid`` is false."""
    # `StructArray.from_arrays` refuses structs without fields, and nulls in fields that are not nullable.
    _, validity = pa.concat_arrays([is_valid]).buffers()
    return pa.Array.from_buffers(type_, len(is_valid), [validity], children=list(fields))
