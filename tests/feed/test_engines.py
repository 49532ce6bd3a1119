"""DuckDB, DataFusion, Polars and pyarrow give the rows that they give for the whole Arrow table.

Modules: feed.polars, feed.arrow_dataset.
"""

import importlib
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import datafusion
import duckdb
import engine_queries
import every_dtype
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from strides import EXAMPLES

import dask_tfrecord
from dask_tfrecord import Dataset, SchemaError, TFRecordError, open_dataset, to_tfrecord
from dask_tfrecord.dataset.read.task import Partition
from dask_tfrecord.feed.polars import scan_tfrecord

TABLE = engine_queries.table()

Answer = Callable[[engine_queries.Condition, list[str], str], pa.Table]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in 6 partitions of 12 or more partition directories each, compressed."""
    root = tmp_path_factory.mktemp("engines") / "data"
    ddf = dd.from_pandas(TABLE.to_pandas(types_mapper=pd.ArrowDtype), npartitions=6)
    to_tfrecord(ddf, root, partition_on=["p", "q"], compression="gzip", lossy="allow")
    return root


def _duckdb(source: Any) -> Answer:

    def answer(condition: engine_queries.Condition, columns: list[str], tail: str) -> pa.Table:
        where = engine_queries.sql(condition, engine_queries.duckdb_literal)
        connection = duckdb.connect()
        connection.register("rows", source)
        return connection.sql(f"select {', '.join(columns)} from rows where {where} {tail}").to_arrow_table()

    return answer


def _datafusion(source: Any) -> Answer:
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


@pytest.mark.parametrize("engine", ENGINES)
def test_a_random_query_has_the_rows_that_the_engine_finds_in_the_table(engine: str, root: Path) -> None:
    expected = ENGINES[engine](TABLE)
    found = ENGINES[engine](root if engine == "polars" else open_dataset(root))
    different = []
    for seed in range(EXAMPLES):
        chance = random.Random(seed)
        condition = engine_queries.condition(chance)
        columns, tail = chance.sample(TABLE.column_names, chance.randint(1, 5)), ""
        match chance.choice(["rows", "rows", "top", "count"]):
            case "count":
                columns = ["count(*)"]
            case "top":
                columns, tail = list(dict.fromkeys(["k", *columns])), "order by k desc limit 5"
        query = condition, columns, tail
        rows, wanted = (sorted(_listed(answer(*query))) for answer in (found, expected))
        if rows != wanted:
            different.append((seed, query, rows, wanted))
    assert not different, f"{len(different)} of {EXAMPLES}: {different[:3]}"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files, which are too large to be read together."""
    root = tmp_path_factory.mktemp("large") / "data"
    frame = pd.DataFrame({"k": range(64), "text": ["x" * 300_000] * 64, "p": ["a", "b"] * 32})
    to_tfrecord(dd.from_pandas(frame, npartitions=4), root, partition_on="p")
    return root


def _count(root: Path, engine: str, sql: str) -> int:
    """Run a query, and return the number of rows of the result."""
    if engine == "duckdb":
        connection = duckdb.connect()
        connection.register("rows", open_dataset(root))
        return len(connection.sql(sql).fetchall())
    if engine == "datafusion":
        context = datafusion.SessionContext()
        context.register_dataset("rows", open_dataset(root))
        return sum(batch.num_rows for batch in context.sql(sql).collect())
    return pl.SQLContext(rows=scan_tfrecord(root)).execute(sql).collect().height


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
    opened.clear()
    assert _count(large, engine, "select * from rows limit 3") == 3
    assert len({*opened}) <= (4 if engine == "datafusion" else 1)  # DataFusion starts pieces in parallel
    with pytest.raises(Exception, match="nothing"):
        _count(large, engine, "select nothing from rows")


def test_a_count_decodes_nothing_and_opens_no_file(
    large: Path, tmp_path: Path, opened: list[str], decoded: set[str]
) -> None:
    dataset = open_dataset(large)
    assert dataset.count_rows() == 64
    assert dataset.count_rows(filter=pc.field("p") == "a") == 32
    for engine in ("datafusion", "polars"):
        assert _count(large, engine, "select count(*) from rows") == 1
    assert not opened
    shutil.copytree(large, tmp_path / "data", ignore=shutil.ignore_patterns("_tfrecord"))
    assert open_dataset(tmp_path / "data").count_rows() == 64
    assert not decoded


