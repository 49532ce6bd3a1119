"""The columns of directories ``key=value`` in a dataset without a snapshot.

Modules: dataset.partitioning, dataset.read.requested_columns.
"""

import datetime
import decimal
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord

NULL = "__HIVE_DEFAULT_PARTITION__"


pytestmark = pytest.mark.usefixtures("one_thread")


def put(root: Path, *directories: str, feature: str = "n") -> Path:
    """Write one file into each directory; its row holds the number of the directory."""
    for number, directory in enumerate(directories):
        folder = root / directory
        folder.mkdir(parents=True, exist_ok=True)
        content = oracle.features_file([{feature: ("int64", [number])}])
        (folder / f"{number:03d}.tfrecord").write_bytes(content)
    return root


def rows(ddf: Any) -> dict[int, dict[str, Any]]:
    """The partition columns of each row, keyed by n."""
    found = pa.Table.from_pandas(ddf.compute(), preserve_index=False).to_pylist()
    return {row.pop("n"): row for row in found}


def types(ddf: Any) -> dict[str, pa.DataType]:
    return {name: dtype.pyarrow_dtype for name, dtype in ddf.dtypes.items() if name != "n"}


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["1", "2"], pa.int64()),
        (["0", "-1", str(2**63 - 1), str(-(2**63))], pa.int64()),
        (["1", NULL], pa.int64()),
        ([NULL], pa.string()),
        (["01", "2"], pa.string()),
        (["+1"], pa.string()),
        (["-0"], pa.string()),
        ([str(2**63)], pa.string()),
        (["1", ""], pa.string()),
        (["1.0"], pa.string()),
        (["1", "x"], pa.string()),
        (["1_000"], pa.string()),
        (["٣"], pa.string()),
        ([" 1"], pa.string()),
        (["true"], pa.string()),
        (["2024-01-31"], pa.string()),
    ],
)
def test_a_key_is_an_integer_only_where_all_its_values_are(
    tmp_path: Path, values: list[str], type_: pa.DataType
) -> None:
    ddf = read_tfrecord(put(tmp_path, *(f"k={value}" for value in values)))
    assert types(ddf) == {"k": type_}
    cast = int if type_ == pa.int64() else str
    assert rows(ddf) == {n: {"k": None if v == NULL else cast(v)} for n, v in enumerate(values)}


def test_the_one_value_that_decides_may_come_last(tmp_path: Path) -> None:
    ddf = read_tfrecord(put(tmp_path, *(f"k={number}" for number in range(300)), "k=x"))
    assert types(ddf) == {"k": pa.string()}
    assert rows(ddf)[7] == {"k": "7"}


