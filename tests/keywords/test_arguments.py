"""Spellings of Parquet, TensorFlow and pandas are accepted, or the error names the right keyword.

A site's configuration changes the defaults of keywords, and a keyword that the caller passes wins.

Modules: keywords.arguments, api.write.
"""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

import dask_tfrecord
from dask_tfrecord import KeywordError, SchemaError, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import CollectionKeywords, WriteKeywords
from dask_tfrecord.schema.logical_types import arrow_type

pytestmark = pytest.mark.usefixtures("one_thread")

FRAME = pd.DataFrame({"a": [1, 2, 3, 4], "b": ["x", "y", "x", None], "c": [0.5, 1.5, 2.5, 3.5]})


@pytest.fixture(scope="module")
def ddf() -> dd.DataFrame:
    return dd.from_pandas(FRAME, npartitions=2)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, ddf: dd.DataFrame) -> Path:
    path = tmp_path_factory.mktemp("arguments") / "data"
    to_tfrecord(ddf, path, lossy="allow")
    return path


LEAVES = pa.struct([("d", pa.timestamp("us", "UTC")), ("e", pa.decimal128(5, 2))])
STRUCT = pa.struct(
    [pa.field("a b", pa.float32(), nullable=False), ("c", LEAVES), ("f", pa.list_(pa.string(), 3))]
)
# Types whose text in Arrow is a spelling.
PRINTED = [pa.list_(pa.list_(pa.int8())), pa.large_list(pa.string()), pa.list_(pa.int64(), 3), pa.binary(4)]
PRINTED += [pa.decimal128(5, 2), pa.decimal256(50, 2), pa.timestamp("ms", "UTC"), STRUCT, pa.list_(STRUCT)]
PRINTED += [pa.struct({}), pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.int64(), True)]


@pytest.mark.parametrize(
    ("given", "type_"),
    [
        *((str(type_), type_) for type_ in PRINTED),
        ("UInt8", pa.uint8()),
        ("double", pa.float64()),
        ("string[pyarrow]", pa.string()),
        ("boolean", pa.bool_()),
        ("bytes", pa.binary()),
        ("date32[day]", pa.date32()),
        ("datetime64[us, Europe/Vienna]", pa.timestamp("us", "Europe/Vienna")),
        ("timedelta64[s]", pa.duration("s")),
        ("list<int64>", pa.list_(pa.int64())),
        ("list<item: int64>[pyarrow]", pa.list_(pa.int64())),
        (float, pa.float64()),
        (str, pa.string()),
        (np.int16, pa.int16()),
        (np.dtype("M8[ms]"), pa.timestamp("ms")),
        (pd.StringDtype(), pa.string()),
        (pd.DatetimeTZDtype("ns", "UTC"), pa.timestamp("ns", "UTC")),
        (pd.ArrowDtype(pa.list_(pa.int8())), pa.list_(pa.int8())),
        (pa.time32("s"), pa.time32("s")),
    ],
    ids=str,
)
def test_types_are_understood_as_they_are_spelled(given: Any, type_: pa.DataType) -> None:
    assert arrow_type(given) == type_


