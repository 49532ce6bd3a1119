"""Compare reads and writes of dask_tfrecord with other TFRecord tools, and with Dask's Parquet functions.

Each peer runs in its own virtual environment and process, in the best way that the peer's documentation
shows, on all cores. All peers do the same jobs on the same four tables. The peers read a job's rows a few
times to warm up, and then take turns: in each round, each peer does the job once. A peer that is slow gets
fewer rows, so that one pass takes about as long as a pass of the others. A turn is three passes. Before the
first, the other peers have used the machine's memory: it is the cold pass, and takes more time in the system,
which must find pages. The second has a quarter of the rows, and the third has all rows again. Their
difference is the cost of one more row, without the cost of the start. Ratios compare rows per CPU second
within a round, because other work on the machine has the least effect on these ratios. The bytes of the files
are also written and read without a format, which is the limit of any tool. The files are in memory if the
system has ``/dev/shm``. A peer that is not installed or fails is listed with its error.
"""

import argparse
import hashlib
import importlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.own.tables import TABLES, Table, memory_folder
from benchmarks.peers import files_data
from benchmarks.peers.report import OURS, RAW, best_way, capped_spread, errors, fastest, ratios, save, stored
from benchmarks.peers.tools import Work, spark
from benchmarks.peers.workers import Worker, last_error, machine, others, versions

# A peer gets four times the rows until a pass takes more CPU seconds than the first number, or more than the
# second and twice those of the pass before. The latter shows that most of the time is spent on rows.
LONG_SECONDS, SHORT_SECONDS = 0.6, 0.12

# A pass that takes longer is a failure.
LIMIT_SECONDS = 300


class Peer(NamedTuple):
    """A module of `tools`, the ways that count as this peer, and whether it gets all rows."""

    module: str
    ways: tuple[str, ...] = ("",)
    gets_all: bool = False


PEERS = {
    OURS: Peer("dask", ("ours",), gets_all=True),
    "parquet": Peer("dask", ("parquet", "parquet, arrow"), gets_all=True),
    "tensorflow": Peer("tensorflow", ("parsed in the interleave", "one thread")),
    "tensorflow, usual": Peer("tensorflow", ("as usual",)),
    "tfx-bsl": Peer("tfx_bsl"),
    "spark-tfrecord": Peer("spark", gets_all=True),
    "ray": Peer("ray"),
    "beam": Peer("beam"),
    "vahidk/tfrecord": Peer("vahidk"),
    "protobuf loop": Peer("protobuf"),
    RAW: Peer("dask", ("raw",), gets_all=True),
}
TOOLS = tuple(peer for peer in PEERS if peer != RAW)
DASK = (OURS, "parquet")
WITH_LEVELS = (*DASK, "tensorflow", "tfx-bsl", "protobuf loop")


class Job(NamedTuple):
    """Describe a job: its kind, files and codec, whether it reads few columns, its tables and its peers."""

    kind: str
    files: str = "plain"
    codec: str | None = None
    level: int | None = None
    projects: bool = False
    tables: tuple[str, ...] = tuple(TABLES)
    peers: tuple[str, ...] = TOOLS


JOBS = {
    "write": Job("write", peers=tuple(PEERS)),
    "read": Job("read", peers=tuple(PEERS)),
    "read few columns": Job("read", projects=True),
    "write gzip": Job("write", codec="gzip", tables=("tabular",)),
    "read gzip": Job("read", "gzip", "gzip", tables=("tabular",)),
    "write by default": Job("write", codec="default", tables=("tabular",), peers=DASK),
    "write gzip, level 1": Job("write", codec="gzip", level=1, tables=("tabular",), peers=WITH_LEVELS),
    "write gzip, level 6": Job("write", codec="gzip", level=6, tables=("tabular",), peers=WITH_LEVELS),
    "write zstd": Job("write", codec="zstd", tables=("tabular",), peers=DASK),
    "read zstd": Job("read", "zstd", "zstd", tables=("tabular",), peers=DASK),
    "write to 200 directories": Job("partition_on", tables=("tabular",)),
    "infer columns and types": Job("infer", "foreign", tables=("tabular",)),
    "count records": Job("count", "foreign", tables=("tabular",)),
    "read one big file": Job("read", "big", tables=("tabular",)),
    "read 1,000 small files": Job("read", "small", tables=("tabular",)),
}


