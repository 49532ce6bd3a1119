"""Predict the time of large jobs from the measured constants of `benchmarks.planning`."""

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.reports import ROOT, replace_region

GUIDE = ROOT / "docs" / "planning.md"
COMMAND = "python -m benchmarks.planning --store"

TOTAL_BYTES = 10e12
THREADS = 4  # of each worker
WORKERS = (100, 1000)
NETWORK = 1.25e9  # bytes per second of a worker: 10 Gbit/s
PARTITION_BYTES = (128e6, 1e9, 4e9)

# The share of the CPU that other processes may use without a remark.
MOST_OTHERS = 0.1
_LOADED = (
    " The machine was loaded: the wall times of commits, requests and the check are longer than on an idle "
    "machine. Rates and the costs of the client and the scheduler are CPU times, which change less."
)


@dataclass(frozen=True)
class Job:
    """Hold the predicted seconds of the parts of a write.

    Attributes
    ----------
    tasks : int
        The number of partitions, and of files.
    graph : float
        The seconds in which the client builds the graph.
    compute : float
        The seconds of the tasks on all cores.
    scheduler : float
        The seconds of the scheduler for all tasks. The scheduler works at the same time as the tasks.
    commit : float
        The seconds of the one task that commits all files.
    network : float
        The seconds to transfer all bytes, at the same time as the tasks.
    """

    tasks: int
    graph: float
    compute: float
    scheduler: float
    commit: float
    network: float

    @property
    def seconds(self) -> float:
        """Return the predicted seconds from the call to the result."""
        return self.graph + max(self.compute, self.network, self.scheduler) + self.commit

    @property
    def limit(self) -> str:
        """Return the name of the part that takes the longest."""
        parts = ("compute", "network", "scheduler", "commit", "graph")
        return max(parts, key=lambda part: getattr(self, part))


def write_job(
    found: dict[str, Any],
    rate: float,
    size: float,
    partition: float,
    cores: int,
    bandwidth: float = math.inf,
) -> Job:
    """Predict the seconds of a write.

    Parameters
    ----------
    found : dict
        The measured constants.
    rate : float
        Bytes per CPU second of a task, before compression.
    size, partition : float
        Bytes of the dataset and of a partition, before compression.
    cores : int
        The number of threads of all workers, each on a core of its own.
    bandwidth : float
        Bytes per second of the networks of all workers.
    """
    tasks = max(1, round(size / partition))
    waves = math.ceil(tasks / cores)
    return Job(
        tasks,
        graph=tasks * found["graph_seconds"] / 10_000,
        compute=waves * partition / rate,
        scheduler=tasks * found["task_ms"] / 1000,
        commit=tasks * found["commit_ms"]["local"] / 1000,
        network=size / bandwidth,
    )


def most_cores(found: dict[str, Any], rate: float, partition: float) -> float:
    """Return how many cores one scheduler keeps busy: the seconds of a task / the scheduler's for a task."""
    return partition / rate / (found["task_ms"] / 1000)


def write(found: dict[str, Any]) -> None:
    """Put the tables into the guide to planning."""
    replace_region(GUIDE, COMMAND, tables(found))


def tables(found: dict[str, Any]) -> str:
    """Return the part of the guide that is generated from the measured constants."""
    machine = found["machine"]
    lines = [
        f"{machine['cpu']}; {machine['system']}; {machine['packages']}; {machine['date']}. Other processes "
        f"used {machine['others']:.0%} of the CPU.{_LOADED if machine['others'] > MOST_OTHERS else ''}",
        "",
        "### Rates of a core",
        "",
        "Rows and bytes per CPU second. Bytes are those of the records before compression.",
        "",
        *_rates(found["rates"]),
        "",
        "### Costs of a task, a file and a request",
        "",
        *_costs(found),
        "",
        f"### {TOTAL_BYTES / 1e12:.0f} TB",
        "",
        f"Predicted seconds of a write of `tabular` without compression. A worker has {THREADS} threads, "
        f"each on a core of its own, and a network of {NETWORK * 8 / 1e9:.0f} Gbit/s.",
        "",
        *_jobs(found),
        "",
        "### Cores that one scheduler keeps busy",
        "",
        *_limits(found),
        "",
        "### The prediction, checked",
        "",
        *_checks(found),
        "",
    ]
    return "\n".join(lines)


