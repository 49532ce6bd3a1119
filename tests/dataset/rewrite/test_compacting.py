"""Compaction: the same rows in fewer files, beside other writes, of every kind of records, or no change.

Modules: dataset.rewrite.delete, dataset.rewrite.compact, files.window.
"""

import gzip
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import operations
import pandas as pd
import pyarrow as pa
import pytest
from small_frames import by_key, files_of, is_intact, keyed

import dask_tfrecord
from dask_tfrecord import ConcurrentWriteError, open_dataset, to_tfrecord
from dask_tfrecord.dataset.rewrite import compact, delete
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.files.splice import splice
from dask_tfrecord.storage.store import Store

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:TensorFlow reads only gzip and zlib"),
]

every = pytest.mark.parametrize("codec", [None, "gzip", "zlib", "zstd"])


def rows(*numbers: int) -> dd.DataFrame:
    """Rows of several days, with nulls and lists, in a partition for each three rows."""
    frame = pd.DataFrame({"day": [n // 10 for n in numbers], "n": list(numbers)})
    frame["text"] = pd.array([None if n % 3 else f"row {n}" for n in numbers], dtype="string[pyarrow]")
    return dd.from_pandas(frame, npartitions=(len(numbers) + 2) // 3)


def write(place: Path | str, numbers: range, **keywords: Any) -> Snapshot:
    keywords = {"partition_on": "day", "append": "overwrite" not in keywords, **keywords}
    to_tfrecord(rows(*numbers), place, **keywords)
    return Snapshot.open(place)


def contents(place: Path | str, **keywords: Any) -> pd.DataFrame:
    frame: pd.DataFrame = dask_tfrecord.read_tfrecord(place, **keywords).compute()
    return frame.reset_index(drop=True)


@every
def test_small_files_become_one_file_for_each_directory(place: str, codec: Any) -> None:
    for start in (0, 5, 12, 3):
        write(place, range(start, start + 12), compression=codec)
    before = contents(place)
    done = open_dataset(place).compact()
    assert [*done.details.values()] == [20, 3, 0]
    compacted = Snapshot.open(place)
    assert (compacted.mode, compacted.number, done.version) == ("compact", 5, 5)
    assert is_intact(place)
    pd.testing.assert_frame_equal(contents(place), before)
    # The statistics are those of all rows.
    day = contents(place, filters=[("day", "==", 1)])
    [statistics] = [file.statistics for file in compacted.files if file.values == (1,)]
    assert [(one.name, one.min, one.max, one.nulls) for one in statistics] == [
        ("n", day["n"].min(), day["n"].max(), 0),
        ("text", day["text"].min(), day["text"].max(), day["text"].isna().sum()),
    ]
    assert [*open_dataset(place).compact().details.values()] == [0, 0, 0]
    assert Snapshot.open(place).number == 5
    assert open_dataset(place).cleanup(older_than="0 s") == []


def test_files_of_half_the_target_stay_and_order_is_kept(tmp_path: Path) -> None:
    for at, size in enumerate([1, 1, 20, 1, 1, 1, 9, 1]):
        to_tfrecord(pa.table({"n": [at], "text": ["x" * 10_000 * size]}), tmp_path, append=True)
    before = contents(tmp_path)
    one = Snapshot.open(tmp_path).files[0].bytes
    open_dataset(tmp_path).compact(target_bytes=10 * one)
    assert [round(file.bytes / one) for file in Snapshot.open(tmp_path).files] == [2, 20, 3, 9, 1]
    pd.testing.assert_frame_equal(contents(tmp_path), before)
    assert [*open_dataset(tmp_path).compact(target_bytes=f"{2 * one} B").details.values()] == [0, 0, 0]
    with pytest.raises(dask_tfrecord.TFRecordError, match="target_bytes='many' is not a size"):
        open_dataset(tmp_path).compact(target_bytes="many")
    assert open_dataset(tmp_path).compact(target_bytes=None).files == 1


def test_rows_stay_new_in_a_compacted_file(tmp_path: Path) -> None:
    """An overwrite that was planned before the rows must not remove them, also if their number is right."""
    to_tfrecord(rows(1, 2, 3), tmp_path)
    overwrite = to_tfrecord(rows(9), tmp_path, overwrite=True, compute=False)
    open_dataset(tmp_path).delete([("n", "==", 1)])
    to_tfrecord(rows(4), tmp_path, append=True)
    open_dataset(tmp_path).compact(target_bytes=None)
    with pytest.raises(ConcurrentWriteError):
        overwrite.compute()


def test_filters_choose_the_files(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path, range(40))
    open_dataset(tmp_path).compact(filters=[("day", ">", 2)])
    open_dataset(tmp_path).compact(filters=[("n", "<", 10)])
    counts = Counter(file.values for file in Snapshot.open(tmp_path).files)
    assert counts == {(0,): 1, (1,): 8, (2,): 8, (3,): 1}
    with pytest.raises(dask_tfrecord.SchemaError):
        open_dataset(tmp_path).compact(filters=[("unknown", "==", 1)])


Other = Callable[[Path], object]


@pytest.mark.parametrize(
    ("other", "skipped", "expected"),
    [
        (lambda path: write(path, range(5, 15)), 0, [*range(30), *range(30), *range(5, 15)]),
        (
            lambda path: write(path, range(10, 13), overwrite="partitions"),
            8,
            [*range(10), *range(10), *range(10, 13), *range(20, 30), *range(20, 30)],
        ),
        (lambda path: write(path, range(10, 13), overwrite=True), 24, [*range(10, 13)]),
        (operations.compact, 24, [*range(30), *range(30)]),
    ],
    ids=["append", "partitions", "overwrite", "compact"],
)
def test_files_that_another_write_replaces_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Other, skipped: int, expected: list[int]
) -> None:
    """The other operation runs before the compaction writes its second file."""
    for _ in range(2):
        write(tmp_path, range(30))
    calls: list[int] = []

    def splice_slowly(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            other(tmp_path)
        return splice(*args)

    monkeypatch.setattr(compact, "splice", splice_slowly)
    assert open_dataset(tmp_path).compact().details["skipped_files"] == skipped
    assert sorted(contents(tmp_path)["n"]) == sorted(expected)
    assert is_intact(tmp_path)
    listed = {file.path for file in Snapshot.open(tmp_path).files}
    assert {name for name in files_of(tmp_path) if not name.startswith("_")} == listed
    assert open_dataset(tmp_path).cleanup(older_than="0 s") == []


def test_a_dataset_that_is_removed_meanwhile_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "memory://bucket/removed"
    for number in range(2):
        to_tfrecord(rows(number), place, append=True)
    store, commit = Store.at(place), compact.commit

    def remove_before(run: WriteRun, *args: Any) -> Any:
        store.remove(path for path in store.fs.find(store.root) if run.run not in path)
        return commit(run, *args)

    monkeypatch.setattr(compact, "commit", remove_before)
    monkeypatch.setattr(delete, "commit", remove_before)
    with pytest.raises(ConcurrentWriteError):
        open_dataset(place).compact()
    for call in (dask_tfrecord.read_tfrecord, operations.compact):
        with pytest.raises(FileNotFoundError):
            call(place)
    store.fs.rm("/bucket", recursive=True)


@every
def test_damage_stops_the_compaction_and_changes_nothing(tmp_path: Path, codec: Any) -> None:
    last = write(tmp_path, range(30), compression=codec).files[-1].path
    path = tmp_path / last
    stored = bytearray(path.read_bytes())
    stored[-3] ^= 4
    path.write_bytes(stored)
    before = files_of(tmp_path)
    with pytest.raises((dask_tfrecord.FileChangedError, dask_tfrecord.CorruptRecordError)) as raised:
        open_dataset(tmp_path).compact()
    assert raised.value.path == str(path)
    path.unlink()
    with pytest.raises(dask_tfrecord.CorruptRecordError, match="missing"):
        open_dataset(tmp_path).compact()
    assert files_of(tmp_path) == before - {last}
    assert Snapshot.open(tmp_path).number == 1


def test_files_of_other_tools_become_files_of_their_codec(tmp_path: Path) -> None:
    to_tfrecord(rows(*range(9)), tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    for at, path in enumerate(sorted((tmp_path / "ours").glob("*.tfrecord"))):
        members = gzip.compress(path.read_bytes()) + gzip.compress(b"")
        (tmp_path / f"theirs/train-{at:05d}-of-00003").write_bytes(members)
    open_dataset(tmp_path / "theirs").add_snapshot()
    before = contents(tmp_path / "theirs")
    open_dataset(tmp_path / "theirs").compact(keep_versions=False)
    [file] = Snapshot.open(tmp_path / "theirs").files
    assert file.path.endswith(".tfrecord.gz")
    assert file.blocks
    assert files_of(tmp_path / "theirs") == {file.path, "_tfrecord/00000002.parquet"}
    pd.testing.assert_frame_equal(contents(tmp_path / "theirs"), before)


@pytest.mark.parametrize("columnar", [["n"], "auto"], ids=str)
def test_a_file_that_holds_values_of_other_files_has_the_permissions_that_all_have(
    tmp_path: Path, columnar: Any, request: pytest.FixtureRequest
) -> None:
    if columnar == "auto":
        request.getfixturevalue("column_files_of_all")
    for path in (tmp_path / "some", tmp_path / "mixed"):
        write(path, range(20))
        for file in (*path.rglob("part-*"), *path.rglob("*.parquet")):
            file.chmod(0o640)
    before = {*(tmp_path / "some").rglob("*.*")}
    if columnar != "auto":
        open_dataset(tmp_path / "some").add_snapshot(columnar=columnar)
    open_dataset(tmp_path / "some").compact()
    open_dataset(tmp_path / "some").delete([("n", "==", 3)])
    files = {*(tmp_path / "some").rglob("part-*"), *(tmp_path / "some").rglob("*.parquet")} - before
    assert {file.parent.name for file in files} >= {"_tfrecord", "columns"}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}
    min((tmp_path / "mixed").glob("day=0/part-*")).chmod(0o604)
    open_dataset(tmp_path / "mixed").compact()
    modes = {file.parent.name: file.stat().st_mode & 0o777 for file in (tmp_path / "mixed").glob("day=*/*")}
    assert modes == {"day=0": 0o600, "day=1": 0o640}


def delete_some(place: str) -> None:
    open_dataset(place).delete([("n", "in", [1, 3])])


def unlisted(place: str) -> set[str]:
    present = {path for path in files_of(place) if "part-" in path and "/kept/" not in path}
    return present - {file.path for file in Snapshot.open(place).files}


def dies(operation: Callable[[str], Any], place: str, replaced: str, instant: int) -> bool:
    """Do an operation that dies before a removal of files, or after the last removal.

    Another write replaces partitions before the commit of the operation.
    """
    others = iter([keyed(**{key: [9] for key in replaced})])
    removals = count()

    def late(commit: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            for other in others:
                to_tfrecord(other, place, partition_on="key", overwrite="partitions")
                for name in ("remove", "remove_tree"):
                    patch.setattr(Store, name, dying(getattr(Store, name)))
            return commit(*args)

        return wrapped

    def dying(remove: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*args: Any) -> None:
            if next(removals) == instant:
                raise KeyboardInterrupt
            remove(*args)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact, "commit", late(compact.commit))
        patch.setattr(delete, "commit", late(delete.commit))
        try:
            operation(place)
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.sampled
@pytest.mark.parametrize("replaced", ["a", "ab"])
@pytest.mark.parametrize("operation", [operations.compact, delete_some])
def test_new_files_whose_sources_another_write_replaced_are_removed(
    place: str, operation: Callable[[str], Any], replaced: str
) -> None:
    """A compaction or a deletion loses files to another write and dies: `cleanup` removes its new files."""
    for instant in range(20):
        directory = f"{place}/{instant}"
        for append in (False, True):
            to_tfrecord(keyed(a=[1, 2], b=[3, 4]), directory, partition_on="key", append=append)
        died = dies(operation, directory, replaced, instant)
        open_dataset(directory).cleanup(older_than="0s")
        assert unlisted(directory) == set(), f"died before removal {instant}"
        found = by_key(directory)
        assert all(found[key] == [9] for key in replaced)
        if not died:
            return
    raise AssertionError("the operation does not end")


NUMBERS = [*range(10), None, 11]


def written(root: Path, columns: dict[str, Any], **options: Any) -> None:
    """Write columns as three files."""
    frame = pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)
    to_tfrecord(dd.from_pandas(frame, npartitions=3), root, write_index=False, **options)


def structs(root: Path, **options: Any) -> None:
    values = [None if n is None or n % 4 == 1 else {"x": n, "y": [None, "é"][n % 2]} for n in NUMBERS]
    type_ = pa.struct([("x", pa.int64()), ("y", pa.string())])
    written(root, {"n": NUMBERS, "s": pa.array(values, type_)}, **options)


def sequences(root: Path) -> None:
    steps = pa.array([[[n, n]] * (n % 3) if n else None for n in NUMBERS], pa.list_(pa.list_(pa.int64())))
    written(root, {"n": NUMBERS, "steps": steps}, record_type="sequence_example", compression="zlib")


def payloads(root: Path) -> None:
    records = pa.array([b"" if n is None else b"\xff" * n for n in NUMBERS], pa.binary())
    written(root, {"record": records}, record_type="bytes", compression="gzip")


def of_tfds(name: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        shutil.copytree(Path(__file__).parents[2] / "data" / "tfds" / name, root)
        open_dataset(root).add_snapshot()

    return make


SPLIT = ("split", lambda value: value == "train", [("split", "==", "train")])
# How the dataset is made, a column, which of its values are deleted, and the filters that say the same.
KINDS: dict[str, tuple[Callable[[Path], None], str, Callable[[Any], bool], Any]] = {
    "structs": (structs, "n", lambda n: n in (4, 5), [("n", "in", [4, 5])]),
    "structs, all of a file": (structs, "n", lambda n: n is not None and n > 3, [("n", ">", 3)]),
    "sequence examples": (sequences, "n", lambda n: n is None, [("n", "is", None)]),
    "bytes": (payloads, "record", lambda record: record > b"\xff" * 8, [("record", ">", b"\xff" * 8)]),
    "labels": (of_tfds("labels/1.0.0"), "num", lambda n: n in (0, 4), [("num", "in", [0, 4])]),
    "scalars": (of_tfds("scalars/1.0.0"), "id", lambda n: n % 2 == 1, [("id", "in", [1, 3, 5])]),
    "mixed": (of_tfds("mixed/1.0.0"), "a/b/c", lambda n: n == 1, [("a/b/c", "==", 1)]),
    "sequences": (of_tfds("sequences/1.0.0"), *SPLIT),
    "tensors": (of_tfds("tensors/1.0.0"), *SPLIT),
    "taxi": (of_tfds("taxi/CsvExampleGen/examples/1"), "tip", lambda n: n == 1, [("tip", "==", 1)]),
}


def shown(frame: pd.DataFrame) -> list[Any]:
    """The values as text, in which NaN equals NaN."""
    return [frame.dtypes.tolist(), *frame.map(repr).to_numpy().tolist()]


def check_statistics(snapshot: Snapshot, frame: pd.DataFrame) -> None:
    """Check the statistics of each file against its rows."""
    first = 0
    for file in snapshot.files:
        rows = frame[first : first + file.records]
        first += file.records
        for column in file.statistics:
            if column.name in frame:
                values = rows[column.name].dropna()  # of Arrow values, this keeps NaN
                assert column.nulls == len(rows) - len(values), column.name
                assert column.min is None or not any(
                    value < column.min or value > column.max for value in values
                )
    assert first == len(frame)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
def test_records_of_every_kind_are_compacted_and_deleted(tmp_path: Path, kind: str) -> None:
    make, name, is_deleted, filters = KINDS[kind]
    root = tmp_path / "data"
    make(root)
    before, old = contents(root), Snapshot.open(root)
    is_gone = pd.Series([is_deleted(None if value is pd.NA else value) for value in before[name]])
    assert is_gone.any()
    assert shown(contents(root, filters=filters)) == shown(before[is_gone])
    shutil.copytree(root, tmp_path / "compacted first")
    for at in (root, tmp_path / "compacted first"):
        left = before
        if at != root:
            done = open_dataset(at).compact(keep_versions=True)
            assert done.files == len({(file.values) for file in old.files})
            assert shown(contents(at)) == shown(left)
            check_statistics(Snapshot.open(at), left)
        left = before[~is_gone].reset_index(drop=True)
        gone = open_dataset(at).delete(filters, keep_versions=True)
        assert gone.details["deleted_rows"] == is_gone.sum()
        assert shown(contents(at)) == shown(left)
        check_statistics(Snapshot.open(at), left)
        open_dataset(at).compact(keep_versions=True)
        compacted = Snapshot.open(at)
        assert shown(contents(at)) == shown(left)
        check_statistics(compacted, left)
        assert shown(contents(at, version=1)) == shown(before)
        assert (compacted.schema, compacted.partitioning, compacted.order) == (
            old.schema,
            old.partitioning,
            old.order,
        )
        assert dask_tfrecord.open_dataset(at).verify()["agrees"].all()
