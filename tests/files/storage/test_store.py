"""Atomic files on stores that rename and on stores that upload; reads that notice a changed file.

Modules: files.storage.store, files.storage.store_failures.
"""

import os
import pickle
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import dask.dataframe as dd
import pytest
from dask.base import tokenize
from fsspec import AbstractFileSystem, register_implementation
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile
from interrupted_creation import interrupt_creations

from dask_tfrecord import cleanup, index, read_tfrecord, to_tfrecord
from dask_tfrecord.errors import CorruptRecordError, DestinationError, TFRecordError
from dask_tfrecord.files.storage.store import Store

SECRET = "hunter2"


class Upload(AbstractBufferedFile):
    """An upload to an object store: an object exists only after the upload of all parts is completed."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.parts.append(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        self.fs.pipe_file(self.path, b"".join(self.parts))

    def discard(self) -> None:
        self.parts = []


class ObjectStore(MemoryFileSystem):
    """Like s3fs: the object is visible after the upload is completed, and close() completes the upload."""

    protocol = "oss"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb" and "data" not in options:
            return Upload(self, path, mode, **options)
        return super()._open(path, mode, **options)


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


def _fail(data: bytes) -> None:
    raise OSError(28, "No space left on device")


register_implementation("oss", ObjectStore, clobber=True)
register_implementation("fulldisk", FullDisk, clobber=True)


@pytest.fixture(params=["local", "memory", "oss"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    for kind in (MemoryFileSystem, ObjectStore):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
    return Store.at(tmp_path / "root" if request.param == "local" else f"{request.param}://bucket/root")


def files(store: Store) -> list[str]:
    return [path[len(store.root) + 1 :] for path in store.fs.find(store.root)]


def test_a_created_file_holds_what_was_written(store: Store) -> None:
    with store.create(store.join("a/b")) as file:
        file.write(b"one")
        file.write(memoryview(b"two"))
    assert store.fs.cat_file(store.join("a/b")) == b"onetwo"
    assert files(store) == ["a/b"]


def test_an_empty_file_can_be_created(store: Store) -> None:
    with store.create(store.join("empty")):
        pass
    assert store.fs.info(store.join("empty"))["size"] == 0


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("size", [3, 9 << 20])
def test_an_exception_leaves_nothing_or_the_old_file(
    store: Store, error: type[BaseException], size: int
) -> None:
    interrupt_creations(store, size, error)
    assert files(store) == ["old"]


def test_a_file_is_not_visible_before_it_is_whole(store: Store) -> None:
    with store.create(store.join("new")) as file:
        file.write(b"x")
        assert not store.fs.exists(store.join("new"))
    assert store.fs.exists(store.join("new"))


def test_a_file_is_replaced_in_one_step(store: Store) -> None:
    for content in (b"old", b"new"):
        with store.create(store.join("a")) as file:
            file.write(content)
    assert store.fs.cat_file(store.join("a")) == b"new"


def test_a_full_disk_raises_and_leaves_nothing(tmp_path: Path) -> None:
    store = Store.at(f"fulldisk://{tmp_path}")
    with pytest.raises(OSError, match=f"No space left.*{tmp_path}/a"), store.create(store.join("a")) as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == []


def test_a_store_that_cannot_be_written_to_is_named() -> None:
    store = Store(Web(), "https://host/place")
    with (
        pytest.raises(DestinationError, match="https://host/place/a: files cannot be written here"),
        store.create(store.join("a")),
    ):
        pass


def no_link(first: Callable[[], object] = bool) -> Callable[[str, str], None]:
    """A disk without hard links."""

    def link(source: str, target: str) -> None:
        first()
        raise PermissionError(1, "Operation not permitted")

    return link


def test_exclusive_creation_leaves_the_file_that_is_there(store: Store) -> None:
    store.create_exclusively(store.join("one/1"), b"first")
    with pytest.raises(FileExistsError):
        store.create_exclusively(store.join("one/1"), b"second")
    assert store.fs.cat_file(store.join("one/1")) == b"first"
    assert files(store) == ["one/1"]


@pytest.mark.parametrize("links", [True, False])
def test_of_many_exclusive_creations_at_once_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        all_looked = threading.Barrier(8)  # which is when none of them is there yet
        monkeypatch.setattr(os, "link", no_link(all_looked.wait))
    store = Store.at(tmp_path)
    start = threading.Barrier(8)
    won = []

    def run(number: int) -> None:
        start.wait()
        try:
            store.create_exclusively(store.join("1"), str(number).encode() * 10_000)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "1").read_bytes() == str(won[0]).encode() * 10_000
    assert os.listdir(tmp_path) == ["1"]


def test_exclusive_creation_works_on_a_disk_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_link())
    store = Store.at(tmp_path)
    store.create_exclusively(store.join("1"), b"first")
    with pytest.raises(FileExistsError):
        store.create_exclusively(store.join("1"), b"second")
    assert (tmp_path / "1").read_bytes() == b"first"


def read(store: Store, path: str, size: int | None, step: int = 1 << 20) -> bytes:
    parts = []
    view = memoryview(bytearray(step))
    with store.open(path, size) as source:
        while count := source.readinto(view):
            parts.append(bytes(view[:count]))
    return b"".join(parts)


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_file_is_read_to_its_end(store: Store, step: int) -> None:
    content = bytes(range(256)) * 10
    with store.create(store.join("a")) as file:
        file.write(content)
    assert read(store, store.join("a"), len(content), step) == content
    assert read(store, store.join("a"), None, step) == content


def test_peeking_takes_nothing_away(store: Store) -> None:
    with store.create(store.join("a")) as file:
        file.write(b"0123456789")
    view = memoryview(bytearray(100))
    with store.open(store.join("a"), 10) as source:
        assert source.peek(4) == b"0123"
        count = source.readinto(view[:3])
        count += source.readinto(view[count:])
        count += source.readinto(view[count:])
    assert bytes(view[:count]) == b"0123456789"
    with store.open(store.join("a"), 10) as source:
        assert source.peek(100) == b"0123456789"


@pytest.mark.parametrize(("planned", "now"), [(4, "5|more than 4"), (6, "5|only 5")])
def test_a_file_that_changed_its_size_raises(store: Store, planned: int, now: str) -> None:
    """The read raises at once if an open file has a size, else at the end of the file."""
    with store.create(store.join("a")) as file:
        file.write(b"12345")
    with pytest.raises(CorruptRecordError, match=f"had {planned} bytes .* has ({now}) now"):
        read(store, store.join("a"), planned)


def test_readers_of_one_file_do_not_share_a_position(store: Store) -> None:
    with store.create(store.join("a")) as file:
        file.write(b"0123456789")
    one, other = memoryview(bytearray(4)), memoryview(bytearray(10))
    with store.open(store.join("a"), 10) as first:
        first.readinto(one)
        with store.open(store.join("a"), 10) as second:
            second.readinto(other)
            first.readinto(one)
    assert bytes(one) == b"4567"
    assert bytes(other) == b"0123456789"


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("http://user:hunter2@host/a.tfrecord?X-Signature=hunter2#part", "http://host/a.tfrecord"),
        ("https://host/a@b.tfrecord", "https://host/a@b.tfrecord"),
    ],
)
def test_messages_show_no_credentials(url: str, public: str) -> None:
    store = Store(Web(), url)
    assert store.public(url) == public
    assert repr(store) == f"Store({public!r})"


def test_a_store_travels_and_hides_its_options() -> None:
    store = Store.at("memory://bucket/root", {"token": SECRET})
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert tokenize(copy) == tokenize(store)
    assert tokenize(store) != tokenize(Store.at("memory://bucket/root", {"token": "other"}))
    assert SECRET not in repr(store)
    assert SECRET not in repr(store.__dask_tokenize__())


WRITES = [to_tfrecord, lambda ddf, path: index(path), lambda ddf, path: cleanup(path)]


@pytest.mark.parametrize("sign", ["::", "\n", "\r", "\t", "\0", "?versionId="])
@pytest.mark.parametrize("root", ["{}/a{}b", "{}/{}b", "{}/a{}", "memory://b/a{1}b", "s3://bucket/a{1}b"])
@pytest.mark.parametrize("write", WRITES)
def test_a_root_that_fsspec_would_take_for_another_is_refused(
    tmp_path: Path, write: Callable[..., Any], root: str, sign: str
) -> None:
    with pytest.raises(DestinationError, match=r"contains .* in its name"):
        write(dd.from_dict({"n": [1]}, npartitions=1), root.format(tmp_path, sign))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("root", ["", b"", b"/tmp", None, 1])
@pytest.mark.parametrize("write", WRITES)
def test_what_is_no_path_is_refused(write: Callable[..., Any], root: Any) -> None:
    with pytest.raises(TFRecordError, match="is not a path"):
        write(dd.from_dict({"n": [1]}, npartitions=1), root)


@pytest.mark.parametrize(
    "path", ["{}/a::b", "{}/a::file", "memory://b/a::b", "{}/s3::x", "a::", "::a", "s3://a::memory://b"]
)
def test_a_name_with_colons_is_not_read_as_a_chain_of_filesystems(tmp_path: Path, path: str) -> None:
    to_tfrecord(dd.from_dict({"n": [1]}, npartitions=1), tmp_path / "a")
    with pytest.raises(TFRecordError, match="'::' chains filesystems"):
        read_tfrecord(path.format(tmp_path))


@pytest.mark.parametrize("chain", ["simplecache::{}", "filecache::{}"])
@pytest.mark.parametrize("scheme", ["file://", "memory://"])
def test_files_are_read_through_a_cache(tmp_path: Path, chain: str, scheme: str) -> None:
    place = f"{scheme}{tmp_path}/place"
    ddf = dd.from_dict({"n": [1, 2, 3]}, npartitions=2)
    if scheme == "memory://":
        MemoryFileSystem.store.clear()
    to_tfrecord(ddf, place)
    options = {chain.partition(":")[0]: {"cache_storage": str(tmp_path / "cache")}}
    for path in (place, f"{place}/*.tfrecord"):
        found = read_tfrecord(chain.format(path), storage_options=options)
        assert found["n"].compute().tolist() == [1, 2, 3]


def test_files_are_read_from_an_archive(tmp_path: Path) -> None:
    to_tfrecord(dd.from_dict({"n": [1, 2, 3]}, npartitions=2), tmp_path / "place")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in (tmp_path / "place").glob("*.tfrecord"):
            archive.write(path, path.name)
    for prefix in ("", "file://"):
        ddf = read_tfrecord(f"zip://*.tfrecord::{prefix}{tmp_path}/all.zip")
        assert ddf["n"].compute().tolist() == [1, 2, 3]


def test_a_local_path_may_be_relative_or_have_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store.at("a/b").root == str(tmp_path / "a/b")
    assert Store.at(Path("a")).root == str(tmp_path / "a")
    assert Store.at("~/a").root == os.path.expanduser("~/a")