def _rates(measured: dict[str, Any]) -> list[str]:
    codecs = list(measured["tabular"]["codecs"])
    titles = [f"{job} {codec}" for job in ("write", "read") for codec in codecs]
    lines = [
        f"| table | bytes a row | {' | '.join(titles)} |",
        "|---|--:|" + "--:|" * len(titles),
    ]
    for name, table in measured.items():
        rates = [table["codecs"][codec][job] for job in ("write", "read") for codec in codecs]
        cells = [f"{_short(rate)} rows, {rate * table['row'] / 1e6:,.0f} MB" for rate in rates]
        lines.append(f"| {name} | {table['row']:,.0f} | {' | '.join(cells)} |")
    return lines


def _costs(found: dict[str, Any]) -> list[str]:
    commit, latency, requests = found["commit_ms"], found["latency_ms"], found["requests"]
    rows = [
        ("client: graph of a write of 10,000 partitions", f"{found['graph_seconds']:.2f} s"),
        ("client: the same graph, pickled", f"{found['graph_bytes'] / 1e6:.1f} MB"),
        ("client: plan of a read of 10,000 files, with its graph", f"{found['read_seconds']:.2f} s"),
        ("client and scheduler: CPU time of a task", f"{found['task_ms']:.2f} ms"),
        ("commit of a file, local disk", f"{commit['local']:.2f} ms"),
        ("commit of a file, S3 server of moto", f"{commit['moto']:.2f} ms"),
        ("requests to S3 for a file: write and commit", f"{requests['write']:.1f}"),
        ("requests to S3 for a file: read", f"{requests['read']:.1f}"),
        ("latency of a small read: local disk", f"{latency['local']:.2f} ms"),
        ("latency of a small read: S3 server of moto on this machine", f"{latency['moto']:.1f} ms"),
    ]
    return ["| cost | measured |", "|---|--:|", *(f"| {name} | {value} |" for name, value in rows)]


def _jobs(found: dict[str, Any]) -> list[str]:
    table = found["rates"]["tabular"]
    rate = table["codecs"]["none"]["write"] * table["row"]
    lines = [
        "| workers | partition | tasks | graph | compute | network | scheduler | commit | total | limit |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for workers in WORKERS:
        for partition in PARTITION_BYTES:
            job = write_job(found, rate, TOTAL_BYTES, partition, workers * THREADS, workers * NETWORK)
            parts = (job.graph, job.compute, job.network, job.scheduler, job.commit, job.seconds)
            cells = " | ".join(f"{seconds:,.0f} s" for seconds in parts)
            lines.append(f"| {workers:,} | {_size(partition)} | {job.tasks:,} | {cells} | {job.limit} |")
    return lines


def _limits(found: dict[str, Any]) -> list[str]:
    lines = [
        "| table | "
        + " | ".join(f"write, {_size(one)}" for one in PARTITION_BYTES)
        + " | "
        + " | ".join(f"read, {_size(one)}" for one in PARTITION_BYTES)
        + " |",
        "|---|" + "--:|" * (2 * len(PARTITION_BYTES)),
    ]
    for name, table in found["rates"].items():
        rates = [table["codecs"]["none"][job] * table["row"] for job in ("write", "read")]
        cores = [most_cores(found, rate, partition) for rate in rates for partition in PARTITION_BYTES]
        cells = [f"{float(f'{one:.2g}'):,.0f}" for one in cores]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _checks(found: dict[str, Any]) -> list[str]:
    table, check, cores = found["rates"]["tabular"], found["check"], found["machine"]["cores"]
    rate = table["codecs"]["gzip"]["write"] * table["row"]
    size, partitions = check["rows"] * table["row"], check["partitions"]
    lines = [
        f"A write of `tabular` with gzip, {size / 1e9:.2f} GB in {partitions:,} partitions. The machine has "
        f"{cores} cores, and a worker has one thread.",
        "",
        "| workers | predicted | measured | CPU time of the workers: predicted | measured |",
        "|--:|--:|--:|--:|--:|",
    ]
    for workers, measured in check["workers"].items():
        job = write_job(found, rate, size, size / partitions, min(int(workers), cores))
        times = (job.seconds, measured["seconds"], size / rate, measured["cpu"])
        lines.append(f"| {workers} | {' | '.join(f'{seconds:.1f} s' for seconds in times)} |")
    return lines


def _short(rate: float) -> str:
    """Format a rate with two significant digits, such as 1.5 M or 320 k."""
    rounded = float(f"{rate:.2g}")
    if rounded >= 1e6:
        return f"{rounded / 1e6:.1f} M"
    return f"{rounded / 1e3:.0f} k" if rounded >= 1e4 else f"{rounded / 1e3:.1f} k"


def _size(size: float) -> str:
    return f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
