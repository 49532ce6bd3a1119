"""A keyword of another tool, or a misspelt one, raises an error that names the keyword to pass.

Modules: keywords.public_functions.
"""

import enum
import importlib
import inspect
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from advice import follow
from fsspec.implementations.local import LocalFileSystem

import dask_tfrecord
from dask_tfrecord import TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.feed import RecordTable, flight, iter_batches, stream
from dask_tfrecord.keywords.public_functions import foreign_keywords, unknown_keywords

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
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
        (_writer, "blocksize", "1 MiB", 'read_tfrecord takes blocksize="1 MiB"'),
        (_writer, "compresion", "gzip", "pass compression="),
        (_writer, "zzz", 1, "help(to_tfrecord) lists the keywords"),
        (_reader, "usecols", ["a"], 'pass columns=["a"]'),
        (_reader, "partition_filter", None, "pass filters="),
        (_reader, "ignoreCorruptFiles", True, 'pass on_corrupt="skip"'),
        (_reader, "include_paths", True, "pass include_path_column=True"),
        (_reader, "mode", "append", "leave it out, because the function only reads"),
        (_reader, "blocksze", 1, "pass blocksize="),
        (_reader, "nrows", 5, "call .head(5, npartitions=-1) of the result"),
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
        ("Dataset.expire", "retention_hours", 168, 'pass older_than="168 hours"'),
        ("feed.torch.TFRecordBatches", "num_shards", 4, "pass rank=0, world_size=4 for the first of 4 ranks"),
        ("feed.torch.TFRecordTable", "path_", 4, "pass path="),
        ("feed.tensorflow.tensorflow_dataset", "drop_last", 4, 'pass batch_mode="drop"'),
        (
            "feed.tensorflow.feature_spec",
            "default_value",
            4,
            "pass fill_nulls={column: 4}, where column is the name of a column",
        ),
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


# For a name of each row of the table, values that its tools accept.
SAMPLES: dict[str, Any] = {
    "mode": "append",
    "if_exists": "append",
    "partitionOverwriteMode": "dynamic",
    "overwrite_or_ignore": True,
    "delete_dir_content": True,
    "partitionBy": "day",
    "hive_partitioning": True,
    "partition_base_dir": "/",
    "hive_schema": {"day": pa.string()},
    "codec": "gzip",
    "arrow_open_stream_args": "gzip",
    "recordType": "bytearray",
    "tf_schema": {"record": pa.binary()},
    "coder": len,
    "transform": lambda rows: rows,
    "filenames": "data",
    "usecols": ["record"],
    "filter": [("day", "==", "mon")],
    "with_filename": True,
    "versionAsOf": 1,
    "block_size": "1 MiB",
    "split_row_groups": True,
    "override_num_blocks": 1,
    "use_nullable_dtypes": True,
    "types_mapper": pd.ArrowDtype,
    "index_col": "day",
    "gather_statistics": False,
    "read_dictionary": ["day"],
    "ignoreCorruptFiles": True,
    "max_errored_blocks": 2,
    "crc32check": False,
    "extra_columns": "ignore",
    "mergeSchema": True,
    "target_size": "1 MiB",
    "retain_last": 1,
    "retention_hours": 168,
    "retention": "7 days",
    "schema_mode": "merge",
    "index": False,
    "maxRecordsPerFile": 5,
    "min_rows_per_file": 5,
    "file_size_bytes": 1000,
    "num_files": 1,
    "max_partitions": 5,
    "basename_template": "part-{i}.tfrecord",
    "file_name_suffix": ".tfrecord",
    "metadata": {"a": "b"},
    "compression_opts": 3,
    "fs": LocalFileSystem(),
    "fs_options": {},
    "client_kwargs": {},
    "max_retries": 3,
    "scheduler": "synchronous",
    "shuffle": True,
    "random_state": 7,
    "buffer_size": 100,
    "shard_id": 0,
    "num_shards": 2,
    "drop_remainder": True,
    "columns": ["record"],
    "chunksize": 2,
    "label": "record",
    "collate_fn": len,
    "default_value": "",
    "prefetch_factor": 2,
    "num_epochs": 3,
    "host": "127.0.0.1",
    "port": 0,
    "uri": "grpc://127.0.0.1:0",
    "num_workers": 2,
    "num_parallel_reads": 2,
    "engine": "pyarrow",
    "nrows": 1,
    "missing_columns": "insert",
    "write_metadata_file": True,
}


