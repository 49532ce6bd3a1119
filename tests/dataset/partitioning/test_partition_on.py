"""`partition_on=`: partition values as directory names, in Spark's spelling, exact, never outside the root.

The columns of directories ``key=value`` in a dataset without a snapshot, and what is refused.

Modules: dataset.partitioning, dataset.read.columns.
"""

import datetime
import decimal
import itertools
import json
import os
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import every_dtype
import fsspec
import hypothesis.strategies as st
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cast_table import SOURCES, Value, array_of
from hypothesis import given
from small_frames import countries

from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.codec import take_bytes
from dask_tfrecord.dataset import partitioning
from dask_tfrecord.dataset.partitioning import group_by_directory
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files.entry import is_inside

NULL = "__HIVE_DEFAULT_PARTITION__"

STRANGE = [
    "../x",
    "/",
    ".",
    "..",
    "%2F",
    "=",
    ":",
    "a::b",
    "🦉",
    "~",
    "x.",
    "*?[a]",
    "",
    "\n",
    " ",
    NULL,
    None,
]


pytestmark = pytest.mark.usefixtures("one_thread")


def keyed(values: Any) -> dd.DataFrame:
    key = pd.array(values, pd.ArrowDtype(pa.array(values).type))
    return dd.from_pandas(pd.DataFrame({"key": key, "n": range(len(key))}), npartitions=1)


def directories(root: Path) -> set[str]:
    return {str(path.parent.relative_to(root)) for path in root.rglob("part-*")}


def sorted_rows(ddf: dd.DataFrame) -> pd.DataFrame:
    found: pd.DataFrame = ddf.compute().sort_values("n").reset_index(drop=True)
    return found


def test_rows_lie_in_the_directories_of_their_values_which_no_record_holds(tmp_path: Path) -> None:
    to_tfrecord(countries(), tmp_path, partition_on=["country", "year"])
    snapshot = Snapshot.open(tmp_path)
    values = {("PL", 2025), ("US", 2026), (None, 2025), ("", 2026)}
    assert directories(tmp_path) == {
        f"country={NULL if key is None else key}/year={year}" for key, year in values
    }
    for path in tmp_path.rglob("part-*"):
        records = [oracle.parse(payload) for payload in oracle.read_payloads(path)]
        assert {frozenset(record.features) for record in records} == {frozenset({"n", "tags"})}
    assert snapshot.partition_on == ("country", "year")
    assert {file.values for file in snapshot.files} == values


def test_partition_columns_come_back_where_they_were_with_their_types(tmp_path: Path) -> None:
    ddf = countries()
    to_tfrecord(ddf, tmp_path, partition_on=["year", "country"])
    found = read_tfrecord(tmp_path)
    assert list(found.columns) == ["n", "country", "year", "tags"]
    expected = ddf.compute()
    pd.testing.assert_frame_equal(sorted_rows(found), expected)
    assert found.dtypes.to_dict() == expected.dtypes.to_dict()


SCALARS = [
    name
    for name, dtype in every_dtype.read_back().dtypes.items()
    if name != "large_string"  # its values are longer than file names may be
    and not (isinstance(dtype, pd.ArrowDtype) and pa.types.is_nested(dtype.pyarrow_dtype))
]


@pytest.mark.sampled
@pytest.mark.parametrize("name", SCALARS)
def test_every_scalar_type_can_be_a_key(tmp_path: Path, name: str) -> None:
    ddf = dd.from_pandas(every_dtype.frame()[[name]].assign(n=range(every_dtype.ROWS)), npartitions=2)
    for colocate in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error"
            )  # a float64 in a directory name is not rounded, so nothing may warn
            to_tfrecord(ddf, tmp_path / str(colocate), partition_on=name, colocate=colocate)
        found = sorted_rows(read_tfrecord(tmp_path / str(colocate), dtype_backend="pyarrow"))[[name]]
        every_dtype.assert_same(found, every_dtype.read_back()[[name]])


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_strange_values_come_back_and_stay_inside_the_root(tmp_path: Path, protocol: str) -> None:
    root = f"{protocol}://{tmp_path}/root"
    to_tfrecord(keyed(STRANGE), root, partition_on="key")
    assert sorted_rows(read_tfrecord(root))["key"].tolist() == [
        pd.NA if value is None else value for value in STRANGE
    ]
    fs = fsspec.filesystem(protocol)
    found = [path for path in fs.find(str(tmp_path)) if "part-" in path]
    assert len(found) == len(STRANGE)
    assert {os.path.dirname(os.path.dirname(path)) for path in found} == {f"{tmp_path}/root"}


