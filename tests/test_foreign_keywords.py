"""A keyword of another tool, or a misspelt one, raises an error that names the keyword to pass.

Modules: public_functions.
"""

import enum
import importlib
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import Snapshot, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.feed import flight, stream
from dask_tfrecord.public_functions import foreign_keywords, unknown_keywords

PAGE = Path(__file__).parents[1] / "docs" / "migrating.md"


class SaveMode(enum.Enum):
    """As in Ray Data."""

    APPEND = "append"


@pytest.fixture
def ddf() -> dd.DataFrame:
    binary = pd.ArrowDtype(pa.binary())
    frame = pd.DataFrame({"record": pd.array([b"a", b"b"], dtype=binary), "day": ["mon", "tue"]})
    return dd.from_pandas(frame, npartitions=1)


def refusal(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
    """The message of a call with unknown keywords. Nothing else may be wrong with the call."""
    with pytest.raises(TypeError) as caught:
        function(*arguments, **keywords)
    assert isinstance(caught.value, TFRecordError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("keyword", "value", "advice"),
    [
        ("mode", "overwrite", "pass overwrite=True"),
        ("mode", SaveMode.APPEND, "pass append=True"),
        ("mode", "ErrorIfExists", "leave it out, because existing data raises by default"),
        ("if_exists", "replace", "pass overwrite=True"),
        ("existing_data_behavior", "delete_matching", 'pass overwrite="partitions"'),
        ("partitionBy", "day", 'pass partition_on="day"'),
        ("partition_cols", ["day", "hour"], 'pass partition_on=["day", "hour"]'),
        ("codec", "org.apache.hadoop.io.compress.GzipCodec", 'pass compression="gzip"'),
        ("compression_type", "ZLIB", 'pass compression="zlib"'),
        ("compression_type", None, "pass compression=None"),
        ("recordType", "SequenceExample", 'pass record_type="sequence_example"'),
        ("tf_schema", object(), "pass schema="),
        ("index", False, "pass write_index=False"),
        ("maxRecordsPerFile", 1000, "pass max_rows_per_file=1000"),
        ("engine", "pyarrow", "leave it out, because there is one engine"),
        ("num_parallel_reads", 8, "leave it out, because Dask's scheduler decides what runs in parallel"),
        ("shard_name_template", "-SSSSS", "pass name_function="),
        ("coder", object(), 'pass record_type="bytes"'),
        ("blocksize", "1 MiB", "blocksize= is a keyword of read_tfrecord"),
        ("numShards", 4, "pass npartitions=4"),
        ("compresion", "gzip", "pass compression="),
        ("overwite", True, "pass overwrite="),
        ("zzz", 1, "help(to_tfrecord) lists the keywords"),
    ],
)
def test_a_writer_names_the_right_keyword(
    ddf: dd.DataFrame, tmp_path: Path, keyword: str, value: Any, advice: str
) -> None:
    problem = f"to_tfrecord() got an unexpected keyword argument {keyword!r}; {advice}"
    assert refusal(to_tfrecord, ddf, tmp_path / "x", **{keyword: value}) == problem
    assert refusal(ddf.to_tfrecord, tmp_path / "x", **{keyword: value}) == problem
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("keyword", "value", "advice"),
    [
        ("compression_type", "GZIP", 'pass compression="gzip"'),
        ("usecols", ["a"], 'pass columns=["a"]'),
        ("partition_filter", None, "pass filters="),
        ("ignoreCorruptFiles", True, 'pass on_corrupt="skip"'),
        ("include_paths", True, "pass include_path_column=True"),
        ("mode", "append", "append= is a keyword of to_tfrecord"),
        ("npartitions", 3, "npartitions= is a keyword of to_tfrecord"),
        ("blocksze", 1, "pass blocksize="),
        ("nrows", 5, "take the first rows of the result with .head()"),
    ],
)
def test_a_reader_names_the_right_keyword(keyword: str, value: Any, advice: str) -> None:
    for function in (read_tfrecord, dd.read_tfrecord):
        problem = f"read_tfrecord() got an unexpected keyword argument {keyword!r}; {advice}"
        assert refusal(function, "missing", **{keyword: value}) == problem


def test_snapshots_are_opened_with_keywords_of_their_own() -> None:
    for name, function in (("open", Snapshot.open), ("history", Snapshot.history)):
        problem = f"Snapshot.{name}() got an unexpected keyword argument 'fs'; pass filesystem="
        assert refusal(function, "missing", fs=None) == problem


def test_all_unknown_keywords_are_explained_at_once_without_secrets() -> None:
    options = {"codec": "gzip", "storage_option": {"key": "hunter2"}, "paths": "s3://me:hunter2@bucket/x"}
    assert refusal(read_tfrecord, **options) == (
        "read_tfrecord() got unexpected keyword arguments 'codec', 'storage_option', 'paths'; "
        'codec=: pass compression="gzip"; storage_option=: pass storage_options=; paths=: pass path='
    )


