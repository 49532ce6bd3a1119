"""Ranges of remote files are read by several requests at a time, in order, and nothing is left behind.

Modules: storage.read_ahead, storage.in_flight, storage.range_requests, storage.reader.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import dask
import numpy as np
import pytest
from damaged_files import framed_bytes
from servers import LinkedStore

from dask_tfrecord import FileChangedError
from dask_tfrecord.codec import scan
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.inference import sample_split
from dask_tfrecord.files.record_file import RecordFile
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.window import WINDOW_BYTES
from dask_tfrecord.storage import read_ahead
from dask_tfrecord.storage.block_cache import BlockCache
from dask_tfrecord.storage.range_requests import ByteRange, RequestCounts
from dask_tfrecord.storage.store import Store

MIB = 1 << 20
CONTENT = np.random.default_rng(0).bytes(9 * MIB + 5)


class Place:
    """A file in a store behind the link."""

    def __init__(self, linked: LinkedStore) -> None:
        self.linked, self.link, self.fs = linked, linked.link, linked.fs
        place = linked.new_place()
        self.counts = RequestCounts()
        self.store = replace(Store.at(place, linked.options), counts=self.counts)
        self.path = self.store.join("file")
        self.fs.pipe_file(self.path, CONTENT)

    @property
    def stamp(self) -> str:
        self.fs.invalidate_cache()
        return str(self.fs.info(self.path)["ETag"])

    def read(self, *args: Any, store: Store | None = None, **options: Any) -> bytes:
        """Read the file, or a range of it, in pieces."""
        found, view = bytearray(), memoryview(bytearray(MIB))
        with (store or self.store).open(self.path, len(CONTENT), *args, **options) as reader:
            while count := reader.readinto(view):
                found += view[:count]
        return bytes(found)


@pytest.fixture
def place(linked: LinkedStore) -> Iterator[Place]:
    found = Place(linked)
    yield found
    assert read_ahead._BUDGET.used == read_ahead._BUDGET.holders == 0
    assert not pending(found)


def pending(place: Place) -> int:
    """Let all cancelled requests end. Return the number of other tasks on the event loop of the store."""

    async def others() -> int:
        for _ in range(100):
            found = asyncio.all_tasks() - {asyncio.current_task()}
            if not found:
                break
            await asyncio.wait(found, timeout=0.01)
        return len(found)

    return asyncio.run_coroutine_threadsafe(others(), place.store.fs.loop).result()


def test_a_file_is_read_in_two_trips_without_a_head(place: Place) -> None:
    with place.link.recording(rounds=True) as traffic:
        assert place.read() == CONTENT
    assert (traffic.methods, traffic.trips, traffic.at_once) == ({"GET": 5}, 2, 4)
    assert (place.counts.requests, place.counts.bytes) == (5, len(CONTENT))


@pytest.mark.parametrize(
    ("start", "stop", "requests"),
    [(0, 1, 1), (7, 3 * MIB // 2 + 7, 1), (7, 3 * MIB // 2 + 8, 2), (3 * MIB + 1, None, 4)],
)
def test_a_short_range_takes_one_request(place: Place, start: int, stop: int | None, requests: int) -> None:
    with place.link.recording() as traffic:
        assert place.read(start, stop, place.stamp) == CONTENT[start:stop]
    assert traffic.methods == {"GET": requests}


def test_answers_are_delivered_in_order_if_the_last_one_arrives_first(place: Place) -> None:
    with place.link.recording(last_first=True) as traffic:
        assert place.read() == CONTENT
    assert len(traffic) == 5


@pytest.mark.parametrize("number", range(5))
def test_a_range_that_is_cut_is_requested_again_alone(place: Place, number: int) -> None:
    place.link.arm("truncate", number)
    with place.link.recording() as traffic:
        assert place.read() == CONTENT
    assert place.link.disarm()
    assert (len(traffic), place.counts.retries, place.counts.requests) == (6, 1, 6)


def test_repetitions_by_the_library_of_the_store_are_counted(place: Place) -> None:
    place.link.arm("busy", 2)
    with place.link.recording() as traffic:
        assert place.read() == CONTENT
    assert place.link.disarm()
    assert (len(traffic), place.counts.retries, place.counts.requests) == (6, 1, 6)


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("is_stamped", [False, True])
def test_a_file_that_is_replaced_between_two_requests_is_noticed(
    place: Place, number: int, is_stamped: bool
) -> None:
    other = CONTENT[::-1]
    stamp = place.stamp if is_stamped else ""
    place.link.arm(lambda: place.fs.pipe_file(place.path, other), number)
    with place.link.recording(rounds=number == 4), pytest.raises(FileChangedError, match="was rewritten"):
        place.read(0, None, stamp)
    assert place.link.disarm()


def test_a_file_with_another_stamp_is_read_only_if_the_caller_compares_its_content(place: Place) -> None:
    with pytest.raises(FileChangedError, match="was rewritten"):
        place.read(0, None, '"other"')
    with place.store.open(place.path, len(CONTENT), 0, None, '"other"', may_be_restamped=True) as reader:
        assert reader.is_restamped
        assert reader.peek(MIB) == CONTENT[:MIB]
    with pytest.raises(FileChangedError, match="was rewritten"):
        place.store.read_ranges([ByteRange(place.path, 0, 9, '"other"')])


def test_a_file_that_is_uploaded_again_is_read_without_its_blocks_in_the_cache(
    place: Place, tmp_path: Path
) -> None:
    cached, stamp = replace(place.store, block_cache=BlockCache(str(tmp_path), 1 << 30)), place.stamp
    assert place.read(0, MIB, stamp, store=cached) == CONTENT[:MIB]
    place.fs.pipe_file(place.path, CONTENT[::-1])
    with pytest.raises(FileChangedError, match="was rewritten"):
        place.read(0, None, stamp, store=cached)
    with cached.open(place.path, len(CONTENT), 0, None, stamp, may_be_restamped=True) as reader:
        assert reader.is_restamped
        assert reader.peek(2 * MIB) == CONTENT[::-1][: 2 * MIB]


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_file_with_another_size_raises(place: Place, size: int) -> None:
    with pytest.raises(FileChangedError, match=f"had {size:,} bytes .* has {len(CONTENT):,} now"):
        place.store.open(place.path, size).__enter__()


@pytest.mark.parametrize("error", [None, ZeroDivisionError, KeyboardInterrupt, GeneratorExit])
def test_an_early_end_cancels_the_requests_in_flight(place: Place, error: type[BaseException] | None) -> None:
    with place.link.recording() as traffic, place.link.holding(lambda request: request.range[0] > 0):  # type: ignore[index]
        with suppress(BaseException), place.store.open(place.path, len(CONTENT)) as reader:
            assert reader.peek(9) == CONTENT[:9]
            place.link.wait_for(traffic, 4)
            if error is not None:
                raise error
        assert not pending(place)
    assert [request.left for request in traffic.of("GET")].count(True) == 3


def test_records_are_decoded_while_most_of_the_file_is_on_its_way(place: Place) -> None:
    content = framed_bytes(b"record") * 400_000
    place.fs.pipe_file(place.path, content)
    file = RecordFile(place.store, Split(FileInfo(place.path, len(content))), ReadOptions())
    with place.link.holding(lambda request: request.range[0] > 0):  # type: ignore[index]
        chunks = file.run(scan, early=True)
        first = bytes(next(chunks).data)
    assert len(first) > 1 << 17
    assert first + b"".join(bytes(chunk.data) for chunk in chunks) == content


def test_a_sample_is_as_large_as_on_a_local_disk_and_requests_little_more(place: Place) -> None:
    record = framed_bytes(b"record" * 100)
    content = record * (30 * MIB // len(record))
    place.fs.pipe_file(place.path, content)
    split = Split(FileInfo(place.path, len(content)))
    with place.link.recording() as traffic:
        sample = sample_split(place.store, split, options=ReadOptions(), record_type="infer", limit=100_000)
    assert 0 <= WINDOW_BYTES - sample.records * len(record) < len(record)
    assert sum(stop - start for start, stop in (one.range for one in traffic)) < 3 * WINDOW_BYTES  # type: ignore[misc]


def test_many_small_files_are_requested_before_they_are_opened(place: Place) -> None:
    ranges = [ByteRange(f"{place.path}-{number}", 0, 9, "", 9) for number in range(50)]
    for one in ranges:
        place.fs.pipe_file(one.path, one.path[-9:].encode())
    with place.link.recording(rounds=True) as traffic, place.store.reading_ahead(ranges) as store:
        for one in ranges:
            with store.open(one.path, 9) as reader:
                assert reader.peek(99) == one.path[-9:].encode()
    assert (traffic.methods, traffic.at_once) == ({"GET": 50}, 16)
    assert traffic.trips <= 5


def test_files_that_are_not_opened_are_cancelled(place: Place) -> None:
    ranges = [ByteRange(place.path, start * MIB, (start + 1) * MIB, "", len(CONTENT)) for start in range(5)]
    with place.store.reading_ahead(ranges) as store, place.link.recording() as traffic:
        assert place.read(0, MIB, store=store) == CONTENT[:MIB]
        assert place.read(3 * MIB, 4 * MIB, store=store) == CONTENT[3 * MIB :][:MIB]
        assert place.read(9, 17, store=store) == CONTENT[9:17]
    assert len(traffic) == 6


def test_readers_share_the_bytes_in_flight(place: Place) -> None:
    found: list[bytes] = []
    threads = [Thread(target=lambda: found.append(place.read())) for _ in range(4)]
    with dask.config.set({"dask-tfrecord.in-flight": "3 MiB"}), place.link.recording() as traffic:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [CONTENT] * 4
    assert traffic.at_once <= 12
    assert traffic.bytes_read == 4 * len(CONTENT)


def test_one_reader_keeps_to_the_limit(place: Place) -> None:
    with dask.config.set({"dask-tfrecord.in-flight": 0}), place.link.recording() as traffic:
        assert place.read() == CONTENT
    assert traffic.at_once == 1


def test_a_wrong_limit_names_its_key(place: Place) -> None:
    with (
        dask.config.set({"dask-tfrecord.in-flight": "many"}),
        pytest.raises(TFRecordError, match=r"'many' of 'dask-tfrecord\.in-flight'"),
    ):
        place.read()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_reader_of_another_process_raises_instead_of_waiting(place: Place) -> None:
    with place.store.open(place.path, len(CONTENT)) as reader:
        child = os.fork()
        if not child:
            with suppress(BaseException):
                reader.peek(2 * MIB)
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert reader.peek(2 * MIB) == CONTENT[: 2 * MIB]


def test_ranges_of_several_files_are_read_in_one_trip(place: Place) -> None:
    ranges = [ByteRange(place.path, start, start + 9, place.stamp) for start in range(0, 9 * MIB, MIB)]
    with place.link.recording(rounds=True) as traffic:
        assert place.store.read_ranges(ranges) == [CONTENT[one.start : one.stop] for one in ranges]
    assert (traffic.methods, traffic.trips) == ({"GET": 9}, 1)


def test_a_range_that_ends_long_after_the_end_of_its_file_is_shorter(place: Place) -> None:
    """The last request is for bytes that the file does not have."""
    assert place.store.read_ranges([ByteRange(place.path, 0, len(CONTENT) + 16 * MIB)]) == [CONTENT]
