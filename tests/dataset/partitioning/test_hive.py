"""Partition values as directory names: Spark's spelling, exact in both directions, never outside the root.

Modules: dataset.partitioning.
"""

import datetime
import decimal
import itertools
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from dask_tfrecord import SchemaError, TFRecordError
from dask_tfrecord.codec import take_bytes
from dask_tfrecord.dataset import partitioning
from dask_tfrecord.dataset.partitioning import group_by_directory
from dask_tfrecord.files.entry import is_inside
from dask_tfrecord.files.file_writer import GroupedRows


def directory(value: Any, type_: pa.DataType | None = None, name: str = "c") -> str:
    return partitioning.directories(pa.table({name: pa.array([value], type_)}))[0]


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
        ("::", "%3A%3A"),
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
        (decimal.Decimal("1.50"), "1.50"),
        (b"\xff/", "ÿ%2F"),
    ],
)
def test_a_value_has_one_name(value: Any, name: str) -> None:
    assert directory(value) == f"c={name}"


def test_times_with_zone_are_in_utc_which_never_repeats_an_hour() -> None:
    hours = pa.array([1729990800, 1729994400], pa.timestamp("s", "Europe/Berlin"))  # 02:00 twice
    assert partitioning.directories(pa.table({"c": hours})) == [
        "c=2024-10-27 01%3A00%3A00Z",
        "c=2024-10-27 02%3A00%3A00Z",
    ]


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


def test_null_is_neither_the_empty_string_nor_its_own_name() -> None:
    table = pa.table({"c": ["", None, partitioning.NULL]})
    found = [partitioning.parse(name) for name in partitioning.directories(table)]
    assert found == [[("c", "")], [("c", None)], [("c", partitioning.NULL)]]


def test_several_columns_are_levels_in_their_order() -> None:
    table = pa.table({"year": [2026], "of=what": ["a/b"]})
    assert partitioning.directories(table) == ["year=2026/of%3Dwhat=a%2Fb"]
    assert partitioning.parse("year=2026/plain/of%3Dwhat=a%2Fb") == [("year", "2026"), ("of=what", "a/b")]


def test_a_name_that_no_disk_holds_is_refused() -> None:
    assert directory("x" * 253) == "c=" + "x" * 253
    with pytest.raises(SchemaError, match="would have 256 bytes, but at most 255 are allowed") as caught:
        directory("é" * 127)
    assert caught.value.feature == "c"


# --- the parts of a table ----------------------------------------------------------------------------


def numbers(found: GroupedRows) -> dict[tuple[Any, ...], list[int]]:
    """The column "n" of each part, keyed by the partition values of the part."""
    ends = itertools.accumulate(part.rows for part in found.groups)
    [(table, _)] = found.pieces
    return {
        part.values: table["n"].slice(end - part.rows, part.rows).to_pylist()
        for part, end in zip(found.groups, ends, strict=True)
    }


def test_rows_go_to_their_part_in_the_order_they_had() -> None:
    table = pa.table({"n": range(6), "c": ["b", "a", None, "b", "a", ""]})
    found = group_by_directory(table, ["c"], max_directories=9)
    assert [part.directory for part in found.groups] == ["c=b", "c=a", f"c={partitioning.NULL}", "c="]
    assert numbers(found) == {("b",): [0, 3], ("a",): [1, 4], (None,): [2], ("",): [5]}
    [(rows, order)] = found.pieces
    assert rows.column_names == ["n"]
    assert order is not None
    assert order.tolist() == rows["n"].to_pylist()


def test_two_columns_part_by_their_combinations() -> None:
    table = pa.table({"a": [1, 2, 1, 2, 1], "b": ["x", "x", "y", "x", "x"], "n": range(5)})
    found = numbers(group_by_directory(table, ["b", "a"], max_directories=9))
    assert found == {("x", 1): [0, 4], ("x", 2): [1, 3], ("y", 1): [2]}


def test_chunks_with_different_categories_part_by_value() -> None:
    chunks = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", None, "a"]).dictionary_encode()]
    table = pa.table({"c": pa.chunked_array(chunks), "n": range(5)})
    found = numbers(group_by_directory(table, ["c"], max_directories=9))
    assert found == {("a",): [0, 4], ("b",): [1, 2], (None,): [3]}


def test_floats_part_by_value_with_nan_as_one() -> None:
    nan = float("nan")
    table = pa.table({"c": [0.0, -0.0, nan, 1.5, nan], "n": range(5)})
    parts = group_by_directory(table, ["c"], max_directories=9).groups
    assert [part.directory for part in parts] == ["c=0", "c=-0", "c=nan", "c=1.5"]
    assert [part.rows for part in parts] == [1, 1, 2, 1]


def test_rows_that_are_in_order_are_not_moved() -> None:
    table = pa.table({"c": ["a", "a", "b"], "n": [1, 2, 3]})
    found = group_by_directory(table, ["c"], max_directories=9)
    [(rows, order)] = found.pieces
    assert rows["n"].chunk(0).buffers()[1].address == table["n"].chunk(0).buffers()[1].address
    assert order is None


BYTES = [b"", None, b"a", b"\0" * 16, b"x" * 17, b"y" * 1000]


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("cut", [0, 3])
@pytest.mark.parametrize("nulls", [False, True])
def test_rows_keep_their_values_in_another_order(type_: pa.DataType, cut: int, nulls: bool) -> None:
    chosen = [value for value in BYTES if nulls or value is not None]
    array = pa.array((chosen * 40)[: 40 * len(chosen) - 1], pa.binary()).cast(type_)
    table = pa.table({"key": [n * n % 7 for n in range(len(array))], "x": array}).slice(cut)
    found = group_by_directory(table, ["key"], max_directories=9)
    [(rows, order)] = found.pieces
    assert order is not None
    assert rows["x"].type == type_
    rows.validate(full=True)
    values = table["x"].to_pylist()
    assert rows["x"].to_pylist() == [values[row] for row in order]


@pytest.mark.parametrize("row", [-1, 3, 2**62])
def test_a_row_that_is_not_there_is_refused(row: int) -> None:
    column = pa.array([b"a", b"b", b"c", b"d"]).slice(1)
    with pytest.raises(IndexError, match="outside the column"):
        take_bytes(column, np.array([0, row]))
    assert take_bytes(column, np.array([2, 0, 2])).to_pylist() == [b"d", b"b", b"d"]


def test_more_bytes_than_the_column_has_are_refused() -> None:
    column = pa.array([b"x" * 20, b"", None])
    with pytest.raises(IndexError, match="rows are repeated too often"):
        take_bytes(column, np.array([1, 0, 2, 0]))
    assert len(take_bytes(column.slice(1), np.array([], np.int64))) == 0


def test_no_columns_give_one_part_and_no_rows_give_none() -> None:
    table = pa.table({"n": [1]})
    assert group_by_directory(table, [], max_directories=1) == ([(table, None)], [("", (), 1)])
    assert group_by_directory(table.slice(1), ["n"], max_directories=1).groups == []


def test_too_many_parts_are_refused_with_what_to_do() -> None:
    table = pa.table({"c": range(5), "n": range(5)})
    with pytest.raises(TFRecordError, match=r"5 different values of 'c', .* 4 files; .*bucket.*colocate"):
        group_by_directory(table, ["c"], max_directories=4)


def test_times_finer_than_pythons_are_refused() -> None:
    table = pa.table({"c": pa.array([1], pa.time64("ns")), "n": [1]})
    with pytest.raises(SchemaError, match="finer than Python's") as caught:
        group_by_directory(table, ["c"], max_directories=4)
    assert caught.value.feature == "c"
