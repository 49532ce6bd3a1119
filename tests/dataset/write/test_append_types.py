"""One rule for the types of appended rows: a column without a value fits each column, numbers fit exactly.

Modules: dataset.write.append_schema, schema.conversion, collection.frames.schema_plan,
collection.expr.lineage.
"""

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from planned_frames import arrow_backed, frame_of, objects

from dask_tfrecord import SchemaError, Writer, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.schema.conversion import fitting, widened

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:the values of 'x' are rounded:UserWarning"),
]

BIG = 2**60 + 1
NAN = float("nan")


def written(path: Path, *days: Any, **keywords: Any) -> list[Any]:
    """The values of the column "x" after one write for each of the days."""
    for number, day in enumerate(days):
        extra = keywords if number else {}
        to_tfrecord(day, path, append=number > 0, **{"lossy": "allow", **extra})
    assert open_dataset(path).verify()["agrees"].all()
    read_tfrecord(path).compute()
    return list(open_dataset(path).to_table()["x"].to_pylist())


def type_in(path: Path) -> pa.DataType:
    return open_dataset(path).schema.field("x").type


def mapped(frame: pd.DataFrame) -> dd.DataFrame:
    """A collection whose tasks load the partitions, so that Dask may convert objects to text in a task."""
    return dd.from_map(lambda row: frame.iloc[row : row + 1], [*range(len(frame))], meta=frame.iloc[:0])


def arrow(frame: pd.DataFrame) -> pa.Table:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    is_empty = pa.types.is_dictionary(table["x"].type) and not len(frame["x"].cat.categories)
    # pandas gives Arrow categories of floats if there are none.
    return table.set_column(0, "x", pa.nulls(len(frame)).dictionary_encode()) if is_empty else table


WAYS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "from_pandas": lambda frame: dd.from_pandas(frame, npartitions=len(frame)),
    "from_map": mapped,
    "Arrow": arrow,
}

# Columns of two nulls.
NOTHING: dict[str, pd.DataFrame] = {
    "None": objects(None, None),
    "NaN among objects": objects(NAN, None),
    "categories": frame_of(pd.Categorical([None, None])),
    "lists of nulls": arrow_backed(pa.nulls(2, pa.list_(pa.null()))),
    "null": arrow_backed(pa.nulls(2)),
}

# Columns of each kind of values, with one null.
VALUES: dict[str, pd.DataFrame] = {
    "int": frame_of([BIG, None], "Int64"),
    "float": frame_of([1.5, None]),
    "bool": objects(True, None),
    "text": objects("a", None),
    "bytes": objects(b"\xff", None),
    "date": objects(dt.date(2024, 1, 1), None),
    "time": objects(dt.time(1), None),
    "timestamp": frame_of(pd.DatetimeIndex(["2024-01-01", None])),
    "zoned": frame_of(pd.DatetimeIndex(["2024-01-01", None], tz="UTC")),
    "duration": frame_of(pd.TimedeltaIndex(["1s", None])),
    "decimal": objects(Decimal("1.25"), None),
    "list": objects([1, 2], None),
    "dict": objects({"a": BIG}, None),
    "categorical": frame_of(pd.Categorical(["a", None])),
}


@pytest.mark.sampled
@pytest.mark.parametrize("converts", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NOTHING)
def test_a_column_without_a_value_has_the_null_type(
    tmp_path: Path, kind: str, way: str, converts: bool
) -> None:
    with dask.config.set({"dataframe.convert-string": converts}):
        to_tfrecord(WAYS[way](NOTHING[kind].assign(n=1)), tmp_path)
    assert type_in(tmp_path) == pa.null()
    assert read_tfrecord(tmp_path).compute()["x"].isna().all()


_PAIRS = [
    (values, kind, [*WAYS][(number + at) % 4], bool((number + at) % 3))
    for number, values in enumerate(VALUES)
    for at, kind in enumerate(NOTHING)
]


