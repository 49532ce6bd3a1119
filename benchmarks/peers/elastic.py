"""Compare elastic epochs and mixtures of datasets with plain epochs, and with MosaicML streaming and Grain.

One rank reads the same rows in each way. An elastic epoch is divided into 64 sequences: `elastic=64`, 64
canonical nodes of MosaicML streaming, and Grain's `ElasticIterator`, which needs no such number. A mixture
has four sources with the weights 0.4, 0.3, 0.2 and 0.1, and as many rows as the plain epoch. Each way runs in
a process of its own; the processes take turns, and a ratio compares two ways within a round.

In memory, MosaicML streaming and Grain read packed records from files in their own formats, as in the suite
`feeds`, and fewer rows, because they handle each row in Python. Grain's `ElasticIterator` accepts no batches.
Through the link, `benchmarks/peers/store.py` describes the store and the images. An epoch runs in a new
process without a training step, and its time begins after the imports. Grain reads no S3.
"""

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import dask_tfrecord
from benchmarks.own.elastic import SEQUENCES, SHARES
from benchmarks.own.store import HELPERS, LATENCY, RATE, options
from benchmarks.own.tables import memory_folder, tabular
from benchmarks.peers import feed_loaders
from benchmarks.peers.feed_loaders import Work, unpacked
from benchmarks.peers.report import formats, round_ratios, rounded, save, stored
from benchmarks.peers.store import images
from benchmarks.peers.workers import Worker, measured, serve, versions

# The table, the rows, the rows of a sample for packages that handle rows in Python, and the rows of a batch.
MEMORY = {
    "tabular 256": ("tabular", 1_000_000, 24_576, 256),
    "tabular 8192": ("tabular", 1_000_000, 24_576, 8192),
    "images 64": ("images", 5_000, 1_280, 64),
}
LINKED = ("images through the link", "tabular through the link")
STORE_ROWS = 400_000  # of a table, about 100 MB
PLAIN, ELASTIC, MIXTURE = "plain", "elastic", "mixture of 4"
FEEDS = (PLAIN, ELASTIC, MIXTURE)
SLOW_SECONDS = 3.0  # a way with more CPU seconds for a pass gets no pass to warm up in each round
LIMIT = 300.0
PACKAGES = ["torch", "mosaicml-streaming", "grain", "array_record", "pyarrow", "numpy", "s3fs", "moto"]
OURS, MOSAIC, GRAIN = "dask_tfrecord", "MosaicML streaming", "Grain"
NEEDS = {OURS: (), MOSAIC: ("streaming", "torch"), GRAIN: ("grain", "array_record")}

Cells = dict[str, dict[str, str]]


class Way(NamedTuple):
    """A package, one of its feeds, and whether the rows are shuffled."""

    package: str
    feed: str
    shuffled: bool

    def __str__(self) -> str:
        return f"{self.package}, {self.feed}{', shuffled' if self.shuffled else ''}"


WAYS = [Way(package, feed, shuffled) for package in NEEDS for shuffled in (False, True) for feed in FEEDS]


# -- In memory -----------------------------------------------------------------------------------------------


def source(work: Work, number: int) -> Work:
    """Return one source of the mixture."""
    rows, sample = (int(count * SHARES[number]) for count in (work.rows, work.sample))
    return work._replace(path=f"{work.path}-{number}", rows=rows, sample=sample)


def sources(work: Work) -> list[Work]:
    return [source(work, number) for number in range(len(SHARES))]


def ours(work: Work, way: Way) -> Iterable[int]:
    return (batch.num_rows for batch in our_batches([work.path], sources(work), work.batch_size, way))


def our_batches(paths: list[str], parts: list[Work], size: int, way: Way, **read: Any) -> Iterable[Any]:
    how: dict[str, Any] = {"shuffle": True, "seed": 1, **read} if way.shuffled else read
    if way.feed == MIXTURE:
        weights = {part.path: share for part, share in zip(parts, SHARES, strict=True)}
        return dask_tfrecord.feed.mix(weights, size, **how)
    if way.feed == ELASTIC:
        how["elastic"] = SEQUENCES
    return dask_tfrecord.feed.iter_batches(paths[0], size, **how)


