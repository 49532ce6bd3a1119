"""Compare reads, writes and feeds of a remote store behind a slow link, in seconds, MB/s and requests.

The store is the S3 server of the tests, and `benchmarks/own/store.py` describes the link and the rows. Tools
take turns. The same rows have fewer bytes in Parquet, so both the seconds and the MB/s are shown. "Plain
bytes" are bytes without a format, which no format can beat by much: a read lists the files and requests
their ranges of 8 MiB, 16 at a time, and a write is `pipe_file` of s3fs in parts of 8 MiB. obstore's
filesystem takes part if it is installed.

A loader shuffles 1,200 images of 50 kB, in batches of 32. A training step takes 20 ms. A request takes 30 ms
longer, and the rate of a connection has no limit. Each epoch runs in a new process, and its time begins after
the imports. A loader that is not installed or fails is listed with its error. Grain reads no S3, and
TensorFlow reads it only with tensorflow-io, which has no wheel for its current version.
"""

import argparse
import importlib
import io
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import dask_tfrecord
from benchmarks.own.store import HELPERS, LATENCY, Transfers, measured_parts, options, seconds
from benchmarks.peers.report import formats, save
from benchmarks.peers.workers import Worker, serve, versions

IMAGES, IMAGE_BYTES, SHARD_BYTES, BATCH = 1200, 50_000, 8 << 20, 32
STEP = 0.02
PACKAGES = ["s3fs", "obstore", "pyarrow", "torch", "mosaicml-streaming", "webdataset", "litdata", "moto"]

Cells = dict[str, dict[str, str]]


# -- Reads and writes ----------------------------------------------------------------------------------------


def transfers(rounds: int) -> Cells:
    """Return the seconds and the MB/s of each tool, by jobs."""
    store = Transfers()
    try:
        content = store.fs.cat_file(store.file)
        ours = "dask_tfrecord"
        jobs: dict[str, dict[str, Callable[[], object]]] = {}
        for name, threads in (("one", 1), ("four", 4)):
            what = "one file, 1 thread" if name == "one" else "4 files, 4 threads"
            jobs[f"read {what}"] = {
                ours: lambda name=name, threads=threads: store.read(name, threads),
                "Parquet, fsspec": lambda name=name, threads=threads: store.read_parquet(name, threads),
                "Parquet, Arrow": lambda name=name, threads=threads: store.read_parquet(
                    name, threads, arrow=True
                ),
                "plain bytes": lambda name=name: store.read_ranges(name),
            }
            if find_spec("obstore"):
                jobs[f"read {what}"][f"{ours}, obstore"] = lambda name=name, threads=threads: store.read(
                    name, threads, filesystem=obstore(store)
                )
        jobs["read one gzip file, 1 thread"] = {
            ours: lambda: store.read("gzip"),
            "plain bytes": lambda: store.read_ranges("gzip"),
        }
        jobs["write one file, 1 thread"] = {
            ours: store.write,
            "Parquet, fsspec": store.write_parquet,
            "plain bytes": lambda: store.write_bytes(content),
        }
        sizes = {"one": store.size, "gzip": store.bytes_of("gzip"), "four": store.bytes_of("four")}
        return {job: cells(store, job, tools, sizes, rounds) for job, tools in jobs.items()}
    finally:
        store.close()


def cells(
    store: Transfers, job: str, tools: dict[str, Callable[[], object]], sizes: dict[str, int], rounds: int
) -> dict[str, str]:
    name = "gzip" if "gzip" in job else "four" if "4 files" in job else "one"
    took: dict[str, list[float]] = {tool: [] for tool in tools}
    for _ in range(rounds + 1):
        for tool, work in tools.items():
            took[tool].append(seconds(work))
    found = {}
    for tool in TOOLS:
        size = store.bytes_of(f"{name}.parquet") if tool.startswith("Parquet") else sizes[name]
        # The first round makes the connections.
        found[tool] = (
            f"{(middle := median(took[tool][1:])):.2f} s, {size / 1e6 / middle:.1f}" if tool in took else ""
        )
    return found