def test_the_rows_of_sparks_sample_give_its_directories(tmp_path: Path, data: Path) -> None:
    source = json.loads((data / "spark" / "partitioned.source.json").read_text())
    types = {"id": pa.int64(), "country": pa.string(), "day": pa.int32(), "x": pa.float32()}
    table = pa.Table.from_pylist(source["rows"], pa.schema({**types, "tags": pa.list_(pa.string())}.items()))
    country = pc.if_else(pc.equal(table["country"], ""), None, table["country"])  # as Spark does
    table = table.set_column(1, "country", country)
    ddf = dd.from_pandas(table.to_pandas(types_mapper=pd.ArrowDtype), npartitions=2)
    to_tfrecord(ddf, tmp_path, partition_on=source["partition_by"])
    assert directories(tmp_path) == directories(data / "spark" / "partitioned")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    to_tfrecord(countries(), tmp_path / "root", partition_on=["country", "year"])
    return tmp_path / "root"


def test_partition_columns_alone_open_no_file(root: Path) -> None:
    ddf = read_tfrecord(root, columns=["year", "country"])
    for path in root.rglob("part-*"):
        before = path.stat()
        path.write_bytes(b"\0" * before.st_size)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sorted(ddf["year"].compute()) == [2025] * 6 + [2026] * 6


@pytest.mark.parametrize(
    ("partition_on", "message"),
    [
        (["nope"], "Partitioning on non-existent column 'nope'; the columns are"),
        (["n", "country", "year", "tags"], "No data left to save outside partition columns"),
        (["year", "year"], "more than once"),
        ("tags", "feature 'tags': values of the type list"),
    ],
)
def test_columns_that_cannot_be_partitioned_on_are_refused(
    tmp_path: Path, partition_on: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        to_tfrecord(countries(), tmp_path / "a", partition_on=partition_on, compute=False)
    assert not (tmp_path / "a").exists()


def test_keys_that_no_directory_can_have_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    assert directory("x" * 253) == "c=" + "x" * 253
    with pytest.raises(SchemaError, match="would have 256 bytes, but at most 255 are allowed") as caught:
        directory("é" * 127)
    assert caught.value.feature == "c"
    with pytest.raises(SchemaError, match=r"/a, partition 0 of 1: feature 'key': .* 255 are allowed"):
        to_tfrecord(keyed(["short", "x" * 300]), tmp_path / "a", partition_on="key")
    with dask.config.set({"dataframe.convert-string": False}):
        objects = dd.from_pandas(pd.DataFrame({"key": [{"a": 1}, {"a": 2}], "n": [1, 2]}), npartitions=1)
    with pytest.raises(SchemaError, match="feature 'key'"):
        to_tfrecord(objects, tmp_path / "a", partition_on="key")
    assert not list(tmp_path.rglob("part-*"))


def test_keys_beyond_max_files_per_task_are_refused_with_what_to_do(tmp_path: Path) -> None:
    ddf = keyed(range(1025))
    with pytest.raises(
        TFRecordError, match=r"partition 0 of 1: .*1,025 different values of 'key'.*bucket.*colocate=True"
    ):
        to_tfrecord(ddf, tmp_path / "a", partition_on="key")
    assert not list(tmp_path.rglob("part-*"))
    few = ddf[ddf["n"] < 10]
    with pytest.raises(TFRecordError, match="10 different values"):
        to_tfrecord(few, tmp_path / "b", partition_on="key", write_options={"max_files_per_task": 9})
    for name, limit in (("c", 10), ("d", None)):
        to_tfrecord(few, tmp_path / name, partition_on="key", write_options={"max_files_per_task": limit})
        snapshot = Snapshot.open(tmp_path / name)
        assert len(snapshot.files) == 10


def directory(value: Any, type_: pa.DataType | None = None, name: str = "c") -> str:
    return partitioning.directories(pa.table({name: pa.array([value], type_)}))[0]


HOURS = [1729990800, 1729994400]  # 02:00 twice in Berlin


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("PL", "PL"),
        ("a b", "a b"),
        ("日本", "日本"),
        ("x=y/z%", "x%3Dy%2Fz%25"),  # as in Spark's own files
        ("../x", "..%2Fx"),
        ("/etc/passwd", "%2Fetc%2Fpasswd"),
        ("..", ".."),
        ("", ""),
        ("a:b", "a%3Ab"),
        ("line\nbreak\0", "line%0Abreak%00"),
        ("a\\b", "a%5Cb"),
        ("*?[x]{y}^", "%2A%3F%5Bx%5D%7By}%5E"),
        ("🦉", "🦉"),
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("__HIVE_DEFAULT_PARTITION__", "%5F_HIVE_DEFAULT_PARTITION__"),
        (True, "true"),
        (-7, "-7"),
        (0.1, "0.1"),
        (datetime.date(2024, 1, 31), "2024-01-31"),
        (datetime.datetime(2024, 1, 31, 12), "2024-01-31 12%3A00%3A00.000000"),
        (pa.scalar(HOURS[0], pa.timestamp("s", "Europe/Berlin")), "2024-10-27 01%3A00%3A00Z"),
        (pa.scalar(HOURS[1], pa.timestamp("s", "Europe/Berlin")), "2024-10-27 02%3A00%3A00Z"),
        (decimal.Decimal("1.50"), "1.50"),
        (b"\xff/", "ÿ%2F"),
    ],
)
def test_a_value_has_one_name(value: Any, name: str) -> None:
    assert directory(value) == f"c={name}"


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.text("ab.=/%_", min_size=1, max_size=9)
)
def test_texts_come_back_and_stay_on_their_level(value: str, name: str) -> None:
    found = directory(value, pa.string(), name)
    assert partitioning.parse(found) == [(name, value)]
    assert "/" not in found
    assert not found.startswith(".")
    assert is_inside(found)