def mosaic(work: Work, way: Way) -> Iterable[int]:
    from torch.utils.data import DataLoader

    def local(one: Work) -> str:  # two datasets of a process may not share a directory
        link = Path(f"{one.path}.mds.{way.feed}.{way.shuffled}".replace(" ", "-"))
        link.symlink_to(f"{one.path}.mds")
        return str(link)

    folders = [local(one) for one in (sources(work) if way.feed == MIXTURE else [work])]
    data = mosaic_dataset(way, work.batch_size, [{"local": folder} for folder in folders])
    collate = partial(feed_loaders._unpacked_dicts, work.table)
    loader = DataLoader(data, work.batch_size, num_workers=0, collate_fn=collate)
    return Again(lambda: (len(batch["label"]) for batch in loader))


def mosaic_dataset(way: Way, batch_size: int, places: list[dict[str, Any]]) -> Any:
    from streaming import Stream, StreamingDataset

    how: dict[str, Any] = {"shuffle": way.shuffled, "batch_size": batch_size}
    if way.feed == ELASTIC:
        how["num_canonical_nodes"] = SEQUENCES
    if way.feed != MIXTURE:
        return StreamingDataset(**places[0], **how)
    streams = [Stream(**place, proportion=share) for place, share in zip(places, SHARES, strict=True)]
    return StreamingDataset(streams=streams, **how)


class Again:
    """An iterable that begins anew at each iteration."""

    def __init__(self, begin: Callable[[], Iterable[int]]) -> None:
        self._begin = begin

    def __iter__(self) -> Any:
        return iter(self._begin())


def grain(work: Work, way: Way) -> Iterable[int]:
    import grain.python as grain
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from grain.experimental import ElasticIterator

    def records(one: Work) -> Any:
        found = grain.MapDataset.source(ArrayRecordDataSource(f"{one.path}.array_record"))
        return found.seed(1).shuffle() if way.shuffled else found

    def rows(batch: list[bytes]) -> int:
        return len(unpacked(work.table, batch)["label"])

    if way.feed == ELASTIC:
        dtype = feed_loaders._dtype(work.table)

        def begin() -> Iterable[int]:
            # Its own batches of equally long arrays of bytes take less time than batches of columns.
            arrays = records(work).map(lambda record: np.frombuffer(record, np.uint8))
            shards = grain.ShardOptions(shard_index=0, shard_count=1)
            for batch in ElasticIterator(arrays, work.batch_size, shards):
                numbers = np.ascontiguousarray(batch[:, : dtype.itemsize]).view(dtype)[:, 0]
                yield len({name: np.ascontiguousarray(numbers[name]) for name in dtype.names or ()}["label"])

        return Again(begin)
    found = records(work)
    if way.feed == MIXTURE:
        found = grain.MapDataset.mix([records(one) for one in sources(work)], SHARES)
    return Again(lambda: found.batch(work.batch_size, batch_fn=rows).to_iter_dataset())


READERS: dict[str, Callable[[Work, Way], Iterable[int]]] = {OURS: ours, MOSAIC: mosaic, GRAIN: grain}


def serve_way(way: Way, work: Work) -> None:
    """Read an epoch for each question, and answer with its figures."""
    for package in NEEDS[way.package]:
        importlib.import_module(package)
    begun: list[Iterable[int]] = []

    def read() -> int:
        if way.package == OURS:
            return sum(ours(work, way))
        if not begun:
            begun.append(READERS[way.package](work, way))
        return sum(begun[0])

    serve(lambda _: measured(read))


