"""Time an epoch with ``elastic=64`` and a mixture of four datasets, beside the plain feed of the same rows.

``python -m benchmarks.own.elastic`` prints the ratios: the rows per second of each feed, divided by those of
the plain feed with the same shuffle. The feeds take turns, so a ratio compares two feeds within a round.
"""

import sys
import time
from collections.abc import Iterable
from itertools import product
from statistics import median
from typing import Any

import pyarrow as pa

import dask_tfrecord
from dask_tfrecord import feed

from .tables import InMemory, scaled_table, table_collection

SEQUENCES = 64
SHUFFLES = ("no shuffle", "buffer", "blocks")
FEEDS = ("plain", f"elastic={SEQUENCES}", "mixture of 4")
TABLES = {"tabular 256": 256, "tabular 8192": 8192, "images 64": 64}
# The rows of each source of the mixture, as parts of all rows, and its weights.
SHARES = (0.4, 0.3, 0.2, 0.1)


def write(root: str, name: str) -> None:
    """Write a table as one dataset, and in four parts."""
    batch = scaled_table(name).batch
    dask_tfrecord.to_tfrecord(table_collection(batch), f"{root}/data")
    start = 0
    for number, share in enumerate(SHARES):
        length = int(batch.num_rows * share)
        part = pa.Table.from_batches([batch.slice(start, length)])
        dask_tfrecord.to_tfrecord(part, f"{root}/source-{number}")
        start += length


def batches(root: str, kind: str, shuffle: str, size: int, **options: Any) -> Iterable[pa.RecordBatch]:
    """Begin an epoch of a feed."""
    if shuffle != "no shuffle":
        options |= {"shuffle": shuffle, "seed": 1}
    if kind.startswith("mixture"):
        sources = {f"{root}/source-{number}": share for number, share in enumerate(SHARES)}
        return feed.mix(sources, size, **options)
    if kind.startswith("elastic"):
        options["elastic"] = SEQUENCES
    return feed.iter_batches(f"{root}/data", size, **options)


class Elastic(InMemory):
    """Read an epoch of one rank."""

    params = (list(TABLES), list(FEEDS), list(SHUFFLES))
    param_names = ("table and batch size", "feed", "shuffle")
    timer = time.process_time

    def setup(self, name: str, kind: str, shuffle: str) -> None:
        super().setup()
        write(self.root, name.split()[0])

    def time_epoch(self, name: str, kind: str, shuffle: str) -> None:
        for _ in batches(self.root, kind, shuffle, TABLES[name]):
            pass


class ManyRanks(InMemory):
    """Read the batches of one of eight ranks, which has eight of 64 sequences."""

    params = (list(SHUFFLES),)
    param_names = ("shuffle",)
    timer = time.process_time

    def setup(self, shuffle: str) -> None:
        super().setup()
        write(self.root, "tabular")

    def time_epoch(self, shuffle: str) -> None:
        for _ in batches(self.root, f"elastic={SEQUENCES}", shuffle, 256, shard=(3, 8)):
            pass


# -- What is printed -----------------------------------------------------------------------------------------


def rates(epoch: Iterable[pa.RecordBatch]) -> tuple[float, float]:
    """Read an epoch, and return rows per CPU second and per second. The plan of the epoch is not counted."""
    cpu, wall = time.process_time(), time.perf_counter()
    rows = sum(batch.num_rows for batch in epoch)
    return rows / (time.process_time() - cpu), rows / (time.perf_counter() - wall)


def ratios(root: str, shuffle: str, size: int, rounds: int) -> list[str]:
    """Return the rates of the plain feed, and the ratios of the others."""
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in FEEDS}
    for _ in range(rounds + 1):
        for kind in FEEDS:
            found[kind].append(rates(batches(root, kind, shuffle, size)))
    plain, *others = (one[1:] for one in found.values())
    cells = [f"{median(rate[at] for rate in plain):12,.0f}" for at in (0, 1)]
    for one, at in product(others, (0, 1)):
        values = [a[at] / b[at] for a, b in zip(one, plain, strict=True)]
        cells.append(f"{median(values):6.2f} ({min(values):.2f} to {max(values):.2f})")
    return cells


def show(rounds: int) -> None:
    """Print a line for each table and shuffle."""
    print("rows per CPU s and per s of the plain feed; both ratios of elastic=64, and of the mixture")
    for name, size in TABLES.items():
        place = InMemory()
        place.setup()
        try:
            write(place.root, name.split()[0])
            for shuffle in SHUFFLES:
                print(f"{name:14}{shuffle:12}", *ratios(place.root, shuffle, size, rounds), flush=True)
        finally:
            place.teardown()


if __name__ == "__main__":
    show(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