@pytest.mark.sampled
@pytest.mark.parametrize(("values", "kind", "way", "converts"), _PAIRS)
def test_nulls_and_the_values_of_another_day_fit_in_both_orders(
    tmp_path: Path, values: str, kind: str, way: str, converts: bool
) -> None:
    expected = written(tmp_path / "alone", VALUES[values].assign(n=1))
    with dask.config.set({"dataframe.convert-string": converts}):
        nothing = WAYS[way](NOTHING[kind].assign(n=1))
    with dask.config.set({"dataframe.convert-string": False}):
        day = WAYS[way](VALUES[values].assign(n=1))
    assert written(tmp_path / "first", nothing, day) == [None, None, *expected]
    assert written(tmp_path / "second", day, nothing) == [*expected, None, None]
    assert type_in(tmp_path / "first") == type_in(tmp_path / "second")


_TYPED = ["float64", "string", "datetime64[ns]", "Int64"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("values", "dtype", "way"),
    [
        (values, dtype, ("pandas", "from_pandas", "from_map")[(number + at) % 3])
        for number, values in enumerate(["text", "list", "timestamp", "bool", "bytes", "int"])
        for at, dtype in enumerate(_TYPED)
    ],
)
def test_a_typed_column_without_a_value_fits_too(tmp_path: Path, values: str, dtype: str, way: str) -> None:
    expected = written(tmp_path / "alone", VALUES[values])
    nothing = WAYS[way](frame_of([None, None], dtype))
    assert written(tmp_path / "second", VALUES[values], nothing) == [*expected, None, None]


@pytest.mark.parametrize("values", VALUES)
def test_a_writer_takes_nulls_and_values_in_any_order(tmp_path: Path, values: str) -> None:
    expected = written(tmp_path / "alone", VALUES[values])
    nothing = NOTHING["None"]
    with Writer(tmp_path / "w", lossy="allow") as writer:
        for rows in (nothing, VALUES[values], nothing):
            writer.write(rows)
            writer.commit()
        writer.write(VALUES[values])
    found = open_dataset(tmp_path / "w").to_table()["x"].to_pylist()
    assert found == [None, None, *expected, None, None, *expected]


@pytest.mark.parametrize(
    "day", [objects([]), objects([], None), arrow_backed(pa.array([[], None], pa.list_(pa.null())))]
)
@pytest.mark.parametrize("first", [objects([1]), frame_of([[0.5, 1.5]]), objects([b"a"])])
def test_empty_lists_fit_a_list_column(tmp_path: Path, first: pd.DataFrame, day: pd.DataFrame) -> None:
    expected = [[], None][: len(day)]
    assert written(tmp_path / "a", first, day)[1:] == expected
    with Writer(tmp_path / "b", lossy="allow") as writer:
        writer.write(first)
        writer.write(day)
    assert open_dataset(tmp_path / "b").to_table()["x"].to_pylist()[1:] == expected


# -- Numbers -------------------------------------------------------------------------------------------------

INTEGERS = ["int8", "uint8", "int32", "int64", "Int64", "uint64"]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("way", WAYS)
def test_whole_floats_and_nan_fit_an_integer_column(tmp_path: Path, dtype: str, way: str) -> None:
    days = frame_of([1, 2], dtype), WAYS[way](frame_of([3.0, NAN]))
    assert written(tmp_path, *days) == [1, 2, 3, None]
    assert type_in(tmp_path) == getattr(pa, dtype.lower())()
    assert str(read_tfrecord(tmp_path).compute()["x"].dtype) in (
        "Int64",
        dtype.replace("i", "I").replace("uI", "UI"),
        pd.ArrowDtype(type_in(tmp_path)).name,
    )


