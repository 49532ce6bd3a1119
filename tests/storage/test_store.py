"""Files that are created at once, reads that notice a changed file, and the paths that a store accepts.

Modules: storage.store, storage.redaction.
"""

import os
import pickle
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pytest
from dask.base import tokenize
from fsspec import AbstractFileSystem, register_implementation
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dask_tfrecord import Writer, read_tfrecord, to_tfrecord
from dask_tfrecord.errors import CorruptRecordError, DestinationError, TFRecordError
from dask_tfrecord.storage.store import LocalStore, Store

SECRET = "hunter2"


class FullDisk(LocalFileSystem):
    """A disk without free space."""

    protocol = "fulldisk"

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        if mode == "wb":
            file.write = _fail
        return file


class Web(AbstractFileSystem):
    """A filesystem whose paths are whole URLs, as in fsspec's HTTP filesystem."""

    protocol = ("http", "https")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        raise NotImplementedError  # as fsspec's HTTP filesystem does if it cannot open a URL

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path


class Unreachable(MemoryFileSystem):
    """A filesystem that fails when it is asked for a file, which its method `exists` hides."""

    cachable = False

    def info(self, path: str, **options: Any) -> Any:
        raise OSError(5, "the request failed")

    def exists(self, path: str, **options: Any) -> bool:
        return False


def _fail(data: bytes) -> None:
    raise OSError(28, "No space left on device")


register_implementation("fulldisk", FullDisk, clobber=True)


@pytest.fixture
def store(place: str) -> Store:
    return Store.at(place)


def create(store: Store, name: str, *parts: bytes | memoryview) -> str:
    with store.create(store.join(name)) as file:
        for part in parts:
            file.write(part)
    return store.join(name)


def test_a_full_disk_raises_and_leaves_nothing(tmp_path: Path) -> None:
    store = Store.at(f"fulldisk://{tmp_path}")
    with pytest.raises(OSError, match=f"No space left.*{tmp_path}/a"), store.create(store.join("a")) as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == []


def test_a_store_that_cannot_be_written_to_is_named() -> None:
    store = Store.of(Web(), "https://host/place")
    with (
        pytest.raises(DestinationError, match="https://host/place/a: files cannot be written here"),
        store.create(store.join("a")),
    ):
        pass


