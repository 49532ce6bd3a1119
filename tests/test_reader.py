"""`read_tfrecord`: the rows and columns of files of other writers and of our own, and the errors.

Modules: reader.
"""

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.utils import assert_eq
from oracle import Feature, Record

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, SchemaError, TFRecordError, read_tfrecord
from dask_tfrecord.files import record_file
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import Window, open_window
from dask_tfrecord.schema.fields import Schema

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


@pytest.mark.parametrize("name", ["", "*.tfrecord", "[012].tfrecord"])
def test_a_directory_and_globs_mean_the_same(foreign: Path, name: str) -> None:
    assert len(read_tfrecord(str(foreign / name))) == 10


def test_a_file_and_a_list_of_files(foreign: Path) -> None:
    one = read_tfrecord(foreign / "1.tfrecord")
    pd.testing.assert_frame_equal(in_order(one), expected(4, 8))
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
        assert order == keys if not together else sorted(order) == sorted(keys)
        write(tmp_path / name, 40, frame.replace("b", "new"), append=True)
        write(tmp_path / name, 80, frame[frame["key"] == "z"], overwrite="partitions")
        order, numbers, _ = found(tmp_path / name)
        assert order == [key for key in order if key not in ("new", "z")] + ["new", "z"]
        by_key = {key: [n for n in range(80) if keys[n % 4] == key] for key in ("m", "a")}
        by_key |= {"b": list(range(1, 40, 4)), "new": list(range(41, 80, 4)), "z": list(range(82, 120, 4))}
        assert numbers == [number for key in order for number in by_key[key]]

    shutil.rmtree(tmp_path / "spread" / "_tfrecord")
    dask_tfrecord.index(tmp_path / "spread")
    paths = found(tmp_path / "spread")[2]
    assert paths == sorted(paths)


def test_meta_is_what_partitions_hold(foreign: Path) -> None:
    ddf = read_tfrecord(foreign, blocksize=None)
    assert_eq(ddf[["n", "name"]], ddf[["n", "name"]].compute(), check_index=False)
    for partition in ddf.partitions:
        assert partition.compute().dtypes.equals(ddf.dtypes)


def test_strings_are_left_alone_by_dasks_conversion(foreign: Path) -> None:
    for convert in (True, False):
        with dask.config.set({"dataframe.convert-string": convert}):
            assert read_tfrecord(foreign)["name"].compute().dtype == pd.ArrowDtype(pa.string())


def test_columns_may_be_chosen(foreign: Path) -> None:
    ddf = read_tfrecord(foreign, columns=["name", "n"])
    assert list(ddf.columns) == list(ddf.compute().columns) == ["name", "n"]
    assert read_tfrecord(foreign, columns="n").compute().tolist() == list(range(10))
    assert read_tfrecord(foreign, columns=[]).compute().shape == (10, 0)


def test_unknown_columns_are_refused_with_the_known_ones(foreign: Path) -> None:
    with pytest.raises(SchemaError, match=r"'nothing'.*'n'"):
        read_tfrecord(foreign, columns=["n", "nothing"])


def test_a_column_twice_is_refused(foreign: Path) -> None:
    with pytest.raises(SchemaError, match="names 'n' more than once"):
        read_tfrecord(foreign, columns=["n", "list", "n"])


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


def test_a_sequence_example_is_read(tmp_path: Path) -> None:
    record = Record(
        {"id": Feature("int64", [7])}, {"steps": [Feature("int64", [1, 2]), Feature("int64", [])]}
    )
    payload = oracle.serialize(record, "sequence_example")
    (tmp_path / "a").write_bytes(oracle.records_file([payload] * 3))
    frame = read_tfrecord(tmp_path).compute()
    assert frame["id"].tolist() == [7] * 3
    assert [[list(step) for step in steps] for steps in frame["steps"]] == [[[1, 2], []]] * 3


def test_bytes_are_read(foreign: Path, tmp_path: Path) -> None:
    payloads = oracle.frames(rows(0, 4))
    assert read_tfrecord(foreign, record_type="bytes")["record"].compute().tolist()[:4] == payloads
    (tmp_path / "a").write_bytes(oracle.records_file([b"\xff", b"", b"\0"]))
    assert read_tfrecord(tmp_path / "a")["record"].compute().tolist() == [b"\xff", b"", b"\0"]


@pytest.mark.parametrize("contents", [[b""], [b"", b""]])
def test_no_records_are_no_rows(tmp_path: Path, contents: list[bytes]) -> None:
    for number, content in enumerate(contents):
        (tmp_path / f"{number}").write_bytes(content)
    assert read_tfrecord(tmp_path).compute().shape == (0, 0)
    frame = read_tfrecord(tmp_path, schema={"a": pa.int8()}).compute()
    assert frame.dtypes.to_dict() == {"a": pd.ArrowDtype(pa.int8())}
    assert len(frame) == 0


