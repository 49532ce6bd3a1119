"""Partition values as directory names: Spark's spelling, exact for every type, never outside the root.

Modules: dataset.partitioning.
"""

import datetime
import decimal
import itertools
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cast_table import SOURCES, Value, array_of
from hypothesis import given

from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.codec import take_bytes
from dask_tfrecord.dataset import partitioning
from dask_tfrecord.dataset.partitioning import group_by_directory
from dask_tfrecord.files.entry import is_inside


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
        (".", "."),
        ("..", ".."),
        ("", ""),
        ("%2F", "%252F"),
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


@given(st.binary(max_size=40))
def test_bytes_come_back(value: bytes) -> None:
    ((_, text),) = partitioning.parse(directory(value, pa.binary()))
    assert text is not None
    assert text.encode("latin-1") == value


def test_several_columns_are_levels_in_their_order() -> None:
    table = pa.table({"year": [2026], "of=what": ["a/b"]})
    assert partitioning.directories(table) == ["year=2026/of%3Dwhat=a%2Fb"]
    assert partitioning.parse("year=2026/plain/of%3Dwhat=a%2Fb") == [("year", "2026"), ("of=what", "a/b")]


def test_a_name_that_no_disk_holds_is_refused() -> None:
    assert directory("x" * 253) == "c=" + "x" * 253
    with pytest.raises(SchemaError, match="would have 256 bytes, but at most 255 are allowed") as caught:
        directory("é" * 127)
    assert caught.value.feature == "c"


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


def test_too_many_parts_are_refused_with_what_to_do() -> None:
    table = pa.table({"c": range(5), "n": range(5)})
    with pytest.raises(TFRecordError, match=r"5 different values of 'c', .* 4 files; .*bucket.*colocate"):
        group_by_directory(table, ["c"], max_directories=4)


pytestmark = pytest.mark.usefixtures("one_thread")


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
    snapshot = to_tfrecord(keyed_by(pa.array(numbers)), tmp_path, partition_on="key", colocate=colocate)
    found = {file.path.partition("/")[0]: file.records for file in snapshot.files}
    assert found == {"key=0": 1, "key=-0": 1, "key=nan": 2, "key=inf": 1, "key=-inf": 1}


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("1.5", pa.int64()),
        ("300", pa.int8()),
        ("1e300", pa.float32()),
        ("16777217", pa.float32()),
        ("0.1", pa.float16()),
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
