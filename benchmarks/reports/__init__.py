"""Share code among the reports of the benchmarks: ratios and their text, regions of a page, style of plots.

Only the functions that draw need matplotlib.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent.parent
ROOT = HERE.parent

OURS_COLOUR, THEIR_COLOUR = "#0b7285", "#868e96"


def fastest(ways: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the figures of the way with the highest median of a rate, or no figures if all ways failed."""
    found = [way for way in ways.values() if isinstance(way, dict) and way.get(what) and "error" not in way]
    return max(found, key=lambda way: median(way[what]), default={})


def best_way(ways: dict[str, Any], what: str) -> list[float]:
    """Return the rates of the way with the highest median, or no rates if all ways failed."""
    rates: list[float] = fastest(ways, what).get(what, [])
    return rates


def round_ratios(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return one ratio for each round that has rates of both sides."""
    return [one / other for one, other in zip(ours, others, strict=False)]


def errors(ways: dict[str, Any]) -> list[str]:
    """Return the reasons why a peer, or a way to use a peer, has no figures."""
    if "error" in ways:
        return [ways["error"]]
    return [f"{way}: {one['error']}" if way else one["error"] for way, one in ways.items() if "error" in one]


# -- Text ----------------------------------------------------------------------------------------------------


def ratio_text(value: float) -> str:
    """Format a ratio with its significant digits."""
    return f"{value:.2g}" if value < 1 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def spread(ratios: Sequence[float]) -> str:
    """Format the median, the least and the greatest ratio, or return an empty text if there are no ratios."""
    if not ratios:
        return ""
    least, middle, most = (ratio_text(of(ratios)) for of in (min, median, max))
    return f"{middle} ({least} to {most})"


def rounded(rate: float) -> str:
    """Format a rate with three significant digits."""
    return f"{float(f'{rate:.3g}'):,.0f}"


def replace_region(page: Path, command: str, text: str) -> None:
    """Replace the generated text between two comments of a page."""
    begin, end = region(command)
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + end + rest.split(end, 1)[1])


def region(command: str) -> tuple[str, str]:
    """Return the comments before and after the text that a command generates."""
    return f"<!-- made by: {command} -->\n", "<!-- end of what was made -->\n"


# -- Plots ---------------------------------------------------------------------------------------------------


@contextmanager
def panels(path: Path, titles: Sequence[str], rows: Sequence[str], height: float) -> Iterator[Any]:
    """Draw a panel for each title, with a position for each row, and save the picture.

    Yields
    ------
    tuple of matplotlib.figure.Figure and list of matplotlib.axes.Axes
        The figure and a panel for each title. The axis of ratios is logarithmic.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.size": 9})
    size = (2.2 + 2.9 * len(titles), height)
    figure, axes = plt.subplots(
        1, len(titles), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontweight="bold")
        axis.set_xscale("log")
        axis.axvline(1, color="#333333", linewidth=1, zorder=0)
        axis.set_axisbelow(True)
        axis.grid(axis="x", color="#e4e4e4", linewidth=0.7)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[0][0].set_yticks(range(len(rows)), rows)
    axes[0][0].invert_yaxis()
    yield figure, list(axes[0])
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def ratio_ticks(axis: Any, least: float, most: float) -> None:
    """Limit the axis of ratios, and label the powers of ten."""
    axis.set_xlim(least, most)
    ticks = [10.0**power for power in range(-4, 6) if least <= 10.0**power <= most]
    axis.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axis.minorticks_off()
