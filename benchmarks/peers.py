"""Compare dask_tfrecord with other TFRecord tools, and with Dask's Parquet functions.

Each peer runs in its own virtual environment and process, in the way that the peer's documentation shows, on
all cores. All peers do the same jobs on the same four tables. The peers read a job's rows a few times to warm
up, and then take turns: in each round, each peer does the job once. A peer that is slow gets fewer rows, so
that one pass takes about as long as a pass of the others. Ratios compare rows per CPU second within a round,
because other work on the machine has the least effect on these ratios. The files are in memory if the system
has ``/dev/shm``. A peer that is not installed or fails is listed with its error.

    python -m benchmarks.peers --install [--cache DIRECTORY]
    python -m benchmarks.peers [--rounds 5] [--scale 1.0] [--store] [--peers ray ...] [tabular recsys ...]
    python -m benchmarks.peers --report

``--install`` creates the environments of the peers, and measures nothing. ``--store`` puts the figures into
``benchmarks/peers.json``, and implies ``--report``. ``--report`` makes ``benchmarks/RESULTS.md``,
``benchmarks/peers.svg`` and the table of ``README.md``. Spark-TFRecord takes part with ``--spark-jar FILE``
where Java is installed.
"""

import argparse
import importlib
import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dask_tfrecord
from benchmarks.peer_jobs import Work, data, environments, spark
from benchmarks.reports import best_way, errors, fastest, results, spread
from benchmarks.reports.peers import OURS, ratios
from benchmarks.tables import TABLES, Table
from benchmarks.workers import Worker, machine, memory_folder, others, versions

# A peer gets four times the rows until a pass takes more CPU seconds than the first number, or more than the
# second and twice those of the pass before. The latter shows that most of the time is spent on rows.
LONG_SECONDS, SHORT_SECONDS = 0.6, 0.12

# A pass that takes longer is a failure.
LIMIT_SECONDS = 300


class Peer(NamedTuple):
    """A module of `benchmarks.peer_jobs`, the ways that count as this peer, and whether it gets all rows."""

    module: str
    ways: tuple[str, ...] = ("",)
    gets_all: bool = False


PEERS = {
    OURS: Peer("dask", ("ours",), gets_all=True),
    "parquet": Peer("dask", ("parquet",), gets_all=True),
    "tensorflow": Peer("tensorflow", ("parsed in the interleave", "one thread")),
    "tensorflow, usual": Peer("tensorflow", ("as usual",)),
    "tfx-bsl": Peer("tfx_bsl"),
    "spark-tfrecord": Peer("spark"),
    "ray": Peer("ray"),
    "beam": Peer("beam"),
    "vahidk/tfrecord": Peer("vahidk"),
    "protobuf loop": Peer("protobuf"),
}


class Job(NamedTuple):
    """Describe a job: its kind, files and codec, whether it reads few columns, and its tables."""

    kind: str
    files: str = "plain"
    codec: str | None = None
    projects: bool = False
    tables: tuple[str, ...] = tuple(TABLES)


JOBS = {
    "write": Job("write"),
    "write gzip": Job("write", codec="gzip"),
    "read": Job("read"),
    "read few columns": Job("read", projects=True),
    "read gzip": Job("read", "gzip", "gzip"),
    "write to 200 directories": Job("partition_on", tables=("tabular",)),
    "infer columns and types": Job("infer", "foreign", tables=("tabular",)),
    "count records": Job("count", "foreign", tables=("tabular",)),
    "read one big file": Job("read", "big", tables=("tabular",)),
    "read 10,000 small files": Job("read", "small", tables=("tabular",)),
}


class Entry:
    """Hold one way to do a job with a peer, and the figures of this way."""

    def __init__(self, worker: Worker, way: str, kind: str) -> None:
        self._worker, self._question = worker, {"way": way, "kind": kind}
        self.figures: dict[str, Any] = {"cpu": [], "wall": [], "memory": []}

    def fit(self, works: list[dict[str, Any]], gets_all: bool) -> float:
        """Choose the number of rows, from few to many, and warm up. Return the CPU seconds of all passes."""
        self._question["work"] = works[-1] if gets_all else works[0]
        used, before = self.run()["cpu"], math.inf  # this pass is not warm
        for work in works[-1:] if gets_all else works:
            self._question["work"] = work
            took = self.run()["cpu"]
            used += took
            if took > LONG_SECONDS or (took > SHORT_SECONDS and took > 2 * before):
                break
            before = took
        return used

    def run(self) -> dict[str, float]:
        """Do the job once."""
        work = self._question["work"]
        found = self._worker.ask(self._question, LIMIT_SECONDS)
        if "error" not in found and found["rows"] != work["rows"]:
            found["error"] = f"{found['rows']:,} rows instead of {work['rows']:,}"
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
        """Do the job once, keep the figures, and return the CPU seconds."""
        found = self.run()
        self.figures["rows"] = self._question["work"]["rows"]
        for what in ("cpu", "wall"):
            self.figures[what].append(round(found["rows"] / max(found[what], 1e-6), 1))
        self.figures["memory"].append(round(found["memory"] / 1e6))
        return found["cpu"]


