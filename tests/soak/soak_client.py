"""Run a client of the soak, which changes, reads and cleans up the dataset in random order.

The client reports each operation twice: when the operation begins, and when it has ended.
"""

import logging
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client
from soak_model import PARTS, Chunk, Seen, Write

import dask_tfrecord
from dask_tfrecord.dataset.rewrite import add_snapshot, compact, delete, versions
from dask_tfrecord.dataset.snapshot.model import Snapshot

KEYS = "abcde"
# The operations, and how often each is done.
WEIGHTS = {"append": 6, "writer": 6, "overwrite": 3, "partitions": 4, "delete": 4, "compact": 4, "restore": 3}
WEIGHTS |= {"expire": 2, "read": 5, "read version": 3, "verify": 1, "cleanup": 1, "index": 2, "repair": 2}
WRITES = {"append", "writer", "overwrite", "partitions", "delete", "restore"}
CHANGES = WRITES | {"compact", "expire", "index", "repair"}
MODES: dict[str, dict[str, Any]] = {
    "append": {"append": True},
    "overwrite": {"overwrite": True},
    "partitions": {"overwrite": "partitions"},
}
# The columns that only some writes have, and the types that they may have. The rows of such a write repeat
# the column "n" in these columns, and name the columns in the column "columns". In other rows, they are null.
EXTRA = {"x": ["Int32", "Int64"], "y": ["Int64"]}
# What a write or `index` stores in column files. None continues what the dataset has.
COLUMNAR: list[Any] = [None, ["n"], "scalars"]
# This age is longer than any operation, but shorter than the soak, so `cleanup` removes files of killed
# writes.
CLEANUP_AGE = "2 minutes"


@dataclass(frozen=True)
class Event:
    """Report the beginning or the end of an operation, whose number is also the id of a write.

    ``when`` is a time of ``time.monotonic``, which all processes share. ``error`` has the class of the
    exception that ended the operation, and its base classes. ``seen`` is the result of a read.
    """

    number: int
    kind: str
    write: Write | None = None
    when: float = field(default_factory=time.monotonic)
    ended: bool = False
    error: tuple[str, ...] = ()
    message: str = ""
    version: int | None = None
    seen: dict[Chunk, Seen] | None = None


def run(address: str, path: str, orders: Connection, environment: Mapping[str, str]) -> None:
    """Do the operations of each order. An order has a seed, the first number, the kinds, and rows."""
    os.environ.update(environment)
    for module in (compact, delete, versions):
        commit_late(module, "commit")
    commit_late(add_snapshot, "commit_snapshot")
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it warns of killed workers
    with Client(address):
        while True:
            orders.send("ready")
            seed, first, kinds, rows = orders.recv()
            choices, numbers = random.Random(seed), count(first)
            for kind in kinds:
                event = begin(choices, next(numbers), "read version" if kind == "restore" else kind, rows)
                ended = operate(event, choices, path, orders)
                if kind == "restore" and ended.seen is not None:
                    write = Write(next(numbers), kind, restored=frozenset(ended.seen))
                    operate(Event(write.id, kind, write, version=ended.version), choices, path, orders)
            orders.send("done")


def commit_late(module: Any, name: str) -> None:
    """Let an operation wait before it commits, so that other operations often commit first."""
    commit = getattr(module, name)

    def wait(*arguments: Any) -> Any:
        time.sleep(random.uniform(0, 1))
        return commit(*arguments)

    setattr(module, name, wait)


def begin(choices: random.Random, number: int, kind: str, rows: int) -> Event:
    keys = tuple(choices.sample(KEYS, choices.randint(1, len(KEYS))))
    write = Write(number, kind, keys, rows)
    if kind == "delete":
        parts = tuple(sorted(choices.sample(PARTS, choices.randint(1, len(PARTS)))))
        before = choices.choice([None, max(1, number - choices.randint(1, 100))])
        write = replace(write, rows=0, parts=parts, before=before)
    return Event(number, kind, write if kind in WRITES else None)