def test_the_methods_of_a_dataset_work_as_in_pyarrow(root: Path) -> None:
    dataset = open_dataset(root)
    whole = dataset.to_table()
    same = pads.dataset(whole)
    assert dataset.schema == whole.schema
    assert len(dataset.files) == len({*dataset.files["path"]}) > 48
    computed = {"next": pc.field("k") + 1, "one": pc.scalar(1)}
    for columns, filter in ((None, pc.field("k") < 250), (["s", "k"], None), (computed, pc.field("k") < 250)):
        query = {"columns": columns, "filter": filter}
        for method, *arguments in (("to_table",), ("head", 7), ("take", [5, 0, 5, 200])):
            found, expected = (getattr(one, method)(*arguments, **query) for one in (dataset, same))
            assert _listed(found) == _listed(expected), method
        assert dataset.scanner(**query).projected_schema == same.scanner(**query).projected_schema
    assert dataset.to_table(columns=[]).num_rows == dataset.head(9999, columns=[]).num_rows == len(whole)
    assert dataset.head(0).num_rows == dataset.take([]).num_rows == 0
    part, expected = (one.filter(pc.field("k") < 250).filter(pc.field("q") == 1) for one in (dataset, same))
    assert _listed(part.to_table()) == _listed(expected.to_table())
    assert part.count_rows(filter=pc.field("p") == "x") == expected.count_rows(filter=pc.field("p") == "x")
    assert _listed(pickle.loads(pickle.dumps(part)).to_table()) == _listed(expected.to_table())
    sizes = [batch.num_rows for batch in dataset.to_batches(batch_size=10)]
    assert (sum(sizes), max(sizes)) == (len(whole), 10)
    assert _listed(pa.table(dataset)) == _listed(whole)
    with pytest.raises(IndexError, match="out of bounds"):
        dataset.take([600])


def test_fragments_hold_the_rows_of_a_dataset(root: Path) -> None:
    dataset = open_dataset(root, filters=[("k", "<", 400)])
    parts = pa.concat_tables([one.to_table() for one in dataset.get_fragments()])
    assert _listed(parts) == _listed(dataset.to_table())
    filter = pc.field("g") > 20.0
    counts = [one.count_rows(filter=filter) for one in dataset.get_fragments(filter)]
    assert sum(counts) == dataset.count_rows(filter=filter)


def test_filters_of_the_dataset_and_of_the_query_are_both_applied(root: Path) -> None:
    dataset = open_dataset(root, filters=[("k", "<", 100)], columns=["k", "q"])
    assert dataset.schema.names == ["k", "q"]
    assert dataset.count_rows(filter=pc.field("q") == 1) == 25
    assert sorted(dataset.to_table(filter=pc.field("q") == 1)["k"].to_pylist()) == [*range(1, 100, 4)]


