"""`inspect --plot`: the sizes of the files, the lengths of lists and the values of a sample."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import PurePath
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord import Description
from dask_tfrecord.cli.escapes import printable

_ROWS = 10_000
_FILES = 5
_PANELS = 24
_PER_LINE = 4
_BINS = 40
_BARS = 10
_COLOUR = "#3b6ea5"

_Draw = Callable[[Any], None]


def draw(target: str, described: Description) -> None:
    """Draw a dataset to a file whose suffix gives the format, such as .png, .svg or .pdf."""
    figure_class = _matplotlib(target)
    rows = _sample(described)
    panels: list[tuple[str, _Draw]] = [("bytes of a file", partial(_histogram, np.array(described.sizes)))]
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        panels += _panels(name, pa.concat_arrays(column.chunks) if column.num_chunks else column)
    hidden = len(panels) - _PANELS
    panels = panels[:_PANELS]
    lines = -(-len(panels) // _PER_LINE)
    figure = figure_class(
        figsize=(3.4 * min(_PER_LINE, len(panels)), 0.7 + 2.6 * lines), layout="constrained"
    )
    note = f", {hidden:,} more panels left out" if hidden > 0 else ""
    name = PurePath(described.path).name
    title = printable(f"{name}: a sample of {rows.num_rows:,} rows{note}")
    figure.suptitle(title, fontsize=11, parse_math=False)
    grid = figure.subplots(lines, min(_PER_LINE, len(panels)), squeeze=False).flat
    for axes, (title, draw_panel) in zip(grid, panels, strict=False):
        axes.set_title(printable(title)[:40], fontsize=9, parse_math=False)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        draw_panel(axes)
    for axes in list(grid)[len(panels) :]:
        axes.set_axis_off()
    figure.savefig(target, dpi=100)


def _sample(described: Description) -> pa.Table:
    """Read some first rows of some files, which are spread over the dataset."""
    count = min(_FILES, len(described.files))
    tables = [described.schema.arrow.empty_table()]
    for number in range(count):
        missing = _ROWS // count
        with closing(described.iter_tables([number * len(described.files) // count])) as rows:
            for table in rows:
                tables.append(table.slice(0, missing))
                missing -= table.num_rows
                if missing <= 0:
                    break
    return pa.concat_tables(tables)


def _is_list(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_))


def _matplotlib(target: str) -> Any:
    """The class of figures, without a window system."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        advice = "pip install matplotlib"
        raise click.ClickException(f"--plot needs the package matplotlib: {advice}") from None
    known = FigureCanvasAgg.get_supported_filetypes()
    if PurePath(target).suffix[1:] not in known:
        raise click.UsageError(f"--plot needs a name with one of the suffixes {', '.join(sorted(known))}")
    return Figure


def _panels(name: str, array: Any) -> list[tuple[str, _Draw]]:
    """The panels of a column."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if _is_list(array.type):
        found = []
        if not pa.types.is_fixed_size_list(array.type):
            lengths = pc.list_value_length(array).drop_null().to_numpy(zero_copy_only=False)
            found.append((f"{name}: list lengths", partial(_histogram, lengths)))
        values = array
        while _is_list(values.type):
            values = values.flatten()
        return [*found, *_panels(f"{name}: values", values)]
    nulls = f" ({array.null_count:,} nulls)" if array.null_count else ""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    type_ = array.type
    array = array.drop_null()
    kinds = pa.types
    if kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_):
        numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return [(f"{name}{nulls}", partial(_histogram, numbers[np.isfinite(numbers)]))]
    if kinds.is_date(type_) or kinds.is_timestamp(type_):
        times = array.cast(pa.timestamp("s"), safe=False).to_numpy(zero_copy_only=False)
        return [(f"{name}{nulls}", partial(_histogram, times.astype("datetime64[s]").astype(object)))]
    if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_):
        lengths = pc.binary_length(array).to_numpy(zero_copy_only=False)
        return [(f"{name}: bytes of a value{nulls}", partial(_histogram, lengths))]
    return [(f"{name}{nulls}", partial(_most_frequent, array.cast(pa.string()) if len(array) else array))]


def _histogram(values: Any, axes: Any) -> None:
    if not len(values):
        axes.text(0.5, 0.5, "no values", ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_axis_off()
        return
    axes.hist(values, bins=min(_BINS, max(1, len(set(values.tolist())))), color=_COLOUR)
    if values.dtype == object:
        axes.tick_params(axis="x", labelrotation=30)
    else:
        axes.ticklabel_format(axis="x", useOffset=False)


def _most_frequent(values: Any, axes: Any) -> None:
    if not len(values):
        _histogram(values, axes)
        return
    counts = pc.value_counts(values)
    order = pc.sort_indices(counts.field("counts"), sort_keys=[("", "descending")])[:_BARS]
    top = counts.take(order).to_pylist()[::-1]
    labels = [printable(one["values"])[:18] for one in top]
    axes.barh(range(len(top)), [one["counts"] for one in top], color=_COLOUR)
    axes.set_yticks(range(len(top)), labels, parse_math=False)
    distinct = len(counts)
    if distinct > len(top):
        axes.set_xlabel(f"the {len(top)} most frequent of {distinct:,} values", fontsize=7)
