"""Run a client of the soak, which writes, reads and cleans up the dataset in random order.

The client reports each operation twice: when the operation begins, and when it has ended.
"""

import logging
import random
import time
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client

import dask_tfrecord
from benchmarks.soak_model import Chunk, Seen, Write
from dask_tfrecord.dataset.write import run as write_run

KEYS = "abcde"
WEIGHTS = {
    "append": 6,
    "writer": 6,
    "overwrite": 2,
    "partitions": 4,
    "read": 5,
    "read version": 3,
    "verify": 1,
    "cleanup": 1,
}
MODES: dict[str, dict[str, Any]] = {
    "append": {"append": True},
    "writer": {},
    "overwrite": {"overwrite": True},
    "partitions": {"overwrite": "partitions"},
}
# This age is longer than any write, but shorter than the soak, so `cleanup` removes files of killed writes.
CLEANUP_AGE = "2 minutes"


@dataclass(frozen=True)
class Event:
    """Report the beginning or the end of an operation.

    Attributes
    ----------
    number : int
        The number of the operation, which is also the id of a write.
    kind : str
        A key of ``WEIGHTS``.
    write : Write, optional
        The rows and the mode of a write.
    when : float
        The time of ``time.monotonic``, in seconds, which all processes share.
    ended : bool
        False at the beginning of an operation, True at its end.
    error, message : str
        The class and the text of the exception that ended the operation; empty if it succeeded.
    version : int, optional
        The version that a read asked for.
    seen : dict, optional
        The result of a read.
    """

    number: int
    kind: str
    write: Write | None = None
    when: float = field(default_factory=time.monotonic)
    ended: bool = False
    error: str = ""
    message: str = ""
    version: int | None = None
    seen: dict[Chunk, Seen] | None = None


def run(address: str, path: str, orders: Connection, id_bits: int, client: int) -> None:
    """Do the operations of each order. An order has a seed, the first number, a count, and rows."""
    if id_bits < 128:
        shorten_ids(id_bits, client)
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it warns of killed workers
    with Client(address):
        while True:
            orders.send("ready")
            seed, first, count, rows = orders.recv()
            choices = random.Random(seed)
            for number in range(first, first + count):
                event = begin(choices, number, rows)
                orders.send(event)
                result = operate(event, choices, path)
                orders.send(replace(event, ended=True, when=time.monotonic(), **result))
            orders.send("done")


def shorten_ids(bits: int, client: int) -> None:
    """Draw the ids of writes with few random bits, which are in their first 8 digits.

    The last digits of an id are the number of the client. Two writes that run at the same time never get the
    same id, because neither write could see the other. The ids of a `Writer` have all bits, because a new id
    is compared only with the ids of the version that the `Writer` knows.
    """

    def draw() -> SimpleNamespace:
        return SimpleNamespace(hex=f"{random.SystemRandom().getrandbits(bits):08x}{client:024x}")

    write_run.uuid4 = draw


def begin(choices: random.Random, number: int, rows: int) -> Event:
    (kind,) = choices.choices([*WEIGHTS], [*WEIGHTS.values()])
    keys = tuple(choices.sample(KEYS, choices.randint(1, len(KEYS))))
    return Event(number, kind, Write(number, kind, keys, rows) if kind in MODES else None)


def operate(event: Event, choices: random.Random, path: str) -> dict[str, Any]:
    """Do an operation, and return the fields of its result."""
    result: dict[str, Any] = {}
    try:
        if event.write:
            write_rows(event.write, path, choices)
        elif event.kind == "verify":
            dask_tfrecord.verify(path)
        elif event.kind == "cleanup":
            dask_tfrecord.cleanup(path, older_than=CLEANUP_AGE)
        else:
            if event.kind == "read version":
                versions = dask_tfrecord.Snapshot.history(path)["version"]
                result["version"] = choices.choice(versions.tolist())
            result["seen"] = read_rows(path, result.get("version"))
    except Exception as failure:  # any failure is an outcome, which the parent judges
        result |= {"error": type(failure).__name__, "message": str(failure)}
    return result


@cache
def writer(path: str) -> dask_tfrecord.Writer:
    """Return a writer that stays open, so that other writes often change the dataset between its commits."""
    return dask_tfrecord.Writer(path, partition_on="key", max_bytes_per_file="16 KiB")


def write_rows(write: Write, path: str, choices: random.Random) -> None:
    if write.mode == "writer":
        try:
            for part in np.array_split(np.arange(write.rows), 4):
                writer(path).write(frame(write)[lambda rows, part=part: rows["n"].isin(part)])
                time.sleep(choices.uniform(0, 0.1))  # so that faults happen in the middle of a write
            writer(path).commit()
        except Exception as error:  # the rows of a failed write must not be in the next commit
            writer(path).__exit__(type(error), error, None)
            writer.cache_clear()
            raise
        return
    ddf = dd.from_pandas(frame(write), npartitions=choices.randint(1, 4), sort=False)
    ddf = ddf.map_partitions(slowly, choices.uniform(0, 0.5), meta=ddf._meta)
    codec = choices.choice([None, "gzip"])
    dask_tfrecord.to_tfrecord(ddf, path, partition_on="key", compression=codec, **MODES[write.mode])


def slowly(part: pd.DataFrame, seconds: float) -> pd.DataFrame:
    """Take time, so that faults happen in the middle of a write."""
    time.sleep(seconds)
    return part


def frame(write: Write) -> pd.DataFrame:
    """Return the rows of a write. The text of a row repeats its other columns."""
    numbers = [(key, n) for n in range(write.rows) for key in write.keys]
    rows = pd.DataFrame(numbers, columns=["key", "n"]).assign(write=write.id)
    return rows.assign(text=texts(rows))


def texts(rows: pd.DataFrame) -> "pd.Series[str]":
    return rows["write"].astype(str) + "-" + rows["key"].astype(str) + "-" + rows["n"].astype(str)


def read_rows(path: str, version: int | None = None, **compute: Any) -> dict[Chunk, Seen]:
    """Read the dataset and describe its chunks."""
    rows = dask_tfrecord.read_tfrecord(path, version=version).compute(**compute)
    rows["key"] = rows["key"].astype(str)
    rows["changed"] = rows["text"].astype(str) != texts(rows)
    chunks = rows.groupby(["write", "key"])
    described = chunks.agg(rows=("n", "size"), distinct=("n", "nunique"), changed=("changed", "sum"))
    return {
        (int(write), str(key)): Seen(int(row["rows"]), int(row["distinct"]), int(row["changed"]))
        for (write, key), row in described.iterrows()
    }
