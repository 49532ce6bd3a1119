"""Present the figures of `benchmarks.feeds` as Markdown tables and as a plot."""

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reports import (
    HERE,
    OURS_COLOUR,
    ROOT,
    THEIR_COLOUR,
    best_way,
    errors,
    panels,
    ratio_text,
    ratio_ticks,
    replace_region,
    round_ratios,
    rounded,
    spread,
)

GUIDE = ROOT / "docs" / "training.md"
COMMAND = "python -m benchmarks.feeds --report"

TENSORFLOW = ("tensorflow, best native", "tensorflow, usual")
OURS, OURS_TORCH = "tensorflow, ours", "torch, ours"
TORCH_PEERS = ("torch, vahidk/tfrecord", "torch, HF datasets", "torch, webdataset")

# The least ratio to TensorFlow's best that is aimed at, and to each other loader of PyTorch on vectors.
GOALS = {"tabular": 2.5, "vectors": 2.5, "wide": 2.5, "images": 0.9}
TORCH_GOAL = 8.0

LEAST = 0.006  # ratio that the plot shows

# The name of a loader in tables and in the plot.
TITLES = {
    "arrow, ours": "Arrow batches (ours)",
    OURS: "TensorFlow, ours",
    TENSORFLOW[0]: "TensorFlow, its best",
    TENSORFLOW[1]: "TensorFlow, as usual",
    OURS_TORCH: "PyTorch, ours",
    "torch, ours, all rows shuffled": "PyTorch, ours, shuffled rows",
    TORCH_PEERS[0]: "PyTorch, vahidk/tfrecord",
    TORCH_PEERS[1]: "PyTorch, HF datasets",
    TORCH_PEERS[2]: "PyTorch, webdataset",
}


def ratios(loaders: dict[str, Any], loader: str, others: tuple[str, ...] = TENSORFLOW) -> list[float]:
    """Return a loader's rows per CPU second, divided by those of the best other loader, for each round."""
    peers = [best_way(loaders.get(other, {}), "cpu") for other in others]
    best = max(peers, key=lambda rates: median(rates) if rates else 0.0)
    mine = best_way(loaders.get(loader, {}), "cpu")
    return round_ratios(mine, best)


def write(results: dict[str, Any]) -> None:
    """Write the tables, the plot, and the table of the guide."""
    (HERE / "feeds.md").write_text(full_tables(results))
    replace_region(GUIDE, COMMAND, short_table(results))
    draw(results, HERE / "feeds.svg")


def full_tables(results: dict[str, Any]) -> str:
    """Return all figures as a table for each dataset, and the goals."""
    machine = results["machine"]
    lines = [
        "# Batches for training, measured",
        "",
        "Made by `python -m benchmarks.feeds --store` and `python -m benchmarks.feeds --report`. Figures",
        "are medians of the rounds. A ratio compares rows per CPU second with those of TensorFlow's best way",
        "in the same round; the least and the greatest ratio are in brackets. Rows per second depend on how",
        "much of the CPU other processes left over.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
        *_goals(results["datasets"]),
    ]
    for name, found in results["datasets"].items():
        lines += [
            "",
            f"## {name[0].upper()}{name[1:]}",
            "",
            f"{found['rows']:,} rows, batches of {found['batch_size']:,}. Other processes used "
            f"{found['others']:.0%} of the CPU.",
            "",
            "| loader | rows per CPU second | rows per second | ratio to TensorFlow's best |",
            "|---|---:|---:|---:|",
            *(_row(found["loaders"], loader) for loader in found["loaders"]),
        ]
    return "\n".join([*lines, ""])


def _row(loaders: dict[str, Any], loader: str) -> str:
    cpu, wall = (best_way(loaders[loader], what) for what in ("cpu", "wall"))
    failed = "; ".join(errors(loaders[loader]))
    if not cpu:
        return f"| {TITLES[loader]} | {failed} | | |"
    ratio = spread(ratios(loaders, loader))
    return f"| {TITLES[loader]} | {rounded(median(cpu))} | {rounded(median(wall))} | {ratio} |"