@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [1.5, 128.0, -129.0, float("inf"), 2.0**70])
def test_a_float_that_is_no_integer_of_the_column_raises_with_its_row(
    tmp_path: Path, way: str, value: float
) -> None:
    to_tfrecord(frame_of([1], "int8"), tmp_path)
    with pytest.raises(SchemaError, match="feature 'x': a value does not fit int8") as caught:
        to_tfrecord(WAYS[way](frame_of([3.0, NAN, value])), tmp_path, append=True)
    assert caught.value.record == (2 if way in ("pandas", "Arrow") else 0)
    assert not caught.value.remedies
    assert len(read_tfrecord(tmp_path)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_float_that_may_be_a_rounded_integer_raises(tmp_path: Path, way: str) -> None:
    path = tmp_path / "a"
    to_tfrecord(frame_of([BIG]), path)
    day = frame_of([1, None, 2**53 + 1])  # pandas has rounded the last integer
    with pytest.raises(SchemaError, match=r"may be a rounded integer.* 2\^53; make the column Int64"):
        to_tfrecord(WAYS[way](day), path, append=True)
    with (
        pytest.raises(SchemaError, match=r"record 2: .* may be a rounded integer"),
        Writer(path) as writer,
    ):
        writer.write(day)
    assert written(tmp_path / "b", frame_of([1]), WAYS[way](frame_of([2**53 - 1, None])))[1] == 2**53 - 1
    to_tfrecord(WAYS[way](day), path, append=True, schema={"x": "int64"})
    assert len(read_tfrecord(path)) == 4


def test_integers_fit_a_float_column_if_it_holds_them(tmp_path: Path) -> None:
    days = frame_of([1, None]), frame_of([3, 4]), objects(5, None)
    assert written(tmp_path, *days) == [1, None, 3, 4, 5, None]
    for value in (BIG, 2**24 + 1):
        with pytest.raises(SchemaError, match="record 1: feature 'x'"):
            to_tfrecord(frame_of([1, value]), tmp_path, append=True, lossy="raise")


@pytest.mark.parametrize(
    ("first", "day", "expected"),
    [
        (frame_of([1], "int16"), objects(3, None), [3, None]),
        (frame_of([0.5], "float32"), objects(3, 0.25), [3, 0.25]),
        (
            frame_of(pd.DatetimeIndex(["2024"]).as_unit("s")),
            objects(dt.datetime(2025, 1, 1)),
            [dt.datetime(2025, 1, 1)],
        ),
        (frame_of(pd.Categorical(["a"])), objects("b", "a"), ["b", "a"]),
        (arrow_backed(pa.array([b"abc"], pa.binary(3))), objects(b"xyz"), [b"xyz"]),
        (arrow_backed(pa.array([[1, 2]], pa.list_(pa.int8(), 2))), objects([3, 4]), [[3, 4]]),
        (objects({"a": 1, "b": "x"}), objects({"b": None, "a": BIG}), [{"a": BIG, "b": None}]),
        (objects({"a": 0.5}), objects({"a": 1}), [{"a": 1}]),
        (objects(Decimal("1.50")), objects(3), [Decimal("3.00")]),
    ],
)
def test_objects_take_the_type_of_the_column(
    tmp_path: Path, first: pd.DataFrame, day: pd.DataFrame, expected: list[Any]
) -> None:
    to_tfrecord(first, tmp_path / "a", lossy="allow")
    before = type_in(tmp_path / "a")
    assert written(tmp_path / "b", first, day)[1:] == expected
    assert type_in(tmp_path / "b") == before


@pytest.mark.parametrize(
    ("first", "day", "problem"),
    [
        (frame_of([1]), objects(1, "a"), "several kinds|cannot be stored"),
        (frame_of([1]), objects("1"), "is string, in the dataset it is int64"),
        (frame_of(["a"]), objects(b"a"), "is binary, in the dataset it is string"),
        (frame_of([True]), frame_of([1.0, NAN]), "is double, in the dataset it is bool"),
        (frame_of([1]), frame_of([True]), "is bool, in the dataset it is int64"),
        (frame_of([1], "int8"), objects(3, 300), "record 1: feature 'x': a value does not fit int8"),
        (frame_of([1], "int8"), frame_of([1]), "is int64, in the dataset it is int8"),
        (objects({"a": 1}), objects({"a": 1.5}), "does not fit struct<a: int64>"),
        (objects({"a": 1}), objects({"a": 1, "b": 2}), "leave out the fields"),
    ],
)
def test_other_rows_are_refused(tmp_path: Path, first: Any, day: Any, problem: str) -> None:
    to_tfrecord(first, tmp_path)
    with pytest.raises(SchemaError, match=problem):
        to_tfrecord(day, tmp_path, append=True, lossy="allow")
    assert len(read_tfrecord(tmp_path)) == len(first)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("first", "day"),
    [
        (frame_of([1], "int8"), frame_of([3])),
        (frame_of([1], "int8"), objects(3, 300)),
        (frame_of(["a"]), frame_of([3])),
        (frame_of([3]), frame_of(["5"])),
        (frame_of([True]), frame_of([1.0, NAN])),
        (
            frame_of(pd.DatetimeIndex(["2024"]).as_unit("s")),
            frame_of(pd.DatetimeIndex(["2024"]).as_unit("ns")),
        ),
        (objects({"a": 1, "b": 2}), objects({"a": BIG})),
    ],
)
@pytest.mark.parametrize("way", ["pandas", "from_pandas", "Arrow"])
def test_the_advice_for_another_type_works(tmp_path: Path, first: Any, day: Any, way: str) -> None:
    to_tfrecord(first, tmp_path)
    rows = WAYS[way](day)
    if way == "from_pandas":
        with dask.config.set({"dataframe.convert-string": False}):
            rows = WAYS[way](day)
    with pytest.raises(SchemaError) as caught:
        to_tfrecord(rows, tmp_path, append=True, lossy="allow")
    keywords = {remedy.keyword: remedy.value for remedy in caught.value.remedies}
    if "schema_change" in keywords and "schema" in keywords and keywords["schema"] == {"x": pa.int8()}:
        del keywords["schema"]  # each of the two remedies works alone
    if not keywords and way != "Arrow":
        call = re.search(r"\.astype\(.*\)$", str(caught.value))
        assert call
        rows = eval(f"rows{call[0]}", {"rows": rows, "pa": pa, "pd": pd})
    elif not keywords:
        rows = pa.Table.from_pandas(day, schema=open_dataset(tmp_path).schema, preserve_index=False)
    to_tfrecord(rows, tmp_path, append=True, lossy="allow", **keywords)
    assert len(read_tfrecord(tmp_path)) == len(first) + len(day)


