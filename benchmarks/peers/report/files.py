"""Present the figures of the suite `files` on a page, and in the table of the page of comparisons."""

import importlib
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.peers.report import (
    COMMAND,
    HERE,
    OURS,
    RAW,
    ROOT,
    capped,
    claim,
    errors,
    fastest,
    ratios,
    replace_region,
    rounded,
)

COMPARISON = ROOT / "docs" / "comparison.md"
PAGE = HERE / "files.md"

TEXT = f"""\
# Reads and writes, beside other TFRecord tools and Parquet

Made by `python -m benchmarks.peers files --store` and `{COMMAND}`.
`benchmarks/peers/files.py` describes how the figures are measured, `benchmarks/own/tables.py` describes the
four tables, and `benchmarks/peers/files.json` has the figures of all rounds. The files are in memory.

{{machine}}

## Ratios

A cell has this package's rows per CPU second, divided by those of the other tool: the smallest of three
ratios. They are the median of the warm passes, the median of the cold passes, for which the system must find
new pages, and the ratio of the CPU time that one more row takes. Below 1, the other tool is faster. "Raw
bytes" writes and reads the same bytes without a format, which no tool can beat.

{{ratios}}

## Thousands of rows per CPU second

The CPU time of all processes of a tool counts. The passes are warm.

{{rates}}

## Peak memory in MB

The memory of all processes of a tool counts, with its libraries and its input.

{{memory}}

## How each tool is used

{{used}}

{{failures}}
"""
TITLES = {
    OURS: "dask_tfrecord",
    "parquet": "Dask with Parquet",
    "tensorflow": "TensorFlow, its best way",
    "tensorflow, usual": "TensorFlow, as usual",
    "tfx-bsl": "tfx-bsl",
    "spark-tfrecord": "Spark-TFRecord",
    "ray": "Ray Data",
    "beam": "Apache Beam",
    "vahidk/tfrecord": "vahidk/tfrecord",
    "protobuf loop": "loop with protobuf",
    RAW: "raw bytes",
}
MODULES = {
    "dask": "dask_tfrecord, Dask with Parquet",
    "tensorflow": "TensorFlow",
    "tfx_bsl": "tfx-bsl",
    "spark": "Spark-TFRecord",
    "ray": "Ray Data",
    "beam": "Apache Beam",
    "vahidk": "vahidk/tfrecord",
    "protobuf": "loop with protobuf",
}
# The jobs of the table of claims. Only one dataset has the jobs with gzip.
MAIN_JOBS = ("write", "write gzip", "read", "read few columns", "read gzip")


def jobs(results: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield table, job and figures of each job."""
    for table, found in results.get("tables", {}).items():
        for job, figures in found.items():
            yield table, job, figures


def comparisons(results: dict[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    """Yield table, job, peer and claim of each job of each tool, without TensorFlow as usual."""
    for table, job, found in jobs(results):
        for peer in found["peers"]:
            if peer not in (OURS, RAW, "tensorflow, usual") and ratios(found, peer):
                yield table, job, peer, claim(found, peer) or 0.0


def write(results: dict[str, Any]) -> None:
    """Write the page of figures, and the table of the page of comparisons."""
    PAGE.write_text(page(results))
    replace_region(COMPARISON, short_table(results))


def short_table(results: dict[str, Any]) -> str:
    """Return the table of the least and the greatest claims.

    The tools and the jobs with the least claims come first. If another tool is faster, the claim is bold.
    """
    claims: dict[tuple[str, str], list[float]] = {}
    for _, job, peer, ratio in comparisons(results):
        if job in MAIN_JOBS:
            claims.setdefault((peer, job), []).append(ratio)
    tools = {peer: min(ratios) for (peer, _), ratios in sorted(claims.items(), key=lambda one: -min(one[1]))}
    columns = {job: min(ratios) for (_, job), ratios in sorted(claims.items(), key=lambda one: -min(one[1]))}
    ordered = sorted(columns, key=columns.__getitem__)
    lines = ["| relative to | " + " | ".join(ordered) + " |", "|---" + "|--:" * len(ordered) + "|"]
    for peer in sorted(tools, key=tools.__getitem__):
        cells = [_range(claims.get((peer, job), [])) for job in ordered]
        lines.append(f"| {TITLES[peer]} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _range(ratios: list[float]) -> str:
    text = " to ".join(dict.fromkeys(capped(of(ratios)) for of in (min, max))) if ratios else "-"
    return f"**{text}**" if ratios and min(ratios) < 1 else text


def page(results: dict[str, Any]) -> str:
    """Return the text of ``benchmarks/files.md``."""
    return TEXT.format(
        machine="; ".join(results["machine"].values()) + ".",
        ratios=_matrix(results, [peer for peer in TITLES if peer != OURS], claim_text),
        rates=_matrix(results, TITLES, _rate),
        memory=_matrix(results, [peer for peer in TITLES if peer != RAW], _memory),
        used=_used(),
        failures=_failures(results),
    )


def claim_text(found: dict[str, Any], peer: str) -> str:
    """Format a claim, or return an empty text if there is none."""
    ratio = claim(found, peer)
    return "" if ratio is None else bold_loss(ratio)


def bold_loss(ratio: float) -> str:
    """Format a ratio, in bold if the other tool is faster."""
    return f"**{capped(ratio)}**" if ratio < 1 else capped(ratio)


def _rate(found: dict[str, Any], peer: str) -> str:
    best = fastest(found["peers"].get(peer, {}), "cpu")
    if not best:
        return ""
    rate = median(best["cpu"]) / 1000
    return rounded(rate) if rate >= 10 else f"{rate:.2g}"


def _memory(found: dict[str, Any], peer: str) -> str:
    best = fastest(found["peers"].get(peer, {}), "cpu")
    return f"{median(best['memory']):,.0f}" if best else ""


def _matrix(
    results: dict[str, Any], peers: list[str] | dict[str, str], cell: Callable[[dict[str, Any], str], str]
) -> str:
    """Return a table with a row for each job of each table, and a column for each peer."""
    lines = [f"| | {' | '.join(TITLES[peer] for peer in peers)} |", "|---" + "|--:" * len(peers) + "|"]
    for table, job, found in jobs(results):
        lines.append(f"| {table}: {job} | {' | '.join(cell(found, peer) for peer in peers)} |")
    return "\n".join(lines)


def _used() -> str:
    lines = ["| tool | how | source |", "|---|---|---|"]
    for module, title in MODULES.items():
        for how, source in importlib.import_module(f"benchmarks.peers.tools.{module}").USED:
            link = f"<{source}>" if source.startswith("https://") else source
            lines.append(f"| {title} | {how} | {link} |")
    return "\n".join(lines)


def _failures(results: dict[str, Any]) -> str:
    lines = [f"- {TITLES[name]}: {error}" for name, error in results["peers"].items() if error]
    for table, job, found in jobs(results):
        for peer, ways in found["peers"].items():
            lines += [f"- {TITLES[peer]}, {job}, {table}: {error}" for error in errors(ways)]
    return "\n".join(["## Tools that failed", "", *lines]) if lines else "No tool failed."
