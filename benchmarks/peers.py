"""Compare dask_tfrecord with other TFRecord tools, and with Dask's Parquet functions.

Each peer runs in its own virtual environment and process, in the best way that the peer's documentation
shows, on all cores. All peers do the same jobs on the same four tables. The peers read a job's rows a few
times to warm up, and then take turns: in each round, each peer does the job once. A peer that is slow gets
fewer rows, so that one pass takes about as long as a pass of the others. In each round, a peer also does the
job with a quarter of its rows. The difference is the cost of one more row, without the cost of the start.
Ratios compare rows per CPU second within a round, because other work on the machine has the least effect on
these ratios. The files are in memory if the system has ``/dev/shm``, and then again in the directory of
``--disk``. On a disk, each reader also reads once after the files have been dropped from the system's cache.
A peer that is not installed or fails is listed with its error.

    python -m benchmarks.peers --install [--cache DIRECTORY]
    python -m benchmarks.peers [--rounds 5] [--scale 1.0] [--disk DIRECTORY] [--store] [--peers ray ...]
                               [--jobs read ...] [tabular recsys ...]
    python -m benchmarks.peers --report

``--install`` creates the environments of the peers, and measures nothing. ``--store`` puts the figures into
``benchmarks/peers.json``, and implies ``--report``. ``--report`` makes ``benchmarks/RESULTS.md``,
the table of ``docs/comparison.md``, and the figures and the plots of ``README.md``. Spark-TFRecord takes
part with ``--spark-jar FILE`` where Java is installed.
"""

import argparse
import importlib
import itertools
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dask_tfrecord
from benchmarks.peer_jobs import Work, data, environments, spark
from benchmarks.reports import best_way, errors, fastest, results
from benchmarks.reports.ratios import OURS, PROTOCOL, capped, capped_spread, ratios, row_ratio
from benchmarks.tables import TABLES, Table, table_parser
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
    "parquet": Peer("dask", ("parquet", "parquet, arrow"), gets_all=True),
    "tensorflow": Peer("tensorflow", ("parsed in the interleave", "one thread")),
    "tensorflow, usual": Peer("tensorflow", ("as usual",)),
    "tfx-bsl": Peer("tfx_bsl"),
    "spark-tfrecord": Peer("spark", gets_all=True),
    "ray": Peer("ray"),
    "beam": Peer("beam"),
    "vahidk/tfrecord": Peer("vahidk"),
    "protobuf loop": Peer("protobuf"),
}


DASK = (OURS, "parquet")
WITH_LEVELS = (*DASK, "tensorflow", "tfx-bsl", "protobuf loop")
FAST = (*DASK, "tensorflow", "tfx-bsl")


class Job(NamedTuple):
    """Describe a job: its kind, files and codec, whether it reads few columns, its tables and its peers."""

    kind: str
    files: str = "plain"
    codec: str | None = None
    level: int | None = None
    projects: bool = False
    tables: tuple[str, ...] = tuple(TABLES)
    peers: tuple[str, ...] = tuple(PEERS)
    on_disk: tuple[str, ...] = ()


JOBS = {
    "write": Job("write", on_disk=tuple(PEERS)),
    "read": Job("read", on_disk=tuple(PEERS)),
    "read few columns": Job("read", projects=True, on_disk=FAST),
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
    "read 10,000 small files": Job("read", "small", tables=("tabular",), on_disk=FAST),
}


