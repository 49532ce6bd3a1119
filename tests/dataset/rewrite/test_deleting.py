"""Deleted rows are those that filters select, beside other writes, and no byte holds a deleted value.

Modules: dataset.rewrite.delete, dataset.rewrite.compact.
"""

import base64
import gzip
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.dataframe as dd
import numpy as np
import operations
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from small_frames import is_intact

import dask_tfrecord
from dask_tfrecord import SchemaError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.rewrite import compact, delete
from dask_tfrecord.dataset.snapshot.model import Commit, Snapshot
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.files import file_writer, splice
from dask_tfrecord.files.splice import remove_records

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 600


def frame() -> pd.DataFrame:
    """Rows of three days, sorted by ``n``, with nulls, NaN and lists."""
    numbers = range(COUNT)
    columns = {
        "day": pa.array([n // 200 for n in numbers], pa.int32()),
        "n": pa.array([None if n % 7 == 3 else n for n in numbers], pa.int64()),
        "x": pa.array(
            [None if n % 5 == 1 else float("nan") if n % 5 == 2 else n / 4 for n in numbers], pa.float32()
        ),
        "text": pa.array([None if n % 11 == 0 else f"row {n % 13}" for n in numbers]),
        "list": pa.array([None if n % 3 == 0 else [n] * (n % 4) for n in numbers]),
    }
    rows: pd.DataFrame = pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)
    return rows


ROWS = frame()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows as a dataset of each codec, in files of several blocks."""
    root = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_writer, "BLOCK_BYTES", 2_000)
        for codec in (None, "gzip", "zlib"):
            ddf = dd.from_pandas(ROWS, npartitions=4, sort=False)
            to_tfrecord(ddf, root / str(codec), partition_on="day", compression=codec, write_index=False)
    return root


@pytest.fixture
def place(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Path]:
    """Copy the dataset of a codec."""
    monkeypatch.setattr(splice, "BLOCK_BYTES", 2_000)

    def copy(codec: str | None = None) -> Path:
        path = tmp_path / str(codec)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(written / str(codec), path)
        return path

    return copy


def shown(rows: pd.DataFrame) -> str:
    """The rows as text, in which NaN equals NaN."""
    return str(
        pa.Table.from_pandas(rows, preserve_index=False).select(["day", "n", "x", "text", "list"]).to_pylist()
    )


def contents(path: Path | str, **keywords: Any) -> str:
    return shown(read_tfrecord(path, **keywords).compute())


def add(path: Path, rows: pd.DataFrame, **options: Any) -> Snapshot:
    options = options or {"append": True}
    to_tfrecord(rows, path, partition_on="day", write_index=False, **options)
    return Snapshot.open(path)


def listed(path: Path) -> set[str]:
    """The data files of the directory, without those of older versions."""
    found = {str(one.relative_to(path)) for one in path.rglob("part-*")}
    return {one for one in found if not one.startswith("_tfrecord/kept/")}


Row = dict[str, Any]
CASES: list[tuple[Any, Callable[[Row], Any]]] = [
    ([("n", "<", 3)], lambda row: is_below(3, row)),
    ([("n", "!=", 250)], lambda row: row["n"] not in (None, 250)),
    ([("n", "not in", list(range(0, 600, 2)))], lambda row: row["n"] is None or row["n"] % 2 == 1),
    ([("n", "is", None)], lambda row: row["n"] is None),
    ([("x", "<", 30.0)], lambda row: row["x"] is not None and row["x"] < 30),
    (
        [("text", ">", "row 4"), ("n", "<", 20)],
        lambda row: (row["text"] or "") > "row 4" and is_below(20, row),
    ),
    ([[("n", "<", 2)], [("n", ">", 595)]], lambda row: row["n"] is not None and not 2 <= row["n"] <= 595),
    ([("day", "==", 1), ("n", "<", 210)], lambda row: row["day"] == 1 and is_below(210, row)),
    ([("day", ">", 7)], lambda row: False),
    ([("day", ">=", 0)], lambda row: True),
    (pc.is_nan(pc.field("x")), lambda row: row["x"] != row["x"]),
    (
        pc.field("list").is_null() & (pc.field("day") == 2),
        lambda row: row["list"] is None and row["day"] == 2,
    ),
]


def is_below(limit: int, row: Row) -> bool:
    return row["n"] is not None and row["n"] < limit


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exactly_the_rows_that_filters_select_are_deleted(place: Callable[[Any], Path], number: int) -> None:
    filters, is_deleted = CASES[number]
    path = place([None, "gzip", "zlib"][number % 3])
    rows = pa.Table.from_pandas(ROWS).to_pylist()
    gone = np.array([is_deleted(row) for row in rows])
    # The rows that a read with these filters returns are the same.
    assert contents(path, filters=filters) == shown(ROWS[gone])
    planned = open_dataset(path).delete(filters, dry_run=True)
    assert Snapshot.open(path).number == planned.version == 1
    done = open_dataset(path).delete(filters)
    assert done.details == planned.details
    assert done.details["deleted_rows"] == gone.sum()
    assert done == Commit.of(Snapshot.open(path), **done.details)
    assert done.version == (2 if gone.any() else 1)
    assert contents(path) == shown(ROWS[~gone])
    assert contents(path, filters=filters) == shown(ROWS[:0])
    assert listed(path) == {file.path for file in Snapshot.open(path).files}
    assert open_dataset(path).cleanup(older_than="0 s") == []
    assert is_intact(path) or gone.all()
    assert [*open_dataset(path).delete(filters).details.values()] == [0, 0, 0, 0]
    # The statistics are true for the rows that are left.
    left = ROWS[~gone]
    for low in (0, 100, 250, 599):
        kept = left[(left["n"] >= low).fillna(False)]
        assert contents(path, filters=[("n", ">=", low)]) == shown(kept)


def test_files_that_are_decided_as_a_whole_are_not_opened(
    place: Callable[[Any], Path], opened: list[str]
) -> None:
    path = place(None)
    size = sum(file.stat().st_size for day in (0, 2) for file in path.glob(f"day={day}/part-*"))
    done = open_dataset(path).delete([("day", "in", [0, 2])])
    assert [*done.details.values()] == [400, done.details["dropped_files"], 0, size]
    assert opened == []
    assert not (path / "day=0").exists()
    # No value of the second file passes. All values of the first file do, but its nulls stay.
    done = open_dataset(path).delete([("n", "<", 300)])
    assert [*done.details.values()][1:3] == [0, 1]
    assert len({*opened}) == 1


@pytest.mark.parametrize("filters", [[("n", "<", 3)], [("n", ">", 2)]], ids=["pruned", "dropped as a whole"])
def test_a_file_of_another_tool_that_may_have_changed_is_opened(
    tmp_path: Path, opened: list[str], filters: Any
) -> None:
    for at, numbers in enumerate(([1, 2], [3, 4], [5, 6])):
        to_tfrecord(pa.table({"n": numbers}), tmp_path / str(at))
        [path] = (tmp_path / str(at)).glob("part-*")
        path.rename(tmp_path / f"{at}.tfrecord")
        shutil.rmtree(tmp_path / str(at))
    open_dataset(tmp_path).add_snapshot()
    first, changed, last = (tmp_path / f"{at}.tfrecord" for at in range(3))
    opened.clear()
    open_dataset(tmp_path).delete(filters, dry_run=True)
    assert opened == []
    changed.touch()
    open_dataset(tmp_path).delete(filters, dry_run=True)
    assert opened == [str(changed)]
    changed.write_bytes(last.read_bytes())
    with pytest.raises(dask_tfrecord.FileChangedError, match=r"\.add_snapshot\("):
        open_dataset(tmp_path).delete(filters)
    assert Snapshot.open(tmp_path).number == 1
    assert first.exists()


def test_an_empty_file_that_may_have_changed_is_kept(tmp_path: Path) -> None:
    for values in ([], [1, 2]):
        to_tfrecord(pa.table({"n": pa.array(values, pa.int64())}), tmp_path, append=True)
    for file in Snapshot.open(tmp_path).files:
        (tmp_path / file.path).touch()
    assert open_dataset(tmp_path).delete([("n", "==", 1)]).rows == 1
    assert read_tfrecord(tmp_path)["n"].compute().tolist() == [2]


def test_an_empty_dataset_is_left_and_takes_rows(place: Callable[[Any], Path]) -> None:
    path = place("gzip")
    assert open_dataset(path).delete([("day", ">=", 0)]).details["dropped_files"] == 6
    assert len(read_tfrecord(path)) == 0
    add(path, ROWS)
    assert contents(path) == shown(ROWS)


def test_wrong_filters_and_paths_are_refused(place: Callable[[Any], Path], tmp_path: Path) -> None:
    path = place(None)
    for filters in (None, [], [("unknown", "==", 1)], [("n", "==", "text")], pc.field("unknown") == 1):
        with pytest.raises(SchemaError):
            open_dataset(path).delete(filters)
    with pytest.raises(dask_tfrecord.TFRecordError, match="dry_run"):
        open_dataset(path).delete([("n", "==", 1)], dry_run="no")  # type: ignore[arg-type]  # a wrong value is the point
    (tmp_path / "empty").mkdir()
    with pytest.raises(dask_tfrecord.NotFoundError):
        open_dataset(tmp_path / "empty").delete([("n", "==", 1)])
    assert Snapshot.open(path).number == 1


def test_damage_stops_the_deletion_and_changes_nothing(place: Callable[[Any], Path]) -> None:
    path = place("gzip")
    file = path / Snapshot.open(path).files[1].path
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 1
    file.write_bytes(stored)
    before = {*path.rglob("*")}
    with pytest.raises((dask_tfrecord.CorruptRecordError, dask_tfrecord.FileChangedError)) as raised:
        open_dataset(path).delete([("x", ">", 0)])
    assert raised.value.path == str(file)
    assert {*path.rglob("*")} == before


Other = Callable[[Path], object]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (lambda path: add(path, ROWS[ROWS["n"] < 20]), 600 - 17 + 17),
        (operations.compact, 600 - 17),
        (lambda path: open_dataset(path).delete([("n", "<", 10)]), 600 - 17),
        (lambda path: open_dataset(path).delete([("day", "==", 0)]), 400),
        (lambda path: add(path, ROWS.assign(day=ROWS["day"].astype(str)), overwrite=True), 600 - 17),
    ],
    ids=["append", "compact", "delete", "drop", "overwrite with other partitions"],
)
def test_other_writes_beside_a_deletion(
    place: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch, other: Other, expected: int
) -> None:
    path = place(None)

    def remove_slowly(*args: Any) -> Any:
        monkeypatch.setattr(compact, "remove_records", remove_records)
        other(path)
        return remove_records(*args)

    monkeypatch.setattr(compact, "remove_records", remove_slowly)
    open_dataset(path).delete([("n", "<", 20)])
    assert len(read_tfrecord(path)) == expected
    assert is_intact(path)
    assert listed(path) == {file.path for file in Snapshot.open(path).files}


def test_a_failure_after_the_commit_only_warns(place: Callable[[Any], Path]) -> None:
    path = place(None)
    with (
        patch.object(transaction, "remove_replaced", side_effect=OSError("on purpose")),
        pytest.warns(UserWarning, match=r"the data is written, but not all files.*on purpose"),
    ):
        assert open_dataset(path).delete([("day", "==", 1), ("n", "<", 210)]).version == 2
    assert Snapshot.open(path).number == 2
    open_dataset(path).cleanup(older_than="0 s")
    assert listed(path) == {file.path for file in Snapshot.open(path).files}


SECRET = "SECRETuser42"
USERS = ["aa", SECRET, "zz"] * 4


def decoded(data: bytes) -> Iterator[bytes]:
    """Yield bytes, and what is decompressed or decoded from them: Parquet values and footers, and base64."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    if data[:4] == b"PAR1":
        table = pq.read_table(pa.BufferReader(data))
        metadata = pq.read_metadata(pa.BufferReader(data))
        yield repr((table.to_pydict(), table.schema, metadata.metadata)).encode()
        for text in (metadata.metadata or {}).values():
            yield text
            for found in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", text):
                yield base64.b64decode(found + b"=" * (-len(found) % 4))


def places_of(text: str, root: Path) -> list[str]:
    """Return the files under a directory of which the name or a byte holds a text."""
    paths = [path for path in root.rglob("*") if path.is_file()]
    return [
        str(path.relative_to(root))
        for path in paths
        if text in str(path.relative_to(root))
        or any(text.encode() in part for part in decoded(path.read_bytes()))
    ]


def categorical(ordered: bool = False) -> pd.DataFrame:
    user = pd.Categorical(USERS, categories=["zz", SECRET, "aa"], ordered=ordered)
    return pd.DataFrame({"user": user, "k": [n % 2 for n in range(12)], "n": range(12)})


NESTED = pa.table(
    {
        "user": pa.array(USERS),
        "tags": pa.ListArray.from_arrays(range(13), pa.array(USERS).dictionary_encode()),
        "of": pa.StructArray.from_arrays([pa.array(USERS).dictionary_encode()], ["user"]),
        "k": [0, 1] * 6,
        "n": range(12),
    }
)
FRAMES: dict[str, Any] = {
    "categorical": categorical(),
    "ordered": categorical(ordered=True),
    "Dask": dd.from_pandas(categorical(), npartitions=3),
    "Dask, unknown": dd.from_pandas(categorical(), npartitions=3).assign(
        user=lambda ddf: ddf["user"].cat.as_unknown()
    ),
    "dictionary": pa.table({"user": pa.array(USERS).dictionary_encode(), "k": [0, 1] * 6, "n": range(12)}),
    "nested": NESTED,
    "strings": NESTED.select(["user", "k", "n"]),
}
LAYOUTS: list[dict[str, Any]] = [
    {"partition_on": "k", "columnar": ["user", "n"]},
    {"partition_on": "user", "columnar": ["n"]},
    {"compression": "gzip"},
    {"columnar": "auto"},
]


@pytest.mark.sampled
@pytest.mark.parametrize("filters", [[("n", "in", [1, 4, 7, 10])], [("user", "==", SECRET)]], ids=str)
@pytest.mark.parametrize(
    ("keep_versions", "frame", "how"),
    [
        *((at % 2 == 0, frame, {}) for at, frame in enumerate(FRAMES)),
        *((at % 2 == 0, "categorical", how) for at, how in enumerate(LAYOUTS)),
    ],
    ids=str,
)
def test_no_byte_holds_a_deleted_value(
    tmp_path: Path,
    frame: str,
    how: dict[str, Any],
    filters: Any,
    keep_versions: bool,
    request: pytest.FixtureRequest,
) -> None:
    if how.get("columnar") == "auto":
        request.getfixturevalue("column_files_of_all")
    to_tfrecord(FRAMES[frame], tmp_path, custom_metadata={"source": "a test"}, **how)
    dask_tfrecord.open_dataset(tmp_path).export("tfmd")
    assert places_of(SECRET, tmp_path)
    assert open_dataset(tmp_path).delete(filters, keep_versions=keep_versions).details["deleted_rows"] == 4
    assert open_dataset(tmp_path).history()["details"].iloc[-1] == "4 rows"  # not the filters
    dask_tfrecord.open_dataset(tmp_path).expire(versions=1, grace="0s")
    open_dataset(tmp_path).cleanup(older_than="0s")
    assert places_of(SECRET, tmp_path) == []
    left = read_tfrecord(tmp_path).compute()
    assert sorted(left["user"].astype(str)) == ["aa"] * 4 + ["zz"] * 4


@pytest.mark.parametrize("partition_on", [None, "user"])
def test_a_delete_keeps_categories_that_other_rows_have_or_no_row_ever_had(
    tmp_path: Path, partition_on: str | None
) -> None:
    frame = categorical()
    frame["user"] = frame["user"].cat.add_categories(["never"])
    to_tfrecord(dd.from_pandas(frame, npartitions=3), tmp_path, partition_on=partition_on)
    open_dataset(tmp_path).delete([("n", "==", 1)])
    field = Snapshot.open(tmp_path).columns.select(["user"]).fields[0]
    assert field.categories.to_pylist() == ["zz", SECRET, "aa", "never"]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_category_that_an_append_brings_during_a_delete_can_be_read(
    tmp_path: Path, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_tfrecord(categorical(ordered), tmp_path)
    commit = compact.commit

    def after_append(*args: Any) -> Snapshot:
        to_tfrecord(categorical(ordered).iloc[1:2], tmp_path, append=True)
        return commit(*args)

    monkeypatch.setattr(compact, "commit", after_append)
    monkeypatch.setattr(delete, "commit", after_append)
    open_dataset(tmp_path).delete([("user", "==", SECRET)])
    assert sorted(read_tfrecord(tmp_path)["user"].compute().astype(str)).count(SECRET) == 1


def test_an_ordered_column_refuses_the_category_that_was_deleted(tmp_path: Path) -> None:
    to_tfrecord(categorical(ordered=True), tmp_path / "ordered")
    to_tfrecord(categorical(), tmp_path / "plain")
    for root in (tmp_path / "ordered", tmp_path / "plain"):
        open_dataset(root).delete([("user", "==", SECRET)], keep_versions=False)
    with pytest.raises(SchemaError, match="the ordered categories differ"):
        to_tfrecord(categorical(ordered=True), tmp_path / "ordered", append=True)
    # An append brings the categories of its rows, not those of its frame.
    to_tfrecord(categorical().query("user != @SECRET"), tmp_path / "plain", append=True)
    assert places_of(SECRET, tmp_path) == []


def test_a_partition_with_a_damaged_file_can_be_deleted(tmp_path: Path) -> None:
    to_tfrecord(categorical(), tmp_path, partition_on="k")
    snapshot = Snapshot.open(tmp_path)
    damaged = tmp_path / snapshot.files[0].path
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert open_dataset(tmp_path).delete([("k", "==", 0)]).details["dropped_files"] == 1
    assert len(read_tfrecord(tmp_path)) == 6


def test_a_wrong_deletion_is_undone_and_a_right_one_erases(tmp_path: Path) -> None:
    to_tfrecord(categorical(), tmp_path, columnar=["user"])
    table = open_dataset(tmp_path)
    before = read_tfrecord(tmp_path).compute()
    table.delete([("user", "!=", SECRET)])
    assert table.kept_bytes > 0
    table.restore(1)
    pd.testing.assert_frame_equal(read_tfrecord(tmp_path).compute(), before)
    table.delete([("user", "==", SECRET)], keep_versions=False)
    assert places_of(SECRET, tmp_path) == []
    assert table.kept_bytes == 0
    assert table.history()["version"].tolist() == [4]
