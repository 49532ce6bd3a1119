"""A script that stops one operation at each of its filesystem events, and does another operation meanwhile.

Each line of its input is a JSON list: what is in the directory at the start, the two operations, an empty
directory, and the stride. If it is 1, the first operation stops at each event, one per run. For each line it
prints, as JSON, the number of events at which the operation stopped, and what was wrong: a list of texts,
empty if nothing was.
"""

import json
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from itertools import count, permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import pandas as pd
from list_rules import rule

import dask_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.files import small_columns

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.listdir", "os.scandir"}
FIRST = (0, 30, 1)  # the rows of version 1; two of them are in one file
ADDED = (40, 2)  # the rows that version 2 adds
DELETED = (30, 2)  # the rows that a delete removes
NEW = (10, 20)  # the rows of the first and of the second operation
KEYED = {"partition_on": "key"}
# Operations that remove files which a running reader may have planned to read.
REPLACING = {"overwrite", "dying overwrite", "partitions", "compact", "delete"}
# An overwrite of files without a snapshot keeps no version, because there is none.
REPLACING_FOREIGN = {*REPLACING, "keeping overwrite"}
# A reader whose files are being replaced fails with one of these.
OVERTAKEN = (dask_tfrecord.NotFoundError, dask_tfrecord.CorruptRecordError)
# Operations that change no rows.
UNCHANGING = {"cleanup", "read", "read kept", "compact", "keeping compact", "index", "expire", "expire now"}
UNCHANGING |= {"repair"}

State = frozenset[int]


def rows(*numbers: int) -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": numbers, "key": [n % 10 for n in numbers]}), npartitions=1)


def write(place: Path, *numbers: int, **options: Any) -> None:
    dask_tfrecord.to_tfrecord(rows(*numbers), place, **KEYED, **options)


def write_rows(place: Path, number: int, write_id: str | None = None) -> None:
    """Add a row with a `Writer`, which knows the version that it finds when it opens the dataset."""
    with dask_tfrecord.Writer(place, **KEYED) as writer:
        writer.write(rows(number).compute())
        writer.commit(write_id=write_id)


def write_named_and_overwrite(place: Path, number: int) -> None:
    """Add a row with the id of the other operation, and replace all rows by another row."""
    write(place, number, append=True, write_id="day")
    write(place, number, overwrite=True)


def write_and_die(place: Path, number: int) -> None:
    with patch.object(transaction, "remove_replaced", lambda *args: None):
        write(place, number, overwrite=True)


def delete(place: Path, **options: Any) -> None:
    dask_tfrecord.open_dataset(place).delete([("n", "in", DELETED)], **options)


def repair(place: Path) -> None:
    """Repair a dataset of which no file is missing, although files may move."""
    if lost := dask_tfrecord.open_dataset(place).repair().details["lost_files"]:
        raise AssertionError(f"repair drops {sorted(lost)}")


def read(place: Path, **options: Any) -> State:
    """Return the rows; none if there is no dataset. Raise if a row is doubled."""
    try:
        ddf = dask_tfrecord.read_tfrecord(place, **options)
    except FileNotFoundError:
        if dask_tfrecord.exists(place):
            raise
        return frozenset()
    found = ddf["n"].compute().tolist()
    if len(set(found)) < len(found):
        raise AssertionError(f"doubled rows: {sorted(found)}")
    return frozenset(found)


def read_kept(place: Path) -> State | None:
    """Return the rows of version 1, or None if the version has expired before the read was planned."""
    try:
        found = dask_tfrecord.read_tfrecord(place, version=1)["n"]
    except FileNotFoundError:
        if 1 in dask_tfrecord.open_dataset(place).history()["version"].tolist():
            raise
        return None
    return frozenset(found.compute().tolist())


def prepare(start: str, place: Path) -> None:
    if start == "nothing":
        return
    write(place, *FIRST, columnar=["n"] if start == "columns" else "auto")
    write(place, *ADDED, append=True)
    if start == "lists":  # two older lists, of which a reader opens one later than the newest version
        with rule("delta"):
            write(place, 50, append=True)
    if start == "foreign":
        shutil.rmtree(place / "_tfrecord")
        for at, path in enumerate(sorted(place.glob("*/part-*"))):
            path.rename(path.with_name(f"{at}.tfrecord"))
    if start == "kept":
        delete(place, keep_versions=True)


