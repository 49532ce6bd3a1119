"""Present the figures of the suite `feeds` on the page about the loaders."""

from statistics import median
from typing import Any

from benchmarks.peers.report import HERE, best_way, replace_region, round_ratios

PAGE = HERE / "loaders.md"

TENSORFLOW = ("tensorflow, best native", "tensorflow, usual")
OURS, OURS_TORCH = "tensorflow, ours", "torch, ours"
TORCH_PEERS = (
    "torch, vahidk/tfrecord",
    "torch, HF datasets",
    "torch, webdataset",
    "torch, MosaicML streaming",
)
GRAIN = "arrays, Grain with ArrayRecord"

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
    """Write the tables of the page."""
    replace_region(PAGE, table(results))


def _is_measured(loaders: dict[str, Any], row: tuple[str, str, str, str]) -> bool:
    return row[2] in loaders or row[3] in loaders


def table(results: dict[str, Any]) -> str:
    """Return two tables of thousands of rows per CPU second, for uncompressed and for gzip files."""
    machine = results["machine"]
    tables = [
        _table({name: found for name, found in results["datasets"].items() if ("gzip" in name) == gzip})
        for gzip in (False, True)
    ]
    return "\n".join([*tables, f"{machine['cpu']}; {machine['packages']}; {machine['date']}.", ""])


def _table(datasets: dict[str, Any]) -> str:
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
