"""Files that were rewritten after the snapshot raise, or are read as they are now; none is skipped.

Modules: files.storage.listing.
"""

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import fsspec
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import page_server, s3_server

import dask_tfrecord
from dask_tfrecord import (
    CorruptRecordError,
    DestinationError,
    FileChangedError,
    Snapshot,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.files.storage import listing

pytestmark = pytest.mark.usefixtures("one_thread")

ADVICE = r"dask_tfrecord\.index\("


def content(first: int) -> bytes:
    """A file of ten records; its size is the same for every ``first`` from 100 to 1,000."""
    return oracle.features_file([{"n": ("int64", [first + n])} for n in range(10)])


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    with s3_server() as options:
        fsspec.filesystem("s3", **options).call_s3("create_bucket", Bucket="stale")
        yield options


@pytest.fixture(params=["local", "memory", "s3"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> "Place":
    """An indexed directory of three files of another writer."""
    options = request.getfixturevalue("s3") if request.param == "s3" else {}
    url = f"{tmp_path}/data" if request.param == "local" else f"{request.param}://stale/{tmp_path.name}"
    fs, root = fsspec.url_to_fs(url, **options)
    fs.makedirs(root, exist_ok=True)
    for number in range(3):
        fs.pipe_file(f"{root}/{number}.tfrecord", content(200 + 100 * number))
    dask_tfrecord.index(url, storage_options=options)
    return Place(url, options, fs, root)


class Place:
    """A dataset on some store."""

    def __init__(self, url: str, options: dict[str, Any], fs: Any, root: str) -> None:
        self.url, self.options, self.fs, self.root = url, options, fs, root

    def rewrite(self, name: str, first: int) -> None:
        """Replace the content by other content of the same size."""
        before = self.fs.info(f"{self.root}/{name}")["size"]
        self.fs.pipe_file(f"{self.root}/{name}", content(first))
        self.fs.invalidate_cache()
        assert self.fs.info(f"{self.root}/{name}")["size"] == before

    def read(self, **options: Any) -> Any:
        return read_tfrecord(self.url, storage_options=self.options, **options)


QUERIES: dict[str, Callable[[Place], Any]] = {
    "all": lambda place: place.read().compute(),
    "filters=": lambda place: place.read(filters=[("n", "==", 705)]).compute(),
    "filters= and len": lambda place: len(place.read(filters=[("n", "==", 705)])),
    "a filter": lambda place: (lambda d: d[d.n == 705].compute())(place.read()),
    "a filter and len": lambda place: len((lambda d: d[d.n == 705])(place.read())),
    "blocksize=None": lambda place: place.read(blocksize=None).n.sum().compute(),
    "loc": lambda place: (
        place.read(index="n", calculate_divisions=True, blocksize=None).loc[705:705].compute()
    ),
    "len": lambda place: len(place.read()),
    "take": lambda place: dask_tfrecord.take(place.url, [25], storage_options=place.options),
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_rewritten_file_of_the_same_size_raises_whatever_is_asked(foreign: Place, query: str) -> None:
    QUERIES[query](foreign)
    foreign.rewrite("1.tfrecord", 700)
    with pytest.raises(FileChangedError, match=ADVICE) as caught:
        QUERIES[query](foreign)
    assert str(caught.value.path).endswith("/1.tfrecord")
    assert caught.value.problem.startswith("the content is not the one")
    assert caught.value.record is None


LATE: dict[str, Callable[[Place], Callable[[], Any]]] = {
    "all": lambda place: place.read().compute,
    "filters=": lambda place: place.read(filters=[("n", "<", 250)]).compute,
    "filters= that nothing matches": lambda place: place.read(filters=[("n", "<", 0)]).compute,
    "filters= and len": lambda place: partial(len, place.read(filters=[("n", "<", 250)])),
    "a filter": lambda place: (lambda d: d[d.n < 250].compute)(place.read()),
    "a filter, a file each": lambda place: (lambda d: d[d.n < 250].compute)(place.read(blocksize=None)),
    "len": lambda place: partial(len, place.read()),
    "loc": lambda place: place.read(index="n", calculate_divisions=True, blocksize=None).loc[200:210].compute,
    "pickled": lambda place: partial(
        lambda plan: pickle.loads(plan).compute(), pickle.dumps((lambda d: d[d.n < 250])(place.read()))
    ),
}


@pytest.mark.parametrize("query", LATE)
def test_a_file_that_is_rewritten_between_plan_and_task_raises_also_if_it_is_not_read(
    foreign: Place, query: str
) -> None:
    assert LATE[query](foreign)() is not None
    late = LATE[query](foreign)
    foreign.rewrite("1.tfrecord", 240)
    with pytest.raises(FileChangedError, match="rewritten since") as caught:
        late()
    assert str(caught.value.path).endswith("/1.tfrecord")


def test_the_files_as_they_are_now_are_read_without_the_snapshot(foreign: Place) -> None:
    foreign.rewrite("1.tfrecord", 700)
    assert foreign.read(use_snapshot=False).n.sum().compute() == sum(
        first + n for first in (200, 700, 400) for n in range(10)
    )


def test_a_file_that_is_written_again_with_the_same_content_is_read(foreign: Place) -> None:
    foreign.rewrite("1.tfrecord", 300)
    assert len(foreign.read()) == 30
    assert foreign.read(filters=[("n", "==", 305)]).n.compute().tolist() == [305]
    assert dask_tfrecord.take(foreign.url, [15], storage_options=foreign.options).n.tolist() == [305]


@pytest.mark.parametrize("size", ["same", "another"])
def test_index_is_called_again_after_a_rewrite(foreign: Place, size: str) -> None:
    if size == "same":
        foreign.rewrite("1.tfrecord", 700)
    else:
        foreign.fs.pipe_file(f"{foreign.root}/1.tfrecord", content(700_000))
    snapshot = dask_tfrecord.index(foreign.url, storage_options=foreign.options)
    assert (snapshot.number, snapshot.records) == (2, 30)
    assert Snapshot.open(foreign.url, storage_options=foreign.options) == snapshot
    first = 700 if size == "same" else 700_000
    assert foreign.read(filters=[("n", "==", first + 5)]).n.compute().tolist() == [first + 5]
    with pytest.raises(DestinationError, match="up to date"):
        dask_tfrecord.index(foreign.url, storage_options=foreign.options)


def test_a_read_after_index_was_called_again_is_not_the_read_before(foreign: Place) -> None:
    """Dask reuses one expression for all expressions with the same token."""
    filters = [("n", "<", 250)]
    before = foreign.read(filters=filters)
    foreign.rewrite("1.tfrecord", 700)
    dask_tfrecord.index(foreign.url, storage_options=foreign.options)
    assert len(foreign.read(filters=filters).compute()) == 10
    with pytest.raises(FileChangedError):
        before.compute()


def test_many_files_that_are_not_read_are_looked_up_by_one_listing(
    foreign: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_FEW", 0)
    late = foreign.read(filters=[("n", "<", 250)])
    assert len(late.compute()) == 10
    foreign.rewrite("1.tfrecord", 240)
    with pytest.raises(FileChangedError, match="rewritten since"):
        late.compute()


def test_index_is_called_again_after_files_came_and_went(foreign: Place) -> None:
    foreign.fs.rm_file(f"{foreign.root}/0.tfrecord")
    foreign.fs.pipe_file(f"{foreign.root}/9.tfrecord", content(900))
    snapshot = dask_tfrecord.index(foreign.url, storage_options=foreign.options)
    assert [file.path for file in snapshot.files] == ["1.tfrecord", "2.tfrecord", "9.tfrecord"]
    assert len(foreign.read()) == 30


def test_a_snapshot_without_stamps_is_read(foreign: Place) -> None:
    """Other programs may write snapshots without stamps."""
    path = f"{foreign.root}/_tfrecord/00000001.parquet"
    table = pq.read_table(pa.BufferReader(foreign.fs.cat_file(path)))
    sink = pa.BufferOutputStream()
    pq.write_table(table.drop_columns("stamp"), sink)
    foreign.fs.pipe_file(path, sink.getvalue().to_pybytes())
    foreign.fs.invalidate_cache()
    assert len(foreign.read()) == 30
    assert foreign.read(filters=[("n", "==", 305)]).n.compute().tolist() == [305]


def test_times_that_were_set_back_do_not_hide_other_content_from_who_reads_it(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    path = root / "a.tfrecord"
    path.write_bytes(content(200))
    status = path.stat()
    dask_tfrecord.index(root)
    path.write_bytes(content(700))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(FileChangedError, match="CRC-32C differs"):
        read_tfrecord(root).compute()
    # Without checksums, only the size and the time show a change. The time decides whether to compare more.
    assert read_tfrecord(root, verify_crc=False).n.compute().tolist() == [*range(700, 710)]
    os.utime(path)
    with pytest.raises(FileChangedError, match="CRC-32C differs"):
        read_tfrecord(root, verify_crc=False).compute()
    path.write_bytes(content(700) + content(200))
    with pytest.raises(CorruptRecordError, match="bytes"):
        read_tfrecord(root, verify_crc=False).compute()


def test_a_file_behind_a_link_has_a_stamp_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(2):
        (tmp_path / f"{number}").write_bytes(content(200 + 100 * number))
        (tmp_path / "data" / f"{number}.tfrecord").symlink_to(tmp_path / f"{number}")
    dask_tfrecord.index(tmp_path / "data")
    assert all(file.stamp for file in Snapshot.open(tmp_path / "data").files)
    late = read_tfrecord(tmp_path / "data", filters=[("n", "<", 250)])
    (tmp_path / "1").write_bytes(content(240))
    for query in (
        late.compute,
        lambda: read_tfrecord(tmp_path / "data", filters=[("n", "<", 250)]).compute(),
    ):
        with pytest.raises(FileChangedError):
            query()


def test_rows_over_http_come_from_what_the_server_has_now(tmp_path: Path) -> None:
    """A page of links has no modification times, so a read may not trust the snapshot."""
    root = tmp_path / "data"
    root.mkdir()
    for number in range(2):
        (root / f"{number}.tfrecord").write_bytes(content(200 + 100 * number))
    dask_tfrecord.index(root)
    with page_server(tmp_path) as url:
        assert read_tfrecord(f"{url}/data/", filters=[("n", "==", 305)]).n.compute().tolist() == [305]
        (root / "1.tfrecord").write_bytes(content(700))
        for query in (lambda d: d[d.n == 705].compute(), len):
            with pytest.raises(FileChangedError, match="CRC-32C differs"):
                query(read_tfrecord(f"{url}/data/"))


# --- our own files ---------------------------------------------------------------------------------------


def write(root: Path, **options: Any) -> Path:
    frame = pd.DataFrame({"n": range(100, 130), "k": [n // 10 for n in range(30)]})
    to_tfrecord(dd.from_pandas(frame, npartitions=3), root, **options)
    return root


def harm(root: Path) -> Path:
    """Reverse the records of one of the files."""
    path = min(root.glob("**/part-*"))
    path.write_bytes(oracle.records_file(oracle.frames(path.read_bytes())[::-1]))
    return path


@pytest.mark.parametrize("query", [lambda d: d[d.n == 129], lambda d: d[d.k == 2], lambda d: d, len])
def test_a_rewritten_file_of_ours_raises(tmp_path: Path, query: Callable[[Any], Any]) -> None:
    path = harm(write(tmp_path / "a"))
    for place in ("a", shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)):
        with pytest.raises(FileChangedError, match="restore the file") as caught:
            dd.compute(query(read_tfrecord(tmp_path / place)))
        assert Path(str(caught.value.path)).name == path.name
        with pytest.raises(FileChangedError, match="restore the file"):
            dask_tfrecord.index(tmp_path / place)


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"partition_on": "k"}])
@pytest.mark.parametrize("copy", [shutil.copyfile, shutil.copy2])
def test_a_copied_dataset_is_read(tmp_path: Path, options: dict[str, Any], copy: Any) -> None:
    root = write(tmp_path / "a", **options)
    shutil.copytree(root, tmp_path / "b", copy_function=copy)
    expected = read_tfrecord(root)
    found = read_tfrecord(tmp_path / "b")
    assert found.dtypes.to_dict() == expected.dtypes.to_dict()
    assert len(found) == 30
    pd.testing.assert_frame_equal(found.compute(), expected.compute())
    filtered = read_tfrecord(tmp_path / "b", filters=[("n", ">", 125)])
    assert sorted(filtered.n.compute()) == [126, 127, 128, 129]
    assert sorted(found[found.n > 125].n.compute()) == [126, 127, 128, 129]
    assert dask_tfrecord.take(tmp_path / "b", [-1]).n.tolist() == dask_tfrecord.take(root, [-1]).n.tolist()


def test_a_copy_that_keeps_the_times_is_as_fast_as_the_original(tmp_path: Path, opened: list[str]) -> None:
    shutil.copytree(write(tmp_path / "a"), tmp_path / "b")
    opened.clear()
    assert len(read_tfrecord(tmp_path / "b")) == 30
    assert opened == []


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"partition_on": "k"}])
def test_index_makes_a_copy_as_fast_as_the_original(
    tmp_path: Path, opened: list[str], options: dict[str, Any]
) -> None:
    root = write(tmp_path / "a", custom_metadata={"who": "me"}, **options)
    shutil.copytree(root, tmp_path / "b", copy_function=shutil.copyfile)
    before, after = Snapshot.open(root), dask_tfrecord.index(tmp_path / "b")
    stamps = [file.stamp for file in after.files]
    assert [replace(file, stamp="") for file in before.files] == [
        replace(file, stamp="") for file in after.files
    ]
    assert set(stamps).isdisjoint(file.stamp for file in before.files)
    assert (after.number, after.custom_metadata, after.columns) == (2, {"who": "me"}, before.columns)
    opened.clear()
    assert len(read_tfrecord(tmp_path / "b")) == 30
    assert opened == []
    to_tfrecord(read_tfrecord(root), tmp_path / "b", append=True, **options)
    assert len(read_tfrecord(tmp_path / "b")) == 60


def test_a_file_of_others_among_ours_is_indexed_again(tmp_path: Path) -> None:
    root = tmp_path / "a"
    root.mkdir()
    (root / "other.tfrecord").write_bytes(content(200))
    frame = pd.DataFrame({"n": range(10)})
    to_tfrecord(dd.from_pandas(frame, npartitions=1), root, append=True)
    (root / "other.tfrecord").write_bytes(content(700))
    with pytest.raises(FileChangedError, match=ADVICE):
        read_tfrecord(root).compute()
    dask_tfrecord.index(root)
    assert read_tfrecord(root, filters=[("n", ">", 708)]).n.compute().tolist() == [709]