OPERATIONS: dict[str, Callable[[Path, int], Any]] = {
    "create": lambda place, number: write(place, number),
    "append": lambda place, number: write(place, number, append=True),
    "writer": write_rows,
    "named append": lambda place, number: write(place, number, append=True, write_id="day"),
    "named writer": lambda place, number: write_rows(place, number, "day"),
    "named then overwrite": write_named_and_overwrite,
    "overwrite": lambda place, number: write(place, number, overwrite=True),
    "partitions": lambda place, number: write(place, number, overwrite="partitions"),
    "dying overwrite": write_and_die,
    "keeping overwrite": lambda place, number: write(place, number, overwrite=True, keep_versions=True),
    "compact": lambda place, number: dask_tfrecord.open_dataset(place).compact(),
    "keeping compact": lambda place, number: dask_tfrecord.open_dataset(place).compact(keep_versions=True),
    "delete": lambda place, number: delete(place),
    "keeping delete": lambda place, number: delete(place, keep_versions=True),
    "restore": lambda place, number: dask_tfrecord.open_dataset(place).restore(1),
    "expire": lambda place, number: dask_tfrecord.open_dataset(place).expire(versions=1),
    "expire now": lambda place, number: dask_tfrecord.open_dataset(place).expire(versions=1, grace="0s"),
    "index": lambda place, number: dask_tfrecord.open_dataset(place).add_snapshot(columnar=["n"]),
    "repair": lambda place, number: repair(place),
    "cleanup": lambda place, number: dask_tfrecord.open_dataset(place).cleanup(),
    "read": lambda place, number: read(place),
    "read kept": lambda place, number: read_kept(place),
}


def applied(operation: str, number: int, state: State) -> State:
    """Return the rows after an operation that succeeded."""
    if operation in UNCHANGING:
        return state
    if operation == "restore":
        return frozenset(FIRST)
    # The other operation has the same id.
    if operation in ("named append", "named writer") and state.intersection(NEW):
        return state
    if operation.endswith("delete"):
        return state.difference(DELETED)
    kept = frozenset() if operation.endswith("overwrite") else state
    if operation == "partitions":
        kept = frozenset(n for n in state if n % 10 != number % 10)
    return kept | {number}


class Stopping:
    """An audit hook. It does ``meanwhile`` before the event with the given number of the operation."""

    def __init__(self) -> None:
        self.number, self.place, self.meanwhile = -1, "", lambda: None
        self.done = 0
        sys.addaudithook(self.note)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.place and event in EVENTS and self.place in str(arguments[0]):
            self.done += 1
            if self.done == self.number + 1:
                place, self.place = self.place, ""
                self.meanwhile()
                self.place = place


def attempt(operation: str, place: Path, number: int) -> Any:
    """Do an operation. Return its result, or the exception that it raised."""
    try:
        return OPERATIONS[operation](place, number)
    except Exception as error:  # the caller judges it
        return error


