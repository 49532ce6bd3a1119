"""The tests that every store must pass; a test module for each store subclasses the suite."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import sleep
from typing import Any, ClassVar
from unittest.mock import patch

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from changed_files import ChangedFiles
from failing_changes import DIFFERENT, FailingChanges
from faults import Faults
from interrupted_creation import interrupt_creations
from pattern_names import rows
from strides import IS_FULL, OTHERS, every

from dask_tfrecord import (
    ConcurrentWriteError,
    DestinationError,
    FileChangedError,
    NotFoundError,
    Writer,
    exists,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.moved_files import with_version
from dask_tfrecord.dataset.write.operations import Create
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import commit
from dask_tfrecord.storage import location
from dask_tfrecord.storage.store import Store
from dask_tfrecord.storage.uploading import unfinished_uploads


@pytest.mark.filterwarnings("ignore:.*the data is written, but:UserWarning")
class StoreSuite(ChangedFiles, FailingChanges):
    """The tests of one store. The fixture ``move_into`` is the URL of a directory that does not exist yet."""

    # Passed to the filesystem.
    options: ClassVar[dict[str, Any]] = {}

    # True if data files have their final path before the commit, though reads of the dataset ignore them.
    uploads = False

    # The tests of failures let every n-th operation fail; n is odd, so that the kinds of snapshots alternate.
    stride = every(11)

    # True if an operation of the store may also succeed and its answer be lost.
    loses_answers = False

    @contextmanager
    def faults(self, faults: Faults) -> Iterator[None]:
        """Let the store count its operations."""
        raise NotImplementedError  # every store's test module overrides this
        yield

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> Iterator[None]:
        with dask.config.set(scheduler="sync"):
            yield

    def write(self, ddf: dd.DataFrame, place: str, **options: Any) -> Any:
        return to_tfrecord(ddf, place, storage_options=self.options, compute_kwargs={"retries": 0}, **options)

    def write_twice(self, place: str, first: int, *others: int) -> None:
        """Write a dataset and append to it, so that the test finds a snapshot that may have a base."""
        self.write(rows(first, npartitions=1), place)
        self.write(rows(*others, npartitions=1), place, append=True)

    def read(self, place: str) -> list[int]:
        """The sorted numbers of all rows; an empty list if there is no dataset."""
        try:
            ddf = read_tfrecord(place, storage_options=self.options)
        except FileNotFoundError:
            return []
        return sorted(ddf["n"].compute().tolist())

    def clean(self, place: str) -> list[str]:
        """Remove the files of all interrupted writes, however young they are."""
        return open_dataset(place, storage_options=self.options).cleanup(older_than="0s")

    def store(self, place: str) -> Store:
        return Store.at(place, self.options)

    def files(self, place: str) -> list[str]:
        """All files, listed by a filesystem without a cache."""
        store = self.store(place)
        start = len(store.join(""))
        return sorted(path[start:] for path in store.fs.find(store.root))

    def run(self, place: str) -> WriteRun:
        ddf = rows(1)
        lazy = self.write(ddf, place, compute=False)
        return lazy.expr.run

    def test_a_writer_adds_the_rows_of_each_commit(self, place: str) -> None:
        with Writer(place, storage_options=self.options) as one:
            one.write([{"n": 1}])
            one.commit()
            one.write([{"n": 2}])
            one._appender._stage()
            with Writer(place, storage_options=self.options) as other:
                other.write([{"n": 3}])
            assert self.read(place) == [1, 3]
        assert self.read(place) == [1, 2, 3]
        one = Writer(place, storage_options=self.options)
        one.write([{"n": 4}])
        one._appender._stage()
        one.__exit__(KeyError, KeyError(), None)
        assert self.read(place) == [1, 2, 3]
        assert not self.store(place).names("_tfrecord/staging")

    @pytest.mark.parametrize("size", [0, 3, 20 << 20])
    def test_a_created_file_is_visible_when_it_is_whole(self, place: str, size: int) -> None:
        store = self.store(place)
        path, content = store.join("a/b"), Random(1).randbytes(size)
        with store.create(path) as file:
            file.write(content)
            assert not store.fs.exists(path)
        store.fs.invalidate_cache()
        assert store.fs.cat_file(path) == content
        assert store.names("a") == ["b"]
        assert store.names("gone") == []
        interrupt_creations(store, size, KeyboardInterrupt)
        assert self.files(place) == ["a/b", "old"]
        assert unfinished_uploads(store) == []

    def test_a_range_after_the_end_of_a_file_that_became_shorter_raises(self, place: str) -> None:
        store = self.store(place)
        path = store.join("file")
        with store.create(path) as file:
            file.write(bytes(100))
        with (
            pytest.raises(FileChangedError, match=r"had 200 bytes .* has 100 now"),
            store.open(path, 200, 150, 200) as reader,
        ):
            reader.peek(1)

    def test_exclusive_creation_leaves_the_file_that_is_there(self, place: str) -> None:
        store = self.store(place)
        store.create_exclusively(store.join("1"), b"first")
        with pytest.raises(FileExistsError):
            store.create_exclusively(store.join("1"), b"second")
        assert store.fs.cat_file(store.join("1")) == b"first"

    def test_of_many_exclusive_creations_at_once_one_succeeds(self, place: str) -> None:
        store = self.store(place)
        move = Store.move

        def move_late(store: Store, source: str, target: str) -> None:
            sleep(0.02)
            move(store, source, target)

        def created(number: int) -> bool:
            try:
                store.create_exclusively(store.join("1"), str(number).encode())
            except FileExistsError:
                return False
            return True

        with patch.object(Store, "move", move_late), ThreadPoolExecutor(6) as pool:
            won = [number for number, found in enumerate(pool.map(created, range(6))) if found]
        assert [store.fs.cat_file(store.join("1"))] == [str(number).encode() for number in won]
        assert self.files(place) == ["1"]

    def test_removing_files_passes_over_those_that_are_not_there(self, place: str) -> None:
        store = self.store(place)
        for name in ("a", "b[1]", "b1", "c/d"):
            store.fs.makedirs(store.join("c"), exist_ok=True)
            store.fs.pipe_file(store.join(name), b"x")
        store.remove(store.join(name) for name in ("a", "gone", "b[1]", "[g]one", "c/d"))
        assert self.files(place) == ["b1"]
        store.remove([])

    def test_modes(self, place: str) -> None:
        assert not exists(place, storage_options=self.options)
        self.write(rows(0, 1, 2), place, partition_on="key", compression="gzip")
        snapshot = Snapshot.open(place, storage_options=self.options)
        assert exists(place, storage_options=self.options)
        assert Snapshot.open(place, storage_options=self.options) == snapshot
        with pytest.raises(DestinationError):
            self.write(rows(1), place)
        self.write(rows(3, 4), place, partition_on="key", append=True)
        assert self.read(place) == [0, 1, 2, 3, 4]
        self.write(rows(7), place, partition_on="key", overwrite="partitions")
        assert self.read(place) == [0, 2, 3, 7]
        self.write(rows(*range(8, 11)), place, overwrite=True, shuffle=True, seed=1)
        assert self.read(place) == [8, 9, 10]
        assert len([name for name in self.files(place) if "_tfrecord/" in name]) == 1

    @pytest.mark.parametrize("read", ["tfrecord", "csv"])
    def test_what_is_read_is_known_from_what_is_overwritten(
        self, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        # A relative path on the local disk, which has the name of the place in this store.
        here = self.store(place).root.strip("/")
        for target, options in ((f"{place}/other", self.options), (here, {})):
            to_tfrecord(rows(0), target, storage_options=options)
        getattr(rows(1, 2), f"to_{read}")(f"{place}/it", storage_options=self.options)
        names = f"{place}/it/*.part" if read == "csv" else f"{place}/it"
        ddf = getattr(dd, f"read_{read}")(names, storage_options=self.options)
        ddf = ddf if read == "tfrecord" else ddf[["n"]]
        with pytest.raises(DestinationError, match=r"the DataFrame reads from|the directory also holds"):
            self.write(ddf, f"{place}/it", overwrite=True)
        self.write(ddf, f"{place}/other", overwrite=True)
        assert self.read(f"{place}/other") == [1, 2]
        to_tfrecord(ddf, here, overwrite=True)
        assert sorted(read_tfrecord(here)["n"].compute()) == [1, 2]

    def test_a_bucket_that_does_not_exist_is_not_found(self, place: str) -> None:
        if not self.uploads:
            pytest.skip("the store has no buckets")
        protocol, _, rest = place.partition("://")
        place = f"{protocol}://no-such-{rest}"
        options = {"storage_options": self.options}
        for call in (
            lambda: self.write(rows(1), place),
            lambda: self.write(rows(1), place, overwrite=True),
            lambda: Writer(place, **options).write([{"n": 1}]),
            lambda: read_tfrecord(place, **options),
            lambda: read_tfrecord(f"{place}/*", **options),
            lambda: open_dataset(place, **options).to_table(),
        ):
            with pytest.raises(NotFoundError, match="no-such-"):
                call()
        assert not exists(place, **options)

    @pytest.mark.usefixtures("appended_snapshots")
    def test_a_file_that_is_moved_is_read_on(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(location, "REQUEST_BYTES", 100)
        store = with_version(self.store(place), 1)
        path, data = store.join("key=a/data"), bytes(range(250)) * 4
        with store.create(path) as created:
            created.write(data)
        for start, stop, first in [(0, None, 10), (300, 800, 100)]:
            with store.open(path, len(data), start, stop) as file:
                found = file.peek(5)[:0]
                view = memoryview(bytearray(len(data)))
                while len(found) < first:
                    found += bytes(view[: file.readinto(view[:10])])
                store.move(path, store.join("_tfrecord/kept/key=a/data"))
                while count := file.readinto(view):
                    found += bytes(view[:count])
            assert found == data[start:stop]
            store.move(store.join("_tfrecord/kept/key=a/data"), path)

    def test_a_column_is_read_without_the_others_and_without_checksums(self, place: str) -> None:
        self.write(dd.from_dict({"n": [0, 1], "text": ["x" * 1000] * 2}, npartitions=1), place)
        options: dict[str, Any] = {"storage_options": self.options, "read_options": {"verify_crc": False}}
        assert read_tfrecord(place, columns=["n"], **options)["n"].compute().tolist() == [0, 1]

    def test_versions_are_restored_and_expire(self, place: str) -> None:
        options = {"storage_options": self.options}
        self.write(rows(0, 1, npartitions=2), place)
        self.write(rows(2, npartitions=1), place, overwrite=True, keep_versions=True)
        planned = read_tfrecord(place, **options)["n"]
        assert open_dataset(place, **options).restore(1).version == 3
        for use_snapshot in (True, False):
            found = read_tfrecord(place, use_snapshot=use_snapshot, **options)["n"].compute()
            assert sorted(found) == [0, 1]
        assert open_dataset(place, **options).expire(versions=1).details["expired_versions"] == [1, 2]
        assert planned.compute().tolist() == [2]
        # Stores without a rename have second copies of the two files that were restored.
        store = self.store(place)
        assert open_dataset(place, **options).expire(versions=1, grace="0s").details["removed_files"] == (
            1 if store.can_rename else 3
        )
        assert not any("_tfrecord/kept/" in name for name in self.files(place))
        with pytest.raises(FileNotFoundError, match="has expired or was overwritten"):
            planned.compute()
        assert open_dataset(place, **options).history()["version"].tolist() == [3, 4]
        assert self.clean(place) == []
        assert self.read(place) == [0, 1]

    def test_a_second_copy_is_put_back_if_a_commit_needs_it(
        self, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = {"storage_options": self.options}
        self.write(rows(0, npartitions=1), place)
        self.write(rows(2, npartitions=1), place, overwrite=True, keep_versions=True)
        if Store.at(place, self.options).can_rename:
            pytest.skip("a move leaves no second copy")
        open_dataset(place, **options).restore(1)
        remove = Store.remove_file

        def remove_after_a_commit(store: Store, path: str) -> None:
            if "/kept/" in path and not commits:
                commits.append(path)
                self.write(rows(3, npartitions=1), place, overwrite=True, keep_versions=True)
            remove(store, path)

        commits: list[str] = []
        monkeypatch.setattr(Store, "remove_file", remove_after_a_commit)
        open_dataset(place, **options).expire(versions=2, grace="0s")
        assert commits
        assert self.read(place) == [3]
        assert read_tfrecord(place, version=3, **options)["n"].compute().tolist() == [0]

    def test_concurrent_writes(self, place: str) -> None:
        self.write_twice(place, 0, 1)
        appends = [self.write(rows(n), place, append=True, compute=False) for n in (2, 3)]
        overwrites = [self.write(rows(n), place, overwrite=True, compute=False) for n in (4, 5)]
        for lazy in appends:
            lazy.compute()
        assert self.read(place) == [0, 1, 2, 3]
        for lazy in overwrites:
            with pytest.raises(ConcurrentWriteError):
                lazy.compute()
        assert self.read(place) == [0, 1, 2, 3]

    @pytest.mark.usefixtures("appended_snapshots")
    def test_snapshots_that_are_created_at_once_are_both_kept_or_one_raises(self, place: str) -> None:
        for options in ({"append": True}, {"overwrite": True}):
            others = iter([self.write(rows(1), place, compute=False, **options)])
            create = Store.create_exclusively

            def overtaken(
                store: Store, path: str, data: bytes, others: Any = others, create: Any = create
            ) -> None:
                for other in others:
                    other.compute()
                create(store, path, data)

            lazy = self.write(rows(2), place, compute=False, **options)
            with patch.object(Store, "create_exclusively", overtaken):
                if "append" in options:
                    lazy.compute()
                    assert self.read(place) == [1, 2]
                else:
                    with pytest.raises(ConcurrentWriteError):
                        lazy.compute()
                    assert self.read(place) == [1]

    def test_a_repeated_task_and_a_repeated_commit_leave_each_row_once(self, place: str) -> None:
        """The second attempt of the task makes fewer files, as if its limits were larger."""
        run = self.run(place)
        table = pa.table({"n": [1], "key": [1]})
        stale = run.write(table, 5, 6)
        files = [*run.write(table, 0, 2), *run.write(table, 0, 2), *run.write(table, 1, 2)][1:]
        assert self.read(place) == []
        assert not exists(place, storage_options=self.options)
        assert commit(run, Create(), files) == commit(run, Create(), files)
        assert self.read(place) == [1, 1]
        assert stale[0].path not in self.files(place)
        assert len(self.files(place)) == 4

    def test_a_lazy_write_that_is_computed_again_leaves_the_committed_rows(self, place: str) -> None:
        counts: list[int] = []

        def other_rows(part: pd.DataFrame) -> pd.DataFrame:
            counts.append(len(counts))
            return part.assign(n=len(counts) * 100)

        source = rows(1, 2).map_partitions(other_rows, meta=rows(1)._meta)
        lazy = self.write(source, place, compute=False, shuffle=True, seed=1)
        first, committed = lazy.compute(), self.read(place)
        assert lazy.compute() == first
        assert self.read(place) == committed


class RemoteSuite(StoreSuite):
    """The tests of a remote store, where an operation may succeed and its answer be lost."""

    # The local disk, which renames, and S3, which uploads, have closer sweeps. The other stores run the same
    # code on top of one of the two ways.
    stride = OTHERS
    changes = DIFFERENT if IS_FULL else ("overwrite",)
    loses_answers = True

    # A name that fsspec takes for a pattern. The local disk has all such names.
    names: ClassVar[list[str]] = ["a**b"]
