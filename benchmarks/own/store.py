"""Measure reads, writes and feeds of a remote store behind a slow link, and count their trips.

``python -m benchmarks.own.store`` prints all figures, and ``... store transfers memory`` only these parts.

The store is the S3 server of the tests. Each request takes 30 ms longer than the server needs, and a
connection carries 8 MB in a second. The server and the link are processes of their own. A ratio compares two
ways within a round, in which one follows the other. A trip is what a client sends at once, and waits for.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import dask
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs

import dask_tfrecord
from dask_tfrecord.feed import RecordTable, iter_batches

from .tables import collection, compute_and_drop, memory_folder, scaled, slices, tabular, to_pandas

HELPERS = Path(__file__).parents[2] / "tests" / "helpers"
LATENCY, RATE = 0.03, 8e6  # seconds of a request, and bytes that a connection carries in a second
PART = 8 << 20  # bytes of a range or of a part
AT_ONCE = 16
ROUNDS = 3
ROWS = 400_000  # 101 MB of TFRecord, 34 MB of Parquet
STEP = 0.1  # seconds of a training step


# -- The store -------------------------------------------------------------------------------------------


@contextmanager
def helper(script: str, *arguments: Any) -> Iterator[str]:
    """Run a script of the tests, which prints a URL and ends with its standard input."""
    command = [sys.executable, str(HELPERS / script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def options(url: str, **more: Any) -> dict[str, Any]:
    region = {"region_name": "us-east-1"}
    return {"key": "a", "secret": "b", "endpoint_url": url, "client_kwargs": region, **more}


def is_data(path: str) -> bool:
    return path.rpartition("/")[2].startswith("part")


class SlowStore:
    """An S3 server, with a bucket, that is reached at once or through slow links."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.url = self._stack.enter_context(helper("servers.py"))
        self.direct = options(self.url)
        self.fs = fsspec.filesystem("s3", **self.direct)
        self.fs.call_s3("create_bucket", Bucket="bucket")

    def link(self, latency: float = LATENCY, rate: float = RATE) -> str:
        """Open a link, and return its URL."""
        return self._stack.enter_context(helper("store_link.py", self.url, latency, rate))

    def close(self) -> None:
        self._stack.close()


