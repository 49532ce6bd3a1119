"""The suite of stores on S3: s3fs, a server of moto in this process, and OpenStack Swift with its S3 API.

Modules: storage.store, storage.uploading.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import count
from time import sleep
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import dask
import dask.dataframe as dd
import listings
import operations
import oracle
import pandas as pd
import pyarrow as pa
import pytest
import s3fs
from abstract import RemoteSuite, rows
from aiobotocore.client import AioBaseClient
from failing_changes import DIFFERENT
from faults import Faults, faulty_requests
from kills import MODES, check_kills
from moto.s3.models import s3_backends
from servers import s3_server
from strides import every
from swift_server import needs_swift, swift_server

from dask_tfrecord import TFRecordError, Writer, exists, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.listing import list_files
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.orphans import last_modified
from dask_tfrecord.storage.store import Store
from dask_tfrecord.storage.uploading import unfinished_uploads

_buckets = count()


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, Any]]:
    with s3_server() as options:
        yield options


class Request(NamedTuple):
    """A request: its name, its key, and how many bytes of a file the answer has."""

    name: str
    key: str | None
    size: int


@contextmanager
def noted_requests() -> Iterator[list[Request]]:
    requests: list[Request] = []
    call = s3fs.S3FileSystem._call_s3

    async def noting(fs: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        found = await call(fs, method, *args, **kwargs)
        name = method if isinstance(method, str) else method.__name__
        requests.append(
            Request(name, kwargs.get("Key"), found["ContentLength"] if name == "get_object" else 0)
        )
        return found

    with patch.object(s3fs.S3FileSystem, "_call_s3", noting):
        yield requests


@contextmanager
def noted_calls() -> Iterator[list[str]]:
    """Note the name of every request, also of those that s3fs makes from several threads."""
    calls: list[str] = []
    call = AioBaseClient._make_api_call

    async def noting(client: Any, name: str, arguments: Any) -> Any:
        calls.append(name)
        return await call(client, name, arguments)

    with patch.object(AioBaseClient, "_make_api_call", noting):
        yield calls


@contextmanager
def noted_listings() -> Iterator[list[str]]:
    """Note the prefix of each listing of a directory and everything below it."""
    prefixes: list[str] = []
    call = AioBaseClient._make_api_call

    async def noting(client: Any, name: str, arguments: Any) -> Any:
        if name == "ListObjectsV2" and not arguments.get("Delimiter"):
            prefixes.append(arguments["Prefix"])
        return await call(client, name, arguments)

    with patch.object(AioBaseClient, "_make_api_call", noting):
        yield prefixes


class S3Suite(RemoteSuite):
    """The tests of stores that s3fs reaches. The fixture ``server`` gives the options of a server."""

    options: ClassVar[dict[str, Any]] = {}
    uploads = True

    @pytest.fixture
    def place(self, server: dict[str, Any]) -> str:
        self.options |= server
        bucket = f"bucket-{next(_buckets)}"
        s3fs.S3FileSystem(**self.options).call_s3("create_bucket", Bucket=bucket)
        return f"s3://{bucket}/place"

    @contextmanager
    def faults(self, faults: Faults) -> Iterator[None]:
        with faulty_requests(s3fs.S3FileSystem, "_call_s3", faults):
            yield


@needs_swift
class TestSwiftStore(S3Suite):
    """OpenStack Swift is a real object store."""

    @pytest.fixture(scope="class")
    def server(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
        with swift_server(tmp_path_factory.mktemp("swift")) as options:
            yield options

    def clean(self, place: str) -> list[str]:
        """Swift rounds times up to full seconds, so the youngest files have times in the future."""
        sleep(1)
        return super().clean(place)


class TestS3Store(S3Suite):
    stride = every(91)
    changes = DIFFERENT

    @pytest.mark.parametrize("mode", MODES)
    def test_a_kill_at_any_request_leaves_the_old_rows_or_the_new(self, place: str, mode: str) -> None:
        check_kills(place, self.options, mode)

    def test_a_planned_read_follows_files_that_another_process_moves(self, place: str) -> None:
        self.check_a_change_by_another_process(place)

    def test_a_filter_on_a_stored_column_fetches_only_the_matching_images(self, place: str) -> None:
        images = [bytes([number % 256]) * 50_000 for number in range(400)]
        frame = pd.DataFrame({"label": [number % 100 for number in range(400)]})
        frame["image"] = pd.array(images, pd.ArrowDtype(pa.binary()))
        options = {"storage_options": self.options}
        to_tfrecord(dd.from_pandas(frame, npartitions=2), place, columnar=["label"], **options)
        ddf = read_tfrecord(place, **options)
        with noted_requests() as every:
            assert len(ddf.compute()) == 400
        found = read_tfrecord(place, filters=[("label", "==", 3)], **options)
        with noted_requests() as few:
            rows = found.compute()
        assert rows["label"].tolist() == [3] * 4
        assert [one[0] for one in rows["image"]] == [number % 256 for number in range(3, 400, 100)]
        assert sum(one.size for one in few) * 20 < sum(one.size for one in every)
        # For each file: the footer, the labels, the offsets, and two images.
        assert len(few) <= 2 * 5, few
        with noted_requests() as masked:
            assert ddf[ddf["label"] == 3]["label"].compute().tolist() == [3] * 4
        assert "head_object" not in {one.name for one in masked}, masked
        with noted_requests() as labels:
            assert ddf["label"].sum().compute() == 4 * sum(range(100))
        assert sum(one.size for one in labels) < 10_000

    def test_each_operation_makes_few_requests(self, place: str) -> None:
        """docs/jobs.md has the numbers of a new dataset and of an append."""

        def check(most: int, operation: Callable[..., Any], *args: Any, **options: Any) -> None:
            with noted_calls() as calls:
                operation(*args, storage_options=self.options, **options)
            assert len(calls) <= most, calls

        with dask.config.set(scheduler="sync"):
            check(18, to_tfrecord, rows(1, npartitions=1), place)
            check(10, to_tfrecord, rows(0, npartitions=1), place, append=True)
            check(16, to_tfrecord, rows(1, 2, 3, 4, npartitions=4), place, append=True)
            check(28, operations.delete, place, [("n", "==", 3)])
            check(42, operations.compact, place)
            check(24, to_tfrecord, rows(1, npartitions=1), place, overwrite=True)

    def test_only_operations_that_must_find_unlisted_files_list_the_files(self, place: str) -> None:
        options = {"storage_options": self.options}
        reads = {name: (call, listings.Listed()) for name, call in listings.READS.items()}
        listings.write(place, options)
        root = place.removeprefix("s3://").partition("/")[2]
        for name, (call, expected) in (reads | listings.CHANGES).items():
            with noted_listings() as directories:
                call(place, options)
            listed = listings.Listed.of(directories, root)
            # An earlier call may have removed all kept files.
            assert (listed.data, listed.kept <= expected.kept) == (expected.data, True), name

    def test_a_writer_appends_with_few_requests(self, place: str) -> None:
        with Writer(place, storage_options=self.options) as writer, noted_calls() as calls:
            for number in range(3):
                calls.clear()
                writer.write([{"n": number}])
                writer.commit()
            assert len(calls) == 6, calls
        assert self.read(place) == [0, 1, 2]

    def test_small_files_are_compacted_with_three_requests_each_and_dropped_unread(self, place: str) -> None:
        """A file is read, and it is kept by two requests, because S3 cannot rename it."""
        options = {"storage_options": self.options}
        for numbers in (range(20), range(20, 40)):
            self.write(rows(*numbers, npartitions=20), place, append=True)
        with noted_requests() as requests:
            assert open_dataset(place, **options).delete([("n", "<", 10)]).details["dropped_files"] == 10
        assert not any(method.startswith("get") and "part-" in str(key) for method, key, _ in requests)
        with noted_requests() as requests:
            assert open_dataset(place, **options).compact().details["replaced_files"] == 30
        assert len(requests) <= 3 * 30 + 30
        assert self.read(place) == [*range(10, 40)]

    def test_uploads_of_the_dead_are_given_up(self, place: str) -> None:
        self.write(rows(1), place)
        store = self.store(place)
        names = [f"part-{'0123abcd' * 4}-00000-of-00001.tfrecord", "_tfrecord/staging/x", "others.bin"]
        bucket, _, key = store.root.partition("/")
        for name in names:
            store.fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{key}/{name}")
        assert len(unfinished_uploads(store)) == 3
        assert open_dataset(place, storage_options=self.options).cleanup(older_than="10000 days") == []
        assert open_dataset(place, storage_options=self.options).cleanup(older_than="0s") == sorted(names[:2])
        assert [upload.path for upload in unfinished_uploads(store)] == [store.join("others.bin")]

    def test_what_stands_for_a_directory_is_no_file(self, place: str) -> None:
        self.write(rows(1), place)
        store = self.store(place)
        bucket, _, key = store.root.partition("/")
        for name in ("", "country=US/", "country=US_$folder$"):
            store.fs.call_s3("put_object", Bucket=bucket, Key=f"{key}/{name}", Body=b"")
        assert self.read(place) == [1]
        of_glob, of_directory = (list_files(path, self.options).files for path in (f"{place}/*", place))
        assert of_glob["bytes"] == of_directory["bytes"]
        with pytest.raises(FileNotFoundError, match="country=US: no visible"):
            list_files(f"{place}/country=US/", self.options)

    def test_a_key_below_the_name_of_a_snapshot_raises_an_error_that_names_it(self, place: str) -> None:
        self.write(rows(1), place)
        store = self.store(place)
        for name in ("_tfrecord/00000002.parquet/x", "_tfrecord/exports.json/x"):
            store.fs.pipe_file(store.join(name), b"")
        with pytest.raises(TFRecordError, match=r"00000002\.parquet: not a valid snapshot"):
            read_tfrecord(place, storage_options=self.options)
        unlisted = read_tfrecord(place, use_snapshot=False, storage_options=self.options)
        assert unlisted["n"].compute().tolist() == [1]

    @pytest.mark.parametrize("path", ["", "/x", "/x/*"])
    def test_a_missing_bucket_is_named(self, place: str, path: str) -> None:
        url, options = f"s3://no-bucket{path}", {"storage_options": self.options}
        calls = [
            lambda: read_tfrecord(url, **options),
            lambda: read_tfrecord([url, url], **options),
            lambda: open_dataset(url, **options).verify(),
            lambda: open_dataset(url, **options).take([0]),
            lambda: Snapshot.open(url, **options),
            lambda: open_dataset(url, **options).cleanup(),
            lambda: open_dataset(url, **options).add_snapshot(),
            *(
                partial(to_tfrecord, rows(1), url, compute_kwargs={"retries": 0}, **options, **mode)
                for mode in ({}, {"append": True}, {"overwrite": True})
            ),
        ]
        for call in calls:
            with pytest.raises(FileNotFoundError, match=r"s3://no-bucket.*: the bucket 'no-bucket' does not"):
                call()
        assert not exists(url, storage_options=self.options)

    def test_a_write_that_has_not_finished_is_distinguished_from_nothing(self, place: str) -> None:
        run = self.run(place)
        run.write(pa.table({"n": [1], "key": [1]}), 0, 1)
        for path in (place, f"{place}/*"):
            with pytest.raises(FileNotFoundError, match=r"has not finished.*\.cleanup\("):
                read_tfrecord(path, storage_options=self.options)

    def test_a_refused_connection_is_not_an_empty_directory(self, place: str) -> None:
        dead = {
            **self.options,
            "endpoint_url": "http://127.0.0.1:1",
            "config_kwargs": {"retries": {"max_attempts": 1}},
        }
        with (
            patch.object(s3fs.S3FileSystem, "retries", 1),
            pytest.raises(TFRecordError, match=r"cannot be reached at http://127\.0\.0\.1:1 "),
        ):
            read_tfrecord(place, storage_options=dead)

    def test_planning_lists_once_and_opens_the_sampled_files_only(self, place: str) -> None:
        bucket, _, key = place.removeprefix("s3://").partition("/")
        (server,) = s3_backends["123456789012"].values()
        content = oracle.features_file([{"a": ("int64", [1])}])
        for number in range(3_000):
            server.put_object(bucket, f"{key}/day={number % 7}/{number:05d}.tfrecord", content)
        with noted_requests() as requests:
            ddf = read_tfrecord(place, storage_options=self.options)
        assert ddf.dtypes.astype(str).to_dict() == {"a": "int64[pyarrow]", "day": "int64[pyarrow]"}
        files = {key for _, key, _ in requests if key is not None and key.endswith(".tfrecord")}
        assert len(files) <= 5
        assert sum(one.key in files for one in requests) == len(files)
        pages = 3_000 // 1_000
        # Up to four requests look for a snapshot, and check that the path is a directory.
        assert len(requests) <= len(files) + pages + 4

    def test_a_directory_has_no_age_so_its_write_counts_as_active(self, place: str) -> None:
        store = Store.at(place, self.options)
        store.fs.pipe_file(store.join("run/started"), b"")
        before = datetime.now(UTC)
        assert last_modified(store, [store.join("run")]) >= before

    def test_many_files_of_a_list_take_one_listing(self, place: str) -> None:
        bucket, _, key = place.removeprefix("s3://").partition("/")
        (server,) = s3_backends["123456789012"].values()
        for number in range(200):
            server.put_object(bucket, f"{key}/{number:03d}.tfrecord", b"")
        paths = [f"{place}/{number:03d}.tfrecord" for number in reversed(range(200))]
        with noted_requests() as requests:
            found = list_files(paths, self.options).files.paths
        assert [f"s3://{path}" for path in found] == paths
        assert [one.name for one in requests] == ["list_objects_v2"]
