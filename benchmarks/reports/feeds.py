"""Present the figures of `benchmarks.feeds` as Markdown tables."""

from statistics import median
from typing import Any

from benchmarks.reports import (
    HERE,
    ROOT,
    best_way,
    errors,
    ratio_text,
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

# The name of a loader in the tables.
TITLES = {
    "arrow, ours": "Arrow batches (ours)",
    "arrow, ours, shuffled": "Arrow batches (ours), shuffled",
    "arrow, ours, shuffled blocks": "Arrow batches (ours), shuffled blocks",
    OURS: "TensorFlow, ours",
    "tensorflow, ours, shuffled": "TensorFlow, ours, shuffled",
    TENSORFLOW[0]: "TensorFlow, its best",
    TENSORFLOW[1]: "TensorFlow, as usual",
    OURS_TORCH: "PyTorch, ours",
    "torch, ours, shuffled": "PyTorch, ours, shuffled",
    "torch, ours, all rows shuffled": "PyTorch, ours, shuffled rows",
    "torch, ours, shuffled blocks": "PyTorch, ours, shuffled blocks",
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
    """Write the tables, and the table of the guide."""
    (HERE / "feeds.md").write_text(full_tables(results))
    replace_region(GUIDE, COMMAND, short_table(results))


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
        if any(loader in found["loaders"] for found in datasets.values()):
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