TOOLS = ["dask_tfrecord", "dask_tfrecord, obstore", "Parquet, fsspec", "Parquet, Arrow", "plain bytes"]


def obstore(store: Transfers) -> Any:
    from obstore.fsspec import FsspecStore

    return FsspecStore(
        "s3",
        endpoint=store.linked,
        access_key_id="a",
        secret_access_key="b",
        region="us-east-1",
        client_options={"allow_http": True},
    )


# -- Feeds ---------------------------------------------------------------------------------------------------


def images() -> pa.Table:
    random = np.random.default_rng(1)
    values = [random.bytes(IMAGE_BYTES) for _ in range(IMAGES)]
    return pa.table({"image": pa.array(values, pa.binary()), "label": np.arange(IMAGES)})


def write_tfrecord(table: pa.Table, linked: Any) -> None:
    dask_tfrecord.to_tfrecord(
        table,
        "s3://images/tfrecord",
        storage_options=linked.direct,
        write_options={"max_bytes_per_file": SHARD_BYTES},
    )


def write_mds(table: pa.Table, linked: Any) -> None:
    from streaming import MDSWriter

    with tempfile.TemporaryDirectory() as root:
        columns = {"image": "bytes", "label": "int"}
        with MDSWriter(out=f"{root}/mds", columns=columns, size_limit=SHARD_BYTES) as writer:
            for row in table.to_pylist():
                writer.write(row)
        linked.fs.put(f"{root}/mds/", "images/mds/", recursive=True)


def write_tar(table: pa.Table, linked: Any) -> None:
    size = SHARD_BYTES // IMAGE_BYTES
    for start in range(0, IMAGES, size):
        with (
            linked.fs.open(f"images/tar/{start:05}.tar", "wb", acl="public-read") as file,
            tarfile.open(None, "w", file) as tar,
        ):
            for row in table.slice(start, size).to_pylist():
                for suffix, data in (("jpg", row["image"]), ("cls", str(row["label"]).encode())):
                    info = tarfile.TarInfo(f"{row['label']:05}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def write_lit(table: pa.Table, linked: Any) -> None:
    from litdata.streaming.writer import BinaryWriter

    with tempfile.TemporaryDirectory() as root:
        writer = BinaryWriter(root, chunk_bytes=SHARD_BYTES)
        for number, row in enumerate(table.to_pylist()):
            writer.add_item(number, row)
        writer.done()
        writer.merge()
        linked.fs.put(f"{root}/", "images/lit/", recursive=True)


def read_tfrecord(url: str, workers: int) -> Any:
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordBatches

    batches = TFRecordBatches("s3://images/tfrecord", BATCH, shuffle=True, storage_options=options(url))
    return DataLoader(batches, None, num_workers=workers)


def read_mds(url: str, workers: int) -> Any:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    os.environ["S3_ENDPOINT_URL"] = url
    dataset = StreamingDataset(
        remote="s3://images/mds", local=tempfile.mkdtemp(), shuffle=True, batch_size=BATCH
    )
    return DataLoader(dataset, BATCH, num_workers=workers, collate_fn=list)


def read_tar(url: str, workers: int) -> Any:
    import webdataset
    from torch.utils.data import DataLoader

    size = SHARD_BYTES // IMAGE_BYTES
    shards = [f"{url}/images/tar/{start:05}.tar" for start in range(0, IMAGES, size)]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), empty_check=False)
    return DataLoader(dataset.shuffle(1000).to_tuple("jpg", "cls").batched(BATCH), None, num_workers=workers)


def read_lit(url: str, workers: int) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    access = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint_url": url}
    dataset = StreamingDataset(
        "s3://images/lit", cache_dir=tempfile.mkdtemp(), shuffle=True, storage_options=access
    )
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=list)


