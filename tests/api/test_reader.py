"""`read_tfrecord` and `inspect`: the rows and columns of files of others and of our own, and the errors.

Modules: api.read, api.description, api.explain, dataset.export.
"""

import pickle
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.utils import assert_eq
from small_frames import flip

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, CorruptRecordWarning, SchemaError, read_tfrecord
from dask_tfrecord.files import record_file
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.window import open_window
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(first: int, count: int) -> bytes:
    """A file of Examples with three features: a number, a list of the number's double, and a name."""
    return oracle.features_file(
        [
            {"n": ("int64", [n]), "list": ("int64", [n] * (n % 3)), "name": ("bytes", [f"row {n}".encode()])}
            for n in range(first, first + count)
        ]
    )


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Ten rows in three files without a snapshot; each file has another compression."""
    root = tmp_path / "foreign"
    root.mkdir()
    for number, (first, count, compression) in enumerate([(0, 4, None), (4, 4, "gzip"), (8, 2, "zlib")]):
        (root / f"{number}.tfrecord").write_bytes(oracle.compress(rows(first, count), compression))
    (root / "_SUCCESS").touch()
    return root


def expected(first: int = 0, stop: int = 10) -> pd.DataFrame:
    numbers = range(first, stop)
    columns = {
        "n": pd.array(numbers, pd.ArrowDtype(pa.int64())),
        "list": pd.array([[n] * (n % 3) for n in numbers], pd.ArrowDtype(pa.list_(pa.int64()))),
        "name": pd.array([f"row {n}" for n in numbers], pd.ArrowDtype(pa.string())),
    }
    return pd.DataFrame(columns)


def in_order(ddf: Any) -> pd.DataFrame:
    """The whole frame, with columns and rows in the order of `expected`."""
    frame: pd.DataFrame = ddf.compute()
    return frame[["n", "list", "name"]].reset_index(drop=True)


def test_foreign_files_are_read_whatever_their_compression(foreign: Path) -> None:
    ddf = read_tfrecord(foreign, blocksize=None)
    assert ddf.npartitions == 3
    pd.testing.assert_frame_equal(in_order(ddf), expected())
    assert_eq(ddf[["n", "name"]], ddf[["n", "name"]].compute(), check_index=False)
    for partition in ddf.partitions:
        assert partition.compute().dtypes.equals(ddf.dtypes)
    for pattern in ("*.tfrecord", "[012].tfrecord"):
        assert len(read_tfrecord(str(foreign / pattern))) == 10
    pd.testing.assert_frame_equal(in_order(read_tfrecord(foreign / "1.tfrecord")), expected(4, 8))
    two = read_tfrecord([foreign / "2.tfrecord", foreign / "0.tfrecord"])
    assert two["n"].compute().tolist() == [8, 9, 0, 1, 2, 3]


def test_rows_have_the_order_of_their_writes(tmp_path: Path) -> None:
    """The rule in the docstring of `read_tfrecord`: the paths decide only where no snapshot is used."""
    keys = ["m", "b", "z", "a"]
    frame = pd.DataFrame({"n": range(40), "key": [keys[row % 4] for row in range(40)]})

    def write(path: Path, first: int, frame: pd.DataFrame, **options: Any) -> None:
        ddf = dd.from_pandas(frame.assign(n=frame["n"] + first), npartitions=2)
        dask_tfrecord.to_tfrecord(ddf, path, partition_on="key" if "key" in frame else None, **options)

    def found(path: Any, **options: Any) -> tuple[list[Any], list[int], list[str]]:
        rows = read_tfrecord(path, include_path_column=True, **options).compute()
        seen = [list(dict.fromkeys(rows[name])) if name in rows else [] for name in ("key", "path")]
        return seen[0], rows["n"].tolist(), seen[1]

    for first in range(0, 400, 40):
        write(tmp_path / "plain", first, frame[["n"]], append=True)
    assert found(tmp_path / "plain")[1] == list(range(400))
    for path, options in ((tmp_path / "plain", {"use_snapshot": False}), ([tmp_path / "plain"], {})):
        paths = found(path, **options)[2]
        assert paths == sorted(paths)

    for name, together in (("spread", False), ("colocated", True)):
        write(tmp_path / name, 0, frame, colocate=together)
        order, numbers, _ = found(tmp_path / name)
        assert order == sorted(keys)
        write(tmp_path / name, 40, frame.replace("b", "new"), append=True)
        write(tmp_path / name, 80, frame[frame["key"] == "z"], overwrite="partitions")
        order, numbers, _ = found(tmp_path / name)
        assert order == sorted([*keys, "new"])
        by_key = {key: [n for n in range(80) if keys[n % 4] == key] for key in ("m", "a")}
        by_key |= {"b": list(range(1, 40, 4)), "new": list(range(41, 80, 4)), "z": list(range(82, 120, 4))}
        assert numbers == [number for key in order for number in by_key[key]]

    shutil.rmtree(tmp_path / "spread" / "_tfrecord")
    dask_tfrecord.open_dataset(tmp_path / "spread").add_snapshot()
    paths = found(tmp_path / "spread")[2]
    assert paths == sorted(paths)


def test_strings_are_left_alone_by_dasks_conversion(foreign: Path) -> None:
    for convert in (True, False):
        with dask.config.set({"dataframe.convert-string": convert}):
            assert read_tfrecord(foreign)["name"].compute().dtype == pd.ArrowDtype(pa.string())


def test_columns_may_be_chosen(foreign: Path) -> None:
    ddf = read_tfrecord(foreign, columns=["name", "n"])
    assert list(ddf.columns) == list(ddf.compute().columns) == ["name", "n"]
    assert read_tfrecord(foreign, columns="n").compute().tolist() == list(range(10))
    assert read_tfrecord(foreign, columns=[]).compute().shape == (10, 0)
    for names, problem in ((["n", "nothing"], r"'nothing'.*'n'"), (["n", "list", "n"], "'n' more than once")):
        with pytest.raises(SchemaError, match=problem):
            read_tfrecord(foreign, columns=names)


def test_types_may_be_given(foreign: Path) -> None:
    ddf = read_tfrecord(foreign, schema={"n": pa.int8(), "name": pa.dictionary(pa.int32(), pa.string())})
    assert ddf["n"].compute().dtype == pd.ArrowDtype(pa.int8())
    assert ddf["name"].compute().astype(str).tolist() == [f"row {n}" for n in range(10)]
    ddf = read_tfrecord(foreign, schema=pa.schema({"name": pa.large_binary(), "other": pa.bool_()}))
    assert ddf.compute()["name"].tolist() == [f"row {n}".encode() for n in range(10)]
    assert ddf["other"].compute().isna().all()


def test_a_value_that_does_not_fit_says_where_and_what_to_do(foreign: Path) -> None:
    with pytest.raises(SchemaError, match=r"schema=\{\"list\": pa.list_\(pa.int64\(\)\)\}") as caught:
        read_tfrecord(foreign / "0.tfrecord", schema={"list": pa.int64()}).compute()
    error = caught.value
    assert (error.path, error.record, error.feature) == (f"{foreign}/0.tfrecord", 2, "list")
    (foreign / "3.tfrecord").write_bytes(rows(298, 5))
    with pytest.raises(SchemaError, match=r"300|298") as caught:
        read_tfrecord(foreign, schema={"n": pa.uint8()}).compute()
    assert (caught.value.path, caught.value.feature) == (f"{foreign}/3.tfrecord", "n")


def test_no_records_are_no_rows(tmp_path: Path, foreign: Path) -> None:
    for name in ("empty/0", "empty/1", "foreign/3.tfrecord"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for empty in (tmp_path / "empty", tmp_path / "empty/0"):
        assert read_tfrecord(empty).compute().shape == (0, 0)
        frame = read_tfrecord(empty, schema={"a": pa.int8()}).compute()
        assert frame.dtypes.to_dict() == {"a": pd.ArrowDtype(pa.int8())}
        assert len(frame) == 0
    ddf = read_tfrecord(foreign, blocksize=None)
    assert ddf.partitions[3].compute().dtypes.equals(ddf.dtypes)
    assert len(ddf) == 10


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
@pytest.mark.parametrize("content", [b"", rows(0, 3)])
def test_only_the_compression_asked_for_is_read(tmp_path: Path, compression: Any, content: bytes) -> None:
    (tmp_path / "a").write_bytes(oracle.compress(content, compression))
    (tmp_path / "b").write_bytes(b"")
    assert len(read_tfrecord(tmp_path, compression=compression)) == (3 if content else 0)
    for other in {None, "gzip", "zlib"} - {compression} if content else ():
        with pytest.raises(CorruptRecordError, match='pass compression="infer"'):
            read_tfrecord(tmp_path / "a", compression=other)


@pytest.mark.parametrize("columns", [None, ["n"], []])
@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_damage_is_raised_when_it_is_read_with_file_record_and_offset(
    tmp_path: Path, columns: Any, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "WINDOW_BYTES", 1000)
    path, start = tmp_path / "broken.tfrecord", len(rows(0, 150))
    path.write_bytes(rows(0, 200))
    flip(path, start + 20)
    path.write_bytes(oracle.compress(path.read_bytes(), compression))
    ddf = read_tfrecord(path, schema=pa.schema({"n": pa.int64()}), record_type="example", columns=columns)
    with pytest.raises(CorruptRecordError) as caught:
        ddf.compute()
    error = caught.value
    assert (error.path, error.record, error.offset) == (str(path), 150, start)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("window", [1, 17, 64, 1000, 1 << 20])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_every_window_gives_the_same_rows(tmp_path: Path, window: int, compression: str | None) -> None:
    """Records may cross the bounds of windows, and be longer than the first window."""
    content = rows(0, 50)
    (tmp_path / "a").write_bytes(oracle.compress(content, compression))
    store = Store.at(tmp_path / "a")
    file = FileInfo(store.root, (tmp_path / "a").stat().st_size)
    schema = Schema.from_arrow(pa.schema({"n": pa.int64()}))
    found: list[int] = []
    with open_window(store, Split(file), ReadOptions(), window) as view:
        decoder = record_file.Decoder(schema.columns, "example")
        for data in view:
            decoded = decoder.decode(data, final=view.final)
            assert decoded.damage is None
            found += decoded.batch.column(0).to_pylist()
            view.advance(decoded.consumed)
    assert found == list(range(50))
    assert view.offset == len(content)


def test_a_record_that_claims_more_than_the_file_has_is_damage_at_once(tmp_path: Path) -> None:
    content = rows(0, 3) + oracle.frame(bytes(10_000))[:5000]
    (tmp_path / "a").write_bytes(content)
    store = Store.at(tmp_path / "a")
    problem = "length is 10,016 bytes, but only 5,000 bytes"
    with (
        open_window(store, Split(FileInfo(store.root, len(content))), ReadOptions(None), 256) as view,
        pytest.raises(CorruptRecordError, match=problem) as caught,
    ):
        [view.advance(record_file.scan(data, final=view.final).consumed) for data in view]
    assert caught.value.offset == len(rows(0, 3))


def test_a_directory_with_a_snapshot_knows_its_types_and_given_types_go_before(tmp_path: Path) -> None:
    own = tmp_path / "own[1]*"  # the name reads as a glob
    frame = pd.DataFrame({"n": range(10), "flag": [n % 2 == 0 for n in range(10)]}).astype({"n": "int8"})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), own)
    types = frame.dtypes.to_dict()
    assert read_tfrecord(own).dtypes.to_dict() == types
    typed = read_tfrecord(own, schema={"n": pa.int64()}).compute()
    assert typed.dtypes.to_dict() == types | {"n": pd.ArrowDtype(pa.int64())}
    assert list(read_tfrecord(own, schema=pa.schema({"flag": pa.uint8()})).compute().columns) == ["flag"]
    with pytest.raises(SchemaError, match="nothing"):
        read_tfrecord(own, schema={"nothing": pa.int64()})
    payloads = read_tfrecord(own, record_type="bytes")["record"].compute().tolist()
    assert [oracle.parse(payload).features["n"].values for payload in payloads] == [[n] for n in range(10)]
    own.rename(tmp_path / "own")
    types = dict.fromkeys(types, pd.ArrowDtype(pa.int64()))
    assert read_tfrecord(f"{tmp_path}/own/*.tfrecord").dtypes.to_dict() == types


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Two files of 100 rows."""
    dask_tfrecord.to_tfrecord(dd.from_pandas(pd.DataFrame({"x": range(200)}), npartitions=2), tmp_path)
    return tmp_path


