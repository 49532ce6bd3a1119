"""Files that were rewritten, copied or linked after the snapshot: they raise, or are read as they are now.

Modules: dataset.snapshot.model, storage.reader.
"""

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
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
from servers import s3_server

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, DestinationError, FileChangedError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

pytestmark = pytest.mark.usefixtures("one_thread")

ADVICE = r"\.add_snapshot\("


def content(first: int) -> bytes:
    """A file of ten records; its size is the same for every ``first`` from 100 to 1,000."""
    return oracle.features_file([{"n": ("int64", [first + n])} for n in range(10)])


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    with s3_server() as options:
        fsspec.filesystem("s3", **options).call_s3("create_bucket", Bucket="stale")
        yield options


STORES = ["local", "memory", "s3"]


def rotating(cases: Any) -> pytest.MarkDecorator:
    """Try each case on one of the stores."""
    pairs = [(STORES[at % len(STORES)], case) for at, case in enumerate(cases)]
    return pytest.mark.parametrize(("foreign", "case"), pairs, indirect=["foreign"])


@pytest.fixture(params=STORES)
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> "Place":
    """An indexed directory of three files of another writer."""
    options = request.getfixturevalue("s3") if request.param == "s3" else {}
    url = f"{tmp_path}/data" if request.param == "local" else f"{request.param}://stale/{tmp_path.name}"
    place = Place(url, options)
    place.fs.makedirs(place.root, exist_ok=True)
    for number in range(3):
        place.fs.pipe_file(f"{place.root}/{number}.tfrecord", content(200 + 100 * number))
    place.index()
    return place


