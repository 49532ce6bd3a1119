"""Column files through the life of a dataset: written, continued, listed and removed with the data files.

Modules: dataset.snapshot.stored_files, files.splice.
"""

import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import fsspec
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from small_frames import failing

import dask_tfrecord
from dask_tfrecord import DestinationError, FileChangedError, TFRecordError
from dask_tfrecord.dataset.read.discovery import open_path
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files.column_files import ColumnFileWriter, StoredRows, open_column_file

FRAME = pd.DataFrame(
    {"n": range(12), "key": [at % 3 for at in range(12)], "text": [f"t{at}" for at in range(12)]}
).convert_dtypes(dtype_backend="pyarrow")


def write(place: str | Path, **keywords: Any) -> Snapshot:
    dask_tfrecord.to_tfrecord(dd.from_pandas(FRAME, npartitions=3), place, **keywords)
    return Snapshot.open(place)


def stored(place: str | Path, columns: list[str]) -> pa.Table:
    """The rows of the dataset that its column files hold."""
    plan = open_path(place)
    schema = plan.schema.select(columns)
    tables = []
    for split in chain.from_iterable(plan.partitions):
        assert split.columns is not None
        assert split.records is not None
        file, start = split.file, split.start.record
        reader = open_column_file(plan.store, split.columns)
        path = plan.store.relative(file.path)
        stored = reader.rows_of(path, file.size, file.crc32c, split.records, start)
        assert stored is not None
        table = stored.read(schema, 0, split.records)
        assert table is not None
        tables.append(table)
    return pa.concat_tables(tables)


def names_of_features(place: Path) -> list[set[str]]:
    """The columns of the column files of each partition."""
    plan = open_path(place)
    files = [split.columns for [split] in plan.partitions]
    return [{one.name for one in open_column_file(plan.store, file).features} for file in files if file]


def column_files(place: str | Path) -> set[str]:
    fs, folder = fsspec.url_to_fs(str(place))
    fs.invalidate_cache()
    return {path.rpartition("/")[2] for path in fs.glob(f"{folder}/_tfrecord/columns/*")}


def listed(place: str | Path, version: int | None = None) -> set[str]:
    files = Snapshot.open(place, version).files
    return {file.columns.path.rpartition("/")[2] for file in files if file.columns}


@pytest.fixture(params=["named", "auto"])
def columnar(request: pytest.FixtureRequest) -> list[str] | str:
    """The columns `n` and `text`, or the default, with which all files get all columns."""
    if request.param == "auto":
        request.getfixturevalue("column_files_of_all")
    return ["n", "text"] if request.param == "named" else "auto"


