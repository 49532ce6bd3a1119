"""Column files through the life of a dataset: written, continued, listed and removed with the data files.

Modules: dataset.snapshot.file_list, files.splice.
"""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import fsspec
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from small_frames import failing

import dask_tfrecord
from dask_tfrecord import DestinationError, FileChangedError, SchemaError, Snapshot, TFRecordError
from dask_tfrecord.dataset.read.discovery import open_dataset
from dask_tfrecord.files.column_files import ColumnFileWriter, open_column_file

FRAME = pd.DataFrame(
    {"n": range(12), "key": [at % 3 for at in range(12)], "text": [f"t{at}" for at in range(12)]}
).convert_dtypes(dtype_backend="pyarrow")


def write(place: str | Path, **keywords: Any) -> Snapshot:
    return dask_tfrecord.to_tfrecord(dd.from_pandas(FRAME, npartitions=3), place, **keywords)


def stored(place: str | Path, columns: list[str]) -> pa.Table:
    """The rows of the dataset that its column files hold."""
    plan = open_dataset(place)
    schema = plan.schema.select(columns)
    tables = []
    for splits in plan.partitions:
        for split in splits:
            assert split.columns is not None
            path = plan.store.relative(split.file.path)
            reader = open_column_file(plan.store, split.columns)
            assert split.records is not None
            start = split.start.record
            table = reader.read(
                path, split.file.size, split.file.crc32c, schema, start, start + split.records
            )
            assert table is not None
            tables.append(table)
    return pa.concat_tables(tables)


def column_files(place: str | Path) -> set[str]:
    fs, folder = fsspec.url_to_fs(str(place))
    fs.invalidate_cache()
    return {path.rpartition("/")[2] for path in fs.glob(f"{folder}/_tfrecord/columns/*")}


def listed(place: str | Path, version: int | None = None) -> set[str]:
    files = Snapshot.open(place, version).files
    return {file.columns.path.rpartition("/")[2] for file in files if file.columns}


WRITES: dict[str, Callable[[str], Snapshot]] = {
    "plain": lambda place: write(place, columnar=["n", "text"]),
    "gzip, shuffled": lambda place: write(place, columnar=["n", "text"], compression="gzip", shuffle=1),
    "partitions": lambda place: write(place, columnar=["n", "text"], partition_on="key"),
    "colocated": lambda place: write(place, columnar=["n", "text"], partition_on="key", colocate=True),
    "small files": lambda place: write(place, columnar=["n", "text"], max_rows_per_file=1),
    "pandas": lambda place: dask_tfrecord.to_tfrecord(FRAME, place, columnar=["n", "text"]),
    "stream": lambda place: dask_tfrecord.to_tfrecord(
        pa.Table.from_pandas(FRAME), place, columnar=["n", "text"], shuffle=1, partition_on="key"
    ),
}


@pytest.mark.parametrize("how", WRITES)
def test_column_files_hold_the_rows_in_the_order_of_the_records(place: str, how: str) -> None:
    snapshot = WRITES[how](place)
    assert snapshot == Snapshot.open(place)
    assert snapshot.columnar == ("n", "text")
    assert column_files(place) == listed(place)
    expected = dask_tfrecord.read_tfrecord(place)[["n", "text"]].compute()
    assert stored(place, ["n", "text"]).to_pydict() == expected.to_dict("list")


def test_a_stream_of_many_chunks_has_a_column_file_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_tfrecord.dataset.shuffle.table_stream._CHUNK_BYTES", 1)
    tables = pa.Table.from_pandas(FRAME).to_batches(max_chunksize=5)
    reader = pa.RecordBatchReader.from_batches(tables[0].schema, tables)
    dask_tfrecord.to_tfrecord(reader, tmp_path, columnar="scalars")
    assert len(column_files(tmp_path)) == 3
    assert stored(tmp_path, ["n"])["n"].to_pylist() == [*range(12)]


def test_scalars_are_numbers_dates_and_texts(tmp_path: Path) -> None:
    types = {"image": pa.binary(), "tokens": pa.list_(pa.int64()), "day": pa.date32(), "word": pa.string()}
    table = pa.table({name: pa.nulls(2, type_) for name, type_ in types.items()})
    dask_tfrecord.to_tfrecord(table, tmp_path, columnar="scalars")
    plan = open_dataset(tmp_path)
    [[split]] = plan.partitions
    assert split.columns is not None
    names = {feature.name for feature in open_column_file(plan.store, split.columns).features}
    assert names == {"day", "word"}


