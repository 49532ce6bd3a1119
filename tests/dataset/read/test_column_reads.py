"""Reads that use column files return the rows of reads that decode the records.

Modules: dataset.read.column_reads, dataset.read.columns, api.description, api.explain, dataset.read.task.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from random_queries import COLUMNS, Data, Queries
from random_queries import run as evaluate
from strides import EXAMPLES

import dask_tfrecord
from dask_tfrecord import explain, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.read import column_reads
from dask_tfrecord.dataset.read.column_reads import ColumnReads
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.files import column_files, file_writer, selected_records
from dask_tfrecord.files.column_files import open_column_file
from dask_tfrecord.storage.store import LocalStore, Store

QUERIES_PER_DATASET = 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make blocks, row groups, chunks and requests so small that each of these datasets has many."""
    for place, name, size in (
        (file_writer, "BLOCK_BYTES", 1_000),
        (column_files, "_GROUP_ROWS", 16),
        (column_files, "_RUN_ROWS", 20),
        (column_reads, "_SMALL_BYTES", 0),
        (column_reads, "_LIST_COST", 0),
        (LocalStore, "request_cost", 100),
    ):
        monkeypatch.setattr(place, name, size)
    # The order of rows that Dask shuffles through files differs from run to run.
    shuffle = {"dataframe.shuffle.method": "tasks"}
    with dask.config.set({"scheduler": "sync", "dataframe.convert-string": False, **shuffle}):
        yield


