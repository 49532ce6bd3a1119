"""`filters=` and predicates on the frame select the rows of pandas, and open few files.

Pruning skips rows only if pandas agrees. A filter selects as plain Python does, or raises an error of ours.

Modules: dataset.query.predicates, dataset.query.comparison_keys, dataset.query.filters,
collection.expr.optimizations.
"""

import datetime
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from comparables import COLUMNS, OPERATORS, VALUES, moment
from possible import as_sets
from strides import sampled

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.collection.frames import arrow_to_pandas
from dask_tfrecord.dataset.query.comparison_keys import ColumnRange, FileRanges, range_of_values
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import (
    Ambiguous,
    Predicate,
    compare_in_pandas,
    is_in_pandas,
    possible_outcomes,
)
from dask_tfrecord.schema.fields import Field, Schema

pytestmark = pytest.mark.usefixtures("one_thread")


ROWS = 40
FRAME = pd.DataFrame(
    {
        "n": range(ROWS),
        "share": pd.array([n / 8 if n % 5 else None for n in range(ROWS)], pd.ArrowDtype(pa.float32())),
        "word": pd.array([f"w{n:02}" if n % 4 else None for n in range(ROWS)], pd.ArrowDtype(pa.string())),
        "list": pd.array([[n] * (n % 3) for n in range(ROWS)], pd.ArrowDtype(pa.list_(pa.int64()))),
        "country": ["FR", "PL", "FR", "US"] * (ROWS // 4),
    }
).astype({"n": pd.ArrowDtype(pa.int64())})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four partitions of ten rows in three countries each: twelve files."""
    root = tmp_path_factory.mktemp("pruning") / "data"
    to_tfrecord(dd.from_pandas(FRAME, npartitions=4), root, partition_on=["country"])
    return root


def numbers(frame: pd.DataFrame) -> list[int]:
    return sorted(frame["n"].tolist())


def wanted(mask: "pd.Series[Any]") -> list[int]:
    return FRAME["n"][mask.astype("boolean").fillna(False).astype(bool)].tolist()


FILTERS: list[tuple[Any, "pd.Series[Any]", int]] = [
    ([("country", "==", "PL")], FRAME.country == "PL", 4),
    ([("country", "in", ["PL", "US"])], FRAME.country.isin(["PL", "US"]), 8),
    ([("country", "!=", "FR")], FRAME.country != "FR", 8),
    ([("country", "==", "DE")], FRAME.country == "DE", 0),
    ([("n", "<", 10)], FRAME.n < 10, 3),
    ([("n", ">=", 25), ("country", "==", "FR")], (FRAME.n >= 25) & (FRAME.country == "FR"), 2),
    (
        [[("n", "<", 5)], [("n", ">", 35), ("country", "==", "US")]],
        (FRAME.n < 5) | ((FRAME.n > 35) & (FRAME.country == "US")),
        4,
    ),
    ([("word", "is not", None)], FRAME.word.notnull(), 12),
    ([("word", "==", "w13")], FRAME.word == "w13", 3),
    ([("share", ">", 4.5)], FRAME.share > 4.5, 3),
    ([("list", "is", None)], FRAME.list.isna(), 0),
]


@pytest.mark.parametrize("case", range(len(FILTERS)))
def test_filters_load_the_rows_and_open_the_files_that_may_hold_them(
    case: int, root: Path, opened: list[str]
) -> None:
    filters, mask, files = FILTERS[case]
    blocksize = [None, "128 MiB"][case % 2]
    ddf = read_tfrecord(root, filters=filters, blocksize=blocksize)
    assert opened == []
    found = ddf.compute()
    assert numbers(found) == wanted(mask)
    assert len(opened) == files
    assert len(ddf) == len(found)
    if files and blocksize is None:
        assert ddf.npartitions == files
    for column in ("list", "country"):
        assert len(ddf[column].compute()) == len(found)
    assert found.dtypes.equals(ddf.dtypes)


@pytest.mark.parametrize("value", [np.nan, None, pd.NA, pd.NaT])
def test_nan_selects_nulls_and_the_value_nan(tmp_path: Path, value: Any) -> None:
    """Files with statistics are left out only if they have neither. Of other types, NaN selects the nulls."""
    columns = {"x": [1.0, np.nan, None, 4.0], "word": ["a", None, "c", None], "n": [0, 1, 2, 3]}
    table = pa.table({name: pa.array(cells, from_pandas=False) for name, cells in columns.items()})
    to_tfrecord(table, tmp_path, lossy="allow", write_options={"max_rows_per_file": 1})
    found = {
        (name, operator): read_tfrecord(tmp_path, filters=[(name, operator, value)])["n"].compute().tolist()
        for name in ("x", "word")
        for operator in ("is", "is not")
    }
    missing = [1, 2] if value is np.nan else [2]
    assert found["x", "is"] == missing
    assert found["x", "is not"] == [n for n in range(4) if n not in missing]
    assert (found["word", "is"], found["word", "is not"]) == ([1, 3], [0, 2])


def test_statistics_of_a_feature_rule_out_no_payloads(tmp_path: Path) -> None:
    feature = pd.DataFrame({"record": pd.array([b"a", b"b"], pd.ArrowDtype(pa.binary()))})
    to_tfrecord(dd.from_pandas(feature, npartitions=1), tmp_path / "data")
    payloads = read_tfrecord(tmp_path / "data", record_type="bytes")
    wanted = payloads.compute()["record"][1]
    filtered = read_tfrecord(tmp_path / "data", record_type="bytes", filters=[("record", "==", wanted)])
    for ddf in (filtered, payloads[payloads["record"] == wanted]):
        assert ddf.compute()["record"].tolist() == [wanted]


def test_the_filters_are_part_of_the_name(root: Path) -> None:
    names = {read_tfrecord(root, filters=[("n", "<", bound)]).expr._name for bound in (33, 34, 34)}
    assert len(names) == 2
    assert len(read_tfrecord(root, filters=[])) == len(read_tfrecord(root, filters=None)) == ROWS


@cache
def _whole(root: Path, blocksize: str | None, backend: Any) -> pd.DataFrame:
    return read_tfrecord(root, blocksize=blocksize, dtype_backend=backend).compute()


# SIM300 would reverse comparisons whose left side is the value; these tests need them.
MASKS: dict[str, tuple[Any, int]] = {
    "equal": (lambda d: d.country == "PL", 4),
    "unequal": (lambda d: d.country != "PL", 8),
    "reflected": (lambda d: "PL" == d.country, 4),  # noqa: SIM300 - Python then calls the reflected operator
    "less": (lambda d: d.n < 10, 3),
    "greater, reflected": (lambda d: 29 < d.n, 3),  # noqa: SIM300 - Python then calls the reflected operator
    "float": (lambda d: d.n >= 29.5, 3),
    "and": (lambda d: (d.country == "US") & (d.n >= 20), 2),
    "or": (lambda d: (d.country == "US") | (d.country == "PL"), 8),
    "not": (lambda d: ~(d.country == "FR"), 8),
    "isin": (lambda d: d.country.isin(["US", "PL"]), 8),
    "isin of numbers": (lambda d: d.n.isin([3, 35]), 6),
    "not isin": (lambda d: ~d.country.isin(["US", "PL"]), 4),
    "between": (lambda d: d.n.between(5, 9), 3),
    "between, open": (lambda d: d.n.between(9, 20, inclusive="neither"), 3),
    "isna": (lambda d: d.country.isna(), 0),
    "notna": (lambda d: d.country.notnull(), 12),
    "nested": (lambda d: ~((d.country == "FR") | ((d.n < 20) & ~(d.country != "US"))), 6),
    "nothing": (lambda d: d.country == "DE", 0),
    "a scalar that is computed": (lambda d: d.n > d.n.max() - 3, 12),
    "another type": (lambda d: d.country == 3, 12),
    "what nobody knows": (lambda d: (d.country == "US") & (d.n * 2 > 30), 4),
    "twice": (lambda d: (d.country == "US") & (d.n < 20) & (d.n >= 10), 1),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_predicate_on_the_frame_opens_the_files_that_may_hold_its_rows(
    name: str, root: Path, opened: list[str]
) -> None:
    mask, files = MASKS[name]
    for blocksize in (None, "1 KiB" if len(name) % 2 else "128 MiB"):
        ddf = read_tfrecord(root, blocksize=blocksize, dtype_backend="pyarrow")
        whole = _whole(root, blocksize, "pyarrow")
        opened.clear()
        found = ddf[mask(ddf)].compute()
        assert len(set(opened)) == files
        pd.testing.assert_frame_equal(found, whole[mask(whole).fillna(False)], check_index_type=False)


USES: dict[str, tuple[Any, int]] = {
    "a column": (lambda d: d[d.country == "PL"].n.sum(), 4),
    "a filtered column": (lambda d: d.n[d.country == "PL"].sum(), 4),
    "loc": (lambda d: d.loc[d.country == "PL", ["n", "share"]], 4),
    "loc of rows": (lambda d: d.loc[d.country == "PL"], 4),
    "filter of filter": (lambda d: (lambda e: e[e.n < 10])(d[d.country == "PL"]), 1),
    "a new column": (lambda d: (lambda e: e[e.country == "PL"].w)(d.assign(w=d.n * 2)), 4),
    "a group": (lambda d: d[d.n < 10].groupby("country", sort=True).n.sum(), 3),
    "a column of a column": (lambda d: d[["n", "country"]][d.country == "PL"].n.max(), 4),
    "an index": (lambda d: d[d.country == "PL"].index.max(), 0),
    "another use": (lambda d: d[d.country == "PL"].n.sum() + d.n.max(), 12),
    "two filters": (lambda d: d[d.country == "PL"].n.sum() + d[d.country == "US"].n.max(), 8),
    "a filter and its opposite": (lambda d: d[d.n < 10].n.sum() + d[~(d.n < 10)].n.sum(), 12),
    "aligned": (lambda d: d[d.country == "PL"].n + d.n, 12),
}


@pytest.mark.parametrize("name", USES)
def test_files_are_left_out_only_where_all_rows_pass_a_filter(
    name: str, root: Path, opened: list[str]
) -> None:
    use, files = USES[name]
    ddf = read_tfrecord(root, blocksize=None if len(name) % 2 else "128 MiB")
    whole = dd.from_map(lambda n: ddf.get_partition(n).compute(), range(ddf.npartitions), meta=ddf._meta)
    expected = use(whole).compute()
    opened.clear()
    found = use(ddf).compute()
    assert len(set(opened)) == files
    if isinstance(found, pd.DataFrame | pd.Series):
        assert found.astype(object).equals(expected.astype(object))
        assert found.index.tolist() == expected.index.tolist()
    else:
        assert found == expected


def test_partitions_keep_their_numbers_when_files_are_left_out(root: Path, opened: list[str]) -> None:
    ddf = read_tfrecord(root, blocksize=None)
    some = ddf[ddf.country == "PL"]
    assert some.npartitions == some.optimize().npartitions == 12
    lengths = [len(part.compute()) for part in some.partitions]
    assert (sum(lengths), lengths.count(0)) == (10, 8)
    assert len(opened) == 4
    full, empty = (next(at for at in range(12) if bool(lengths[at]) is has) for has in (True, False))
    opened.clear()
    assert len(some.get_partition(empty).compute()) == 0
    assert opened == []
    few = ddf.partitions[[full, empty]]
    assert len(few[few.country == "PL"].compute()) == lengths[full]
    assert len(opened) == 1
    assert len(some.head(2, npartitions=-1)) == 2
    assert len(some.partitions[[empty, full]].tail(2)) == 2
    with pytest.warns(UserWarning, match="Insufficient elements"):
        assert len(some.partitions[[empty, full]].head(2)) == 0


DAYS = pd.DataFrame(
    {
        "day": pd.array([f"2020-01-0{n}" for n in (1, 2, 3)], pd.ArrowDtype(pa.string())),
        "n": [1, 2, 3],
        "m": [3, 2, 1],
        "yes": [True, False, True],
    }
)
TEXT_MASKS: dict[str, Any] = {
    "unequal": lambda d: d.day != "2020-01-02",
    "not equal": lambda d: ~(d.day == "2020-01-02"),
    "not one of": lambda d: ~d.day.isin(["2020-01-02"]),
}
OTHER_MASKS: dict[str, Any] = {
    "arithmetic": lambda d: d.n + 1 == 2,
    "arithmetic of two": lambda d: d.n - d.m == 2,
    "two columns": lambda d: d.n < d.m,
    "two columns, equal": lambda d: ~(d.n == d.m),
    "a column itself": lambda d: d.yes,
    "not a column": lambda d: ~d.yes,
    "a method": lambda d: d.n.abs() == 2,
    "a changed column": lambda d: d.assign(n=-d.n).n < -1,
    "a text method": lambda d: d.word.str.upper() == "2020-01-02",
    "float32": lambda d: d.n > np.float32(1.5),
    "unsigned": lambda d: d.n != np.uint64(2),
}


DAY_TYPES = [pa.date32(), pa.timestamp("us"), pa.timestamp("ns", "UTC")]


OWN_WAYS = [(name, type_) for name in TEXT_MASKS for type_ in DAY_TYPES]
OWN_WAYS += [(name, DAY_TYPES[at % 3]) for at, name in enumerate(OTHER_MASKS)]  # these do not use the days


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The days of each type, as a column and as a partition column."""
    root = tmp_path_factory.mktemp("days")
    seconds = pa.array(DAYS.day).cast(pa.date32()).cast(pa.timestamp("s"))
    for type_ in DAY_TYPES:
        frame = DAYS.assign(word=DAYS.day, day=pd.array(seconds.cast(type_), pd.ArrowDtype(type_)))
        for partition_on in (None, "day"):
            ddf = dd.from_pandas(frame, npartitions=3)
            to_tfrecord(ddf, root / f"{type_} {partition_on}", partition_on=partition_on)
    return root


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "type_"), OWN_WAYS, ids=[f"{name} {type_}" for name, type_ in OWN_WAYS])
@pytest.mark.parametrize("backend", ["pyarrow", "numpy"])
def test_what_pandas_compares_in_its_own_way_is_left_to_pandas(
    days: Path, type_: pa.DataType, backend: Any, name: str
) -> None:
    mask = (TEXT_MASKS | OTHER_MASKS)[name]
    for partition_on in (None, "day"):
        ddf = read_tfrecord(days / f"{type_} {partition_on}", dtype_backend=backend, blocksize=None)
        whole = ddf.compute()
        try:
            expected = whole[mask(whole)]
        except TypeError:  # pandas raises for this type, and Dask raises the same error
            with pytest.raises(TypeError):
                ddf[mask(ddf)].compute()
        else:
            pd.testing.assert_frame_equal(ddf[mask(ddf)].compute(), expected, check_index_type=False)


