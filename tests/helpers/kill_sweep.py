"""A script that kills a write at one of its filesystem operations, then, in a new run, at another.

Each line of its input is a JSON list: the mode of the write, an empty directory, "full" or "delta", and the
stride. If "delta", the write finds a snapshot with a base, and an append adds to the same base. The script
kills at every operation whose number is a multiple of the stride, and at those around the operation that
makes the new rows visible. For each line it prints, as JSON, the number of operations and what
was readable after each kill. The process that forks has started no threads.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import operations
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from list_rules import set_rule

import dask_tfrecord
from dask_tfrecord.dataset.shuffle import table_stream
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files import small_columns

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.listdir", "os.scandir"}

MODES = {
    "create": {},
    "append": {"append": True},
    "named append": {"append": True, "write_id": "day"},
    "shuffle": {"append": True, "shuffle": True, "seed": 1},
    "stream": {"append": True, "shuffle": True, "seed": 1},
    "writer": {},
    "named writer": {"write_id": "day"},
    "named partitions": {"overwrite": "partitions", "partition_on": "key", "write_id": "day"},
    "overwrite": {"overwrite": True, "columnar": ["n"]},
    "others": {"overwrite": True},
    "keeping": {"overwrite": True, "keep_versions": True},
    "partitions": {"overwrite": "partitions", "partition_on": "key"},
    "compact": {},
    "delete": {},
    "restore": {},
    "expire": {},
    "repair": {},
}

CALLS: dict[str, Callable[[Path], Any]] = {
    "compact": operations.compact,
    # Some files lose all rows, others some.
    "delete": lambda place: dask_tfrecord.open_dataset(place).delete([("n", "in", [1, 2, 4, 5, 6])]),
    "restore": lambda place: dask_tfrecord.open_dataset(place).restore(1 if SNAPSHOTS[0] == "full" else 2),
    "expire": lambda place: dask_tfrecord.open_dataset(place).expire(versions=1, grace="0s"),
    "repair": operations.repair,
}

# The rule for lists that is in force.
SNAPSHOTS = ["full"]

# What `read` returns if a file is missing.
MISSING = [-1]

# The modes in which the writes have a column file for each task. In the others, each data file has its own.
COLUMNS = {"append", "stream", "overwrite", "compact", "restore"}

# After these, the version before the first write under test can be read.
KEEPING = {"keeping", "restore"}


def rows(*numbers: int) -> dd.DataFrame:
    frame = pd.DataFrame({"n": numbers, "key": [n % 3 for n in numbers]})
    return dd.from_pandas(frame, npartitions=2)


def prepare(mode: str, place: Path) -> None:
    """Write the dataset that exists before the write under test."""
    if mode == "create":
        return
    options: dict[str, Any] = {"partition_on": "key"} if "partitions" in mode else {}
    options |= {"columnar": ["n"]} if mode in COLUMNS else {}
    if SNAPSHOTS[0] == "delta":
        dask_tfrecord.to_tfrecord(rows(*range(3)), place, **options)
        dask_tfrecord.to_tfrecord(rows(*range(3, 7)), place, append=True, **options)
        metadata = pq.read_metadata(place / "_tfrecord" / "00000002.parquet").metadata
        if b'"lists"' not in metadata[b"dask_tfrecord"]:
            raise RuntimeError("the snapshot has no older list")
    else:
        dask_tfrecord.to_tfrecord(rows(*range(7)), place, **options)
    if mode in ("restore", "expire"):
        dask_tfrecord.to_tfrecord(rows(11, 12, 13), place, **MODES["keeping"])
    if mode == "repair":
        dask_tfrecord.to_tfrecord(rows(11, 12, 13), place, append=True)
        lost = Snapshot.open(place).files[-2:]
        for file in lost:
            (place / file.path).unlink()
    if mode == "others":
        shutil.rmtree(place / "_tfrecord")
        for at, path in enumerate(sorted(place.glob("part-*"))):
            path.rename(place / f"{at}.tfrecord")


def write(mode: str, place: Path) -> None:
    if mode in CALLS:
        CALLS[mode](place)
        return
    numbers = (10, 13) if "partitions" in mode else (11, 12, 13)
    found: Any = rows(*numbers)
    if "writer" in mode:
        with dask_tfrecord.Writer(place, write_options={"max_rows_per_file": 2}) as writer:
            writer.write(found.compute().reset_index(drop=True))
            writer.commit(**MODES[mode])
        return
    if mode == "stream":
        found = pa.Table.from_pandas(found.compute(), preserve_index=False).to_reader(2)
    dask_tfrecord.to_tfrecord(found, place, **MODES[mode])


def read(place: Path, version: int | None = None) -> list[int]:
    """The sorted numbers; none if there is no dataset, and MISSING if a file was removed from outside."""
    try:
        found = sorted(dask_tfrecord.open_dataset(place, version=version).to_table()["n"].to_pylist())
        files = Snapshot.open(place, version).files if newest(place) else ()
        paths = [file.columns.path if file.columns else "none" for file in files]
        if lost := [path for path in paths if not (place / path).exists()]:
            raise RuntimeError(f"no column files {lost}")
        return found
    except dask_tfrecord.CorruptRecordError as error:
        if "missing" not in str(error):
            raise
        return MISSING
    except FileNotFoundError:
        if version is not None:
            raise
        return []


def newest(place: Path) -> int:
    """The number of the newest version; 0 if there is no snapshot."""
    try:
        return Snapshot.open(place).number
    except FileNotFoundError:
        return 0


def kill_at(number: int, place: Path, work: Callable[[], None]) -> int | None:
    """Kill the work before its operation ``number``; return the number of operations if the work ended."""
    total = place.with_suffix(".operations")
    child = os.fork()
    if child == 0:
        done = [0]

        def count(event: str, arguments: tuple[object, ...]) -> None:
            if event in OPERATIONS and str(place) in str(arguments[0]):
                if done[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                done[0] += 1

        sys.addaudithook(count)
        try:
            work()
            total.write_text(str(done[0]))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return None
    if status != 0:
        raise RuntimeError(f"the write failed at operation {number}")
    return int(total.read_text())


def sweep(mode: str, directory: Path, stride: int) -> dict[str, Any]:
    """What readers see after kills; the last is the write that was not killed."""
    start = directory / "start"
    prepare(mode, start)
    first = newest(start)
    found: dict[int, dict[str, Any]] = {}

    def visit(number: int) -> int | None:
        place = directory / str(number)
        if start.exists():
            shutil.copytree(start, place)
        total = kill_at(number, place, lambda: write(mode, place))
        seen: dict[str, Any] = {"version": newest(place), "killed": read(place)}
        seen["kept"] = [read(place, first)] if mode in KEEPING else []
        if place.exists():
            dask_tfrecord.open_dataset(place).cleanup(older_than="0s")
        if mode == "expire":  # a killed one may have left files, which the next one removes
            dask_tfrecord.open_dataset(place).expire(versions=1_000, grace="0s")
        seen["cleaned"] = read(place)
        seen["files"] = len([path for path in place.rglob("*") if path.is_file()])
        write("overwrite" if mode == "create" else mode, place)
        seen["written"] = read(place)
        seen["kept"] += [read(place, first)] if mode in KEEPING else []
        shutil.rmtree(place)
        found[number if total is None else total] = seen
        return total

    total = visit(sys.maxsize)
    assert total is not None
    for number in range(0, total, stride):
        visit(number)
    # The switch is between the last instant that shows the old version and the first that shows the new.
    before = max(number for number in found if found[number]["version"] == found[0]["version"])
    after = min(number for number in found if number > before)
    while after - before > 1:
        middle = (before + after) // 2
        visit(middle)
        if found[middle]["version"] == found[0]["version"]:
            before = middle
        else:
            after = middle
    for number in range(before - 1, after + 2):
        if 0 <= number < total and number not in found:
            visit(number)
    return {"operations": total, "found": dict(sorted(found.items()))}


if __name__ == "__main__":
    table_stream._CHUNK_BYTES = 1  # a stream of two batches becomes two files
    small_columns.LEAST_FILE_BYTES = small_columns._PART = 1  # all columns of all files are small
    with dask.config.set(scheduler="sync"):
        for line in sys.stdin:
            mode, directory, snapshots, stride = json.loads(line)
            set_rule(snapshots)
            SNAPSHOTS[:] = [snapshots]
            try:
                answer = sweep(mode, Path(directory), stride)
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), flush=True)
    # Skip the shutdown of the interpreter: it aborted once, because of threads of libraries after the fork.
    os._exit(0)
