"""Present the figures of `benchmarks.peers` as tables for the results and for the page of comparisons."""

import importlib
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.peer_jobs import spark
from benchmarks.reports import ROOT, best_way, errors, fastest, replace_region, rounded
from benchmarks.reports.goals import goal_lines
from benchmarks.reports.ratios import (
    MEDIA,
    OURS,
    PROTOCOL,
    capped,
    capped_spread,
    claim,
    ratios,
    row_ratio,
)
from benchmarks.reports.readme import COMMAND

PAGE = ROOT / "docs" / "comparison.md"
SPARK = (
    "Spark-TFRecord takes part if `--spark-jar` names its jar.",
    f"`{spark.JAR_COMMAND}` in its repository makes the jar (<{spark.JAR_SOURCE}>).",
    f"The jar of the figures above: {spark.JAR_CONTENT}.",
)

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

# The jobs of the table of compression, with the codec and the level of the files.
COMPRESSION = {
    "write": "none",
    "write by default": "the tool's default codec: none for TFRecord, Snappy for Parquet",
    "write gzip, level 1": "gzip, level 1",
    "write gzip, level 6": "gzip, level 6",
    "write gzip": "gzip, the tool's default level",
    "write zstd": "zstd, level 1",
}

# What the last version of the page claimed, and why the claim is different now.
_ONE_EXAMPLE = "it fills one Example again for each row instead of new messages"
CHANGES = [
    ("read", "tabular", "ray", "21,145", "Ray reads without a schema, which it needs for recsys only"),
    ("write", "tabular", "tensorflow", "128.2", _ONE_EXAMPLE),
    ("write", "tabular", "protobuf loop", "54.0", _ONE_EXAMPLE),
    ("write", "tabular", "beam", "151.6", "the start of a pipeline counts no more, and " + _ONE_EXAMPLE),
    (
        "write gzip",
        "tabular",
        "parquet",
        "31.6",
        "the default level of Parquet is 9 and that of dask_tfrecord is 2, so that the table of compression "
        "shows equal levels and the bytes of the files",
    ),
]

Comparison = tuple[str, str, str, str, dict[str, Any]]


def comparisons(results: dict[str, Any]) -> Iterator[Comparison]:
    """Yield medium, table, job, peer and figures of each job of each peer, without TensorFlow as usual."""
    for medium in MEDIA:
        for table, jobs in results.get(medium, {}).items():
            for job, found in jobs.items():
                for peer in found["peers"]:
                    if peer not in (OURS, "tensorflow, usual") and ratios(found, peer):
                        yield medium, table, job, peer, found


def write(results: dict[str, Any]) -> None:
    """Write the table of the page of comparisons."""
    replace_region(PAGE, COMMAND, short_table(results))


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


