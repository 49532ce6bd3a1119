"""Reading ahead: the same batches however far threads read, bounded memory, and what the statistics count.

Modules: feed.rows.look_ahead, feed.batch_statistics, feed.rows.epoch_order.
"""

import json
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from threading import Event, Lock
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from servers import LinkedStore

import dask_tfrecord
from dask_tfrecord import TFRecordError
from dask_tfrecord.feed import batch_statistics, iter_batches
from dask_tfrecord.feed.batch_statistics import BatchStatistics, Counters, waiting_message
from dask_tfrecord.feed.rows import epoch_order, look_ahead
from dask_tfrecord.feed.rows.epoch_order import Prefetch, Span, make_order, merged
from dask_tfrecord.feed.rows.look_ahead import Depth, LookAhead, PieceReader
from dask_tfrecord.feed.rows.sources import DatasetSource
from dask_tfrecord.files import file_writer

ROWS = 2003
SHUFFLES: list[dict[str, Any]] = [
    {},
    {"shuffle": True, "seed": 1, "shuffle_buffer": 300},
    {"shuffle": "blocks", "seed": 1},
    {"shuffle": True, "seed": 1, "columns": ["id"], "filters": [("id", "<", 1500)]},
]


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_writer, "BLOCK_BYTES", 1 << 10)
        patch.setattr(epoch_order, "_SHUFFLED_BYTES", 1 << 10)
        patch.setattr(epoch_order, "_SEQUENTIAL_BYTES", 1 << 12)
        patch.setattr(epoch_order, "BLOCK_BYTES", 1 << 10)
        patch.setattr(epoch_order, "_GROUP_BLOCKS", 4)
        for module in (epoch_order, look_ahead):
            patch.setattr(module, "WINDOW_BYTES", 1 << 14)
        patch.setattr(look_ahead, "_LOCAL_WINDOW", 1 << 8)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("ahead") / "data")
    texts = ["x" * (i % 90) for i in range(ROWS)]
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": range(ROWS), "text": texts}), path, compression="gzip")
    return path