def test_several_columns_are_levels_in_their_order() -> None:
    table = pa.table({"year": [2026], "of=what": ["a/b"]})
    assert partitioning.directories(table) == ["year=2026/of%3Dwhat=a%2Fb"]
    assert partitioning.parse("year=2026/plain/of%3Dwhat=a%2Fb") == [("year", "2026"), ("of=what", "a/b")]


CHUNKS = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", None, "a"]).dictionary_encode()]


@pytest.mark.parametrize(
    ("columns", "names", "expected"),
    [
        ({"c": ["b", "a", None, "b", "a", ""]}, ["c"], {"b": [0, 3], "a": [1, 4], None: [2], "": [5]}),
        (
            {"a": [1, 2, 1, 2, 1], "b": ["x", "x", "y", "x", "x"]},
            ["b", "a"],
            {("x", 1): [0, 4], ("x", 2): [1, 3], ("y", 1): [2]},
        ),
        ({"c": pa.chunked_array(CHUNKS)}, ["c"], {"a": [0, 4], "b": [1, 2], None: [3]}),
    ],
    ids=["one column", "two columns", "different categories"],
)
def test_rows_go_to_their_part_in_the_order_they_had(
    columns: dict[str, Any], names: list[str], expected: dict[Any, list[int]]
) -> None:
    table = pa.table({**columns, "n": range(sum(map(len, expected.values())))})
    found = group_by_directory(table, names, max_directories=9)
    [(rows, order)] = found.pieces
    assert rows.column_names == ["n"]
    assert order is not None
    assert order.tolist() == rows["n"].to_pylist()
    ends = itertools.accumulate(part.rows for part in found.groups)
    assert {
        part.values if len(names) > 1 else part.values[0]: rows["n"].to_pylist()[end - part.rows : end]
        for part, end in zip(found.groups, ends, strict=True)
    } == expected


def test_rows_that_are_in_order_are_not_moved() -> None:
    table = pa.table({"c": ["a", "a", "b"], "n": [1, 2, 3]})
    found = group_by_directory(table, ["c"], max_directories=9)
    [(rows, order)] = found.pieces
    assert rows["n"].chunk(0).buffers()[1].address == table["n"].chunk(0).buffers()[1].address
    assert order is None


