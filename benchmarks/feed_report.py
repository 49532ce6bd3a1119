"""The figures of `benchmarks.feeds` as Markdown tables and as a plot. Only drawing needs matplotlib."""

from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
GUIDE = HERE.parent / "docs" / "training.md"
BEGIN, END = "<!-- made by: python -m benchmarks.feeds --report -->\n", "<!-- end of what was made -->\n"

TENSORFLOW = ("tensorflow, best native", "tensorflow, usual")
OURS, OURS_TORCH = "tensorflow, ours", "torch, ours"
TORCH_PEERS = ("torch, vahidk/tfrecord", "torch, HF datasets", "torch, webdataset")

# The least ratio to TensorFlow's best that is aimed at, and to each other loader of PyTorch on vectors.
GOALS = {"tabular": 2.5, "vectors": 2.5, "wide": 2.5, "images": 0.9}
TORCH_GOAL = 8.0

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


def best_way(ways: dict[str, Any], what: str) -> list[float]:
    """The rates of the way with the highest median; empty if the loader failed."""
    found = [way[what] for way in ways.values() if isinstance(way, dict) and way.get(what)]
    return max(found, key=median, default=[])


def ratios(loaders: dict[str, Any], loader: str, others: tuple[str, ...] = TENSORFLOW) -> list[float]:
    """Rows per CPU second of a loader, relative to the best of other loaders: one ratio a round."""
    peers = [best_way(loaders.get(other, {}), "cpu") for other in others]
    best = max(peers, key=lambda rates: median(rates) if rates else 0.0)
    mine = best_way(loaders.get(loader, {}), "cpu")
    return [one / other for one, other in zip(mine, best, strict=False)]


def errors(ways: dict[str, Any]) -> list[str]:
    """Why a loader, or a way to use it, has no figures."""
    if "error" in ways:
        return [ways["error"]]
    return [f"{way}: {figures['error']}" for way, figures in ways.items() if "error" in figures]


def write(results: dict[str, Any]) -> None:
    """Write the tables, the plot, and the table of the guide."""
    (HERE / "feeds.md").write_text(full_tables(results))
    before, rest = GUIDE.read_text().split(BEGIN)
    GUIDE.write_text(before + BEGIN + short_table(results) + END + rest.split(END)[1])
    draw(results, HERE / "feeds.svg")


def full_tables(results: dict[str, Any]) -> str:
    """All figures: a table for each dataset, and the goals."""
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
    ratio = ratios(loaders, loader)
    text = f"{_ratio(median(ratio))} ({_ratio(min(ratio))} to {_ratio(max(ratio))})" if ratio else ""
    return f"| {TITLES[loader]} | {_rounded(median(cpu))} | {_rounded(median(wall))} | {text} |"


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
            lines.append(f"| {what} | {goal} | {_ratio(median(ratio))} | {met} |")
    return lines


def short_table(results: dict[str, Any]) -> str:
    """Thousand rows per CPU second of each loader and each dataset, and the ratio to TensorFlow's best."""
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
    return f"{thousands} k ({_ratio(median(ratio))} x)" if ratio else f"{thousands} k"


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _rounded(rate: float) -> str:
    """A rate with three digits that count."""
    return f"{float(f'{rate:.3g}'):,.0f}"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the ratios to TensorFlow's best: a panel for each table, a bar for each loader and compression."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "feeds", "font.size": 9})
    datasets = results["datasets"]
    tables = [table for table in GOALS if table in datasets or f"{table} gzip" in datasets]
    loaders = list(TITLES)
    figure, axes = plt.subplots(
        1,
        len(tables),
        figsize=(2.2 + 2.9 * len(tables), 5.2),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, table in zip(axes[0], tables, strict=True):
        for shift, name in ((-0.19, table), (0.19, f"{table} gzip")):
            _bars(axis, datasets.get(name), shift, name.endswith("gzip"))
        axis.set_title(table, fontweight="bold")
        axis.set_xscale("log")
        axis.set_xlim(0.006, 90)
        axis.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
        axis.minorticks_off()
        axis.axvline(1, color="#333333", linewidth=1, zorder=0)
        axis.set_axisbelow(True)
        axis.grid(axis="x", color="#e4e4e4", linewidth=0.7)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[0][0].set_yticks(range(len(loaders)), [TITLES[loader] for loader in loaders])
    axes[0][0].invert_yaxis()
    for label, loader in zip(axes[0][0].get_yticklabels(), loaders, strict=True):
        label.set_fontweight("bold" if "ours" in loader else "normal")
    figure.supxlabel(
        "rows per CPU second, as a multiple of TensorFlow's best way (logarithmic). "
        "Dark: uncompressed, light: gzip. Lines at the ends: least and greatest ratio.",
        fontsize=9,
    )
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _bars(axis: Any, found: dict[str, Any] | None, shift: float, is_light: bool) -> None:
    if found is None:
        return
    for place, loader in enumerate(TITLES):
        ratio = ratios(found["loaders"], loader)
        if not ratio:
            if loader in found["loaders"]:
                axis.text(0.0066, place + shift, "failed", va="center", color="#999999", fontsize=8)
            continue
        colour = "#0b7285" if "ours" in loader else "#868e96"
        value = median(ratio)
        axis.barh(
            place + shift, value - 0.006, 0.34, left=0.006, color=colour, alpha=0.45 if is_light else 1.0
        )
        axis.plot([min(ratio), max(ratio)], [place + shift] * 2, color="#212529", linewidth=1)
        axis.text(max(ratio) * 1.15, place + shift, _ratio(value), va="center", fontsize=8)