def test_of_many_exclusive_creations_at_once_one_succeeds_on_a_disk_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_looked = threading.Barrier(8)  # which is when no file is there yet
    is_race = True

    def no_link(source: str, target: str) -> None:
        if is_race:
            all_looked.wait()
        raise PermissionError(1, "Operation not permitted")

    def created(number: int) -> bool:
        try:
            store.create_exclusively(store.join("1"), str(number).encode() * 10_000)
        except FileExistsError:
            return False
        return True

    monkeypatch.setattr(LocalStore, "_link", staticmethod(no_link))
    store = Store.at(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        won = [number for number, found in enumerate(pool.map(created, range(8))) if found]
    assert [(tmp_path / "1").read_bytes()] == [str(number).encode() * 10_000 for number in won]
    assert os.listdir(tmp_path) == ["1"]
    is_race = False
    with pytest.raises(FileExistsError):
        store.create_exclusively(store.join("1"), b"second")


def read(store: Store, path: str, size: int | None, step: int = 1 << 20) -> bytes:
    parts = []
    view = memoryview(bytearray(step))
    with store.open(path, size) as source:
        while count := source.readinto(view):
            parts.append(bytes(view[:count]))
    return b"".join(parts)


def test_a_file_is_read_to_its_end_and_peeking_takes_nothing_away(store: Store) -> None:
    content = bytes(range(256)) * 10
    path = create(store, "a", content)
    for step in (1, 7, 1 << 20):
        assert read(store, path, len(content), step) == read(store, path, None, step) == content
    view = memoryview(bytearray(len(content) + 1))
    with store.open(path, len(content)) as source:
        assert source.peek(4) == content[:4]
        count = source.readinto(view[:3])
        while more := source.readinto(view[count:]):
            count += more
    assert bytes(view[:count]) == content
    with store.open(path, len(content)) as source:
        assert source.peek(1 << 20) == content


@pytest.mark.parametrize(("planned", "now"), [(4, "5|more than 4"), (6, "5|only 5")])
def test_a_file_that_changed_its_size_raises(store: Store, planned: int, now: str) -> None:
    """The read raises at once if an open file has a size, else at the end of the file."""
    create(store, "a", b"12345")
    with pytest.raises(CorruptRecordError, match=f"had {planned} bytes .* has ({now}) now"):
        read(store, store.join("a"), planned)


def test_readers_of_one_file_do_not_share_a_position(store: Store) -> None:
    create(store, "a", b"0123456789")
    one, other = memoryview(bytearray(4)), memoryview(bytearray(10))
    with store.open(store.join("a"), 10) as first:
        first.readinto(one)
        with store.open(store.join("a"), 10) as second:
            second.readinto(other)
            first.readinto(one)
    assert bytes(one) == b"4567"
    assert bytes(other) == b"0123456789"


def test_a_store_travels_and_hides_its_options() -> None:
    store = Store.at("memory://bucket/root", {"token": SECRET})
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert tokenize(copy) == tokenize(store)
    assert tokenize(store) != tokenize(Store.at("memory://bucket/root", {"token": "other"}))
    assert SECRET not in repr(store)
    assert SECRET not in repr(store.__dask_tokenize__())


WRITES = [to_tfrecord, lambda _, path: Writer(path, schema={"n": "int64"})]


SIGNS = ["::", "\n", "\r", "\t", "\0", "?versionId="]
ROOTS = ["{}/a{}b", "{}/{}b", "{}/a{}", "memory://b/a{1}b", "s3://bucket/a{1}b"]


@pytest.mark.parametrize(
    ("root", "sign"), [*((ROOTS[0], sign) for sign in SIGNS), *((root, "::") for root in ROOTS[1:])]
)
@pytest.mark.parametrize("write", WRITES)
def test_a_root_that_fsspec_would_take_for_another_is_refused(
    tmp_path: Path, write: Callable[..., Any], root: str, sign: str
) -> None:
    with pytest.raises(DestinationError, match=r"contains .* in its name"):
        write(dd.from_dict({"n": [1]}, npartitions=1), root.format(tmp_path, sign))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "path", ["{}/a::b", "{}/a::file", "memory://b/a::b", "{}/s3::x", "a::", "::a", "s3://a::memory://b"]
)
def test_a_name_with_colons_is_not_read_as_a_chain_of_filesystems(tmp_path: Path, path: str) -> None:
    to_tfrecord(dd.from_dict({"n": [1]}, npartitions=1), tmp_path / "a")
    with pytest.raises(TFRecordError, match="'::' chains filesystems"):
        read_tfrecord(path.format(tmp_path))


@pytest.mark.parametrize(
    ("chain", "scheme"),
    [("simplecache::{}", "file://"), ("simplecache::{}", "memory://"), ("filecache::{}", "file://")],
)
def test_files_are_read_through_a_cache_and_from_an_archive(tmp_path: Path, chain: str, scheme: str) -> None:
    place = f"{scheme}{tmp_path}/place"
    ddf = dd.from_dict({"n": [1, 2, 3]}, npartitions=2)
    MemoryFileSystem.store.clear()
    to_tfrecord(ddf, place)
    options = {chain.partition(":")[0]: {"cache_storage": str(tmp_path / "cache")}}
    for path in (place, f"{place}/*.tfrecord"):
        found = read_tfrecord(chain.format(path), storage_options=options)
        assert found["n"].compute().tolist() == [1, 2, 3]
    to_tfrecord(ddf, tmp_path / "local")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in (tmp_path / "local").glob("*.tfrecord"):
            archive.write(file, file.name)
    for prefix in ("", "file://"):
        ddf = read_tfrecord(f"zip://*.tfrecord::{prefix}{tmp_path}/all.zip")
        assert ddf["n"].compute().tolist() == [1, 2, 3]


def test_a_local_path_may_be_relative_or_have_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store.at("a/b").root == str(tmp_path / "a/b")
    assert Store.at(Path("a")).root == str(tmp_path / "a")
    assert Store.at("~/a").root == os.path.expanduser("~/a")


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.has_file("/unreachable/b"),
        lambda store: store.create_exclusively("/unreachable/b", b"new"),
        lambda store: store.move("/unreachable/a", "/unreachable/b", overwrite=False),
    ],
)
def test_a_failed_request_does_not_say_that_a_file_is_missing(use: Callable[[Store], object]) -> None:
    fs = Unreachable()
    for name in "ab":
        fs.pipe_file(f"/unreachable/{name}", name.encode())
    with pytest.raises(OSError, match="the request failed"):
        use(Store.of(fs, "/unreachable"))
    assert fs.cat_file("/unreachable/b") == b"b"
