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
TORCH_PEERS = (
    "torch, vahidk/tfrecord",
    "torch, HF datasets",
    "torch, webdataset",
    "torch, MosaicML streaming",
)
GRAIN = "arrays, Grain with ArrayRecord"

# The least ratio to TensorFlow's best that is aimed at, and to each other loader of PyTorch on vectors.
GOALS = {"tabular": 2.5, "vectors": 2.5, "wide": 2.5, "images": 0.9}
TORCH_GOAL = 8.0

# The least ratio of shuffled to plain Arrow batches that is aimed at.
SHUFFLED_GOAL = 0.6

# The rows of the tables: the name of a loader, where the rows are shuffled, and the loader without and with a
# shuffle. A loader that is always shuffled has no plain form.
ROWS = (
    ("Arrow batches (ours)", "buffer", "arrow, ours", "arrow, ours, shuffled"),
    ("Arrow batches (ours)", "blocks", "arrow, ours", "arrow, ours, shuffled blocks"),
    ("`RecordTable` (ours)", "blocks", "", "arrow, RecordTable, shuffled blocks"),
    ("`RecordTable` (ours)", "all rows", "", "arrow, RecordTable, all rows shuffled"),
    ("TensorFlow, ours", "buffer", OURS, f"{OURS}, shuffled"),
    ("TensorFlow, its best", "buffer", TENSORFLOW[0], f"{TENSORFLOW[0]}, shuffled"),
    ("TensorFlow, as usual", "buffer", TENSORFLOW[1], f"{TENSORFLOW[1]}, shuffled"),
    ("PyTorch, ours", "buffer", OURS_TORCH, f"{OURS_TORCH}, shuffled"),
    ("PyTorch, ours, by number", "blocks", "", "torch, RecordTable, shuffled blocks"),
    ("PyTorch, ours, by number", "all rows", "", "torch, RecordTable, all rows shuffled"),
    ("PyTorch, vahidk/tfrecord", "buffer", TORCH_PEERS[0], f"{TORCH_PEERS[0]}, shuffled"),
    ("PyTorch, HF datasets", "buffer", TORCH_PEERS[1], f"{TORCH_PEERS[1]}, shuffled"),
    ("PyTorch, HF datasets", "all rows", TORCH_PEERS[1], f"{TORCH_PEERS[1]}, all rows shuffled"),
    ("PyTorch, webdataset", "buffer", TORCH_PEERS[2], f"{TORCH_PEERS[2]}, shuffled"),
    ("PyTorch, MosaicML streaming", "blocks", TORCH_PEERS[3], f"{TORCH_PEERS[3]}, shuffled blocks"),
    ("NumPy, Grain with ArrayRecord", "all rows", GRAIN, f"{GRAIN}, all rows shuffled"),
)
TITLES = {plain: title for title, _, plain, _ in ROWS if plain}


def ratios(loaders: dict[str, Any], loader: str, others: tuple[str, ...] = TENSORFLOW) -> list[float]:
    """Return a loader's rows per CPU second, divided by those of the best other loader, for each round."""
    peers = [best_way(loaders.get(other, {}), "cpu") for other in others]
    best = max(peers, key=lambda rates: median(rates) if rates else 0.0)
    mine = best_way(loaders.get(loader, {}), "cpu")
    return round_ratios(mine, best)


def tensorflow_ratios(loaders: dict[str, Any], loader: str) -> list[float]:
    """Return a loader's ratios to TensorFlow's best way to read rows, which is shuffled if the loader is."""
    suffix = ", shuffled" if "shuffled" in loader else ""
    return ratios(loaders, loader, tuple(f"{other}{suffix}" for other in TENSORFLOW))


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
        "in the same round, plain with plain and shuffled with shuffled. The least and the greatest ratio",
        "are in brackets. Rows per second depend on how much of the CPU other processes left over.",
        "",
        "A buffer holds 65,536 rows. A shuffle in blocks shuffles blocks of the files, and the rows within",
        "groups of blocks. HF datasets reads a decoded copy of the rows. webdataset, MosaicML streaming and",
        "ArrayRecord hold packed numbers, and no Examples.",
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
            "| loader | shuffled in | rows per CPU second | shuffled | rows per second | shuffled "
            "| x TensorFlow's best | shuffled |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
            *(_row(found["loaders"], *row) for row in ROWS if _is_measured(found["loaders"], row)),
        ]
    return "\n".join([*lines, ""])


def _is_measured(loaders: dict[str, Any], row: tuple[str, str, str, str]) -> bool:
    return row[2] in loaders or row[3] in loaders


def _row(loaders: dict[str, Any], title: str, where: str, plain: str, shuffled: str) -> str:
    both = [loaders.get(plain, {}), loaders.get(shuffled, {})]
    cells = [
        rounded(median(rates)) if (rates := best_way(ways, what)) else ""
        for what in ("cpu", "wall")
        for ways in both
    ]
    failed = dict.fromkeys(error for ways in both if not best_way(ways, "cpu") for error in errors(ways))
    if failed:
        where += f" ({'; '.join(failed)})"
    cells += [spread(tensorflow_ratios(loaders, loader)) for loader in (plain, shuffled)]
    return "| " + " | ".join([title, where, *cells]) + " |"


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
    rows += [
        (
            f"{name}: Arrow batches (ours), shuffled / plain",
            SHUFFLED_GOAL,
            ratios(datasets[name]["loaders"], "arrow, ours, shuffled", ("arrow, ours",)),
        )
        for name in GOALS
        if name in datasets
    ]
    lines = ["| rows per CPU second | goal | measured | |", "|---|---:|---:|---|"]
    for what, goal, ratio in rows:
        if ratio:
            met = "met" if median(ratio) >= goal else "missed"
            lines.append(f"| {what} | {goal} | {ratio_text(median(ratio))} | {met} |")
    return lines


def short_table(results: dict[str, Any]) -> str:
    """Return two tables of thousands of rows per CPU second, for uncompressed and for gzip files."""
    machine = results["machine"]
    tables = [
        _short_table({name: found for name, found in results["datasets"].items() if ("gzip" in name) == gzip})
        for gzip in (False, True)
    ]
    return "\n".join([*tables, f"{machine['cpu']}; {machine['packages']}; {machine['date']}.", ""])


def _short_table(datasets: dict[str, Any]) -> str:
    lines = [
        "| | shuffled in | " + " | ".join(f"{name} | shuffled" for name in datasets) + " |",
        "|---|---" + "|---:|---:" * len(datasets) + "|",
    ]
    for row in ROWS:
        if any(_is_measured(found["loaders"], row) for found in datasets.values()):
            title, where, *loaders = row
            cells = [_cell(found["loaders"], loader) for found in datasets.values() for loader in loaders]
            lines.append(f"| {title} | {where} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _cell(loaders: dict[str, Any], loader: str) -> str:
    cpu = best_way(loaders.get(loader, {}), "cpu")
    if not cpu:
        return "failed" if loader in loaders else "-"
    return f"{median(cpu) / 1000:,.0f} k" if median(cpu) >= 1e5 else f"{median(cpu) / 1000:,.1f} k"