class Entry:
    """Hold one way to do a job with a peer, and the figures of this way."""

    def __init__(self, worker: Worker, way: str, kind: str) -> None:
        self._worker, self._question = worker, {"way": way, "kind": kind}
        self._smaller: dict[str, Any] | None = None
        self._work: dict[str, Any] = {}
        self.figures: dict[str, Any] = {
            name: [] for name in ("cpu", "system", "cold", "cold_system", "wall", "memory")
        }

    def fit(self, works: list[dict[str, Any]], gets_all: bool) -> float:
        """Choose the number of rows, from few to many, and warm up. Return the CPU seconds of all passes."""
        works = works[-2:] if gets_all else works
        self._work = works[0]
        used, before = self.run(self._work)["cpu"], math.inf  # this pass is not warm
        for work in works:
            self._smaller, self._work = (None if work is works[0] else self._work), work
            took = self.run(work)["cpu"]
            used += took
            is_long = took > LONG_SECONDS or (took > SHORT_SECONDS and took > 2 * before)
            if is_long and not gets_all:
                break
            before = took
        return used

    def run(self, work: dict[str, Any]) -> dict[str, float]:
        """Do the job once."""
        found = self._ask({"work": work})
        if found["rows"] != work["rows"]:
            raise RuntimeError(f"{found['rows']:,} rows instead of {work['rows']:,}")
        return found

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        found = self._worker.ask(self._question | question, LIMIT_SECONDS)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found

    def attempt(self, work: Callable[[], float]) -> float:
        """Do a piece of work of this entry, unless one failed before, and return its CPU seconds."""
        if "error" not in self.figures:
            try:
                return work()
            except RuntimeError as error:
                self.figures["error"] = str(error)
        return 0.0

    def measure(self) -> float:
        """Do the job cold, with fewer rows, and warm. Keep the figures, and return the CPU seconds."""
        cold = self.run(self._work)
        used = cold["cpu"]
        if self._smaller:
            took = self.run(self._smaller)["cpu"]
            used += took
            self.figures["smaller_rows"] = self._smaller["rows"]
            self.figures.setdefault("smaller_seconds", []).append(round(took, 5))
        found = self.run(self._work)
        self.figures["rows"] = self._work["rows"]
        for name, what, one in (("cpu", "cpu", found), ("wall", "wall", found), ("cold", "cpu", cold)):
            self.figures[name].append(round(one["rows"] / max(one[what], 1e-6), 1))
        for name, one in (("system", found), ("cold_system", cold)):  # the part of the CPU time
            self.figures[name].append(round(one["system"] / max(one["cpu"], 1e-6), 3))
        self.figures["memory"].append(round(found["memory"] / 1e6))
        if found["bytes"]:
            self.figures["bytes"] = found["bytes"]
        return used + found["cpu"]


class Workers:
    """Hold the processes of the peers, which start on demand, and start again if they have ended."""

    def __init__(
        self, stack: ExitStack, interpreters: dict[str, Path | str], variables: dict[str, str]
    ) -> None:
        self._stack, self._interpreters, self._variables = stack, interpreters, variables
        self._started: dict[str, Worker] = {}

    def get(self, peer: str) -> Worker:
        if peer not in self._started or self._started[peer].has_ended:
            module = PEERS[peer].module
            worker = Worker(
                self._interpreters[module], ["-m", "benchmarks.peers.tools", module], self._variables
            )
            self._started[peer] = self._stack.enter_context(worker)
        return self._started[peer]

    def clear(self) -> None:
        """Let the processes of the peers release their prepared jobs."""
        for worker in self._started.values():
            with suppress(RuntimeError):  # the process ends, and starts again for the next job
                worker.ask({}, LIMIT_SECONDS)


def measure(
    workers: Workers, peers: Sequence[str], job: Job, works: list[dict[str, Any]], rounds: int
) -> dict[str, Any]:
    """Do one job on one table with all peers, in turns."""
    found: dict[str, dict[str, Any]] = {}
    entries = []
    with others() as used:
        for name in peers:
            peer = PEERS[name]
            kinds = importlib.import_module(f"benchmarks.peers.tools.{peer.module}").WAYS
            for way in peer.ways:
                if job.kind in kinds[way]:
                    entry = Entry(workers.get(name), way, job.kind)
                    found.setdefault(name, {})[way] = entry.figures
                    entries.append(entry)
                    used.append(entry.attempt(lambda entry=entry, peer=peer: entry.fit(works, peer.gets_all)))
        for _ in range(rounds):
            used += [entry.attempt(entry.measure) for entry in entries]
        workers.clear()
    return {"peers": found, "others": used[0]}


def show(title: str, found: dict[str, Any]) -> None:
    """Print the figures of a job."""
    print(f"{title}: other processes used {found['others']:.0%} of the CPU")
    for peer, ways in found["peers"].items():
        for error in errors(ways):
            print(f"  {peer:20}{error}")
        if best := fastest(ways, "cpu"):
            ratio = "" if peer == OURS else capped_spread(ratios(found, peer))
            rates = median(best["cpu"]), median(best_way(ways, "wall"))
            print(f"  {peer:20}{best['rows']:10,}{rates[0]:13,.0f}{rates[1]:13,.0f}   {ratio}", flush=True)


