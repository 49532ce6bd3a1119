"""The outcomes of many files at once are those of each file by itself, and include those of all its rows.

Modules: dataset.query.comparison_keys, dataset.query.predicates, dataset.snapshot.file_list.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from possible import as_sets, outcomes_in_file
from test_filters import TYPES, leaves, stored, trees

from dask_tfrecord.dataset.query.comparison_keys import file_ranges
from dask_tfrecord.dataset.query.predicates import (
    Ambiguous,
    Compare,
    IsNull,
    Not,
    Predicate,
    compare,
    possible_outcomes,
)
from dask_tfrecord.dataset.snapshot.file_list import from_entries
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.schema.fields import Field, Schema

MORE_TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    **TYPES,
    "float16": (
        pa.float16(),
        st.sampled_from([-math.inf, -1.5, 0.0, -0.0, 1.0, 2.5, math.nan]).map(np.float16),
        st.sampled_from([-1.5, 0.0, -0.0, 0.1, 1.0, 2.5]),
    ),
    "wide decimal": (
        pa.decimal256(60, 1),
        st.integers(-5, 5).map(lambda n: Decimal(n) * 10**30),
        st.integers(-5, 5).map(lambda n: Decimal(n) * 10**30),
    ),
    "category": (
        pa.dictionary(pa.int32(), pa.string()),
        st.text("abż", max_size=2),
        st.text("abż", max_size=2),
    ),
}


def table(entries: Sequence[FileEntry | None], fields: Sequence[Field]) -> pa.Table:
    """The files as columns. Nothing proves that the statistics of a file that is None are true."""
    known = tuple(entry or FileEntry(f"{at}", 0, 9, 0) for at, entry in enumerate(entries))
    rows = from_entries(known, Schema(tuple(fields)), ())
    records = [entry and entry.records for entry in entries]
    return rows.append_column("file_records", pa.array(records, pa.int64()))


def at_once(
    predicate: Predicate,
    fields: Sequence[Field],
    entries: Sequence[FileEntry | None],
    values: dict[str, pa.Array],
) -> list[frozenset[bool | None]]:
    """The outcomes of all files, from columns."""
    ranges = file_ranges(fields, len(entries), values, table(entries, fields))
    return as_sets(possible_outcomes(predicate, ranges))


@st.composite
def files(draw: st.DrawFn, name: str) -> tuple[Field, list[pa.Array], list[FileEntry | None]]:
    """The rows of some files in one column, and their entries: some without statistics, bounds or proof."""
    type_, values, _ = MORE_TYPES[name]
    parts = draw(st.lists(st.lists(values | st.none(), max_size=4), max_size=5))
    arrays, entries = [], list[FileEntry | None]()
    for at, part in enumerate(parts):
        array, statistics = stored(pa.array(part, type_))
        arrays.append(array)
        kind = draw(st.sampled_from(["whole", "whole", "no min", "no max", "no statistics", "no proof"]))
        if kind == "no min":
            statistics = statistics._replace(min=None)
        if kind == "no max":
            statistics = statistics._replace(max=None)
        known = () if kind == "no statistics" else (statistics,)
        entry = FileEntry(f"{at}", 0, len(part), 0, statistics=known)
        entries.append(None if kind == "no proof" else entry)
    return Field("x", type_), arrays, entries


def ambiguous(predicate: Any) -> Any:
    """A filter of pandas that may be a predicate, or its opposite."""
    return Ambiguous((predicate[0], Not(predicate[0]))), None


@pytest.mark.parametrize("name", MORE_TYPES)
@given(data=st.data())
def test_statistics_as_columns_give_what_each_file_gives(name: str, data: st.DataObject) -> None:
    field, arrays, entries = data.draw(files(name))
    tree = trees(leaves(field, MORE_TYPES[name][2]))
    predicate, judge = data.draw(tree | tree.map(ambiguous))
    found = at_once(predicate, [field], entries, {})
    assert found == [outcomes_in_file(predicate, [field], entry, {}) for entry in entries]
    if judge is not None:
        for outcomes, array in zip(found, arrays, strict=True):
            assert outcomes >= set(predicate.mask(pa.table({"x": array})).to_pylist())


@pytest.mark.parametrize("name", MORE_TYPES)
@given(data=st.data())
def test_partition_values_as_columns_give_what_each_file_gives(name: str, data: st.DataObject) -> None:
    type_, values, others = MORE_TYPES[name]
    field = Field("x", type_)
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    of_files = pa.array(data.draw(st.lists(values | st.none(), max_size=5)), type_)
    entries = [
        data.draw(st.sampled_from([None, FileEntry("f", 0, 3, 0), FileEntry("f", 0, 0, 0)])) for _ in of_files
    ]
    predicate, _ = data.draw(trees(leaves(field, others)))
    found = at_once(predicate, [field], entries, {"x": of_files})
    assert found == [
        outcomes_in_file(predicate, [field], entry, {"x": value})
        for entry, value in zip(entries, of_files.to_pylist(), strict=True)
    ]
    for outcomes, value, entry in zip(found, of_files, entries, strict=True):
        if entry is None or entry.records:
            column = pa.array([value.as_py()], type_)
            assert outcomes >= set(predicate.mask(pa.table({"x": column})).to_pylist())


@given(data=st.data())
def test_several_columns_as_columns_give_what_each_file_gives(data: st.DataObject) -> None:
    """A scalar column, a list and a partition column together."""
    number, key, lists = Field("n", pa.int64()), Field("k", pa.string()), Field("l", pa.list_(pa.int64()))
    integers = st.integers(-3, 3)
    entries: list[FileEntry | None] = []
    for at in range(data.draw(st.integers(0, 6))):
        low, high = sorted(data.draw(st.tuples(integers, integers)))
        nulls = data.draw(st.integers(0, 3))
        bounds = (None, None) if nulls == 3 else (low, high)
        columns = [
            ColumnStatistics("n", *bounds, nulls),
            ColumnStatistics("l", None, None, data.draw(st.integers(0, 3)), 0, 2),
        ]
        known = data.draw(st.lists(st.sampled_from(columns), unique=True))
        entry = FileEntry(f"{at}", 0, 3, 0, statistics=tuple(known))
        entries.append(data.draw(st.sampled_from([entry, entry, None])))
    texts = st.sampled_from(["a", "b", None])
    values = {"k": pa.array([data.draw(texts) for _ in entries], pa.string())}
    leaf = leaves(number, integers) | leaves(key, st.sampled_from(["a", "b", "c"]))
    predicate, _ = data.draw(
        trees(leaf | st.just((IsNull("l"), None)) | st.just((Compare("m", "<", 1), None)))
    )
    fields = [number, lists, key]
    assert at_once(predicate, fields, entries, values) == [
        outcomes_in_file(predicate, fields, entry, {"k": value})
        for entry, value in zip(entries, values["k"].to_pylist(), strict=True)
    ]


@pytest.mark.parametrize("symbol", ["==", "!=", "<", "<=", ">", ">="])
def test_a_bound_that_is_nan_is_unknown(symbol: Any) -> None:
    field = Field("x", pa.float64())
    for bounds in [(math.nan, math.nan), (math.nan, 9.0), (-9.0, math.nan)]:
        entry = FileEntry("f", 0, 3, 0, statistics=(ColumnStatistics("x", *bounds, 0),))
        [found] = at_once(compare(field, symbol, 1.0), [field], [entry], {})
        assert found == {True, False, None}


def test_bounds_of_another_type_are_unknown() -> None:
    entries = [FileEntry("f", 0, 3, 0, statistics=(ColumnStatistics("x", 5, 7, 0),))]
    numbers = table(entries, [Field("x", pa.int64())])
    text = Field("x", pa.string())
    ranges = file_ranges([text], 1, {}, numbers)
    assert as_sets(possible_outcomes(compare(text, "==", "a"), ranges)) == [{True, False}]
    ranges = file_ranges([text], 1, {"x": pa.array([5])}, numbers)
    assert as_sets(possible_outcomes(compare(text, "==", "a"), ranges)) == [{True, False}]


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(TypeError, match="not valid Unicode"):
        compare(Field("x", pa.string()), "<", "\ud800")


def test_no_files_have_no_outcomes() -> None:
    field = Field("x", pa.int64())
    assert at_once(compare(field, "==", 1), [field], [], {}) == []