# -- Decimals ------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("keywords", [{}, {"schema_change": "add"}], ids=str)
@pytest.mark.parametrize("way", ["pandas", "from_pandas", "Arrow", "Writer"])
@pytest.mark.parametrize(
    ("texts", "type_"),
    [
        (["823.00", "1234.50"], pa.decimal128(6, 2)),
        (["1234.50", "823.00"], pa.decimal128(6, 2)),
        (["1.5", "1.25", "99.125"], pa.decimal128(5, 3)),
        (["1.25", "123456.5"], pa.decimal128(8, 2)),
    ],
    ids=str,
)
def test_decimals_get_the_digits_of_each_day(
    tmp_path: Path, texts: list[str], type_: pa.DataType, way: str, keywords: Any
) -> None:
    expected = [Decimal(text) for text in texts]
    if way == "Writer":
        with Writer(tmp_path, lossy="allow", **keywords) as writer:
            for value in expected:
                writer.write([{"x": value}])
                writer.commit()
        found = open_dataset(tmp_path).to_table()["x"].to_pylist()
    else:
        with dask.config.set({"dataframe.convert-string": False}):
            found = written(tmp_path, *(WAYS[way](objects(value)) for value in expected), **keywords)
    assert found == expected
    assert type_in(tmp_path) == type_
    assert open_dataset(tmp_path).to_table(filter=pa.compute.field("x") == expected[0]).num_rows == 1


def test_decimals_of_the_partitions_of_a_collection_get_one_type(tmp_path: Path) -> None:
    values = [Decimal("1.255"), None, Decimal("1234.5")]
    with dask.config.set({"dataframe.convert-string": False}):
        assert written(tmp_path, mapped(objects(*values))) == values