def operate(event: Event, choices: random.Random, path: str, orders: Connection) -> Event:
    """Do an operation, report its beginning and its end, and return the report of the end."""
    orders.send(replace(event, when=time.monotonic()))
    result: dict[str, Any] = {}
    try:
        result = do(event, choices, path)
    except Exception as failure:  # any failure is an outcome, which the parent judges
        names = tuple(each.__name__ for each in type(failure).__mro__)
        result = {"error": names, "message": str(failure)}
    ended = replace(event, ended=True, when=time.monotonic(), **result)
    orders.send(ended)
    return ended


def do(event: Event, choices: random.Random, path: str) -> dict[str, Any]:
    """Do an operation, and return the fields of its result."""
    keeps = choices.random() < 0.7
    if event.kind == "delete":
        assert event.write is not None
        dask_tfrecord.open_dataset(path).delete(filters_of(event.write), keep_versions=keeps)
    elif event.kind == "restore":
        assert event.version is not None
        dask_tfrecord.open_dataset(path).restore(event.version)
    elif event.write:
        write_rows(event.write, path, choices, keeps=keeps)
    elif event.kind == "compact":
        filters = choices.choice([None, [("key", "in", choices.sample(KEYS, 2))]])
        target = choices.choice(["16 KiB", "128 MiB"])
        dask_tfrecord.open_dataset(path).compact(target_bytes=target, filters=filters, keep_versions=keeps)
    elif event.kind == "expire":
        dask_tfrecord.open_dataset(path).expire(versions=choices.randint(1, 9), grace=CLEANUP_AGE)
    elif event.kind == "index":
        dask_tfrecord.open_dataset(path).add_snapshot(columnar=choices.choice(COLUMNAR))
    elif event.kind == "repair":
        if lost := dask_tfrecord.open_dataset(path).repair().details["lost_files"]:
            raise RuntimeError(f"no file was removed from outside, but repair dropped {sorted(lost)}")
    elif event.kind == "verify":
        dask_tfrecord.open_dataset(path).verify()
    elif event.kind == "cleanup":
        dask_tfrecord.open_dataset(path).cleanup(older_than=CLEANUP_AGE)
    elif event.kind == "read version":
        number = choices.choice(dask_tfrecord.open_dataset(path).history()["version"].tolist())
        return {"version": number, "seen": read_rows(path, number)}
    else:
        return {"seen": read_rows(path)}
    return {}


def filters_of(write: Write) -> list[Any]:
    """Return the filters of a delete. If the delete removes all parts, it opens no file."""
    filters: list[Any] = [("key", "in", write.keys)]
    if write.parts != PARTS:
        filters.append(("part", "in", write.parts))
    if write.before is not None:
        filters.append(("write", "<", write.before))
    return filters


def write_rows(write: Write, path: str, choices: random.Random, *, keeps: bool = False) -> None:
    if write.mode == "writer":
        append_with_writer(write, path, choices)
        return
    keywords = {**MODES[write.mode]}
    columns = {} if write.mode == "overwrite" else extra_columns(path)
    if write.mode != "append":
        keywords["keep_versions"] = keeps
    elif choices.random() < 0.5:
        keywords["schema_change"] = "add"
    if write.mode == "overwrite" or "schema_change" in keywords:
        columns |= some_columns(choices)
    ddf = dd.from_pandas(frame(write, columns), npartitions=choices.randint(1, 4), sort=False)
    ddf = ddf.map_partitions(slowly, choices.uniform(0, 0.5), meta=ddf._meta)
    keywords |= {"compression": choices.choice([None, "gzip"]), "columnar": choices.choice(COLUMNAR)}
    dask_tfrecord.to_tfrecord(ddf, path, partition_on="key", **keywords)


def append_with_writer(write: Write, path: str, choices: random.Random) -> None:
    writer, columns = _open_writers.pop() if _open_writers else new_writer(path, choices)
    rows = frame(write, columns)
    try:
        for part in np.array_split(np.arange(len(rows)), 4):
            writer.write(rows.iloc[part].to_dict("records"))
            time.sleep(choices.uniform(0, 0.1))  # so that faults happen in the middle of a write
        writer.commit()
    except Exception as error:  # the rows of a failed write must not be in the next commit
        writer.__exit__(type(error), error, None)
        raise
    _open_writers.append((writer, columns))