WRITES: dict[str, Callable[..., Snapshot]] = {
    "plain": write,
    "gzip, shuffled": partial(write, compression="gzip", shuffle=True, seed=1),
    "partitions": partial(write, partition_on="key"),
    "colocated": partial(write, partition_on="key", colocate=True),
    "small files": partial(write, write_options={"max_rows_per_file": 1}),
    "pandas": partial(dask_tfrecord.to_tfrecord, FRAME),
    "stream": partial(
        dask_tfrecord.to_tfrecord, pa.Table.from_pandas(FRAME), shuffle=True, seed=1, partition_on="key"
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("how", WRITES)
def test_column_files_hold_the_rows_in_the_order_of_the_records(
    tmp_path: Path, how: str, columnar: list[str] | str
) -> None:
    WRITES[how](tmp_path, columnar=columnar)
    snapshot = Snapshot.open(tmp_path)
    assert snapshot.columnar == ("auto" if columnar == "auto" else ("n", "text"))
    assert column_files(tmp_path) == listed(tmp_path)
    assert columnar != "auto" or len(listed(tmp_path)) == len(snapshot.files)
    expected = dask_tfrecord.read_tfrecord(tmp_path)[["n", "text"]].compute()
    assert stored(tmp_path, ["n", "text"]).to_pydict() == expected.to_dict("list")
    dataset = dask_tfrecord.open_dataset(tmp_path)
    assert dataset.check().empty
    assert dataset.verify()["agrees"].all()
    assert dataset.cleanup(older_than="0s") == []


def test_scalars_are_numbers_dates_and_texts(tmp_path: Path) -> None:
    types = {"image": pa.binary(), "tokens": pa.list_(pa.int64()), "day": pa.date32(), "word": pa.string()}
    table = pa.table({name: pa.nulls(2, type_) for name, type_ in types.items()})
    dask_tfrecord.to_tfrecord(table, tmp_path, columnar="scalars")
    assert names_of_features(tmp_path) == [{"day", "word"}]


def test_an_append_continues_the_columns_of_the_dataset_and_an_overwrite_removes_them(place: str) -> None:
    write(place, columnar=["n"])
    write(place, append=True)
    assert Snapshot.open(place).columnar == ("n",)
    assert len(stored(place, ["n"])) == 24
    write(place, append=True, columnar=[])
    assert Snapshot.open(place).columnar == ()
    before = column_files(place)
    assert len(listed(place)) == len(before) == 9
    with pytest.raises(RuntimeError, match="on purpose"):
        dask_tfrecord.to_tfrecord(failing(dd.from_pandas(FRAME, npartitions=3)), place, append=True)
    fs, folder = fsspec.url_to_fs(place)
    strays = {f"_tfrecord/columns/{'0' * 32}-00000{end}.parquet" for end in ("", "-00000")}
    fs.pipe({f"{folder}/{stray}": b"" for stray in strays})
    assert dask_tfrecord.open_dataset(place).cleanup() == []
    assert strays <= {*dask_tfrecord.open_dataset(place).cleanup(older_than="0s")}
    assert column_files(place) == before
    write(place, overwrite=True)
    assert column_files(place) == set()
    assert Snapshot.open(place).columnar == "auto"


def test_an_append_may_lack_a_column_of_the_column_files(tmp_path: Path) -> None:
    write(tmp_path, columnar=["n", "text"])
    options: Any = {"append": True, "schema_change": "add", "lossy": "allow"}
    for more in ({"columnar": ["more"]}, {}):
        dask_tfrecord.to_tfrecord(FRAME.assign(more=1.5), tmp_path, **options, **more)
    assert names_of_features(tmp_path) == [{"n", "text"}] * 3 + [{"more"}] * 2


def test_an_overwrite_of_partitions_keeps_the_column_files_of_the_others(
    place: str, columnar: list[str] | str
) -> None:
    write(place, columnar=columnar, partition_on="key")
    one = dd.from_pandas(FRAME[FRAME["key"] == 1], npartitions=1)
    dask_tfrecord.to_tfrecord(one, place, partition_on="key", overwrite="partitions")
    assert column_files(place) == listed(place)
    assert len(listed(place)) == (7 if columnar == "auto" else 4)  # 3 for each of 2 values, and 1
    assert sorted(stored(place, ["n"])["n"].to_pylist()) == [*range(12)]


def test_kept_versions_keep_their_column_files_until_they_expire(
    place: str, columnar: list[str] | str
) -> None:
    write(place, columnar=columnar)
    write(place, columnar=columnar, overwrite=True, keep_versions=True)
    assert column_files(place) == listed(place, 1) | listed(place, 2)
    dask_tfrecord.open_dataset(place).restore(1)
    if place.startswith("/"):  # in memory, a moved file has another time, so nothing proves its content
        assert len(stored(place, ["n"])) == 12
    dask_tfrecord.open_dataset(place).expire(versions=1, grace="0s")
    assert column_files(place) == listed(place) == listed(place, 3)


@pytest.mark.parametrize(
    ("columnar", "problem"),
    [
        (["m"], "'m': .* names a column that does not exist; there are 'nested', 'tfrecord.offset'"),
        (["key"], "partition column"),
        ("nested", "no lists of lists"),
        (["tfrecord.offset"], "offsets of records"),
        ("scalars", "offsets of records"),
        (7, "not a list of column names"),
    ],
)
def test_columns_that_column_files_cannot_hold_are_refused(
    tmp_path: Path, columnar: Any, problem: str
) -> None:
    table = pa.table({"key": [1], "nested": [[[1]]], "tfrecord.offset": [1]})
    options: Any = {"partition_on": "key", "record_type": "sequence_example"}
    with pytest.raises(TFRecordError, match=problem):
        dask_tfrecord.to_tfrecord(table, tmp_path, columnar=columnar, **options)
    assert not [*tmp_path.iterdir()]


def test_each_commit_of_a_writer_has_column_files(tmp_path: Path, columnar: list[str] | str) -> None:
    with dask_tfrecord.Writer(tmp_path, columnar=columnar, commit_every=5) as writer:
        for at in range(0, 12, 3):
            writer.write(FRAME[at : at + 3])
    with dask_tfrecord.Writer(tmp_path) as writer:  # which continues the columns of the dataset
        writer.write(FRAME)
    assert stored(tmp_path, ["n"])["n"].to_pylist() == [*range(12), *range(12)]
    assert column_files(tmp_path) == listed(tmp_path)


@pytest.mark.parametrize(
    ("compression", "state", "columnar"),
    [
        (None, "intact", ["n", "text"]),
        ("gzip", "intact", []),
        ("gzip", "damaged", ["n", "text"]),
        (None, "damaged", []),
        (None, "missing", ["n", "text"]),
    ],
)
def test_rewritten_files_have_column_files(
    tmp_path: Path, compression: Any, state: str, columnar: list[str]
) -> None:
    """The rows come from the old column files, or from the records if a column file is not usable."""
    write(tmp_path, columnar=columnar, compression=compression)
    for at, path in enumerate(sorted((tmp_path / "_tfrecord" / "columns").iterdir())):
        if state == "missing":
            path.unlink()
        elif state == "damaged":
            data = path.read_bytes()
            path.write_bytes(data.replace(b"t5", b"t6") if at else data[:-1])
    dask_tfrecord.open_dataset(tmp_path).delete([("n", "in", [1, 2, 5, 11])], keep_versions=True)
    assert len(listed(tmp_path)) == 3
    _check(tmp_path, columnar)
    dask_tfrecord.open_dataset(tmp_path).compact(keep_versions=False)
    assert len(listed(tmp_path)) == 1
    assert listed(tmp_path) == column_files(tmp_path)
    _check(tmp_path, columnar)


def _check(place: Path, columnar: list[str]) -> None:
    """Check the column files of a dataset against the records."""
    expected = dask_tfrecord.read_tfrecord(place).compute()
    assert expected["n"].tolist() == [0, 3, 4, 6, 7, 8, 9, 10]
    if columnar:
        assert stored(place, columnar).to_pydict() == expected[columnar].to_dict("list")
    store = open_path(place).store
    for file in Snapshot.open(place).files:
        assert file.columns is not None
        payloads = oracle.read_payloads(place / file.path)
        ends = [0, *accumulate(len(one) + 16 for one in payloads)]
        reader = open_column_file(store, file.columns)
        rows = StoredRows.of(reader, file)
        assert rows is not None
        offsets = rows.offsets(0, file.records)
        assert offsets is not None
        assert offsets.tolist() == ends


@pytest.mark.parametrize("columnar", [["n", "text"], "scalars", []])
def test_index_writes_column_files_of_any_data_files(tmp_path: Path, columnar: Any) -> None:
    """Of files of another tool, of a dataset without column files, and with other ones."""
    write(tmp_path, write_options={"max_rows_per_file": 3}, compression="gzip")
    for version in (2, 3):
        assert dask_tfrecord.open_dataset(tmp_path).add_snapshot(columnar=columnar).version == version
        if columnar:
            assert stored(tmp_path, ["n", "text"])["n"].to_pylist() == [*range(12)]
    shutil.rmtree(tmp_path / "_tfrecord")
    dask_tfrecord.open_dataset(tmp_path).add_snapshot(columnar=columnar)
    snapshot = Snapshot.open(tmp_path)
    assert snapshot == Snapshot.open(tmp_path)
    assert snapshot.columnar == (columnar if columnar == "scalars" else (*columnar,))
    assert column_files(tmp_path) == listed(tmp_path)
    assert dask_tfrecord.open_dataset(tmp_path).verify()["agrees"].all()
    assert dask_tfrecord.open_dataset(tmp_path).cleanup(older_than="0s") == []


def test_index_writes_column_files_that_are_missing_or_stale(place: str) -> None:
    write(place, columnar=["n"])
    fs, folder = fsspec.url_to_fs(place)
    first, second, _ = (f"{folder}/_tfrecord/columns/{name}" for name in sorted(column_files(place)))
    fs.rm(first)
    fs.pipe_file(second, fs.cat_file(second)[:-1] + b"?")
    dask_tfrecord.open_dataset(place).add_snapshot()
    version = Snapshot.open(place)
    assert (version.number, version.columnar) == (2, ("n",))
    assert stored(place, ["n"])["n"].to_pylist() == [*range(12)]
    with pytest.raises(DestinationError, match="up to date"):
        dask_tfrecord.open_dataset(place).add_snapshot()


def test_planned_writes_keep_the_columns_that_index_stores(place: str) -> None:
    """A `Writer` also stores them, from the commit after the commit that finds the index."""
    with dask_tfrecord.Writer(place) as writer:
        writer.write(FRAME[:3])
        writer.commit()
        more = dd.from_pandas(FRAME[3:6], npartitions=1)
        planned = dask_tfrecord.to_tfrecord(more, place, append=True, compute=False)
        dask_tfrecord.open_dataset(place).add_snapshot(columnar=["n"])
        dask.compute(planned)
        for start in (6, 9):
            writer.write(FRAME[start : start + 3])
            writer.commit()
            assert Snapshot.open(place).columnar == ("n",)
    assert [file.columns is None for file in Snapshot.open(place).files] == [False, True, True, False]
    dask_tfrecord.open_dataset(place).add_snapshot()
    assert stored(place, ["n"])["n"].to_pylist() == [*range(12)]


def test_an_index_that_fails_leaves_no_column_files(place: str) -> None:
    write(place)
    with (
        patch("dask_tfrecord.dataset.rewrite.add_snapshot.commit_snapshot", side_effect=RuntimeError),
        pytest.raises(RuntimeError),
    ):
        dask_tfrecord.open_dataset(place).add_snapshot(columnar="scalars")
    assert column_files(place) == set()
    assert dask_tfrecord.open_dataset(place).cleanup(older_than="0s") == []


def test_verify_compares_column_files_with_the_records(
    tmp_path: Path, columnar: list[str] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One column file is missing, others have wrong values and correct checksums."""
    write(tmp_path, columnar=columnar)
    assert dask_tfrecord.open_dataset(tmp_path).verify()["agrees"].all()
    first = Snapshot.open(tmp_path).files[0].columns
    assert first is not None
    (tmp_path / first.path).unlink()
    add = ColumnFileWriter.add

    def add_wrong(self: ColumnFileWriter, rows: Any, offsets: Any) -> None:
        wrong = pa.array(["t9"] * len(rows))
        add(self, rows.set_column(rows.schema.get_field_index("text"), "text", wrong), offsets)

    monkeypatch.setattr(ColumnFileWriter, "add", add_wrong)
    write(tmp_path, append=True)
    differs = dask_tfrecord.open_dataset(tmp_path).verify()["differs"]
    assert "missing, damaged or out of date" in differs[0]
    assert differs[1:3].tolist() == ["", ""]
    assert differs[3:].str.contains("the column 'text' of _tfrecord/columns/").all()


def test_an_append_may_widen_stored_columns(tmp_path: Path) -> None:
    """Values of a narrower type are cast, and those of the null type are null, as decoded values are."""
    narrow = {"n": pa.int16(), "x": pa.float16(), "nothing": pa.null(), "u": pa.uint8()}
    wide = {"n": pa.int64(), "x": pa.float32(), "nothing": pa.string(), "u": pa.int32()}
    rows = pa.table({name: [1, None] if name != "nothing" else [None, None] for name in narrow})
    dask_tfrecord.to_tfrecord(rows.cast(pa.schema(narrow)), tmp_path, columnar=[*narrow])
    dask_tfrecord.to_tfrecord(rows.cast(pa.schema(wide)), tmp_path, append=True, schema_change="add")
    found = dask_tfrecord.read_tfrecord(tmp_path).compute()
    assert [dtype.pyarrow_dtype for dtype in found.dtypes] == [*wide.values()]
    assert found["n"].dropna().tolist() == [1, 1]
    shutil.rmtree(tmp_path / "_tfrecord" / "columns")
    pd.testing.assert_frame_equal(found, dask_tfrecord.read_tfrecord(tmp_path).compute())


def test_column_files_of_changed_files_are_not_used_and_index_writes_new_ones(tmp_path: Path) -> None:
    """A file of the same size is decoded, which shows that its content is another one."""
    write(tmp_path, columnar=["n", "text"])
    for at, path in enumerate(sorted(tmp_path.glob("part-*"))):
        path.rename(tmp_path / f"{at}.tfrecord")
    (tmp_path / "_tfrecord").rename(tmp_path / "_old")
    dask_tfrecord.open_dataset(tmp_path).add_snapshot(columnar="scalars")
    path = tmp_path / "1.tfrecord"
    frames = [oracle.frame(payload) for payload in reversed(oracle.read_payloads(path))]
    path.write_bytes(b"".join(frames))
    os.utime(path, (1, 1))
    with pytest.raises(FileChangedError, match="CRC-32C differs"):
        dask_tfrecord.read_tfrecord(tmp_path)["n"].compute()
    for middle in ([7, 6, 5, 4], [7]):
        path.write_bytes(b"".join(frames[: len(middle)]))
        dask_tfrecord.open_dataset(tmp_path).add_snapshot()
        assert Snapshot.open(tmp_path).columnar == "scalars"
        expected = [0, 1, 2, 3, *middle, 8, 9, 10, 11]
        assert stored(tmp_path, ["n"])["n"].to_pylist() == expected
        assert dask_tfrecord.read_tfrecord(tmp_path)["n"].compute().tolist() == expected
