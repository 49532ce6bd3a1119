"""Spellings of Parquet, TensorFlow and pandas are accepted, or the error names the right keyword.

Modules: arguments.
"""

import inspect
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord, verify
from dask_tfrecord.arguments import CollectionKeywords, WriteKeywords
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.schema.logical_types import arrow_type

pytestmark = pytest.mark.usefixtures("one_thread")

FRAME = pd.DataFrame({"a": [1, 2, 3, 4], "b": ["x", "y", "x", None], "c": [0.5, 1.5, 2.5, 3.5]})


@pytest.fixture
def ddf() -> dd.DataFrame:
    return dd.from_pandas(FRAME, npartitions=2)


@pytest.fixture
def root(tmp_path: Path, ddf: dd.DataFrame) -> Path:
    to_tfrecord(ddf, tmp_path / "data", lossy="allow")
    return tmp_path / "data"


# --- types -------------------------------------------------------------------------------------------


STRUCT = pa.struct(
    [
        pa.field("a b", pa.float32(), nullable=False),
        ("c", pa.struct({"d": pa.timestamp("us", "UTC"), "e": pa.decimal128(5, 2)})),
        ("f", pa.list_(pa.string(), 3)),
    ]
)


@pytest.mark.parametrize(
    ("given", "type_"),
    [
        ("int64", pa.int64()),
        ("Int64", pa.int64()),
        ("UInt8", pa.uint8()),
        ("float32", pa.float32()),
        ("Float64", pa.float64()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("str", pa.string()),
        ("string[pyarrow]", pa.string()),
        ("bool", pa.bool_()),
        ("boolean", pa.bool_()),
        ("bytes", pa.binary()),
        ("binary", pa.binary()),
        ("date32[day]", pa.date32()),
        ("datetime64[ns]", pa.timestamp("ns")),
        ("datetime64[us, Europe/Vienna]", pa.timestamp("us", "Europe/Vienna")),
        ("timedelta64[s]", pa.duration("s")),
        *((str(type_), type_) for type_ in (pa.list_(pa.float32()), pa.list_(pa.list_(pa.int8())))),
        *((str(type_), type_) for type_ in (pa.large_list(pa.string()), pa.list_(pa.int64(), 3))),
        *((str(type_), type_) for type_ in (pa.binary(4), pa.decimal128(5, 2), pa.timestamp("ms", "UTC"))),
        *((str(type_), type_) for type_ in (STRUCT, pa.list_(STRUCT), pa.struct({}))),
        ("list<int64>", pa.list_(pa.int64())),
        ("list<item: int64>[pyarrow]", pa.list_(pa.int64())),
        (int, pa.int64()),
        (float, pa.float64()),
        (str, pa.string()),
        (np.int16, pa.int16()),
        (np.dtype("M8[ms]"), pa.timestamp("ms")),
        (np.dtype("float64"), pa.float64()),
        (np.float64, pa.float64()),
        (pd.Int32Dtype(), pa.int32()),
        (pd.StringDtype(), pa.string()),
        (pd.DatetimeTZDtype("ns", "UTC"), pa.timestamp("ns", "UTC")),
        (pd.ArrowDtype(pa.list_(pa.int8())), pa.list_(pa.int8())),
        (pa.time32("s"), pa.time32("s")),
    ],
    ids=str,
)
def test_types_are_understood_as_they_are_spelled(given: Any, type_: pa.DataType) -> None:
    assert arrow_type(given) == type_


@pytest.mark.parametrize(
    "given",
    [
        "float",
        "object",
        "category",
        "int65",
        "",
        None,
        5,
        list,
        object,
        "list<float32",
        pd.CategoricalDtype(),
    ],
    ids=str,
)
def test_what_is_no_type_or_an_unclear_one_is_refused_by_name(
    root: Path, tmp_path: Path, ddf: dd.DataFrame, given: Any
) -> None:
    with pytest.raises(ValueError, match=r"."):
        arrow_type(given)
    if given is not None:
        with pytest.raises(TFRecordError, match="schema="):
            read_tfrecord(root, schema={"a": given})
    with pytest.raises(TFRecordError, match="schema="):
        to_tfrecord(ddf, tmp_path / "x", schema={"a": given})


@pytest.mark.parametrize("given", ["int32", np.int32, pd.ArrowDtype(pa.int32()), pd.Int32Dtype(), pa.int32()])
def test_spelled_types_reach_files_and_frames(
    root: Path, tmp_path: Path, ddf: dd.DataFrame, given: Any
) -> None:
    assert read_tfrecord(root, schema={"a": given}).compute()["a"].dtype == pd.ArrowDtype(pa.int32())
    snapshot = to_tfrecord(ddf, tmp_path / "x", schema={"a": given}, lossy="allow")
    assert snapshot.schema.arrow.field("a").type == pa.int32()


def test_keys_of_directories_have_spelled_types(tmp_path: Path, ddf: dd.DataFrame) -> None:
    to_tfrecord(ddf, tmp_path, partition_on="a", lossy="allow")
    found = read_tfrecord(tmp_path, use_snapshot=False, hive={"a": "string"})
    assert sorted(found["a"].compute()) == ["1", "2", "3", "4"]


def test_schema_infer_is_the_default(root: Path, tmp_path: Path, ddf: dd.DataFrame) -> None:
    assert read_tfrecord(root, schema="infer").dtypes.equals(read_tfrecord(root).dtypes)
    assert to_tfrecord(ddf, tmp_path / "x", schema="infer", lossy="allow").schema.names == ["a", "b", "c"]


# --- codecs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "codec"), [("GZIP", "gzip"), ("ZLIB", "zlib"), ("", None), ("gzip", "gzip"), (None, None)]
)
def test_codecs_are_spelled_as_in_tensorflow(
    tmp_path: Path, ddf: dd.DataFrame, given: Any, codec: Any
) -> None:
    snapshot = to_tfrecord(ddf, tmp_path / "x", compression=given, lossy="allow")
    assert snapshot.compression == codec
    assert len(read_tfrecord(f"{tmp_path}/x/*", compression=given).compute()) == 4