REFUSED: dict[str, Callable[[Dataset], Any]] = {
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
    with pytest.raises((TFRecordError, FileNotFoundError), match="Dataset"):
        REFUSED[method](open_dataset(root))


@pytest.mark.parametrize(
    ("error", "message", "query"),
    [
        (SchemaError, "no column is named 'nothing'; there are 'k'", {"columns": ["nothing"]}),
        (SchemaError, r"No match for FieldRef.Name\(nothing\)", {"filter": pc.field("nothing") == 1}),
        (
            SchemaError,
            "columns= cannot be computed: No match for .*nope",
            {"columns": {"y": pc.field("nope")}},
        ),
        (SchemaError, "cannot be computed: Failed to parse", {"columns": {"y": pc.field("s").cast("int64")}}),
        (TFRecordError, "columns= needs an expression for the column 'y', not 'k'", {"columns": {"y": "k"}}),
        (TFRecordError, "batch_size=0 is not a positive integer", {"batch_size": 0}),
        (TypeError, "filters", {"filters": pc.field("k") == 1}),
    ],
)
def test_a_wrong_query_raises_an_error_that_names_the_column(
    root: Path, error: type[Exception], message: str, query: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        open_dataset(root).to_table(**query)


@pytest.mark.parametrize("engine", SQL_ENGINES)
def test_the_error_of_a_damaged_file_reaches_the_user(engine: str, tmp_path: Path) -> None:
    ddf = dd.from_dict({"x": [*range(100)]}, npartitions=2)
    to_tfrecord(ddf, tmp_path / "data")
    part = sorted((tmp_path / "data").glob("part-*"))[1]
    content = bytearray(part.read_bytes())
    content[-20] ^= 1
    part.write_bytes(content)
    with pytest.raises(BaseException, match=part.name):  # a panic of Rust is no Exception
        _count(tmp_path / "data", engine, "select sum(x) from rows")


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
    lazy = scan_tfrecord(root)
    whole = lazy.collect().lazy()
    different = []
    for seed in range(EXAMPLES):
        steps = _steps(random.Random(seed))
        found, expected = lazy, whole
        for name, arguments in steps:
            found, expected = getattr(found, name)(*arguments), getattr(expected, name)(*arguments)
        if not found.collect().equals(expected.collect()):
            different.append((seed, [*map(str, steps)]))
    assert not different, f"{len(different)} of {EXAMPLES}: {different[:3]}"


def test_a_slice_counts_the_rows_that_a_later_filter_removes(root: Path) -> None:
    lazy = scan_tfrecord(root)
    whole = lazy.collect()
    late = pl.col("k") >= 300
    for start, count in ((0, 3), (5, 0), (100, 300), (595, 10), (-10, 4), (-700, 200), (700, 1)):
        part = lazy.slice(start, count)
        assert part.collect().equals(whole.slice(start, count))
        assert part.select(pl.len()).collect().item() == whole.slice(start, count).height
        assert part.filter(late).collect().equals(whole.slice(start, count).filter(late))
    assert lazy.filter(late).head(3).collect().equals(whole.filter(late).head(3))
    assert lazy.with_row_index().tail(2).collect().equals(whole.with_row_index().tail(2))
    assert scan_tfrecord(root, columns=["q", "k"]).collect().equals(whole.select("q", "k"))


def test_a_filter_that_arrow_cannot_express_keeps_the_rows_of_polars(root: Path) -> None:
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
    ddf = dd.from_pandas(every_dtype.table().to_pandas(types_mapper=pd.ArrowDtype), npartitions=3)
    to_tfrecord(ddf, tmp_path / "data", lossy="allow")
    whole = pa.table(open_dataset(tmp_path / "data"))
    assert _listed(pa.table(dask_tfrecord.feed.iter_batches(tmp_path / "data", 5))) == _listed(whole)
    assert scan_tfrecord(tmp_path / "data").collect().equals(pl.DataFrame(whole))


def test_a_type_that_polars_lacks_is_named_with_its_column(tmp_path: Path) -> None:
    type_ = pa.decimal256(50, 2)
    frame = pd.DataFrame({"x": [1, 2], "price": pd.array([Decimal("1.25"), None], pd.ArrowDtype(type_))})
    to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data", lossy="allow")
    with pytest.raises(SchemaError, match=r"feature 'price': .*decimal256\(50, 2\); pass columns=\[\"x\"\]"):
        scan_tfrecord(tmp_path / "data")
    assert scan_tfrecord(tmp_path / "data", columns=["x"]).collect()["x"].to_list() == [1, 2]


def test_an_older_polars_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars.io.external_reader", None)
    monkeypatch.delitem(sys.modules, "dask_tfrecord.feed.polars", raising=False)
    with pytest.raises(ImportError, match=r"needs polars 2\.1 or newer, but polars .* is installed"):
        importlib.import_module("dask_tfrecord.feed.polars")


def test_the_package_imports_no_engine() -> None:
    code = "import sys, dask_tfrecord; print(sys.modules.keys() & {'polars', 'duckdb', 'datafusion'})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
