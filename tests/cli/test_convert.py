"""`convert`: the rows, their types, and what happens to the destination.

Modules: cli.convert, cli.other_formats.
"""

import datetime
import json
from pathlib import Path

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Run

import dask_tfrecord

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
    frame = TABLE.to_pandas(types_mapper=pd.ArrowDtype)
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2, sort=False), tmp_path / "data")
    return tmp_path / "data"


def _table(path: Path, columns: list[str] | None = None) -> pa.Table:
    frame = dask_tfrecord.read_tfrecord(path, columns=columns).compute(scheduler="sync")
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()


def _same(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema == expected.schema
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # NaN differs from itself


def test_parquet_gives_back_every_value_and_type(run: Run, dataset: Path, tmp_path: Path) -> None:
    run("convert", dataset, tmp_path / "p.parquet")
    _same(pq.read_table(tmp_path / "p.parquet").replace_schema_metadata(), TABLE)
    run("convert", tmp_path / "p.parquet", tmp_path / "back")
    _same(_table(tmp_path / "back"), TABLE)


@pytest.mark.parametrize(
    ("suffix", "compression"), [("jsonl", None), ("csv", None), ("jsonl", "gzip"), ("csv", "xz")]
)
def test_text_gives_back_every_value(
    run: Run, dataset: Path, tmp_path: Path, suffix: str, compression: str | None
) -> None:
    names = ["i", "b", "t", *(["d"] if suffix == "csv" else ["s", "l"])]
    text = tmp_path / f"text.{suffix}"
    codec = ["--compression", compression] if compression else []
    run("convert", dataset, text, "--columns", ",".join(names), *codec)
    types = ["--type", "t=timestamp[ns, UTC]", *(["--type", "d=date32"] if suffix == "csv" else [])]
    run("convert", text, tmp_path / "back", *types)
    expected = TABLE.select(names)
    at = names.index("t")
    expected = expected.set_column(at, "t", expected["t"].cast(pa.timestamp("ns", "UTC")))
    _same(_table(tmp_path / "back", names), expected)


def test_texts_of_csv_stay_texts_unless_they_are_named_as_null(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('country,x,code\nNA,NA,007\n"C\nH",1,1\n')
    run("convert", tmp_path / "a.csv", tmp_path / "one", "--type", "code=string")
    assert _table(tmp_path / "one").to_pydict() == {
        "country": ["NA", "C\nH"],
        "x": ["NA", "1"],
        "code": ["007", "1"],
    }
    run("convert", tmp_path / "a.csv", tmp_path / "two", "--null", "NA")
    assert _table(tmp_path / "two", ["country", "x"]).to_pydict() == {
        "country": [None, "C\nH"],
        "x": [None, 1],
    }


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_files_of_other_types_or_columns_raise(run: Run, tmp_path: Path, suffix: str) -> None:
    rows = {"csv": ["x\n1\n", "x\na\n"], "jsonl": ['{"x": 1}\n', '{"x": "a"}\n']}
    for number, text in enumerate(rows[suffix]):
        (tmp_path / f"{number}.{suffix}").write_text(text)
    run("convert", tmp_path / f"*.{suffix}", tmp_path / "out", code=1)
    assert not dask_tfrecord.exists(tmp_path / "out")


@pytest.mark.parametrize(
    ("suffix", "column", "kind"),
    [("csv", "l", "lists"), ("csv", "y", "bytes"), ("jsonl", "y", "bytes")],
)
def test_values_that_a_text_cannot_hold_are_refused(
    run: Run, dataset: Path, tmp_path: Path, suffix: str, column: str, kind: str
) -> None:
    out = tmp_path / f"out.{suffix}"
    error = run("convert", dataset, out, "--columns", f"i,{column}", code=1).stderr
    assert f"{suffix} cannot hold {kind}" in error
    assert repr(column) in error
    assert not out.exists()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("where", ["i > 1", "not (i > 1 or b is None)", "i is None"])
def test_where_selects_the_same_rows_of_every_format(
    run: Run, dataset: Path, tmp_path: Path, suffix: str, where: str
) -> None:
    run("convert", dataset, tmp_path / f"in.{suffix}", "--columns", "i,f,b")
    for source, name in ((dataset, "one"), (tmp_path / f"in.{suffix}", "two")):
        run("convert", source, tmp_path / name, "--where", where, "--columns", "i,b")
    _same(_table(tmp_path / "two"), _table(tmp_path / "one"))


def test_a_float_of_a_text_is_rounded_with_a_warning_or_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n0.1\n")
    assert "Warning: " in run("convert", tmp_path / "a.csv", tmp_path / "out").stderr
    assert run("convert", tmp_path / "a.csv", tmp_path / "out2", "--lossy", "allow").stderr == ""
    run("convert", tmp_path / "a.csv", tmp_path / "out3", "--lossy", "raise", code=1)
    assert not dask_tfrecord.exists(tmp_path / "out3")


def test_partition_directories(run: Run, dataset: Path, tmp_path: Path) -> None:
    run("convert", dataset, tmp_path / "p.parquet", "--partition-on", "b", "--columns", "i,b")
    names = {file.parent.name for file in (tmp_path / "p.parquet").rglob("*.parquet")}
    assert names == {"b=True", "b=False", "b=__HIVE_DEFAULT_PARTITION__"}
    run(
        "convert",
        tmp_path / "p.parquet/b=True",
        tmp_path / "back",
        "--from",
        "parquet",
        "--partition-on",
        "i",
    )
    assert sorted(file.parent.name for file in (tmp_path / "back").glob("i=*/*")) == ["i=1", f"i={2**60}"]


def test_no_file_of_another_format_is_written_behind_a_link(run: Run, tmp_path: Path) -> None:
    frame = pd.DataFrame({"_day": [0, 1], "n": [1, 2]})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "days")
    (tmp_path / "theirs").mkdir()
    place = tmp_path / "mine"
    place.mkdir()
    (place / "_day=1").symlink_to(tmp_path / "theirs")
    options = ("--to", "parquet", "--partition-on", "_day")
    assert "choose a new directory" in run("convert", tmp_path / "days", place, *options, code=1).stderr
    assert not [*(tmp_path / "theirs").iterdir()]
    assert [path.name for path in place.iterdir()] == ["_day=1"]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_destination_with_data_is_refused(run: Run, dataset: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out.{suffix}"
    run("convert", dataset, out, "--columns", "i,s")
    before = sorted(out.iterdir())
    assert "choose a new directory" in run("convert", dataset, out, "--columns", "i,s", code=1).stderr
    assert "choose a new directory" in run("convert", dataset, dataset, "--to", suffix, code=1).stderr
    assert sorted(out.iterdir()) == before


def test_a_source_is_not_overwritten(run: Run, dataset: Path) -> None:
    assert "reads from" in run("convert", dataset, dataset, "--overwrite", code=1).stderr
    assert _table(dataset).num_rows == 4


def test_the_configuration_of_a_site_gives_the_defaults_of_options(
    run: Run, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("x\n0.1\n")
    keys = {"compression": "gzip", "lossy": "raise", "blocksize": None}
    with dask.config.set({f"dask-tfrecord.{name}": value for name, value in keys.items()}):
        run("convert", dataset, tmp_path / "site")
        run("convert", dataset, tmp_path / "own", "--compression", "none", "--blocksize", "1 MiB")
        assert "'x'" in run("convert", tmp_path / "a.csv", tmp_path / "refused", code=1).stderr
        run("convert", tmp_path / "a.csv", tmp_path / "rounded", "--lossy", "allow")
        run("convert", dataset, tmp_path / "site.parquet")  # the codec of TFRecord is not that of Parquet
    site, own = (dask_tfrecord.Snapshot.open(tmp_path / name) for name in ("site", "own"))
    assert (site.compression, len(site.files)) == ("gzip", 2)
    assert (own.compression, len(own.files)) == (None, 1)


def test_a_dry_run_writes_nothing(run: Run, dataset: Path, tmp_path: Path) -> None:
    plan = json.loads(
        run("convert", dataset, tmp_path / "out", "--dry-run", "--json", "--partition-on", "s").stdout
    )
    assert not (tmp_path / "out").exists()
    assert (plan["source_files"], plan["partitions"], plan["mode"]) == (2, 1, "create")
    assert plan["source_bytes"] == sum(file.stat().st_size for file in dataset.glob("part-*"))
    assert plan["schema"]["t"] == "timestamp[us, tz=UTC]"
    plan = json.loads(
        run("convert", dataset / "*.tfrecord", tmp_path / "out", "--overwrite", "--dry-run", "--json").stdout
    )
    assert (plan["mode"], plan["replaced_files"]) == ("overwrite", 0)


def test_a_dry_run_of_an_overwrite_counts_what_would_be_replaced(
    run: Run, dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run("convert", dataset, out, "--npartitions", 2)
    plan = json.loads(run("convert", dataset, out, "--overwrite", "--dry-run", "--json").stdout)
    assert plan["replaced_files"] == 2
    assert plan["replaced_bytes"] == sum(file.stat().st_size for file in out.glob("part-*"))


def test_the_summary_counts_the_files_of_this_write_alone(run: Run, dataset: Path, tmp_path: Path) -> None:
    run("convert", dataset, tmp_path / "out")
    done = json.loads(run("convert", dataset, tmp_path / "out", "--append", "--json").stdout)
    assert (done["files"], done["rows"]) == (1, 4)


def test_an_index_becomes_columns_where_the_format_has_none(run: Run, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=pd.Index([7, 8], name="key"))
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data")
    run("convert", tmp_path / "data", tmp_path / "out.jsonl")
    (file,) = (tmp_path / "out.jsonl").iterdir()
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"key": 7, "x": 1},
        {"key": 8, "x": 2},
    ]
    frame.to_parquet(tmp_path / "in.parquet")
    run("convert", tmp_path / "in.parquet", tmp_path / "out.csv")
    (file,) = (tmp_path / "out.csv").iterdir()
    assert sorted(file.read_text().splitlines()[0].split(",")) == ["key", "x"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "csv", "--shuffle", "1"],
        ["--to", "csv", "--colocate"],
        ["--to", "csv", "--overwrite-partitions"],
        ["--to", "jsonl", "--append"],
        ["--to", "parquet", "--overwrite"],
        ["--to", "jsonl", "--partition-on", "b"],
        ["--to", "csv", "--compression", "lz4"],
        ["--blocksize", "many"],
        ["--append", "--overwrite"],
        ["--null", "NA"],
        ["--npartitions", "0"],
    ],
)
def test_options_that_do_not_fit_are_errors_of_usage(run: Run, dataset: Path, arguments: list[str]) -> None:
    run("convert", dataset, dataset.parent / "out", *arguments, code=2)
    assert not (dataset.parent / "out").exists()


