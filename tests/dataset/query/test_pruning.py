"""`filters=` and predicates on the frame select the rows of pandas and Python, and open few files.

Modules: dataset.query.predicates, dataset.query.filters, expr.rewrites.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from comparables import OPERATORS
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord import SchemaError, index, read_tfrecord, to_tfrecord

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


def test_a_length_is_known_where_filters_are_certain(root: Path, opened: list[str]) -> None:
    assert len(read_tfrecord(root, filters=[("country", "in", ["PL", "US"])])) == 20
    assert len(read_tfrecord(root, filters=[("n", "<", 10)])) == 10
    assert len(read_tfrecord(root, filters=[("n", "<", 100)])) == 40
    assert opened == []
    assert len(read_tfrecord(root, filters=[("n", "<", 12)], blocksize=None)) == 12
    assert len(opened) == 2  # 10 and 11 are in files that also hold other numbers


def test_rows_of_foreign_files_are_filtered(tmp_path: Path, opened: list[str]) -> None:
    rows = [
        {"n": ("int64", [n]), "x": ("int64", [n * 2])} if n % 3 else {"x": ("int64", [1])} for n in range(12)
    ]
    for number in range(3):
        (tmp_path / f"{number}.tfrecord").write_bytes(oracle.features_file(rows[4 * number : 4 * number + 4]))
    ddf = read_tfrecord(tmp_path, filters=[("n", ">", 4)], columns=["x"])
    assert ddf.compute()["x"].tolist() == [n * 2 for n in range(5, 12) if n % 3]
    assert list(ddf.columns) == ["x"]
    assert len(read_tfrecord(tmp_path, filters=[("n", "not in", [1, 2])])) == 10
    assert len(read_tfrecord(tmp_path, filters=[("n", "is", None)])) == 4


def test_filters_may_look_at_columns_that_are_not_loaded(root: Path) -> None:
    ddf = read_tfrecord(root, filters=[("n", "<", 3), ("word", "is not", None)], columns=["country", "share"])
    assert list(ddf.compute().columns) == ["country", "share"]
    assert ddf.compute()["share"].tolist() == [2 / 8, 1 / 8]  # FR before PL
    assert len(read_tfrecord(root, filters=[("n", "<", 3)], columns=[]).compute()) == 3


def test_a_wrong_filter_is_refused_at_once(root: Path) -> None:
    with pytest.raises(SchemaError, match=r"no column is named 'm'; there are 'n'"):
        read_tfrecord(root, filters=[("m", "==", 1)])
    with pytest.raises(SchemaError, match=r"feature 'country'.*not a string"):
        read_tfrecord(root, filters=[("country", "==", b"PL")])


def test_statistics_of_another_type_rule_nothing_out(tmp_path: Path) -> None:
    days = pd.DataFrame({"x": pd.array(["2024-01-01", "2024-01-02"], pd.ArrowDtype(pa.string()))})
    days["x"] = days["x"].astype(pd.ArrowDtype(pa.date32()))
    to_tfrecord(dd.from_pandas(days, npartitions=1), tmp_path / "data")
    ddf = read_tfrecord(tmp_path / "data", schema={"x": pa.int64()}, filters=[("x", ">", 19_000)])
    assert len(ddf.compute()) == 2


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


# --- predicates on the frame -----------------------------------------------------------------------------


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
        ddf = read_tfrecord(root, blocksize=blocksize)
        whole = _whole(root, blocksize, None)
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


def test_several_results_read_what_any_of_them_needs(root: Path, opened: list[str]) -> None:
    ddf = read_tfrecord(root)
    few, many = dask.compute(ddf[ddf.n < 5].n.sum(), ddf[ddf.country == "PL"].n.count())
    assert (few, many) == (10, 10)
    assert len(opened) == len(set(opened)) == 6


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


def test_the_length_of_a_filter_by_partition_opens_nothing(root: Path, opened: list[str]) -> None:
    ddf = read_tfrecord(root)
    assert len(ddf[ddf.country == "US"]) == 10
    assert len(ddf[ddf.country.isin(["US", "FR"])]) == 30
    assert opened == []
    assert len(ddf[(ddf.country == "US") & (ddf.n < 5)]) == 1
    assert len(opened) == 1


def test_filters_and_predicates_together(root: Path, opened: list[str]) -> None:
    ddf = read_tfrecord(root, filters=[("country", "in", ["PL", "US"]), ("n", ">", 3)])
    assert numbers(ddf[ddf.n < 12].compute()) == [n for n in range(4, 12) if n % 4 in (1, 3)]
    assert len(opened) == 3


LITERALS = st.integers(-1, 41) | st.sampled_from([0.5, 9.0, 9.5, 2.0**60])
WORDS = st.sampled_from(["w01", "w13", "w2", "zz", "", "w39"])
COUNTRIES = st.sampled_from(["FR", "PL", "US", "DE", "G"])
COLUMNS = {"n": LITERALS, "share": LITERALS | st.just(0.1), "word": WORDS, "country": COUNTRIES}


def _leaf(name: str) -> st.SearchStrategy[Any]:
    values = COLUMNS[name]
    return (
        st.builds(
            lambda op, value: lambda d: op(d[name], value), st.sampled_from([*OPERATORS.values()]), values
        )
        | st.builds(lambda found: lambda d: d[name].isin(found), st.lists(values.filter(bool), max_size=3))
        | st.sampled_from([lambda d: d[name].isna(), lambda d: d[name].notnull()])
        | st.builds(lambda low, high: lambda d: d[name].between(low, high), values, values)
    )


MASK = st.recursive(
    st.sampled_from(sorted(COLUMNS)).flatmap(_leaf),
    lambda inner: (
        st.builds(lambda one, other: lambda d: one(d) & other(d), inner, inner)
        | st.builds(lambda one, other: lambda d: one(d) | other(d), inner, inner)
        | st.builds(lambda one: lambda d: ~one(d), inner)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(("blocksize", "backend"), [(None, "pyarrow"), ("128 MiB", "numpy")])
@given(mask=MASK)
def test_no_predicate_loses_a_row(blocksize: str | None, backend: Any, root: Path, mask: Any) -> None:
    ddf = read_tfrecord(root, blocksize=blocksize, dtype_backend=backend)
    whole = _whole(root, blocksize, backend)
    expected = whole[mask(whole).astype("boolean").fillna(False)]
    found = ddf[mask(ddf)]
    pd.testing.assert_frame_equal(found.compute(), expected, check_index_type=False)
    assert len(found) == len(expected)


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


FILES: list[list[float | None]] = [
    [-0.0],
    [0.0],
    [-0.0, 0.0],
    [math.nan],
    [math.nan, 1.0],
    [math.inf],
    [-math.inf, 5.0],
    [math.inf, -math.inf],
    [None],
    [None, math.nan],
    [-1.0, 1.0],
]
VALUES = [value for values in FILES for value in values]
COMPARED = [0.0, -0.0, 1.0, math.inf, -math.inf]
LISTS: list[list[float]] = [[0.0], [-0.0], [math.inf], [0.0, 1.0], [math.nan], [math.nan, -0.0], []]


# Pairs of a type and of what excludes files. Halves have no `isin`, in pandas or in Arrow.
FLOATS = [
    ("float16", "statistics"),
    ("float16", "partitions"),
    ("float32", "partitions"),
    ("float32", "indexed"),
    ("float64", "statistics"),
    ("float64", "indexed"),
]


@pytest.fixture(scope="module", params=FLOATS, ids=" ".join)
def floats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the floats, in files with statistics or in a directory for each value."""
    alias, kind = request.param
    type_ = pa.type_for_alias(alias)
    values = pd.array(pa.array(VALUES, pa.float64()).cast(type_), pd.ArrowDtype(type_))
    frame = pd.DataFrame({"n": range(len(VALUES)), "x": values})
    root = tmp_path_factory.mktemp("floats") / "data"
    ends = [sum(map(len, FILES[:at])) for at in range(len(FILES) + 1)]
    ddf = dd.from_map(lambda at: frame.iloc[ends[at] : ends[at + 1]], range(len(FILES)), meta=frame.iloc[:0])
    with dask.config.set(scheduler="sync"):
        to_tfrecord(ddf, root, partition_on=["x"] if kind == "partitions" else None, lossy="allow")
        if kind == "indexed":
            (root / "_tfrecord").rename(root / "_old")
            index(root, schema={"x": type_})
    return root