class Workers:
    """Hold the processes of the peers, which start on demand, and start again if they have ended."""

    def __init__(self, interpreters: dict[str, Path | str], variables: dict[str, str]) -> None:
        self._interpreters, self._variables = interpreters, variables
        self._started: dict[str, Worker] = {}
        self._stack = ExitStack()

    def get(self, peer: str) -> Worker:
        if peer not in self._started or self._started[peer].has_ended:
            module = PEERS[peer].module
            arguments = ["-m", "benchmarks.peer_jobs", module]
            worker = Worker(self._interpreters[module], arguments, self._variables)
            self._started[peer] = self._stack.enter_context(worker)
        return self._started[peer]

    def clear(self) -> None:
        """Let the processes of the peers release their prepared jobs."""
        for worker in self._started.values():
            with suppress(RuntimeError):  # the process ends, and starts again for the next job
                worker.ask({}, LIMIT_SECONDS)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measure(
    workers: Workers, peers: list[str], job: Job, works: list[dict[str, Any]], rounds: int
) -> dict[str, Any]:
    """Do one job on one table with all peers, in turns."""
    found: dict[str, dict[str, Any]] = {}
    entries = []
    with others() as used:
        for name in peers:
            peer = PEERS[name]
            kinds = importlib.import_module(f"benchmarks.peer_jobs.{peer.module}").WAYS
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


def show(name: str, table: str, found: dict[str, Any]) -> None:
    """Print the figures of a job."""
    print(f"{name}, {table}: other processes used {found['others']:.0%} of the CPU")
    for peer, ways in found["peers"].items():
        for error in errors(ways):
            print(f"  {peer:20}{error}")
        if best := fastest(ways, "cpu"):
            ratio = "" if peer == OURS else spread(ratios(found, peer))
            rates = [median(best["cpu"]), median(best_way(ways, "wall"))]
            numbers = f"{best['rows']:10,}{rates[0]:13,.0f}{rates[1]:13,.0f}{median(best['memory']):8,.0f}"
            print(f"  {peer:20}{numbers}   {ratio}", flush=True)


def measure_all(arguments: argparse.Namespace) -> None:
    """Measure all jobs on all tables."""
    variables = {spark.JAR: arguments.spark_jar} if arguments.spark_jar else {}
    peers, interpreters = available(arguments.cache, arguments.peers, bool(arguments.spark_jar))
    for name, error in peers.items():
        if error:
            print(f"{name}: {error}")
    chosen = [name for name, error in peers.items() if not error]
    pins = [pin for name in interpreters if name != "dask" for pin in environments.pins(name)]
    packages = [versions(["dask", "pyarrow", "pandas", "numpy"]), *dict.fromkeys(pins)]
    about = {"machine": machine() | {"packages": ", ".join(packages)}, "peers": peers}
    with Workers(interpreters, variables) as workers:
        for table in arguments.tables or TABLES:
            with tempfile.TemporaryDirectory(dir=memory_folder(), ignore_cleanup_errors=True) as root:
                made, folders = data.write(root, table, arguments.scale)
                for name, job in JOBS.items():
                    if table in job.tables and (not arguments.jobs or name in arguments.jobs):
                        works = _works(table, made, job, folders)
                        found = measure(workers, chosen, job, works, arguments.rounds)
                        show(name, table, found)
                        if arguments.store:
                            results.save("peers", merged(about, table, name, found))


def merged(about: dict[str, Any], table: str, job: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the stored figures, with the new figures of one job in place of its old figures."""
    tables = results.stored("peers").get("tables", {})
    tables.setdefault(table, {})[job] = found
    ordered = {
        name: {one: tables[name][one] for one in JOBS if one in tables[name]}
        for name in TABLES
        if name in tables
    }
    return about | {"tables": ordered}


def _works(table: str, made: Table, job: Job, folders: dict[int, str]) -> list[dict[str, Any]]:
    """Return the work of a job for each number of rows."""
    features = data.features(made)
    columns = list(made.projection) if job.projects else list(features)
    batch = data.BATCH_ROWS[table]
    return [
        Work(folder, job.files, job.codec, features, columns, rows, batch)._asdict()
        for rows, folder in folders.items()
    ]


def available(
    cache: Path, wanted: list[str] | None, has_jar: bool
) -> tuple[dict[str, str], dict[str, Path | str]]:
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
        elif python := environments.interpreter(peer.module, cache):
            interpreters[peer.module] = python
        else:
            peers[name] = "not installed: run benchmarks.peers --install"
    return peers, interpreters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="table", help=f"{', '.join(TABLES)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of rows")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), help="default: all that are installed")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), help="default: all")
    parser.add_argument("--install", action="store_true", help="make the environments of the peers, and stop")
    parser.add_argument("--cache", type=Path, default=environments.default_cache(), help="of environments")
    parser.add_argument("--spark-jar", help="of Spark-TFRecord")
    parser.add_argument("--store", action="store_true", help="put the figures into peers.json, and report")
    parser.add_argument("--report", action="store_true", help="make RESULTS.md, the plot, the README's table")
    arguments = parser.parse_args()
    if arguments.install:
        install(arguments.cache, arguments.peers)
    elif arguments.report:
        results.write()
    else:
        print(f"dask-tfrecord {dask_tfrecord.__version__}, median of {arguments.rounds} rounds")
        print(f"{'':22}{'rows':>10}{'per CPU s':>13}{'per s':>13}{'peak MB':>8}   ratio (least to greatest)")
        measure_all(arguments)
        if arguments.store:
            results.write()


def install(cache: Path, wanted: list[str] | None) -> None:
    """Create the virtual environments of the peers."""
    for module in dict.fromkeys(PEERS[name].module for name in wanted or PEERS):
        if module in environments.ENVIRONMENTS:
            try:
                environments.install(module, cache)
                print(f"{module}: {environments.interpreter(module, cache)}", flush=True)
            except RuntimeError as error:
                print(f"{module}: {error}", flush=True)


if __name__ == "__main__":
    main()
