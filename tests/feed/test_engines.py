"""DuckDB, DataFusion, Polars and pyarrow give the rows that they give for the whole Arrow table.

Modules: feed.polars, feed.arrow_dataset.
"""

import importlib
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import engine_queries
import every_dtype
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordDataset, TFRecordError
from dask_tfrecord.dataset.read.read_task import Partition

CASES = int(os.environ.get("DASK_TFRECORD_EXAMPLES", "20"))
TABLE = engine_queries.table()

Answer = Callable[[engine_queries.Condition, list[str], str], pa.Table]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in 6 partitions of 12 or more partition directories each, compressed."""
    root = tmp_path_factory.mktemp("engines") / "data"
    frame = TABLE.to_pandas(types_mapper=pd.ArrowDtype)
    ddf = dd.from_pandas(frame, npartitions=6)
    dask_tfrecord.to_tfrecord(ddf, root, partition_on=["p", "q"], compression="gzip", lossy="allow")
    return root


def _duckdb(source: Any) -> Answer:
    duckdb = pytest.importorskip("duckdb")

    def answer(condition: engine_queries.Condition, columns: list[str], tail: str) -> pa.Table:
        where = engine_queries.sql(condition, engine_queries.duckdb_literal)
        connection = duckdb.connect()
        connection.register("rows", source)
        return connection.sql(f"select {', '.join(columns)} from rows where {where} {tail}").to_arrow_table()

    return answer


def _datafusion(source: Any) -> Answer:
    datafusion = pytest.importorskip("datafusion")
    context = datafusion.SessionContext()
    if isinstance(source, pa.Table):
        context.register_record_batches("rows", [source.to_batches()])
    else:
        context.register_dataset("rows", source)

    def answer(condition: engine_queries.Condition, columns: list[str], tail: str) -> pa.Table:
        where = engine_queries.sql(condition, engine_queries.datafusion_literal)
        found = context.sql(f"select {', '.join(columns)} from rows where {where} {tail}")
        return pa.Table.from_batches(found.collect(), found.schema())

    return answer


def _polars(source: Any) -> Answer:
    pl = pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    lazy = pl.DataFrame(source).lazy() if isinstance(source, pa.Table) else scan_tfrecord(source)

    def answer(condition: engine_queries.Condition, columns: list[str], tail: str) -> pa.Table:
        found = lazy.filter(engine_queries.polars(condition))
        if columns == ["count(*)"]:
            return found.select(pl.len()).collect().to_arrow()
        found = found.select(columns)
        return (found.sort("k", descending=True).head(5) if tail else found).collect().to_arrow()

    return answer


def _pyarrow(source: Any) -> Answer:
    source = pads.dataset(source) if isinstance(source, pa.Table) else source

    def answer(condition: engine_queries.Condition, columns: list[str], tail: str) -> pa.Table:
        filter = engine_queries.arrow(condition, TABLE.schema)
        if columns == ["count(*)"]:
            return pa.table({"count": [source.count_rows(filter=filter)]})
        found = source.to_table(columns=columns, filter=filter)
        return found.sort_by([("k", "descending")])[:5] if tail else found

    return answer


ENGINES = {"duckdb": _duckdb, "datafusion": _datafusion, "polars": _polars, "pyarrow": _pyarrow}


def _listed(table: pa.Table) -> list[str]:
    """The rows as texts, in which NaN equals NaN."""
    return [*map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True))]


def _rows(table: pa.Table) -> Counter[str]:
    return Counter(_listed(table))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_random_query_has_the_rows_that_the_engine_finds_in_the_table(engine: str, root: Path) -> None:
    expected = ENGINES[engine](TABLE)
    found = ENGINES[engine](root if engine == "polars" else TFRecordDataset(root))
    different = []
    for seed in range(CASES):
        chance = random.Random(seed)
        condition = engine_queries.condition(chance)
        columns = chance.sample(TABLE.column_names, chance.randint(1, 5))
        kind = chance.choice(["rows", "rows", "top", "count"])
        columns = ["count(*)"] if kind == "count" else columns
        tail = ""
        if kind == "top":
            columns, tail = list(dict.fromkeys(["k", *columns])), "order by k desc limit 5"
        query = condition, columns, tail
        rows = _rows(found(*query))
        if rows != _rows(expected(*query)):
            different.append((seed, query, rows, _rows(expected(*query))))
    assert not different, f"{len(different)} of {CASES}: {different[:3]}"


# -- What is read --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files, which are too large to be read together."""
    root = tmp_path_factory.mktemp("large") / "data"
    text = ["x" * 300_000] * 8
    frame = pd.DataFrame({"k": range(64), "text": text * 8, "p": ["a", "b"] * 32})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=4), root, partition_on="p")
    return root