class Place:
    """A dataset on some store."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url, self.options = url, options
        self.fs, self.root = fsspec.url_to_fs(url, **options)

    def rewrite(self, name: str, first: int) -> None:
        """Replace the content by other content of the same size."""
        before = self.fs.info(f"{self.root}/{name}")["size"]
        self.fs.pipe_file(f"{self.root}/{name}", content(first))
        self.fs.invalidate_cache()
        assert self.fs.info(f"{self.root}/{name}")["size"] == before

    def open(self) -> Any:
        return dask_tfrecord.open_dataset(self.url, storage_options=self.options)

    def read(self, **options: Any) -> Any:
        return read_tfrecord(self.url, storage_options=self.options, **options)

    def index(self) -> Snapshot:
        self.open().add_snapshot()
        return Snapshot.open(self.url, storage_options=self.options)

    def take(self, row: int) -> list[int]:
        found: list[int] = self.open().take([row])["n"].to_pylist()
        return found

    def filtered(self, n: int) -> list[int]:
        found: list[int] = self.read(filters=[("n", "==", n)]).n.compute().tolist()
        return found


# For a place and a number: the plan of a query for the row with this number, which is then asked.
QUERIES: dict[str, Callable[[Place, int], Callable[[], Any]]] = {
    "filters=": lambda place, n: place.read(filters=[("n", "==", n)]).compute,
    "filters= and len": lambda place, n: partial(len, place.read(filters=[("n", "==", n)])),
    "a filter": lambda place, n: (lambda d: d[d.n == n].compute)(place.read()),
    "a filter and len": lambda place, n: (lambda d: partial(len, d[d.n == n]))(place.read()),
    "a filter, a file each": lambda place, n: (lambda d: d[d.n == n].compute)(place.read(blocksize=None)),
    "loc": lambda place, n: place.read(index="n", calculate_divisions=True, blocksize=None).loc[n:n].compute,
    "pickled": lambda place, n: pickle.loads(pickle.dumps((lambda d: d[d.n == n])(place.read()))).compute,
    "take": lambda place, n: partial(place.take, n % 100 + 10 * (n // 100 - 2)),
}


# Uses of all files, or of the first ones.
USES: dict[str, Callable[[Place], Callable[[], Any]]] = {
    "all": lambda place: place.read().compute,
    "head": lambda place: partial(place.open().head, 16),
    "batches": lambda place: partial(list, place.open().batches(16)),
    "export": lambda place: partial(place.open().export, "idx"),
    "compact": lambda place: place.open().compact,
    "delete": lambda place: partial(place.open().delete, [("n", "==", 305)]),
}


@pytest.mark.sampled
@rotating([*QUERIES, *USES])
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_rewritten_file_of_the_same_size_raises_in_the_task_that_reads_it(
    foreign: Place, case: str, is_planned: bool
) -> None:
    plan = partial(QUERIES[case], foreign, 305) if case in QUERIES else partial(USES[case], foreign)
    if case not in ("compact", "delete"):
        plan()()
    query = plan() if is_planned else lambda: plan()()
    foreign.rewrite("1.tfrecord", 700)
    with pytest.raises(FileChangedError, match=ADVICE) as caught:
        query()
    assert str(caught.value.path).endswith("/1.tfrecord")
    assert caught.value.problem.startswith("the content is not the one")
    assert caught.value.record is None


@rotating([case for case in QUERIES if case != "pickled"])  # without a filter, no statistics are pickled
def test_a_rewritten_file_that_no_task_reads_is_not_looked_at(foreign: Place, case: str) -> None:
    query = QUERIES[case](foreign, 205)
    foreign.rewrite("1.tfrecord", 700)
    for found in (query(), QUERIES[case](foreign, 205)()):
        assert found == [205] if case == "take" else (found if isinstance(found, int) else len(found)) == 1
    assert (len(foreign.read()), foreign.read(filters=[("n", "<", 0)]).compute().empty) == (30, True)


def test_a_file_that_is_written_again_with_the_same_content_is_read(foreign: Place) -> None:
    foreign.rewrite("1.tfrecord", 300)
    assert len(foreign.read()) == 30
    assert foreign.filtered(305) == foreign.take(15) == [305]


@rotating([700, 700_000, 700])
def test_index_is_called_again_after_a_rewrite(foreign: Place, case: int) -> None:
    """Dask reuses one expression for all expressions with the same token, but not for a read of before."""
    some, every = foreign.read(filters=[("n", "<", 250)]), foreign.read()
    foreign.fs.pipe_file(f"{foreign.root}/1.tfrecord", content(case))
    foreign.fs.invalidate_cache()
    current = sum(first + n for first in (200, case, 400) for n in range(10))
    assert foreign.read(use_snapshot=False).n.sum().compute() == current
    snapshot = foreign.index()
    assert (snapshot.number, snapshot.records) == (2, 30)
    assert Snapshot.open(foreign.url, storage_options=foreign.options) == snapshot
    assert foreign.filtered(case + 5) == [case + 5]
    assert len(foreign.read(filters=[("n", "<", 250)]).compute()) == 10
    assert some.n.compute().tolist() == [*range(200, 210)]
    with pytest.raises(FileChangedError):
        every.compute()
    with pytest.raises(DestinationError, match="up to date"):
        foreign.index()


@pytest.mark.parametrize("foreign", ["local", "s3"], indirect=True)
def test_index_is_called_again_after_files_came_and_went(foreign: Place) -> None:
    foreign.fs.rm_file(f"{foreign.root}/0.tfrecord")
    foreign.fs.pipe_file(f"{foreign.root}/9.tfrecord", content(900))
    assert [file.path for file in foreign.index().files] == ["1.tfrecord", "2.tfrecord", "9.tfrecord"]
    assert len(foreign.read()) == 30


@pytest.mark.parametrize("foreign", ["local", "s3"], indirect=True)
def test_a_snapshot_without_stamps_is_read(foreign: Place) -> None:
    """Other programs may write snapshots without stamps."""
    path = f"{foreign.root}/_tfrecord/00000001.parquet"
    table = pq.read_table(pa.BufferReader(foreign.fs.cat_file(path)))
    sink = pa.BufferOutputStream()
    pq.write_table(table.drop_columns("stamp"), sink)
    foreign.fs.pipe_file(path, oracle.with_footer_checksum(sink.getvalue().to_pybytes()))
    foreign.fs.invalidate_cache()
    assert len(foreign.read()) == 30
    assert foreign.filtered(305) == [305]


def test_times_that_were_set_back_do_not_hide_other_content_from_who_reads_it(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    path = root / "a.tfrecord"
    path.write_bytes(content(200))
    status = path.stat()
    dask_tfrecord.open_dataset(root).add_snapshot()
    path.write_bytes(content(700))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(FileChangedError, match="CRC-32C differs"):
        read_tfrecord(root).compute()
    # Without checksums, only the size and the time show a change. The time decides whether to compare more.
    assert read_tfrecord(root, read_options={"verify_crc": False}).n.compute().tolist() == [*range(700, 710)]
    os.utime(path)
    with pytest.raises(FileChangedError, match="CRC-32C differs"):
        read_tfrecord(root, read_options={"verify_crc": False}).compute()
    path.write_bytes(content(700) + content(200))
    with pytest.raises(CorruptRecordError, match="bytes"):
        read_tfrecord(root, read_options={"verify_crc": False}).compute()


def test_a_file_behind_a_link_has_a_stamp_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(2):
        (tmp_path / f"{number}").write_bytes(content(200 + 100 * number))
        (root / f"{number}.tfrecord").symlink_to(tmp_path / f"{number}")
    dask_tfrecord.open_dataset(root).add_snapshot()
    assert all(file.stamp for file in Snapshot.open(root).files)
    late = read_tfrecord(root, filters=[("n", "<", 305)])
    (tmp_path / "1").write_bytes(content(240))
    for query in (late.compute, lambda: read_tfrecord(root, filters=[("n", "<", 305)]).compute()):
        with pytest.raises(FileChangedError):
            query()


def write_keyed(root: Path, **options: Any) -> Path:
    frame = pd.DataFrame({"n": range(100, 130), "k": [n // 10 for n in range(30)]})
    to_tfrecord(dd.from_pandas(frame, npartitions=3), root, **options)
    return root


@pytest.mark.parametrize("query", [lambda d: d[d.n == 105], lambda d: d[d.k == 0], lambda d: d])
def test_a_rewritten_file_of_ours_raises(tmp_path: Path, query: Callable[[Any], Any]) -> None:
    """The records of one of the files are reversed."""
    path = min(write_keyed(tmp_path / "a").glob("part-*"))
    path.write_bytes(oracle.records_file(oracle.frames(path.read_bytes())[::-1]))
    for place in (
        tmp_path / "a",
        shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile),
    ):
        with pytest.raises(FileChangedError, match="restore the file") as caught:
            dd.compute(query(read_tfrecord(place)))
        assert Path(str(caught.value.path)).name == path.name


OPTIONS: list[dict[str, Any]] = [{}, {"compression": "gzip"}, {"partition_on": "k"}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("copy", [shutil.copyfile, shutil.copy2])
def test_a_copied_dataset_is_read(
    tmp_path: Path, opened: list[str], options: dict[str, Any], copy: Any
) -> None:
    root = write_keyed(tmp_path / "a", **options)
    shutil.copytree(root, tmp_path / "b", copy_function=copy)
    expected = read_tfrecord(root)
    opened.clear()
    found = read_tfrecord(tmp_path / "b")
    assert found.dtypes.to_dict() == expected.dtypes.to_dict()
    assert len(found) == 30
    assert opened == []
    pd.testing.assert_frame_equal(found.compute(), expected.compute())
    filtered = read_tfrecord(tmp_path / "b", filters=[("n", ">", 125)])
    assert sorted(filtered.n.compute()) == sorted(found[found.n > 125].n.compute()) == [126, 127, 128, 129]
    assert (
        dask_tfrecord.open_dataset(tmp_path / "b").take([-1])["n"].to_pylist()
        == dask_tfrecord.open_dataset(root).take([-1])["n"].to_pylist()
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_a_copied_dataset_needs_no_new_snapshot_and_can_be_appended_to(
    tmp_path: Path, opened: list[str], options: dict[str, Any]
) -> None:
    root = write_keyed(tmp_path / "a", **options)
    shutil.copytree(root, tmp_path / "b", copy_function=shutil.copyfile)
    with pytest.raises(DestinationError, match="already has a snapshot, which is up to date"):
        dask_tfrecord.open_dataset(tmp_path / "b").add_snapshot()
    assert Snapshot.open(tmp_path / "b").files == Snapshot.open(root).files
    assert opened == []
    to_tfrecord(read_tfrecord(root), tmp_path / "b", append=True, **options)
    assert len(read_tfrecord(tmp_path / "b")) == len(read_tfrecord(tmp_path / "b").compute()) == 60


def test_a_file_of_others_among_ours_is_indexed_again(tmp_path: Path) -> None:
    (tmp_path / "other.tfrecord").write_bytes(content(200))
    dask_tfrecord.open_dataset(tmp_path).add_snapshot()
    to_tfrecord(pa.table({"n": range(10)}), tmp_path, append=True)
    (tmp_path / "other.tfrecord").write_bytes(content(700))
    with pytest.raises(FileChangedError, match=ADVICE):
        read_tfrecord(tmp_path).compute()
    dask_tfrecord.open_dataset(tmp_path).add_snapshot()
    assert read_tfrecord(tmp_path, filters=[("n", ">", 708)]).n.compute().tolist() == [709]