def test_an_append_continues_the_columns_of_the_dataset(place: str) -> None:
    write(place, columnar=["n"])
    write(place, append=True)
    assert Snapshot.open(place).columnar == ("n",)
    assert len(stored(place, ["n"])) == 24
    write(place, append=True, columnar=[])
    assert Snapshot.open(place).columnar == ()
    assert len(listed(place)) == len(column_files(place)) == 9


def test_an_append_may_lack_a_column_of_the_column_files(tmp_path: Path) -> None:
    write(tmp_path, columnar=["n", "text"])
    wider = FRAME.assign(more=1.5)
    dask_tfrecord.to_tfrecord(
        wider, tmp_path, append=True, schema_change="add", lossy="allow", columnar=["more"]
    )
    dask_tfrecord.to_tfrecord(wider, tmp_path, append=True, schema_change="add", lossy="allow")
    plan = open_dataset(tmp_path)
    names = [
        {feature.name for feature in open_column_file(plan.store, split.columns).features}
        for [split] in plan.partitions
        if split.columns is not None
    ]
    assert names == [{"n", "text"}] * 3 + [{"more"}] * 2


def test_an_overwrite_removes_the_column_files_of_the_old_data(place: str) -> None:
    write(place, columnar=["n"])
    write(place, append=True)
    write(place, overwrite=True)
    assert column_files(place) == set()
    assert Snapshot.open(place).columnar is None


def test_an_overwrite_of_partitions_keeps_the_column_files_of_the_others(place: str) -> None:
    write(place, columnar=["n"], partition_on="key")
    one = dd.from_pandas(FRAME[FRAME["key"] == 1], npartitions=1)
    dask_tfrecord.to_tfrecord(one, place, partition_on="key", overwrite="partitions")
    assert column_files(place) == listed(place)
    assert len(listed(place)) == 4
    assert sorted(stored(place, ["n"])["n"].to_pylist()) == [*range(12)]


def test_kept_versions_keep_their_column_files_until_they_expire(place: str) -> None:
    write(place, columnar=["n"])
    write(place, columnar=["n"], overwrite=True, keep_versions=True)
    assert column_files(place) == listed(place, 1) | listed(place, 2)
    dask_tfrecord.restore(place, 1)
    if place.startswith("/"):  # in memory, a moved file has another time, so nothing proves its content
        assert len(stored(place, ["n"])) == 12
    dask_tfrecord.expire(place, versions=1, grace="0s")
    assert column_files(place) == listed(place) == listed(place, 3)


def test_a_failed_write_leaves_no_column_files(place: str) -> None:
    write(place, columnar=["n"])
    before = column_files(place)
    with pytest.raises(RuntimeError, match="on purpose"):
        dask_tfrecord.to_tfrecord(failing(dd.from_pandas(FRAME, npartitions=3)), place, append=True)
    dask_tfrecord.cleanup(place, older_than="0s")
    assert column_files(place) == before


def test_cleanup_removes_column_files_that_no_snapshot_lists(place: str) -> None:
    write(place, columnar=["n"])
    before = column_files(place)
    fs, folder = fsspec.url_to_fs(place)
    stray = f"_tfrecord/columns/{'0' * 32}-00000.parquet"
    fs.pipe_file(f"{folder}/{stray}", b"")
    assert dask_tfrecord.cleanup(place) == []
    assert dask_tfrecord.cleanup(place, older_than="0s") == [stray]
    assert column_files(place) == before


