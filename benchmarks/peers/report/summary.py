"""Summarise the stored figures of all suites in two pages, losses first."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.peers.report import COMMAND, HERE, capped, feeds, files, formats, stored

PAGE = HERE / "RESULTS.md"

TEXT = f"""\
# Measured against other tools

Made by `{COMMAND}` from `benchmarks/peers/*.json`. Machine: {{machine}}.

A ratio compares two tools in the same round, because other work on the machine then affects both. CPU
seconds count all processes of a tool. Compare ratios, not times: all suites ran on one machine.

## Where other tools are faster

{{losses}}

A range covers the tables or engines in which the tool is faster. For a few columns, [column
files](../docs/less.md) help.

## Reads and writes

A cell has dask_tfrecord's rows per CPU second, divided by those of the other tool: above 1, dask_tfrecord is
faster. It is the smallest ratio of warm passes, of cold passes and of the CPU time of one more row, which
leaves out the start of a tool.

{{files}}

`tabular` has ten columns of numbers and text, `recsys` lists of ids and an embedding, `wide` 200 columns of
floats. [All figures](files.md) have more jobs and tools, peak memory, and how each tool is used.

## Training

Shuffled rows per CPU second, divided by those of the other loader. A row has 9 numbers (`tabular`), a list of
200 floats (`vectors`), 200 floats (`wide`) or an image.

{{feeds}}

`datasets` reads a decoded copy of the rows. "All rows" are shuffled without a buffer. [All
loaders](loaders.md) include gzip files and rows in file order. [Elastic epochs](elastic.md), the same for any
number of ranks, reach {{elastic}} of the plain speed for shuffled images.

## Few columns and few rows

{{columns}}

The [default](defaults.md) copies labels, and adds at most {{bytes}}. [All jobs](columns.md) include writes.

## SQL

{{queries}}

[All queries](engines.md) of a million rows.

## A remote store

Each request takes 30 ms longer, and a connection carries 8 MB in a second: [all jobs](store.md).

{{store}}

## Many files