# Names of types that NumPy, Spark or the descriptions of the package tfrecord use.
SHARED = {
    "short": pa.int16(),
    "int": pa.int64(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "bytes": pa.binary(),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_name_that_libraries_share_means_the_same_here(name: str) -> None:
    assert arrow_type(name) == SHARED[name]
    assert arrow_type(f"list<{name}>") == pa.list_(SHARED[name])


@pytest.mark.parametrize("given", ["byte", "list<byte>", "byte[pyarrow]", "struct<a: byte>"])
def test_byte_is_refused_because_it_means_an_integer_or_bytes(root: Path, given: str) -> None:
    with pytest.raises(TFRecordError):
        read_tfrecord(root, schema={"a": given})
    with pytest.raises(TFRecordError, match="hive="):
        read_tfrecord(root, hive={"c": given})
    with pytest.raises(TFRecordError, match='"byte" is ambiguous; write "int8" or "binary"'):
        read_tfrecord(root, schema={"a": "byte"})
    assert arrow_type(np.dtype("byte")) == pa.int8()  # a dtype object has one meaning


UNCLEAR = ["float", "byte", "object", "category", "int65", "", None, 5, list, object, "list<float32"]


@pytest.mark.parametrize("given", [*UNCLEAR, pd.CategoricalDtype()], ids=str)
def test_no_type_or_an_unclear_one_is_refused(
    root: Path, tmp_path: Path, ddf: dd.DataFrame, given: Any
) -> None:
    with pytest.raises(ValueError, match=r"."):
        arrow_type(given)
    if given is not None:
        with pytest.raises(TFRecordError, match="schema="):
            read_tfrecord(root, schema={"a": given})
    with pytest.raises(TFRecordError, match="schema="):
        to_tfrecord(ddf, tmp_path / "x", schema={"a": given})


@pytest.mark.parametrize("given", ["int32", np.int32, pd.ArrowDtype(pa.int32())])
def test_a_type_in_schema_is_used(root: Path, tmp_path: Path, ddf: dd.DataFrame, given: Any) -> None:
    assert read_tfrecord(root, schema={"a": given}).compute()["a"].dtype == pd.ArrowDtype(pa.int32())
    to_tfrecord(ddf, tmp_path / "x", schema={"a": given}, lossy="allow")
    snapshot = Snapshot.open(tmp_path / "x")
    assert snapshot.schema.arrow.field("a").type == pa.int32()


def test_schema_infer_is_the_default(root: Path, tmp_path: Path, ddf: dd.DataFrame) -> None:
    assert read_tfrecord(root, schema="infer").dtypes.equals(read_tfrecord(root).dtypes)
    to_tfrecord(ddf, tmp_path / "x", schema="infer", lossy="allow")
    assert Snapshot.open(tmp_path / "x").schema.names == ["a", "b", "c"]


@pytest.mark.parametrize(("given", "codec"), [("GZIP", "gzip"), ("ZLIB", "zlib"), ("", None)])
def test_compression_is_spelled_as_tensorflow(
    tmp_path: Path, ddf: dd.DataFrame, given: Any, codec: Any
) -> None:
    to_tfrecord(ddf, tmp_path / "x", compression=given, lossy="allow")
    assert Snapshot.open(tmp_path / "x").compression == codec
    assert len(read_tfrecord(f"{tmp_path}/x/*", compression=given).compute()) == 4


YEARS = pd.DataFrame(
    {
        "year": pd.array([2020, 2021, None, 2023], pd.ArrowDtype(pa.int32())),
        "name": pd.array(["a", None, "c", "d"], pd.ArrowDtype(pa.string())),
        "day": pd.array(pd.to_datetime(["2020-01-01"] * 2 + ["2021-01-01"] * 2), pd.ArrowDtype(pa.date32())),
        "key": ["k", "k", "l", "l"],
    }
)


@pytest.fixture(scope="module")
def years(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("years")
    to_tfrecord(dd.from_pandas(YEARS, npartitions=2), path, partition_on="key")
    return path


@pytest.mark.parametrize(
    "expression",
    [
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
def test_expressions_of_pyarrow_filter_as_arrow_does(years: Path, expression: Any) -> None:
    expected = pa.Table.from_pandas(YEARS).filter(expression)
    for columns, use_snapshot in ((None, True), (["key"], True), ([], True), (["key"], False)):
        if not use_snapshot and "day" in str(expression):
            continue  # only the snapshot has the type
        found = read_tfrecord(years, filters=expression, columns=columns, use_snapshot=use_snapshot)
        assert len(found) == len(found.compute()) == expected.num_rows
        assert columns == [] or found["key"].compute().tolist() == expected["key"].to_pylist()


def test_two_long_expressions_are_distinguished(years: Path) -> None:
    many = list(range(1000))
    one, other, again = (
        read_tfrecord(years, filters=pc.field("year").isin([*many, year, *many]))
        for year in (2020, 2021, 2020)
    )
    assert one._name == again._name != other._name
    assert dd.concat([one, other])["year"].compute().tolist() == [2020, 2021]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (pc.field("nothing") > 1, "No match for FieldRef.Name"),
        (pc.field("year") == "x", "filters= cannot be applied to the columns"),
        (pc.field("year") + 1, "must evaluate to bool"),
        ((pc.field(0) > 1) & (pc.field("year") > 1), "refers to a column by its number"),
    ],
)
def test_expressions_that_do_not_suit_are_refused(years: Path, expression: Any, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        read_tfrecord(years, filters=expression)


def test_an_index_may_be_given_as_a_list(root: Path) -> None:
    assert read_tfrecord(root, index=["a"]).compute().index.name == "a"
    assert read_tfrecord(root, index=["a", "b"]).compute().index.names == ["a", "b"]
    for none in (False, [], None):
        assert read_tfrecord(root, index=none).compute().index.name is None
    known = read_tfrecord(root, index=["a"], calculate_divisions=True, blocksize=None)
    assert known.divisions == (1, 3, 4)


@pytest.mark.parametrize(
    ("given", "backend"), [(["b"], "pyarrow"), ("b", "numpy"), ({"b": 2}, None), (("b",), "pyarrow")]
)
def test_columns_are_read_as_categories(root: Path, given: Any, backend: Any) -> None:
    found = read_tfrecord(root, categories=given, dtype_backend=backend)
    assert isinstance(found.dtypes["b"], pd.CategoricalDtype)
    values = found.compute()["b"]
    assert isinstance(values.dtype, pd.CategoricalDtype)
    assert [None if pd.isna(x) else x for x in values] == ["x", "y", "x", None]
    assert len(read_tfrecord(root, categories=given, filters=[("b", "==", "x")]).compute()) == 2
    assert found[found.b == "y"].compute()["a"].tolist() == [2]


NO_PATHS = [5, None, b"x", "", "\ud800", {}, [1], [None], {"a": 1}, object(), ["a", 5]]


@pytest.mark.parametrize("given", NO_PATHS)
def test_what_is_no_path_is_refused(ddf: dd.DataFrame, given: Any) -> None:
    with pytest.raises(TFRecordError, match=r"is not a path|are no paths|no path"):
        read_tfrecord(given)
    with pytest.raises(TFRecordError, match="is not a path"):
        to_tfrecord(ddf, given)
    with pytest.raises(TFRecordError, match=r"(?<!120) is not a path|list of paths is empty"):
        open_dataset(given).verify()


WRONG_CODECS = ["snappy", "none", 9, True, ["gzip"], b"gzip"]
CODEC = "unknown compression .*; pass one of "


@pytest.mark.parametrize(
    ("function", "arguments", "problem"),
    [
        (to_tfrecord, {"partition_on": 5}, r"partition_on=5 is not a list .*partition_on=\[\"age\"\]"),
        (to_tfrecord, {"custom_metadata": {1: 2}}, "custom_metadata=.* must map strings to strings"),
        (
            to_tfrecord,
            {"compression": "gzip", "write_options": {"compression_level": "9"}},
            "level='9' is not valid",
        ),
        (to_tfrecord, {"write_options": {"compression_level": 1}}, "without compression="),
        *((to_tfrecord, {"compression": one}, f"{CODEC}None, 'gzip', 'zlib'") for one in WRONG_CODECS),
        *((read_tfrecord, {"compression": one}, f"{CODEC}'infer', .*'gzip', 'zlib'") for one in WRONG_CODECS),
        (to_tfrecord, {"write_index": "yes"}, "write_index='yes' is not True or False"),
        (to_tfrecord, {"compute_kwargs": {"retries": "3"}}, "retries='3' is not a non-negative integer"),
        (to_tfrecord, {"name_function": "part"}, "name_function='part' is not callable"),
        (to_tfrecord, {"append": "yes"}, "unknown append 'yes'"),
        (to_tfrecord, {"overwrite": "partitions"}, "requires partition columns; pass partition_on="),
        (to_tfrecord, {"shuffle": "blocks"}, "unknown shuffle 'blocks'; pass one of None, False, True"),
        (to_tfrecord, {"write_options": {"max_rows_per_file": 0}}, "=0 is not a positive integer"),
        (to_tfrecord, {"write_options": {"max_bytes_per_file": "many"}}, "='many' is not a size"),
        (to_tfrecord, {"write_options": {"npartitions": True}}, "npartitions=True is not"),
        (to_tfrecord, {"record_type": "all"}, "unknown record_type 'all'; pass one of "),
        (to_tfrecord, {"lossy": "no"}, "unknown lossy 'no'; pass one of "),
        (to_tfrecord, {"compute": None}, "compute=None is not True or False"),
        (read_tfrecord, {"columns": 5}, "columns=5 is not a list of column names"),
        (read_tfrecord, {"columns": ["zz"]}, r"columns=\['zz'\]: no column is named 'zz'"),
        (read_tfrecord, {"blocksize": "abc"}, "blocksize='abc' is not a size"),
        (read_tfrecord, {"hive": "yes"}, "hive='yes' does not map names to types"),
        (read_tfrecord, {"read_options": {"infer": True}}, "unknown infer True; pass one of 'sample', 'all'"),
        (read_tfrecord, {"record_type": "exmaple"}, "unknown record_type 'exmaple'; pass one of 'infer'"),
        (read_tfrecord, {"dtype_backend": "polars"}, "'polars'; pass one of None, 'pyarrow'"),
        (read_tfrecord, {"filters": "a > 1"}, "filters= is not a list"),
        (read_tfrecord, {"filters": [("a", "=>", 1)]}, "unknown operator '=>' in filters=; known are"),
        (read_tfrecord, {"categories": ["zz"]}, r"categories=\['zz'\]: no column is named 'zz'"),
        (read_tfrecord, {"index": 5}, "index=5 is not a list of column names"),
        (read_tfrecord, {"read_options": {"verify_crc": "no"}}, "verify_crc='no' is not True or False"),
        (read_tfrecord, {"read_options": {"quarantine_path": 5}}, "quarantine_path=5 is not a path"),
        (read_tfrecord, {"schema": "int64"}, "schema='int64' is not a schema"),
    ],
)
def test_wrong_types_are_explained(
    root: Path, tmp_path: Path, ddf: dd.DataFrame, function: Any, arguments: Any, problem: str
) -> None:
    given = (root,) if function is read_tfrecord else (ddf, tmp_path / "x")
    with pytest.raises(TFRecordError, match=problem) as caught:
        function(*given, **arguments)
    assert "values of its own type" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["hunter2", ["hunter2"], {5: "hunter2"}])
def test_secrets_in_storage_options_of_a_wrong_type_are_not_shown(
    ddf: dd.DataFrame, root: Path, tmp_path: Path, wrong: Any
) -> None:
    for given in ((read_tfrecord, root), (to_tfrecord, ddf, tmp_path / "x")):
        with pytest.raises(TFRecordError, match="storage_options= is not a dict with string keys") as caught:
            given[0](*given[1:], storage_options=wrong)
        assert "hunter2" not in str(caught.value)


def test_type_checkers_know_all_keywords() -> None:
    known = {*CollectionKeywords.__annotations__, "path", "columns"}
    assert known == {*inspect.signature(read_tfrecord).parameters}
    known = {*WriteKeywords.__annotations__, "ddf", "path", "compute"}
    assert known == {*inspect.signature(to_tfrecord).parameters}


FILE = Path(arguments.__file__).with_name("dask-tfrecord.yaml")
NUMBERS = dd.from_pandas(pd.DataFrame({"n": range(8)}), npartitions=2)


def test_the_configuration_has_what_the_file_documents() -> None:
    assert dask.config.get("dask-tfrecord") == yaml.safe_load(FILE.read_text())["dask-tfrecord"]


def test_the_configuration_is_read_in_each_call_and_a_keyword_wins(tmp_path: Path) -> None:
    with dask.config.set({"dask-tfrecord.compression": "gzip", "dask-tfrecord.blocksize": "1 MiB"}):
        to_tfrecord(NUMBERS, tmp_path / "a")
        assert Snapshot.open(tmp_path / "a").compression == "gzip"
        to_tfrecord(NUMBERS, tmp_path / "b", compression=None)
        assert Snapshot.open(tmp_path / "b").compression is None
        assert read_tfrecord(tmp_path / "b", blocksize=None).npartitions == 2
        assert read_tfrecord(tmp_path / "b").npartitions == 1
    to_tfrecord(NUMBERS, tmp_path / "c")
    assert Snapshot.open(tmp_path / "c").compression is None
    with dask.config.set({"dask-tfrecord.blocksize": None}):
        assert read_tfrecord(tmp_path / "b").npartitions == 2


def test_a_site_can_refuse_rounding(tmp_path: Path) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"x": [0.1]}), npartitions=1)
    with dask.config.set({"dask-tfrecord.lossy": "raise"}):
        with pytest.raises(SchemaError, match="lossy"):
            to_tfrecord(ddf, tmp_path)
        to_tfrecord(ddf, tmp_path, lossy="allow")