def run(arguments: argparse.Namespace) -> None:
    """Measure all jobs on all tables."""
    print(f"{'':22}{'rows':>10}{'per CPU s':>13}{'per s':>13}   ratio (least to greatest)")
    variables = {spark.JAR: arguments.spark_jar} if arguments.spark_jar else {}
    peers, interpreters = available(arguments.peers, bool(arguments.spark_jar))
    for name, error in peers.items():
        if error:
            print(f"{name}: {error}")
    pinned = [pin for name in interpreters if name != "dask" for pin in pins(name)]
    packages = [versions(["dask", "pyarrow", "pandas", "numpy"]), *dict.fromkeys(pinned)]
    about = {"machine": machine() | {"packages": ", ".join(packages)}, "peers": peers}
    with ExitStack() as stack:
        workers = Workers(stack, interpreters, variables)
        for table in arguments.datasets or TABLES:
            with tempfile.TemporaryDirectory(dir=memory_folder(), ignore_cleanup_errors=True) as root:
                made, folders = files_data.write(root, table, arguments.scale)
                for name, job in JOBS.items():
                    chosen = [peer for peer in job.peers if peers.get(peer) == ""]
                    if chosen and table in job.tables and (not arguments.jobs or name in arguments.jobs):
                        works = _works(table, made, job, folders)
                        found = measure(workers, chosen, job, works, arguments.rounds)
                        show(f"{name}, {table}", found)
                        if arguments.store:
                            figures = stored("files") | about
                            figures.setdefault("tables", {}).setdefault(table, {})[name] = found
                            save("files", figures)


def _works(table: str, made: Table, job: Job, folders: dict[int, str]) -> list[dict[str, Any]]:
    """Return the work of a job for each number of rows."""
    features = files_data.features(made)
    columns = list(made.projection) if job.projects else list(features)
    batch = files_data.BATCH_ROWS[table]
    return [
        Work(folder, job.files, job.codec, job.level, features, columns, rows, batch)._asdict()
        for rows, folder in folders.items()
    ]


def available(wanted: list[str] | None, has_jar: bool) -> tuple[dict[str, str], dict[str, Path | str]]:
    """Map each peer to the reason why it cannot take part, or to ''; also return the interpreters."""
    peers, interpreters = {}, {}
    for name, peer in PEERS.items():
        if wanted and name not in (OURS, *wanted):
            continue
        peers[name] = ""
        if peer.module == "dask":
            interpreters["dask"] = sys.executable
        elif peer.module == "spark" and not (has_jar and shutil.which("java")):
            peers[name] = "needs --spark-jar and Java"
        elif (folder := environment_folder(peer.module)) and (folder / "complete").exists():
            interpreters[peer.module] = folder / "bin" / "python"
        else:
            peers[name] = "not installed: run python -m benchmarks.peers --install"
    return peers, interpreters


# -- Environments of the peers, with pinned versions -----------------------------------------------------

COMMON = ("numpy", "psutil==7.2.2", "pyarrow")


class Environment(NamedTuple):
    """Name the requirements of a peer, and those that pip installs without their dependencies."""

    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


TENSORFLOW = "tensorflow-cpu==2.21.0"
METADATA = "tensorflow-metadata==1.21.0"

ENVIRONMENTS = {
    "tensorflow": Environment((TENSORFLOW,)),
    # The dependencies include Beam and the clients of Google Cloud, which the coders do not import.
    "tfx_bsl": Environment((TENSORFLOW, METADATA, "absl-py", "pandas"), ("tfx-bsl==1.21.0",)),
    "ray": Environment(("ray[data]==2.60.0", "crc32c==2.9.post0", TENSORFLOW, METADATA)),
    "beam": Environment(("apache-beam==2.77.0", "google-crc32c==1.9.0")),
    "vahidk": Environment(("tfrecord==1.14.6",)),
    "protobuf": Environment(("protobuf==7.36.2", "google-crc32c==1.9.0")),
    "spark": Environment(("pyspark==3.5.8", "pandas", "setuptools")),
}


def pins(module: str) -> list[str]:
    """Return the requirements of a peer that name a version."""
    environment = ENVIRONMENTS[module]
    return [one.replace("==", " ") for one in (*environment.packages, *environment.alone) if "==" in one]


def environment_folder(module: str) -> Path:
    """Return the directory of a peer's environment, which differs for each version of the requirements."""
    wanted = repr((COMMON, ENVIRONMENTS[module], sys.version_info[:2]))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "dask-tfrecord-peers" / f"{module}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"


def install(wanted: list[str] | None) -> None:
    """Create the virtual environments of the peers, if they do not exist."""
    for module in dict.fromkeys(PEERS[name].module for name in wanted or PEERS):
        if module not in ENVIRONMENTS or (environment_folder(module) / "complete").exists():
            continue
        folder, environment = environment_folder(module), ENVIRONMENTS[module]
        shutil.rmtree(folder, ignore_errors=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        commands = [[sys.executable, "-m", "venv", str(folder)], [*pip, *COMMON, *environment.packages]]
        if environment.alone:
            commands.append([*pip, "--no-deps", *environment.alone])
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{module}: {last_error(done.stderr)}", flush=True)
                break
        else:
            (folder / "complete").touch()
            print(f"{module}: {folder}", flush=True)
