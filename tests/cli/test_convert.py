"""`convert`: the rows, their types, and what happens to the destination, on the local disk and on S3.

Modules: cli.convert.
"""

import datetime
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from conftest import Run
from servers import s3_server

import dask_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

TABLE = pa.table(
    {
        "i": pa.array([1, None, 3, 2**60]),
        "f": pa.array([0.5, None, float("nan"), -1.0], pa.float32()),
        "s": pa.array(['a,"b"\n', "", None, "NA"]),
        "b": pa.array([True, None, False, True]),
        "d": pa.array([datetime.date(2024, 1, 31), None, datetime.date(1960, 1, 1), datetime.date(1, 1, 1)]),
        "t": pa.array([1, None, 3, 4], pa.timestamp("us", "UTC")),
        "l": pa.array([[1], [], None, [2, 3]]),
        "y": pa.array([b"\x00", b"", None, b"abc"]),
    }
)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return _written(TABLE, tmp_path)


def _written(table: pa.Table, tmp_path: Path) -> Path:
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2, sort=False), tmp_path / "data")
    return tmp_path / "data"


def _table(path: Path, columns: list[str] | None = None) -> pa.Table:
    frame = dask_tfrecord.read_tfrecord(path, columns=columns, dtype_backend="pyarrow").compute(
        scheduler="sync"
    )
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()


def _same(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema == expected.schema
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # NaN differs from itself


def test_parquet_gives_back_every_value_and_type(run: Run, dataset: Path, tmp_path: Path) -> None:
    run("convert", dataset, tmp_path / "p.parquet")
    _same(pq.read_table(tmp_path / "p.parquet").replace_schema_metadata(), TABLE)
    run("convert", tmp_path / "p.parquet", tmp_path / "back")
    _same(_table(tmp_path / "back"), TABLE)


def test_columnar_takes_a_word_or_names_and_an_append_with_auto_follows_them(
    run: Run, dataset: Path, tmp_path: Path
) -> None:
    settings = {"auto": "auto", "scalars": "scalars", "i,s": ("i", "s"), "never": "never"}
    for text, stored in settings.items():
        run("convert", dataset, tmp_path / text, "--columnar", text)
        run("convert", dataset, tmp_path / text, "--append", "--columnar", "auto")
        assert Snapshot.open(tmp_path / text).columnar == stored
    assert "--columnar" in run("convert", dataset, tmp_path / "c.csv", "--columnar", "never", code=2).stderr


@pytest.mark.parametrize(
    ("suffix", "compression"), [("jsonl", None), ("csv", None), ("jsonl", "gzip"), ("csv", "xz")]
)
def test_text_keeps_values(
    run: Run, dataset: Path, tmp_path: Path, suffix: str, compression: str | None
) -> None:
    names = ["i", "b", "t", *(["d"] if suffix == "csv" else ["s", "l"])]
    text = tmp_path / f"text.{suffix}"
    codec = ["--compression", compression] if compression else []
    run("convert", dataset, text, "--columns", ",".join(names), *codec)
    types = ["--type", "t=timestamp[ns, UTC]", *(["--type", "d=date32"] if suffix == "csv" else [])]
    run("convert", text, tmp_path / "back", *types)
    expected = TABLE.select(names)
    expected = expected.set_column(2, "t", expected["t"].cast(pa.timestamp("ns", "UTC")))
    _same(_table(tmp_path / "back", names), expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--type", "code=string"], {"country": ["NA", "C\nH"], "x": ["NA", "1"], "code": ["007", "1"]}),
        (["--null", "NA"], {"country": [None, "C\nH"], "x": [None, 1], "code": [7, 1]}),
    ],
)
def test_texts_of_csv_stay_texts_unless_they_are_named_as_null(
    run: Run, tmp_path: Path, options: list[str], expected: dict[str, Any]
) -> None:
    (tmp_path / "a.csv").write_text('country,x,code\nNA,NA,007\n"C\nH",1,1\n')
    run("convert", tmp_path / "a.csv", tmp_path / "out", *options)
    assert _table(tmp_path / "out").to_pydict() == expected