BYTES = [b"", None, b"a", b"\0" * 16, b"x" * 17, b"y" * 1000]


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize(("cut", "nulls"), [(0, True), (3, False)])
def test_rows_keep_their_values_in_another_order(type_: pa.DataType, cut: int, nulls: bool) -> None:
    chosen = [value for value in BYTES if nulls or value is not None]
    array = pa.array((chosen * 40)[: 40 * len(chosen) - 1], pa.binary()).cast(type_)
    table = pa.table({"key": [n * n % 7 for n in range(len(array))], "x": array}).slice(cut)
    [(rows, order)] = group_by_directory(table, ["key"], max_directories=9).pieces
    assert order is not None
    rows.validate(full=True)
    assert rows["x"].type == type_
    assert rows["x"].to_pylist() == table["x"].take(order).to_pylist()


def test_more_bytes_than_the_column_has_are_refused() -> None:
    column = pa.array([b"x" * 20, b"", None])
    with pytest.raises(IndexError, match="rows are repeated too often"):
        take_bytes(column, np.array([1, 0, 2, 0]))
    with pytest.raises(IndexError, match="outside the column"):
        take_bytes(column.slice(1), np.array([2]))
    assert len(take_bytes(column.slice(1), np.array([], np.int64))) == 0


def test_no_columns_give_one_part_and_no_rows_give_none() -> None:
    table = pa.table({"n": [1]})
    assert group_by_directory(table, [], max_directories=1) == ([(table, None)], [("", (), 1)])
    assert group_by_directory(table.slice(1), ["n"], max_directories=1).groups == []


def keyed_by(array: pa.Array) -> dd.DataFrame:
    keys = pd.Series(pd.arrays.ArrowExtensionArray(array))
    frame = pd.DataFrame({"key": keys, "n": range(len(array))})
    return dd.from_map(lambda _: frame, [0], meta=frame.iloc[:0])


def has_python_value(array: pa.Array) -> bool:
    try:
        values = array.to_pylist()
        return pa.types.is_floating(array.type) or pa.array(values, array.type).equals(array)
    except (OverflowError, ValueError):
        return False


@pytest.mark.sampled
@pytest.mark.parametrize(("type_", "values"), SOURCES, ids=lambda v: str(v)[:30])
def test_every_key_comes_back_with_the_type_of_the_snapshot_or_of_hive(
    tmp_path: Path, type_: pa.DataType, values: list[Any]
) -> None:
    pairs = [array_of(value, type_) for value in values]
    array = pa.concat_arrays([pa.nulls(1, type_), *(pair[1:] for pair in pairs if has_python_value(pair))])
    to_tfrecord(keyed_by(array), tmp_path, partition_on="key")
    for options in ({}, {"use_snapshot": False, "hive": {"key": type_}}):
        frame = read_tfrecord(tmp_path, **options).compute()
        table = pa.Table.from_pandas(frame, preserve_index=False).sort_by("n")
        found = table["key"].combine_chunks()
        assert found.type == type_
        assert not found[0].is_valid
        for row in range(1, len(array)):
            before, after = Value(array, row), Value(found, row)
            assert before.exact == after.exact
            if pa.types.is_floating(type_):
                assert np.signbit(before.stored) == np.signbit(after.stored)


@pytest.mark.parametrize(("type_", "values"), SOURCES, ids=lambda v: str(v)[:30])
def test_a_key_beyond_python_is_refused(tmp_path: Path, type_: pa.DataType, values: list[Any]) -> None:
    refused = [array for array in (array_of(value, type_) for value in values) if not has_python_value(array)]
    for array, colocate in itertools.product(refused, [False, True]):
        with pytest.raises(
            SchemaError, match=r"partition 0 of 1: feature 'key': a value .*coarser unit, or to"
        ):
            to_tfrecord(keyed_by(array), tmp_path, partition_on="key", colocate=colocate)
    assert not list(tmp_path.rglob("part-*"))


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("colocate", [False, True])
def test_zeros_and_infinities_are_keys_of_their_own_and_all_nans_are_one(
    tmp_path: Path, type_: pa.DataType, colocate: bool
) -> None:
    numbers = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf], type_.to_pandas_dtype())
    assert numbers[2].tobytes() != numbers[3].tobytes()
    to_tfrecord(keyed_by(pa.array(numbers)), tmp_path, partition_on="key", colocate=colocate)
    snapshot = Snapshot.open(tmp_path)
    found = {file.path.partition("/")[0]: file.records for file in snapshot.files}
    assert found == {"key=0": 1, "key=-0": 1, "key=nan": 2, "key=inf": 1, "key=-inf": 1}


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("1.5", pa.int64()),
        ("300", pa.int8()),
        ("1e300", pa.float32()),
        ("9007199254740993", pa.float64()),
        ("1.555", pa.decimal128(9, 2)),
        ("2020-01-01T10", pa.date32()),
        ("2020-01-01 12:00:00.5", pa.timestamp("s")),
        ("2020-01-01 12:00:00Z", pa.timestamp("s")),
        ("2020-01-01 12:00:00", pa.timestamp("s", "UTC")),
        ("12:00:00.5", pa.time32("s")),
        ("1.5", pa.duration("s")),
        ("2", pa.bool_()),
    ],
)
def test_a_directory_name_is_no_value_of_a_type_that_cannot_hold_it(text: str, type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"feature 'k': the directory .* which is no"):
        partitioning.to_values("k", pa.array(["0", text])[1:], type_, [f"k={text}"])