def test_the_format_of_the_source_is_stated_if_no_suffix_shows_it(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.csv").write_text("x\n1\n")
    run("convert", folder, tmp_path / "out", code=1)
    for source, choice in ((folder, ["--from", "csv"]), (folder / "*.csv", [])):
        run("convert", source, tmp_path / "out", "--overwrite", *choice)
        assert _table(tmp_path / "out")["x"].to_pylist() == [1]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "tfrecord"])
def test_a_source_without_files_is_named(run: Run, tmp_path: Path, format: str) -> None:
    for name in ("nothing", "*.nothing"):
        error = run("convert", tmp_path / name, tmp_path / "out", "--from", format, code=1).stderr
        assert error.count("\n") == 1
        assert "nothing" in error


def test_descriptions_beside_tfrecord_files_are_no_source(run: Run, dataset: Path, tmp_path: Path) -> None:
    (dataset / "features.json").write_text("{}")
    run("convert", dataset, tmp_path / "out", "--no-snapshot")
    assert _table(tmp_path / "out").num_rows == 4


def test_several_sources_are_read_in_their_order(run: Run, tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / f"{name}.csv").write_text(f"x\n{name}\n")
    run("convert", tmp_path / "b.csv", tmp_path / "a.csv", tmp_path / "out")
    assert _table(tmp_path / "out")["x"].to_pylist() == ["b", "a"]


def test_a_size_that_is_none_reads_whole_files(run: Run, dataset: Path, tmp_path: Path) -> None:
    run("convert", dataset, tmp_path / "out", "--blocksize", "none")
    run("convert", dataset, tmp_path / "out2", "--blocksize", "1 MiB")


@pytest.mark.parametrize(
    "name", ["out.avro", "out.parqet", "out.csvv", "out.tfrecrod", "out.jsonl.gzz", "out.gz"]
)
def test_an_unknown_suffix_is_refused_unless_the_format_is_stated(
    run: Run, dataset: Path, tmp_path: Path, name: str
) -> None:
    assert "--to" in run("convert", dataset, tmp_path / name, code=2).stderr
    assert not (tmp_path / name).exists()
    run("convert", dataset, tmp_path / name, "--to", "tfrecord")
    _same(_table(tmp_path / name), TABLE)