@pytest.mark.parametrize("fill", ["", "007\n1.0\nTrue\n1e5\n"])
def test_text_of_a_later_csv_file_stays_text(run: Run, tmp_path: Path, fill: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\nx,1.5\n")
    (tmp_path / "b.csv").write_text("b,a\n" + "".join(f"2,{line}\n" for line in fill.splitlines()))
    run("convert", tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "out", "--lossy", "allow")
    expected = [("x", 1.5), *((text, 2.0) for text in fill.splitlines())]
    assert [tuple(row.values()) for row in _table(tmp_path / "out").to_pylist()] == expected


@pytest.mark.parametrize(
    ("suffix", "first", "second", "problem", "expected"),
    [
        ("csv", "a\n1\n", "a\n1.5\n", "values of double, but of int64", [1.0, 1.5]),
        ("csv", "a\n1\n", "a\nTrue\n", "values of bool, but of int64", ["1", "True"]),
        ("csv", "a\n1\n", "a\nx\n", "values of string, but of int64", ["1", "x"]),
        ("csv", 'a\n""\n', "a\nx\n", "values of string, but of null", [None, "x"]),
        ("csv", "a\n0.5\n", "a\n9007199254740993\n", "9007199254740993 not in range", None),
        ("csv", "a\n1\n", "a\n18446744073709551616\n", "too large", None),
        ("csv", "a,b\n1,2\n", "a,b\n1,2,3\n", "more values than the header has names", None),
        ("csv", "a\n1\n", "b\n1\n", "the columns are b, but a in the first file", None),
        ("jsonl", '{"a": 1}', '{"a": "x"}', "changed from number to string", None),
        ("jsonl", '{"a": 1}', '{"a": 1, "b": 1}', "the columns are a, b, but a in the first file", None),
        ("jsonl", '{"a": 1}', "x", "Invalid value", None),
    ],
)
def test_a_later_file_that_differs_raises_with_the_type_that_reads_both(
    run: Run, tmp_path: Path, suffix: str, first: str, second: str, problem: str, expected: list[Any] | None
) -> None:
    paths = [tmp_path / f"1.{suffix}", tmp_path / f"2.{suffix}"]
    for path, text in zip(paths, (first, second), strict=True):
        path.write_text(text)
    error = run("convert", *paths, tmp_path / "out", "--to", "parquet", code=1).stderr
    assert f"{paths[1]}: " in error
    assert problem in error
    advice = re.findall(r"pass (--type \S+)$", error, re.MULTILINE)
    assert len(advice) == (expected is not None)
    if expected is not None:
        run("convert", *paths, tmp_path / "both", "--to", "parquet", *advice[0].split())
        assert pq.read_table(tmp_path / "both")["a"].to_pylist() == expected


_TIMES = """\
id,at,day,zoned,exact,clock,text,nothing
1,2026-01-28T23:16:49,2026-01-28,2026-01-28T23:16:49Z,2026-01-28 23:16:49.5,10:11:12,2026-01-28,
2,,,,,,word,
"""


@pytest.mark.parametrize("target", ["out", "out.parquet"])
def test_dates_and_times_of_csv_that_stay_text_cause_a_warning_with_options_that_convert_them(
    run: Run, tmp_path: Path, target: str
) -> None:
    (tmp_path / "a.csv").write_text(_TIMES)
    (line,) = run("convert", tmp_path / "a.csv", tmp_path / target).stderr.splitlines()
    text, _, options = line.removesuffix(" to convert them").partition("; pass ")
    assert text == "Warning: the dates and times in 'at', 'day', 'zoned', 'exact', 'clock' stay text"
    assert run("convert", tmp_path / "a.csv", tmp_path / "typed", *shlex.split(options)).stderr == ""
    table = _table(tmp_path / "typed")
    assert table.select(["at", "day", "zoned", "exact", "clock"]).slice(0, 1).to_pylist() == [
        {
            "at": datetime.datetime(2026, 1, 28, 23, 16, 49),
            "day": datetime.date(2026, 1, 28),
            "zoned": datetime.datetime(2026, 1, 28, 23, 16, 49, tzinfo=datetime.UTC),
            "exact": pd.Timestamp("2026-01-28 23:16:49.5"),
            "clock": datetime.time(10, 11, 12),
        }
    ]
    assert table["at"].null_count == table["clock"].null_count == 1
    as_text = [
        word for name in ("at", "day", "zoned", "exact", "clock") for word in ("--type", f"{name}=string")
    ]
    assert run("convert", tmp_path / "a.csv", tmp_path / "text", *as_text).stderr == ""
    assert run("convert", tmp_path / "a.csv", tmp_path / "b", "--columns", "id,text").stderr == ""
    assert run("convert", tmp_path / "a.csv", tmp_path / "b.csv").stderr == ""


@pytest.mark.parametrize(
    ("suffix", "column", "kind"), [("csv", "l", "lists"), ("csv", "y", "bytes"), ("jsonl", "y", "bytes")]
)
def test_values_that_a_text_cannot_hold_are_refused(
    run: Run, dataset: Path, tmp_path: Path, suffix: str, column: str, kind: str
) -> None:
    out = tmp_path / f"out.{suffix}"
    error = run("convert", dataset, out, "--columns", f"i,{column}", code=1).stderr
    assert f"{suffix} cannot hold {kind}" in error
    assert repr(column) in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("suffix", "where"), [("parquet", "i > 1"), ("csv", "not (i > 1 or b is None)"), ("jsonl", "i is None")]
)
def test_where_selects_the_same_rows(
    run: Run, dataset: Path, tmp_path: Path, suffix: str, where: str
) -> None:
    run("convert", dataset, tmp_path / f"in.{suffix}", "--columns", "i,f,b")
    for source, name in ((dataset, "one"), (tmp_path / f"in.{suffix}", "two")):
        run("convert", source, tmp_path / name, "--where", where, "--columns", "i,b")
    _same(_table(tmp_path / "two"), _table(tmp_path / "one"))