def _on(path: Path) -> dict[str, Callable[..., Any]]:
    """Calls of the functions on a dataset, with the arguments that they need."""

    def write(**keywords: Any) -> Any:
        is_usual = not keywords.keys() & {"append", "overwrite", "schema_change"}
        if "write_options" in keywords and "compression_level" in keywords["write_options"]:
            keywords["compression"] = "gzip"
        usual = {"record_type": "bytes", "partition_on": "day"} | ({"overwrite": True} if is_usual else {})
        return to_tfrecord(DDF, **{"path": path, **usual, **keywords})

    def writer(**keywords: Any) -> Any:
        if "write_options" in keywords and "compression_level" in keywords["write_options"]:
            keywords["compression"] = "gzip"
        with dask_tfrecord.Writer(**{"path": path, **keywords}) as opened:
            opened.write(pd.DataFrame({"record": BYTES, "day": ["mon", "tue"]}))
        return opened

    def on(function: Callable[..., Any], *more: Any) -> Callable[..., Any]:
        def call(**keywords: Any) -> Any:
            return function(*[path] * (not keywords.keys() & {"path", "source"}), *more, **keywords)

        return call

    def method(name: str, *more: Any) -> Callable[..., Any]:
        return lambda **keywords: getattr(dask_tfrecord.open_dataset(path), name)(*more, **keywords)

    return {
        "read_tfrecord": on(read_tfrecord),
        "open_dataset": on(dask_tfrecord.open_dataset),
        "iter_batches": on(iter_batches),
        "to_tfrecord": write,
        "Writer": writer,
        "RecordTable": on(RecordTable),
        "Dataset.to_dask": method("to_dask"),
        "Dataset.batches": method("batches"),
        "Dataset.take": method("take", [0]),
        "Dataset.compact": method("compact"),
        "Dataset.delete": lambda **keywords: method("delete")(
            **{"filters": [("day", "==", "wed")], **keywords}
        ),
        "Dataset.expire": lambda **keywords: method("expire")(**keywords or {"versions": 1}),
        "Dataset.verify": method("verify"),
        "Writer.write": lambda **keywords: _written_with(path, keywords),
    }


def _written_with(path: Path, keywords: dict[str, Any]) -> None:
    with dask_tfrecord.Writer(path) as opened:
        opened.write(pd.DataFrame({"record": BYTES, "day": ["mon", "tue"]}), **keywords)


_LOADERS = {"TFRecordBatches": "torch", "tensorflow_dataset": "tensorflow"}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*_on(Path()), *_LOADERS])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_advice_about_a_keyword_works_as_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {*SAMPLES} <= {one for row in foreign_keywords() for one in row.names.split()}
    functions = _on(tmp_path / "data")
    functions["to_tfrecord"]()
    if name in _LOADERS:
        pytest.importorskip(_LOADERS[name])
        module = importlib.import_module(f"dask_tfrecord.feed.{_LOADERS[name]}")
        function = getattr(module, name)
        functions[name] = lambda **keywords: function(**{"path": "data", "batch_size": 2, **keywords})
    failures = []
    for row in foreign_keywords():
        [foreign] = {*row.names.split()} & SAMPLES.keys()
        variables = {"dask_tfrecord": dask_tfrecord, "pyarrow": pa, "path": tmp_path / "data", "ddf": DDF}
        variables |= {
            "given": SAMPLES[foreign],
            "i": 0,
            "n": 2,
            "batch": {"record": pa.array([None, b"a"])},
            "column": "record",
            "dask": dask,
            "batches": [[]],
        }
        try:
            functions[name](**{foreign: SAMPLES[foreign]})
        except TypeError as error:
            advice = str(error).partition("; ")[2]
            try:
                follow(advice, functions[name], functions, variables)
            except Exception as failure:
                failures.append((f"{name}({foreign}=)", advice, repr(failure)))
        except TFRecordError:  # the function has a keyword of this name, and another meaning of its value
            pass
        if name in ("to_tfrecord", "Writer", "Writer.write", "Dataset.delete") or name == "Dataset.expire":
            shutil.rmtree(tmp_path / "data")
            functions["to_tfrecord"]()
    assert not failures


def test_values_of_other_tools_become_accepted_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_tfrecord(DDF, tmp_path, partition_on="day")
    monkeypatch.setattr("dask_tfrecord.keywords.requests.warn_of_compression", lambda codec: None)
    usual = {"partition_on": "day", "compute": False}
    for row in foreign_keywords():
        for value in row.values:
            name = next(
                one for one in row.names.split() if one not in inspect.signature(to_tfrecord).parameters
            )
            message = refusal(to_tfrecord, DDF, tmp_path, **{name: value})
            _, passed, call = message.partition("; pass ")
            remedy = eval(f"dict({call})") if passed else {}
            if passed and remedy.get("record_type") != "sequence_example":  # the dataset has examples
                mode = {} if remedy.keys() & {"append", "overwrite"} else {"overwrite": True}
                to_tfrecord(DDF, tmp_path, **usual, **mode, **remedy)


# A keyword or option of another tool in a cell of docs/migrating.md, and its value.
_CELL = re.compile(r'(?:option\(")?(\w+)(?:"?, |=)"?(?:SaveMode.)?([\w.]*)"?')


def test_the_page_for_migrating_and_the_errors_agree() -> None:
    """What a cell says about a keyword of another tool is what the error says."""
    known = inspect.signature(to_tfrecord).parameters.keys() | inspect.signature(read_tfrecord).parameters
    names = {name for row in foreign_keywords() for name in row.names.split()}
    checked = []
    for theirs, ours in re.findall(r"^\| (`.*?`.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE):
        for name, value in _CELL.findall(theirs):
            if name in names and name not in known:
                error = unknown_keywords("to_tfrecord", known, {name: value})
                passed = re.match(r"pass (\w+)=", str(error.advice))
                assert passed is None or f"{passed[1]}=" in ours, (theirs, ours, error.advice)
                checked.append(name)
    assert {"codec", "recordType", "tf_schema", "mode", "file_name_suffix"} <= {*checked}