class Entry:
    """Hold one way to do a job with a peer, and the figures of this way."""

    def __init__(self, worker: Worker, way: str, kind: str) -> None:
        self._worker, self._question = worker, {"way": way, "kind": kind}
        self._smaller: dict[str, Any] | None = None
        self._work: dict[str, Any] = {}
        self.figures: dict[str, Any] = {"cpu": [], "wall": [], "memory": []}

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
        """Do the job once, and before with fewer rows. Keep the figures, and return the CPU seconds."""
        used = 0.0
        if self._smaller:
            used = self.run(self._smaller)["cpu"]
            self.figures["smaller_rows"] = self._smaller["rows"]
            self.figures.setdefault("smaller_seconds", []).append(round(used, 5))
        found = self.run(self._work)
        self.figures["rows"] = self._work["rows"]
        for what in ("cpu", "wall"):
            self.figures[what].append(round(found["rows"] / max(found[what], 1e-6), 1))
        self.figures["memory"].append(round(found["memory"] / 1e6))
        if found["bytes"]:
            self.figures["bytes"] = found["bytes"]
        return used + found["cpu"]

    def measure_cold(self) -> float:
        """Read once after the files have left the system's cache, if the system permits this."""
        folder = f"{self._work['root']}/{self._work['files']}"
        if all([data.drop_from_cache(folder), data.drop_from_cache(f"{folder}-parquet")]):
            found = self.run(self._work)
            self.figures["cold"] = round(found["rows"] / max(found["wall"], 1e-6), 1)
            return found["cpu"]
        return 0.0

    def measure_shares(self) -> float:
        """Keep the share of each step in the CPU time of one more pass."""
        self.figures["shares"] = self._ask({"work": self._work, "shares": True})["shares"]
        return 0.0


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
    workers: Workers,
    peers: Sequence[str],
    job: Job,
    works: list[dict[str, Any]],
    rounds: int,
    *,
    is_on_disk: bool,
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
        if is_on_disk and job.kind == "read":
            used += [entry.attempt(entry.measure_cold) for entry in entries]
        if peers[0] == OURS and job.kind in ("read", "write", "partition_on"):
            used.append(entries[0].attempt(entries[0].measure_shares))
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
            rates = [median(best["cpu"]), median(best_way(ways, "wall"))]
            numbers = f"{best['rows']:10,}{rates[0]:13,.0f}{rates[1]:13,.0f}{median(best['memory']):8,.0f}"
            each = None if peer == OURS else row_ratio(found, peer)
            more = f"; one more row {capped(each)}" if each else ""
            print(f"  {peer:20}{numbers}   {ratio}{more}", flush=True)


def measure_all(arguments: argparse.Namespace) -> None:
    """Measure all jobs on all tables, in memory and on the disk."""
    variables = {spark.JAR: arguments.spark_jar} if arguments.spark_jar else {}
    peers, interpreters = available(arguments.cache, arguments.peers, bool(arguments.spark_jar))
    for name, error in peers.items():
        if error:
            print(f"{name}: {error}")
    pins = [pin for name in interpreters if name != "dask" for pin in environments.pins(name)]
    packages = [versions(["dask", "pyarrow", "pandas", "numpy"]), *dict.fromkeys(pins)]
    about = {
        "protocol": PROTOCOL,
        "machine": machine() | {"packages": ", ".join(packages)},
        "peers": peers,
    }
    media = {"tables": memory_folder()} | ({"disk": arguments.disk} if arguments.disk else {})
    with Workers(interpreters, variables) as workers:
        for medium, table in itertools.product(media, arguments.tables or TABLES):
            with tempfile.TemporaryDirectory(dir=media[medium], ignore_cleanup_errors=True) as root:
                made, folders = data.write(root, table, arguments.scale)
                for name, job in JOBS.items():
                    wanted = job.peers if medium == "tables" else job.on_disk
                    chosen = [peer for peer in wanted if peers.get(peer) == ""]
                    if chosen and table in job.tables and (not arguments.jobs or name in arguments.jobs):
                        works = _works(table, made, job, folders)
                        found = measure(
                            workers, chosen, job, works, arguments.rounds, is_on_disk=medium == "disk"
                        )
                        show(f"{name}, {table}{', on disk' * (medium == 'disk')}", found)
                        if arguments.store:
                            results.save("peers", merged(about, medium, table, name, found))


def merged(about: dict[str, Any], medium: str, table: str, job: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the stored figures, with the new figures of one job in place of its old figures."""
    stored = results.stored("peers")
    kept = {key: stored.get(key, {}) for key in ("tables", "disk")}
    if stored.get("protocol") != PROTOCOL:
        kept = {"tables": {}, "disk": {}}
    kept[medium].setdefault(table, {})[job] = found
    return about | {
        key: {
            name: {one: tables[name][one] for one in JOBS if one in tables[name]}
            for name in TABLES
            if name in tables
        }
        for key, tables in kept.items()
    }


def _works(table: str, made: Table, job: Job, folders: dict[int, str]) -> list[dict[str, Any]]:
    """Return the work of a job for each number of rows."""
    features = data.features(made)
    columns = list(made.projection) if job.projects else list(features)
    batch = data.BATCH_ROWS[table]
    return [
        Work(folder, job.files, job.codec, job.level, features, columns, rows, batch)._asdict()
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
    parser = table_parser(__doc__, rounds=5)
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), help="default: all that are installed")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), help="default: all")
    parser.add_argument("--install", action="store_true", help="make the environments of the peers, and stop")
    parser.add_argument("--cache", type=Path, default=environments.default_cache(), help="of environments")
    parser.add_argument("--disk", metavar="DIRECTORY", help="measure on the disk of this directory, too")
    parser.add_argument("--spark-jar", help="of Spark-TFRecord")
    parser.add_argument("--store", action="store_true", help="put the figures into peers.json, and report")
    parser.add_argument("--report", action="store_true", help="make RESULTS.md, and the README's figures")
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