@pytest.mark.parametrize("given", ["snappy", "gz", "none", 9, True, ["gzip"], b"gzip"])
def test_unknown_codecs_are_refused_with_the_known(
    root: Path, tmp_path: Path, ddf: dd.DataFrame, given: Any
) -> None:
    with pytest.raises(TFRecordError, match=r"unknown compression .*; pass one of 'infer', .*'gzip', 'zlib'"):
        read_tfrecord(root, compression=given)
    with pytest.raises(TFRecordError, match=r"unknown compression .*; pass one of None, 'gzip', 'zlib'"):
        to_tfrecord(ddf, tmp_path / "x", compression=given)


# --- filters -----------------------------------------------------------------------------------------

YEARS = pd.DataFrame(
    {
        "year": pd.array([2020, 2021, None, 2023], pd.ArrowDtype(pa.int32())),
        "name": pd.array(["a", None, "c", "d"], pd.ArrowDtype(pa.string())),
        "day": pd.array(pd.to_datetime(["2020-01-01"] * 2 + ["2021-01-01"] * 2), pd.ArrowDtype(pa.date32())),
        "key": ["k", "k", "l", "l"],
    }
)


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("year") > 2020,
        (pc.field("year") > 2020) & (pc.field("name") == "d"),
        ~(pc.field("year") == 2021),
        pc.field("year").is_null(),
        pc.field("name").isin(["a", "d"]),
        pc.field("day") == pa.scalar(pd.Timestamp("2020-01-01").date()),
        (pc.field("key") == "k") | (pc.field("year") > 2022),
        pc.field("year") * 2 == 4042,
        pc.starts_with(pc.field("name"), "c"),
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [None, ["key"], []])
def test_expressions_of_pyarrow_filter_as_arrow_does(tmp_path: Path, expression: Any, columns: Any) -> None:
    to_tfrecord(dd.from_pandas(YEARS, npartitions=2), tmp_path, partition_on="key")
    expected = pa.Table.from_pandas(YEARS).filter(expression)
    for found in (
        read_tfrecord(tmp_path, filters=expression, columns=columns),
        read_tfrecord(tmp_path, filters=expression, columns=columns, use_snapshot=False)
        if "day" not in str(expression)
        else None,
    ):
        if found is not None:
            assert len(found) == len(found.compute()) == expected.num_rows
            assert columns == [] or found["key"].compute().tolist() == expected["key"].to_pylist()