def test_an_empty_file_among_others_has_their_dtypes(foreign: Path) -> None:
    (foreign / "3.tfrecord").write_bytes(b"")
    ddf = read_tfrecord(foreign, blocksize=None)
    assert ddf.partitions[3].compute().dtypes.equals(ddf.dtypes)
    assert len(ddf) == 10


@pytest.mark.parametrize(
    ("argument", "value"),
    [("record_type", "exmaple"), ("compression", "snappy"), ("compression", "gz")],
)
def test_unknown_choices_are_refused_with_the_known_ones(foreign: Path, argument: str, value: str) -> None:
    with pytest.raises(TFRecordError, match=f"unknown {argument} '{value}'; pass one of 'infer', "):
        read_tfrecord(foreign, **{argument: value})


@pytest.mark.parametrize(("name", "compression"), [("0", "gzip"), ("1", None), ("1", "zlib"), ("2", "gzip")])
def test_another_compression_than_the_one_asked_for_is_named(
    foreign: Path, name: str, compression: Any
) -> None:
    with pytest.raises(CorruptRecordError, match='pass compression="infer"'):
        read_tfrecord(foreign / f"{name}.tfrecord", compression=compression)


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
@pytest.mark.parametrize("content", [b"", rows(0, 3)])
def test_the_compression_asked_for_is_read(tmp_path: Path, compression: Any, content: bytes) -> None:
    (tmp_path / "a").write_bytes(oracle.compress(content, compression))
    (tmp_path / "b").write_bytes(b"")
    assert len(read_tfrecord(tmp_path, compression=compression)) == (3 if content else 0)


def test_nothing_to_read_is_a_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no visible files"):
        read_tfrecord(tmp_path)


# --- damage ------------------------------------------------------------------------------------------


def damage_at(tmp_path: Path, content: bytes, position: int) -> Path:
    broken = bytearray(content)
    broken[position] ^= 1
    path = tmp_path / "broken.tfrecord"
    path.write_bytes(broken)
    return path


@pytest.mark.parametrize("columns", [None, ["n"], []])
def test_damage_is_raised_when_it_is_read_with_file_record_and_offset(tmp_path: Path, columns: Any) -> None:
    content = rows(0, 100)
    start = len(rows(0, 60))
    path = damage_at(tmp_path, content, start + 20)
    ddf = read_tfrecord(path, schema=pa.schema({"n": pa.int64()}), record_type="example", columns=columns)
    with pytest.raises(CorruptRecordError) as caught:
        ddf.compute()
    error = caught.value
    assert (error.path, error.record, error.offset) == (str(path), 60, start)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_offsets_count_from_the_files_start_across_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "WINDOW_BYTES", 1000)
    content = rows(0, 200)
    start = len(rows(0, 150))
    path = damage_at(tmp_path, content, start + 15)
    for compression in (None, "gzip", "zlib"):
        path.write_bytes(oracle.compress(path.read_bytes(), compression))
        ddf = read_tfrecord(path, schema=pa.schema({"n": pa.int64()}), record_type="example")
        with pytest.raises(CorruptRecordError) as caught:
            ddf.compute()
        assert (caught.value.record, caught.value.offset) == (150, start)
        path.write_bytes(content[: start + 15] + bytes([content[start + 15] ^ 1]) + content[start + 16 :])


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
    with (
        open_window(store, Split(FileInfo(store.root, len(content))), ReadOptions(None), 256) as view,
        pytest.raises(CorruptRecordError, match="length is 10,016 bytes, but only 5,000 bytes") as caught,
    ):
        list(_scan(view))
    assert caught.value.offset == len(rows(0, 3))


def _scan(view: Window) -> Iterator[int]:
    for data in view:
        scanned = record_file.scan(data, final=view.final)
        yield scanned.records
        view.advance(scanned.consumed)


def test_a_file_that_changed_since_it_was_listed_raises(foreign: Path) -> None:
    ddf = read_tfrecord(foreign)
    with (foreign / "0.tfrecord").open("ab") as file:
        file.write(rows(100, 1))
    with pytest.raises(CorruptRecordError, match="when the dataset was listed") as caught:
        ddf.compute()
    assert caught.value.path == f"{foreign}/0.tfrecord"


def test_a_file_that_vanished_since_it_was_listed_raises(foreign: Path) -> None:
    ddf = read_tfrecord(foreign)
    os.remove(foreign / "1.tfrecord")
    with pytest.raises(FileNotFoundError, match=r"1\.tfrecord"):
        ddf.compute()


