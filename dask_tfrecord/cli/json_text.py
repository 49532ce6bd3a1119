"""Convert Arrow columns to JSON text exactly, one column at a time. The module `json_text` has no Python loop
over rows.

The values follow the JSON mapping of protobuf, except that 64-bit integers are numbers. Bytes become base64,
times become text as in RFC 3339, durations become seconds such as "1.5s", and NaN and infinity become text.
"""

import binascii
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dask_tfrecord.cli.escapes import UNSAFE, escaped_json

_TEXT = pa.large_string()

# A regular expression of Arrow that finds texts with a character that must be escaped, and some other texts.
# Its syntax differs from Python's.
_MAYBE_SPECIAL = (
    r'[\x00-\x1f"\\\x7f-\x{9f}\x{ad}\x{61c}\x{180e}\x{200b}-\x{206f}\x{feff}-\x{fffb}\x{e0000}-\x{e007f}]'
)

_NOT_FINITE = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def json_lines(table: pa.Table) -> memoryview:
    """Convert the rows of a table to JSON objects in UTF-8, with one object per line."""
    if not table.num_rows:
        return memoryview(b"")
    if not table.column_names:
        return memoryview(b"{}\n" * table.num_rows)
    return memoryview(_objects(table.column_names, table.columns, "}\n").buffers()[2])


def _objects(names: Sequence[str], columns: Sequence[Any], end: str = "}") -> pa.LargeStringArray:
    """Join the values of at least one column to JSON objects."""
    parts: list[Any] = []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        key = escaped_json(json.dumps(name, ensure_ascii=False))
        parts += [f"{', ' if number else '{'}{key}: ", json_values(column)]
    return _joined(*parts, end)


def json_values(column: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    """Convert each value of a column to JSON text. A null becomes the text ``null``."""
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    return pc.fill_null(_texts(array), "null").cast(_TEXT)


def _texts(array: pa.Array) -> pa.Array:
    """Convert each value of an array to JSON text, and keep nulls as nulls."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return _texts(array.storage)
    if types.is_dictionary(type_):
        return _texts(array.dictionary).take(array.indices)
    if types.is_fixed_size_list(type_):
        return _texts(array.cast(pa.large_list(type_.value_type)))
    if types.is_list(type_) or types.is_large_list(type_):
        return _lists(array)
    if types.is_struct(type_):
        objects = _objects([item.name for item in type_], array.flatten()) if type_.num_fields else "{}"
        return pc.if_else(array.is_valid(), objects, None)
    if types.is_boolean(type_) or types.is_integer(type_) or types.is_decimal(type_):
        return array.cast(_TEXT)
    if types.is_floating(type_):
        return _floats(array)
    if types.is_string(type_) or types.is_large_string(type_):
        return _quoted(_escaped(array.cast(_TEXT)))
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return _quoted(_base64(array.cast(pa.large_binary())))
    if types.is_timestamp(type_):
        return _quoted(_instants(array))
    if types.is_duration(type_):
        ticks = array.cast(pa.int64()).cast(pa.decimal128(38, 0))
        seconds = ticks.view(pa.decimal128(38, _DIGITS[type_.unit])).cast(_TEXT)
        return _quoted(_joined(seconds, "s"))
    if types.is_date(type_) or types.is_time(type_):
        return _quoted(array.cast(_TEXT))
    return pa.nulls(len(array), _TEXT)  # the null type is the only other type of a TFRecord column


def _lists(array: pa.Array) -> pa.Array:
    values = json_values(array.values).cast(pa.string())  # Arrow cannot join lists of large strings
    offsets = array.offsets.cast(pa.int32())
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, values), ", ")
    return pc.if_else(array.is_valid(), _joined("[", texts, "]"), None)


def _floats(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.float32() if types.is_float16(array.type) else array.type).cast(_TEXT)
    # JSON readers read "1.0" as a float, but "1" as an integer.
    is_whole = pc.match_substring_regex(texts, r"^-?\d+$")
    texts = pc.if_else(is_whole, _joined(texts, ".0"), texts)
    if pc.all(pc.is_finite(array.cast(pa.float64()))).as_py() is not False:
        return texts
    for text, shown in _NOT_FINITE.items():
        texts = pc.if_else(pc.equal(texts, text), shown, texts)
    return texts


def _escaped(array: pa.Array) -> pa.Array:
    special = array.filter(pc.match_substring_regex(array, _MAYBE_SPECIAL))
    if not len(special):
        return array
    array = pc.replace_substring(pc.replace_substring(array, "\\", "\\\\"), '"', '\\"')
    for character in set(UNSAFE.findall(str(special.buffers()[2], "utf-8"))):
        array = pc.replace_substring(array, character, json.dumps(character)[1:-1])
    return array


def _instants(array: pa.Array) -> pa.Array:
    """Convert timestamps to text in ISO 8601.

    Timestamps with a time zone are converted to UTC and end in Z.
    """
    zone = "" if array.type.tz is None else "Z"
    return pc.replace_substring(
        _joined(array.cast(pa.timestamp(array.type.unit)).cast(_TEXT), zone), " ", "T"
    )


def _base64(array: pa.Array) -> pa.Array:
    """Encode all values of an array with one call of base64.

    Each value is padded to groups of 3 bytes, which keeps the values separate.
    """
    lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy()
    padded = (lengths + 2) // 3 * 3
    ends = np.cumsum(padded)
    data = np.zeros(int(padded.sum()), np.uint8)
    _, offsets, content = array.fill_null(b"").buffers() if array.null_count else array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset if not array.null_count else 0 :][: len(array)]
    if content is not None and data.size:
        shifts = np.repeat(ends - padded - (np.cumsum(lengths) - lengths), lengths)
        source = np.frombuffer(content, np.uint8)
        first = int(starts[0]) if len(starts) else 0
        data[np.arange(lengths.sum()) + shifts] = source[first : first + int(lengths.sum())]
    text = np.frombuffer(binascii.b2a_base64(data.data, newline=False), np.uint8).copy()
    text_ends = ends // 3 * 4
    text[text_ends[lengths % 3 > 0] - 1] = ord("=")
    text[text_ends[lengths % 3 == 1] - 2] = ord("=")
    bounds = np.concatenate([[0], text_ends]).astype(np.int64)
    found = pa.LargeStringArray.from_buffers(len(array), pa.py_buffer(bounds), pa.py_buffer(text))
    return pc.if_else(array.is_valid(), found, None) if array.null_count else found


def _quoted(array: pa.Array) -> pa.Array:
    return _joined('"', array, '"')


def _joined(*parts: Any) -> pa.Array:
    """Join texts and arrays of texts, element by element."""
    scalars = [pa.scalar(part, _TEXT) if isinstance(part, str) else part.cast(_TEXT) for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar("", _TEXT))