def test_more_digits_never_change_the_decimals_of_earlier_days(tmp_path: Path) -> None:
    values = [Decimal("99999.99"), Decimal("0.01")]
    to_tfrecord(objects(*values), tmp_path, lossy="allow")
    with pytest.raises(SchemaError, match=r"decimal128\(4, 3\).*read as other decimals; round .* 2 decimal"):
        to_tfrecord(objects(Decimal("1.255")), tmp_path, append=True, lossy="allow")
    to_tfrecord(objects(Decimal("1.26")), tmp_path, append=True, lossy="allow")
    assert open_dataset(tmp_path).to_table()["x"].to_pylist() == [*values, Decimal("1.26")]


@pytest.mark.parametrize("digits", range(1, 12))
def test_a_wider_decimal_type_reads_every_stored_decimal_alike(digits: int) -> None:
    narrow = pa.decimal128(digits, min(2, digits))
    rng = np.random.default_rng(digits)
    units = [*map(int, rng.integers(0, 10**digits, 500)), 10**digits - 1]
    exact = [Decimal(unit).scaleb(-narrow.scale) for unit in units]
    for scale in range(narrow.scale, 9):
        wide = widened(narrow, pa.decimal128(scale + 1, scale))
        if wide is not None and scale > narrow.scale:
            floats = np.array([float(value) for value in exact], np.float32)
            assert [round(Decimal(float(value)), scale) for value in floats] == exact


def test_the_remedy_for_a_decimal_holds_the_digits_of_all_rows(tmp_path: Path) -> None:
    values = objects(Decimal("1.255"), Decimal("1234.5"))
    with pytest.raises(SchemaError) as caught:
        to_tfrecord(values, tmp_path, schema={"x": pa.decimal128(4, 3)}, lossy="allow")
    (remedy,) = caught.value.remedies
    to_tfrecord(values, tmp_path, lossy="allow", schema=remedy.value)


@pytest.mark.parametrize(
    ("existing", "rows", "is_inferred", "expected"),
    [
        (pa.int8(), pa.float64(), False, pa.int8()),
        (pa.float32(), pa.int64(), False, pa.float32()),
        (pa.int8(), pa.int64(), False, None),
        (pa.int8(), pa.int64(), True, pa.int8()),
        (pa.bool_(), pa.int64(), True, None),
        (pa.string(), pa.null(), False, pa.null()),
        (pa.list_(pa.int8()), pa.list_(pa.null()), False, pa.list_(pa.int8())),
        (pa.list_(pa.int8()), pa.list_(pa.float64()), False, None),
        (pa.list_(pa.int8()), pa.list_(pa.float64()), True, pa.list_(pa.int8())),
        (pa.decimal128(9, 4), pa.decimal128(8, 1), False, pa.decimal128(11, 4)),
        (pa.decimal128(8, 1), pa.decimal128(9, 4), False, None),
        (pa.timestamp("s"), pa.timestamp("us", "UTC"), True, None),
    ],
)
def test_rows_fit_types(existing: Any, rows: Any, is_inferred: bool, expected: Any) -> None:
    assert fitting(existing, rows, numbers=False, is_inferred=is_inferred) == expected


@pytest.mark.parametrize("made", [pa.table, lambda rows: pa.table(rows).to_reader(1)])
def test_an_arrow_column_of_nulls_fits_each_column_whatever_its_type(tmp_path: Path, made: Any) -> None:
    to_tfrecord(pa.table({"n": [0], "x": ["a"]}), tmp_path)
    to_tfrecord(made({"n": [1, 2], "x": pa.nulls(2, pa.float64())}), tmp_path, append=True)
    late = [
        pa.record_batch({"n": pa.array([3]), "x": pa.nulls(1, pa.float64())}),
        pa.record_batch({"n": pa.array([4]), "x": pa.array([1.5])}),
    ]
    with pytest.raises(SchemaError, match=r"record 1: feature 'x'.*cast the column to the type of the data"):
        to_tfrecord(pa.Table.from_batches(late), tmp_path, append=True)
    assert read_tfrecord(tmp_path).compute()["x"].fillna("").tolist() == ["a", "", ""]
