"""Implement `inspect --plot`: plot file sizes, list lengths and the values of a sample of rows."""

from pathlib import PurePath
from typing import Any

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord import Description
from dask_tfrecord.cli.describe import first_rows
from dask_tfrecord.cli.escapes import printable

_ROWS = 10_000
_FILES = 5
_PANELS = 24
_PER_LINE = 4
_BARS = 10
_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_COLOUR = "#3b6ea5"


def draw(target: str, described: Description) -> None:
    """Draw a dataset to a file whose suffix gives the format, such as .png, .svg or .pdf."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # matplotlib is optional
    from matplotlib.figure import Figure  # matplotlib's Agg canvas needs no window system

    known = FigureCanvasAgg.get_supported_filetypes()
    if PurePath(target).suffix[1:] not in known:
        raise click.UsageError(f"--plot needs a name with one of the suffixes {', '.join(sorted(known))}")
    count = min(_FILES, len(described.files))
    # The files are spread over the whole dataset.
    numbers = [at * len(described.files) // count for at in range(count)]
    samples = [first_rows(described, _ROWS // count, [number]) for number in numbers]
    rows = pa.concat_tables([described.schema.arrow.empty_table(), *samples])
    panels: list[tuple[str, pd.Series]] = [("bytes of a file", pd.Series(described.sizes))]
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        panels += _panels(name, column.combine_chunks())
    shown = panels[:_PANELS]
    lines = -(-len(shown) // _PER_LINE)
    figure = Figure(figsize=(3.4 * min(_PER_LINE, len(shown)), 0.7 + 2.6 * lines), layout="constrained")
    note = f", {len(panels) - len(shown):,} more panels left out" if len(panels) > len(shown) else ""
    title = printable(f"{PurePath(described.path).name}: a sample of {rows.num_rows:,} rows{note}")
    figure.suptitle(title, fontsize=11, parse_math=False)
    grid = figure.subplots(lines, min(_PER_LINE, len(shown)), squeeze=False).flat
    for axes, (title, values) in zip(grid, shown, strict=False):
        axes.set_title(printable(title)[:40], fontsize=9, parse_math=False)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        _draw_panel(axes, values)
    for axes in list(grid)[len(shown) :]:
        axes.set_axis_off()
    figure.savefig(target, dpi=100)


def _panels(name: str, array: Any) -> list[tuple[str, pd.Series]]:
    """Return the titles of the plots of a column, and the numbers, times or texts in each plot."""
    kinds = pa.types
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if kinds.is_nested(array.type):
        lengths = []
        if not kinds.is_fixed_size_list(array.type):
            lengths = [(f"{name}: list lengths", pc.list_value_length(array).drop_null().to_pandas())]
        while kinds.is_nested(array.type):
            array = array.flatten()
        return lengths + _panels(f"{name}: values", array)
    nulls = f" ({array.null_count:,} nulls)" if array.null_count else ""
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = array.drop_null()
    if any(test(array.type) for test in _BINARY):
        return [(f"{name}: bytes of a value{nulls}", pc.binary_length(array).to_pandas())]
    if kinds.is_date(array.type) or kinds.is_timestamp(array.type):
        return [(f"{name}{nulls}", array.cast(pa.timestamp("s"), safe=False).to_pandas())]
    if kinds.is_integer(array.type) or kinds.is_floating(array.type) or kinds.is_decimal(array.type):
        numbers = array.cast(pa.float64(), safe=False).to_pandas()
        return [(f"{name}{nulls}", numbers[np.isfinite(numbers)])]
    return [(f"{name}{nulls}", array.cast(pa.string()).to_pandas().astype(object))]


def _draw_panel(axes: Any, values: pd.Series) -> None:
    if values.empty:
        axes.text(0.5, 0.5, "no values", ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_axis_off()
    elif values.dtype == object:
        counts = values.value_counts()
        top = counts.head(_BARS)[::-1]
        axes.barh(range(len(top)), top, color=_COLOUR)
        axes.set_yticks(range(len(top)), [printable(text)[:18] for text in top.index], parse_math=False)
        if len(counts) > len(top):
            axes.set_xlabel(f"the {len(top)} most frequent of {len(counts):,} values", fontsize=7)
    else:
        axes.hist(values, bins=min(40, values.nunique()), color=_COLOUR)
        if values.dtype.kind == "M":
            axes.tick_params(axis="x", labelrotation=30)
        else:
            axes.ticklabel_format(axis="x", useOffset=False)
