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
from dask_tfrecord import TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.feed import RecordTable, flight, iter_batches, stream
from dask_tfrecord.public_functions import foreign_keywords, unknown_keywords

PAGE = Path(__file__).parents[1] / "docs" / "migrating.md"
BYTES = pd.array([b"a", b"b"], dtype=pd.ArrowDtype(pa.binary()))
DDF = dd.from_pandas(pd.DataFrame({"record": BYTES, "day": ["mon", "tue"]}), npartitions=1)


class SaveMode(enum.Enum):
    """As in Ray Data."""

    APPEND = "append"


def refusal(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
    """The message of a call with unknown keywords. Nothing else may be wrong with the call."""
    with pytest.raises(TypeError) as caught:
        function(*arguments, **keywords)
    assert isinstance(caught.value, TFRecordError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def _writer(path: Path, **keywords: Any) -> str:
    messages = {refusal(to_tfrecord, DDF, path, **keywords), refusal(DDF.to_tfrecord, path, **keywords)}
    [message] = messages
    assert not path.exists()
    return message


def _reader(path: Path, **keywords: Any) -> str:
    messages = {refusal(function, path, **keywords) for function in (read_tfrecord, dd.read_tfrecord)}
    [message] = messages
    return message


@pytest.mark.parametrize(
    ("call", "keyword", "value", "advice"),
    [
        (_writer, "mode", "overwrite", "pass overwrite=True"),
        (_writer, "mode", SaveMode.APPEND, "pass append=True"),
        (_writer, "mode", "ErrorIfExists", "leave it out, because existing data raises by default"),
        (_writer, "existing_data_behavior", "delete_matching", 'pass overwrite="partitions"'),
        (_writer, "partition_cols", ["day", "hour"], 'pass partition_on=["day", "hour"]'),
        (_writer, "codec", "org.apache.hadoop.io.compress.GzipCodec", 'pass compression="gzip"'),
        (_writer, "compression_type", None, "pass compression=None"),
        (_writer, "recordType", "SequenceExample", 'pass record_type="sequence_example"'),
        (_writer, "tf_schema", object(), "pass schema="),
        (_writer, "index", False, "pass write_index=False"),
        (_writer, "engine", "pyarrow", "leave it out, because there is one engine"),
        (_writer, "blocksize", "1 MiB", "blocksize= is a keyword of read_tfrecord"),
        (_writer, "compresion", "gzip", "pass compression="),
        (_writer, "zzz", 1, "help(to_tfrecord) lists the keywords"),
        (_reader, "usecols", ["a"], 'pass columns=["a"]'),
        (_reader, "partition_filter", None, "pass filters="),
        (_reader, "ignoreCorruptFiles", True, 'pass on_corrupt="skip"'),
        (_reader, "include_paths", True, "pass include_path_column=True"),
        (_reader, "mode", "append", "append= is a keyword of to_tfrecord"),
        (_reader, "blocksze", 1, "pass blocksize="),
        (_reader, "nrows", 5, "take the first rows of the result with .head()"),
    ],
)
def test_a_reader_and_a_writer_name_the_right_keyword(
    call: Callable[..., str], keyword: str, value: Any, advice: str, tmp_path: Path
) -> None:
    name = "to_tfrecord" if call is _writer else "read_tfrecord"
    problem = f"{name}() got an unexpected keyword argument {keyword!r}; {advice}"
    assert call(tmp_path / "x", **{keyword: value}) == problem


def test_all_unknown_keywords_are_explained_at_once_without_secrets() -> None:
    options = {"codec": "gzip", "storage_option": {"key": "hunter2"}, "paths": "s3://me:hunter2@bucket/x"}
    assert refusal(read_tfrecord, **options) == (
        "read_tfrecord() got unexpected keyword arguments 'codec', 'storage_option', 'paths'; "
        'codec=: pass compression="gzip"; storage_option=: pass storage_options=; paths=: pass path='
    )


def test_every_function_names_only_keywords_that_it_has() -> None:
    """Every keyword of the table, on every function, with each of its values."""
    named = 0
    functions = [read_tfrecord, to_tfrecord, dask_tfrecord.open_dataset, iter_batches, RecordTable]
    for function in (*functions, flight.serve, stream.serve, stream.write_feather):
        known = inspect.signature(function).parameters
        for row in foreign_keywords():
            for name in {*row.names.split()} - known.keys():
                for value in ("text", *row.values):
                    advice = refusal(function, **{name: value}).partition("; ")[2]
                    passed = re.match(r"pass (\w+)=", advice)
                    assert passed is None or passed[1] in known, (function, name, value)
                    named += passed is not None
    assert named > 500


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "keyword", "value", "advice"),
    [
        ("Dataset.compact", "target_size", "1 GB", 'pass target_bytes="1 GB"'),
        ("Dataset.delete", "predicate", "x = 3", "pass filters="),
        ("Dataset.expire", "retain_last", 5, "pass versions=5"),
        ("Dataset.expire", "retention_hours", 168, "pass older_than="),
        ("feed.torch.TFRecordBatches", "num_shards", 4, "pass world_size=4"),
        ("feed.torch.TFRecordTable", "path_", 4, "pass path="),
        ("feed.tensorflow.tensorflow_dataset", "drop_last", 4, 'pass batch_mode="drop"'),
        ("feed.tensorflow.feature_spec", "default_value", 4, "pass fill_nulls="),
        ("feed.keras.TFRecordPyDataset", "shuffle_seed", 4, "pass shuffle=True, seed=4"),
    ],
)
def test_tables_and_loaders_know_keywords_of_peers(name: str, keyword: str, value: Any, advice: str) -> None:
    module, _, attribute = name.rpartition(".")
    if module == "Dataset":
        function = getattr(dask_tfrecord.Dataset, attribute)
    else:
        pytest.importorskip(module.rpartition(".")[2])
        function = getattr(importlib.import_module(f"dask_tfrecord.{module}"), attribute)
    assert refusal(function, "missing", **{keyword: value}).partition("; ")[2] == advice


def test_values_of_other_tools_become_accepted_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_tfrecord(DDF, tmp_path, partition_on="day")
    monkeypatch.setattr("dask_tfrecord.collection.requests.warn_of_compression", lambda codec: None)
    usual = {"partition_on": "day", "compute": False}
    for row in foreign_keywords():
        for value in row.values:
            message = refusal(to_tfrecord, DDF, tmp_path, **{row.names.split()[0]: value})
            _, passed, call = message.partition("; pass ")
            remedy = eval(f"dict({call})") if passed else {}
            if passed and remedy.get("record_type") != "sequence_example":  # the dataset has examples
                mode = {} if remedy.keys() & {"append", "overwrite"} else {"overwrite": True}
                to_tfrecord(DDF, tmp_path, **usual, **mode, **remedy)


def test_the_page_for_migrating_shows_the_table() -> None:
    lines = ["| keyword elsewhere | of | here |", "|---|---|---|"]
    for row in foreign_keywords():
        ours = (
            re.sub(r" \| | or ", "` or `", f"`{row.ours.replace(': {}', ': ...').replace('{}', '')}`")
            if row.ours
            else ""
        )
        names = ", ".join(f"`{name}`" for name in row.names.split())
        lines.append(f"| {names} | {row.tools} | {ours or row.otherwise} |")
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
