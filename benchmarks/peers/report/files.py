"""Present the figures of the suite `files` as tables for the results and for the page of comparisons."""

import importlib
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.peers.report import (
    COMMAND,
    HERE,
    MEDIA,
    OURS,
    RAW,
    ROOT,
    best_way,
    capped,
    capped_spread,
    claim,
    errors,
    fastest,
    ratios,
    replace_region,
    rounded,
    row_ratio,
)

PAGE = ROOT / "docs" / "comparison.md"
RESULTS = HERE / "RESULTS.md"

INTRODUCTION = f"""\
# Measured against other tools

Made by `{COMMAND}` from the figures that `python -m benchmarks.peers files --store`
stored. The claim of each table is a ratio, because absolute times depend on the machine.

A ratio is the rows per CPU second of this package, divided by those of the other tool in the same round: the
median of the rounds, and the least and the greatest in brackets. CPU seconds count all processes of a tool. A
slow tool gets fewer rows. "In the system" is the part of the CPU time that the system took, above all to find
and fill pages. Each turn of a tool begins with a pass for which the system must find new pages, because other
tools ran meanwhile: the cold pass. The pass that follows is warm. Each tool also does each job with a quarter
of its rows. "One more row" is the ratio of the CPU times that one more row takes, so that the start of a tool
does not count. What the README and the other pages claim is the least of the three ratios: warm, cold, one
more row. "Raw bytes" writes and reads the bytes of this package's files without a format, which no tool can
beat. A ratio above 100 is printed as "> 100". Peak MB is the most memory of all processes of a tool during a
pass, with its libraries and its input. Rows per second depend on how much of the processor other processes
left over.
"""
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
    RAW: "raw bytes",
}
MODULES = {
    "dask": "dask_tfrecord, Dask's Parquet functions",
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


def comparisons(results: dict[str, Any]) -> Iterator[tuple[str, str, str, str, dict[str, Any]]]:
    """Yield medium, table, job, peer and figures of each job of each tool, without TensorFlow as usual."""
    for medium in MEDIA:
        for table, jobs in results.get(medium, {}).items():
            for job, found in jobs.items():
                for peer in found["peers"]:
                    if peer not in (OURS, RAW, "tensorflow, usual") and ratios(found, peer):
                        yield medium, table, job, peer, found


def write(results: dict[str, Any]) -> None:
    """Write the page of results, and the table of the page of comparisons."""
    RESULTS.write_text(page(results))
    replace_region(PAGE, short_table(results))


def short_table(results: dict[str, Any]) -> str:
    """Return the table of the least and the greatest claims.

    The tools and the jobs with the least claims come first. If another tool is faster, the claim is bold.
    """
    claims: dict[tuple[str, str], list[float]] = {}
    for _, _, job, peer, found in comparisons(results):
        if job in MAIN_JOBS and (ratio := claim(found, peer)) is not None:
            claims.setdefault((peer, job), []).append(ratio)
    tools = {peer: min(ratios) for (peer, _), ratios in sorted(claims.items(), key=lambda one: -min(one[1]))}
    jobs = {job: min(ratios) for (_, job), ratios in sorted(claims.items(), key=lambda one: -min(one[1]))}
    columns = sorted(jobs, key=jobs.__getitem__)
    lines = ["| relative to | " + " | ".join(columns) + " |", "|---" + "|--:" * len(columns) + "|"]
    for peer in sorted(tools, key=tools.__getitem__):
        cells = [_range(claims.get((peer, job), [])) for job in columns]
        lines.append(f"| {TITLES[peer]} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _range(ratios: list[float]) -> str:
    text = " to ".join(dict.fromkeys(capped(of(ratios)) for of in (min, max))) if ratios else "-"
    return f"**{text}**" if ratios and min(ratios) < 1 else text


def page(results: dict[str, Any]) -> str:
    """Return the text of ``benchmarks/RESULTS.md``."""
    machine = f"Measured on: {'; '.join(results['machine'].values())}"
    return "\n".join([INTRODUCTION, machine, "", *sections(results), ""])


def sections(results: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of all tables."""
    lines = [*_faster(results), *_conditions(results), "", "## How each tool is used", "", *_used()]
    for medium, name in MEDIA.items():
        for table, jobs in results.get(medium, {}).items():
            columns = ["rows", "rows per CPU second", "in the system", "cold", "in the system, cold"]
            columns += ["rows per second", "peak MB"]
            lines += [
                "",
                f"## {table[0].upper()}{table[1:]}, {name}",
                "",
                f"| job | tool | {' | '.join(columns)} | ratio | ratio, cold | one more row |",
                "|---|---" + "|--:" * len(columns) + "|---|---|--:|",
            ]
            for job, found in jobs.items():
                lines += [
                    _row(job, peer, found) for peer in found["peers"] if fastest(found["peers"][peer], "cpu")
                ]
    return [*lines, "", *_failures(results)]


def _faster(results: dict[str, Any]) -> list[str]:
    """Return the section that says where this package loses."""
    lines = ["## Where other tools are faster", ""]
    lines += ["| job | table | files | tool | ratio | ratio, cold | one more row |"]
    lines += ["|---|---|---|---|---|---|--:|"]
    close = []
    rows = []
    for medium, table, job, peer, found in comparisons(results):
        each, all_ratios = row_ratio(found, peer), ratios(found, peer) + ratios(found, peer, "cold")
        ratio = claim(found, peer) or 0.0
        cells = [job, table, MEDIA[medium], TITLES[peer], *_both(found, peer)]
        if ratio < 1:
            rows.append((ratio, f"| {' | '.join(cells)} | {capped(each) if each else ''} |"))
        elif min(all_ratios) < 1:
            close.append(f"{job}, {table} {MEDIA[medium]} ({TITLES[peer]}, {capped(min(all_ratios))})")
    lines += [row for _, row in sorted(rows)]
    if close:
        lines += ["", f"Another tool was faster in one pass at least: {'; '.join(close)}."]
    return [*lines, ""]


def _both(found: dict[str, Any], peer: str) -> list[str]:
    """Return the ratios of the warm and of the cold passes."""
    return [capped_spread(ratios(found, peer, what)) for what in ("cpu", "cold")]


def _conditions(results: dict[str, Any]) -> list[str]:
    """Return lines that say the number of rounds and the CPU share of other processes."""
    jobs = [found for medium in MEDIA for jobs in results.get(medium, {}).values() for found in jobs.values()]
    rounds = {len(best_way(found["peers"].get(OURS, {}), "cpu")) for found in jobs} - {0} or {0}
    busy = sorted(found["others"] for found in jobs)
    times = " to ".join(str(count) for count in dict.fromkeys([min(rounds), max(rounds)]))
    lines = [
        f"Each tool did each job {times} times, in turns. Meanwhile processes that do not belong to the",
        f"benchmark used {busy[0]:.0%} to {busy[-1]:.0%} of the processor.",
    ]
    on_disk = [
        "",
        "On the disk, the files stay in the system's cache between the rounds, and a write ends when the",
        "system has taken the bytes. Slow tools did only the jobs `write` and `read` there.",
    ]
    return lines + (on_disk if results.get("disk") else [])


def _row(job: str, peer: str, found: dict[str, Any]) -> str:
    ways = found["peers"][peer]
    best = fastest(ways, "cpu")
    each = None if peer == OURS else row_ratio(found, peer)
    cells = [
        job,
        TITLES[peer],
        f"{best['rows']:,}",
        rounded(median(best["cpu"])),
        f"{median(best['system']):.0%}",
        rounded(median(best["cold"])),
        f"{median(best['cold_system']):.0%}",
        rounded(median(best_way(ways, "wall"))),
        f"{median(best['memory']):,.0f}",
        *(["", ""] if peer == OURS else _both(found, peer)),
        capped(each) if each else "",
    ]
    return f"| {' | '.join(cells)} |"


def _used() -> list[str]:
    lines = ["| tool | how | source |", "|---|---|---|"]
    for module, title in MODULES.items():
        for how, source in importlib.import_module(f"benchmarks.peers.tools.{module}").USED:
            link = f"<{source}>" if source.startswith("https://") else source
            lines.append(f"| {title} | {how} | {link} |")
    return lines


def _failures(results: dict[str, Any]) -> list[str]:
    lines = [f"- {TITLES[name]}: {error}" for name, error in results["peers"].items() if error]
    for medium in MEDIA:
        for table, jobs in results.get(medium, {}).items():
            for job, found in jobs.items():
                for peer, ways in found["peers"].items():
                    where = f"{job}, {table}{', on disk' * (medium == 'disk')}"
                    lines += [f"- {TITLES[peer]}, {where}: {error}" for error in errors(ways)]
    return ["## Peers that took no part, or failed", "", *(lines or ["None."])]
