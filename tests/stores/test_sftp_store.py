"""The suite of stores on SFTP: fsspec's filesystem, paramiko, and OpenSSH's server.

Modules: storage.sftp, storage.store.
"""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from abstract import RemoteSuite, rows
from faults import Faults, faulty_methods
from kills import MODES, check_kills, on_other_stores
from races import check_race
from sftp_server import free_port, needs_sshd, sftp_server

from dask_tfrecord import FileChangedError, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.listing import list_files


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with sftp_server(tmp_path_factory.mktemp("sshd")) as options:
        yield options


@needs_sshd
class TestSFTPStore(RemoteSuite):
    stamps_files = False
    options: ClassVar[dict[str, Any]] = {}
    names: ClassVar[list[str]] = ["a?b"]

    @pytest.fixture
    def place(self, server: dict[str, Any], tmp_path: Path) -> str:
        self.options |= server
        return f"sftp://127.0.0.1:{server['port']}{tmp_path}/place"

    @contextmanager
    def faults(self, faults: Faults) -> Iterator[None]:
        import paramiko

        with ExitStack() as stack:
            stack.enter_context(faulty_methods(paramiko.SFTPClient, ["_request", "listdir_attr"], faults))
            stack.enter_context(faulty_methods(paramiko.SFTPFile, ["_write"], faults))
            yield

    def test_each_file_is_created_by_one_of_two_processes(self, place: str) -> None:
        check_race(place, self.options)

    @on_other_stores
    @pytest.mark.parametrize("mode", MODES)
    def test_a_kill_at_any_request_leaves_the_old_rows_or_the_new(self, place: str, mode: str) -> None:
        check_kills(place, self.options, mode)

    def test_threads_share_a_connection(self, place: str) -> None:
        store = self.store(place)
        content = os.urandom(1 << 20)
        store.fs.makedirs(store.root)

        def round_trip(number: int) -> bool:
            path = store.join(f"{number}")
            with store.create(path) as file:
                file.write(content)
            with store.open(path, len(content)) as source:
                return source.peek(len(content)) == content == store.fs.cat_file(path)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(round_trip, range(40)))
        self.write(rows(*range(40), npartitions=8), f"{place}/it", compute=False).compute(scheduler="threads")
        ddf = read_tfrecord(f"{place}/it", storage_options=self.options)
        assert len(ddf.compute(scheduler="threads")) == 40

    def test_a_lost_connection_is_made_again(self, place: str) -> None:
        self.write(rows(1, 2), place)
        ddf = read_tfrecord(place, storage_options=self.options)
        self.store(place).fs.client.close()
        assert sorted(ddf["n"].compute()) == [1, 2]

    def test_a_file_that_is_rewritten_after_it_was_listed_raises(self, place: str) -> None:
        self.write(rows(1), place)
        ddf = read_tfrecord(f"{place}/part-*", storage_options=self.options)
        for path in map(Path, list_files(f"{place}/part-*", self.options).files.paths):
            os.utime(path, (1, 1))
        with pytest.raises(FileChangedError, match=r"sftp://127\.0\.0\.1:.*rewritten"):
            ddf.compute()

    def test_links_to_files_are_followed_and_links_to_directories_raise(
        self, place: str, tmp_path: Path
    ) -> None:
        self.write(rows(1, 2), f"{place}/it")
        (tmp_path / "links").mkdir()
        for path in (tmp_path / "place" / "it").glob("part-*"):
            (tmp_path / "links" / path.name).symlink_to(path)
        above = place.removesuffix("/place")
        assert self.read(f"{above}/links") == [1, 2]
        (tmp_path / "links" / "more").symlink_to(tmp_path / "place")
        with pytest.raises(OSError, match=r"links/more"):
            self.read(f"{above}/links")

    @pytest.mark.parametrize(
        "link", ["kept", "staging", f"staging/{'ab' * 16}", "columns", "../more", "../_SUCCESS"]
    )
    def test_nothing_behind_a_link_changes(self, place: str, tmp_path: Path, link: str) -> None:
        table, root, home = pa.table({"n": [1]}), tmp_path / "place", tmp_path / "home"
        options = {"storage_options": self.options}
        to_tfrecord(table, place, **options)
        to_tfrecord(table, place, overwrite=True, keep_versions=True, columnar=["n"], **options)
        path = root / "_tfrecord" / link
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(exist_ok=True)
        names = ["a.txt", "replaced.json", f"part-{'ab' * 16}-00000-of-00001.tfrecord"]
        for file in (home / "a.txt", *(home / "sub" / name for name in names)):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("[]")
            os.utime(file, (1, 1))
        path.unlink(missing_ok=True)
        if link.endswith("_SUCCESS"):
            path.hardlink_to(home / "a.txt")
        else:
            path.symlink_to(home)
        before = {file: file.read_bytes() for file in home.rglob("*.*")}
        for change in (
            lambda: to_tfrecord(table, place, append=True, columnar=["n"], **options),
            lambda: to_tfrecord(table, place, overwrite=True, **options),
            lambda: to_tfrecord(table, place, overwrite=True, keep_versions=True, **options),
            lambda: open_dataset(place, **options).delete([("n", "==", 1)]),
            lambda: open_dataset(place, **options).expire(versions=1, grace="0 s"),
            lambda: open_dataset(place, **options).cleanup(older_than="0 s"),
        ):
            with suppress(TFRecordError):
                change()
            assert {file: file.read_bytes() for file in home.rglob("*.*")} == before

    def test_a_directory_that_cannot_be_listed_raises(self, place: str, tmp_path: Path) -> None:
        self.write(rows(1), place)
        store = self.store(place)
        if os.geteuid() == 0:
            pytest.skip("root can list every directory")
        (tmp_path / "place" / "closed").mkdir(mode=0)
        with pytest.raises(PermissionError):
            store.fs.find(store.root)

    def test_failures_name_the_path_and_no_password(self, place: str, server: dict[str, Any]) -> None:
        wrong = {"look_for_keys": False, "allow_agent": False, "username": "nobody", "password": "hunter2"}
        with pytest.raises(PermissionError, match=r"sftp://127\.0\.0\.1") as refused:
            to_tfrecord(rows(1), place, storage_options=wrong)
        with pytest.raises(TFRecordError, match=r"cannot be reached.*check the address") as unreachable:
            read_tfrecord(f"sftp://someone:hunter2@127.0.0.1:{free_port()}/a")
        with pytest.raises(TFRecordError, match="differ in") as differs:
            read_tfrecord(f"sftp://someone:hunter2@127.0.0.1:{server['port']}/a", storage_options={"port": 1})
        for caught in (refused, unreachable, differs):
            assert "hunter2" not in str(caught.value) + repr(caught.value) + repr(vars(caught.value))
