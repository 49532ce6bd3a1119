"""Any range in flight may fail or belong to a file that was replaced: the rows are right, or the error is.

A read of a file, or of a partition of several files, has many requests for data in flight. The link spoils
one of them, in the next run another one, each in another way. ``DASK_TFRECORD_FAULTS=1`` spoils each request
in each way. An iteration that ends early leaves nothing behind.

Modules: storage.read_ahead, storage.range_requests, storage.reader.
"""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import dask
import fsspec
import numpy as np
import psutil
import pyarrow as pa
import pytest
from servers import LinkedStore
from store_link import KINDS, Kind, Request, Traffic
from strides import IS_FULL, every

from dask_tfrecord import FileChangedError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.storage import read_ahead

# Each file has several requests, the first of which are small.
ROWS = 24_000

PLACES = ["a file", "files of a partition", "gzip"]

# Seconds after which a client gives up if it gets no answer.
_TIMEOUT = 1.0


class Place(NamedTuple):
    """A dataset of this library, and the same files without their metadata."""

    linked: LinkedStore
    own: str
    foreign: str
    options: dict[str, Any]

    def fill(self, reverse: bool = False) -> None:
        """Write the files without metadata, or other files of the same sizes: each has the bytes of another
        order.
        """
        fs = self.linked.fs
        for path in fs.glob(f"{self.own}/part-*"):
            data = fs.cat_file(path)
            fs.pipe_file(path.replace("/place/", "/foreign/"), data[::-1] if reverse else data)