@pytest.mark.parametrize(("how", "shard"), [(how, (at // 2, 1 + at // 2)) for at, how in enumerate(SHUFFLES)])
def test_batches_do_not_depend_on_how_far_threads_read(
    path: str, how: dict[str, Any], shard: tuple[int, int]
) -> None:
    expected = iter_batches(path, 70, shard=shard, prefetch=0, **how)
    found = [(batch, json.loads(json.dumps(expected.state))) for batch in expected]
    for at, prefetch in enumerate((None, 1, 7, "1 B", "5 kB", "1 GiB")):
        batches = iter_batches(path, 70, shard=shard, prefetch=prefetch, **how)
        assert [(batch, batches.state) for batch in batches] == found
        stop = len(found) * at // 6
        rest = iter_batches(path, 70, shard=shard, prefetch=prefetch, start=found[stop][1], **how)
        assert list(rest) == [batch for batch, _ in found[stop + 1 :]]


@pytest.mark.parametrize("how", SHUFFLES[1:])
def test_the_next_window_is_read_while_the_first_one_is_used(
    path: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = iter_batches(path, 1, prefetch=0, **how)
    next(first)
    start, stop = Span(*first.state["remaining"][0][0])[:2]  # the first window
    following = iter_batches(path, 1, prefetch=0, **how)
    for _ in range(stop - start + 1):
        next(following)
    end = Span(*following.state["remaining"][0][0]).stop  # of the second window
    read, is_read, lock = set(), Event(), Lock()
    batches = iter_batches(path, 1, **how)
    needed = {one.piece for one in batches._rows._order.slices(Span(start, end))}
    original = DatasetSource._partition

    def recorded(source: DatasetSource, piece: int, counts: Any) -> Any:
        with lock:
            read.add(piece)
            if needed <= read:
                is_read.set()
        return original(source, piece, counts)

    monkeypatch.setattr(DatasetSource, "_partition", recorded)
    next(batches)
    assert is_read.wait(60)
    batches.close()


def ahead(
    read: Callable[[int], pa.Table], count: int, prefetch: Any, sizes: Any = None, is_remote: bool = False
) -> LookAhead[pa.Table]:
    rows = [8] * count
    order = make_order(count, rows, None, 0, sizes=None if sizes is None else np.full(count, sizes))
    slices = [(0, one) for one in order.slices(order.every_row)]
    depth, counters = Depth.of(Prefetch.of(prefetch), is_remote, order), Counters()
    return LookAhead(PieceReader(read, order, counters), slices, 1, order, depth, counters)


@pytest.mark.parametrize(
    ("prefetch", "most"), [("640 B", 10), (3, 3), (1, 1), ("1 B", 1), (None, 2), ("100 kB", 40)]
)
@pytest.mark.parametrize("sizes", [None, 64, 640, 6])
def test_the_pieces_ahead_are_limited(prefetch: Any, most: int, sizes: int | None) -> None:
    """Each piece takes 64 bytes of memory, whatever its stored size is."""
    counts, found, lock = {"begun": 0, "taken": 0}, [], Lock()

    def read(piece: int) -> pa.Table:
        with lock:
            counts["begun"] += 1
            found.append(counts["begun"] - counts["taken"])
        return pa.table({"x": np.full(8, piece)})

    for rows in ahead(read, 40, prefetch, sizes).pieces(0):
        assert rows["x"][0].as_py() == counts["taken"]
        counts["taken"] += 1
    # A thread may begin before the test counts the taken piece. Threads learn the size from the first pieces.
    few = look_ahead._LOCAL_THREADS if sizes == 6 else 0
    assert max(found) <= most + 1 + few
    assert found[-1] >= 1


def test_remote_pieces_are_read_sixteen_at_a_time() -> None:
    """No piece is returned to its thread before sixteen threads read."""
    counts, every, lock = [0], Event(), Lock()

    def read(piece: int) -> pa.Table:
        with lock:
            counts[0] += 1
            if counts[0] == 16:
                every.set()
        assert every.wait(60)
        return pa.table({"x": [piece]})

    pieces = ahead(read, 40, None, 1 << 20, is_remote=True).pieces(0)
    assert [rows["x"][0].as_py() for rows in pieces] == [*range(40)]


def test_an_error_follows_the_pieces_before_it() -> None:
    def read(piece: int) -> pa.Table:
        if piece == 5:
            raise OSError("lost")
        return pa.table({"x": [piece]})

    pieces, found = ahead(read, 9, 3).pieces(0), []
    with pytest.raises(OSError, match="lost"):
        found.extend(rows["x"][0].as_py() for rows in pieces)
    assert list(pieces) == []


def test_the_first_windows_are_small_and_begin_at_blocks() -> None:
    size = 256
    window = epoch_order.WINDOW_BYTES
    order = make_order(400, [10] * 400, 3, 0, buffer=65_536, sizes=np.full(400, size))
    spans = order.begin_small([order.every_row])
    assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]
    assert [span.size // 10 * size * 16 for span in spans[:4]] == [window, 2 * window, 4 * window, 8 * window]
    assert order.begin_small(spans[1:]) != spans  # only a new division begins small
    assert merged(spans) == [order.every_row]
    few = make_order(10, [10] * 10, 3, 0, buffer=65_536, sizes=np.full(10, window // 200))
    assert few.begin_small([few.every_row]) == [few.every_row]
    for other in (
        make_order(400, [10] * 400, None, 0, sizes=np.full(400, size)),
        make_order(400, [10] * 400, 3, 0, sizes=np.full(400, size), is_grouped=True),
        make_order(400, [10] * 400, 3, 0, buffer=10, sizes=np.full(400, size)),
        make_order(400, None, 3, 0, buffer=65_536),
    ):
        assert other.begin_small([other.every_row]) == [other.every_row]


@pytest.mark.parametrize(
    ("size", "buffer", "is_grouped", "bytes_ahead"),
    [(1 << 20, 65_536, False, True), (1 << 10, 1_000, False, False), (1 << 20, 1, True, False)],
)
def test_only_large_windows_of_local_files_are_read_ahead(
    size: int, buffer: int, is_grouped: bool, bytes_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_ahead, "_LOCAL_WINDOW", 1 << 25)
    sizes = np.full(400, size)
    order = make_order(400, [10] * 400, 3, 0, buffer=buffer, sizes=sizes, is_grouped=is_grouped)
    assert bool(Depth.of(Prefetch(), False, order).window_bytes) == bytes_ahead
    assert Depth.of(Prefetch(), True, order).window_bytes


def test_windows_that_follow_each_other_are_merged() -> None:
    spans = [Span(0, 9, 3, 9), Span(9, 12), Span(12, 20), Span(21, 25), Span(25, 30, 1, 2), Span(30, 31)]
    assert merged(spans) == [spans[0], Span(9, 20), *spans[3:]]


def test_a_wrong_prefetch_is_named(path: str) -> None:
    for wrong in (-1, True, 1.5, "many", "0 B", b"2"):
        with pytest.raises(TFRecordError, match="prefetch="):
            iter_batches(path, prefetch=wrong)


@pytest.mark.parametrize("prefetch", [0, 3, None])
@pytest.mark.parametrize("how", SHUFFLES[:3])
def test_statistics_add_up(path: str, how: dict[str, Any], prefetch: Any) -> None:
    batches = iter_batches(path, 100, prefetch=prefetch, **how)
    assert batches.statistics == BatchStatistics()
    found = [batches.statistics for _ in batches]
    last = found[-1]
    assert [one.batches for one in found] == [*range(1, 22)]
    assert last.rows == ROWS
    sizes = batches._plan.source.dataset.partitions.sizes
    # A block at the end of one of the small first windows may belong to the next window, too.
    assert sizes.sum() <= last.bytes_read <= sizes.sum() + 3 * sizes.max()
    assert last.bytes_ready == 0
    for one in found:
        assert 0 <= one.seconds_without_data <= one.seconds_waited <= one.seconds
    for one, other in pairwise(found):
        assert one.seconds <= other.seconds
        assert one.bytes_read <= other.bytes_read
    assert last + last - last == last
    assert "2,003" in str(last)


@pytest.mark.parametrize("prefetch", [0, None])
def test_a_call_that_returns_no_batch_is_not_counted_as_waiting(prefetch: int | None) -> None:
    collection = dd.from_pandas(pd.DataFrame({"id": range(ROWS)}), npartitions=3)
    batches = iter_batches(collection, ROWS + 1, batch_mode="drop", prefetch=prefetch)
    assert list(batches) == []
    found = batches.statistics
    assert (found.seconds, found.seconds_waited, found.seconds_without_data) == (0, 0, 0)
    assert found.seconds_read + found.seconds_decoded > 0
    assert "seconds without data" in str(found)


def test_a_thread_goes_on_while_the_program_waits() -> None:
    """The piece that the program waits for does not count as read ahead."""
    first = Event()

    def read(piece: int) -> pa.Table:
        if piece == 0:
            assert first.wait(60)
        elif piece == 2:
            first.set()
        return pa.table({"x": [piece]})

    pieces = ahead(read, 5, 2).pieces(0)
    assert [rows["x"][0].as_py() for rows in pieces] == [*range(5)]


def test_a_collection_has_statistics() -> None:
    frame = pd.DataFrame({"id": np.arange(ROWS)})
    batches = iter_batches(dd.from_pandas(frame, npartitions=5), 100, shuffle=True, prefetch="1 MiB")
    assert sum(batch.num_rows for batch in batches) == batches.statistics.rows == ROWS
    assert batches.statistics.bytes_read == 8 * ROWS


WAITING = BatchStatistics(seconds=10, seconds_waited=4)


@pytest.mark.parametrize(
    ("recent", "message"),
    [
        (BatchStatistics(seconds=10, seconds_waited=2, seconds_without_data=2), None),
        (WAITING, "in 40% of the last 10 s, because the calling thread decodes"),
        (WAITING + BatchStatistics(seconds_without_data=3, seconds_read=9, seconds_decoded=1), "prefetch="),
        (
            WAITING + BatchStatistics(seconds_without_data=3, seconds_read=1, seconds_decoded=9),
            "more workers",
        ),
    ],
)
def test_a_program_that_waits_is_advised(recent: BatchStatistics, message: str | None) -> None:
    found = waiting_message(recent)
    assert (message is None) == (found is None)
    assert message is None or message in str(found)


def test_waiting_is_logged(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dask_tfrecord")
    list(iter_batches(path, 100))
    assert "waited" not in caplog.text
    monkeypatch.setattr(batch_statistics, "_LOG_SECONDS", 1e-9)
    list(iter_batches(path, 100))  # a loop that only waits
    assert "the program waited for batches in" in caplog.text


def test_bytes_ready_are_those_of_the_blocks_ahead(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, read, is_ready = LookAhead._finish, [], Event()

    def recorded(look: LookAhead[Any], one: Any, rows: Any) -> Any:
        read.append(rows.nbytes)
        following = finish(look, one, rows)
        if len(read) == 5:
            is_ready.set()
        return following

    monkeypatch.setattr(LookAhead, "_finish", recorded)
    batches = iter_batches(path, 1, prefetch=4, shuffle=True, shuffle_buffer=1)
    next(batches)
    assert is_ready.wait(60)
    assert 0 < batches.statistics.bytes_ready == sum(one.all_bytes for one in batches._counters.ahead)
    assert batches.statistics.bytes_ready < sum(read)
    batches.close()
    assert batches.statistics.bytes_ready == 0


@pytest.fixture(scope="module")
def remote(linked: LinkedStore) -> str:
    place = linked.new_place()
    texts = ["x" * (i % 90) for i in range(ROWS)]
    dask_tfrecord.to_tfrecord(
        pd.DataFrame({"id": range(ROWS), "text": texts}), place, storage_options=linked.direct
    )
    return place


@pytest.mark.parametrize("how", SHUFFLES)
def test_the_next_window_is_requested_before_the_first_one_is_used_up(
    remote: str, linked: LinkedStore, how: dict[str, Any]
) -> None:
    batches = iter_batches(remote, 1, storage_options=linked.options, **how)
    order, [*spans] = batches._rows._order, batches._rows._beginning.spans
    windows = order.windows(spans, iter(one for span in spans for one in order.slices(span)))
    needed = sum(len(window.pieces) for window, _ in zip(windows, range(2), strict=False))
    with linked.link.recording() as traffic, batches:
        next(batches)
        linked.link.wait_for(traffic, needed)
    assert traffic.at_once <= 16
    assert traffic.methods.keys() == {"GET"}


@pytest.mark.parametrize("how", SHUFFLES[:3])
def test_the_first_batch_takes_few_trips_and_statistics_count_the_requests(
    remote: str, linked: LinkedStore, how: dict[str, Any]
) -> None:
    expected = list(iter_batches(remote, 100, storage_options=linked.direct, prefetch=0, **how))
    batches = iter_batches(remote, 100, storage_options=linked.options, **how)
    with linked.link.recording(rounds=True) as traffic:
        found = [next(batches)]
        trips = traffic.trips
    assert trips <= 2
    with linked.link.recording() as others:
        found += batches
    assert found == expected
    statistics = batches.statistics
    assert statistics.requests == len(traffic) + len(others)
    assert statistics.retries == 0
    assert statistics.bytes_received == traffic.bytes_read + others.bytes_read >= statistics.bytes_read > 0


def test_statistics_count_repeated_requests(remote: str, linked: LinkedStore) -> None:
    batches = iter_batches(remote, 100, storage_options=linked.options, shuffle=True)
    linked.link.arm("busy")
    assert sum(batch.num_rows for batch in batches) == ROWS
    assert linked.link.disarm()
    assert batches.statistics.retries == 1


@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
def test_rows_that_arrive_in_parts_are_those_of_whole_blocks(
    remote: str, linked: LinkedStore, shard: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = DatasetSource.stream

    def small_parts(source: DatasetSource, piece: int, counts: Any) -> Iterator[pa.Table]:
        for rows in original(source, piece, counts):
            yield from (rows.slice(at, 7) for at in range(0, rows.num_rows, 7))

    monkeypatch.setattr(DatasetSource, "stream", small_parts)
    how: dict[str, Any] = {"storage_options": linked.direct, "shard": shard}
    expected = list(iter_batches(remote, 90, prefetch=0, **how))
    batches = iter_batches(remote, 90, **how)
    found = [(batch, json.loads(json.dumps(batches.state))) for batch in batches]
    assert [batch for batch, _ in found] == expected
    assert len(list(iter_batches(remote, batch_mode="auto", **how))) > 2 * len(batches._rows._order.pieces)
    for at in (0, len(found) // 2):
        assert list(iter_batches(remote, 90, start=found[at][1], **how)) == expected[at + 1 :]


def test_an_error_in_a_part_follows_the_parts_before_it() -> None:
    def stream(piece: int) -> Iterator[pa.Table]:
        yield pa.table({"x": [10 * piece + at for at in range(4)]})
        if piece == 2:
            raise OSError("lost")
        yield pa.table({"x": [10 * piece + at for at in range(4, 8)]})

    look, found = ahead(lambda piece: pa.table({}), 5, 3), []
    look._stream_piece = stream
    with pytest.raises(OSError, match="lost"):
        found.extend(value for rows in look.pieces(0) for value in rows["x"].to_pylist())
    assert found == [*range(8), *range(10, 18), *range(20, 24)]