def test_a_site_can_repeat_failed_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("dask_tfrecord.api.write._compute", lambda *args: seen.append(args[3]))
    with dask.config.set({"dask-tfrecord.retries": 3}):
        to_tfrecord(NUMBERS, tmp_path)
        to_tfrecord(NUMBERS, tmp_path, compute_kwargs={"retries": 0})
    assert seen == [3, 0]


@pytest.mark.parametrize(
    ("key", "value"), [("compression", "zip"), ("lossy", "maybe"), ("retries", -1), ("blocksize", "big")]
)
def test_a_bad_value_raises_an_error_that_names_the_key(tmp_path: Path, key: str, value: object) -> None:
    to_tfrecord(NUMBERS, tmp_path / "a")
    with dask.config.set({f"dask-tfrecord.{key}": value}), pytest.raises(TFRecordError) as caught:
        read_tfrecord(tmp_path / "a").to_tfrecord(tmp_path / "b")
    assert f"{value!r} of 'dask-tfrecord.{key}' in Dask's configuration" in str(caught.value)
    assert ("change the configuration" if key == "retries" else f"pass {key}=") in str(caught.value)


def test_environment_variables_set_the_defaults(tmp_path: Path) -> None:
    to_tfrecord(NUMBERS, tmp_path / "a")
    code = (
        "import dask_tfrecord\n"
        "ddf = dask_tfrecord.read_tfrecord('a')\n"
        "dask_tfrecord.to_tfrecord(ddf, 'b')\n"
        "print(ddf.npartitions, *dask_tfrecord.open_dataset('b').codecs)\n"
    )
    variables = {"DASK_DASK_TFRECORD__BLOCKSIZE": "None", "DASK_DASK_TFRECORD__COMPRESSION": "zlib"}
    command = [sys.executable, "-c", code]
    found = subprocess.check_output(command, cwd=tmp_path, env=os.environ | variables, text=True)
    assert found.split() == ["2", "zlib"]


