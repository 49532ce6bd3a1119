"""Print the output of subcommands: tables on a terminal, JSON for scripts, and lines of text.

Names and values come from data that is not trusted. Text is printed with `print_lines`, and JSON with
`json_lines` or `print_json`. `print_lines`, `json_lines` and `print_json` escape the characters that control
a terminal.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from dask_tfrecord.cli.escapes import escaped_json, printable
from dask_tfrecord.cli.failures import ReaderLeftError
from dask_tfrecord.cli.json_text import json_lines, json_values

# The width of tables in characters, if neither a terminal nor the variable COLUMNS gives a width.
_WIDTH = 120

# The largest number of characters of a cell, and the smallest number of characters of a cell that is cut to
# fit.
_CELL = 40
_SHORT_CELL = 12


def is_terminal() -> bool:
    """Return True if the output is a terminal."""
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print a value as indented JSON. Bytes, times and other values of types that JSON lacks become text."""
    text = json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    _write(f"{escaped_json(text)}\n".encode())


def _plain(value: Any) -> Any:
    """Replace bytes, times, NaN and infinity in a value by text."""
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
    """Print a value as JSON, or else the lines that show the value as text."""
    if as_json:
        print_json(value)
    else:
        print_lines(lines)


def print_rows(table: pa.Table) -> None:
    """Print the rows of an Arrow table as JSON lines."""
    _write(json_lines(table))


def print_pairs(pairs: Mapping[str, Any]) -> None:
    """Print pairs of a name and a value, one pair per line."""
    width = max(map(len, pairs), default=0)
    print_lines(f"{name:<{width}}  {printable(str(value))}" for name, value in pairs.items())


def print_totals(totals: Mapping[str, Any], as_json: bool) -> None:
    """Print the results of a command as JSON, or else as pairs with readable names and numbers."""
    if as_json:
        print_json(totals)
    else:
        print_pairs({name.replace("_", " "): _readable(value) for name, value in totals.items()})


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {text}" for name, text in value.items())
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
    """Print a table. If the table is too wide, print a block of lines for each row. Columns without values
    are left out.

    Parameters
    ----------
    columns : sequence of str
        The titles of the columns.
    rows : iterable of sequence
        The cells of each row. None stands for an empty cell.
    numbers : sequence of str
        The titles of the columns that are aligned to the right.
    cut : str, default ""
        The title of the column whose cells may be cut. The cells of all other columns are printed in full.
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
    """Print the first cell of each row on a line, and print the other cells with their titles below this
    line.
    """
    (_, *titles), *rows = lines
    for first, *cells in rows:
        block = [first, " "]
        for text in (f"{title} {cell}" for title, cell in zip(titles, cells, strict=True) if cell):
            if cell_len(block[-1]) + cell_len(text) >= width and block[-1].strip():
                block.append(" ")
            block[-1] += f" {text}" if block[-1] == " " else f"  {text}"
        print_lines(block)


def _width() -> int:
    """Return the number of characters of a line, from the variable COLUMNS or otherwise from the terminal,
    if there is one.
    """
    return shutil.get_terminal_size((_WIDTH, 24)).columns


def _aligned(text: str, width: int, is_right: bool) -> str:
    """Pad a text with spaces to the width, or cut the text to the width."""
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
        print_lines([f"{hidden:,} more columns, which --json shows"])


def _cells(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_float64(column.type):  # the values are stored as 32-bit floats, whose text is shorter
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
    """Write bytes to the output.

    Raises
    ------
    ReaderLeftError
        If the output is a pipe that no program reads any more.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderLeftError from None
    except OSError as error:
        error.filename = "the output"  # the error may be caused by a full disk, for example
        raise
