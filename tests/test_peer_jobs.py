"""The tools that the comparison measures do the whole job: all rows, all values."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from benchmark_modules import benchmark_module

import dask_tfrecord

MODULES = ["dask", "protobuf", pytest.param("tensorflow", marks=pytest.mark.tensorflow)]
JOBS = [
    ("read", "plain", None),
    ("read", "gzip", "gzip"),
    ("read", "big", None),
    ("read", "small", None),
    ("infer", "foreign", None),
    ("count", "foreign", None),
    ("write", "plain", None),
    ("write", "plain", "gzip"),
    ("partition_on", "plain", None),
]


@pytest.fixture(scope="module", params=["tabular", "recsys"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, int]:
    """The table, the directory of its largest size, and the number of rows."""
    module = benchmark_module("peer_jobs.data")
    root = str(tmp_path_factory.mktemp("data"))
    table, folders = module.write(root, request.param, 0.0005 if request.param == "tabular" else 0.001)
    rows = max(folders)
    return table, folders[rows], rows


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask's Parquet functions on pandas 3.1
@pytest.mark.parametrize(("kind", "files", "codec"), JOBS)
@pytest.mark.parametrize("module", MODULES)
def test_every_way_handles_all_rows(
    module: str, kind: str, files: str, codec: str | None, data: tuple[Any, str, int], tmp_path: Path
) -> None:
    table, root, rows = data
    if not Path(root, files).exists():
        pytest.skip("only one of the tables has these files")
    work = _work(table, root, rows, files, codec)
    for way, kinds in benchmark_module(f"peer_jobs.{module}").WAYS.items():
        if kind in kinds:
            assert kinds[kind](work)(str(tmp_path / (way or "data"))) == rows


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize("module", MODULES[1:])
def test_a_peer_writes_the_rows_that_this_package_reads(
    module: str, codec: str | None, data: tuple[Any, str, int], tmp_path: Path
) -> None:
    table, root, rows = data
    [write] = [
        kinds["write"] for kinds in benchmark_module(f"peer_jobs.{module}").WAYS.values() if "write" in kinds
    ]
    path = str(tmp_path / "part-0.tfrecord")
    write(_work(table, root, rows, "plain", codec))(path)
    schema = pa.table(table.batch).schema
    found = dask_tfrecord.read_tfrecord(path, schema=schema).compute(scheduler="sync")
    columns = [pa.chunked_array(pa.array(found[name])).cast(schema.field(name).type) for name in schema.names]
    assert pa.table(columns, schema=schema).equals(pa.table(table.batch))


def _work(table: Any, root: str, rows: int, files: str, codec: str | None) -> Any:
    features = benchmark_module("peer_jobs.data").features(table)
    work = benchmark_module("peer_jobs").Work
    return work(root, files, codec, None, features, list(features), rows, 64)