class Transfers(SlowStore):
    """Reads and writes of the same rows as TFRecord, Parquet, and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.linked = self.link()
        self.slow = options(self.linked)
        # What moves bytes and nothing else may use as many connections as it likes.
        self.plain = fsspec.filesystem("s3", **self.slow, config_kwargs={"max_pool_connections": 2 * AT_ONCE})
        self.arrow = pyarrow.fs.S3FileSystem(
            endpoint_override=self.linked.removeprefix("http://"),
            scheme="http",
            access_key="a",
            secret_key="b",
            region="us-east-1",
        )
        parts = [to_pandas(part) for part in slices(tabular(scaled(ROWS)).batch, 4)]
        self.four, self.one = collection(parts), collection([pd.concat(parts, ignore_index=True)])
        for name, rows, codec in (
            ("one", self.one, None),
            ("gzip", self.one, "gzip"),
            ("four", self.four, None),
            ("small", self.one.head(8, npartitions=1, compute=False), None),
        ):
            dask_tfrecord.to_tfrecord(
                rows, f"s3://bucket/{name}", compression=codec, storage_options=self.direct
            )
        for name, rows in (("one", self.one), ("four", self.four)):
            rows.to_parquet(
                f"s3://bucket/{name}.parquet",
                compression=None,
                write_index=False,
                storage_options=self.direct,
            )
        [self.file] = self.files("one")
        self.size = self.fs.info(self.file)["size"]
        self.written = 0

    def files(self, name: str) -> list[str]:
        return [*filter(is_data, self.fs.find(f"bucket/{name}"))]

    def bytes_of(self, name: str) -> int:
        return sum(self.fs.info(path)["size"] for path in self.files(name))

    def new(self) -> str:
        self.written += 1
        return f"s3://bucket/written/{self.written}"

    # -- What is timed -----------------------------------------------------------------------------------

    def read(self, name: str, threads: int = 1, **how: Any) -> None:
        with dask.config.set(scheduler="threads", num_workers=threads):
            how = how or {"storage_options": self.slow}
            ddf = dask_tfrecord.read_tfrecord(f"s3://bucket/{name}", **how)
            compute_and_drop(ddf)

    def read_parquet(self, name: str, threads: int = 1, *, arrow: bool = False) -> None:
        with dask.config.set(scheduler="threads", num_workers=threads):
            if arrow:
                ddf = dd.read_parquet(f"bucket/{name}.parquet", filesystem=self.arrow)
            else:
                ddf = dd.read_parquet(f"s3://bucket/{name}.parquet", storage_options=self.slow)
            compute_and_drop(ddf)

    def read_ranges(self, name: str) -> None:
        """List the files, and read their bytes in ranges, 16 at a time."""
        self.plain.invalidate_cache()
        found = self.plain.find(f"bucket/{name}", detail=True)
        sizes = {path: info["size"] for path, info in found.items() if is_data(path)}
        ranges = [(path, start) for path, size in sizes.items() for start in range(0, size, PART)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            got = pool.map(lambda it: len(self.plain.cat_file(it[0], start=it[1], end=it[1] + PART)), ranges)
            assert sum(got) == sum(sizes.values())

    def write(self) -> None:
        with dask.config.set(scheduler="threads", num_workers=1):
            dask_tfrecord.to_tfrecord(self.one, self.new(), storage_options=self.slow)

    def write_parquet(self) -> None:
        with dask.config.set(scheduler="threads", num_workers=1):
            how = {"compression": None, "write_index": False}
            self.one.to_parquet(f"{self.new()}.parquet", storage_options=self.slow, **how)

    def write_bytes(self, content: bytes) -> None:
        self.plain.pipe_file(self.new(), content, chunksize=PART)


class Store:
    """Read and write 100 MB through the slow link."""

    timer = time.perf_counter
    number, repeat, warmup_time = 1, 3, 0.0

    def setup(self) -> None:
        self.transfers = Transfers()
        self.transfers.read("small")

    def teardown(self) -> None:
        self.transfers.close()

    def time_read_one_file(self) -> None:
        self.transfers.read("one")

    def time_read_gzip(self) -> None:
        self.transfers.read("gzip")

    def time_read_four_files(self) -> None:
        self.transfers.read("four", 4)

    def time_write(self) -> None:
        self.transfers.write()

    def track_trips_of_random_rows(self) -> int:
        return random_trips({})

    def track_trips_of_first_batch(self) -> int:
        return sum(first_trips())


# What is measured, and its figure.
Figures = Iterator[tuple[str, str]]


# -- What is printed -------------------------------------------------------------------------------------


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: list[float], form: str = ".2f") -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def transfers() -> Figures:
    store = Transfers()
    try:
        content = store.fs.cat_file(store.file)
        for warm in (store.read, store.read_ranges, store.read_parquet):  # connections, imports
            warm("small" if warm != store.read_parquet else "one")
        store.read_parquet("one", arrow=True)
        yield from compare(store, content)
    finally:
        store.close()


def compare(store: Transfers, content: bytes) -> Figures:
    jobs = [
        partial(store.read, "one"),
        partial(store.read_ranges, "one"),
        partial(store.read, "gzip"),
        partial(store.read_ranges, "gzip"),
        partial(store.read, "four", 4),
        partial(store.read_parquet, "four", 4),
    ]
    rounds = [[seconds(job) for job in jobs] for _ in range(ROUNDS)]
    read, ranges, gzip, gzip_ranges, four, parquet = zip(*rounds, strict=True)
    size, four_size, other_size = store.size, store.bytes_of("four"), store.bytes_of("four.parquet")
    yield (
        f"read of one file of {size / 1e6:.0f} MB, 1 thread : plain ranges, 16 at a time",
        f"{spread([b / a for a, b in zip(read, ranges, strict=True)])}; "
        f"{size / 1e6 / median(read):.1f} / {size / 1e6 / median(ranges):.1f} MB/s",
    )
    yield (
        "read, gzip, the same file : plain ranges",
        spread([b / a for a, b in zip(gzip, gzip_ranges, strict=True)]),
    )
    yield (
        "read of 4 files of 25 MB, 4 threads: MB/s, ours / Parquet with fsspec",
        f"{four_size / 1e6 / median(four):.1f} / {other_size / 1e6 / median(parquet):.1f}",
    )
    bytes_of_parquet = store.bytes_of("one.parquet")
    slower = [
        min(
            seconds(lambda: store.read_parquet("one")), seconds(lambda: store.read_parquet("one", arrow=True))
        )
        for _ in range(ROUNDS)
    ]
    yield (
        "`read_parquet` of the same rows with its faster filesystem: time ratio per byte",
        spread([(b / bytes_of_parquet) / (a / size) for a, b in zip(read, slower, strict=True)]),
    )
    writes = [(seconds(store.write), seconds(lambda: store.write_bytes(content))) for _ in range(ROUNDS)]
    yield (
        f"write of one file of {size / 1e6:.0f} MB, 1 thread : `pipe_file` in parts of 8 MiB",
        f"{spread([b / a for a, b in writes])}; {size / 1e6 / median([a for a, _ in writes]):.1f} / "
        f"{size / 1e6 / median([b for _, b in writes]):.1f} MB/s",
    )


# -- Feeds -----------------------------------------------------------------------------------------------


def vectors(rows: int) -> pa.Table:
    values = pa.array(np.random.default_rng(0).random(rows * 1024, dtype=np.float32))
    return pa.table({"id": np.arange(rows), "x": pa.FixedSizeListArray.from_arrays(values, 1024)})


@contextmanager
def counting_store() -> Iterator[Any]:
    """Open a store in this process, behind a link that counts requests and trips."""
    sys.path.append(str(HELPERS))
    from servers import linked_s3_server

    with linked_s3_server() as linked:
        yield linked


def random_trips(how: dict[str, Any]) -> int:
    """Count the trips for 32 random rows of 25 MB."""
    rows = scaled(6000, 64)
    chosen = np.random.default_rng(0).permutation(rows)[:32]
    with counting_store() as linked:
        place = linked.new_place()
        size = {"max_bytes_per_file": "8 MiB"}
        dask_tfrecord.to_tfrecord(
            vectors(rows), place, storage_options=linked.direct, write_options=size, **how
        )
        table = RecordTable(place, storage_options=linked.options)
        with linked.link.recording(rounds=True) as traffic:
            table.batch(chosen)
        return int(traffic.trips)


def first_trips() -> tuple[int, int]:
    """Count the trips of a plan, and those of an iteration until its first batch after the plan."""
    with counting_store() as linked:
        place = linked.new_place()
        size = {"max_bytes_per_file": "8 MiB"}
        dask_tfrecord.to_tfrecord(
            vectors(scaled(6000)), place, storage_options=linked.direct, write_options=size
        )
        with linked.link.recording(rounds=True) as plan:
            assert dask_tfrecord.read_tfrecord(place, storage_options=linked.options).npartitions
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        with linked.link.recording(rounds=True) as traffic:
            batches = iter_batches(place, 256, storage_options=linked.options)
            next(batches)
            until = type(traffic)(request for request in traffic if request.ended is not None)
            batches.close()
        return int(plan.trips), int(until.trips - plan.trips)


def trips() -> Figures:
    forms = {"plain": {}, "gzip": {"compression": "gzip"}, "column files": {"columnar": []}}
    found = ", ".join(f"{random_trips(how)} {name}" for name, how in forms.items())
    yield ("32 random rows of RecordTable: sequential trips", found)
    plan, after = first_trips()
    yield ("first batch of an unshuffled epoch: trips", f"plan ({plan}) + {after}")


def feeds() -> Figures:
    store = SlowStore()
    try:
        size = {"max_bytes_per_file": "16 MiB"}
        dask_tfrecord.to_tfrecord(
            vectors(scaled(8000)), "s3://bucket/vectors", storage_options=store.direct, write_options=size
        )
        yield from shuffled_epoch(options(store.link(0.1, 0)))
        values = [np.random.default_rng(1).bytes(50_000) for _ in range(scaled(1200))]
        images = pa.table({"image": pa.array(values, pa.binary()), "label": np.arange(len(values))})
        dask_tfrecord.to_tfrecord(
            images,
            "s3://bucket/images",
            storage_options=store.direct,
            write_options={"max_bytes_per_file": "8 MiB"},
        )
        yield from first_shuffled_batch(options(store.link(LATENCY, 0)))
    finally:
        store.close()


def shuffled_epoch(slow: dict[str, Any]) -> Figures:
    """Wait 100 ms after each batch, as a training step does."""
    waits = []
    batches = iter_batches(
        "s3://bucket/vectors", 200, shuffle=True, shuffle_buffer=2000, storage_options=slow
    )
    start = time.perf_counter()
    while True:
        asked = time.perf_counter()
        if next(batches, None) is None:
            break
        waits.append(time.perf_counter() - asked)
        time.sleep(STEP)
    rest = time.perf_counter() - start - waits[0]
    share = sum(waits[1:]) / rest
    yield (
        "shuffled epoch, 100 ms, step 100 ms: share of waiting, first window apart",
        f"{share:.3f} (with it {sum(waits) / (rest + waits[0]):.2f})",
    )


def first_shuffled_batch(slow: dict[str, Any]) -> Figures:
    found = []
    for seed in range(ROUNDS + 1):
        start = time.perf_counter()
        batches = iter_batches("s3://bucket/images", 32, shuffle=True, seed=seed, storage_options=slow)
        opened = time.perf_counter()
        next(batches)
        found.append((opened - start, time.perf_counter() - opened))
        batches.close()
    opens, firsts = (list(kind) for kind in zip(*found[1:], strict=True))  # the first makes connections
    yield (
        "first shuffled batch of 60 MB of images, 30 ms",
        f"{spread(firsts)} s, after {median(opens):.2f} s for the plan",
    )


def workers() -> Figures:
    """Read ten columns of local files in two worker processes of PyTorch."""
    from torch.utils.data import DataLoader

    from benchmarks.peers.workers import measured
    from dask_tfrecord.feed.torch import TFRecordBatches

    random, count = np.random.default_rng(0), scaled(200_000)
    columns: dict[str, Any] = {f"i{k}": random.integers(0, 1000, count) for k in range(5)}
    columns |= {f"f{k}": random.random(count, dtype=np.float32) for k in range(5)}
    with tempfile.TemporaryDirectory(dir=memory_folder()) as root:
        dask_tfrecord.to_tfrecord(
            pa.table(columns), f"{root}/data", write_options={"max_rows_per_file": 50_000}
        )

        def read() -> int:
            loader = DataLoader(TFRecordBatches(f"{root}/data", 256), None, num_workers=2)
            return sum(len(batch["i0"]) for batch in loader)

        found = [measured(read) for _ in range(ROUNDS + 1)][1:]
    rates = [one["rows"] / one["cpu"] / 1e3 for one in found]
    yield ("ten columns from 2 loader workers, rows per CPU s", f"{spread(rates, '.0f')} k")


def memory() -> Figures:
    """Measure the peak memory of a process with 4 threads that reads 16 files of 25 MB."""
    store = Transfers()
    try:
        code = "import json, sys\nfrom benchmarks.own.store import peak\npeak(json.loads(sys.argv[1]))"
        command = [sys.executable, "-c", code, json.dumps(store.slow)]
        found = [json.loads(subprocess.check_output(command, text=True)) for _ in range(ROUNDS)]
    finally:
        store.close()
    peaks = [one["peak"] / 2**20 for one in found]
    yield ("peak memory of a process with 4 threads", f"{spread(peaks, '.0f')} MiB")


def peak(slow: dict[str, Any]) -> None:
    from benchmarks.peers.workers import peak_bytes

    with dask.config.set(scheduler="threads", num_workers=4):
        paths = ["s3://bucket/four"] * 4
        parts = [dask_tfrecord.read_tfrecord(path, blocksize=None, storage_options=slow) for path in paths]
        compute_and_drop(dd.concat(parts))
    print(json.dumps({"peak": peak_bytes()}))


PARTS = {"transfers": transfers, "trips": trips, "feeds": feeds, "workers": workers, "memory": memory}


def measured_parts(names: Sequence[str]) -> Figures:
    for name in names or PARTS:
        yield from PARTS[name]()


if __name__ == "__main__":
    print("| through the link (30 ms, 8 MB/s a connection) | |\n| --- | --: |")
    for what, figure in measured_parts(sys.argv[1:]):
        print(f"| {what} | {figure} |", flush=True)