# --- own datasets ------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Ten rows in two files and a snapshot."""
    frame = pd.DataFrame({"n": range(10), "flag": [n % 2 == 0 for n in range(10)]}).astype({"n": "int8"})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), tmp_path / "own")
    return tmp_path / "own"


def parts(root: Path) -> list[Path]:
    return sorted(root.glob("part-*"))


def test_a_directory_with_a_snapshot_knows_its_types(own: Path) -> None:
    types = {"n": pd.ArrowDtype(pa.int8()), "flag": pd.ArrowDtype(pa.bool_())}
    assert read_tfrecord(own).dtypes.to_dict() == types
    types = dict.fromkeys(types, pd.ArrowDtype(pa.int64()))
    assert read_tfrecord(f"{own}/*.tfrecord").dtypes.to_dict() == types


def test_given_types_go_before_the_snapshots(own: Path) -> None:
    ddf = read_tfrecord(own, schema={"n": pa.int64()})
    assert ddf.compute().dtypes.to_dict() == {
        "n": pd.ArrowDtype(pa.int64()),
        "flag": pd.ArrowDtype(pa.bool_()),
    }
    assert list(read_tfrecord(own, schema=pa.schema({"flag": pa.uint8()})).compute().columns) == ["flag"]
    with pytest.raises(SchemaError, match="nothing"):
        read_tfrecord(own, schema={"nothing": pa.int64()})


def test_a_snapshots_records_may_be_read_as_bytes(own: Path) -> None:
    payloads = read_tfrecord(own, record_type="bytes")["record"].compute().tolist()
    assert [oracle.parse(payload).features["n"].values for payload in payloads] == [[n] for n in range(10)]


def test_a_missing_file_raises(own: Path) -> None:
    os.remove(parts(own)[1])
    with pytest.raises(CorruptRecordError, match=r"part-.*-00001-of-00002.* is missing"):
        read_tfrecord(own)


def test_a_file_of_another_size_raises(own: Path) -> None:
    parts(own)[0].write_bytes(parts(own)[0].read_bytes()[:-1])
    with pytest.raises(CorruptRecordError, match=r"bytes, but .* in the dataset's snapshot"):
        read_tfrecord(own)


def test_a_file_that_the_snapshot_does_not_list_raises_with_a_way_to_read_it(own: Path) -> None:
    (own / "part-from-spark.tfrecord").write_bytes(b"")
    with pytest.raises(TFRecordError, match=r"spark.tfrecord: .* pass use_snapshot=False"):
        read_tfrecord(own)
    assert len(read_tfrecord(own, use_snapshot=False)) == len(read_tfrecord(f"{own}/*.tfrecord*")) == 10


def test_files_of_a_write_that_was_not_committed_are_ignored(own: Path) -> None:
    (own / "part-0123abcd0123abcd0123abcd0123abcd-00000-of-00002.tfrecord").write_bytes(b"half a file")
    assert len(read_tfrecord(own).compute()) == 10


def test_a_damaged_snapshot_raises_and_says_how_to_read_without(own: Path) -> None:
    (own / "_tfrecord" / "00000001.parquet").write_bytes(b"nothing")
    with pytest.raises(TFRecordError, match=r"not a valid snapshot .*use_snapshot=False"):
        read_tfrecord(own)


def test_a_dataset_whose_name_reads_as_a_glob_is_found(tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(
        dd.from_pandas(pd.DataFrame({"n": [True]}), npartitions=1), tmp_path / "own[1]*"
    )
    assert read_tfrecord(tmp_path / "own[1]*").dtypes.to_dict() == {"n": pd.ArrowDtype(pa.bool_())}


def test_partitions_without_any_category_are_put_together_with_others(tmp_path: Path) -> None:
    for name, words in (("0", ["a"]), ("1", [None]), ("2", ["b"])):
        records = [{} if word is None else {"word": ("bytes", [word.encode()])} for word in words]
        (tmp_path / name).write_bytes(oracle.features_file(records))
    (tmp_path / "3").write_bytes(b"")
    schema = {"word": pa.dictionary(pa.int32(), pa.string())}
    ddf = read_tfrecord(tmp_path, schema=schema, blocksize=None, include_path_column=True)
    found = ddf.compute()
    assert found["word"].astype(object).where(found["word"].notna(), None).tolist() == ["a", None, "b"]
    assert [Path(path).name for path in found["path"]] == ["0", "1", "2"]
    assert isinstance(found["word"].dtype, pd.CategoricalDtype)
    assert isinstance(found["path"].dtype, pd.CategoricalDtype)
