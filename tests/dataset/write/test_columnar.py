"""Column files through the life of a dataset: written, continued, listed and removed with the data files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import fsspec
import pandas as pd
import pyarrow as pa
import pytest
from small_frames import failing

import dask_tfrecord
from dask_tfrecord import SchemaError, Snapshot, TFRecordError
from dask_tfrecord.dataset.read.discovery import open_dataset
from dask_tfrecord.files.column_files import open_column_file

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
    fs, root = fsspec.url_to_fs(str(place))
    fs.invalidate_cache()
    return {path.rpartition("/")[2] for path in fs.glob(f"{root}/_tfrecord/columns/*")}


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
    monkeypatch.setattr("dask_tfrecord.dataset.shuffle.stream._CHUNK_BYTES", 1)
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
    fs, root = fsspec.url_to_fs(place)
    stray = f"_tfrecord/columns/{'0' * 32}-00000.parquet"
    fs.pipe_file(f"{root}/{stray}", b"")
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
