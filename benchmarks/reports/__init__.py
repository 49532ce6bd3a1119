"""Share code among the reports of the benchmarks: ratios and their text, and regions of a page."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent.parent
ROOT = HERE.parent


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
