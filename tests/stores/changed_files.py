"""The tests of reads that are planned before another client changes the dataset, for every store."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import dask
import fsspec
import oracle
import pyarrow as pa
import pytest
from pattern_names import rows

from dask_tfrecord import FileChangedError, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.storage.store import Store

NUMBERS = [*range(6)]

# Each value plans a read with a path and options, and returns a function that reads the column "n".
Read = Callable[[], Any]
PLANS: dict[str, Callable[[str, Any], Read]] = {
    "read_tfrecord": lambda path, options: read_tfrecord(path, **options)["n"].compute,
    "mask": lambda path, options: large_numbers(read_tfrecord(path, **options)).compute,
    "filters": lambda path, options: read_tfrecord(path, filters=[("n", ">", 2)], **options)["n"].compute,
    "blocksize": lambda path, options: read_tfrecord(path, blocksize=None, **options)["n"].compute,
    "to_table": lambda path, options: column_of(open_dataset(path, **options).to_table),
    "take": lambda path, options: column_of(open_dataset(path, **options).take, [0, 3, 5]),
    "head": lambda path, options: column_of(open_dataset(path, **options).head, 3),
    "batches": lambda path, options: column_of(joined, open_dataset(path, **options).batches(2)),
    "iter_batches": lambda path, options: column_of(joined, iter_batches(path, 2, shuffle=True, **options)),
    "RecordTable": lambda path, options: column_of(RecordTable(path, **options).batch, [1, 4]),
}
SOME = {"mask": [3, 4, 5], "filters": [3, 4, 5], "take": [0, 3, 5], "head": [0, 1, 2], "RecordTable": [1, 4]}


def large_numbers(ddf: Any) -> Any:
    return ddf[ddf["n"] > 2]["n"]


def tf_file(number: int) -> bytes:
    example = oracle.Example()
    example.features.feature["n"].int64_list.value.append(number)
    return oracle.frame(example.SerializeToString())


def column_of(read: Callable[..., Any], *args: Any) -> Read:
    return lambda: read(*args)["n"].to_pylist()


def joined(batches: Any) -> pa.Table:
    return pa.Table.from_batches(batches)


def change(place: str, operation: str, options: dict[str, Any], keep_versions: bool) -> None:
    """Commit as another client does: with a filesystem that shares no cached listing."""
    other = {"storage_options": {**options, "skip_instance_cache": True}}
    with dask.config.set(scheduler="sync"):
        if operation == "overwrite":
            table = pa.table({"n": [9], "key": [0]})
            to_tfrecord(table, place, overwrite=True, keep_versions=keep_versions, **other)
        elif operation == "delete":
            open_dataset(place, **other).delete([("n", ">=", 0)], keep_versions=keep_versions)
        else:
            open_dataset(place, **other).compact(keep_versions=keep_versions)


class ChangedFiles:
    """A part of `StoreSuite`, whose methods the tests call."""

    options: ClassVar[dict[str, Any]]

    def planned(self, place: str, columnar: Any = None) -> dict[str, Read]:
        self.write(rows(*NUMBERS, npartitions=3), place, columnar=columnar)  # type: ignore[attr-defined]
        return {name: plan(place, {"storage_options": self.options}) for name, plan in PLANS.items()}

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_process_reads_with_what_its_parent_has_opened(self, place: str) -> None:
        planned = self.planned(place)
        assert planned["to_table"]() == NUMBERS
        found, told = os.pipe()
        child = os.fork()
        if not child:
            try:
                for name, read in planned.items():
                    assert sorted(read()) == SOME.get(name, NUMBERS), name
            except BaseException as error:
                os.write(told, f"{name}: {error!r}".encode())
            finally:
                os._exit(0)
        os.close(told)
        os.waitpid(child, 0)
        with open(found, "rb") as file:
            assert file.read() == b""
        assert planned["to_table"]() == NUMBERS

    @pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # blockcache never closes its copy
    @pytest.mark.parametrize("cache", ["filecache", "simplecache", "blockcache"])
    def test_a_cache_of_fsspec_reads(self, place: str, tmp_path: Path, cache: str) -> None:
        self.write(rows(*NUMBERS, npartitions=3), place, columnar=["n"])  # type: ignore[attr-defined]
        protocol, root = place.partition("://")[0], self.store(place).root  # type: ignore[attr-defined]
        options = {protocol: self.options, cache: {"cache_storage": str(tmp_path / "chained")}}
        object_ = fsspec.filesystem(
            cache,
            fs=fsspec.core.url_to_fs(place, **self.options)[0],
            cache_storage=str(tmp_path / "object"),
        )
        for path, given in (
            (f"{cache}::{place}", {"storage_options": options}),
            (root, {"filesystem": object_}),
            (f"{root}/part-*", {"filesystem": object_}),
        ):
            for name in ("read_tfrecord", "mask", "RecordTable", "iter_batches"):
                assert sorted(PLANS[name](path, given)()) == SOME.get(name, NUMBERS), (path, name)
            with pytest.raises(TFRecordError, match=r"read but not written|chains filesystems"):
                to_tfrecord(pa.table({"n": [1]}), path, append=True, **given)

    def test_a_cache_reads_a_file_that_has_moved_or_changed(self, place: str, tmp_path: Path) -> None:
        self.write(rows(*NUMBERS, npartitions=3), place)  # type: ignore[attr-defined]
        protocol = place.partition("://")[0]
        for cache in ("filecache", "simplecache"):
            options = {protocol: self.options, cache: {"cache_storage": str(tmp_path / cache)}}
            path, given = f"{cache}::{place}", {"storage_options": options}
            names = ("read_tfrecord", "take", "batches")
            planned = {name: PLANS[name](path, given) for name in names}
            if cache == "filecache":
                change(place, "compact", self.options, keep_versions=True)
            for name, read in planned.items():
                assert sorted(read()) == SOME.get(name, NUMBERS), name
            for copy in (tmp_path / cache).iterdir():
                if copy.name != "cache":
                    copy.write_bytes(copy.read_bytes()[:10])  # as if its download had been interrupted
            assert sorted(planned["read_tfrecord"]()) == NUMBERS

    # True if the store tells two versions of a file apart that have the same size.
    stamps_files = True

    @pytest.mark.parametrize(
        ("operation", "columnar"), [("compact", None), ("delete", ["n"]), ("overwrite", None)]
    )
    def test_a_planned_read_follows_files_that_another_client_moves(
        self, place: str, operation: str, columnar: Any
    ) -> None:
        planned = self.planned(place, columnar)
        change(place, operation, self.options, keep_versions=True)
        for name, read in planned.items():
            assert sorted(read()) == SOME.get(name, NUMBERS), name

    def test_a_planned_read_of_files_that_another_client_removes_raises_file_changed_error(
        self, place: str
    ) -> None:
        planned = self.planned(place)
        change(place, "compact", self.options, keep_versions=False)
        for name, read in planned.items():
            with pytest.raises(FileChangedError, match="was removed after it was listed") as caught:
                read()
            assert isinstance(caught.value, FileNotFoundError), name

    def test_a_planned_read_of_a_file_that_another_client_rewrites_raises_file_changed_error(
        self, place: str
    ) -> None:
        if not self.stamps_files:
            pytest.skip("the store reports times in full seconds, and no other value that tells")
        contents = [tf_file(n) for n in (1, 2)]
        self.create(place, contents[0], {})
        plans = {name: PLANS[name] for name in ("read_tfrecord", "blocksize", "to_table", "batches")}
        planned = {name: plan(place, {"storage_options": self.options}) for name, plan in plans.items()}
        self.create(place, contents[1], {"skip_instance_cache": True})
        for name, read in planned.items():
            with pytest.raises(FileChangedError, match="was rewritten"):
                pytest.fail(f"{name}: {read()}")

    def create(self, place: str, content: bytes, options: dict[str, Any]) -> None:
        store = Store.at(place, {**self.options, **options})
        with store.create(store.join("data.tfrecord")) as file:
            file.write(content)

    def check_a_change_by_another_process(self, place: str) -> None:
        """Call this method from the test of a store that two processes can reach."""
        planned = self.planned(place)
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(change, place, "compact", self.options, keep_versions=True).result()
        for name, read in planned.items():
            assert sorted(read()) == SOME.get(name, NUMBERS), name
