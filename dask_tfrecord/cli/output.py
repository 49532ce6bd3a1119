"""What subcommands print: tables on a terminal, JSON for scripts, and lines that a pipe may stop reading."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dask_tfrecord.cli.failures import ReaderLeftError
from dask_tfrecord.cli.formats.json_text import json_lines, json_values

# The width of tables that are not printed on a terminal.
_WIDTH = 120

# The most characters of a cell.
_CELL = 40


def is_terminal() -> bool:
    """Return True if the output is a terminal."""
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print a value as indented JSON. Values that JSON lacks, such as dates, are printed as text."""
    write(json.dumps(value, indent=2, default=str, ensure_ascii=False) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text."""
    write("".join(f"{line}\n" for line in lines))


def print_rows(table: pa.Table) -> None:
    """Print the rows of an Arrow table as JSON lines."""
    write_bytes(json_lines(table))


def print_pairs(pairs: Mapping[str, Any]) -> None:
    """Print names and values, one pair per line."""
    width = max(map(len, pairs), default=0)
    print_lines(f"{name:<{width}}  {value}".rstrip() for name, value in pairs.items())


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Sequence[str] = ()
) -> None:
    """Print a table.

    Parameters
    ----------
    columns : sequence of str
        The titles.
    rows : iterable of sequence
        The cells of each row. None is an empty cell.
    numbers : sequence of str
        The columns that are aligned to the right.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(Text(name), justify="right" if name in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console = Console(file=sys.stdout, width=None if is_terminal() else _WIDTH, highlight=False)
    with console.capture() as captured:
        console.print(table)
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_frame(table: pa.Table) -> None:
    """Print the rows of an Arrow table as a table for people. Long values are cut, and columns left out."""
    space = Console(file=sys.stdout).width if is_terminal() else _WIDTH
    shown: dict[str, list[str]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        cells = _cells(column)
        space -= max(map(len, [name, *cells])) + 2
        if space < -2 and shown:
            break
        shown[name] = cells
    right = [item.name for item in table.schema if _is_number(item.type)]
    print_table(list(shown), zip(*shown.values(), strict=True), numbers=right)
    if hidden := len(table.column_names) - len(shown):
        print_lines([f"{hidden:,} more columns, which --json shows"])


def _cells(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_float64(column.type):  # stored as 32-bit floats, whose text is shorter
        column = column.cast(pa.float32(), safe=False)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    texts = column.cast(pa.large_string()) if is_text else json_values(column)
    return [_shortened(text) for text in texts.to_pylist()]


def _shortened(text: str | None) -> str:
    if text is None:
        return "null"
    shown = text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"
    return "".join(sign if sign.isprintable() else "�" for sign in shown)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def write(text: str) -> None:
    """Write text to the output."""
    write_bytes(memoryview(text.encode(errors="surrogateescape")))


def write_bytes(data: memoryview) -> None:
    """Write bytes to the output.

    Raises
    ------
    ReaderLeftError
        If the output is a pipe that nothing reads any more.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderLeftError from None
    except OSError as error:
        error.filename = "the output"  # which may be on a full disk
        raise