@contextmanager
def decoding() -> Iterator[None]:
    """Decode all records, as if there were no column files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ColumnReads, "_open", lambda *_: "all records are decoded")
        yield


def frame_of(rng: random.Random, names: list[str], gaps: set[str], first: int, count: int) -> pd.DataFrame:
    found: dict[str, Any] = {"n": pd.array(range(first, first + count), pd.ArrowDtype(pa.int64()))}
    for name in names:
        type_, values, _ = COLUMNS[name]
        pool = rng.sample(values, rng.randint(1, len(values)))
        nulls = rng.choice([0, 0.3, 1]) if name in gaps else 0
        chosen = [None if rng.random() < nulls else rng.choice(pool) for _ in range(count)]
        if pa.types.is_dictionary(type_):
            found[name] = pd.Categorical(chosen, categories=values)
        else:
            found[name] = pd.arrays.ArrowExtensionArray(pa.chunked_array([pa.array(chosen, type_)]))
    images = [rng.randbytes(rng.choice([10, 300, 2000])) for _ in range(count)]
    found["image"] = pd.array(images, pd.ArrowDtype(pa.binary()))
    return pd.DataFrame(found)


def _one_of(frames: list[pd.DataFrame], number: int) -> pd.DataFrame:
    return frames[number]


class Dataset:
    """A random dataset with column files, and random queries of the dataset."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = rng = random.Random(f"column files {seed}")
        self.root, self.seed = root, seed
        names = rng.sample(sorted(COLUMNS), rng.randint(2, 6))
        keys = [name for name in ("i8", "text", "date", "flag") if name in names]
        self.keys = rng.sample(keys, min(len(keys), rng.choice([0, 0, 1])))
        gaps = {name for name in names if rng.random() < 0.5}
        kinds = [name for name in ["n", *names, "image"] if name not in self.keys]
        columnar: Any = rng.choice(["scalars", "scalars", rng.sample(kinds, rng.randint(0, len(kinds)))])
        writes, first = [names], 0
        if rng.random() < 0.4:  # an append adds a column
            writes.append([*names, rng.choice([name for name in COLUMNS if name not in names])])
        for number, columns in enumerate(writes):
            frames = []
            for _ in range(rng.randint(1, 3)):
                count = rng.choice([0, 1, 10, 60])
                frames.append(frame_of(rng, columns, gaps, first, count))
                first += count
            options = {"append": True, "schema_change": "add"} if number else {"columnar": columnar}
            to_tfrecord(
                dd.from_map(partial(_one_of, frames), range(len(frames)), meta=frames[0].iloc[:0]),
                root,
                partition_on=self.keys or None,
                lossy="allow",
                compression=rng.choice([None, None, "gzip", "zstd"]),
                write_options={"max_rows_per_file": rng.choice([None, None, 17])},
                **options,
            )
            names = columns
        self.names = ["n", *names, "image"]
        self.queries = Queries(Data(seed, root, ("n", *names), {"dtype_backend": "pyarrow"}), seed)
        self.rows = first

    def spoil(self) -> str:
        """Remove or damage a column file, or leave the column files as they are."""
        found = sorted((self.root / "_tfrecord/columns").glob("*.parquet"))
        kind = self.rng.choice(["none", "none", "absent", "cut", "bits", "random", "other"]) if found else ""
        open_column_file.cache_clear()
        for path in self.rng.sample(found, min(len(found), self.rng.randint(1, 2))):
            data = bytearray(path.read_bytes())
            if kind == "absent":
                path.unlink()
            elif kind == "cut":
                path.write_bytes(data[: self.rng.randrange(len(data))])
            elif kind == "bits":
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
                path.write_bytes(data)
            elif kind == "random":
                path.write_bytes(self.rng.randbytes(len(data)))
            elif kind == "other":
                shutil.copy(self.rng.choice(found), path.with_suffix(".copy"))
                path.with_suffix(".copy").replace(path)
        return kind

    def query(self) -> tuple[str, Any]:
        """A random query, as a text and a function without arguments."""
        rng = self.rng
        columns = rng.sample(self.names, rng.randint(1, min(4, len(self.names))))
        options: dict[str, Any] = {"columns": rng.choice([columns, columns, None])}
        if rng.random() < 0.7:
            options["filters"] = self.queries.filters()
        if rng.random() < 0.2:
            options["read_options"] = {"verify_crc": False}
        read = {**options, "blocksize": rng.choice([None, "2 kB", "128 MiB"])}
        share, door = (
            rng.random(),
            rng.choice(["read", "read", "read", "len", "take", "table", "feed", "dask"]),
        )
        seed = rng.random()
        queried = self.queries.query()
        if door == "dask":
            read["columns"] = None
        text = f"{queried if door == 'dask' else ''} seed {self.seed}, {door}, {read}, {share}"

        def run() -> Any:
            random_rows = random.Random(seed)
            if door in ("take", "table"):
                table = RecordTable(self.root, **options)
                mask = np.array([random_rows.random() < share for _ in range(len(table))], bool)
                return table[mask] if door == "table" else open_dataset(self.root, **options).take(mask)
            if door == "feed":
                how: dict[str, Any] = {"shuffle": True, "shuffle_buffer": 5} if share < 0.5 else {}
                batches = iter_batches(self.root, 7, **options, **how)
                return pa.Table.from_batches(batches, batches.schema)
            ddf = read_tfrecord(self.root, **read)
            if door == "len":
                return len(ddf)
            if door == "dask":
                # A filter of Dask may leave out rows of the read, but all other rows keep their numbers.
                ddf = evaluate(queried, ddf, ddf)
                return ddf.compute() if dask.is_dask_collection(ddf) else ddf
            parts = [at for at in range(ddf.npartitions) if random_rows.random() < share]
            return (ddf.partitions[parts] if parts else ddf).compute()

        return text, run


def outcome(run: Any) -> Any:
    try:
        return _plain(run())
    except Exception as error:  # the error is compared
        return type(error), str(error)


def _plain(found: Any) -> Any:
    if isinstance(found, pd.Series):
        return _plain(found.to_frame("it"))
    if isinstance(found, pd.DataFrame):
        index = [str(value) for value in found.index]
        types = [
            str(found[name].dtype) for name in found if not isinstance(found[name].dtype, pd.CategoricalDtype)
        ]
        rows = {name: pa.array(found[name].array, from_pandas=False) for name in found}
        return index, types, _plain(pa.table(rows))
    if isinstance(found, pa.Table | pa.RecordBatch):
        return found.schema.names, len(found), [repr(found[name].to_pylist()) for name in found.schema.names]
    return repr(found)