def in_memory(name: str, scale: float, rounds: int) -> Cells:
    """Return the figures of all ways on one table."""
    table, *sizes, batch_size = MEMORY[name]
    rows, sample = (max(10 * batch_size, int(size * scale)) for size in sizes)
    rates: dict[Way, dict[str, list[float]] | str] = {}
    with (
        tempfile.TemporaryDirectory(dir=memory_folder(), ignore_cleanup_errors=True) as root,
        ExitStack() as stack,
    ):
        work = Work(table, None, f"{root}/data", batch_size, rows, min(sample, rows))
        for one in (work, *sources(work)):
            feed_loaders.write(one)
        running: dict[Way, tuple[Worker, bool]] = {}
        for way in WAYS:
            if missing := [
                package for package in NEEDS[way.package] if not importlib.util.find_spec(package)
            ]:
                rates[way] = f"{missing[0]} is not installed"
                continue
            arguments = ["-m", "benchmarks.peers.elastic", json.dumps(way), json.dumps(work)]
            process = stack.enter_context(Worker(sys.executable, arguments, {}))
            try:
                running[way] = process, process.ask("warm up", LIMIT)["cpu"] > SLOW_SECONDS
                rates[way] = {"cpu": [], "wall": []}
            except RuntimeError as error:
                rates[way] = str(error)
        for _ in range(rounds):
            for way, (process, is_slow) in running.items():
                if not is_slow:  # a process that waits for its turn gives memory back to the system
                    process.ask("warm up", LIMIT)
                found, kept = process.ask("measure", LIMIT), rates[way]
                assert isinstance(kept, dict)
                for what in kept:
                    kept[what].append(found["rows"] / found[what])
    return {str(way): cells(way, rates) for way in WAYS}


def cells(way: Way, rates: dict[Way, dict[str, list[float]] | str]) -> dict[str, str]:
    """Return the rates of a way, and the ratios to the plain feed of the same package and shuffle."""
    heads = ["rows / CPU s", "rows / s", "of the plain feed, CPU s", "of the plain feed, s"]
    found, plain = rates[way], rates[way._replace(feed=PLAIN)]
    if isinstance(found, str):
        return dict.fromkeys(heads, "") | {heads[0]: f"failed: {found}"[:70]}
    values = [rounded(median(found[what])) for what in ("cpu", "wall")]
    is_alone = way.feed == PLAIN or isinstance(plain, str)
    values += ["" if is_alone else spread(found[what], plain[what]) for what in ("cpu", "wall")]
    return dict(zip(heads, values, strict=True))


def spread(ours: list[float], others: list[float]) -> str:
    ratios = round_ratios(ours, others)
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


# -- Through the link ----------------------------------------------------------------------------------------

BUCKET = "elastic"


def store_table(name: str) -> pa.Table:
    if name.startswith("images"):
        return images()
    rows = pa.Table.from_batches([tabular(STORE_ROWS).batch])
    return rows.append_column("label", pa.array(np.arange(STORE_ROWS)))


def parts_of(table: pa.Table) -> dict[str, pa.Table]:
    """Return the whole table, and the sources of the mixture."""
    found, start = {"all": table}, 0
    for number, share in enumerate(SHARES):
        length = int(table.num_rows * share)
        found[f"source-{number}"] = table.slice(start, length)
        start += length
    return found


def write_tfrecord(name: str, part: str, rows: pa.Table, linked: Any) -> None:
    dask_tfrecord.to_tfrecord(
        rows,
        f"s3://{BUCKET}/{name.split()[0]}/tfrecord/{part}",
        storage_options=linked.direct,
        write_options={"max_bytes_per_file": 8 << 20},
    )


def write_mds(name: str, part: str, rows: pa.Table, linked: Any) -> None:
    from streaming import MDSWriter

    if not name.startswith("images"):
        return
    with tempfile.TemporaryDirectory() as root:
        columns = {"image": "bytes", "label": "int"}
        with MDSWriter(out=f"{root}/mds", columns=columns, size_limit=8 << 20) as writer:
            for row in rows.to_pylist():
                writer.write(row)
        linked.fs.put(f"{root}/mds/", f"{BUCKET}/{name.split()[0]}/mds/{part}/", recursive=True)


def read_store(way: Way, name: str, url: str) -> int:
    size = 64 if name.startswith("images") else 8192
    parts = [f"source-{number}" for number in range(len(SHARES))]
    if way.package == OURS:
        folder, read = f"s3://{BUCKET}/{name.split()[0]}/tfrecord", {"storage_options": options(url)}
        works = [Work(name, None, f"{folder}/{part}", size, 0, 0) for part in parts]
        return sum(batch.num_rows for batch in our_batches([f"{folder}/all"], works, size, way, **read))
    from torch.utils.data import DataLoader

    os.environ["S3_ENDPOINT_URL"] = url
    places = [
        {"remote": f"s3://{BUCKET}/{name.split()[0]}/mds/{part}", "local": tempfile.mkdtemp()}
        for part in (parts if way.feed == MIXTURE else ["all"])
    ]
    data = mosaic_dataset(way, size, places)
    return sum(map(len, DataLoader(data, size, num_workers=0, collate_fn=list)))