def _count(root: Path, engine: str, sql: str) -> int:
    """Run a query, and return the number of rows of the result."""
    if engine == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        connection = duckdb.connect()
        connection.register("rows", TFRecordDataset(root))
        return len(connection.sql(sql).fetchall())
    if engine == "datafusion":
        context = pytest.importorskip("datafusion").SessionContext()
        context.register_dataset("rows", TFRecordDataset(root))
        return sum(batch.num_rows for batch in context.sql(sql).collect())
    if engine == "polars":
        pl = pytest.importorskip("polars")
        from dask_tfrecord.feed.polars import scan_tfrecord

        return pl.SQLContext(rows=scan_tfrecord(root)).execute(sql).collect().height
    raise AssertionError(engine)


SQL_ENGINES = ["duckdb", "datafusion", "polars"]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the columns that the test decodes."""
    found: set[str] = set()
    original = Partition.stream

    def stream(self: Partition, *args: Any) -> Any:
        found.update(self.stored_columns.names if self.splits else ())
        return original(self, *args)

    monkeypatch.setattr(Partition, "stream", stream)
    return found


@pytest.mark.parametrize("engine", SQL_ENGINES)
def test_a_query_decodes_its_columns_of_the_files_that_may_match(
    engine: str, large: Path, opened: list[str], decoded: set[str]
) -> None:
    assert _count(large, engine, "select k from rows where p = 'b' and k < 16") == 8
    assert decoded == {"k"}
    assert len({*opened}) == 1


@pytest.mark.parametrize("engine", SQL_ENGINES)
def test_a_limit_stops_reading(engine: str, large: Path, opened: list[str]) -> None:
    assert _count(large, engine, "select * from rows limit 3") == 3
    assert len({*opened}) <= (4 if engine == "datafusion" else 1)  # DataFusion starts pieces in parallel


def test_a_count_decodes_nothing_and_opens_no_file(large: Path, opened: list[str], decoded: set[str]) -> None:
    dataset = TFRecordDataset(large)
    assert dataset.count_rows() == 64
    assert dataset.count_rows(filter=pc.field("p") == "a") == 32
    for engine in ("datafusion", "polars"):
        assert _count(large, engine, "select count(*) from rows") == 1
    assert not opened
    assert not decoded


def test_a_count_of_other_files_finds_the_records_without_decoding(
    large: Path, tmp_path: Path, decoded: set[str]
) -> None:
    shutil.copytree(large, tmp_path / "data", ignore=shutil.ignore_patterns("_tfrecord"))
    assert TFRecordDataset(tmp_path / "data").count_rows() == 64
    assert not decoded


# -- pyarrow -------------------------------------------------------------------------------------------------


def test_the_methods_of_a_dataset_work_as_in_pyarrow(root: Path) -> None:
    dataset = TFRecordDataset(root)
    whole = dataset.to_table()
    same = pads.dataset(whole)
    assert dataset.schema == whole.schema
    assert len(dataset.files) == len({*dataset.files}) > 48
    computed = {"next": pc.field("k") + 1, "one": pc.scalar(1)}
    for columns in (None, ["s", "k"], computed):
        for filter in (None, pc.field("k") < 250):
            query = {"columns": columns, "filter": filter}
            assert _listed(dataset.to_table(**query)) == _listed(same.to_table(**query))
            assert _listed(dataset.head(7, **query)) == _listed(same.head(7, **query))
            rows = [5, 0, 5, 200]
            assert _listed(dataset.take(rows, **query)) == _listed(same.take(rows, **query))
            assert dataset.scanner(**query).projected_schema == same.scanner(**query).projected_schema
    assert dataset.to_table(columns=[]).num_rows == dataset.head(9999, columns=[]).num_rows == len(whole)
    assert dataset.head(0).num_rows == dataset.take([]).num_rows == 0
    part = dataset.filter(pc.field("k") < 250).filter(pc.field("q") == 1)
    expected = same.filter(pc.field("k") < 250).filter(pc.field("q") == 1)
    assert _listed(part.to_table()) == _listed(expected.to_table())
    assert part.count_rows(filter=pc.field("p") == "x") == expected.count_rows(filter=pc.field("p") == "x")
    assert sum(batch.num_rows for batch in dataset.to_batches(batch_size=10)) == len(whole)
    assert {batch.num_rows <= 10 for batch in dataset.to_batches(batch_size=10)} == {True}
    assert _listed(pickle.loads(pickle.dumps(part)).to_table()) == _listed(expected.to_table())
    assert _listed(pa.table(dataset)) == _listed(pa.table(dataset)) == _listed(whole)
    with pytest.raises(IndexError, match="out of bounds"):
        dataset.take([600])


def test_fragments_hold_the_rows_of_a_dataset(root: Path) -> None:
    dataset = TFRecordDataset(root, filters=[("k", "<", 400)])
    parts = pa.concat_tables([one.to_table() for one in dataset.get_fragments()])
    assert _listed(parts) == _listed(dataset.to_table())
    filter = pc.field("g") > 20.0
    counts = [one.count_rows(filter=filter) for one in dataset.get_fragments(filter)]
    assert sum(counts) == dataset.count_rows(filter=filter)


def test_filters_of_the_dataset_and_of_the_query_are_both_applied(root: Path) -> None:
    dataset = TFRecordDataset(root, filters=[("k", "<", 100)], columns=["k", "q"])
    assert dataset.schema.names == ["k", "q"]
    assert dataset.count_rows(filter=pc.field("q") == 1) == 25
    assert sorted(dataset.to_table(filter=pc.field("q") == 1)["k"].to_pylist()) == [*range(1, 100, 4)]


REFUSED: dict[str, Callable[[TFRecordDataset], Any]] = {
    "sort_by": lambda dataset: dataset.sort_by("k"),
    "join": lambda dataset: dataset.join(dataset, "k"),
    "join_asof": lambda dataset: dataset.join_asof(dataset, "k", "p", 1),
    "replace_schema": lambda dataset: dataset.replace_schema(dataset.schema),
    "union": lambda dataset: pads.dataset([dataset]).to_table(),
    "Scanner": lambda dataset: pads.Scanner.from_dataset(dataset).to_table(),
    "fragment": lambda dataset: next(dataset.get_fragments()).scanner(pa.schema({"k": pa.int8()})),
}


@pytest.mark.parametrize("method", REFUSED)
def test_what_arrow_itself_would_read_raises(method: str, root: Path) -> None:
    with pytest.raises((TFRecordError, FileNotFoundError), match="TFRecordDataset"):
        REFUSED[method](TFRecordDataset(root))


def test_a_wrong_query_raises_an_error_that_names_the_column(root: Path) -> None:
    dataset = TFRecordDataset(root)
    with pytest.raises(SchemaError, match="no column is named 'nothing'; there are 'k'"):
        dataset.to_table(columns=["nothing"])
    with pytest.raises(SchemaError, match=r"No match for FieldRef.Name\(nothing\)"):
        dataset.to_table(filter=pc.field("nothing") == 1)
    with pytest.raises(SchemaError, match=r"columns= cannot be computed: No match for FieldRef.Name\(nope\)"):
        dataset.to_table(columns={"y": pc.field("nope")})
    with pytest.raises(SchemaError, match=r"columns= cannot be computed: Failed to parse"):
        dataset.to_table(columns={"y": pc.field("s").cast("int64")})
    with pytest.raises(TFRecordError, match="columns= needs an expression for the column 'y', not 'k'"):
        dataset.to_table(columns={"y": "k"})
    with pytest.raises(TFRecordError, match="batch_size=0 is not a positive integer"):
        dataset.to_table(batch_size=0)
    assert dataset.to_table(columns={"k": pc.field(0)}) == dataset.to_table(columns=["k"])
    with pytest.raises(TypeError, match="filters"):
        dataset.scanner(filters=pc.field("k") == 1)


# -- Errors in the engines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", SQL_ENGINES)
def test_a_missing_column_is_named(engine: str, root: Path) -> None:
    with pytest.raises(Exception, match="nothing"):
        _count(root, engine, "select nothing from rows")


@pytest.mark.parametrize("engine", SQL_ENGINES)
def test_the_error_of_a_damaged_file_reaches_the_user(engine: str, tmp_path: Path) -> None:
    ddf = dd.from_dict({"x": [*range(100)]}, npartitions=2)
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "data")
    part = sorted((tmp_path / "data").glob("part-*"))[1]
    content = bytearray(part.read_bytes())
    content[-20] ^= 1
    part.write_bytes(content)
    with pytest.raises(BaseException, match=part.name):  # a panic of Rust is no Exception
        _count(tmp_path / "data", engine, "select sum(x) from rows")


# -- Polars --------------------------------------------------------------------------------------------------


def _steps(chance: random.Random) -> list[tuple[str, Any]]:
    """Random steps of a lazy query: filters, slices, heads, tails and row numbers in any order."""
    found: list[tuple[str, Any]] = []
    for _ in range(chance.randint(2, 4)):
        count = chance.randint(0, engine_queries.ROWS)
        match chance.choice(["filter", "filter", "slice", "head", "tail", "with_row_index"]):
            case "filter":
                found.append(("filter", (engine_queries.polars(engine_queries.condition(chance)),)))
            case "slice":
                found.append(("slice", (chance.randint(-engine_queries.ROWS, engine_queries.ROWS), count)))
            case "with_row_index":
                found.append(("with_row_index", (f"row{len(found)}",)))
            case name:
                found.append((name, (count,)))
    return found


def test_random_filters_and_slices_of_a_lazy_frame_have_the_rows_of_polars(root: Path) -> None:
    pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    lazy = scan_tfrecord(root)
    whole = lazy.collect().lazy()
    different = []
    for seed in range(CASES):
        steps = _steps(random.Random(seed))
        found, expected = lazy, whole
        for name, arguments in steps:
            found, expected = getattr(found, name)(*arguments), getattr(expected, name)(*arguments)
        if not found.collect().equals(expected.collect()):
            different.append((seed, [*map(str, steps)]))
    assert not different, f"{len(different)} of {CASES}: {different[:3]}"


def test_a_slice_counts_the_rows_that_a_later_filter_removes(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    dask_tfrecord.to_tfrecord(dd.from_dict({"x": [*range(40)]}, npartitions=4), tmp_path / "data")
    lazy = scan_tfrecord(tmp_path / "data")
    assert lazy.head(15).filter(pl.col("x") >= 30).collect()["x"].to_list() == []
    assert lazy.slice(12, 10).filter(pl.col("x") == 15).collect()["x"].to_list() == [15]
    assert lazy.filter(pl.col("x") >= 30).head(3).collect()["x"].to_list() == [30, 31, 32]


def test_slices_and_tails_of_a_lazy_frame(root: Path) -> None:
    pl = pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    lazy = scan_tfrecord(root)
    whole = lazy.collect()
    for start, count in ((0, 3), (5, 0), (100, 300), (595, 10), (-10, 4), (-700, 200), (700, 1)):
        assert lazy.slice(start, count).collect().equals(whole.slice(start, count))
        assert lazy.slice(start, count).select(pl.len()).collect().item() == whole.slice(start, count).height
    assert lazy.with_row_index().tail(2).collect().equals(whole.with_row_index().tail(2))
    assert scan_tfrecord(root, columns=["q", "k"]).collect().equals(whole.select("q", "k"))


def test_a_filter_that_arrow_cannot_express_keeps_the_rows_of_polars(root: Path) -> None:
    pl = pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    whole = scan_tfrecord(root).collect()
    filters = [
        pl.col("k").map_elements(lambda k: str(k)[-1] in "37", return_dtype=pl.Boolean),
        pl.col("s").str.len_bytes() > 1,
        pl.col("n").ne_missing(2) & (pl.col("q") == 1),
        pl.col("n").eq_missing(pl.lit(None)),
        pl.col("k") == pl.col("k").max(),
        pl.col("n").is_in([1, None], nulls_equal=True),
        (pl.col("flag") ^ (pl.col("k") < 300)).fill_null(True),
    ]
    for filter in filters:
        assert scan_tfrecord(root).filter(filter).collect().equals(whole.filter(filter)), filter


def test_every_type_reaches_polars_and_arrow_streams(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    ddf = dd.from_pandas(every_dtype.table().to_pandas(types_mapper=pd.ArrowDtype), npartitions=3)
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "data", lossy="allow")
    whole = pa.table(TFRecordDataset(tmp_path / "data"))
    assert _listed(pa.table(dask_tfrecord.iter_batches(tmp_path / "data", 5))) == _listed(whole)
    assert scan_tfrecord(tmp_path / "data").collect().equals(pl.DataFrame(whole))


def test_a_type_that_polars_lacks_is_named_with_its_column(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    type_ = pa.decimal256(50, 2)
    frame = pd.DataFrame({"x": [1, 2], "price": pd.array([Decimal("1.25"), None], pd.ArrowDtype(type_))})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data", lossy="allow")
    with pytest.raises(SchemaError, match=r"feature 'price': .*decimal256\(50, 2\); pass columns=\[\"x\"\]"):
        scan_tfrecord(tmp_path / "data")
    assert scan_tfrecord(tmp_path / "data", columns=["x"]).collect()["x"].to_list() == [1, 2]


def test_an_older_polars_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars")
    monkeypatch.setitem(sys.modules, "polars.io.external_reader", None)
    monkeypatch.delitem(sys.modules, "dask_tfrecord.feed.polars", raising=False)
    with pytest.raises(ImportError, match=r"needs polars 2\.1 or newer, but polars .* is installed"):
        importlib.import_module("dask_tfrecord.feed.polars")


def test_the_package_imports_no_engine() -> None:
    code = "import sys, dask_tfrecord; print(sys.modules.keys() & {'polars', 'duckdb', 'datafusion'})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
