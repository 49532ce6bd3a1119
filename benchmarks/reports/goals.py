"""Compare the figures of `benchmarks.peers` with the goals, in memory and on a disk."""

from statistics import median
from typing import Any

from benchmarks.reports.ratios import MEDIA, OURS, capped, capped_spread, ratios, row_ratio

# The least median of the ratios. No round may be below this share of the goal.
LEAST_ROUND = 0.8

TABLES = ("tabular", "recsys", "wide", "images")
GOALS = [
    *(("write", table, "parquet", 3.0) for table in TABLES),
    *(("read", table, "parquet", 1.2) for table in TABLES),
    *(("read", table, "tensorflow", goal) for table, goal in zip(TABLES, (15.0, 5.0, 8.0, 1.5), strict=True)),
    ("read 10,000 small files", "tabular", "tensorflow", 5.0),
]


def goal_lines(results: dict[str, Any], titles: dict[str, str]) -> list[str]:
    """Return the table of goals."""
    lines = [
        "A goal is met if the median of the ratios reaches the goal, and if no round is below",
        f"{LEAST_ROUND:g} of the goal. Beside a missed goal are the steps of dask_tfrecord with their share",
        "of the CPU time, from one more pass after the rounds.",
        "",
        "| rows per CPU second | files | goal | measured | one more row | |",
        "|---|---|--:|---|--:|---|",
    ]
    for job, table, peer, goal in GOALS:
        for medium, name in MEDIA.items():
            found = results.get(medium, {}).get(table, {}).get(job, {"peers": {}})
            what = f"| {job}, {table}: relative to {titles[peer]} | {name} | {goal:g} |"
            each, rounds = row_ratio(found, peer), ratios(found, peer)
            measured = f" {capped_spread(rounds)} | {capped(each) if each else ''} |" if rounds else " | |"
            lines.append(f"{what}{measured} {verdict(found, peer, goal)} |")
    return lines


def verdict(found: dict[str, Any], peer: str, goal: float) -> str:
    """Return whether a goal is met, and where the time goes if the goal is missed."""
    rounds = ratios(found, peer)
    if not rounds:
        return "not measured"
    if median(rounds) < goal:
        missed = "missed"
    elif min(rounds) < LEAST_ROUND * goal:
        missed = "missed in a round"
    else:
        return "met"
    [ours] = found["peers"][OURS].values()
    steps = [f"{share:.0%} {step}" for step, share in ours.get("shares", {}).items() if share >= 0.05]
    return f"{missed}: {', '.join(steps)}" if steps else missed
