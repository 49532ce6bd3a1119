"""Print the output of subcommands: tables on a terminal, JSON for scripts, and lines of text.

Printed names and values come from data that is not trusted. `print_lines`, `json_lines` and `print_json`
escape the characters that control a terminal. JSON text represents each value exactly, and is created one
column at a time. JSON text follows the JSON mapping of protobuf, except that 64-bit integers are numbers.
Bytes become base64 strings, and times become RFC 3339 strings. Durations become seconds such as "1.5s". NaN
and infinity become text.
"""

import binascii
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from rich.cells import cell_len, set_cell_size

from dask_tfrecord.cli.failures import UNSAFE, escaped_json, printable
from dask_tfrecord.errors import counted
from dask_tfrecord_launcher import CHANGING, writing_output

_TEXT = pa.large_string()

# An Arrow regular expression that matches every text that needs escapes, and some texts that need none. The
# syntax of Arrow's regular expressions differs from Python's.
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
    """Convert each value to JSON text. Nulls stay nulls."""
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
    return pa.nulls(len(array), _TEXT)  # the code above handles all types of TFRecord columns except null


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
    """Convert timestamps to ISO 8601 text. Timestamps with a time zone are in UTC and end with Z."""
    zone = "" if array.type.tz is None else "Z"
    return pc.replace_substring(
        _joined(array.cast(pa.timestamp(array.type.unit)).cast(_TEXT), zone), " ", "T"
    )


def _base64(array: pa.Array) -> pa.Array:
    """Encode all values as base64 in one call.

    Each value is padded to a multiple of 3 bytes, so that the encoded values stay separate.
    """
    if not len(array):
        return array.cast(_TEXT)
    lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy()
    padding = pa.array([b"", b"\0\0", b"\0"], pa.large_binary()).take(pa.array(lengths % 3))
    padded = pc.binary_join_element_wise(array.fill_null(b""), padding, pa.scalar(b"", pa.large_binary()))
    _, offsets, content = padded.buffers()
    text = np.frombuffer(binascii.b2a_base64(content or b"", newline=False), np.uint8).copy()
    bounds = np.frombuffer(offsets, np.int64)[: len(array) + 1] // 3 * 4
    text[bounds[1:][lengths % 3 > 0] - 1] = ord("=")
    text[bounds[1:][lengths % 3 == 1] - 2] = ord("=")
    found = pa.LargeStringArray.from_buffers(len(array), pa.py_buffer(bounds), pa.py_buffer(text))
    return pc.if_else(array.is_valid(), found, None)


def _quoted(array: pa.Array) -> pa.Array:
    return _joined('"', array, '"')


def _joined(*parts: Any) -> pa.Array:
    scalars = [pa.scalar(part, _TEXT) if isinstance(part, str) else part.cast(_TEXT) for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar("", _TEXT))


# The width of tables in characters if neither a terminal nor the variable COLUMNS defines a width.
_WIDTH = 120

# Tables of rows show at most _CELL characters of a value that is not a number. If a table is too wide, a
# column chosen by the caller is cut, but not below _SHORT_CELL characters.
_CELL = 40
_SHORT_CELL = 12


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print a value as indented JSON.

    Bytes, times and values of all other types that JSON lacks become text.
    """
    text = json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    _write(f"{escaped_json(text)}\n".encode())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return json.loads(json_values(pa.array([value]))[0].as_py())


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text. A line break inside a line is escaped."""
    _write("".join(f"{printable(line)}\n" for line in lines).encode())


def print_result(value: Any, lines: Iterable[str], as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        print_lines(lines)


def print_rows(table: pa.Table) -> None:
    _write(json_lines(table))


def print_totals(totals: Mapping[str, Any], as_json: bool = False) -> None:
    if as_json:
        print_json(totals)
        return
    width = max(map(len, totals))
    print_lines(
        f"{name.replace('_', ' '):<{width}}  {printable(str(_readable(value)))}"
        for name, value in totals.items()
    )


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_readable(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return f"{value:,}" if isinstance(value, int) else value


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Sequence[str] = (),
    cut: str = "",
) -> None:
    """Print a table without its empty columns. If the table is too wide, print a block of lines for each row.

    Columns listed in ``numbers`` are aligned to the right. Only cells of the column ``cut`` may be shortened.
    """
    lines = [[printable("" if cell is None else str(cell)) for cell in row] for row in (columns, *rows)]
    filled = [at for at in range(len(columns)) if len(lines) == 1 or any(line[at] for line in lines[1:])]
    lines = [[line[at] for at in filled] for line in lines]
    widths = [max(cell_len(line[at]) for line in lines) for at in range(len(filled))]
    width = _width()
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    if excess > 0 and cut in lines[0]:
        at = lines[0].index(cut)
        kept = max(min(widths[at], _SHORT_CELL), widths[at] - excess)
        excess -= widths[at] - kept
        widths[at] = kept
    if excess > 0 and len(widths) > 1:
        _print_blocks(lines, width)
        return
    is_right = [columns[at] in numbers for at in filled]
    print_lines("  ".join(map(_aligned, line, widths, is_right)).rstrip() for line in lines)


def _print_blocks(lines: Sequence[Sequence[str]], width: int) -> None:
    """For each row, print the first cell and, below it, the remaining cells with their titles."""
    (_, *titles), *rows = lines
    for first, *cells in rows:
        block = [first, " "]
        for text in (f"{title} {cell}" for title, cell in zip(titles, cells, strict=True) if cell):
            if cell_len(block[-1]) + cell_len(text) >= width and block[-1].strip():
                block.append(" ")
            block[-1] += f" {text}" if block[-1] == " " else f"  {text}"
        print_lines(block)


def _width() -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns


def _aligned(text: str, width: int, is_right: bool) -> str:
    space = width - cell_len(text)
    if space < 0:
        return f"{set_cell_size(text, width - 1)}…"
    return " " * space + text if is_right else text + " " * space


def print_frame(table: pa.Table) -> None:
    """Print an Arrow table as aligned text. Long values are cut, and columns that do not fit are left out."""
    space = _width()
    shown: dict[str, list[str]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        cells = _cells(column)
        space -= max(cell_len(printable(text)) for text in (name, *cells)) + 2
        if space < -2 and shown:
            break
        shown[name] = cells
    right = [item.name for item in table.schema if _is_number(item.type)]
    print_table(list(shown), zip(*shown.values(), strict=True), numbers=right)
    if hidden := len(table.column_names) - len(shown):
        print_lines([f"{counted(hidden, 'more column')}, which --json shows"])


def _cells(column: pa.ChunkedArray) -> list[str]:
    # Features store 32-bit floats, whose text is shorter than the text of 64-bit floats.
    if pa.types.is_float64(column.type):
        column = column.cast(pa.float32(), safe=False)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    texts = column.cast(pa.large_string()) if is_text else json_values(column)
    most = None if _is_number(column.type) else _CELL
    return [_shortened(text, most) for text in texts.to_pylist()]


def _shortened(text: str | None, most: int | None) -> str:
    if text is None:
        return "null"
    text = printable(text)
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _write(data: bytes | memoryview) -> None:
    context = click.get_current_context(silent=True)
    is_report = context is not None and context.info_name in CHANGING
    with writing_output("; the command has done its work, and only this report is lost" * is_report):
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
