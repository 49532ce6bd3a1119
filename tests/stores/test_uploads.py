"""Uploads to S3: their parts travel at the same time, and a file appears as a whole or not at all.

Modules: storage.uploading, storage.store, files.file_writer.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random
from signal import SIGINT, pthread_kill
from threading import Thread, get_ident

import dask
import pandas as pd
import pytest
import s3fs
from faults import FaultError, Faults, faulty_requests
from servers import LinkedStore
from store_link import Kind, Traffic

from dask_tfrecord import open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.storage import uploading
from dask_tfrecord.storage.store import Store
from dask_tfrecord.storage.uploading import unfinished_uploads

PART = uploading.PART_BYTES

# The content of a file of three parts. Its upload takes five requests.
CONTENT = Random(1).randbytes(2 * PART + 1000)


@pytest.fixture
def store(linked: LinkedStore) -> Store:
    return Store.at(linked.new_place(), linked.options)


@pytest.fixture
def past(linked: LinkedStore, store: Store) -> Store:
    """The same store, past the link."""
    return Store.at(f"s3://{store.root}", linked.direct)


def create(store: Store, content: bytes, *, name: str = "file", step: int = 1_000_003) -> None:
    with store.create(store.join(name)) as file:
        for start in range(0, len(content), step):
            assert file.tell() == start
            file.write(content[start : start + step])


def assert_nothing_is_left(past: Store) -> None:
    assert [*past.find_everything()] == []
    assert unfinished_uploads(past) == []


@pytest.mark.parametrize(
    ("size", "requests", "trips"),
    [(0, 1, 1), (1, 1, 1), (PART, 1, 1), (2 * PART - 1, 1, 1), (2 * PART, 4, 3), (len(CONTENT), 5, 3)],
)
def test_a_small_file_is_one_request_and_the_parts_of_a_large_file_are_sent_at_once(
    linked: LinkedStore, store: Store, past: Store, size: int, requests: int, trips: int
) -> None:
    with linked.link.recording(rounds=True) as traffic:
        create(store, CONTENT[:size])
    assert (len(traffic), traffic.trips) == (requests, trips)
    assert past.fs.cat_file(past.join("file")) == CONTENT[:size]


def test_a_file_of_5_tb_has_no_more_parts_and_no_larger_ones_than_s3_accepts() -> None:
    sizes = [uploading._part_bytes(number) for number in range(10_000)]
    assert sum(sizes) >= 5 * 10**12
    assert (min(sizes), max(sizes)) == (5 << 20, 5 << 30)


@pytest.mark.parametrize(("limit", "at_once"), [(1, 1), (2 * PART, 2), (64 << 20, 3)])
def test_parts_may_arrive_in_any_order_and_their_bytes_on_the_way_are_bounded(
    linked: LinkedStore, store: Store, past: Store, limit: int, at_once: int
) -> None:
    with (
        dask.config.set({"dask-tfrecord.in-flight": limit}),
        linked.link.recording(last_first=True) as traffic,
    ):
        create(store, CONTENT)
    assert traffic.of("PUT").at_once == at_once
    assert past.fs.cat_file(past.join("file")) == CONTENT


def test_every_writer_has_a_part_on_its_way_whatever_others_have(
    linked: LinkedStore, store: Store, past: Store
) -> None:
    with (
        dask.config.set({"dask-tfrecord.in-flight": 0}),
        linked.link.recording() as traffic,
        linked.link.holding(lambda request: "file0" in request.path),
    ):
        writers = [Thread(target=create, args=(store, CONTENT), kwargs={"name": f"file{n}"}) for n in (0, 1)]
        writers[0].start()
        linked.link.wait_for(traffic, 1)
        writers[1].start()
        writers[1].join()
        assert [*past.find_everything()] == [past.join("file1")]
    writers[0].join()
    assert [*past.find_everything()] == [past.join(f"file{n}") for n in (0, 1)]


def test_no_file_is_visible_before_its_last_request(linked: LinkedStore, store: Store, past: Store) -> None:
    seen = []

    def look() -> None:
        seen.append([*past.find_everything()])

    for number in range(5):
        linked.link.arm(look, number)
        create(store, CONTENT, name=f"{number}/file")
        assert linked.link.disarm()
    assert [len(files) for files in seen] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("written", [1, len(CONTENT)])
def test_an_upload_that_is_interrupted_is_aborted(
    linked: LinkedStore, store: Store, past: Store, error: type[BaseException], written: int
) -> None:
    """The answers to the parts are outstanding."""
    before = asyncio.all_tasks(store.fs.loop)

    def write() -> None:
        with store.create(store.join("file")) as file:
            file.write(CONTENT[:written])
            linked.link.wait_for(traffic, 3 if written > PART else 0)
            raise error

    held = linked.link.holding(lambda request: request.method == "PUT")
    with linked.link.recording() as traffic, held, pytest.raises(error):
        write()
    assert_nothing_is_left(past)
    assert asyncio.all_tasks(store.fs.loop) == before
    create(store, b"new")
    assert past.fs.cat_file(past.join("file")) == b"new"


@pytest.mark.parametrize("number", range(1, 5))
def test_an_upload_that_is_interrupted_while_it_waits_for_the_store_is_aborted(
    linked: LinkedStore, store: Store, past: Store, number: int
) -> None:
    main = get_ident()
    linked.link.arm(lambda: pthread_kill(main, SIGINT), number)
    with dask.config.set({"dask-tfrecord.in-flight": 0}), pytest.raises(KeyboardInterrupt):
        create(store, CONTENT)
    assert linked.link.disarm()
    if number == 4 and [*past.find_everything()]:  # the store completed the upload before it was aborted
        assert past.fs.cat_file(past.join("file")) == CONTENT
        past.remove([*past.find_everything()])
    assert_nothing_is_left(past)


def test_an_upload_whose_generator_is_closed_is_aborted(store: Store, past: Store) -> None:
    def writing() -> Iterator[None]:
        with store.create(store.join("file")) as file:
            file.write(CONTENT)
            yield

    running = writing()
    next(running)
    running.close()
    assert_nothing_is_left(past)


def test_an_upload_that_is_open_at_the_exit_of_the_process_does_not_appear(
    linked: LinkedStore, store: Store, past: Store
) -> None:
    script = (
        "import sys, json; from dask_tfrecord.storage.store import Store\n"
        "store = Store.at(sys.argv[1], json.loads(sys.argv[2]))\n"
        "made = store.create(store.join('file')); file = made.__enter__(); file.write(bytes(20_000_000))\n"
        "print('open')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"s3://{store.root}", json.dumps(linked.direct)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("open\n", "")
    assert [*past.find_everything()] == []


@pytest.mark.parametrize("number", range(5))
def test_an_upload_of_which_a_request_fails_is_aborted(
    linked: LinkedStore, store: Store, past: Store, number: int
) -> None:
    with faulty_requests(s3fs.S3FileSystem, "_call_s3", Faults(number)), pytest.raises(FaultError):
        create(store, CONTENT)
    assert_nothing_is_left(past)


@pytest.mark.parametrize(("kind", "number"), [("lost", 1), ("reset", 2), ("busy", 3), ("truncate", 4)])
def test_a_part_that_fails_for_a_passing_reason_is_sent_again_alone(
    linked: LinkedStore, store: Store, past: Store, kind: Kind, number: int
) -> None:
    with linked.link.recording() as traffic:
        linked.link.arm(kind, number)
        create(store, CONTENT)
        assert linked.link.disarm()
    assert len(traffic) == 6
    assert past.fs.cat_file(past.join("file")) == CONTENT


@pytest.mark.parametrize(("size", "number"), [(2 * PART - 1, 0), (len(CONTENT), 1)])
def test_what_s3fs_sends_again_is_sent_from_its_start(
    linked: LinkedStore, past: Store, size: int, number: int
) -> None:
    """If botocore does not repeat requests, s3fs does, with the same arguments."""
    alone = {"config_kwargs": {"retries": {"max_attempts": 0}}}
    linked.link.arm("lost", number)
    create(Store.at(f"s3://{past.root}", linked.options | alone), CONTENT[:size])
    assert linked.link.disarm()
    assert past.fs.cat_file(past.join("file")) == CONTENT[:size]


def test_files_of_one_task_are_finished_at_once(linked: LinkedStore, past: Store) -> None:
    frame = pd.DataFrame({"n": range(30), "key": [f"k{n % 10}" for n in range(30)]})
    with linked.link.recording(rounds=True) as traffic:
        to_tfrecord(frame, f"s3://{past.root}", partition_on="key", storage_options=linked.options)
    uploaded = traffic.of("PUT", "part-")
    assert (len(uploaded), uploaded.trips, uploaded.at_once) == (10, 1, 10)


@pytest.mark.parametrize("change", ["append", "compact", "delete", "add_snapshot"])
def test_no_file_is_sent_before_the_mark_that_hides_it(
    monkeypatch: pytest.MonkeyPatch, linked: LinkedStore, past: Store, change: str
) -> None:
    options, place = {"storage_options": linked.options}, f"s3://{past.root}"
    frame = pd.DataFrame({"n": range(4)})
    to_tfrecord(frame, place, write_options={"max_rows_per_file": 2}, **options)
    dataset = open_dataset(place, **options)
    changes: dict[str, Callable[[], object]] = {
        "append": lambda: to_tfrecord(frame, place, append=True, **options),
        "compact": dataset.compact,
        "delete": lambda: dataset.delete([("n", "==", 1)]),
        "add_snapshot": lambda: dataset.add_snapshot(columnar="scalars"),
    }
    call = s3fs.S3FileSystem._call_s3

    async def refuse_marks(fs: s3fs.S3FileSystem, method: str, *args: object, **named: object) -> object:
        if method == "put_object" and "/staging/" in str(named["Key"]):
            raise FaultError("on purpose")
        return await call(fs, method, *args, **named)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", refuse_marks)
    with linked.link.recording() as traffic, pytest.raises(FaultError):
        changes[change]()
    assert [request.path for request in traffic.of("PUT")] == []


def test_the_failure_of_a_mark_is_noticed_before_other_files_that_finish_together(store: Store) -> None:
    with store.finishing_together() as together:
        with faulty_requests(s3fs.S3FileSystem, "_call_s3", Faults(0)), pytest.raises(FaultError):
            together.write_file(store.join("mark"), b"")
        create(together, b"rows")
    assert store.has_file(store.join("file"))


def test_a_column_file_travels_beside_its_data_file(linked: LinkedStore, past: Store) -> None:
    frame, options = pd.DataFrame({"n": range(30)}), {"storage_options": linked.options}
    place = f"s3://{past.root}"
    with linked.link.recording(rounds=True) as traffic:
        to_tfrecord(frame, place, columnar="scalars", **options)
        to_tfrecord(frame, place, append=True, **options)
    names = ("part-", "columns/")
    uploaded = Traffic(one for one in traffic if one.body and any(name in one.path for name in names))
    assert (len(uploaded), uploaded.trips) == (4, 2)
    assert read_tfrecord(place, **options)["n"].compute().tolist() == [*range(30), *range(30)]


def test_cleanup_aborts_the_upload_of_a_killed_write(
    monkeypatch: pytest.MonkeyPatch, linked: LinkedStore, past: Store
) -> None:
    async def stay(_: object) -> None:
        """Leave the parts in the store, as a killed process does."""

    monkeypatch.setattr(uploading._ParallelUploader, "_abort", stay)
    place, options = f"s3://{past.root}", {"storage_options": linked.direct}
    to_tfrecord(pd.DataFrame({"x": [b"old"]}), place, **options)
    large = pd.DataFrame({"x": [CONTENT[:PART], CONTENT[:PART]]})
    with (
        faulty_requests(s3fs.S3FileSystem, "_call_s3", Faults(7)),
        pytest.raises(FaultError),
        dask.config.set(scheduler="sync"),
    ):
        to_tfrecord(large, place, append=True, **options)
    [upload] = unfinished_uploads(past)
    assert past.relative(upload.path) in open_dataset(place, **options).cleanup(older_than="0s")
    assert unfinished_uploads(past) == []
    assert read_tfrecord(place, **options)["x"].compute().tolist() == [b"old"]