def test_where_needs_only_the_types_of_its_columns(run: Run, tmp_path: Path) -> None:
    other = pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"a": [1, 2], "b": other}), tmp_path / "in.parquet")
    source = tmp_path / "in.parquet"
    run("convert", source, tmp_path / "out.parquet", "--where", "a == 2")
    assert pq.read_table(tmp_path / "out.parquet")["a"].to_pylist() == [2]
    error = run("convert", source, tmp_path / "none", "--where", "c == 1", code=1).stderr
    assert "no column is named 'c'; there are a, b" in error


def test_a_float_of_a_text_is_rounded_with_a_warning_or_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n0.1\n")
    (line,) = run("convert", tmp_path / "a.csv", tmp_path / "out").stderr.splitlines()
    assert line.startswith("Warning: TFRecord has 32-bit floats only, so the values of 'x' are rounded")
    assert run("convert", tmp_path / "a.csv", tmp_path / "out2", "--lossy", "allow").stderr == ""
    run("convert", tmp_path / "a.csv", tmp_path / "out3", "--lossy", "raise", code=1)
    assert not dask_tfrecord.exists(tmp_path / "out3")


def test_partition_directories(run: Run, dataset: Path, tmp_path: Path) -> None:
    run("convert", dataset, tmp_path / "p.parquet", "--partition-on", "b", "--columns", "i,b")
    names = {file.parent.name for file in (tmp_path / "p.parquet").rglob("*.parquet")}
    assert names == {"b=True", "b=False", "b=__HIVE_DEFAULT_PARTITION__"}
    source = tmp_path / "p.parquet/b=True"
    run("convert", source, tmp_path / "back", "--from", "parquet", "--partition-on", "i")
    assert sorted(file.parent.name for file in (tmp_path / "back").glob("i=*/*")) == ["i=1", f"i={2**60}"]


