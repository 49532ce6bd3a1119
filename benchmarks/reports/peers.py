"""Present the figures of `benchmarks.peers` as tables for the results and the README, goals, and a plot."""

import importlib.util
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reports import (
    HERE,
    ROOT,
    best_way,
    errors,
    fastest,
    panels,
    ratio_text,
    ratio_ticks,
    replace_region,
    round_ratios,
    rounded,
    spread,
)

README = ROOT / "README.md"
COMMAND = "python -m benchmarks.peers --report"
PICTURE = HERE / "peers.svg"

OURS = "dask_tfrecord"
TITLES = {
    OURS: "**dask_tfrecord**",
    "parquet": "Dask's Parquet functions",
    "tensorflow": "TensorFlow, its best way",
    "tensorflow, usual": "TensorFlow, as usual",
    "tfx-bsl": "tfx-bsl",
    "spark-tfrecord": "Spark-TFRecord",
    "ray": "Ray Data",
    "beam": "Apache Beam",
    "vahidk/tfrecord": "vahidk/tfrecord",
    "protobuf loop": "loop with protobuf",
}

# The jobs that all four tables have, with their short names.
MAIN_JOBS = {
    "write": "write",
    "write gzip": "write gzip",
    "read": "read",
    "read few columns": "read few columns",
    "read gzip": "read gzip",
}
COLOURS = {"tabular": "#0b7285", "recsys": "#e8590c", "wide": "#5f3dc4", "images": "#2b8a3e"}

# The least ratios that are aimed at.
GOALS = [
    *(("write", table, "parquet", 3.0) for table in COLOURS),
    ("write", "tabular", "tfx-bsl", 15.0),
    ("write", "tabular", "spark-tfrecord", 20.0),
    *(
        ("read", table, "tensorflow", goal)
        for table, goal in zip(COLOURS, (15.0, 5.0, 8.0, 3.0), strict=True)
    ),
    *(("read", table, "parquet", 1.0) for table in COLOURS),
    ("read few columns", "tabular", "parquet", 0.59),
]

# Where the time goes, if a goal is missed: shares of the CPU time, by `benchmarks.breakdown`.
REASONS = {
    ("write", "tabular"): "half is write() itself, and 30% is encoding",
    ("write", "recsys"): "40% is encoding, and 40% is write() itself",
    ("write", "wide"): "half is write() itself, 20% is encoding, and 8% is the commit",
    ("write", "images"): "70% is write() itself, and 20% is encoding",
    ("read", "tabular"): "40% is the system's copy of the files, and 40% is decoding",
    ("read", "recsys"): "65% is decoding, and 15% is the system's copy of the files",
    ("read", "wide"): "40% is the system's copy of the files, 20% is decoding, and 15% are pandas objects",
    ("read", "images"): "40% is the system's copy of the files, and 40% is decoding",
    ("read few columns", "tabular"): "every byte is read and checksummed, whatever columns are needed",
}


def ratios(found: dict[str, Any], peer: str) -> list[float]:
    """Return this package's rows per CPU second, divided by those of a peer, for each round."""
    ours, theirs = (best_way(found["peers"].get(name, {}), "cpu") for name in (OURS, peer))
    return round_ratios(ours, theirs)


def write(results: dict[str, Any]) -> None:
    """Write the README's table and draw the plot."""
    replace_region(README, COMMAND, short_table(results))
    if importlib.util.find_spec("matplotlib"):
        draw(results, PICTURE)
    else:
        print(f"{PICTURE.name} is not drawn, because matplotlib is not installed")


