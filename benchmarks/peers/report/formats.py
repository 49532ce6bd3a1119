"""Present the figures of suites that are stored as cells, which `PAGES` lists."""

from typing import Any

from benchmarks.peers.report import HERE

# The page of each suite, and its introduction.
PAGES = {
    "columns": (
        "columns.md",
        "# Column files, beside Parquet, Lance and ArrayRecord",
        "A figure is the CPU time of a job in milliseconds, of all threads. Compare the figures of a line\n"
        "with each other: the times depend on the machine.",
    ),
    "defaults": (
        "defaults.md",
        "# What column files cost and save by default",
        "*Write* is the time of a write with the defaults, divided by that of a write with `columnar=None`.\n"
        "*Read* is the CPU time to read one column from Parquet, divided by that from TFRecord: above 1,\n"
        "TFRecord is faster.",
    ),
    "queries": (
        "engines.md",
        "# Queries of SQL and other engines, beside Parquet",
        "A cell has the CPU milliseconds on TFRecord and on Parquet, then the Arrow bytes that the query\n"
        "decoded from TFRecord, and the number of TFRecord files that it opened.",
    ),
    "store": (
        "store.md",
        "# A remote store behind a slow link",
        "A request takes 30 ms longer than the server needs, and a connection carries 8 MB in a second.\n"
        "Transfers show seconds and MB/s. Compare the figures of a line with each other: the server and\n"
        "the link run on the same machine.",
    ),
    "elastic": (
        "elastic.md",
        "# Elastic epochs and mixtures, beside the plain feed and other loaders",
        "*Of the plain feed* is the rate divided by that of the plain feed of the same package, with the\n"
        "least and the greatest value in a round. Through the link, a request takes 30 ms longer, and a\n"
        "connection carries 8 MB in a second.",
    ),
}


def write(suite: str, results: dict[str, Any]) -> None:
    (HERE / PAGES[suite][0]).write_text(page(suite, results))


def page(suite: str, results: dict[str, Any]) -> str:
    _, title, text = PAGES[suite]
    origin = (
        f"Made by `python -m benchmarks.peers {suite} --store`; the data and the method are described in\n"
        f"`benchmarks/peers/{suite}.py`. A figure is the median of the rounds, in which tools take turns."
    )
    tables = [table(name, lines) for name, lines in results["tables"].items()]
    return "\n\n".join([title, f"{text}\n\n{origin}", results["about"], *tables]) + "\n"


def table(title: str, lines: dict[str, dict[str, str]]) -> str:
    """Return the cells as a table in Markdown."""
    columns = list(next(iter(lines.values())))
    rows = [[title, *columns], ["---", *["--:"] * len(columns)]]
    rows += [[line, *cells.values()] for line, cells in lines.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
