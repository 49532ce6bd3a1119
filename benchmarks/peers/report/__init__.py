"""Share code among the reports: stored figures, ratios and their text, and regions of a page."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parents[2]
ROOT = HERE.parent
COMMAND = "python -m benchmarks.peers --report"

# The comments before and after the text that the report replaces on a page.
BEGIN, END = f"<!-- made by: {COMMAND} -->\n", "<!-- end of what was made -->\n"

OURS = "dask_tfrecord"

# No tool, but the limit of all: the bytes of this package's files are written and read without a format.
RAW = "raw bytes"

# Ratios above this number are not printed: they say how slow a peer is, not how fast this package is.
MOST = 100


def stored(name: str) -> dict[str, Any]:
    """Return the figures that a suite stored, or no figures if the suite has not stored any."""
    path = HERE / "peers" / f"{name}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return results


def save(name: str, results: dict[str, Any]) -> None:
    """Store the figures of a suite."""
    (HERE / "peers" / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")


# -- Ratios --------------------------------------------------------------------------------------------------


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


def ratios(found: dict[str, Any], peer: str, what: str = "cpu") -> list[float]:
    """Return this package's rows per CPU second, divided by those of a peer, for each round.

    ``what`` is "cpu" for the warm passes, or "cold".
    """
    ours, theirs = (fastest(found["peers"].get(name, {}), "cpu").get(what, []) for name in (OURS, peer))
    return round_ratios(ours, theirs)


def row_ratio(found: dict[str, Any], peer: str) -> float | None:
    """Return the peer's CPU seconds for one more row, divided by those of this package.

    Return None if one of both was measured with one number of rows, or if more rows took no more time.
    """
    theirs, ours = (_row_seconds(fastest(found["peers"].get(name, {}), "cpu")) for name in (peer, OURS))
    return theirs / ours if theirs and ours else None


def _row_seconds(way: dict[str, Any]) -> float | None:
    """Return the CPU seconds of one more row, or None if they are not known."""
    if not way.get("smaller_seconds"):
        return None
    seconds = way["rows"] / median(way["cpu"]) - median(way["smaller_seconds"])
    return max(seconds, 0.0) / (way["rows"] - way["smaller_rows"])


def claim(found: dict[str, Any], peer: str) -> float | None:
    """Return what holds for warm passes, for cold ones, and for one more row: the least of the ratios.

    Return None without figures.
    """
    known = [median(rounds) for what in ("cpu", "cold") if (rounds := ratios(found, peer, what))]
    each = row_ratio(found, peer)
    return min([*known, *([each] if each else [])], default=None)


def capped(ratio: float) -> str:
    """Format a ratio. A ratio above the greatest that is printed becomes "> 100"."""
    return ratio_text(ratio) if ratio <= MOST else f"> {MOST}"


def capped_spread(values: Sequence[float]) -> str:
    """Format the median, the least and the greatest ratio, or return an empty text if there are no ratios."""
    if not values:
        return ""
    least, middle, most = (capped(of(values)) for of in (min, median, max))
    return middle if least == most else f"{middle} ({least} to {most})"


# -- Text ----------------------------------------------------------------------------------------------------


def ratio_text(value: float) -> str:
    """Format a ratio with its significant digits."""
    return f"{value:.2g}" if value < 1 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def rounded(rate: float) -> str:
    """Format a rate with three significant digits."""
    return f"{float(f'{rate:.3g}'):,.0f}"


def replace_region(page: Path, text: str) -> None:
    """Replace the generated text between two comments of a page."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(before + BEGIN + text + END + rest.split(END, 1)[1])
