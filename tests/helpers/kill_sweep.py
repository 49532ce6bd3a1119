"""A script that kills a write at its first filesystem operation, then at its second, and so on to the last.

``python kill_sweep.py MODE DIRECTORY SNAPSHOTS`` prints as JSON the rows that were readable after each kill.
If SNAPSHOTS is "delta", the write finds a snapshot with a base, and an append adds to the same base. The
process that forks has started no threads.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow.parquet as pq

import dask_tfrecord
from dask_tfrecord.dataset.snapshot import file_table

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.listdir", "os.scandir"}

MODES = {
    "create": {},
    "append": {"append": True},
    "shuffle": {"append": True, "shuffle": 1},
    "overwrite": {"overwrite": True},
    "others": {"overwrite": True},
    "partitions": {"overwrite": "partitions", "partition_on": "key"},
}


def rows(*numbers: int) -> dd.DataFrame:
    frame = pd.DataFrame({"n": numbers, "key": [n % 3 for n in numbers]})
    return dd.from_pandas(frame, npartitions=2)


def prepare(mode: str, place: Path) -> None:
    """Write the dataset that exists before the write under test."""
    if mode == "create":
        return
    options = {"partition_on": "key"} if mode == "partitions" else {}
    if file_table.DELTA_PART > 1:
        dask_tfrecord.to_tfrecord(rows(*range(3)), place, **options)
        dask_tfrecord.to_tfrecord(rows(*range(3, 7)), place, append=True, **options)
        metadata = pq.read_metadata(place / "_tfrecord" / "00000002.parquet").metadata
        if b'"base"' not in metadata[b"dask_tfrecord"]:
            raise RuntimeError("the snapshot has no base")
    else:
        dask_tfrecord.to_tfrecord(rows(*range(7)), place, **options)
    if mode == "others":
        shutil.rmtree(place / "_tfrecord")
        for at, path in enumerate(sorted(place.glob("part-*"))):
            path.rename(place / f"{at}.tfrecord")


def write(mode: str, place: Path) -> None:
    numbers = (10, 13) if mode == "partitions" else (11, 12, 13)
    dask_tfrecord.to_tfrecord(rows(*numbers), place, **MODES[mode])


def read(place: Path) -> list[int]:
    """The sorted numbers; none if there is no dataset."""
    try:
        return sorted(dask_tfrecord.read_tfrecord(place)["n"].compute().tolist())
    except FileNotFoundError:
        return []


def kill_at(number: int, place: Path, work: Callable[[], None]) -> bool:
    """Kill the work before its operation ``number`` on the place; return False if the work ended first."""
    child = os.fork()
    if child == 0:
        left = [number]

        def count(event: str, arguments: tuple[object, ...]) -> None:
            if event in OPERATIONS and str(place) in str(arguments[0]):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status) and status != 0:
        raise RuntimeError(f"the write failed at operation {number}")
    return os.WIFSIGNALED(status)


def sweep(mode: str, directory: Path) -> list[dict[str, list[int]]]:
    found = []
    killed = True
    while killed:
        place = directory / str(len(found))
        prepare(mode, place)
        killed = kill_at(len(found), place, lambda place=place: write(mode, place))
        seen = {"killed": read(place)}
        dask_tfrecord.cleanup(place, older_than="0s")
        seen["cleaned"] = read(place)
        seen["files"] = len([path for path in place.rglob("*") if path.is_file()])
        write("overwrite" if mode == "create" else mode, place)
        seen["written"] = read(place)
        found.append(seen)
        shutil.rmtree(place)
    return found


if __name__ == "__main__":
    file_table.DELTA_PART = {"full": 0.0, "delta": 1e9}[sys.argv[3]]
    with dask.config.set(scheduler="sync"):
        print(json.dumps(sweep(sys.argv[1], Path(sys.argv[2]))), flush=True)
    # Skip the shutdown of the interpreter: it aborted once, because of threads of libraries after the fork.
    os._exit(0)
