"""`filesystem=`: objects of fsspec and pyarrow in place of `storage_options`.

Modules: storage.filesystem, storage.store.
"""

import ast
import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

import dask
import dask.dataframe as dd
import fsspec
import operations
import pandas as pd
import pyarrow.fs as pafs
import pytest
import s3fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.flight import FlightDescriptor, connect
from servers import s3_server

import dask_tfrecord
from dask_tfrecord import DestinationError, TFRecordError, exists, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.listing import list_files
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.feed import RecordTable, flight, iter_batches, stream
from dask_tfrecord.storage.redaction import secrets_of
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(*numbers: int) -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": list(numbers), "key": [n % 2 for n in numbers]}), npartitions=2)


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    with s3_server() as options:
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="bucket")
        yield options


def arrow_s3(options: dict[str, Any]) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        access_key=options["key"],
        secret_key=options["secret"],
        endpoint_override=options["endpoint_url"],
        region="us-east-1",
    )


@pytest.fixture(
    params=[
        "local",
        "memory",
        "dir",
        "dir of memory",
        "s3",
        "arrow local",
        "arrow subtree",
        "arrow of fsspec",
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str]:
    """A filesystem on which files can be written, and a path on it that does not exist yet."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    if request.param == "s3":
        return s3fs.S3FileSystem(**request.getfixturevalue("s3")), f"bucket/{tmp_path.name}/place"
    objects: dict[str, tuple[Any, str]] = {
        "local": (LocalFileSystem(), f"{tmp_path}/place"),
        "memory": (MemoryFileSystem(), "/bucket/place"),
        "dir": (DirFileSystem(str(tmp_path), LocalFileSystem()), "place"),
        "dir of memory": (DirFileSystem("a", DirFileSystem("/b", MemoryFileSystem())), "/place"),
        "arrow local": (pafs.LocalFileSystem(), f"{tmp_path}/place"),
        "arrow subtree": (pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "place"),
        "arrow of fsspec": (pafs.PyFileSystem(pafs.FSSpecHandler(MemoryFileSystem())), "bucket/place"),
    }
    return objects[request.param]


# -- Every function ------------------------------------------------------------------------------------------


def test_all_functions_that_take_storage_options_take_a_filesystem() -> None:
    """Options of the command line are text, which cannot be an object."""
    public = {name: getattr(dask_tfrecord, name) for name in dask_tfrecord.__all__}
    names = {
        name: {*inspect.signature(one).parameters} for name, one in public.items() if inspect.isfunction(one)
    }
    for path in Path(dask_tfrecord.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if "cli" not in path.parts else ():
            if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or node.name[0] != "_"):
                arguments = {one.arg for one in [*node.args.args, *node.args.kwonlyargs]}
                names[f"{path.stem}, line {node.lineno}"] = arguments
    taking = {name for name, parameters in names.items() if "storage_options" in parameters}
    assert [name for name in taking if "filesystem" not in names[name]] == []
    assert taking >= {
        "read_tfrecord",
        "to_tfrecord",
        "open_dataset",
        "exists",
    }


def test_every_function_works_on_an_object(place: tuple[Any, str], tmp_path: Path) -> None:
    fs, path = place
    to_tfrecord(rows(0, 1, 2), path, partition_on="key", filesystem=fs)
    to_tfrecord(rows(3), path, append=True, partition_on="key", filesystem=fs)
    to_tfrecord(rows(5), path, overwrite="partitions", partition_on="key", filesystem=fs)
    ddf = read_tfrecord(path, filesystem=fs)
    assert sorted(ddf["n"].compute()) == [0, 2, 5]
    assert sorted(read_tfrecord(f"{path}/*/part*", filesystem=fs)["n"].compute()) == [0, 2, 5]
    assert len(read_tfrecord([f"{path}/key=0", f"{path}/key=1"], filesystem=fs)) == 3
    assert open_dataset(path, filesystem=fs).verify()["agrees"].all()
    assert exists(path, filesystem=fs)
    assert not exists(f"{path}x", filesystem=fs)
    assert Snapshot.open(path, filesystem=fs).records == 3
    assert open_dataset(path, filesystem=fs).take([-1])["n"].to_pylist() == [5]
    assert open_dataset(path, filesystem=fs).cleanup(older_than="0s") == []
    assert len(open_dataset(path, filesystem=fs).export("idx")) == 3
    assert len(RecordTable(path, filesystem=fs)) == 3
    assert sum(batch.num_rows for batch in iter_batches(path, filesystem=fs)) == 3
    assert stream.write_feather(path, f"{path}.feather", filesystem=fs).rows == 3
    with flight.serve(path, filesystem=fs) as server, connect(server.location) as client:
        info = client.get_flight_info(FlightDescriptor.for_path("any"))
        assert client.do_get(info.endpoints[0].ticket).read_all().num_rows == 3
    with pytest.raises(DestinationError, match="the DataFrame reads from"):
        to_tfrecord(ddf, path, overwrite=True, filesystem=fs)


def test_files_of_others_are_indexed_on_an_object(place: tuple[Any, str]) -> None:
    """The tokens of a read are those of the filesystem, and not of the object."""
    fs, path = place
    to_tfrecord(rows(0, 1, 2), path, filesystem=fs)
    again = pickle.loads(pickle.dumps(fs))
    assert read_tfrecord(path, filesystem=fs)._name == read_tfrecord(path, filesystem=again)._name
    store = Store.at(path, None, fs)
    store.remove_tree("_tfrecord")
    for name in store.names(""):
        if name.startswith("part-"):
            copied = store.move(store.join(name), store.join(f"other{name[-20:]}"))
            store.remove(filter(None, [copied]))
    assert open_dataset(path, filesystem=fs).add_snapshot().rows == 3


# -- Tasks ---------------------------------------------------------------------------------------------------


def test_tokens_of_arrow_filesystems_differ_with_their_options(s3: dict[str, Any]) -> None:
    tokens = [
        dask.base.tokenize(Store.at("bucket/a", None, arrow_s3({**s3, **change})))
        for change in ({}, {}, {"key": "other"})
    ]
    assert tokens[0] == tokens[1] != tokens[2]
    store = Store.at("bucket/a", None, arrow_s3(s3))
    assert dask.base.tokenize(pickle.loads(pickle.dumps(store))) == tokens[0]


# -- Filesystems of pyarrow that are not fsspec's ------------------------------------------------------------


def test_arrows_s3_is_read(s3: dict[str, Any]) -> None:
    place = "bucket/arrow"
    to_tfrecord(rows(0, 1, 2), f"s3://{place}", partition_on="key", compression="gzip", storage_options=s3)
    fs = arrow_s3(s3)
    for path in (place, f"s3://{place}", f"{place}/", f"{place}/*/part*"):
        assert sorted(read_tfrecord(path, filesystem=fs)["n"].compute()) == [0, 1, 2]
    assert open_dataset(place, filesystem=fs).verify()["agrees"].all()
    assert open_dataset(place, filesystem=fs).take([0])["n"].to_pylist() == [0]
    assert list_files(place, None, fs).files["stamp"][0].as_py()


def test_a_file_that_was_rewritten_on_arrows_s3_raises(s3: dict[str, Any]) -> None:
    to_tfrecord(rows(0, 1, 2), "s3://bucket/rewritten", storage_options=s3)
    ddf = read_tfrecord("bucket/rewritten/part*", filesystem=arrow_s3(s3))
    fs = s3fs.S3FileSystem(**s3)
    path = fs.glob("bucket/rewritten/part*")[0]
    content = fs.cat_file(path)
    sleep(1.1)  # S3 gives times in seconds
    fs.pipe_file(path, content)
    with pytest.raises(dask_tfrecord.FileChangedError, match="rewritten"):
        ddf.compute()


@pytest.mark.parametrize("call", [to_tfrecord, operations.cleanup, operations.add_snapshot])
def test_arrows_s3_is_not_written(s3: dict[str, Any], call: Callable[..., Any]) -> None:
    arguments = [rows(1)] if call is to_tfrecord else []
    to_tfrecord(rows(1), "s3://bucket/x", storage_options=s3, overwrite=True)
    with pytest.raises(DestinationError, match=r"S3FileSystem can be read but not written.*s3fs"):
        call(*arguments, "bucket/x", filesystem=arrow_s3(s3))


class LikeObstore(MemoryFileSystem):
    """Has what obstore's filesystem lacks of fsspec's interface."""

    protocol = "memory"

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        info = super().info(path, **options)
        if info["type"] == "directory":
            return info
        return {**info, "name": info["name"].removeprefix("/bucket/"), "created": None, "e_tag": "etag"}

    def cat_ranges(self, paths: Any, starts: Any, ends: Any, *args: Any, **options: Any) -> Any:
        if min(starts, default=0) < 0:
            raise OverflowError("can't convert negative int to unsigned")
        return super().cat_ranges(paths, starts, ends, *args, **options)


LikeObstore.__module__ = "obstore.fsspec"


def test_filesystem_of_obstore_is_read_but_not_written() -> None:
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    to_tfrecord(rows(0, 1, 2, 3), "memory://bucket/place")
    fs = LikeObstore()
    [file, _] = fs.glob("bucket/place/part-*")
    assert sorted(read_tfrecord("bucket/place", filesystem=fs)["n"].compute()) == [0, 1, 2, 3]
    assert sorted(read_tfrecord(file, filesystem=fs)["n"].compute()) == [0, 1]
    with pytest.raises(DestinationError, match="cannot create a file exclusively"):
        to_tfrecord(rows(4), "bucket/place", filesystem=fs, append=True)


class LikeHadoop(ArrowFSWrapper):
    """As fsspec wraps HDFS: `rmdir` removes a directory with all that is in it."""

    protocol = "like_hadoop"

    def __init__(self, **options: Any) -> None:
        super().__init__(pafs.LocalFileSystem(), **options)


def test_a_directory_of_hdfs_is_not_removed_while_it_holds_files(tmp_path: Path) -> None:
    fs, path = LikeHadoop(), f"{tmp_path}/place"
    to_tfrecord(rows(0, 1, 2), path, partition_on="key", filesystem=fs)
    assert Snapshot.open(path, filesystem=fs).records == 3
    to_tfrecord(rows(3), path, append=True, partition_on="key", filesystem=fs)
    to_tfrecord(rows(5), path, overwrite="partitions", partition_on="key", filesystem=fs)
    assert sorted(read_tfrecord(path, filesystem=fs)["n"].compute()) == [0, 2, 5]
    to_tfrecord(rows(7), path, overwrite=True, filesystem=fs)
    assert open_dataset(path, filesystem=fs).cleanup(older_than="0s") == []
    assert read_tfrecord(path, filesystem=fs)["n"].compute().tolist() == [7]
    assert len([one for one in Path(path).rglob("*") if one.is_file()]) == 3


# -- What is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("filesystem", ["arrow", "s3", 3, LocalFileSystem, {"anon": True}])
def test_what_is_no_filesystem_is_refused(filesystem: Any, tmp_path: Path) -> None:
    for call in (
        read_tfrecord,
        operations.verify,
        lambda path, **options: to_tfrecord(rows(1), path, **options),
    ):
        with pytest.raises(TFRecordError, match=r"filesystem= is not a filesystem.*pass an instance such as"):
            call(str(tmp_path), filesystem=filesystem)


def test_the_default_may_be_spelled_as_in_dask_and_options_go_without_an_object(tmp_path: Path) -> None:
    to_tfrecord(rows(1), tmp_path / "a", filesystem="fsspec")
    assert len(read_tfrecord(tmp_path / "a", filesystem="fsspec", storage_options={})) == 1
    with pytest.raises(TFRecordError, match=r"filesystem= and storage_options= are both given") as caught:
        read_tfrecord("x", filesystem=MemoryFileSystem(), storage_options={"key": "s3cret"})
    assert "s3cret" not in str(caught.value)
    fs = s3fs.S3FileSystem(asynchronous=True, anon=True, skip_instance_cache=True)
    with pytest.raises(TFRecordError, match="asynchronous=True"):
        read_tfrecord("bucket/x", filesystem=fs)


def test_a_url_of_another_filesystem_is_refused(tmp_path: Path) -> None:
    below = DirFileSystem(str(tmp_path), LocalFileSystem())
    for fs, path, reason in [
        (LocalFileSystem(), "s3://bucket/x", "URL of 's3'.*'file' and 'local'"),
        (MemoryFileSystem(), "file:///x", "URL of 'file'"),
        (below, f"file://{tmp_path}/x", "limited to a directory"),
        (below, "a/../../x", "leaves the directory"),
    ]:
        with pytest.raises(TFRecordError, match=reason):
            to_tfrecord(rows(1), path, filesystem=fs)
        with pytest.raises(TFRecordError, match=reason):
            read_tfrecord(path, filesystem=fs)
    assert list(tmp_path.iterdir()) == []


def test_a_glob_below_a_directory_like_a_glob_is_refused(tmp_path: Path) -> None:
    fs = DirFileSystem(f"{tmp_path}/a[b]", LocalFileSystem())
    to_tfrecord(rows(1), "x", filesystem=fs)
    to_tfrecord(rows(2), f"{tmp_path}/ab/x")
    assert read_tfrecord("x", filesystem=fs)["n"].compute().tolist() == [1]
    with pytest.raises(TFRecordError, match="glob characters in its name"):
        read_tfrecord("x/part*", filesystem=fs)


def test_a_cache_is_read_but_not_written(tmp_path: Path) -> None:
    to_tfrecord(rows(1, 2), tmp_path / "a")
    fs = fsspec.filesystem("simplecache", target_protocol="file", cache_storage=str(tmp_path / "cache"))
    assert sorted(read_tfrecord(str(tmp_path / "a"), filesystem=fs)["n"].compute()) == [1, 2]
    with pytest.raises(DestinationError, match="wraps another filesystem"):
        to_tfrecord(rows(1), str(tmp_path / "b"), filesystem=fs)


# -- Secrets -------------------------------------------------------------------------------------------------


def test_secrets_of_objects_are_known() -> None:
    plain = s3fs.S3FileSystem(False, None, "access-1234", "hidden-1234", skip_instance_cache=True)
    arrow = pafs.S3FileSystem(access_key="access-5678", secret_key="hidden-5678", region="us-east-1")
    for fs, secrets in [
        (plain, {"access-1234", "hidden-1234"}),
        (DirFileSystem("bucket", plain), {"hidden-1234"}),
        (pafs.PyFileSystem(pafs.FSSpecHandler(plain)), {"hidden-1234"}),
        (arrow, {"access-5678", "hidden-5678"}),
        (pafs.SubTreeFileSystem("bucket", arrow), {"hidden-5678"}),
        (Store.at("bucket/x", None, arrow), {"hidden-5678"}),
    ]:
        assert secrets <= secrets_of(fs)


def test_no_message_shows_the_secrets_of_an_object(
    s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = s3fs.S3FileSystem(**{**s3, "secret": "hidden-secret"}, skip_instance_cache=True)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(5, "request signed with hidden-secret failed")

    for name in ("info", "isdir", "ls"):
        monkeypatch.setattr(fs, name, fail)
    for call in (read_tfrecord, operations.verify, exists):
        with pytest.raises(OSError, match="failed") as caught:
            call("bucket/x", filesystem=fs)
        assert "hidden-secret" not in f"{caught.value} {caught.value!r}"
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("root", ["memory://a", "s3://bucket/a", "http://host/a?sig=x", "/a"])
def test_paths_are_shown_alike_one_by_one_and_together(root: str) -> None:
    store = Store.of(fsspec.filesystem("memory"), "/a") if root.startswith("memory") else Store.at(root)
    paths = [store.join(name) for name in ("x.tfrecord", "k=1/x.tfrecord", "k=1/y?sig=z", "k=2/x.tfrecord")]
    assert store.public_paths(paths) == [*map(store.public, paths)]
