"""A plan reads the snapshot alone, and the task that reads a file notices that it is missing or has changed.

Modules: dataset.read.plan, dataset.read.discovery, dataset.read.partitions, dataset.snapshot.moved_files,
files.window.
"""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_tfrecord import FileChangedError, explain, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.query.predicates import Outcomes
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.rewrite import add_snapshot
from dask_tfrecord.dataset.snapshot import check
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.feed import RecordTable, iter_batches

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = 5
FRAME = pd.DataFrame({"n": range(50), "key": [n // 25 for n in range(50)], "text": ["x" * 20] * 50})


@pytest.fixture(autouse=True)
def _no_check_before_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat each dataset as a large one."""
    monkeypatch.setattr(check, "_MOST_CHECKED", 0)


@pytest.fixture
def written(place: str) -> str:
    options: Any = {"write_options": {"max_rows_per_file": 10}, "columnar": ["key"]}
    to_tfrecord(FRAME, place, write_index=False, **options)
    return place


def remove(place: str, number: int | None = None) -> list[str]:
    """Remove the data file with a number, or all data files."""
    fs, root = fsspec.url_to_fs(place)
    found = sorted(path for path in fs.find(root) if "/part-" in path)
    assert len(found) == FILES
    removed = found if number is None else [found[number]]
    for path in removed:
        fs.rm_file(path)
    return removed


def facts(place: str) -> dict[str, Any]:
    """What the snapshot answers."""
    ddf, dataset, few = read_tfrecord(place), open_dataset(place), [("n", "<", 15)]
    return {
        "partitions": (ddf.npartitions, read_tfrecord(place, filters=few, blocksize=1).npartitions),
        "len": (len(ddf), dataset.num_rows, dataset.count_rows(), dataset.nbytes),
        "statistics": dataset.statistics.to_dict(),
        "files": dataset.files.to_dict("list"),
        "history": dataset.history().to_dict(),
        "explain": explain(ddf[ddf["n"] < 15]).totals,
        "repr": repr(dataset),
    }


def test_plans_and_facts_come_from_the_snapshot_alone(written: str) -> None:
    before = facts(written)
    remove(written)
    assert facts(written) == before


def test_values_of_column_files_are_read_without_the_data_files(written: str) -> None:
    remove(written)
    assert read_tfrecord(written, columns=["key"], blocksize=None).sum().compute().tolist() == [25]
    assert RecordTable(written, columns=["key"])[49] == {"key": 1}


# Each reads the file with the rows 20 to 29.
READS: dict[str, Callable[[str], Callable[[], Any]]] = {
    "compute": lambda place: read_tfrecord(place).compute,
    "filters": lambda place: read_tfrecord(place, filters=[("n", "==", 25)]).compute,
    "mask": lambda place: (lambda ddf: ddf[ddf["n"] == 25].compute)(read_tfrecord(place, blocksize=None)),
    "pickled": lambda place: pickle.loads(pickle.dumps(read_tfrecord(place))).compute,
    "damage": lambda place: read_tfrecord(place, on_corrupt="skip").compute,
    "table": lambda place: open_dataset(place).to_table,
    "take": lambda place: partial(open_dataset(place).take, [25]),
    "batches": lambda place: partial(list, iter_batches(place, 7)),
    "shuffled": lambda place: partial(list, iter_batches(place, 7, shuffle=True, seed=1)),
    "to_batches": lambda place: (lambda dataset: lambda: [*dataset.to_batches()])(open_dataset(place)),
    "head": lambda place: partial(open_dataset(place).head, 30),
    "count": lambda place: partial(open_dataset(place).count_rows, pc.field("n") == 25),
    "persist": lambda place: read_tfrecord(place).persist,
    "record": lambda place: (lambda dataset: lambda: RecordTable(dataset)[25])(open_dataset(place)),
}


# These plan again when they run.
USES: dict[str, Callable[[str], Callable[[], Any]]] = {
    "export": lambda place: partial(open_dataset(place).export, "idx"),
    "compact": lambda place: open_dataset(place).compact,
    "delete": lambda place: partial(open_dataset(place).delete, [("n", "==", 25)]),
    "write": lambda place: partial(to_tfrecord, read_tfrecord(place), f"{place} copy"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("read", [*READS, *USES])
@pytest.mark.parametrize("is_planned", [True, False])
def test_a_removed_file_raises_in_the_task_that_reads_it_with_its_remedies(
    written: str, read: str, is_planned: bool
) -> None:
    plan = (READS | USES)[read]
    planned = plan(written)
    [path] = remove(written, 2)
    with pytest.raises(FileChangedError, match=r"the file is missing, but the dataset's snapshot") as caught:
        (planned if is_planned else plan(written))()
    assert isinstance(caught.value, FileNotFoundError)
    assert str(caught.value.path).endswith(path.rpartition("/")[2])
    [call], remedies = caught.value.calls, [*caught.value.remedies, *caught.value.other_remedies]
    assert (call.function, [one.keyword for one in remedies]) == ("repair", ["use_snapshot"])


def test_the_remedies_of_a_removed_file_work_and_other_files_are_read(written: str) -> None:
    remove(written, 2)
    others = [n for n in range(50) if n // 10 != 2]
    assert read_tfrecord(written, filters=[("n", "<", 20)])["n"].compute().tolist() == [*range(20)]
    assert open_dataset(written).take([0, -1])["n"].to_pylist() == [0, 49]
    assert read_tfrecord(written, use_snapshot=False)["n"].compute().tolist() == others
    assert open_dataset(written).repair().rows == 40
    assert read_tfrecord(written)["n"].compute().tolist() == others


def test_a_removed_file_of_an_older_version_names_the_version(written: str) -> None:
    late = read_tfrecord(written)
    open_dataset(written).compact()
    fs, root = fsspec.url_to_fs(written)
    fs.rm_file(min(path for path in fs.find(f"{root}/_tfrecord/kept") if "/part-" in path))
    for read in (late, read_tfrecord(written, version=1)):
        with pytest.raises(FileChangedError, match=r"lists it, in its version 1; put the file back"):
            read.compute()
    assert len(read_tfrecord(written).compute()) == 50


def test_a_stale_plan_says_that_its_version_was_overwritten(written: str) -> None:
    planned = {name: read(written) for name, read in READS.items()}
    to_tfrecord(FRAME[:5], written, overwrite=True, write_index=False)
    for name, read in planned.items():
        with pytest.raises(FileChangedError, match=r"overwritten. The dataset has version 2; read") as caught:
            read()
        assert isinstance(caught.value, FileNotFoundError), name
    assert len(read_tfrecord(written).compute()) == 5


def overwrite(place: str) -> None:
    to_tfrecord(FRAME[:3], place, write_index=False, overwrite=True)


def compact(place: str) -> None:
    open_dataset(place).compact(keep_versions=False)


def expire(place: str, grace: str = "0s") -> None:
    open_dataset(place).compact()
    open_dataset(place).expire(versions=1, grace=grace)


def append(place: str) -> Any:
    """Append, so that the newest version has several lists. A plan opens the first and the last of them."""
    for _ in range(2):
        to_tfrecord(FRAME[:3], place, write_index=False, append=True)
    return read_tfrecord(place), open_dataset(place)


@pytest.mark.parametrize("change", [overwrite, compact, expire])
def test_a_stale_plan_that_has_read_no_list_says_that_its_version_is_gone(
    written: str, change: Callable[[str], None]
) -> None:
    ddf, dataset = append(written)
    change(written)
    uses = [ddf.compute, lambda: ddf.npartitions, lambda: dataset.files, lambda: dataset.to_dask().compute()]
    for use in uses:
        with pytest.raises(FileChangedError, match=r"version 3 of .* overwritten .*read the dataset again"):
            use()
    assert (len(ddf), dataset.num_rows) == (56, 56)  # from the head of the planned version


def test_an_overwrite_during_a_plan_is_read(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(written)
    original = Snapshot.files_for

    def overtaken(snapshot: Snapshot, *arguments: Any) -> Any:
        monkeypatch.undo()
        overwrite(written)
        return original(snapshot, *arguments)

    monkeypatch.setattr(Snapshot, "files_for", overtaken)
    assert len(read_tfrecord(written, filters=[("n", ">=", 1)]).compute()) == 2


def test_a_plan_that_has_read_no_list_is_read_in_the_grace_period(written: str) -> None:
    ddf, dataset = append(written)
    expire(written, "1 hour")
    assert len(ddf.compute()) == len(dataset.to_dask().compute()) == 56


@pytest.mark.sampled
@pytest.mark.parametrize("read", [*READS, *USES])
@pytest.mark.parametrize("change", [lambda data: data[:-16], lambda data: data + data])
def test_a_file_of_another_size_raises_in_the_task_that_reads_it(
    written: str, read: str, change: Callable[[bytes], bytes]
) -> None:
    if read == "record" and written.startswith("memory"):
        pytest.skip("ranges of a remote file do not tell its size")
    fs, root = fsspec.url_to_fs(written)
    path = sorted(path for path in fs.find(root) if "/part-" in path)[2]
    data = change(fs.cat_file(path))
    fs.pipe_file(path, data)
    assert len(read_tfrecord(written)) == 50
    with pytest.raises(FileChangedError, match=r"the file has .* in the dataset's snapshot") as caught:
        (READS | USES)[read](written)()
    assert str(caught.value.path).endswith(path.rpartition("/")[2])


@pytest.mark.parametrize("blocksize", ["8 MiB", 2000])
def test_the_parts_of_a_copied_file_of_another_tool_are_compared_with_the_snapshot(
    tmp_path: Path, blocksize: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_snapshot, "BLOCK_BYTES", 500)
    to_tfrecord(pa.table({"n": range(2000)}), tmp_path)
    [path] = tmp_path.glob("part-*")
    data = path.read_bytes()
    for one in (path, *(tmp_path / "_tfrecord").glob("*.parquet")):
        one.unlink()
    copied = tmp_path / "a.tfrecord"
    copied.write_bytes(data)
    open_dataset(tmp_path).add_snapshot()
    options: Any = {"blocksize": blocksize, "read_options": {"verify_crc": False}}
    assert (read_tfrecord(tmp_path, **options).npartitions > 20) == (blocksize == 2000)
    for moment in (1, 2):
        copied.write_bytes(data)
        Path(copied).touch()
        assert read_tfrecord(tmp_path, **options)["n"].sum().compute() == sum(range(2000)), moment
    first = int.from_bytes(data[:8], "little") + 16
    copied.write_bytes(data[first:] + data[:first])
    with pytest.raises(FileChangedError, match=r"the CRC-32C differs.*\.add_snapshot\("):
        read_tfrecord(tmp_path, **options).compute()
    open_dataset(tmp_path).add_snapshot()
    assert read_tfrecord(tmp_path, **options)["n"].sum().compute() == sum(range(2000))


QUERIES: dict[str, Callable[[str, Any], Any]] = {
    "filters": lambda place, ddf: read_tfrecord(place, filters=[("n", ">=", 38)]).compute(),
    "filters and count": lambda place, ddf: len(read_tfrecord(place, filters=[("key", "==", 1)])),
    "mask": lambda place, ddf: ddf[(ddf["n"] > 12) & (ddf["key"] == 0)].compute(),
    "negated mask": lambda place, ddf: ddf[~(ddf["n"] > 12)]["n"].sum().compute(),
    "null": lambda place, ddf: len(read_tfrecord(place, filters=[("n", "is", None)])),
    "expression": lambda place, ddf: open_dataset(place).filter(pc.field("n") < 11).to_table().to_pandas(),
    "rows": lambda place, ddf: RecordTable(place).matching([("n", ">", 41)]),
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_the_same_rows_if_no_statistic_excludes_a_file(
    written: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = pd.DataFrame({"n": [None, 7, 60], "key": [1, 0, 5], "text": "y"})
    to_tfrecord(more.convert_dtypes(), written, append=True, write_index=False)
    pruned = QUERIES[query](written, read_tfrecord(written))
    monkeypatch.setattr(ReadPlan, "outcomes", lambda plan, _: Outcomes(*np.ones((3, len(plan.files)), bool)))
    whole = QUERIES[query](written, read_tfrecord(written))
    if isinstance(pruned, pd.DataFrame):
        pd.testing.assert_frame_equal(pruned, whole)
    else:
        assert np.array_equal(pruned, whole)


def test_a_file_dropped_beside_a_large_dataset_is_not_read_and_check_reports_it(written: str) -> None:
    fs, root = fsspec.url_to_fs(written)
    fs.cp_file(min(path for path in fs.find(root) if "/part-" in path), f"{root}/more.tfrecord")
    before = facts(written)
    assert before["len"][0] == len(read_tfrecord(written).compute()) == 50
    to_tfrecord(FRAME[:1], written, append=True, write_index=False)
    assert len(read_tfrecord(written).compute()) == 51
    report = open_dataset(written).check()
    assert [(path.rpartition("/")[2], problem) for path, problem, *_ in report.to_numpy()] == [
        ("more.tfrecord", "unlisted")
    ]