An append costs the same for any number of files; a delete grows with it. [Plans and commits](snapshots.md)
stand beside Delta and Lance.
"""

JOBS = ("write", "read", "read few columns", "write gzip", "read gzip")
PEERS = ("parquet", "tensorflow", "tfx-bsl", "spark-tfrecord")
OURS_FEED, ALL_ROWS = "torch, ours, shuffled", "torch, RecordTable, all rows shuffled"
NO_ROWS = ("open", "LIMIT 10", "count")  # queries that read no rows, or few
FEEDS = (
    ("TensorFlow's best pipeline", "tensorflow, ours, shuffled", "tensorflow, best native, shuffled"),
    ("PyTorch: Hugging Face `datasets`", OURS_FEED, "torch, HF datasets, shuffled"),
    ("PyTorch: `datasets`, all rows", ALL_ROWS, "torch, HF datasets, all rows shuffled"),
    ("PyTorch: vahidk/tfrecord", OURS_FEED, "torch, vahidk/tfrecord, shuffled"),
    ("PyTorch: WebDataset", OURS_FEED, "torch, webdataset, shuffled"),
    ("PyTorch: MosaicML streaming", OURS_FEED, "torch, MosaicML streaming, shuffled blocks"),
    (
        "Grain (NumPy), all rows",
        ALL_ROWS,
        "arrays, Grain with ArrayRecord, all rows shuffled",
    ),
)


def write() -> None:
    PAGE.write_text(page())


def page() -> str:
    """Return the text of ``benchmarks/RESULTS.md``."""
    results = stored("files")
    elastic = stored("elastic")["tables"]["images 64"]["dask_tfrecord, elastic, shuffled"]
    columns = stored("columns")["tables"]
    transfers = {
        job: {tool: cell for tool, cell in cells.items() if "obstore" not in tool}
        for job, cells in stored("store")["tables"]["transfers: seconds, MB/s"].items()
        if "gzip" not in job
    }
    few = {
        f"{table.split(',')[0]}: {job}": columns[table][job]
        for table, job in (
            ("images, 1,000 rows", "read label"),
            ("images, 1,000 rows", "filter that keeps 1 %"),
            ("tabular, 200,000 rows", "read clicks and price"),
            ("tabular, 200,000 rows", "filter that keeps 1 %"),
        )
    }
    queries = {
        name: {engine: cell.split(";")[0] for engine, cell in cells.items()}
        for name, cells in stored("queries")["tables"]["query"].items()
        if name in ("2 of 10 columns", "count", "all columns")
    }
    more = (cells["more bytes"] for cells in stored("defaults")["tables"]["table"].values())
    return TEXT.format(
        machine=results["machine"]["cpu"],
        losses=losses(),
        files=_files(results),
        feeds=_feeds(stored("feeds")["datasets"]),
        columns=formats.table("CPU ms", few),
        bytes=max(more, key=lambda text: float(text.split()[0])),
        queries=formats.table("CPU ms: TFRecord / Parquet", queries),
        store=formats.table("seconds, MB/s", transfers),
        elastic=f"{float(elastic['of the plain feed, CPU s'].split()[0]):.0%}",
    )


def _files(results: dict[str, Any]) -> str:
    lines = [f"| | {' | '.join(files.TITLES[peer] for peer in PEERS)} |", "|---" + "|--:" * len(PEERS) + "|"]
    for table, job, found in files.jobs(results):
        if job in JOBS:
            cells = [files.claim_text(found, peer) for peer in PEERS]
            lines.append(f"| {table}: {job} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _feeds(datasets: dict[str, Any]) -> str:
    names = [name for name in datasets if "gzip" not in name]
    lines = [f"| relative to | {' | '.join(names)} |", "|---" + "|--:" * len(names) + "|"]
    for title, ours, other in FEEDS:
        ratios = [median(feeds.ratios(datasets[name]["loaders"], ours, (other,))) for name in names]
        lines.append(f"| {title} | {' | '.join(files.bold_loss(ratio) for ratio in ratios)} |")
    return "\n".join(lines)


# -- Losses --------------------------------------------------------------------------------------------------


def losses() -> str:
    """Return a table of the jobs in which another tool is faster, of all suites."""
    lines = ["| job | tool | times as fast, or as small |", "|---|---|--:|"]
    return "\n".join([*lines, *(f"| {job} | {tool} | {_range(of)} |" for job, tool, of in _losses())])


def _losses() -> Iterator[tuple[str, str, list[float]]]:
    found: dict[tuple[str, str], list[float]] = {}
    for _, job, peer, ratio in files.comparisons(stored("files")):
        if ratio < 1:
            found.setdefault((job, files.TITLES[peer]), []).append(1 / ratio)
    for (job, tool), each in found.items():
        yield job, tool, each
    loaders = [found["loaders"] for name, found in stored("feeds")["datasets"].items() if "gzip" not in name]
    for order, suffix in (("file order", ""), ("a shuffle buffer", ", shuffled")):
        ours, theirs = f"{feeds.OURS_TORCH}{suffix}", (f"torch, HF datasets{suffix}",)
        rates = [1 / median(feeds.ratios(each, ours, theirs)) for each in loaders]
        yield f"feed PyTorch, {order}", "Hugging Face `datasets`", rates
    elastic = {line: _rate(cells) for line, cells in stored("elastic")["tables"]["images 64"].items()}
    pairs = [
        (elastic[line.replace("Grain", "dask_tfrecord")], elastic[line])
        for line in elastic
        if "Grain" in line
    ]
    yield "elastic epochs, mixtures", "Grain", [theirs / ours for ours, theirs in pairs if theirs > ours]
    fetch = stored("columns")["tables"]["images, 1,000 rows"]["filter that keeps 1 %"]
    yield "1 % of images, by a filter", "Lance", [times(fetch, "TFRecord, column files", "Lance")]
    queries = stored("queries")["tables"]["query"].items()
    cells = [one for name, each in queries if name not in NO_ROWS for one in each.values()]
    both = [[float(one) for one in cell.split(";")[0].split("/")] for cell in cells]
    yield "SQL that reads rows", "Parquet", [ours / theirs for ours, theirs in both]
    epochs = stored("store")["tables"]["shuffled images, 30 ms"]
    for what, title in (("epoch, s", "epoch"), ("first batch, s", "first batch")):
        seconds = {tool: cells.get(what, "") for tool, cells in epochs.items()}
        ratio = times(seconds, "dask_tfrecord, no workers", "WebDataset, 2 workers")
        yield f"{title}, slow link", "WebDataset", [ratio]
    space = stored("columns")["tables"]["tabular, 200,000 rows"]["size, MB"]
    for tool in ("Parquet", "Lance"):
        yield "bytes of a table", tool, [times(space, "TFRecord, column files", tool)]


def _rate(cells: dict[str, str]) -> float:
    return float(cells["rows / CPU s"].replace(",", ""))


def times(cells: dict[str, str], ours: str, theirs: str) -> float:
    """Return the ratio of two cells."""
    return float(cells[ours]) / float(cells[theirs])


def _range(ratios: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(capped(of(ratios)) for of in (min, max)))