@pytest.mark.parametrize("symbol", OPERATORS)
def test_filters_compare_as_python_does(floats: Path, symbol: str) -> None:
    for value in COMPARED:
        expected = [n for n, x in enumerate(VALUES) if x is not None and OPERATORS[symbol](x, value)]
        found = read_tfrecord(floats, filters=[("x", symbol, value)]).compute()
        assert numbers(found) == expected, value


@pytest.mark.parametrize("values", LISTS, ids=str)
def test_filters_find_the_values_of_a_list(floats: Path, values: list[float]) -> None:
    nan = any(value != value for value in values)
    found = [n for n, x in enumerate(VALUES) if x is not None and (x in values or (nan and x != x))]
    assert numbers(read_tfrecord(floats, filters=[("x", "in", values)]).compute()) == found
    rest = sorted({*range(len(VALUES))} - {*found})
    assert numbers(read_tfrecord(floats, filters=[("x", "not in", values)]).compute()) == rest


@pytest.mark.parametrize(("negated", "backend"), [(False, "numpy"), (True, "pyarrow")])
def test_masks_are_those_of_pandas(floats: Path, negated: bool, backend: Any) -> None:
    ddf = read_tfrecord(floats, dtype_backend=backend, blocksize=None)
    if str(ddf["x"].dtype) in ("halffloat[pyarrow]", "float16"):
        pytest.skip("pandas and Arrow have no isin for halves")
    whole = ddf.compute()
    masks: dict[str, Any] = {
        f"{symbol} {value}": lambda d, c=compare, v=value: c(d["x"], v)
        for symbol, compare in OPERATORS.items()
        for value in [*COMPARED, math.nan]
    }
    masks |= {f"isin {values}": lambda d, v=values: d["x"].isin(v) for values in LISTS}
    masks |= {"isna": lambda d: d["x"].isna(), "between": lambda d: d["x"].between(-0.0, 0.0)}
    for name, mask in masks.items():
        expected = whole["n"][(~mask(whole) if negated else mask(whole)).astype("boolean").fillna(False)]
        found = ddf[~mask(ddf) if negated else mask(ddf)]
        assert numbers(found.compute()) == sorted(expected), name


def test_floats_that_cannot_match_are_not_opened(floats: Path, opened: list[str]) -> None:
    assert len(read_tfrecord(floats, filters=[("x", ">", 5.0)], blocksize=None).compute()) == 2
    # Two files hold infinity. A file of NaN only has no bounds, so it may match.
    assert len(opened) <= 5
    opened.clear()
    assert len(read_tfrecord(floats, filters=[("x", "==", 0.0)], blocksize=None).compute()) == 4
    assert len(opened) <= 8  # the files with zeros, with values around zero, and with NaN