def check(
    place: Path, start: State, operations: tuple[str, str], results: list[Any], replacing: set[str]
) -> None:
    """Raise AssertionError if the results or the files are wrong after both operations."""
    succeeded = []
    for operation, other, result, number in zip(operations, reversed(operations), results, NEW, strict=True):
        if not isinstance(result, Exception):
            succeeded.append((operation, number))
            continue
        fails: tuple[type[Exception], ...] = ()
        if operation.startswith("index"):  # the other may have replaced the files that index describes again
            fails = (dask_tfrecord.ConcurrentWriteError, dask_tfrecord.DestinationError)
        elif operation == "create":
            fails = (dask_tfrecord.DestinationError,)
        elif operation not in {*UNCHANGING, "delete", "keeping delete"}:
            fails = (dask_tfrecord.ConcurrentWriteError,)
        if operation in ("read", "read kept", "index", "restore") and other in replacing:
            fails += OVERTAKEN
        if operation == "read kept" and other == "expire now":
            fails += OVERTAKEN
        if operation == "restore" and other.startswith("expire"):
            fails += OVERTAKEN
        if not isinstance(result, fails):
            raise AssertionError(f"{operation}: {''.join(traceback.format_exception(result))}")
    possible = set()
    for order in permutations(succeeded):
        states = [start]
        for operation, number in order:
            states.append(applied(operation, number, states[-1]))
        possible.add(states[-1])
    found = read(place)
    if found not in possible:
        raise AssertionError(f"{sorted(found)}, not one of {sorted(map(sorted, possible))}")
    if operations[0].startswith("read") and not isinstance(results[0], Exception):
        seen = {start, *possible} if operations[0] == "read" else {frozenset(FIRST)}
        if operations[1] in replacing or operations[1].startswith("expire"):
            seen.add(None)
        if results[0] not in seen:
            raise AssertionError(f"read {results[0]}, not one of {seen}")
    if dask_tfrecord.exists(place) and (without := read(place, use_snapshot=False)) != found:
        raise AssertionError(f"without the snapshot {sorted(without)}, not {sorted(found)}")
    dask_tfrecord.open_dataset(place).cleanup(older_than="0s")
    if read(place) != found:
        raise AssertionError(f"after cleanup {sorted(read(place))}, not {sorted(found)}")
    if (place / "_tfrecord").exists():
        dask_tfrecord.open_dataset(place).expire(
            versions=1_000, grace="0s"
        )  # removes the files of expired versions
    check_files(place)


def check_files(place: Path) -> None:
    """Raise AssertionError if a version is not readable, or if a file belongs to none."""
    present = {
        str(path.relative_to(place)).removeprefix("_tfrecord/kept/") for path in place.rglob("*.tfrecord")
    }
    if not (place / "_tfrecord").exists():
        return
    present |= {str(path.relative_to(place)) for path in place.glob("_tfrecord/columns/*")}
    listed = set()
    for version in dask_tfrecord.open_dataset(place).history()["version"].tolist():
        snapshot = Snapshot.open(place, version=version)
        listed |= {file.path for file in snapshot.files}
        listed |= {file.columns.path for file in snapshot.files if file.columns}
        if len(read(place, version=version)) != snapshot.records:
            raise AssertionError(f"version {version} has other rows")
    if listed != present:
        raise AssertionError(f"unlisted or missing after cleanup: {sorted(listed ^ present)}")
    if (place / "_tfrecord" / "staging").exists():
        raise AssertionError("staging is left after cleanup")


def interleave(
    stopping: Stopping, start: str, operations: tuple[str, str], directory: Path, stride: int
) -> tuple[int, list[str]]:
    wrong = []
    origin = directory / "start"
    prepare(start, origin)
    old = read(origin)
    for number in count(0, stride):
        place = directory / str(number)
        if origin.exists():
            shutil.copytree(origin, place)
        results: list[Any] = [None, None]

        def meanwhile(place: Path = place, results: list[Any] = results) -> None:
            results[1] = attempt(operations[1], place, NEW[1])

        stopping.number, stopping.done, stopping.meanwhile = number, 0, meanwhile
        stopping.place = str(place)
        results[0] = attempt(operations[0], place, NEW[0])
        stopping.place = ""
        total = stopping.done
        if total <= number:
            meanwhile()
        try:
            check(place, old, operations, results, REPLACING_FOREIGN if start == "foreign" else REPLACING)
        except Exception as error:  # also one that a read raises
            text = (
                "".join(traceback.format_exception(error))
                if not isinstance(error, AssertionError)
                else str(error)
            )
            wrong.append(f"at event {number}: {text}")
        shutil.rmtree(place, ignore_errors=True)
        if total <= number:
            break
    return number // stride, wrong


if __name__ == "__main__":
    stopping = Stopping()
    small_columns.LEAST_FILE_BYTES = small_columns._PART = 1  # all columns of all files are small
    with dask.config.set(scheduler="sync"), warnings.catch_warnings():
        for line in sys.stdin:
            start, first, second, directory, stride = json.loads(line)
            try:
                answer = interleave(stopping, start, (first, second), Path(directory), stride)
            except Exception:
                answer = (0, [traceback.format_exc()])
            print(json.dumps(answer), flush=True)
    os._exit(0)