def test_every_key_of_a_call_is_a_keyword_and_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    for key in dask.config.get("dask-tfrecord").keys() - {
        "memory-pool",
        "in-flight",
    }:  # of a process, not of a call
        keyword = 'compute_kwargs={"retries": n}' if key == "retries" else f"{key.replace('-', '_')}="
        assert f"({keyword})" in FILE.read_text()
        assert f"`{key}`" in page
        assert f"``dask-tfrecord.{key}``" in f"{to_tfrecord.__doc__}{dask_tfrecord.read_tfrecord.__doc__}"


def test_read_options_and_write_options_refuse_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(
        TFRecordError, match=r"read_options= has no option 'verify'; did you mean 'verify_crc'"
    ):
        read_tfrecord(tmp_path, read_options={"verify": False})
    with pytest.raises(
        TFRecordError, match="has no option 'npartitions'; its options are compression_level, "
    ):
        dask_tfrecord.Writer(tmp_path, write_options={"npartitions": 2})
    with pytest.raises(TFRecordError, match="write_options= is not a dict"):
        to_tfrecord(NUMBERS, tmp_path / "a", write_options=["npartitions"])
    with pytest.raises(KeywordError, match=r'pass read_options={"infer": "all"}'):
        read_tfrecord(tmp_path, infer="all")
    with pytest.raises(KeywordError, match="select the columns first, as in ddf"):
        to_tfrecord(NUMBERS, tmp_path / "a", colums=["n"])