def test_the_description_of_a_snapshot_reads_no_data_file(numbers: Path, opened: list[str]) -> None:
    opened.clear()
    found = dask_tfrecord.open_dataset(numbers)
    assert (found.num_rows, found.version, len(found.history()), len(found.files)) == (200, 1, 1, 2)
    assert found.statistics[["min", "max", "nulls"]].to_numpy().tolist() == [[0, 199, 0]]
    assert [path for path in opened if "part-" in path and "_tfrecord" not in path] == []


def test_rows_are_those_of_the_keywords(numbers: Path) -> None:
    found = dask_tfrecord.open_dataset(numbers, filters=[("x", ">=", 150)])
    assert len(found.files) == 1
    assert found.to_table() == pa.table({"x": range(150, 200)})
    typed = dask_tfrecord.open_dataset(numbers, schema={"x": pa.int16()}).to_table()
    assert typed["x"].combine_chunks() == pa.array(range(200), pa.int16())


def test_damage_raises_with_what_helps_here_or_is_reported_at_an_early_end(numbers: Path) -> None:
    file = min(numbers.glob("part-*"))
    flip(file, 20)
    with pytest.raises(CorruptRecordError, match="on_corrupt"):
        list(dask_tfrecord.open_dataset(file, schema={"x": pa.int64()}).to_batches())
    skipping = dask_tfrecord.open_dataset(file, on_corrupt="skip").to_batches()
    with pytest.warns(CorruptRecordWarning, match="skipped 1"), closing(skipping) as tables:
        next(tables)