def test_directories_of_others_prune_as_well(tmp_path: Path, opened: list[str]) -> None:
    for year in (2023, 2024, 2025):
        (tmp_path / f"year={year}").mkdir()
        content = oracle.features_file([{"n": ("int64", [n])} for n in range(year, year + 3)])
        (tmp_path / f"year={year}" / "a.tfrecord").write_bytes(content)
    filtered = read_tfrecord(tmp_path, filters=[("year", ">", 2023), ("n", "!=", 2025)])
    ddf = read_tfrecord(tmp_path)
    opened.clear()
    assert filtered.compute()["n"].tolist() == [2024, 2026, 2026, 2027]
    assert len(opened) == 2
    assert ddf[ddf.year == 2024].n.sum().compute() == 3 * 2025
    assert len(opened) == 3
    assert ddf[ddf.year != 2024].n.count().compute() == 6
    assert len(opened) == 5


def columns(array: pa.Array) -> Iterator[tuple[Field, ColumnRange, Any]]:
    """Yield the column in pandas, in both backends, as values and as an index, with the range of each row."""
    ordered = pa.types.is_dictionary(array.type) and array.type.ordered
    field = Field("x", array.type, array.dictionary if ordered else None)
    schema = Schema((field,))
    missing = pa.concat_arrays([array, pa.nulls(1, array.type)])
    for values, complete in ((array, {"x"}), (missing, set())):
        plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        range_ = range_of_values(field, plain)
        for numpy in {(), tuple(arrow_to_pandas.numpy_names(schema, complete))}:
            dtypes = dict.fromkeys(numpy, arrow_to_pandas.NUMPY)
            found = arrow_to_pandas.to_pandas(pa.table({"x": values}), schema, dtypes=dtypes)["x"]
            yield field, range_, found
            if array.type != pa.float16() and not complete:  # pandas has no index of this type
                yield field, range_, pd.Index(found)


