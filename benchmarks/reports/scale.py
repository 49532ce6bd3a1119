"""Present the figures of `benchmarks.scale` as a table."""

import math
from statistics import median
from typing import Any

from benchmarks.reports import ratio_text

FORMATS = ("tfrecord", "parquet")

# Each step with its unit, and the divisor that gives the unit.
STEPS: dict[str, tuple[str, float]] = {
    "plan a write": ("CPU s", 1),
    "graph of the write": ("CPU s", 1),
    "bytes of the write": ("MB", 1e6),
    "write": ("CPU s", 1),
    "commit": ("CPU s", 1),
    "open": ("CPU s", 1),
    "graph of a read": ("CPU s", 1),
    "bytes of a read": ("MB", 1e6),
    "filter one row": ("CPU s", 1),
    "len": ("CPU s", 1),
    "append one file": ("CPU s", 1),
    "peak memory": ("MB", 1e6),
}

# The steps of `benchmarks.changes`, with names of its sizes in braces.
CHANGES = {
    "compact": "compact {small:,} files of 10 rows to 10 files",
    "delete a partition": "delete one of {partitions:,} partitions",
    "delete 1 % at one end": "delete 1 % of the rows of {large} files of {rows:,} rows: the first rows",
    "delete 1 % everywhere": "delete 1 % of the rows of these files: one row of 100",
    "append with a new column": "append 100 rows with a new column to {small:,} files",
    "commit of 100 rows": "append 100 rows to {small:,} files, a commit of an open `Writer`",
}
PEERS = {"parquet": "Parquet by hand", "delta": "deltalake"}

# The goal of each step with 100,000 files: the most CPU seconds.
GOALS = {"open": 2.0, "graph of a read": 2.0, "filter one row": 1.5, "append one file": 1.0}
GOAL_COUNT = "100000"

# Where the time goes, if a goal is missed.
REASONS = {
    "open": "the files are listed and compared with the snapshot",
    "graph of a read": "Dask needs a task object for each partition",
    "filter one row": "it includes opening the dataset, and a second listing shows that no file has changed",
    "append one file": "it reads what the snapshot says of all files",
}


def middle(runs: list[dict[str, Any]], step: str) -> float | None:
    """Return the median of the rounds, or None if the measurement of the format failed."""
    found = [run[step] for run in runs if step in run]
    return median(found) if found else None


def exponent(sizes: dict[str, Any], name: str, step: str) -> str:
    """Return the power of the number of partitions by which a figure grows between the two largest sizes."""
    counts = sorted(sizes, key=int)[-2:]
    figures = [middle(sizes[count][name], step) for count in counts]
    if len(counts) < 2 or not all(figures):
        return ""
    return f"{math.log(figures[1] / figures[0]) / math.log(int(counts[1]) / int(counts[0])):.2f}"


def sections(results: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of the table."""
    sizes = results["sizes"]
    counts = sorted(sizes, key=int)
    columns = [
        "step",
        "",
        *(f"{int(count):,}" for count in counts),
        "exponent",
        f"Parquet, {int(counts[-1]):,}",
    ]
    lines = [
        "## Many files",
        "",
        "Partitions of ten rows, a file each; the last two columns compare Dask's Parquet functions.",
        "",
        f"| {' | '.join([*columns, 'exponent', 'Parquet / TFRecord'])} |",
        "|---|---" + "|--:" * (len(columns)) + "|",
    ]
    for step, (unit, divisor) in STEPS.items():
        ours = [middle(sizes[count]["tfrecord"], step) for count in counts]
        theirs = middle(sizes[counts[-1]]["parquet"], step)
        cells = [step, unit, *(_text(figure, divisor) for figure in ours), exponent(sizes, "tfrecord", step)]
        cells += [_text(theirs, divisor), exponent(sizes, "parquet", step)]
        cells.append(ratio_text(theirs / ours[-1]) if theirs and ours[-1] else "")
        lines.append(f"| {' | '.join(cells)} |")
    failed = {
        f"- {name}, {int(count):,} partitions: {run['error']}"
        for count, one in sizes.items()
        for name, runs in one.items()
        for run in runs
        if "error" in run
    }
    lines += [*([""] if failed else []), *sorted(failed), "", *_goals(sizes)]
    return [*lines, "", *change_lines(results["changes"])] if "changes" in results else lines


def change_lines(changes: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of the changes of datasets."""
    runs = changes["runs"]
    peers = [name for name in runs if name != "tfrecord"]
    lines = [
        "## Changes of a dataset",
        "",
        f"CPU seconds, medians of {len(runs['tfrecord'])} rounds. Meanwhile other processes used "
        f"{changes['others']:.0%} of the processor. Parquet files",
        "were changed by hand with pyarrow, without a commit. The replaced files of Delta tables were kept.",
        "",
        f"Measured on: {'; '.join(changes['machine'].values())}",
        "",
        f"| step | TFRecord | {' | '.join(PEERS[name] for name in peers)} |",
        "|---|--:" + "|--:" * len(peers) + "|",
    ]
    for step, title in CHANGES.items():
        figures = [middle(runs[name], step) for name in ("tfrecord", *peers)]
        cells = [title.format(**changes["sizes"]), *(_text(figure, 1) for figure in figures)]
        lines.append(f"| {' | '.join(cells)} |")
    opened = sum(run.get("opened files", 0) for run in runs["tfrecord"])
    lines += ["", f"Data files that TFRecord opened to delete the partition: {opened:.0f}."]
    errors = {f"- {name}: {run['error']}" for name, one in runs.items() for run in one if "error" in run}
    return [*lines, *sorted(errors)]


def _text(figure: float | None, divisor: float) -> str:
    return "failed" if figure is None else f"{float(f'{figure / divisor:.2g}'):,g}"


def _goals(sizes: dict[str, Any]) -> list[str]:
    if GOAL_COUNT not in sizes:
        return []
    lines = [
        f"| CPU seconds with {int(GOAL_COUNT):,} files | goal, at most | measured | |",
        "|---|--:|--:|---|",
    ]
    for step, goal in GOALS.items():
        found = middle(sizes[GOAL_COUNT]["tfrecord"], step)
        verdict = "failed" if found is None else "met" if found <= goal else f"missed: {REASONS[step]}"
        lines.append(f"| {step} | {goal:g} | {_text(found, 1)} | {verdict} |")
    return lines