def check_dataset(seed: int, root: Path, queries: int) -> int:
    """Compare random queries of a random dataset. Return the number of queries."""
    dataset = Dataset(seed, root)
    state = "present"
    for number in range(queries):
        if number == queries // 2:
            state = dataset.spoil()
        text, run = dataset.query()
        found = outcome(run)
        with decoding():
            expected = outcome(run)
        assert found == expected, f"{text}, column files {state}"
    return queries


@pytest.mark.filterwarnings("ignore")
def test_random_queries_give_the_decoded_rows(tmp_path: Path) -> None:
    for seed in range(max(EXAMPLES // QUERIES_PER_DATASET, 1)):
        check_dataset(seed, tmp_path / str(seed), QUERIES_PER_DATASET)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files of which bytes are read through a store."""
    found: list[str] = []
    open_, read_ranges = Store.open, Store.read_ranges

    def opening(store: Store, path: str, *arguments: Any, **options: Any) -> Any:
        found.append(Path(path).name)
        return open_(store, path, *arguments, **options)

    def reading(store: Store, ranges: Any) -> Any:
        found.extend(Path(path).name for path, *_ in ranges)
        return read_ranges(store, ranges)

    monkeypatch.setattr(Store, "open", opening)
    monkeypatch.setattr(Store, "read_ranges", reading)
    return found


@pytest.fixture(params=[None, "gzip"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of 200 large values, whose other columns are in column files."""
    columns = {"n": range(200), "label": [n % 20 for n in range(200)]}
    table = pa.table({**columns, "image": [bytes([n]) * 2_000 for n in range(200)]})
    options: Any = {"columnar": ["n", "label"], "compression": request.param}
    to_tfrecord(table, tmp_path / "images", write_options={"max_rows_per_file": 100}, **options)
    return tmp_path / "images"


def parts(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("part-")]


def reports(ddf: Any) -> list[Any]:
    return [report for of_task in explain(ddf).partitions for report in of_task]


def test_stored_columns_are_read_without_the_data_files(images: Path, opened: list[str]) -> None:
    ddf = read_tfrecord(images)
    assert ddf["n"].sum().compute() == sum(range(200))
    assert ddf["label"].value_counts().compute().tolist() == [10] * 20
    assert len(ddf[ddf["label"] == 3]) == 10
    assert len(read_tfrecord(images, filters=[("label", "==", 3)])) == 10
    others = read_tfrecord(images, columns=["n"]).merge(ddf[["n", "label"]], on="n")
    assert len(others.compute()) == 200
    assert open_dataset(images).take([3, 150], columns="n")["n"].to_pylist() == [3, 150]
    batches = iter_batches(images, 50, columns=["n"], filters=[("label", "<", 2)], shuffle=True, seed=1)
    assert sorted(pa.table(batches)["n"].to_pylist()) == [n for n in range(200) if n % 20 < 2]
    assert not parts(opened)


def test_only_matching_records_of_other_columns_are_read(images: Path, opened: list[str]) -> None:
    ddf = read_tfrecord(images, filters=[("n", "==", 30)])
    assert ddf.compute()["image"].tolist() == [bytes([30]) * 2_000]
    assert len(parts(opened)) == 1
    [report] = reports(ddf)
    assert (report.read, report.rows) == ("some records", 1)
    assert report.data_bytes < report.stored_bytes / 10


def test_a_filter_that_most_rows_pass_reads_each_file_once(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "request_cost", 1 << 16)
    ddf = read_tfrecord(images, filters=[("label", "!=", 1)])
    assert {report.read for report in reports(ddf)} == {"all records"}
    assert explain(ddf).totals["data_bytes"] == explain(ddf).totals["stored_bytes"]


@pytest.mark.parametrize("images", [None], indirect=True)  # gzip is decompressed block by block
def test_ranges_that_are_read_at_once_are_bounded(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range of all wanted records would also hold most of the other records."""
    monkeypatch.setattr(LocalStore, "request_cost", 8_000)
    monkeypatch.setattr(selected_records, "TABLE_BYTES", 20_000)
    monkeypatch.setattr(selected_records.Fetch, "is_cheaper", True)
    ddf = read_tfrecord(images, filters=[("label", "in", [0, 3, 6, 9, 12, 15, 18])])
    with patch.object(Store, "read_ranges", autospec=True, side_effect=Store.read_ranges) as reading:
        assert ddf.compute()["n"].tolist() == [n for n in range(200) if n % 20 % 3 == 0]
    ranges = [one for call in reading.call_args_list for one in call.args[1]]
    assert 10_000 < max(one.stop - one.start for one in ranges if "/part-" in one.path) < 23_000


def test_a_column_file_replaces_a_data_file_that_is_touched_or_removed(images: Path) -> None:
    ddf = read_tfrecord(images, columns=["n"])
    touched, removed = sorted(images.glob("part-*"))
    os.utime(touched, (0, 0))
    removed.unlink()
    assert ddf.compute()["n"].tolist() == [*range(200)]


@pytest.mark.parametrize("images", [None], indirect=True)
def test_the_column_file_of_a_rewritten_file_of_another_tool_is_not_used(images: Path) -> None:
    shutil.rmtree(images / "_tfrecord")
    for at, path in enumerate(sorted(images.glob("part-*"))):
        path.rename(images / f"{at}.tfrecord")
    open_dataset(images).add_snapshot(columnar=["n"])
    ddf = read_tfrecord(images, columns=["n"])
    os.utime(images / "0.tfrecord", (0, 0))  # a copy: the content is the same
    assert ddf.compute()["n"].tolist() == [*range(200)]
    data = (images / "0.tfrecord").read_bytes()
    (images / "0.tfrecord").write_bytes(data[:-1] + b"?")
    with pytest.raises(dask_tfrecord.FileChangedError, match=r"call dask_tfrecord.*\.add_snapshot\("):
        read_tfrecord(images, columns=["n"], read_options={"verify_crc": False}).compute()


@pytest.mark.parametrize("columns", [["n"], ["label", "image"]])
def test_damage_of_one_file_in_a_column_file_loses_no_row_of_the_next_file(
    tmp_path: Path, columns: list[str]
) -> None:
    frame = pd.DataFrame({"n": range(200), "label": [n % 20 for n in range(200)], "image": "x" * 500})
    to_tfrecord(
        dd.from_pandas(frame, npartitions=1),
        tmp_path,
        columnar=["n", "label"],
        write_options={"max_rows_per_file": 50},
    )
    [path] = tmp_path.glob("_tfrecord/columns/*")
    data, column = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(5).column(1)
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1  # in the rows of the second file
    path.write_bytes(data)
    wanted = frame[frame["label"] >= 10]
    ddf = read_tfrecord(tmp_path, columns=columns, filters=[("label", ">=", 10)])
    assert ddf.npartitions == 1
    assert ddf.compute()[columns[0]].tolist() == wanted[columns[0]].tolist()
    open_column_file.cache_clear()
    taken = open_dataset(tmp_path).take(np.arange(0, 200, 3), columns=columns)
    assert taken[columns[0]].to_pylist() == frame[columns[0]][::3].tolist()
    open_column_file.cache_clear()
    table = RecordTable(tmp_path, columns=columns)
    assert table[pc.field("label") >= 10][columns[0]].to_pylist() == wanted[columns[0]].tolist()


def test_a_failure_of_the_store_is_forgotten(images: Path, opened: list[str]) -> None:
    open_column_file.cache_clear()
    with patch.object(Store, "read_ranges", side_effect=ConnectionError):
        assert read_tfrecord(images, columns=["n"])["n"].sum().compute() == sum(range(200))
    assert all(name.startswith("part-") for name in opened)
    opened.clear()
    assert read_tfrecord(images, columns=["n"])["n"].sum().compute() == sum(range(200))
    assert not any(name.startswith("part-") for name in opened)


def test_a_value_that_does_not_fit_its_column_is_reported_where_it_lies(images: Path) -> None:
    """The statistics of row groups hold the value, too."""
    schema = {"n": pa.int8(), "label": pa.int64()}
    for filters in ([("n", ">", 5)], [("n", "<", 5)]):
        with pytest.raises(
            dask_tfrecord.SchemaError, match=r"part-.* record 28: feature 'n': 128 does not fit int8"
        ):
            read_tfrecord(images, schema=schema, filters=filters).compute()


@pytest.mark.parametrize("images", [None], indirect=True)  # damage of compressed bytes is not in one record
def test_a_damaged_record_is_reported_where_it_lies(images: Path) -> None:
    [path] = images.glob("part-*-00000.*")
    status, data = path.stat(), bytearray(path.read_bytes())
    data[data.index(bytes([30]) * 2_000) + 5] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(read_tfrecord(images, filters=[("n", "==", 31)]).compute()) == 1
    with pytest.raises(dask_tfrecord.CorruptRecordError, match="record 30"):
        read_tfrecord(images, filters=[("n", "==", 30)]).compute()


def test_a_filter_of_dask_fetches_records_and_keeps_their_row_numbers(images: Path) -> None:
    ddf = read_tfrecord(images)
    found = ddf[ddf["n"] == 130]
    frame = found.compute()
    assert frame["image"].tolist() == [bytes([130]) * 2_000]
    with decoding():
        assert frame.index.tolist() == found.compute().index.tolist()
    assert [(report.read, report.rows) for report in reports(found)] == [("some records", 1)]
    both = dask.compute(found["n"], ddf["image"])  # the other collection needs all rows
    assert (both[0].tolist(), len(both[1])) == ([130], 200)


def test_explanations_are_json_and_text(images: Path) -> None:
    ddf = read_tfrecord(images, filters=[("n", "==", 30)])
    explanation = explain(ddf)
    assert json.loads(json.dumps(explanation.to_dict()))["totals"] == explanation.totals
    assert explanation.totals["files_left_out"] == 1
    lines = repr(explanation).splitlines()
    assert lines[0].split()[:3] == ["partition", "file", "read"]
    assert "some records" in lines[1]
    assert "left out" in lines[2]
    with pytest.raises(dask_tfrecord.TFRecordError, match="Dask collection"):
        explain(ddf.compute())


def test_row_groups_that_statistics_exclude_are_not_read(tmp_path: Path) -> None:
    columns = {"n": range(1_000), "text": [f"{n:04}" for n in range(1_000)]}
    table = pa.table({**columns, "real": [n + 0.5 for n in range(1_000)]})
    to_tfrecord(table, tmp_path, columnar="scalars", lossy="allow")
    every = explain(read_tfrecord(tmp_path, columns=["n", "text"])).totals["column_bytes"]
    for filters in ([("n", "==", 700)], [("text", "==", "0700")], [("real", "<", 2), ("n", ">=", 0)]):
        ddf = read_tfrecord(tmp_path, columns=["n"], filters=filters)
        assert explain(ddf).totals["column_bytes"] < every / 10
        found = ddf.compute()["n"].tolist()
        with decoding():
            assert found == ddf.compute()["n"].tolist()


def test_each_single_row_of_row_groups_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row of a row group is not looked for in the row group before, if a chunk has both."""
    monkeypatch.setattr(column_files, "_RUN_ROWS", 1_000)
    mixed = [n * 37 % 100 for n in range(100)]
    to_tfrecord(pa.table({"n": range(100), "mixed": mixed}), tmp_path, columnar="scalars")
    for n in [*range(18), *(n for n in range(18, 100) if n % 16 in (0, 15))]:
        ddf = read_tfrecord(tmp_path, columns=["n"], filters=[("mixed", "==", mixed[n])])
        assert ddf.compute()["n"].tolist() == [n]


@pytest.mark.parametrize(("rows", "rule"), [(60, "the lists take"), (20, "small files are decoded together")])
def test_small_files_and_long_lists_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, rule: str
) -> None:
    """Their column files take longer to read."""
    lists = [[at + 0.5] * 30 for at in range(60)]
    table = pa.table({"n": range(60), "list": lists})
    to_tfrecord(
        table, tmp_path, columnar=["n", "list"], lossy="allow", write_options={"max_rows_per_file": rows}
    )
    monkeypatch.undo()
    ddf = read_tfrecord(tmp_path, columns=["list"])
    assert rule in str(explain(ddf))
    assert ddf.compute()["list"].map(list).tolist() == lists