def disagreements(
    predicate: Predicate, range_: ColumnRange, ask: Callable[..., Any], *arguments: Any
) -> list[Any]:
    """The rows that the predicate skips although pandas selects them."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = ask(*arguments)
            answers = [None if answer is pd.NA or answer is None else bool(answer) for answer in found]
    except Exception:  # pandas raises for all rows, and so does the computation
        return []
    rows = FileRanges(np.ones(len(answers), bool), {"x": range_})
    possible = as_sets(possible_outcomes(predicate, rows))
    return [
        (row, answer)
        for row, (answer, of_row) in enumerate(zip(answers, possible, strict=True))
        if answer not in of_row
    ]


def decided(make: Callable[..., Predicate], *arguments: Any) -> Predicate | None:
    """The predicate, or None if it can skip nothing."""
    try:
        found = make(*arguments)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None if isinstance(found, Ambiguous) and not found.candidates else found


@pytest.mark.sampled
@pytest.mark.parametrize("name", COLUMNS)
def test_a_comparison_that_is_decided_is_pandas_own(name: str) -> None:
    for field, range_, column in columns(COLUMNS[name]):
        # An index compares values as a column does, so two operators are enough.
        symbols = ("==", "<") if isinstance(column, pd.Index) else tuple(OPERATORS)
        for value, symbol in sampled(list(itertools.product(VALUES, symbols)), len(name)):
            compare = OPERATORS[symbol]
            predicate = decided(compare_in_pandas, field, symbol, value)
            if predicate is not None:
                wrong = disagreements(predicate, range_, compare, column, value)
                assert not wrong, f"{column.dtype} {type(column).__name__} {symbol} {value!r}: {wrong}"


@pytest.mark.sampled
@pytest.mark.parametrize("name", COLUMNS)
def test_a_membership_that_is_decided_is_pandas_own(name: str) -> None:
    for field, range_, column in columns(COLUMNS[name]):
        known = [value for value in VALUES if decided(is_in_pandas, field, [value]) is not None]
        # Values of every two classes meet in one list, and so does each value with the next one.
        classes = {type(value): value for value in known}
        two = [*itertools.combinations(classes.values(), 2), *itertools.pairwise(known)]
        lists = [[], known, *([value] for value in VALUES), *map(list, two)]
        for values in lists:
            predicate = decided(is_in_pandas, field, values)
            if predicate is not None:
                wrong = disagreements(predicate, range_, column.isin, values)
                assert not wrong, f"{column.dtype} {type(column).__name__} isin {values!r}: {wrong}"


DECIDED: list[tuple[str, list[Any]]] = [
    ("int64", [0, -1, 2**63 - 1, 1.5, np.int64(1), np.uint8(1)]),
    ("float32", [0, 0.1, math.inf, np.float32(0.1)]),
    ("bool", [True, np.bool_(True)]),
    ("decimal", [1, Decimal("1.5")]),
    ("date32", [date(2020, 1, 2)]),
    ("time64", [time(12, 30)]),
    ("timestamp s", [moment(2020, 1, 2), np.datetime64("2020-01-02")]),
    ("timestamp us", [moment(2020, 1, 2), pd.Timestamp("2020-01-02"), np.datetime64("2020-01-02T01:02")]),
    ("timestamp us UTC", [moment(2020, 1, 2, tzinfo=UTC), pd.Timestamp("2020-01-02", tz="Europe/Warsaw")]),
    ("duration ms", [timedelta(1), pd.Timedelta("1s").as_unit("s"), np.timedelta64(1, "s")]),
    *((name, ["a"]) for name in ("string", "category of text", "ordered category")),
    ("binary", [b"a"]),
    ("category of int", [1]),
]


@pytest.mark.parametrize(("name", "values"), DECIDED, ids=[name for name, _ in DECIDED])
def test_plain_values_of_the_columns_own_type_are_decided(name: str, values: list[Any]) -> None:
    array = COLUMNS[name]
    field = Field("x", array.type, array.dictionary if pa.types.is_dictionary(array.type) else None)
    for value in values:
        assert decided(compare_in_pandas, field, "==", value) is not None, repr(value)


@pytest.mark.parametrize("name", ["date32", "timestamp s", "timestamp us UTC", "time64", "category of date"])
@pytest.mark.parametrize("value", ["2020-01-02", "12:30", np.str_("2020-01-02"), pa.scalar("2020-01-02")])
def test_text_against_times_is_left_to_pandas(name: str, value: Any) -> None:
    for symbol in OPERATORS:
        assert decided(compare_in_pandas, Field("x", COLUMNS[name].type), symbol, value) is None
    assert decided(is_in_pandas, Field("x", COLUMNS[name].type), [value]) is None


_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime.datetime(1970, 1, 1)


def plain(value: Any, type_: pa.DataType) -> Any:
    """The value to compare in Python: numbers and durations become fractions or floats."""
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if isinstance(value, str) and pa.types.is_temporal(type_):
        kind = date if pa.types.is_date(type_) else time if pa.types.is_time(type_) else datetime.datetime
        value = kind.fromisoformat(str(value))
    if isinstance(value, pd.Timestamp | pd.Timedelta):
        value = value.asm8
    if isinstance(value, np.datetime64 | np.timedelta64):
        unit = np.datetime_data(value.dtype)[0]
        unit = unit if unit in _SECOND else "s"
        name = "datetime64" if isinstance(value, np.datetime64) else "timedelta64"
        return Fraction(int(value.astype(f"{name}[{unit}]").astype(np.int64)), _SECOND[unit])
    if isinstance(value, date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, time())
    if isinstance(value, time):
        value = datetime.datetime.combine(_EPOCH, value)
    if isinstance(value, datetime.datetime):
        value = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        value = value - _EPOCH
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1), 10**6)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return Fraction(int(value))
    if isinstance(value, float | Decimal | Fraction | np.floating):
        return float(value) if not math.isfinite(value) else Fraction(*value.as_integer_ratio())
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def stored(array: pa.Array) -> list[Any]:
    """The values of the column as Python compares them; times become fractions of seconds."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    type_ = array.type
    if pa.types.is_date64(type_):
        return [Fraction(value.value, 1000) for value in array]
    if pa.types.is_date32(type_):
        return [Fraction(value.value * 86_400) for value in array]
    if pa.types.is_temporal(type_):
        return [Fraction(value.value, _SECOND[type_.unit]) for value in array]
    return [plain(value, type_) for value in array]


