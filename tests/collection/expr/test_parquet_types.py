"""The types of object columns that Dask reads from Parquet: from the Parquet schema, or from the objects.

Modules: collection.expr.lineage, collection.expr.write_expression.
"""

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_tfrecord import SchemaError, open_dataset, to_tfrecord
from dask_tfrecord.collection.expr import lineage
from dask_tfrecord.collection.expr.write_expression import CollectionRows

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The inplace keyword"),  # of Dask's own call of pandas
]

DAY = dt.date(2020, 1, 1)
LISTS: list[tuple[pa.DataType, list[Any]]] = [
    # the type of an item, and items of which no two are equal
    *((type_, [0.5, 2.0]) for type_ in (pa.float32(), pa.float64())),
    *((type_, [1, 0]) for type_ in (pa.int8(), pa.uint32(), pa.int64(), pa.uint64(), pa.bool_())),
    *((type_, ["a", "1"]) for type_ in (pa.string(), pa.large_string())),
    *((type_, [b"a", b"\xff"]) for type_ in (pa.binary(), pa.large_binary())),
    (pa.date32(), [DAY, DAY + dt.timedelta(1)]),
    (pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * 2),
    (pa.decimal128(5, 2), [decimal.Decimal("1.50"), decimal.Decimal("100.25")]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": 2}]),
]
TYPES = [
    *((pa.list_(type_), [[items[0]], items, []]) for type_, items in LISTS),
    *(
        (pa.list_(pa.field("i", type_, nullable=False)), [[items[0]], items, []])
        for type_, items in LISTS[:5]
    ),
    *((pa.list_(pa.list_(type_)), [[items, [items[1]]], [[], items], []]) for type_, items in LISTS[::2]),
    *((pa.large_list(type_), [items, []]) for type_, items in LISTS[:3]),
    *((pa.list_(type_, 2), [items, items[::-1]]) for type_, items in LISTS[:3]),
    *((type_, items) for type_, items in LISTS if not pa.types.is_dictionary(type_)),
    (pa.binary(1), [b"a", b"\xff"]),
]

# Rows for each file: values, with nulls among the rows, in the lists, and in the first file only.
ROWS: dict[str, Callable[[list[Any]], list[list[Any]]]] = {
    "values": lambda values: [values, values],
    "null rows": lambda values: [[None, *values], [*values, None]],
    "nothing first": lambda values: [[None, None], values],
    "null items": lambda values: [[with_null(value) for value in values], values],
    "null items later": lambda values: [values, [with_null(value) for value in values]],
}


def with_null(value: Any) -> Any:
    return [*value, None] if isinstance(value, list) else value


def parquet(path: Path, type_: pa.DataType, rows: list[list[Any]]) -> bool:
    """Write one file for each list of rows. Return False if the type, or this pyarrow, does not hold them."""
    path.mkdir()
    for number, values in enumerate(rows):
        try:
            table = pa.table({"x": pa.array(values, type_), "id": pa.array(range(len(values)))})
            pq.write_table(table, path / f"{number}.parquet")
            pq.read_table(path / f"{number}.parquet")  # pyarrow 21 cannot read a null of a fixed-size list
        except pa.ArrowInvalid:  # a null where the type has none, or a list of another length
            return False
    return True


def planned(ddf: dd.DataFrame, path: Path) -> Any:
    """The planned schema, of which the written records are a function, or the message of the error."""
    try:
        lazy = to_tfrecord(ddf, path, lossy="allow", record_type="sequence_example", compute=False)
    except SchemaError as error:
        return str(error)
    return lazy.expr.run.columns


@pytest.mark.sampled
@pytest.mark.parametrize(("type_", "values"), TYPES, ids=lambda given: str(given)[:40])
def test_the_parquet_schema_gives_the_type_that_the_objects_show(
    tmp_path: Path, type_: pa.DataType, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = False
    for number, (name, rows_of) in enumerate(ROWS.items()):
        source = tmp_path / f"{number}"
        if not parquet(source, type_, rows_of(values)):
            continue
        ddf = dd.read_parquet(source, filesystem=["fsspec", "arrow"][number % 2])
        known |= bool(lineage.lost_types(ddf))
        fast = planned(ddf, tmp_path / "out")
        with monkeypatch.context() as patch:
            patch.setattr(lineage, "lost_types", lambda ddf: {})
            assert fast == planned(ddf, tmp_path / "out"), name
    item = type_.value_type if hasattr(type_, "value_type") else type_
    is_plain_list = pa.types.is_list(type_) and item in (pa.float32(), pa.string(), pa.binary())
    assert known or not is_plain_list


QUERIES: dict[str, tuple[Callable[[dd.DataFrame], dd.DataFrame], bool]] = {
    "itself": (lambda ddf: ddf, True),
    "columns": (lambda ddf: ddf[["x"]], True),
    "a filter": (lambda ddf: ddf[ddf["id"] > 0], True),
    "another column": (lambda ddf: ddf.assign(y=ddf["id"] + 1), True),
    "repartitioned": (lambda ddf: ddf.repartition(npartitions=1), True),
    "renamed": (lambda ddf: ddf.rename(columns={"x": "id", "id": "x"}), False),
    "replaced": (lambda ddf: ddf.assign(x=ddf["id"]), False),
    "mapped": (lambda ddf: ddf.map_partitions(lambda frame: frame.assign(x=[b"a"] * len(frame))), False),
    "mapped elements": (lambda ddf: ddf.assign(x=ddf["x"].apply(lambda one: one, meta=("x", object))), False),
    "concatenated": (lambda ddf: dd.concat([ddf, ddf]), False),
    "persisted": (lambda ddf: ddf.persist(), False),
}


@pytest.mark.parametrize("name", QUERIES)
def test_only_unchanged_columns_take_the_type_of_the_file(
    tmp_path: Path, name: str, monkeypatch: Any
) -> None:
    query, is_known = QUERIES[name]
    assert parquet(tmp_path / "in", pa.list_(pa.float32()), [[[0.5], None], [[1.0], []]])
    ddf = query(dd.read_parquet(tmp_path / "in"))
    assert (lineage.lost_types(ddf).get("x") == pa.list_(pa.float32())) is is_known
    fast = planned(ddf, tmp_path / "out")
    monkeypatch.setattr(lineage, "lost_types", lambda ddf: {})
    assert fast == planned(ddf, tmp_path / "out")


@pytest.mark.parametrize(
    "options",
    [
        {"arrow_to_pandas": {"date_as_object": False}, "filesystem": "arrow"},
        {"dataset": {"partitioning": None}},
    ],
)
def test_options_of_the_conversion_mean_the_slow_way(tmp_path: Path, options: Any) -> None:
    assert parquet(tmp_path / "in", pa.list_(pa.float32()), [[[0.5]]])
    assert lineage.lost_types(dd.read_parquet(tmp_path / "in", **options)) == {}


def test_planning_computes_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parquet(tmp_path / "in", pa.list_(pa.string()), [[["a"]], [["b"]]])

    def refuse(self: CollectionRows, names: list[str]) -> Any:
        raise AssertionError("a partition is computed")
        yield

    monkeypatch.setattr(CollectionRows, "_computed", refuse)
    with dask.config.set({"dataframe.convert-string": True}):
        lazy = to_tfrecord(dd.read_parquet(tmp_path / "in"), tmp_path / "out", compute=False)
    lazy.compute()
    assert open_dataset(tmp_path / "out").schema.field("x").type == pa.list_(pa.string())