# The `Writer` stays open, so that other writes often change the dataset between its commits.
_open_writers: list[tuple[dask_tfrecord.Writer, dict[str, str]]] = []


def new_writer(path: str, choices: random.Random) -> tuple[dask_tfrecord.Writer, dict[str, str]]:
    """Return a writer and the extra columns of its rows."""
    columns = extra_columns(path) | some_columns(choices)
    schema = {name: dtype.lower() for name, dtype in columns.items()}
    options: dict[str, Any] = {
        "schema_change": "add",
        "partition_on": "key",
        "write_options": {"max_bytes_per_file": "16 KiB"},
    }
    return dask_tfrecord.Writer(path, schema, **options), columns


def extra_columns(path: str) -> dict[str, str]:
    """Return the extra columns of the newest version, with pandas' names of the types."""
    fields = Snapshot.open(path).schema.fields
    return {item.name: str(item.type).capitalize() for item in fields if item.name in EXTRA}


def some_columns(choices: random.Random) -> dict[str, str]:
    """Return none, some or all extra columns, each with one of its types."""
    names = choices.sample([*EXTRA], choices.randint(0, len(EXTRA)))
    return {name: choices.choice(EXTRA[name]) for name in names}


def slowly(part: pd.DataFrame, seconds: float) -> pd.DataFrame:
    """Take time, so that faults happen in the middle of a write."""
    time.sleep(seconds)
    return part


def frame(write: Write, columns: dict[str, str]) -> pd.DataFrame:
    """Return the rows of a write. The text and the extra columns of a row repeat its other columns."""
    numbers = [(key, n) for n in range(write.rows * len(PARTS)) for key in write.keys]
    rows = pd.DataFrame(numbers, columns=["key", "n"]).assign(write=write.id, columns=",".join(columns))
    rows = rows.assign(part=rows["n"] // write.rows, text=texts(rows))
    return rows.assign(**{name: rows["n"].astype(dtype) for name, dtype in columns.items()})


def texts(rows: pd.DataFrame) -> "pd.Series[str]":
    return rows["write"].astype(str) + "-" + rows["key"].astype(str) + "-" + rows["n"].astype(str)


def read_rows(path: str, version: int | None = None, **compute: Any) -> dict[Chunk, Seen]:
    """Read the dataset and describe its chunks."""
    rows = dask_tfrecord.read_tfrecord(path, version=version).compute(**compute)
    rows["key"] = rows["key"].astype(str)
    rows["changed"] = rows["text"].astype(str) != texts(rows)
    for name in EXTRA:
        expected = rows["n"].where(rows["columns"].str.contains(name), -1)
        rows["changed"] |= expected != (rows[name].fillna(-1) if name in rows else -1)
    chunks = rows.groupby(["write", "key", "part"])
    described = chunks.agg(rows=("n", "size"), distinct=("n", "nunique"), changed=("changed", "sum"))
    return {
        (int(write), str(key), int(part)): Seen(int(row["rows"]), int(row["distinct"]), int(row["changed"]))
        for (write, key, part), row in described.iterrows()
    }


def differing_filters(path: str) -> list[Any]:
    """Return the filters for which a read returns another number of rows than pandas finds in all rows."""
    rows = dask_tfrecord.read_tfrecord(path).compute(scheduler="sync")
    found = []
    for name in sorted({"n", "part", "write", *EXTRA}.intersection(rows)):
        limit = 0 if rows[name].isna().all() else int(rows[name].median())
        for filters, expected in [
            ([(name, "<", limit)], rows[name] < limit),
            ([(name, ">=", limit)], rows[name] >= limit),
            ([(name, "is", None)], rows[name].isna()),
        ]:
            read = dask_tfrecord.read_tfrecord(path, filters=filters).compute(scheduler="sync")
            if len(read) != expected.sum():
                found.append((filters, len(read), int(expected.sum())))
    return found
