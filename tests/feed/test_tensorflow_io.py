"""TensorFlow I/O as a client, in a separate virtual environment because it needs an old TensorFlow.

Set DASK_TFRECORD_TFIO_PYTHON to a Python 3.11 with tensorflow-io 0.37.1, tensorflow-cpu 2.16.2, numpy 1.26.4
and pyarrow.

Modules: feed.tensorflow_io, feed.stream.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord.feed import stream

PYTHON = os.environ.get("DASK_TFRECORD_TFIO_PYTHON")

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="DASK_TFRECORD_TFIO_PYTHON names no interpreter with tensorflow-io"
)

ROWS = 2_003

# Runs the code that constructs the dataset, and prints the elements and the error that ends the dataset.
CLIENT = """
import json, sys
exec(sys.stdin.read())
def plain(value):
    if isinstance(value, list):
        return list(map(plain, value))
    return value.decode() if isinstance(value, bytes) else value
for _ in range(int(sys.argv[1])):
    columns, batches, error = {}, [], None
    try:
        for row in dataset:
            values = {name: plain(value.numpy().tolist()) for name, value in row.items()}
            batches.append(len(values["id"]) if isinstance(values["id"], list) else 1)
            for name, value in values.items():
                columns.setdefault(name, []).extend(value if row["id"].shape.rank else [value])
            print("+", flush=True)
    except Exception as raised:
        error = type(raised).__name__
    print(json.dumps([columns, batches, error]), flush=True)
"""


def client(code: str, passes: int = 1) -> subprocess.Popen[str]:
    """A client process, which waits for its first element."""
    process = subprocess.Popen(
        [str(PYTHON), "-c", CLIENT, str(passes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert process.stdin
    process.stdin.write(code)
    process.stdin.close()
    return process


def results(process: subprocess.Popen[str]) -> list[Any]:
    """The columns, the sizes of the batches and the error of each pass of a client."""
    with process:
        assert process.stdout
        lines = [line for line in process.stdout if line != "+\n"]
    assert process.returncode == 0
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    numbers = np.arange(ROWS)
    images = pa.FixedShapeTensorArray.from_numpy_ndarray(numbers[:, None, None] + np.arange(6).reshape(2, 3))
    columns = {
        "id": pa.array(numbers),
        "small": pa.array(numbers % 100, pa.int8()),
        "even": pa.array(numbers % 2 == 0),
        "half": pa.array(numbers / 2, pa.float32()),
        "name": pa.array([f"é{number}" for number in numbers]),
        "kind": pa.array(["a", "b", "c"]).take(pa.array(numbers % 3)).dictionary_encode(),
        "day": pa.array(numbers, pa.int32()).cast(pa.date32()),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * ROWS), pa.float32()), 2),
        "image": images,
        "gap": pa.array([number if number % 7 else None for number in numbers.tolist()]),
    }
    path = tmp_path_factory.mktemp("tfio") / "dataset"
    dask_tfrecord.to_tfrecord(pa.table(columns), path, write_options={"max_rows_per_file": 700})
    return path


def check(columns: dict[str, list[Any]]) -> None:
    numbers = list(range(ROWS))
    assert columns == {
        "id": numbers,
        "small": [number % 100 for number in numbers],
        "even": [number % 2 == 0 for number in numbers],
        "half": [number / 2 for number in numbers],
        "name": [f"é{number}" for number in numbers],
        "kind": ["abc"[number % 3] for number in numbers],
        "day": numbers,
        "pair": [[2 * number, 2 * number + 1] for number in numbers],
        "image": [[[number + 3 * i + j for j in range(3)] for i in range(2)] for number in numbers],
        "gap": [number if number % 7 else -1 for number in numbers],
    }


@pytest.mark.parametrize("kind", ["tcp", "unix", "both"])
def test_the_client_reads_all_rows_in_every_epoch(dataset: Path, kind: str, tmp_path: Path) -> None:
    endpoints = {"tcp": [":0"], "unix": [f"unix://{tmp_path}/s.sock"]}
    endpoints["both"] = endpoints["tcp"] + endpoints["unix"]
    with stream.serve(dataset, endpoints[kind], batch_size=100, fill_nulls={"gap": -1}) as server:
        for columns, batches, error in results(client(server.client_code(), passes=2)):
            assert error is None
            check(columns)
            assert set(batches[:10]) == {100}
        assert [one.outcome for one in server.passes] == ["done"] * 2 * len(server.endpoints)


@pytest.mark.parametrize(("mode", "rows"), [("drop", 2000), ("auto", ROWS)])
def test_the_client_knows_the_mode_and_a_wrong_type_ends_only_one_client(
    dataset: Path, mode: Any, rows: int
) -> None:
    size = {} if mode == "auto" else {"batch_size": 100}
    with stream.serve(dataset, batch_mode=mode, columns=["id"], **size) as server:
        code = server.client_code()
        assert results(client(code.replace("tf.int64", "tf.float32")))[0][2] is not None
        ((columns, _, error),) = results(client(code.replace("batch_size=100", "batch_size=37")))
    assert (columns["id"], error) == (list(range(rows)), None)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_the_client_reads_a_feather_file(dataset: Path, compression: Any, tmp_path: Path) -> None:
    written = stream.write_feather(
        dataset, tmp_path / "x.feather", batch_size=100, compression=compression, fill_nulls={"gap": -1}
    )
    for columns, _, error in results(client(written.client_code(), passes=2)):
        assert error is None
        check(columns)


SERVER = """
import sys, time
import dask.dataframe as dd, numpy as np, pandas as pd
from dask_tfrecord.feed import stream

def wait(part):
    if part["id"].max() > 1500:
        time.sleep(3600)
    return part

if __name__ == "__main__":
    ddf = dd.from_pandas(pd.DataFrame({"id": np.arange(2000)}), npartitions=4)
    ddf = ddf.map_partitions(wait, meta=ddf._meta)
    with stream.serve(ddf, batch_size=100, prefetch=0) as server:
        print(server.client_code() + "\\nEND", flush=True)
        server.wait()
"""


def test_the_client_raises_when_the_server_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        process = client("".join(iter(server.stdout.readline, "END\n")))
        assert process.stdout
        for _ in range(15):  # the rows that the server sends
            assert process.stdout.readline() == "+\n"
        server.kill()
        ((columns, _, error),) = results(process)
    assert error == "InternalError"
    assert columns["id"] == list(range(1500))