def test_no_file_of_another_format_is_written_behind_a_link(run: Run, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    dask_tfrecord.to_tfrecord(pa.table({"_day": [0, 1], "n": [1, 2]}), tmp_path / "days")
    for path in (mine, theirs):
        path.mkdir()
    (mine / "_day=1").symlink_to(theirs)
    options = ("--to", "parquet", "--partition-on", "_day")
    assert "choose a new directory" in run("convert", tmp_path / "days", mine, *options, code=1).stderr
    assert not [*theirs.iterdir()]
    assert [path.name for path in mine.iterdir()] == ["_day=1"]


def test_the_configuration_gives_the_defaults_of_options(run: Run, dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n0.1\n")
    keys = {"compression": "gzip", "lossy": "raise", "blocksize": None}
    with dask.config.set({f"dask-tfrecord.{name}": value for name, value in keys.items()}):
        run("convert", dataset, tmp_path / "site")
        run("convert", dataset, tmp_path / "own", "--compression", "none", "--npartitions", 1)
        assert "'x'" in run("convert", tmp_path / "a.csv", tmp_path / "refused", code=1).stderr
        run("convert", tmp_path / "a.csv", tmp_path / "rounded", "--lossy", "allow")
        run("convert", dataset, tmp_path / "site.parquet")  # the codec of TFRecord is not that of Parquet
    site, own = (Snapshot.open(tmp_path / name) for name in ("site", "own"))
    assert (site.compression, len(site.files)) == ("gzip", 2)
    assert (own.compression, len(own.files)) == (None, 1)


def test_a_dry_run_writes_nothing_and_counts_replaced_files(run: Run, dataset: Path, tmp_path: Path) -> None:
    def plan(source: Path, *options: str) -> Any:
        return json.loads(run("convert", source, tmp_path / "out", "--dry-run", "--json", *options).stdout)

    def size(path: Path) -> int:
        return sum(file.stat().st_size for file in path.glob("part-*"))

    found = plan(dataset, "--partition-on", "s")
    assert not (tmp_path / "out").exists()
    assert (found["source_files"], found["partitions"], found["mode"]) == (2, 1, "create")
    assert (found["source_bytes"], found["schema"]["t"]) == (size(dataset), "timestamp[us, tz=UTC]")
    found = plan(dataset / "*.tfrecord", "--overwrite")
    assert (found["mode"], found["replaced_files"]) == ("overwrite", 0)
    run("convert", dataset, tmp_path / "out", "--npartitions", 2)
    found = plan(dataset, "--overwrite")
    assert (found["replaced_files"], found["replaced_bytes"]) == (2, size(tmp_path / "out"))
    done = json.loads(run("convert", dataset, tmp_path / "out", "--append", "--json").stdout)
    assert (done["files"], done["rows"]) == (1, 4)  # of this write alone


def test_an_index_becomes_columns_where_the_format_has_none(run: Run, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=pd.Index([7, 8], name="key"))
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data")
    run("convert", tmp_path / "data", tmp_path / "out.jsonl")
    (file,) = (tmp_path / "out.jsonl").iterdir()
    assert file.read_text() == '{"key":7,"x":1}\n{"key":8,"x":2}\n'
    frame.to_parquet(tmp_path / "in.parquet")
    run("convert", tmp_path / "in.parquet", tmp_path / "out.csv")
    (file,) = (tmp_path / "out.csv").iterdir()
    assert sorted(file.read_text().splitlines()[0].split(",")) == ["key", "x"]


@pytest.mark.parametrize(
    "options",
    [
        "--to csv --shuffle --seed 1",
        "--to csv --overwrite-partitions",
        "--to jsonl --append",
        "--to jsonl --partition-on b",
        "--to csv --compression lz4",
        "--append --overwrite",
        "--null NA",
        "--npartitions 0",
    ],
)
def test_options_that_do_not_fit_are_errors_of_usage(run: Run, dataset: Path, options: str) -> None:
    run("convert", dataset, dataset.parent / "out", *options.split(), code=2)
    assert not (dataset.parent / "out").exists()


def test_the_format_of_the_source_is_stated_if_no_suffix_shows_it(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "ba":
        (folder / f"{name}.csv").write_text(f"x\n{name}\n")
    run("convert", folder, tmp_path / "out", code=1)
    in_order = [folder / "b.csv", folder / "a.csv"]
    for sources, expected in (([folder, "--from", "csv"], ["a", "b"]), (in_order, ["b", "a"])):
        run("convert", *sources, tmp_path / "out", "--overwrite")
        assert _table(tmp_path / "out")["x"].to_pylist() == expected


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "tfrecord"])
def test_a_source_without_files_is_named(run: Run, tmp_path: Path, format: str) -> None:
    for name in ("nothing", "*.nothing"):
        error = run("convert", tmp_path / name, tmp_path / "out", "--from", format, code=1).stderr
        assert error.count("\n") == 1
        assert "nothing" in error


def test_a_source_is_not_overwritten_and_has_no_descriptions(run: Run, dataset: Path, tmp_path: Path) -> None:
    assert "reads from" in run("convert", dataset, dataset, "--overwrite", code=1).stderr
    (dataset / "features.json").write_text("{}")
    run("convert", dataset, tmp_path / "out", "--no-snapshot")
    assert _table(tmp_path / "out").num_rows == _table(dataset).num_rows == 4


@pytest.mark.parametrize("name", ["out.parqet", "out.jsonl.gzz", "out.gz"])
def test_an_unknown_suffix_needs_a_stated_format(run: Run, dataset: Path, tmp_path: Path, name: str) -> None:
    assert "--to" in run("convert", dataset, tmp_path / name, code=2).stderr
    assert not (tmp_path / name).exists()
    run("convert", dataset, tmp_path / name, "--to", "tfrecord")
    _same(_table(tmp_path / name), TABLE)


STORED = pa.table({"i": [1, None, 3, 2**60], "s": ['a,"b"', "ä", None, "NA"], "key": ["x", "y", "x", "ü"]})


@pytest.fixture(scope="module")
def s3() -> Iterator[s3fs.S3FileSystem]:
    with s3_server() as options:
        fs = s3fs.S3FileSystem(**options)
        fs.call_s3("create_bucket", Bucket="bucket")
        yield fs


@pytest.fixture
def options(s3: s3fs.S3FileSystem) -> list[str]:
    """The options of the command line that reach the store."""
    settings = [f"{name}={s3.storage_options[name]}" for name in ("key", "secret", "endpoint_url")]
    settings.append(f"client_kwargs={json.dumps(s3.storage_options['client_kwargs'])}")
    return [part for setting in settings for part in ("--storage-options", setting)]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "tfrecord"])
