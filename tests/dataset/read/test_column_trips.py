"""Column files on a store: the files of a partition are read together, in trips that do not grow with them.

Modules: dataset.read.column_reads, dataset.read.task, files.column_files, files.selected_records.
"""

from collections.abc import Callable, Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from servers import LinkedStore

import dask_tfrecord
from dask_tfrecord import Dataset, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.read import column_reads, task
from dask_tfrecord.files import column_files, small_columns
from dask_tfrecord.files.column_files import open_column_file

pytestmark = pytest.mark.usefixtures("one_thread")

FILES, ROWS = 24, 2400


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    numbers = np.arange(ROWS)
    texts = [f"{n % 7}" * 500 for n in numbers]
    return pd.DataFrame({"id": numbers, "key": numbers % 100, "text": texts})


@pytest.fixture(scope="module", params=["own", "foreign"])
def place(request: pytest.FixtureRequest, linked: LinkedStore, frame: pd.DataFrame) -> str:
    """24 files of 50 KB, so that they are small, but not so small that their records are decoded anyway."""
    found = linked.new_place()
    of_file = {"write_options": {"max_rows_per_file": ROWS // FILES}}
    columns = {"columnar": ["id", "key"]}
    if request.param == "own":
        to_tfrecord(frame, found, storage_options=linked.direct, **columns, **of_file)
    else:
        to_tfrecord(frame, f"{found}-made", storage_options=linked.direct, **of_file)
        for number, path in enumerate(sorted(linked.fs.glob(f"{found}-made/part-*"))):
            linked.fs.pipe_file(f"{found}/{number:02}.tfrecord", linked.fs.cat_file(path))
        open_dataset(found, storage_options=linked.direct).add_snapshot(**columns)
    return found


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(column_reads, "_SMALL_BYTES", 1 << 10)
    monkeypatch.setattr(column_files, "_TAIL_BYTES", 12_000)
    monkeypatch.setattr(column_files, "_GAP_BYTES", 1)
    open_column_file.cache_clear()
    yield
    open_column_file.cache_clear()


def one_column(place: str, **options: Any) -> dd.DataFrame:
    return read_tfrecord(place, columns=["id"], blocksize="1 GiB", **options)


def filtered(place: str, **options: Any) -> dd.DataFrame:
    return read_tfrecord(place, filters=[("key", "==", 5)], blocksize="1 GiB", **options)


def filtered_column(place: str, **options: Any) -> dd.DataFrame:
    filters = [("key", "in", [5, 50])]
    return read_tfrecord(place, columns=["id"], filters=filters, blocksize="1 GiB", **options)


def masked(place: str, **options: Any) -> dd.DataFrame:
    ddf = read_tfrecord(place, blocksize="1 GiB", **options)
    return ddf[ddf["key"] == 5]


SELECT: dict[Callable[..., dd.DataFrame], Callable[[pd.DataFrame], pd.DataFrame]] = {
    one_column: lambda frame: frame[["id"]],
    filtered: lambda frame: frame[frame["key"] == 5],
    filtered_column: lambda frame: frame[frame["key"].isin([5, 50])][["id"]],
    masked: lambda frame: frame[frame["key"] == 5],
}


@pytest.mark.parametrize("read", SELECT)
def test_files_of_a_partition_are_read_at_once(
    read: Callable[..., dd.DataFrame], place: str, linked: LinkedStore, frame: pd.DataFrame
) -> None:
    ddf = read(place, storage_options=linked.options)
    with linked.link.recording(rounds=True) as traffic:
        found = ddf.compute()
    expected = SELECT[read](frame).reset_index(drop=True).astype(found.dtypes)
    assert found.reset_index(drop=True).equals(expected)
    assert len(traffic) > FILES / 2
    assert traffic.trips <= 12
    assert traffic.at_once >= 8


def test_explain_reads_the_filter_columns_of_all_files_at_once(place: str, linked: LinkedStore) -> None:
    ddf = filtered(place, storage_options=linked.options)
    with linked.link.recording(rounds=True) as traffic:
        text = repr(dask_tfrecord.explain(ddf))
    assert "records" in text
    assert traffic.trips <= 7


def test_threads_read_the_footer_of_a_column_file_once(
    place: str, linked: LinkedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with linked.link.recording() as traffic:
        one_column(place, storage_options=linked.options).compute()
    ranges = [request.range for request in traffic.of("GET", "/columns/")]
    assert len(ranges) == len(set(ranges))


@pytest.mark.parametrize(("splits", "size"), [(1, 1 << 24), (3, 700)])
def test_rows_do_not_depend_on_how_much_is_read_ahead(
    splits: int,
    size: int,
    place: str,
    linked: LinkedStore,
    frame: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(column_reads, "_AHEAD_SPLITS", splits)
    monkeypatch.setattr(column_reads, "_AHEAD_BYTES", size)
    for read, select in SELECT.items():
        found = read(place, storage_options=linked.direct).compute()
        assert found["id"].tolist() == select(frame)["id"].tolist()


def test_a_failure_ahead_is_raised_for_its_own_file(
    place: str, linked: LinkedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = column_reads.ColumnReads.choose
    dataset = open_dataset(place, storage_options=linked.direct)
    last = sorted(dataset.files["path"])[3]

    def fail(self: Any, split: Any, rows: Any = None) -> Any:
        if last.endswith(split.file.path):
            raise OSError("on purpose")
        return choose(self, split, rows)

    monkeypatch.setattr(column_reads.ColumnReads, "choose", fail)
    tables = dataset.scanner(columns=["id"]).to_batches()
    with pytest.raises(OSError, match="on purpose"):
        for _ in tables:
            pass


@pytest.mark.parametrize("read", [one_column, filtered, filtered_column])
def test_explain_says_how_many_requests_the_tasks_send(
    read: Callable[..., dd.DataFrame], place: str, linked: LinkedStore
) -> None:
    explanation = dask_tfrecord.explain(read(place, storage_options=linked.options))
    of_tasks = [sum(report.requests for report in of_task) for of_task in explanation.partitions]
    ddf = read(place, storage_options=linked.options)
    with linked.link.recording() as traffic:
        ddf.compute()
    # `explain` has read the footer of the column file, which the process keeps.
    assert explanation.totals["requests"] == sum(of_tasks) == len(traffic.of("GET"))
    assert f"about {sum(of_tasks)} requests to the store in 1 task" in repr(explanation)
    assert f"up to {min(16, *of_tasks, 16)} are sent at once" in repr(explanation)


def test_explain_of_local_files_speaks_of_no_requests(tmp_path: Any, frame: pd.DataFrame) -> None:
    to_tfrecord(frame, tmp_path)
    explanation = dask_tfrecord.explain(read_tfrecord(tmp_path))
    assert explanation.totals["requests"] == 0
    assert "request" not in repr(explanation)


def test_verify_compares_the_column_files_of_several_files_at_once(place: str, linked: LinkedStore) -> None:
    dataset = open_dataset(place, storage_options=linked.options)
    with linked.link.recording(rounds=True) as traffic:
        report = dataset.verify()
    assert report["agrees"].all()
    assert len(report) == FILES
    assert len(traffic) > 3 * FILES
    assert traffic.trips <= FILES


@pytest.fixture(scope="module")
def by_default(linked: LinkedStore, frame: pd.DataFrame) -> str:
    """Six files with images and texts, whose small columns (``id`` and ``key``) are in a column file each."""
    place, rows = linked.new_place(), frame[["id", "key", "text"]].iloc[:60]
    images = pd.array([bytes([number]) * 20_000 for number in range(60)], pd.ArrowDtype(pa.binary()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_columns, "LEAST_FILE_BYTES", 100_000)
        of_file = {"max_rows_per_file": 10}
        to_tfrecord(rows.assign(image=images), place, storage_options=linked.direct, write_options=of_file)
    assert len(linked.fs.glob(f"{place}/_tfrecord/columns/*")) == 6
    return place


CONSUMERS: dict[str, Callable[[Dataset], Any]] = {
    "collection": lambda one: one.to_dask().compute(),
    "table": lambda one: one.to_table(),
    "batches": lambda one: [*one.batches(7)],
    "count": lambda one: one.count_rows(),
    "explanation": lambda one: dask_tfrecord.explain(one.to_dask()),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize(
    ("request_", "is_stored"),
    [
        ({}, False),
        ({"columns": ["image", "key"]}, False),
        ({"columns": ["text"]}, False),
        ({"columns": ["key", "id"]}, True),
    ],
    ids=str,
)
def test_column_files_are_requested_only_if_they_have_all_columns(
    consumer: str, request_: dict[str, Any], is_stored: bool, by_default: str, linked: LinkedStore
) -> None:
    dataset = open_dataset(by_default, storage_options=linked.options, **request_)
    with linked.link.recording() as traffic:
        CONSUMERS[consumer](dataset)
    assert len(traffic.of("GET", "/columns/")) == 6 * (is_stored and consumer != "count")


@pytest.mark.parametrize(("columns", "is_used"), [(None, False), (["key"], True)], ids=str)
def test_rows_of_small_files_are_taken_without_offsets(
    columns: list[str] | None, is_used: bool, by_default: str, linked: LinkedStore
) -> None:
    dataset = open_dataset(by_default, storage_options=linked.options, columns=columns)
    with linked.link.recording() as traffic:
        assert dataset.take([3, 14, 59])["key"].to_pylist() == [3, 14, 59]
    assert (len(traffic.of("GET", "/columns/")) > 0) == is_used


def test_a_mask_that_needs_all_records_requests_them_ahead(
    by_default: str, linked: LinkedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "_BYTES_AT_ONCE", 1)  # of files that are not read ahead

    def trips(mask: Callable[[dd.DataFrame], dd.Series]) -> int:
        ddf = read_tfrecord(by_default, storage_options=linked.options)
        with linked.link.recording(rounds=True) as traffic:
            assert len(ddf[mask(ddf)].compute()) == 6
        return traffic.trips

    # The remainder is no filter on the column files, which take two trips: footers, and what waits for them.
    without = trips(lambda ddf: ddf["key"] % 10 == 3)
    assert trips(lambda ddf: ddf["key"].isin([*range(3, 60, 10)])) <= without + 2