def test_keys_are_columns_after_those_of_the_records_and_null_where_a_path_lacks_them(tmp_path: Path) -> None:
    ddf = read_tfrecord(put(tmp_path, "_a=1/b=x", "b=y/_a=2", "_a=3", "plain", "", "plain/b=z"))
    assert list(ddf.columns) == list(ddf.compute().columns) == ["n", "_a", "b"]
    assert types(ddf) == {"_a": pa.int64(), "b": pa.string()}
    pairs = [(1, "x"), (2, "y"), (3, None), (None, None), (None, None), (None, "z")]
    assert rows(ddf) == {n: {"_a": a, "b": b} for n, (a, b) in enumerate(pairs)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a b", "a b"),
        ("x%3Dy%2Fz%25", "x=y/z%"),
        ("%E6%97%A5", "日"),
        ("日本", "日本"),
        ("%5F", "_"),
        ("%", "%"),
        ("%zz", "%zz"),
        ("%FF", "ÿ"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_percent_decoded(tmp_path: Path, name: str, value: str) -> None:
    assert rows(read_tfrecord(put(tmp_path, f"k={name}"))) == {0: {"k": value}}


def test_types_are_given_by_hive_or_by_schema(tmp_path: Path) -> None:
    root = put(tmp_path, "year=2026/day=2024-01-31/price=1.50/c=007")
    category = pa.dictionary(pa.int32(), pa.string())
    given = {"year": pa.int16(), "day": pa.date32(), "price": pa.decimal128(5, 2), "c": category}
    day, price = datetime.date(2024, 1, 31), decimal.Decimal("1.50")
    for ddf in (read_tfrecord(root, hive=given), read_tfrecord(root, schema=given)):
        assert list(ddf.compute().dtypes.astype(str)) == list(ddf.dtypes.astype(str))
        assert rows(ddf) == {0: {"year": 2026, "day": day, "price": price, "c": "007"}}
    assert types(read_tfrecord(root, hive={"c": pa.int8()}))["c"] == pa.int8()
    with pytest.raises(SchemaError, match=r"type int16, but hive= gives the type int8"):
        read_tfrecord(root, hive={"year": pa.int8()}, schema={"year": pa.int16()})


def test_a_value_that_does_not_fit_names_its_directory(tmp_path: Path) -> None:
    root = put(tmp_path, "year=2026/m=1", "year=x/m=2")
    for given in ({"hive": {"year": pa.int32()}}, {"schema": {"year": pa.int32()}}):
        with pytest.raises(
            SchemaError, match=r"'.*year=x/m=2' has the value 'x', .* int32; .*pa.string\(\)"
        ) as caught:
            read_tfrecord(root, **given)
        assert caught.value.feature == "year"
    with pytest.raises(SchemaError, match="'2026', which is not of type int8"):
        read_tfrecord(root, hive={"year": pa.int8()})


def test_hive_false_ignores_a_key_that_a_path_has_twice(tmp_path: Path) -> None:
    root = put(tmp_path, "k=1", "k=1/k=2")
    with pytest.raises(SchemaError, match=r"'/k=1/k=2' has several .*hive=False") as caught:
        read_tfrecord(root)
    assert caught.value.feature == "k"
    assert rows(read_tfrecord(root, hive=False)) == {0: {}, 1: {}}


def test_a_key_that_is_a_feature_as_well_is_decided_by_the_caller(tmp_path: Path) -> None:
    root = put(tmp_path, "year=2026", feature="year")
    with pytest.raises(SchemaError, match=r"000.tfrecord: feature 'year': .*hive=False .*hive=\{") as caught:
        read_tfrecord(root)
    assert caught.value.feature == "year"
    assert read_tfrecord(root, hive=False)["year"].compute().tolist() == [0]
    assert read_tfrecord(root, hive={"year": pa.int64()})["year"].compute().tolist() == [2026]


def test_a_key_that_is_a_feature_where_nobody_looked_raises_when_it_is_read(tmp_path: Path) -> None:
    root = put(tmp_path, *(f"year={number}" for number in range(40)))
    late = oracle.features_file([{"n": ("int64", [1])}, {"year": ("int64", [5])}])
    (root / "year=23" / "023.tfrecord").write_bytes(late)
    with pytest.raises(SchemaError, match=r"feature 'year': .*hive=False .*hive=\{") as caught:
        read_tfrecord(root).compute()
    assert (caught.value.path, caught.value.record) == (f"{root}/year=23/023.tfrecord", 1)
    assert len(read_tfrecord(root, hive={"year": pa.int64()}).compute()) == 41
    stored = read_tfrecord(root, hive=False, schema={"year": pa.int64()})["year"]
    assert stored.compute().dropna().tolist() == [5]


def test_an_unknown_key_is_refused_with_the_known(tmp_path: Path) -> None:
    root = put(tmp_path, "year=2026/country=US")
    with pytest.raises(SchemaError, match="hive= names; did you mean 'year'") as caught:
        read_tfrecord(root, hive={"yaer": pa.int8()})
    assert caught.value.feature == "yaer"
    with pytest.raises(SchemaError, match="there are 'year', 'country'"):
        read_tfrecord(root, hive={"x": pa.int8()})
    with pytest.warns(UserWarning, match="did you mean 'country'"):
        read_tfrecord(root, schema={"contry": pa.string()})
    with pytest.raises(SchemaError, match="did you mean 'country'"):
        read_tfrecord(root, schema={"contry": pa.string()}, infer="all")


@pytest.mark.parametrize("given", ["year", {"year": "int65"}, ["year"], None, 1])
def test_what_hive_cannot_be_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(
        TFRecordError, match=r"hive=.* does not map names to types.*; give a mapping, such as \{"
    ):
        read_tfrecord(put(tmp_path, "year=2026"), hive=given)


def test_a_directory_is_called_anything_but_of_other_paths_all_levels_count(tmp_path: Path) -> None:
    root = put(tmp_path / "run=5", "day=1", "day=2")
    here = {0: {"day": 1}, 1: {"day": 2}}
    assert rows(read_tfrecord(root)) == rows(read_tfrecord(f"{root}/")) == here
    assert rows(read_tfrecord(root / "day=1")) == {0: {}}
    everywhere = {n: {"run": 5, **row} for n, row in here.items()}
    assert rows(read_tfrecord(f"{root}/*/*.tfrecord")) == everywhere
    assert rows(read_tfrecord(f"{root}/day=*")) == everywhere
    assert rows(read_tfrecord([root / "day=1", root / "day=2"])) == everywhere
    assert rows(read_tfrecord([root])) == everywhere
    assert rows(read_tfrecord(root / "day=1" / "000.tfrecord")) == {0: {"run": 5, "day": 1}}


def test_a_whole_schema_names_the_keys_that_are_wanted(tmp_path: Path) -> None:
    root = put(tmp_path, "year=2026/country=US")
    ddf = read_tfrecord(root, schema=pa.schema({"country": pa.string(), "n": pa.int8()}))
    assert list(ddf.columns) == list(ddf.compute().columns) == ["country", "n"]
    assert rows(ddf) == {0: {"country": "US"}}
    ddf = read_tfrecord(root, schema=pa.schema({"country": pa.string()}), record_type="example")
    assert ddf.compute()["country"].tolist() == ["US"]


def test_keys_are_there_whatever_the_records_are(tmp_path: Path) -> None:
    frame = read_tfrecord(put(tmp_path, "k=1"), record_type="bytes").compute()
    assert list(frame.columns) == ["record", "k"]
    assert frame["k"].tolist() == [1]
    (tmp_path / "k=2").mkdir()
    (tmp_path / "k=2" / "empty").write_bytes(b"")
    assert read_tfrecord(tmp_path / "k=2", hive=True).compute().shape == (0, 0)
    assert list(read_tfrecord(tmp_path / "k=2" / "empty").columns) == ["k"]


@pytest.mark.parametrize("given", [{}, {"record_type": "bytes"}, {"hive": {"record": pa.int64()}}])
def test_a_key_that_is_called_as_the_column_of_bytes_is_refused_unless_that_has_another_name(
    tmp_path: Path, given: Any
) -> None:
    (tmp_path / "record=1").mkdir()
    (tmp_path / "record=1" / "file").write_bytes(oracle.frame(b"no message"))
    with pytest.raises(SchemaError, match="feature 'record': both the payload column and a partition column"):
        read_tfrecord(tmp_path, **given)
    found = read_tfrecord(tmp_path, schema={"payload": pa.binary()}, **given).compute()
    assert found.to_dict("list") == {"payload": [b"no message"], "record": [1]}
    assert read_tfrecord(tmp_path, hive=False).compute().to_dict("list") == {"record": [b"no message"]}


@pytest.mark.parametrize("columns", [["k"], ["n"], ["k", "n"], []])
def test_columns_choose_among_keys_and_features(tmp_path: Path, columns: list[str]) -> None:
    frame = read_tfrecord(put(tmp_path, "k=1", "k=2"), columns=columns).compute()
    assert frame.shape == (2, len(columns))
    values = {"k": [1, 2], "n": [0, 1]}
    assert [(name, frame[name].tolist()) for name in frame] == [(name, values[name]) for name in columns]


def test_a_snapshots_keys_have_its_types_and_may_be_given_others(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [0, 1], "year": pd.array([2025, 2026], pd.ArrowDtype(pa.int16()))})
    to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "own", partition_on=["year"])
    own = tmp_path / "own"
    assert types(read_tfrecord(own)) == {"year": pa.int16()}
    assert types(read_tfrecord(own, hive={"year": pa.int32()})) == {"year": pa.int32()}
    assert types(read_tfrecord(own, use_snapshot=False)) == {"year": pa.int64()}
    assert rows(read_tfrecord(own, hive=False)) == {0: {}, 1: {}}
    with pytest.raises(SchemaError, match="did you mean 'year'"):
        read_tfrecord(own, hive={"yaer": pa.int32()})
