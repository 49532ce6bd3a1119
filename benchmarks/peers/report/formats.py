"""Present the figures of suites that are stored as cells, which `PAGES` lists."""

from typing import Any

from benchmarks.peers.report import COMMAND, HERE

# The page of each suite, and its introduction.
PAGES = {
    "columns": (
        "columns.md",
        "# Column files, beside Parquet, Lance and ArrayRecord",
        "A figure is the CPU time of a job in milliseconds, of all threads: the median of the rounds, in\n"
        "which the formats take turns. Compare the figures of a line with each other: the times depend on\n"
        "the machine.",
    ),
    "defaults": (
        "defaults.md",
        "# What column files cost and save by default",
        "The columns *write* have the time of a write with the defaults, divided by that of a write with\n"
        "`columnar=None`. The columns *read* have the CPU time to read one column from Parquet, divided by\n"
        "that from TFRecord: above 1, TFRecord is faster.",
    ),
    "queries": (
        "engines.md",
        "# Queries of SQL and other engines, beside Parquet",
        "A cell has the processor time on TFRecord and on Parquet in milliseconds, then the Arrow bytes\n"
        "that the query decoded from TFRecord, and the number of TFRecord files that the query opened.",
    ),
    "store": (
        "store.md",
        "# A remote store behind a slow link",
        "A request takes 30 ms longer than the server needs, and a connection carries 8 MB in a second.\n"
        "A cell of the first table has the seconds and the MB/s of a job. Compare the figures of a line\n"
        "with each other: the times depend on the machine, on which the server and the link run, too.",
    ),
    "elastic": (
        "elastic.md",
        "# Elastic epochs and mixtures, beside the plain feed and other loaders",
        "A rate is the median of the rounds. The last two columns of a table are the ratio of the rates to\n"
        "those of the plain feed of the same package, and its least and greatest value in a round. Through\n"
        "the link, a request takes 30 ms longer, and a connection carries 8 MB in a second.",
    ),
}


def write(suite: str, results: dict[str, Any]) -> None:
    (HERE / PAGES[suite][0]).write_text(page(suite, results))


def page(suite: str, results: dict[str, Any]) -> str:
    _, title, text = PAGES[suite]
    origin = (
        f"Made by `python -m benchmarks.peers {suite} --store` and `{COMMAND}`.\n"
        f"`benchmarks/peers/{suite}.py` describes the data and how the figures are measured."
    )
    tables = [table(name, lines) for name, lines in results["tables"].items()]
    return "\n\n".join([title, f"{origin}\n{text}", results["about"], *tables]) + "\n"


def table(title: str, lines: dict[str, dict[str, str]]) -> str:
    """Return the cells as a table in Markdown."""
    columns = list(next(iter(lines.values())))
    rows = [[title, *columns], ["---", *["--:"] * len(columns)]]
    rows += [[line, *cells.values()] for line, cells in lines.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