def short_table(results: dict[str, Any]) -> str:
    """Return a Markdown row for each peer, with the least and the greatest ratio for each main job."""
    lines = ["| relative to | " + " | ".join(MAIN_JOBS.values()) + " |"]
    lines.append("|---" + "|--:" * len(MAIN_JOBS) + "|")
    for peer, title in TITLES.items():
        cells = [_range(results["tables"], job, peer) for job in MAIN_JOBS]
        if peer not in (OURS, "tensorflow, usual") and any(cells):
            lines.append(f"| {title} | " + " | ".join(cell or "-" for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _range(tables: dict[str, Any], job: str, peer: str) -> str:
    found = [median(ratio) for jobs in tables.values() if job in jobs and (ratio := ratios(jobs[job], peer))]
    texts = [ratio_text(of(found)) for of in (min, max)] if found else []
    return " to ".join(dict.fromkeys(texts))


def sections(results: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of all tables."""
    lines = [
        *_conditions(results["tables"]),
        "",
        "## Goals",
        "",
        *_goals(results["tables"]),
        "",
        "![Rows per CPU second relative to each peer](peers.svg)",
    ]
    for table, jobs in results["tables"].items():
        lines += [
            "",
            f"## {table[0].upper()}{table[1:]}",
            "",
            "| job | tool | rows | rows per CPU second | rows per second | peak MB | ratio |",
            "|---|---|--:|--:|--:|--:|---|",
        ]
        for job, found in jobs.items():
            lines += [
                _row(job, peer, found) for peer in found["peers"] if fastest(found["peers"][peer], "cpu")
            ]
    return [*lines, "", "## Peers that took no part, or failed", "", *_failures(results)]


def _conditions(tables: dict[str, Any]) -> list[str]:
    """Return lines that say the number of rounds and the CPU share of other processes."""
    jobs = [found for jobs in tables.values() for found in jobs.values()]
    rounds = {len(best_way(found["peers"].get(OURS, {}), "cpu")) for found in jobs} - {0} or {0}
    busy = sorted(found["others"] for found in jobs)
    times = " to ".join(str(count) for count in dict.fromkeys([min(rounds), max(rounds)]))
    return [
        f"Each tool did each job {times} times, in turns. Meanwhile processes that do not belong to the",
        f"benchmark used {busy[0]:.0%} to {busy[-1]:.0%} of the processor.",
    ]


def _row(job: str, peer: str, found: dict[str, Any]) -> str:
    ways = found["peers"][peer]
    best = fastest(ways, "cpu")
    cells = [
        job,
        TITLES[peer],
        f"{best['rows']:,}",
        rounded(median(best["cpu"])),
        rounded(median(best_way(ways, "wall"))),
        f"{median(best['memory']):,.0f}",
        "" if peer == OURS else spread(ratios(found, peer)),
    ]
    return f"| {' | '.join(cells)} |"


def _goals(tables: dict[str, Any]) -> list[str]:
    lines = ["| rows per CPU second | goal | measured | |", "|---|--:|---|---|"]
    for job, table, peer, goal in GOALS:
        what = f"| {job}, {table}: relative to {TITLES[peer]} | {goal:g} |"
        ratio = ratios(tables.get(table, {}).get(job, {"peers": {}}), peer)
        if not ratio:
            lines.append(f"{what} | not measured |")
        elif median(ratio) >= goal:
            lines.append(f"{what} {spread(ratio)} | met |")
        else:
            lines.append(f"{what} {spread(ratio)} | missed: {REASONS[job, table]} |")
    return lines


def _failures(results: dict[str, Any]) -> list[str]:
    lines = [f"- {TITLES[name]}: {error}" for name, error in results["peers"].items() if error]
    for table, jobs in results["tables"].items():
        for job, found in jobs.items():
            for peer, ways in found["peers"].items():
                lines += [f"- {TITLES[peer]}, {job}, {table}: {error}" for error in errors(ways)]
    return lines or ["None."]


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the ratios: a panel for each main job, a row for each peer, a point for each table."""
    tables = results["tables"]
    peers = [peer for peer in TITLES if peer != OURS and any(_range(tables, job, peer) for job in MAIN_JOBS)]
    with panels(path, list(MAIN_JOBS.values()), [TITLES[peer] for peer in peers], 4.2) as (figure, axes):
        most = 1.0
        for axis, job in zip(axes, MAIN_JOBS, strict=True):
            for place, peer in enumerate(peers):
                for number, (table, colour) in enumerate(COLOURS.items()):
                    ratio = ratios(tables.get(table, {}).get(job, {"peers": {}}), peer)
                    if ratio:
                        height = place + (number - 1.5) * 0.18
                        axis.plot([min(ratio), max(ratio)], [height] * 2, color=colour, linewidth=1)
                        axis.plot(median(ratio), height, "o", color=colour, markersize=4, label=table)
                        most = max(most, *ratio)
        for axis in axes:
            ratio_ticks(axis, 0.2, most * 1.5)
        dots = {
            label: dot for axis in axes for dot, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(dots.values(), dots.keys(), loc="outside upper right", ncols=len(dots), frameon=False)
        figure.supxlabel(
            "rows per CPU second of dask_tfrecord, relative to each tool (logarithmic). "
            "Lines: least and greatest ratio of the rounds.",
            fontsize=9,
        )