def table() -> pa.Table:
    values = np.random.default_rng(0).random(ROWS * 64, dtype=np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 64)
    return pa.table({"n": np.arange(ROWS), "x": lists})


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, linked: LinkedStore) -> Place:
    own = linked.new_place()
    size = {"max_rows_per_file": ROWS // 12 if request.param == "files of a partition" else ROWS}
    codec = "gzip" if request.param == "gzip" else None
    to_tfrecord(table(), own, storage_options=linked.direct, write_options=size, compression=codec)
    config = {"retries": {"max_attempts": 0}, "read_timeout": _TIMEOUT, "max_pool_connections": 32}
    found = Place(linked, own, own.replace("/place", "/foreign"), {**linked.options, "config_kwargs": config})
    found.fill()
    return found


def is_data(request: Request) -> bool:
    return request.method == "GET" and "part-" in request.path


def computed(path: str, options: dict[str, Any]) -> Any:
    with dask.config.set(scheduler="threads", num_workers=2):
        ddf = read_tfrecord(path, storage_options=options, index=False)
        return ddf["n"].compute().to_numpy()


def fed(path: str, options: dict[str, Any]) -> Any:
    batches = iter_batches(path, 1000, storage_options=options, shuffle=True, columns=["n"])
    return np.sort(np.concatenate([batch["n"].to_numpy() for batch in batches]))


def verified(path: str, options: dict[str, Any]) -> Any:
    report = open_dataset(path, storage_options=options).verify()
    assert report["agrees"].all()
    return np.arange(report["rows"].sum())


def taken(path: str, options: dict[str, Any]) -> Any:
    rows = RecordTable(path, storage_options=options)
    chosen = range(0, ROWS, ROWS // 50)
    return rows.batch(chosen)["n"].to_numpy() if len(rows) == ROWS else None


JOBS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "read": computed,
    "feed": fed,
    "verify": verified,
    "take": taken,
}


def expected(job: str) -> Any:
    return np.arange(0, ROWS, ROWS // 50) if job == "take" else np.arange(ROWS)


def spoiled(requests: int, job: str) -> Iterator[tuple[int, Kind]]:
    """The pairs of a request and a way to spoil it. By default, some requests are spoiled in one way."""
    pairs = list(product(range(requests), KINDS))
    stride = every(29)
    yield from pairs[list(JOBS).index(job) * 3 % stride :: stride]


@pytest.mark.sampled
@pytest.mark.parametrize("job", JOBS)
def test_each_range_in_flight_may_fail_once(place: Place, job: str) -> None:
    link, run = place.linked.link, JOBS[job]
    with link.recording() as traffic:
        assert np.array_equal(run(place.own, place.options), expected(job))
    requests = len(Traffic(filter(is_data, traffic)))
    assert requests > 2
    for number, kind in spoiled(requests, job):
        link.arm(kind, number, is_data)
        found = run(place.own, place.options)
        hit = link.disarm()
        assert hit, (number, kind)
        assert np.array_equal(found, expected(job)), (number, kind)


@pytest.mark.parametrize("place", PLACES[:2], indirect=True)
@pytest.mark.parametrize("job", ["read", "feed", "take"])
def test_a_file_that_is_replaced_before_any_of_its_ranges_raises(place: Place, job: str) -> None:
    """A request that a plan no longer needs changes nothing: then the rows are those before the change."""
    link, run = place.linked.link, JOBS[job]
    with link.recording() as traffic:
        assert np.array_equal(run(place.foreign, place.options), expected(job))
    requests, raised = len(Traffic(filter(is_data, traffic))), 0
    lock, over = threading.Lock(), set()

    def replace(number: int) -> None:
        with lock:
            if number not in over:
                place.fill(reverse=True)

    for number in range(0, requests, every(19)):
        link.arm(partial(replace, number), number, is_data)
        try:
            assert np.array_equal(run(place.foreign, place.options), expected(job))
        except FileChangedError:
            raised += 1
        finally:
            link.disarm()
            with lock:  # nobody may wait for a request that is not needed, so it may replace the files later
                over.add(number)
                place.fill()
    assert raised


# -- Early ends --------------------------------------------------------------------------------------------


class Left(NamedTuple):
    """What is under way in this process."""

    threads: tuple[str, ...]
    tasks: int  # on the event loop of fsspec
    in_flight: int  # bytes that were requested and are not consumed
    readers: int

    @classmethod
    def now(cls) -> "Left":
        async def count() -> int:
            return len(asyncio.all_tasks()) - 1  # without this one

        tasks = asyncio.run_coroutine_threadsafe(count(), fsspec.asyn.get_loop()).result()
        # Without the threads of servers, and those in which asyncio looks up the names of hosts.
        names = [
            thread.name
            for thread in threading.enumerate()
            if "process_request" not in thread.name and not thread.name.startswith("asyncio_")
        ]
        budget = read_ahead._BUDGET
        return cls(tuple(sorted(names)), tasks, budget.used, budget.holders)

    @classmethod
    def settled(cls, expected: "Left | None" = None) -> "Left":
        """Look until it is as expected, or until nothing is under way and nothing changes."""
        wait, last = threading.Event().wait, cls.now()
        for _ in range(500):
            wait(0.02)
            now = cls.now()
            if now == expected or (expected is None and now == last and not any(now[1:])):
                break
            last = now
        return now


class StopError(Exception):
    """Ends a computation."""


def head(place: Place) -> None:
    ddf = read_tfrecord(place.own, storage_options=place.options, index=False)
    assert len(ddf.head(3, npartitions=-1)) == 3


def closed(place: Place) -> None:
    with closing(iter_batches(place.own, 100, storage_options=place.options, shuffle=True)) as batches:
        next(batches)


def dropped(place: Place) -> None:
    next(iter_batches(place.own, 100, storage_options=place.options))


def failed(place: Place) -> None:
    def use(batches: Iterable[Any]) -> None:
        for _ in batches:
            raise StopError

    with pytest.raises(StopError):
        use(iter_batches(place.own, 100, storage_options=place.options))


def read_again_and_again(place: Place) -> None:
    while True:
        read_tfrecord(place.own, storage_options=place.options).compute()


def interrupted(place: Place) -> None:
    """The interrupt arrives while the third of the requests for data is under way, or a little later."""
    main = threading.main_thread().ident or 0
    place.linked.link.arm(lambda: signal.pthread_kill(main, signal.SIGINT), 2, is_data)
    with pytest.raises(KeyboardInterrupt):
        read_again_and_again(place)
    assert place.linked.link.disarm()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("place", PLACES if IS_FULL else PLACES[1:2], indirect=True)
@pytest.mark.parametrize("end", [head, closed, dropped, failed, interrupted], ids=lambda end: end.__name__)
def test_an_early_end_leaves_nothing_under_way(place: Place, end: Callable[[Place], None]) -> None:
    """``DASK_TFRECORD_FAULTS=1`` ends 70 iterations of each kind, 1,000 in all."""
    for _ in range(2):  # threads of pools, connections
        end(place)
    gc.collect()
    before = Left.settled()
    assert (before.tasks, before.in_flight, before.readers) == (0, 0, 0)
    connections = len(psutil.Process().net_connections())
    for _ in range(70 if IS_FULL else 2):
        end(place)
    gc.collect()
    assert Left.settled(before) == before
    # Connections are kept for later requests. A request that was cancelled closes its connection.
    assert len(psutil.Process().net_connections()) < connections + 100