def test_every_value_comes_back_from_a_store_and_data_there_is_refused(
    run: Run, tmp_path: Path, s3: s3fs.S3FileSystem, options: list[str], suffix: str
) -> None:
    dataset, root = _written(STORED, tmp_path), f"bucket/there.{suffix}"
    plan = json.loads(run("convert", dataset, f"s3://{root}", "--dry-run", "--json", *options).stdout)
    assert (plan["target"], plan["mode"], plan["source_files"]) == (suffix, "create", 2)
    assert s3.find(root) == []
    arguments = ["convert", dataset, f"s3://{root}", "--json", *options]
    with dask.config.set({"dask-tfrecord.blocksize": None}):
        done = json.loads(run(*arguments).stdout)
    names = [name for name in s3.find(root) if "_" not in name.split("/")[2]]
    assert done["files"] == len(names) == 2
    assert sum(s3.size(name) for name in names) == done["bytes"]
    run("convert", f"s3://{root}", tmp_path / "back", *options)
    assert _table(tmp_path / "back").to_pylist() == STORED.to_pylist()
    error = run(*arguments, code=1).stderr
    assert "choose a" in error
    assert "hunter2" not in error
    if suffix in ("parquet", "tfrecord"):
        keys = f"bucket/keys.{suffix}"
        run("convert", dataset, f"s3://{keys}", "--partition-on", "key", *options)
        found = {name.split("/")[2] for name in s3.find(keys) if "key=" in name}
        assert found == {"key=x", "key=y", "key=ü"}


