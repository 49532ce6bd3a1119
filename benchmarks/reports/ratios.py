"""Compare this package with a peer: the ratios of each round, and the ratio of the cost of one more row."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.reports import best_way, fastest, ratio_text, round_ratios

OURS = "dask_tfrecord"

# The media of the files, with the key of their figures.
MEDIA = {"tables": "in memory", "disk": "on disk"}

# The number of the present way of measuring. Figures of another way are not kept beside new figures.
PROTOCOL = 2

# Ratios above this number are not printed: they say how slow a peer is, not how fast this package is.
MOST = 100


def ratios(found: dict[str, Any], peer: str) -> list[float]:
    """Return this package's rows per CPU second, divided by those of a peer, for each round."""
    ours, theirs = (best_way(found["peers"].get(name, {}), "cpu") for name in (OURS, peer))
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
    """Return the smaller of the median ratio and the ratio of one more row, or None without figures."""
    if not (rounds := ratios(found, peer)):
        return None
    each = row_ratio(found, peer)
    return median(rounds) if each is None else min(median(rounds), each)


def capped(ratio: float) -> str:
    """Format a ratio. A ratio above the greatest that is printed becomes "> 100"."""
    return ratio_text(ratio) if ratio <= MOST else f"> {MOST}"


def capped_spread(values: Sequence[float]) -> str:
    """Format the median, the least and the greatest ratio, or return an empty text if there are no ratios."""
    if not values:
        return ""
    least, middle, most = (capped(of(values)) for of in (min, median, max))
    return middle if least == most else f"{middle} ({least} to {most})"