def _goals(datasets: dict[str, Any]) -> list[str]:
    rows = [
        (f"{name}: {TITLES[OURS]} / {TITLES[TENSORFLOW[0]]}", goal, ratios(datasets[name]["loaders"], OURS))
        for name, goal in GOALS.items()
        if name in datasets
    ]
    if "vectors" in datasets:
        loaders = datasets["vectors"]["loaders"]
        rows += [
            (
                f"vectors: {TITLES[OURS_TORCH]} / {TITLES[peer]}",
                TORCH_GOAL,
                ratios(loaders, OURS_TORCH, (peer,)),
            )
            for peer in TORCH_PEERS
        ]
    lines = ["| rows per CPU second | goal | measured | |", "|---|---:|---:|---|"]
    for what, goal, ratio in rows:
        if ratio:
            met = "met" if median(ratio) >= goal else "missed"
            lines.append(f"| {what} | {goal} | {ratio_text(median(ratio))} | {met} |")
    return lines


def short_table(results: dict[str, Any]) -> str:
    """Return a table of thousands of rows per CPU second, with the ratios to TensorFlow's best way."""
    datasets = results["datasets"]
    lines = ["| | " + " | ".join(datasets) + " |", "|---" + "|---:" * len(datasets) + "|"]
    for loader, title in TITLES.items():
        cells = [_cell(found["loaders"], loader) for found in datasets.values()]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    machine = results["machine"]
    return "\n".join([*lines, "", f"{machine['cpu']}; {machine['packages']}; {machine['date']}.", ""])


def _cell(loaders: dict[str, Any], loader: str) -> str:
    cpu, ratio = best_way(loaders.get(loader, {}), "cpu"), ratios(loaders, loader)
    if not cpu:
        return "failed" if loader in loaders else "-"
    thousands = f"{median(cpu) / 1000:,.0f}" if median(cpu) >= 1e5 else f"{median(cpu) / 1000:,.1f}"
    return f"{thousands} k ({ratio_text(median(ratio))} x)" if ratio else f"{thousands} k"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the ratios to TensorFlow's best: a panel for each table, a bar for each loader and compression."""
    datasets = results["datasets"]
    tables = [table for table in GOALS if table in datasets or f"{table} gzip" in datasets]
    with panels(path, tables, [TITLES[loader] for loader in TITLES], 5.2) as (figure, axes):
        for axis, table in zip(axes, tables, strict=True):
            for shift, name in ((-0.19, table), (0.19, f"{table} gzip")):
                _bars(axis, datasets.get(name), shift, name.endswith("gzip"))
            ratio_ticks(axis, LEAST, 90)
        for label, loader in zip(axes[0].get_yticklabels(), TITLES, strict=True):
            label.set_fontweight("bold" if "kernel" in loader else "normal")
        figure.supxlabel(
            "rows per CPU second, as a multiple of TensorFlow's best way (logarithmic). "
            "Dark: uncompressed, light: gzip. Lines at the ends: least and greatest ratio.",
            fontsize=9,
        )


def _bars(axis: Any, found: dict[str, Any] | None, shift: float, is_light: bool) -> None:
    if found is None:
        return
    for place, loader in enumerate(TITLES):
        ratio = ratios(found["loaders"], loader)
        if not ratio:
            if loader in found["loaders"]:
                axis.text(LEAST * 1.1, place + shift, "failed", va="center", color="#999999", fontsize=8)
            continue
        colour = OURS_COLOUR if "kernel" in loader else THEIR_COLOUR
        value = median(ratio)
        axis.barh(
            place + shift, value - LEAST, 0.34, left=LEAST, color=colour, alpha=0.45 if is_light else 1.0
        )
        axis.plot([min(ratio), max(ratio)], [place + shift] * 2, color="#212529", linewidth=1)
        axis.text(max(ratio) * 1.15, place + shift, ratio_text(value), va="center", fontsize=8)