def sections(results: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of all tables."""
    lines = [*_faster(results), *_changes(results), *_conditions(results), "", "## Goals", ""]
    lines += [*goal_lines(results, TITLES)]
    lines += ["", "## How each tool is used", "", *_used(), "", "## Compression", "", *_compression(results)]
    for medium, name in MEDIA.items():
        for table, jobs in results.get(medium, {}).items():
            cold = ["cold, rows per second"] if medium == "disk" else []
            columns = ["rows", "rows per CPU second", "rows per second", *cold, "peak MB"]
            lines += [
                "",
                f"## {table[0].upper()}{table[1:]}, {name}",
                "",
                f"| job | tool | {' | '.join(columns)} | ratio | one more row |",
                "|---|---" + "|--:" * len(columns) + "|---|--:|",
            ]
            for job, found in jobs.items():
                lines += [
                    _row(job, peer, found, has_cold=medium == "disk")
                    for peer in found["peers"]
                    if fastest(found["peers"][peer], "cpu")
                ]
    return [*lines, "", "## Spark-TFRecord", "", *SPARK, "", *_failures(results)]


def _faster(results: dict[str, Any]) -> list[str]:
    """Return the section that says where this package loses."""
    lines = ["## Where other tools are faster", ""]
    lines += ["| job | table | files | tool | ratio | one more row |", "|---|---|---|---|---|--:|"]
    close = []
    rows = []
    for medium, table, job, peer, found in comparisons(results):
        each, all_ratios = row_ratio(found, peer), ratios(found, peer)
        ratio = claim(found, peer) or 0.0
        cells = [job, table, MEDIA[medium], TITLES[peer], capped_spread(all_ratios)]
        if ratio < 1:
            rows.append((ratio, f"| {' | '.join(cells)} | {capped(each) if each else ''} |"))
        elif min(all_ratios) < 1:
            close.append(f"{job}, {table} {MEDIA[medium]} ({TITLES[peer]}, {capped(min(all_ratios))})")
    lines += [row for _, row in sorted(rows)]
    if close:
        lines += ["", f"Another tool was faster in one round at least: {'; '.join(close)}."]
    return [*lines, ""]


def _changes(results: dict[str, Any]) -> list[str]:
    """Return the paragraph that compares the claims with those of the last version."""
    sentences = []
    for job, table, peer, before, why in CHANGES:
        found = results.get("tables", {}).get(table, {}).get(job, {"peers": {}})
        if results.get("protocol") == PROTOCOL and (ratio := claim(found, peer)) is not None:
            sentences.append(
                f"{job}, {table}, {TITLES[peer]}: {before} before, and {capped(ratio)} now, because {why}."
            )
    found = results.get("tables", {}).get("images", {}).get("read", {"peers": {}})
    if sentences and (now := ratios(found, "parquet")):
        sentences.append(
            "Reads of images were claimed to be 1.8 times as fast as those of Dask's Parquet functions, with "
            f"rounds from 0.71 to 2.9; the rounds of this version are {capped_spread(now)}."
        )
    if not sentences:
        return []
    start = (
        "The README claims the smaller of the median ratio and the ratio of one more row. The last version "
        "claimed the median ratio."
    )
    return ["## What changed since the last version", "", " ".join([start, *sentences]), ""]


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
    if results.get("protocol") != PROTOCOL:
        lines += ["The tools were used in earlier ways, and not yet in the ways that are listed below."]
    if not results.get("disk"):
        return [*lines, "The files were in memory. Reads and writes on a disk were not measured."]
    reads = [
        fastest(ways, "cpu")
        for jobs in results["disk"].values()
        for job, found in jobs.items()
        if job.startswith("read")
        for ways in found["peers"].values()
    ]
    cold = sum("cold" in one for one in reads)
    return [
        *lines,
        "",
        "On the disk, the files stay in the system's cache between the rounds, and a write ends when the",
        "system has taken the bytes. Slow tools did only the jobs `write` and `read` there. After the",
        "rounds, each tool read once after the files had been dropped from the cache. The system dropped all",
        f"files in {cold} of {len(reads)} cases.",
    ]


def _row(job: str, peer: str, found: dict[str, Any], *, has_cold: bool) -> str:
    ways = found["peers"][peer]
    best = fastest(ways, "cpu")
    each = None if peer == OURS else row_ratio(found, peer)
    cells = [
        job,
        TITLES[peer],
        f"{best['rows']:,}",
        rounded(median(best["cpu"])),
        rounded(median(best_way(ways, "wall"))),
        *([rounded(best["cold"]) if "cold" in best else ""] if has_cold else []),
        f"{median(best['memory']):,.0f}",
        "" if peer == OURS else capped_spread(ratios(found, peer)),
        capped(each) if each else "",
    ]
    return f"| {' | '.join(cells)} |"


def _used() -> list[str]:
    lines = ["| tool | how | source |", "|---|---|---|"]
    for module, title in MODULES.items():
        for how, source in importlib.import_module(f"benchmarks.peer_jobs.{module}").USED:
            link = f"<{source}>" if source.startswith("https://") else source
            lines.append(f"| {title} | {how} | {link} |")
    return lines


def _compression(results: dict[str, Any]) -> list[str]:
    """Return a table with the speed and the bytes of each codec and level."""
    lines = [
        "The table `tabular`, written in memory. Bytes per row make tools comparable that wrote fewer rows.",
        "Levels 0 to 3 of dask_tfrecord's gzip are those of ISA-L, and higher levels are those of zlib.",
        "",
        "| codec | tool | rows per CPU second | bytes per row | ratio |",
        "|---|---|--:|--:|---|",
    ]
    for job, codec in COMPRESSION.items():
        found = results["tables"].get("tabular", {}).get(job, {"peers": {}})
        for peer, ways in found["peers"].items():
            best = fastest(ways, "cpu")
            if "bytes" in best:
                ratio = "" if peer == OURS else capped_spread(ratios(found, peer))
                each = best["bytes"] / best["rows"]
                cells = [codec, TITLES[peer], rounded(median(best["cpu"])), f"{each:.0f}", ratio]
                lines.append(f"| {' | '.join(cells)} |")
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