@pytest.mark.parametrize(
    ("columnar", "problem"),
    [
        (["m"], "does not exist"),
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
    with pytest.raises(TFRecordError, match=problem):
        dask_tfrecord.to_tfrecord(
            table, tmp_path, columnar=columnar, partition_on="key", record_type="sequence_example"
        )
    assert not [*tmp_path.iterdir()]


def test_errors_name_the_column(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="there are 'n', 'key', 'text'") as caught:
        write(tmp_path, columnar=["n", "m"])
    assert caught.value.feature == "m"


def test_each_commit_of_a_writer_has_column_files(place: str) -> None:
    with dask_tfrecord.Writer(place, columnar=["n"], commit_every=5) as writer:
        for at in range(0, 12, 3):
            writer.write(FRAME[at : at + 3])
    with dask_tfrecord.Writer(place) as writer:  # which continues the columns of the dataset
        writer.write(FRAME)
    assert stored(place, ["n"])["n"].to_pylist() == [*range(12), *range(12)]
    assert column_files(place) == listed(place)


@pytest.mark.parametrize("columnar", [["n", "text"], []])
@pytest.mark.parametrize("state", ["intact", "damaged", "missing"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_rewritten_files_have_column_files(
    tmp_path: Path, compression: Any, state: str, columnar: list[str]
) -> None:
    """The rows come from the old column files, or from the records if a column file is not usable."""
    write(tmp_path, columnar=columnar, compression=compression)
    for at, name in enumerate(sorted(column_files(tmp_path))):
        path = tmp_path / "_tfrecord" / "columns" / name
        if state == "missing":
            path.unlink()
        elif state == "damaged":
            data = path.read_bytes()
            path.write_bytes(data.replace(b"t5", b"t6") if at else data[:-1])
    dask_tfrecord.delete(tmp_path, [("n", "in", [1, 2, 5, 11])], keep_versions=True)
    assert len(listed(tmp_path)) == 3
    _check(tmp_path, columnar)
    dask_tfrecord.compact(tmp_path)
    assert len(listed(tmp_path)) == 1
    assert listed(tmp_path) == column_files(tmp_path)
    _check(tmp_path, columnar)


def _check(place: Path, columnar: list[str]) -> None:
    """Check the column files of a dataset against the records."""
    expected = dask_tfrecord.read_tfrecord(place).compute()
    assert expected["n"].tolist() == [0, 3, 4, 6, 7, 8, 9, 10]
    if columnar:
        assert stored(place, columnar).to_pydict() == expected[columnar].to_dict("list")
    plan = open_dataset(place)
    for file in Snapshot.open(place).files:
        assert file.columns is not None
        reader = open_column_file(plan.store, file.columns)
        payloads = oracle.read_payloads(place / file.path)
        ends = [0, *itertools.accumulate(len(one) + 16 for one in payloads)]
        offsets = reader.offsets(file.path, file.bytes, file.crc32c, 0, file.records)
        assert offsets is not None
        assert offsets.tolist() == ends


@pytest.mark.parametrize("columnar", [["n", "text"], "scalars", []])
def test_index_writes_column_files_of_any_data_files(place: str, columnar: Any) -> None:
    """Of files of another tool, of a dataset without column files, and with other ones."""
    write(place, max_rows_per_file=3, compression="gzip")
    for version in (2, 3):
        assert dask_tfrecord.index(place, columnar=columnar).number == version
        if columnar:
            assert stored(place, ["n", "text"])["n"].to_pylist() == [*range(12)]
    fs, folder = fsspec.url_to_fs(place)
    fs.rm(f"{folder}/_tfrecord", recursive=True)
    snapshot = dask_tfrecord.index(place, columnar=columnar)
    assert snapshot == Snapshot.open(place)
    assert snapshot.columnar == (columnar if columnar == "scalars" else (*columnar,))
    assert column_files(place) == listed(place)
    assert dask_tfrecord.verify(place)["agrees"].all()
    assert dask_tfrecord.cleanup(place, older_than="0s") == []


def test_index_writes_column_files_that_are_missing_or_stale(place: str) -> None:
    write(place, columnar=["n"])
    fs, folder = fsspec.url_to_fs(place)
    first, second, _ = (f"{folder}/_tfrecord/columns/{name}" for name in sorted(column_files(place)))
    fs.rm(first)
    fs.pipe_file(second, fs.cat_file(second)[:-1] + b"?")
    version = dask_tfrecord.index(place)
    assert (version.number, version.columnar) == (2, ("n",))
    assert stored(place, ["n"])["n"].to_pylist() == [*range(12)]
    with pytest.raises(DestinationError, match="up to date"):
        dask_tfrecord.index(place)


def test_planned_writes_keep_the_columns_that_index_stores(place: str) -> None:
    """A `Writer` also stores them, from the commit after the commit that finds the index."""
    with dask_tfrecord.Writer(place) as writer:
        writer.write(FRAME[:3])
        writer.commit()
        more = dd.from_pandas(FRAME[3:6], npartitions=1)
        planned = dask_tfrecord.to_tfrecord(more, place, append=True, compute=False)
        dask_tfrecord.index(place, columnar=["n"])
        dask.compute(planned)
        for start in (6, 9):
            writer.write(FRAME[start : start + 3])
            snapshot = writer.commit()
            assert snapshot is not None
            assert snapshot.columnar == ("n",)
    assert [file.columns is None for file in Snapshot.open(place).files] == [False, True, True, False]
    dask_tfrecord.index(place)
    assert stored(place, ["n"])["n"].to_pylist() == [*range(12)]


def test_index_gives_changed_files_new_column_files(tmp_path: Path) -> None:
    write(tmp_path / "ours")
    other = tmp_path / "other"
    other.mkdir()
    for at, path in enumerate(sorted((tmp_path / "ours").glob("part-*"))):
        path.rename(other / f"{at}.tfrecord")
    dask_tfrecord.index(other, columnar=["n"])
    changed = other / "1.tfrecord"
    changed.write_bytes(changed.read_bytes()[: changed.stat().st_size // 4])
    dask_tfrecord.index(other)
    assert stored(other, ["n"])["n"].to_pylist() == [0, 1, 2, 3, 4, 8, 9, 10, 11]


def test_an_index_that_fails_leaves_no_column_files(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place)

    def fail(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("dask_tfrecord.dataset.maintenance.full_scan.store_snapshot", fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        dask_tfrecord.index(place, columnar="scalars")
    assert column_files(place) == set()
    assert dask_tfrecord.cleanup(place, older_than="0s") == []


def test_verify_compares_column_files_with_the_records(tmp_path: Path) -> None:
    write(tmp_path, columnar=["n", "text"])
    assert dask_tfrecord.verify(tmp_path)["agrees"].all()
    first = Snapshot.open(tmp_path).files[0].columns
    assert first is not None
    (tmp_path / first.path).unlink()
    # Column files with wrong values and correct checksums.
    with pytest.MonkeyPatch.context() as patch:
        original = ColumnFileWriter.add

        def add(self: ColumnFileWriter, rows: Any, offsets: Any) -> None:
            original(self, pa.table({"n": rows["n"], "text": ["t9"] * len(rows)}), offsets)

        patch.setattr(ColumnFileWriter, "add", add)
        write(tmp_path, append=True)
    report = dask_tfrecord.verify(tmp_path)
    assert "missing, damaged or out of date" in report["differs"][0]
    assert report["differs"][1:3].tolist() == ["", ""]
    assert report["differs"][3:].str.contains("the column 'text' of _tfrecord/columns/").all()


def _of_records(place: Path) -> pd.DataFrame:
    """What a read of the dataset returns without column files."""
    columns = place / "_tfrecord" / "columns"
    columns.rename(columns.with_name("away"))
    try:
        found: pd.DataFrame = dask_tfrecord.read_tfrecord(place).compute()
    finally:
        columns.with_name("away").rename(columns)
    return found


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
    pd.testing.assert_frame_equal(found, _of_records(tmp_path))


def test_column_files_of_rewritten_files_are_not_used(tmp_path: Path) -> None:
    """A file of the same size is decoded, which shows that its content is another one."""
    write(tmp_path / "ours", columnar=["n", "text"])
    other = tmp_path / "other"
    other.mkdir()
    for at, path in enumerate(sorted((tmp_path / "ours").glob("part-*"))):
        path.rename(other / f"{at}.tfrecord")
    dask_tfrecord.index(other, columnar="scalars")
    path = other / "1.tfrecord"
    frames = [oracle.frame(payload) for payload in reversed(oracle.read_payloads(path))]
    path.write_bytes(b"".join(frames))
    os.utime(path, (1, 1))
    with pytest.raises(FileChangedError, match="CRC-32C differs"):
        dask_tfrecord.read_tfrecord(other)["n"].compute()
    assert dask_tfrecord.index(other).columnar == "scalars"
    expected = [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11]
    assert stored(other, ["n"])["n"].to_pylist() == expected
    assert dask_tfrecord.read_tfrecord(other)["n"].compute().tolist() == expected