def test_a_dataset_on_a_store_is_added_to_or_replaced(run: Run, tmp_path: Path, options: list[str]) -> None:
    dataset, root = _written(STORED, tmp_path), "s3://bucket/changed"
    run("convert", dataset, root, *options)
    run("convert", dataset, root, "--append", *options)
    run("convert", root, tmp_path / "twice", *options)
    assert _table(tmp_path / "twice").to_pylist() == STORED.to_pylist() * 2
    run("convert", dataset, root, "--overwrite", "--where", "i == 3", *options)
    run("convert", root, tmp_path / "one", *options)
    assert _table(tmp_path / "one").to_pylist() == STORED.slice(2, 1).to_pylist()


EMPTY = {
    "e.tfrecord": b"",
    "f.tfrecord": oracle.features_file([{}] * 3),  # records without features
    "e.csv": b"",
    "n.csv": b"\n",
    "e.jsonl": b"",
    "n.jsonl": b"\n\n",
}
TARGETS = ["tfrecord", "parquet", "csv", "jsonl"]


@pytest.mark.parametrize("to", TARGETS)
def test_a_source_without_values_needs_the_types_of_its_columns(run: Run, tmp_path: Path, to: str) -> None:
    for name, content in EMPTY.items():
        (tmp_path / name).write_bytes(content)
        out = tmp_path / f"{name}.out"
        error = run("convert", tmp_path / name, out, "--to", to, code=1).stderr
        assert f"{name}: there are no values, so the columns are not known; " in error
        assert not out.exists()
        if "--type" in error:
            rows = json.loads(
                run("convert", tmp_path / name, out, "--to", to, "--type", "x=int64", "--json").stdout
            ).get("rows", 0)
            assert rows == (3 if name == "f.tfrecord" and to == "tfrecord" else 0)
    assert pq.read_table(out).schema == pa.schema({"x": pa.int64()}) if to == "parquet" else out.exists()


@pytest.mark.parametrize("to", TARGETS)
def test_a_csv_file_with_only_a_header_keeps_its_columns(run: Run, tmp_path: Path, to: str) -> None:
    (tmp_path / "h.csv").write_text("a,b\n")
    run("convert", tmp_path / "h.csv", tmp_path / "out", "--to", to, "--type", "a=int64")
    if to == "parquet":
        assert pq.read_table(tmp_path / "out").schema == pa.schema({"a": pa.int64(), "b": pa.null()})
    elif to == "tfrecord":
        assert run("schema", tmp_path / "out").stdout == "a: int64\nb: null\n"


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_an_empty_file_beside_others_changes_nothing(run: Run, tmp_path: Path, suffix: str) -> None:
    text = {"csv": "x,y\n1,a\n", "jsonl": '{"x": 1, "y": "a"}\n'}[suffix]
    source = tmp_path / f"in.{suffix}"
    source.mkdir()
    for number, content in enumerate(["", text, "", text]):
        (source / f"{number}.{suffix}").write_text(content)
    run("convert", source, tmp_path / "out")
    assert run("cat", tmp_path / "out").stdout == '{"x": 1, "y": "a"}\n' * 2