@pytest.mark.sampled
@pytest.mark.parametrize("name", COLUMNS)
def test_a_filter_gives_pythons_answer_or_an_error_of_ours(name: str) -> None:
    array = COLUMNS[name]
    order = array.dictionary if pa.types.is_dictionary(array.type) and array.type.ordered else None
    schema = Schema((Field("x", array.type, order),))
    names = [] if order is None else order.to_pylist()
    rows = stored(array) if order is None else list(range(len(array)))  # the order is that of the list
    accepted = 0
    tests = {**OPERATORS, "in": lambda row, other: row == other or (row != row and other != other)}
    for value, (symbol, compare) in itertools.product(VALUES, tests.items()):
        try:
            predicate = parse_filters([("x", symbol, [value] if symbol == "in" else value)], schema)
        except SchemaError:
            continue
        accepted += symbol != "in"
        if value is not None:
            other = plain(value, array.type)
            if order is not None:
                other = names.index(other) if other in names else -1
            expected = [compare(row, other) for row in rows]
            assert predicate.mask(pa.table({"x": array})).to_pylist() == expected, f"{symbol} {value!r}"
    assert (accepted == 0) == (name in ("list", "null"))  # columns without an order


NUMBERS = [np.float32(4), np.float16(4), np.longdouble(4), pa.scalar(4, pa.uint8()), Fraction(4), Decimal(4)]
ARRAYS = [np.array([4.0, 2.5], np.float32), pd.Series([4]), pa.array([4]), {4}]


@pytest.mark.parametrize(
    "value", [*NUMBERS, *ARRAYS], ids=lambda value: f"{type(value).__module__}.{type(value).__name__}"
)
def test_numpys_and_arrows_numbers_are_numbers(tmp_path: Path, value: Any) -> None:
    to_tfrecord(pa.table({"n": range(6)}), tmp_path)
    symbol = "in" if hasattr(value, "__len__") else "=="
    assert read_tfrecord(tmp_path, filters=[("n", symbol, value)]).compute()["n"].tolist() == [4]


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**53) - 1, 10**99 + 1, 10**310, -(10**310), Decimal("0.1"), Fraction(1, 3)]
)
def test_numbers_between_two_floats_are_compared_exactly(value: Any) -> None:
    floats = [0.1, 1 / 3, 2.0**53, 2.0**53 + 2, -(2.0**53), math.inf, -math.inf, 1e308]
    for symbol, compare in OPERATORS.items():
        predicate = parse_filters([("x", symbol, value)], Schema((Field("x", pa.float64()),)))
        found = predicate.mask(pa.table({"x": floats})).to_pylist()
        assert found == [compare(one, value) for one in floats], symbol