def serve_store(way: Way, name: str, url: str) -> None:
    for module in (*NEEDS[way.package], "s3fs", "dask_tfrecord.feed"):
        importlib.import_module(module)
    serve(lambda _: measured(lambda: read_store(way, name, url)))


def through_link(name: str, rounds: int) -> Cells:
    """Return rows per second and requests of the ways that read S3."""
    sys.path.append(str(HELPERS))
    from servers import linked_s3_server

    packages = [OURS, MOSAIC] if name.startswith("images") else [OURS]
    ways = [way for way in WAYS if way.package in packages]
    found: dict[Way, dict[str, list[float]] | str] = {}
    with linked_s3_server() as linked:
        linked.fs.call_s3("create_bucket", Bucket=BUCKET)
        for part, rows in parts_of(store_table(name)).items():
            write_tfrecord(name, part, rows, linked)
            if MOSAIC in packages and importlib.util.find_spec("streaming"):
                write_mds(name, part, rows, linked)
        for number in range(rounds + 1):
            for way in ways:
                if isinstance(found.get(way), str):
                    continue
                try:
                    figures = link_epoch(way, name, linked.link)
                except RuntimeError as error:
                    found[way] = str(error)
                    continue
                if number:  # the first round warms the caches of the system
                    kept = found.setdefault(way, {what: [] for what in figures})
                    assert isinstance(kept, dict)
                    for what, figure in figures.items():
                        kept[what].append(figure)
    return {str(way): link_cells(way, found) for way in ways}


def link_epoch(way: Way, name: str, link: Any) -> dict[str, float]:
    environment = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    if missing := [package for package in NEEDS[way.package] if not importlib.util.find_spec(package)]:
        raise RuntimeError(f"{missing[0]} is not installed")
    arguments = ["-m", "benchmarks.peers.elastic", json.dumps(way), name, link.url]
    with (
        Worker(sys.executable, arguments, environment) as process,
        link.slow(LATENCY, RATE),
        link.recording() as traffic,
    ):
        found = process.ask("epoch", 120)
    return {"rate": found["rows"] / found["wall"], "requests": len(traffic), "MB": traffic.bytes_read / 1e6}


def link_cells(way: Way, rates: dict[Way, dict[str, list[float]] | str]) -> dict[str, str]:
    heads = ["rows / s", "of the plain feed", "requests", "MB read"]
    found, plain = rates[way], rates[way._replace(feed=PLAIN)]
    if isinstance(found, str):
        return dict.fromkeys(heads, "") | {heads[0]: f"failed: {found}"[:70]}
    ratio = "" if way.feed == PLAIN or isinstance(plain, str) else spread(found["rate"], plain["rate"])
    numbers = [f"{median(found[what]):,.0f}" for what in ("requests", "MB")]
    return dict(zip(heads, [rounded(median(found["rate"])), ratio, *numbers], strict=True))


# -- The suite -----------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    """Measure all ways in memory and through the link."""
    tables: dict[str, Cells] = stored("elastic").get("tables", {})
    for name in arguments.datasets or [*MEMORY, *LINKED]:
        if name in MEMORY:
            tables[name] = in_memory(name, arguments.scale, arguments.rounds)
        else:
            tables[name] = through_link(name, arguments.rounds)
        print(formats.table(name, tables[name]), flush=True)
        if arguments.store:
            about = f"{versions(PACKAGES)}; median of {arguments.rounds} rounds."
            save("elastic", {"about": about, "tables": tables})


if __name__ == "__main__":  # a way in a process of its own
    way = Way(*json.loads(sys.argv[1]))
    if len(sys.argv) == 3:
        serve_way(way, Work(*json.loads(sys.argv[2])))
    else:
        serve_store(way, *sys.argv[2:])