def test_two_long_expressions_are_distinguished(tmp_path: Path) -> None:
    to_tfrecord(dd.from_pandas(YEARS, npartitions=1), tmp_path)
    many = list(range(1000))
    one = read_tfrecord(tmp_path, filters=pc.field("year").isin([*many, 2020, *many]))
    other = read_tfrecord(tmp_path, filters=pc.field("year").isin([*many, 2021, *many]))
    assert one._name != other._name
    assert dd.concat([one, other])["year"].compute().tolist() == [2020, 2021]
    again = read_tfrecord(tmp_path, filters=pc.field("year").isin([*many, 2020, *many]))
    assert one._name == again._name


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (pc.field("nothing") > 1, "No match for FieldRef.Name"),
        (pc.field("year") == "x", "filters= cannot be applied to the columns"),
        (pc.field("year") + 1, "must evaluate to bool"),
        (pc.field(0) > 1, "refers to a column by its number"),
        ((pc.field(0) > 1) & (pc.field("year") > 1), "refers to a column by its number"),
    ],
)
def test_expressions_that_do_not_suit_the_columns_are_refused(
    tmp_path: Path, expression: Any, problem: str
) -> None:
    to_tfrecord(dd.from_pandas(YEARS, npartitions=1), tmp_path)
    with pytest.raises(SchemaError, match=problem):
        read_tfrecord(tmp_path, filters=expression)


# --- indexes, categories, backends -------------------------------------------------------------------


def test_an_index_may_be_given_as_a_list(root: Path) -> None:
    assert read_tfrecord(root, index=["a"]).compute().index.name == "a"
    assert read_tfrecord(root, index=["a", "b"]).compute().index.names == ["a", "b"]
    for none in (False, [], None):
        assert read_tfrecord(root, index=none).compute().index.name is None
    known = read_tfrecord(root, index=["a"], calculate_divisions=True, blocksize=None)
    assert known.divisions == (1, 3, 4)


@pytest.mark.parametrize("given", [["b"], "b", {"b": 2}, ("b",)])
@pytest.mark.parametrize("backend", ["pyarrow", "numpy", None])
def test_columns_are_read_as_categories(root: Path, given: Any, backend: Any) -> None:
    found = read_tfrecord(root, categories=given, dtype_backend=backend)
    assert isinstance(found.dtypes["b"], pd.CategoricalDtype)
    values = found.compute()["b"]
    assert isinstance(values.dtype, pd.CategoricalDtype)
    assert [None if pd.isna(x) else x for x in values] == ["x", "y", "x", None]
    assert len(read_tfrecord(root, categories=given, filters=[("b", "==", "x")]).compute()) == 2
    assert found[found.b == "y"].compute()["a"].tolist() == [2]


def test_no_dtype_backend_is_the_usual_one(root: Path) -> None:
    assert read_tfrecord(root, dtype_backend=None).dtypes.equals(read_tfrecord(root).dtypes)
    with pytest.raises(TFRecordError, match=r"unknown dtype_backend 'numpy_nullable'; pass one of 'pyarrow'"):
        read_tfrecord(root, dtype_backend="numpy_nullable")


# --- wrong types -------------------------------------------------------------------------------------

NOTHING = object()
ODD: list[Any] = [
    5, -1, 1.5, True, "abc", b"x", [1], ["zz"], {1: 2}, {"a": 5}, NOTHING, {"a"}, float("nan"), [None]
]  # fmt: skip
ODD += [np.array(["a"]), pd.Index(["a", "b"]), lambda x: x, (), "", None]

# Settings that have another spelling than the keyword.
UNNAMED = {"path", "partition_on", "columns"}


def keywords(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("ddf", "path")]