@pytest.mark.parametrize(
    ("keys", "type_"),
    [
        (pa.array([1, 2]), pa.bool_()),
        (pa.array([1, 300]), pa.int8()),
        (pa.array([1.0, 1.5]), pa.int64()),
        (pa.array([0.5, 0.1]), pa.float32()),
        (pa.array([0, 86_400 * 10**9 + 1000], pa.timestamp("ns")), pa.date32()),
        (pa.array(["1", "1.50"]), pa.float64()),
    ],
)
def test_a_snapshot_gives_keys_of_another_type_exactly_or_not_at_all(
    tmp_path: Path, keys: pa.Array, type_: pa.DataType
) -> None:
    to_tfrecord(keyed_by(keys[:1]), tmp_path / "fits", partition_on="key")
    assert read_tfrecord(tmp_path / "fits", schema={"key": type_}).dtypes["key"] == pd.ArrowDtype(type_)
    to_tfrecord(keyed_by(keys), tmp_path / "does not", partition_on="key")
    with pytest.raises(SchemaError, match="feature 'key': the partition values are"):
        read_tfrecord(tmp_path / "does not", schema={"key": type_})


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
        (["1_000"], pa.string()),
        (["٣"], pa.string()),
        ([" 1"], pa.string()),
        ([*map(str, range(300)), "x"], pa.string()),
    ],
)
def test_a_key_is_an_integer_only_where_all_its_values_are(
    tmp_path: Path, values: list[str], type_: pa.DataType
) -> None:
    ddf = read_tfrecord(put(tmp_path, *(f"k={value}" for value in values)))
    assert types(ddf) == {"k": type_}
    cast = int if type_ == pa.int64() else str
    assert rows(ddf) == {n: {"k": None if v == NULL else cast(v)} for n, v in enumerate(values)}


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
    chosen = {"year": pa.int16(), "day": pa.date32(), "price": pa.decimal128(5, 2), "c": category}
    day, price = datetime.date(2024, 1, 31), decimal.Decimal("1.50")
    for ddf in (read_tfrecord(root, hive=chosen), read_tfrecord(root, schema=chosen)):
        assert list(ddf.compute().dtypes.astype(str)) == list(ddf.dtypes.astype(str))
        assert rows(ddf) == {0: {"year": 2026, "day": day, "price": price, "c": "007"}}
    assert types(read_tfrecord(root, hive={"c": pa.int8()}))["c"] == pa.int8()
    with pytest.raises(SchemaError, match=r"type int16, but hive= gives the type int8"):
        read_tfrecord(root, hive={"year": pa.int8()}, schema={"year": pa.int16()})


def test_a_value_that_does_not_fit_names_its_directory(tmp_path: Path) -> None:
    root = put(tmp_path, "year=2026/m=1", "year=x/m=2")
    for keywords in ({"hive": {"year": pa.int32()}}, {"schema": {"year": pa.int32()}}):
        with pytest.raises(
            SchemaError, match=r"'.*year=x/m=2' has the value 'x', .* int32; .*\"string\""
        ) as caught:
            read_tfrecord(root, **keywords)
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
        read_tfrecord(root, schema={"contry": pa.string()}, read_options={"infer": "all"})


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
