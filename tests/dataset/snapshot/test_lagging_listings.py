"""If listings do not show new files yet, no row is lost, because files are asked for by themselves.

Modules: dataset.snapshot.versions, dataset.snapshot.visibility, dataset.listing, storage.paths,
storage.uploading, storage.failures.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dask_tfrecord import ConcurrentWriteError, Dataset, DestinationError, Writer, open_dataset, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.storage import store as stores

pytestmark = pytest.mark.usefixtures("one_thread")


class Lagging(MemoryFileSystem):
    """Listings leave out some files, but every file can be read, and `info` and `exists` find it."""

    protocol = "lagging"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    hidden: ClassVar[Callable[[str], bool]]

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        found = super().ls(path, detail=True, **options)
        infos = [one for one in found if one["type"] != "file" or not Lagging.hidden(one["name"])]
        return infos if detail else [one["name"] for one in infos]

    def find(self, path: str, *args: Any, detail: bool = False, **options: Any) -> Any:
        found = super().find(path, *args, detail=True, **options)
        shown = {name: info for name, info in found.items() if not Lagging.hidden(name)}
        return shown if detail else [*shown]


@pytest.fixture(params=["renames", "uploads"])
def fs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lagging]:
    Lagging.store.clear()
    Lagging.pseudo_dirs[:] = [""]
    monkeypatch.setattr(Lagging, "hidden", staticmethod(lambda name: False), raising=False)
    if request.param == "uploads":
        monkeypatch.setattr(stores, "_UPLOADING", {"lagging"})
    yield Lagging()
    Lagging.store.clear()


def dataset(fs: Lagging) -> Dataset:
    return open_dataset("/d", filesystem=fs)


def write(fs: Lagging, *numbers: int, **how: Any) -> Any:
    table = pa.table({"n": list(numbers), "k": [number % 2 for number in numbers]})
    return to_tfrecord(table, "/d", filesystem=fs, partition_on="k", **how)


def append_with_writer(fs: Lagging) -> None:
    with Writer("/d", filesystem=fs, partition_on="k") as writer:
        writer.write(pa.table({"n": [9], "k": [1]}))


# Each operation with the rows that follow from the rows 1, 2, 3 of two versions.
OPERATIONS: dict[str, tuple[Callable[[Lagging], Any], list[int]]] = {
    "repair": (lambda fs: dataset(fs).repair(), [1, 2, 3]),
    "append": (lambda fs: write(fs, 9, append=True), [1, 2, 3, 9]),
    "Writer": (append_with_writer, [1, 2, 3, 9]),
    "overwrite": (lambda fs: write(fs, 9, overwrite=True), [9]),
    "partitions": (lambda fs: write(fs, 8, overwrite="partitions"), [1, 3, 8]),
    "compact": (lambda fs: dataset(fs).compact(), [1, 2, 3]),
    "delete": (lambda fs: dataset(fs).delete([("n", "==", 1)]), [2, 3]),
    "restore": (lambda fs: dataset(fs).restore(1), [1, 2]),
    "expire": (lambda fs: dataset(fs).expire(versions=1, grace="0 s"), [1, 2, 3]),
    "cleanup": (lambda fs: dataset(fs).cleanup(older_than="0 s"), [1, 2, 3]),
    "check": (lambda fs: dataset(fs).check(), [1, 2, 3]),
    "verify": (lambda fs: dataset(fs).verify(), [1, 2, 3]),
    "add_snapshot": (lambda fs: dataset(fs).add_snapshot(columnar="scalars"), [1, 2, 3]),
}


@pytest.mark.sampled
@pytest.mark.parametrize("unseen", ["a data file", "the newest version", "all versions"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_row_is_lost_if_listings_do_not_show_new_files_yet(
    fs: Lagging, monkeypatch: pytest.MonkeyPatch, operation: str, unseen: str
) -> None:
    write(fs, 1, 2)
    write(fs, 3, append=True)
    newest = Snapshot.open("/d", filesystem=fs)
    file = newest.files[-1].path
    name = {"a data file": file, "the newest version": "2.parquet", "all versions": ".parquet"}[unseen]
    monkeypatch.setattr(Lagging, "hidden", staticmethod(lambda path: path.endswith(name)))
    act, expected = OPERATIONS[operation]
    act(fs)
    monkeypatch.setattr(Lagging, "hidden", staticmethod(lambda name: False))
    assert sorted(dataset(fs).to_table()["n"].to_pylist()) == expected
    assert dataset(fs).verify()["agrees"].all()


@pytest.mark.parametrize("operation", ["append", "Writer", "overwrite"])
def test_a_first_version_is_not_created_below_a_version_that_no_listing_shows(
    fs: Lagging, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The versions before the newest one are gone, so the newest version does not follow a listed one."""
    for number in range(3):
        write(fs, number, overwrite=bool(number))
    monkeypatch.setattr(Lagging, "hidden", staticmethod(lambda name: name.endswith(".parquet")))
    with pytest.raises(
        (ConcurrentWriteError, DestinationError), match=r"listings do not show yet|no snapshot"
    ):
        OPERATIONS[operation][0](fs)
    monkeypatch.setattr(Lagging, "hidden", staticmethod(lambda name: False))
    assert sorted(dataset(fs).to_table()["n"].to_pylist()) == [2]
    assert [name for name in fs.find("/d/_tfrecord") if "/staging/" in name] == []


def test_a_commit_lists_files_that_its_tasks_have_just_uploaded(
    fs: Lagging, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(fs, 1, 2)
    listed = {file.path for file in Snapshot.open("/d", filesystem=fs).files}

    def is_new(name: str) -> bool:
        return name.endswith(".tfrecord") and name.removeprefix("/d/") not in listed

    monkeypatch.setattr(Lagging, "hidden", staticmethod(is_new))
    write(fs, 3, append=True)
    assert sorted(dataset(fs).to_table()["n"].to_pylist()) == [1, 2, 3]


def test_repair_drops_a_file_that_is_gone(fs: Lagging) -> None:
    write(fs, 1, 2)
    gone = Snapshot.open("/d", filesystem=fs).files[0]
    fs.rm_file(f"/d/{gone.path}")
    assert dataset(fs).repair().details["lost_files"] == {gone.path: 1}
    assert len(dataset(fs).to_table()) == 1