def said(function: Any, *arguments: Any, **options: Any) -> str | None:
    """Call the function, and return the message of its TFRecordError; None if there is no error.

    A version that the dataset does not have is a FileNotFoundError.
    """
    try:
        function(*arguments, **options)
    except (TFRecordError, FileNotFoundError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", keywords(read_tfrecord))
def test_a_reader_refuses_wrong_types_by_the_name_of_the_keyword(root: Path, name: str) -> None:
    for given in ODD:
        problem = said(read_tfrecord, root, **{name: given})
        assert problem is None or name in problem or name in UNNAMED, given


@pytest.mark.parametrize("name", keywords(to_tfrecord))
def test_a_writer_refuses_wrong_types_by_the_name_of_the_keyword(
    tmp_path: Path, ddf: dd.DataFrame, name: str
) -> None:
    usual = {"lossy": "allow", "compression": "gzip"}
    for at, given in enumerate(ODD):
        problem = said(to_tfrecord, ddf, tmp_path / f"{at}", **usual | {name: given})
        assert problem is None or name in problem or name in UNNAMED, given


@pytest.mark.parametrize("given", [5, None, b"x", "", "\ud800", {}, [1], [None], {"a": 1}, NOTHING, ["a", 5]])
def test_what_is_no_path_is_refused(ddf: dd.DataFrame, given: Any) -> None:
    with pytest.raises(TFRecordError, match=r"is not a path|are no paths|no path"):
        read_tfrecord(given)
    with pytest.raises(TFRecordError, match="is not a path"):
        to_tfrecord(ddf, given)
    with pytest.raises(TFRecordError, match=r"(?<!120) is not a path|list of paths is empty"):
        verify(given)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"partition_on": 5}, r"partition_on=5 is not a list of column names; .*partition_on=\[\"age\"\]"),
        ({"custom_metadata": {1: 2}}, "custom_metadata=.* must map strings to strings"),
        ({"compression": "gzip", "compression_level": "9"}, "compression_level='9' is not valid"),
        ({"storage_options": "x"}, "storage_options= is not a dict with string keys"),
        ({"write_index": "yes"}, "write_index='yes' is not True or False"),
        ({"retries": "3"}, "retries='3' is not a non-negative integer"),
        ({"name_function": "part"}, "name_function='part' is not callable"),
        ({"append": "yes"}, "unknown append 'yes'"),
        ({"colocate": "name"}, "colocate='name' is not True or False"),
        ({"compute": None}, "compute=None is not True or False"),
    ],
)
def test_wrong_types_are_explained_by_the_writer(
    tmp_path: Path, ddf: dd.DataFrame, arguments: Any, problem: str
) -> None:
    with pytest.raises(TFRecordError, match=problem):
        to_tfrecord(ddf, tmp_path / "x", **arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"columns": 5}, "columns=5 is not a list of column names"),
        ({"columns": ["zz"]}, r"columns=\['zz'\]: no column is named 'zz'"),
        ({"blocksize": "abc"}, "blocksize='abc' is not a size"),
        ({"storage_options": "x"}, "storage_options= is not a dict with string keys"),
        ({"hive": "yes"}, "hive='yes' does not map names to types"),
        ({"infer": True}, "unknown infer True; pass one of 'sample', 'all'"),
        ({"filters": "a > 1"}, "filters= is not a list"),
        ({"categories": ["zz"]}, r"categories=\['zz'\]: no column is named 'zz'"),
        ({"index": 5}, "index=5 is not a list of column names"),
        ({"verify_crc": "no"}, "verify_crc='no' is not True or False"),
        ({"quarantine_path": 5}, "quarantine_path=5 is not a path"),
        ({"schema": "int64"}, "schema='int64' is not a schema"),
    ],
)
def test_wrong_types_are_explained_by_the_reader(root: Path, arguments: Any, problem: str) -> None:
    with pytest.raises(TFRecordError, match=problem):
        read_tfrecord(root, **arguments)


def test_the_dtypes_of_a_frame_are_a_schema(tmp_path: Path) -> None:
    frame = pd.DataFrame({"f": [0.5], "i": [1], "t": ["a"], "d": pd.to_datetime(["2020-01-01"])})
    schema = {name: type_ for name, type_ in frame.dtypes.items() if type_.kind != "O"}
    to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "d", lossy="allow", schema=schema)
    assert read_tfrecord(tmp_path / "d", schema=schema).compute()["f"].tolist() == [0.5]


def test_an_unknown_operator_is_not_blamed_on_the_value(root: Path) -> None:
    with pytest.raises(TFRecordError, match=r"unknown operator '=>' in filters=; known are") as caught:
        read_tfrecord(root, filters=[("a", "=>", 1)])
    assert "values of its own type" not in str(caught.value)


def test_secrets_in_options_of_a_wrong_type_are_not_shown(ddf: dd.DataFrame, root: Path) -> None:
    for wrong in ("hunter2", ["hunter2"], {5: "hunter2"}):
        with pytest.raises(TFRecordError, match="storage_options= is not a dict") as caught:
            read_tfrecord(root, storage_options=wrong)
        assert "hunter2" not in str(caught.value)


# --- type checkers -----------------------------------------------------------------------------------


def test_type_checkers_know_all_keywords() -> None:
    assert {*CollectionKeywords.__annotations__, "path", "columns"} == {
        *inspect.signature(read_tfrecord).parameters
    }
    known = {*WriteKeywords.__annotations__, "ddf", "path", "compute"}
    assert known == {*inspect.signature(to_tfrecord).parameters}


def test_snapshots_are_what_type_checkers_see(tmp_path: Path, ddf: dd.DataFrame) -> None:
    assert isinstance(to_tfrecord(ddf, tmp_path / "a", lossy="allow"), Snapshot)
    assert isinstance(to_tfrecord(ddf, tmp_path / "b", lossy="allow", compute=False), dd.Scalar)
