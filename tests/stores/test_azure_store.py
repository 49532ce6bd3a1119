"""The suite of stores on Azure Blob Storage: adlfs and Azurite.

Modules: storage.azure, storage.store, storage.uploading.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, ClassVar

import pytest
from abstract import RemoteSuite, rows
from azurite import ACCOUNT, KEY, azurite, needs_azurite, new_container, options_of
from faults import Faults, faulty_requests
from kills import MODES, check_kills, on_other_stores
from races import check_race
from sftp_server import free_port
from store_link import store_link

from dask_tfrecord import FileChangedError, TFRecordError, exists, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.listing import list_files
from dask_tfrecord.storage.failures import store_failure
from dask_tfrecord.storage.reader import stamp_of
from dask_tfrecord.storage.store import Store


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("adlfs")
    with azurite() as url:
        yield url


@needs_azurite
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # azure sends whole blocks
class TestAzureStore(RemoteSuite):
    options: ClassVar[dict[str, Any]] = {}
    uploads = True
    names: ClassVar[list[str]] = ["[!a]"]

    @pytest.fixture
    def place(self, server: str) -> str:
        self.options |= options_of(server)
        return f"{new_container(self.options)}/place"

    @contextmanager
    def faults(self, faults: Faults) -> Iterator[None]:
        from azure.core.pipeline.transport import AioHttpTransport

        with faulty_requests(AioHttpTransport, "send", faults):
            yield

    def test_a_planned_read_follows_files_that_another_process_moves(self, place: str) -> None:
        self.check_a_change_by_another_process(place)

    def test_each_file_is_created_by_one_of_two_processes(self, place: str) -> None:
        check_race(place, self.options)

    @on_other_stores
    @pytest.mark.parametrize("mode", MODES)
    def test_a_kill_at_any_request_leaves_the_old_rows_or_the_new(self, place: str, mode: str) -> None:
        check_kills(place, self.options, mode)

    def test_a_file_that_is_rewritten_after_it_was_listed_raises(self, place: str) -> None:
        self.write(rows(1), place)
        paths = [f"abfs://{path}" for path in list_files(f"{place}/part-*", self.options).files.paths]
        lists = [f"{place}/part-*", paths * 64]  # many paths of one directory are listed once
        ddfs = [read_tfrecord(one, storage_options=self.options) for one in lists]
        store = self.store(place)
        for path in paths:
            store.fs.pipe_file(path, store.fs.cat_file(path))
        for ddf in ddfs:
            with pytest.raises(FileChangedError, match=r"abfs://.*rewritten"):
                ddf.compute()

    def test_a_file_that_is_rewritten_while_it_is_read_raises(self, place: str) -> None:
        store = self.store(place)
        path = store.join("a")
        store.fs.pipe_file(path, bytes(20 << 20))
        with store.open(path, 20 << 20, stamp=stamp_of(store.info(path))) as source:
            source.peek(10)
            store.fs.pipe_file(path, bytes(20 << 20))
            store.fs.invalidate_cache()
            view = memoryview(bytearray(20 << 20))
            with pytest.raises(FileChangedError):  # noqa: PT012  # the first reads are answered from the buffer
                while source.readinto(view):
                    pass

    def test_what_stands_for_a_directory_is_no_file(self, place: str) -> None:
        self.write(rows(1), place)
        store = self.store(place)
        for name in ("", "country=US/"):
            store.fs.pipe_file(f"{store.root}/{name}", b"")
        of_glob, of_directory = (list_files(path, self.options).files for path in (f"{place}/*", place))
        assert of_glob["bytes"] == of_directory["bytes"]
        assert self.read(place) == [1]
        assert self.read(f"{place}/*") == [1]

    def test_blocks_are_sent_at_once(self, place: str, server: str) -> None:
        content = Random(1).randbytes(20 << 20)
        with store_link(server) as link:
            store = Store.at(place, options_of(link.url))
            with link.recording(rounds=True) as traffic:
                for name, size in (("small", 3), ("large", len(content))):
                    with store.create(store.join(name)) as file:
                        file.write(content[:size])
        assert (traffic.methods, traffic.trips, traffic.at_once) == ({"PUT": 1 + 4 + 1}, 3, 4)
        assert self.store(place).fs.cat_file(store.join("large")) == content

    def test_failures_of_one_of_several_removals_raise(self, place: str) -> None:
        store = self.store(place)
        store.fs.pipe_file(store.join("a"), b"x")
        container = store.root.partition("/")[0]
        lease = store.fs.service_client.get_blob_client(container, "place/a")
        import fsspec.asyn

        held = fsspec.asyn.sync(store.fs.loop, lease.acquire_lease)
        with pytest.raises(Exception, match="lease"):
            store.remove([store.join("a"), store.join("gone")])
        fsspec.asyn.sync(store.fs.loop, held.release)
        store.remove([store.join("a"), store.join("gone")])
        assert self.files(place) == []

    def test_a_missing_container_is_named(self, place: str) -> None:
        options = {"storage_options": self.options}
        for call in (
            lambda: read_tfrecord("abfs://nothing/x", **options),
            lambda: open_dataset("abfs://nothing/x", **options).cleanup(),
            lambda: to_tfrecord(rows(1), "abfs://nothing/x", compute_kwargs={"retries": 0}, **options),
        ):
            with pytest.raises(
                FileNotFoundError, match=r"abfs://nothing/x: the container 'nothing' does not"
            ):
                call()
        assert not exists("abfs://nothing/x", **options)

    def test_failures_name_the_path_and_no_key(
        self, place: str, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def no_wait(*_: Any) -> None:
            """Try again at once; the client would wait for more than a minute in all."""

        monkeypatch.setattr(
            "azure.storage.blob._shared.policies_async.AsyncStorageRetryPolicy.sleep", no_wait
        )
        wrong = KEY[::-1].strip("=") + "=="
        dead = options_of(f"http://127.0.0.1:{free_port()}")
        sas = {
            "account_name": ACCOUNT,
            "account_host": f"127.0.0.1:{free_port()}",
            "sas_token": "sv=1&sig=hunter2",
        }
        with pytest.raises(PermissionError, match="abfs://container") as refused:
            read_tfrecord(place, storage_options=options_of(server, wrong))
        with pytest.raises(TFRecordError, match=r"cannot be reached at 127\.0\.0\.1") as unreachable:
            read_tfrecord(place, storage_options=dead)
        with pytest.raises(TFRecordError, match=r"cannot be reached at 127\.0\.0\.1") as signed:
            read_tfrecord(place, storage_options=sas)
        for caught in (refused, unreachable, signed):
            text = str(caught.value) + repr(caught.value) + repr(vars(caught.value))
            assert not any(secret in text for secret in (KEY, wrong, "hunter2", "sig="))


def test_a_range_after_the_end_of_a_file_is_no_refusal_but_a_reason_to_look_at_the_file() -> None:
    error = pytest.importorskip("azure.core.exceptions").HttpResponseError("The range is invalid")
    error.status_code = 416
    assert store_failure(error, "az://container/file") is None
