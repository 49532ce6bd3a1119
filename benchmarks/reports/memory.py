"""Present the figures of `benchmarks.memory` as a table."""

from statistics import median
from typing import Any

# The most that is aimed at: this many times the partition, and this much more.
BOUND_FACTOR, BOUND_MIB = 2.2, 64


def sections(results: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of the table."""
    size = results["partition"]
    bound = BOUND_FACTOR * size + (BOUND_MIB << 20)
    lines = [
        "## Memory of a task",
        "",
        f"A partition has {size / 1e6:,.0f} MB. The peak includes the partition, and excludes libraries.",
        "A task that merges shuffled rows holds no partition of the collection. It is counted nevertheless.",
        f"The goal is at most {BOUND_FACTOR} times the partition and {BOUND_MIB} MiB: {bound / 1e6:,.0f} MB.",
        "",
        "| task | peak MB | times the partition | |",
        "|---|--:|--:|---|",
    ]
    for job, peaks in results["peaks"].items():
        peak = median(peaks)
        verdict = "met" if peak <= bound else "missed"
        lines.append(f"| {job} | {peak / 1e6:,.0f} | {peak / size:.2f} | {verdict} |")
    if pools := results.get("pools"):
        lines += [
            "",
            "A read of 250 MB of images leaves memory for later batches. An idle process returns most of it.",
            "",
            "| read of images | MiB right after | MiB one second later |",
            "|---|--:|--:|",
        ]
        for name, sizes in pools.items():
            after, later = (median(column) / 2**20 for column in zip(*sizes, strict=True))
            lines.append(f"| {name} | {after:,.0f} | {later:,.0f} |")
    return lines
