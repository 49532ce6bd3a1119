"""`convert` to and from an object store, in every format.

Modules: cli.convert, cli.other_formats.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
import s3fs
from servers import s3_server

import dask_tfrecord

TABLE = pa.table(
    {
        "i": pa.array([1, None, 3, 2**60]),
        "s": pa.array(['a,"b"', "ä", None, "NA"]),
        "key": pa.array(["x", "y", "x", "ü"]),
    }
)
FORMATS = ["parquet", "csv", "jsonl", "tfrecord"]


@pytest.fixture(scope="module")
def s3() -> Iterator[s3fs.S3FileSystem]:
    with s3_server() as options:
        fs = s3fs.S3FileSystem(**options)
        fs.call_s3("create_bucket", Bucket="bucket")
        yield fs


@pytest.fixture
def options(s3: s3fs.S3FileSystem) -> list[str]:
    """The options of the command line that reach the store."""
    pairs = {name: s3.storage_options[name] for name in ("key", "secret", "endpoint_url")}
    settings = [f"{name}={value}" for name, value in pairs.items()]
    settings.append(f"client_kwargs={json.dumps(s3.storage_options['client_kwargs'])}")
    return [part for setting in settings for part in ("--storage-options", setting)]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    frame = TABLE.to_pandas(types_mapper=pd.ArrowDtype)
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2, sort=False), tmp_path / "data")
    return tmp_path / "data"


def _rows(path: Path) -> list[Any]:
    frame = dask_tfrecord.read_tfrecord(path).compute(scheduler="sync")
    return pa.Table.from_pandas(frame, preserve_index=False).to_pylist()


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_value_comes_back(
    run: Any, dataset: Path, tmp_path: Path, s3: s3fs.S3FileSystem, options: list[str], suffix: str
) -> None:
    place = f"s3://bucket/there.{suffix}"
    plan = json.loads(run("convert", dataset, place, "--dry-run", "--json", *options).stdout)
    assert (plan["target"], plan["mode"], plan["source_files"]) == (suffix, "create", 2)
    assert s3.find("bucket/there." + suffix) == []
    done = json.loads(run("convert", dataset, place, "--blocksize", "none", "--json", *options).stdout)
    assert done["files"] == 2
    names = [name for name in s3.find("bucket/there." + suffix) if "_" not in name.split("/")[2]]
    assert len(names) == 2
    assert sum(s3.size(name) for name in names) == done["bytes"]
    run("convert", place, tmp_path / "back", *options)
    assert _rows(tmp_path / "back") == TABLE.to_pylist()


@pytest.mark.parametrize("suffix", FORMATS)
def test_data_on_the_store_is_refused(run: Any, dataset: Path, options: list[str], suffix: str) -> None:
    place = f"s3://bucket/modes.{suffix}"
    run("convert", dataset, place, *options)
    error = run("convert", dataset, place, *options, code=1).stderr
    assert "choose a" in error
    assert "hunter2" not in error


def test_a_dataset_on_the_store_is_added_to_or_replaced(
    run: Any, dataset: Path, tmp_path: Path, options: list[str]
) -> None:
    place = "s3://bucket/changed"
    run("convert", dataset, place, *options)
    run("convert", dataset, place, "--append", *options)
    run("convert", place, tmp_path / "twice", *options)
    assert _rows(tmp_path / "twice") in (TABLE.to_pylist() * 2,)
    run("convert", dataset, place, "--overwrite", "--where", "i == 3", *options)
    run("convert", place, tmp_path / "one", *options)
    assert _rows(tmp_path / "one") == TABLE.slice(2, 1).to_pylist()


@pytest.mark.parametrize("suffix", ["parquet", "tfrecord"])
def test_partition_directories_are_made_on_the_store(
    run: Any, dataset: Path, s3: s3fs.S3FileSystem, options: list[str], suffix: str
) -> None:
    run("convert", dataset, f"s3://bucket/keys.{suffix}", "--partition-on", "key", *options)
    names = s3.find(f"bucket/keys.{suffix}")
    assert {name.split("/")[2] for name in names if "key=" in name} == {"key=x", "key=y", "key=ü"}