def test_every_function_names_only_keywords_that_it_has() -> None:
    """Every keyword of the table, on every function, with each of its values."""
    named = 0
    public = (
        getattr(dask_tfrecord, name) for name in ("iter_batches", "RecordTable", "take", "export", "index")
    )
    for function in (read_tfrecord, to_tfrecord, *public, flight.serve, stream.serve, stream.write_feather):
        known = inspect.signature(function).parameters
        unknown = [
            (row, name) for row in foreign_keywords() for name in row.names.split() if name not in known
        ]
        for row, name in unknown:
            for value in ("text", *row.values):
                advice = refusal(function, **{name: value}).partition("; ")[2]
                passed = re.match(r"pass (\w+)=", advice)
                assert passed is None or passed[1] in known, (function, name, value)
                named += passed is not None
    assert named > 500


@pytest.mark.parametrize(
    ("function", "keyword", "value", "advice"),
    [
        (dask_tfrecord.compact, "target_size", "1 GB", 'pass target_bytes="1 GB"'),
        (dask_tfrecord.delete, "predicate", "x = 3", "pass filters="),
        (dask_tfrecord.expire, "retain_last", 5, "pass versions=5"),
        (dask_tfrecord.expire, "retention_hours", 168, "pass older_than="),
    ],
)
def test_functions_of_tables_know_keywords_of_delta_lake_and_iceberg(
    function: Callable[..., Any], keyword: str, value: Any, advice: str
) -> None:
    assert refusal(function, "missing", **{keyword: value}).partition("; ")[2] == advice


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "keyword", "advice"),
    [
        ("torch.TFRecordBatches", "num_shards", "pass world_size=4"),
        ("torch.TFRecordTable", "path_", "pass path="),
        ("tensorflow.tensorflow_dataset", "drop_last", 'pass batch_mode="drop"'),
        ("tensorflow.feature_spec", "default_value", "pass fill_nulls="),
        ("keras.TFRecordPyDataset", "shuffle_seed", "pass shuffle=4"),
    ],
)
def test_the_loaders_of_frameworks_name_the_right_keyword(name: str, keyword: str, advice: str) -> None:
    module, _, attribute = name.partition(".")
    pytest.importorskip(module)
    function = getattr(importlib.import_module(f"dask_tfrecord.feed.{module}"), attribute)
    assert refusal(function, "missing", **{keyword: 4}).partition("; ")[2] == advice


def test_values_of_other_tools_become_values_that_are_accepted(ddf: dd.DataFrame, tmp_path: Path) -> None:
    to_tfrecord(ddf, tmp_path, partition_on="day")
    usual = {"partition_on": "day", "compute": False}
    for row in foreign_keywords():
        for value in row.values:
            message = refusal(to_tfrecord, ddf, tmp_path, **{row.names.split()[0]: value})
            _, passed, call = message.partition("; pass ")
            if passed:
                remedy = eval(f"dict({call})")
                if remedy.get("record_type") == "sequence_example":
                    continue  # the records of the dataset are examples
                mode = {} if remedy.keys() & {"append", "overwrite"} else {"overwrite": True}
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("dask_tfrecord.requests.warn_of_compression", lambda codec: None)
                    to_tfrecord(ddf, tmp_path, **usual, **mode, **remedy)


def test_the_page_for_migrating_shows_the_table() -> None:
    lines = ["| keyword elsewhere | of | here |", "|---|---|---|"]
    for row in foreign_keywords():
        ours = (
            re.sub(r" \| | or ", "` or `", f"`{row.ours.replace('{}', '')}`") if row.ours else row.otherwise
        )
        names = ", ".join(f"`{name}`" for name in row.names.split())
        lines.append(f"| {names} | {row.tools} | {ours} |")
    table = "\n".join(lines)
    assert table in PAGE.read_text(), f"replace the table in {PAGE.name} by:\n{table}"


# A keyword or option of another tool in a cell of docs/migrating.md, and its value.
_CELL = re.compile(r'(?:option\(")?(\w+)(?:"?, |=)"?(?:SaveMode.)?([\w.]*)"?')


def test_the_other_tables_of_the_page_say_the_same() -> None:
    """What the cells say about a keyword of the table is what the error says."""
    known = inspect.signature(to_tfrecord).parameters.keys() | inspect.signature(read_tfrecord).parameters
    names = {name for row in foreign_keywords() for name in row.names.split()}
    checked = []
    for theirs, ours in re.findall(r"^\| (`.*?`.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE):
        for name, value in _CELL.findall(theirs):
            if name in names and name not in known and f"`{name}`" not in theirs:
                error = unknown_keywords("to_tfrecord", known, {name: value})
                passed = re.match(r"pass (\w+)=", str(error.advice))
                assert passed is None or f"{passed[1]}=" in ours, (theirs, ours, error.advice)
                checked.append(name)
    assert {"codec", "recordType", "tf_schema", "mode", "file_name_suffix"} <= {*checked}