# The package of each loader, how its files are written, how they are read, and its worker processes.
LOADERS: dict[str, tuple[str, Callable[..., None], Callable[[str, int], Any], int]] = {
    "dask_tfrecord, no workers": ("torch", write_tfrecord, read_tfrecord, 0),
    "dask_tfrecord, 2 workers": ("torch", write_tfrecord, read_tfrecord, 2),
    "MosaicML, 2 workers": ("streaming", write_mds, read_mds, 2),
    "WebDataset, 2 workers": ("webdataset", write_tar, read_tar, 2),
    "litData, 2 workers": ("litdata", write_lit, read_lit, 2),
}


def epoch(name: str, url: str) -> dict[str, float]:
    """Open a dataset and read an epoch. Return the seconds, those until the first batch, and of waiting."""
    package, _, read, workers = LOADERS[name]
    for module in (package, "torch.utils.data", "s3fs", "dask_tfrecord.feed.torch"):
        importlib.import_module(module)
    start, waits = time.perf_counter(), []
    asked = start
    for _ in read(url, workers):
        waits.append(time.perf_counter() - asked)
        time.sleep(STEP)
        asked = time.perf_counter()
    if len(waits) < IMAGES // BATCH:
        raise RuntimeError(f"{len(waits)} batches")
    return {"first": waits[0], "waited": sum(waits), "epoch": time.perf_counter() - start}


def feeds(rounds: int) -> Cells:
    """Return the seconds and the requests of each loader."""
    sys.path.append(str(HELPERS))
    from servers import linked_s3_server

    found: Cells = {}
    with linked_s3_server() as linked:
        linked.fs.call_s3("create_bucket", Bucket="images")
        table, link = images(), linked.link
        for loader, (package, write, _, workers) in LOADERS.items():
            heads = ["first batch, s", "epoch, s", "waited, s", "requests", "at once"]
            try:
                if not find_spec(package):
                    raise RuntimeError(f"{package} is not installed")
                if not (loader.startswith("dask_tfrecord") and workers):
                    write(table, linked)
                found[loader] = dict(zip(heads, turns(loader, link, rounds), strict=True))
            except Exception as error:
                found[loader] = dict.fromkeys(heads, "") | {"first batch, s": f"failed: {error}"[:70]}
            print(loader, found[loader], flush=True)
    return found


def turns(loader: str, link: Any, rounds: int) -> list[str]:
    """Let new processes of the loader read an epoch each."""
    environment = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if loader.startswith("litData"):  # it would let obstore read the files, which refuses http
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(one for one in paths if not Path(one, "obstore").exists())
    found, requests, at_once = [], [], []
    arguments = ["-m", "benchmarks.peers.store", loader, link.url]
    for _ in range(rounds):
        with (
            Worker(sys.executable, arguments, environment) as process,
            link.slow(LATENCY),
            link.recording() as traffic,
        ):
            found.append(process.ask("epoch", 60))
        requests.append(len(traffic))
        at_once.append(traffic.at_once)
    middle = [f"{median(one[what] for one in found):.2f}" for what in ("first", "epoch", "waited")]
    return [*middle, str(int(median(requests))), str(max(at_once))]


# -- The suite -----------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    """Measure transfers and feeds, and the figures of this package alone."""
    tables: dict[str, Cells] = {}
    wanted = arguments.datasets or ["transfers", "feeds", "alone"]
    if "transfers" in wanted:
        tables["transfers: seconds, MB/s"] = transfers(arguments.rounds)
    if "feeds" in wanted:
        tables["shuffled images, 30 ms"] = feeds(arguments.rounds)
    if "alone" in wanted:
        tables["dask_tfrecord alone"] = {what: {"figure": text} for what, text in measured_parts([])}
    for name, jobs in tables.items():
        print(formats.table(name, jobs), flush=True)
    if arguments.store:
        about = f"{versions(PACKAGES)}; median of {arguments.rounds} rounds."
        save("store", {"about": about, "tables": tables})


if __name__ == "__main__":  # a loader in a process of its own
    serve(lambda _: epoch(*sys.argv[1:]))
