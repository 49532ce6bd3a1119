"""The figures of `benchmarks.memory` as a table."""

from statistics import median
from typing import Any

# The most that is aimed at: this many times the partition, and this much more.
BOUND_FACTOR, BOUND_MIB = 2.2, 64

# Why a task needs more.
_SHUFFLED = "a shuffled partition is held as its rows arrive, and again in their new order"
REASONS = {
    "shuffle": _SHUFFLED,
    "colocate": _SHUFFLED,
    "colocate, 9 of 10 rows have one key": "one task writes all rows of a key",
}


def sections(results: dict[str, Any]) -> list[str]:
    """The lines of the table, as Markdown."""
    size = results["partition"]
    bound = BOUND_FACTOR * size + (BOUND_MIB << 20)
    lines = [
        "## Memory of a task",
        "",
        f"A partition has {size / 1e6:,.0f} MB. The peak includes the partition, and excludes libraries.",
        f"The goal is at most {BOUND_FACTOR} times the partition and {BOUND_MIB} MiB: {bound / 1e6:,.0f} MB.",
        "",
        "| task | peak MB | times the partition | |",
        "|---|--:|--:|---|",
    ]
    for job, peaks in results["peaks"].items():
        peak = median(peaks)
        verdict = "met" if peak <= bound else f"missed: {REASONS.get(job, 'the partition is small')}"
        lines.append(f"| {job} | {peak / 1e6:,.0f} | {peak / size:.2f} | {verdict} |")
    return lines
