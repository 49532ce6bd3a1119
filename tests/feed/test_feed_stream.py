"""Arrow streams: the batches that clients receive, and the errors on both sides if one side fails.

Modules: feed.stream.
"""

import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import arrow_clients
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError
from dask_tfrecord.feed import stream
from dask_tfrecord.feed.stream import Listener

ROWS = 1003


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frame = pd.DataFrame({"id": np.arange(ROWS), "x": np.arange(ROWS, dtype="float32") / 2})
    path = tmp_path_factory.mktemp("stream") / "dataset"
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=3), path)
    return path


def collection(array: pa.Array) -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"x": pd.arrays.ArrowExtensionArray(array)}), npartitions=1)


def ids(batches: list[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


def one_pass(ddf: dd.DataFrame, **keywords: Any) -> list[pa.RecordBatch]:
    with stream.serve(ddf, **keywords) as server:
        return arrow_clients.batches(server.endpoints[0])


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "127.0.0.1:0", "localhost:0", ":0", "unix"])
def test_a_client_gets_all_rows_in_batches_of_its_size(written: Path, endpoint: str, tmp_path: Path) -> None:
    endpoint = f"unix://{tmp_path}/s.sock" if endpoint == "unix" else endpoint
    with stream.serve(written, endpoint, batch_size=100) as server:
        assert server.endpoints[0].startswith(("tcp://127.0.0.1:", f"unix://{tmp_path}/s.sock"))
        for number in range(2):  # each connection gets a fresh pass
            batches = arrow_clients.batches(server.endpoints[0])
            assert [batch.num_rows for batch in batches] == [100] * 10 + [3]
            assert ids(batches) == list(range(ROWS))
            server.wait(number + 1)
        assert [(one.number, one.rows, one.outcome) for one in server.passes] == [
            (number, ROWS, "done") for number in range(2)
        ]


def test_a_slow_client_gets_all_bytes_if_sockets_have_a_default_timeout() -> None:
    data = bytes(1 << 26)  # more than the buffers of a socket
    socket.setdefaulttimeout(30)
    try:
        listener = Listener(":0")
        with arrow_clients.connect(listener.endpoint) as client, client.makefile("rb") as file:
            sink = listener.accept()
            assert sink is not None
            sender = threading.Thread(target=lambda: (sink.send(memoryview(data)), sink.close()))
            sender.start()
            assert len(file.read(1)) + len(file.read()) == len(data)
            sender.join()
        listener.close()
    finally:
        socket.setdefaulttimeout(None)


@pytest.mark.parametrize("shuffle", [False, True])
def test_several_endpoints_share_the_rows_in_every_pass(written: Path, shuffle: bool) -> None:
    buffer = {"shuffle_buffer": 50} if shuffle else {}
    with stream.serve(written, [":0"] * 3, shuffle=shuffle, **buffer) as server:
        first = ids(arrow_clients.batches(server.endpoints[1]))
        shards = [ids(arrow_clients.batches(endpoint)) for endpoint in server.endpoints]
    assert sorted(number for shard in shards for number in shard) == list(range(ROWS))
    assert {len(shard) for shard in shards} == {334, 335}
    assert first == shards[1]  # endpoints may be in different passes over the rows
    with stream.serve(written, shuffle=shuffle) as server:
        one, other = (ids(arrow_clients.batches(server.endpoints[0])) for _ in range(2))
    assert (one != other) == shuffle
    assert sorted(one) == sorted(other) == list(range(ROWS))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([True, False]), pa.array([True, False])),
        (pa.array([1, 2], pa.uint64()), pa.array([1, 2], pa.uint64())),
        (pa.array([2, 2], pa.date32()), pa.array([2, 2], pa.int32())),
        (pa.array([5, 6], pa.timestamp("us", "UTC")), pa.array([5, 6])),
        (pa.array([5, 6], pa.duration("ns")), pa.array([5, 6])),
        (pa.array([5, 6], pa.time32("ms")), pa.array([5, 6], pa.int32())),
        (pa.array(["a", "b"], pa.large_string()), pa.array(["a", "b"])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"])),
        (pa.array([b"ab", b"cd"], pa.binary(2)), pa.array([b"ab", b"cd"], pa.binary())),
        (pa.array([[1, 2]], pa.list_(pa.int16(), 2)), pa.array([[1, 2]], pa.list_(pa.int16()))),
        (pa.array([["a"], ["b"]], pa.large_list(pa.string())), pa.array([["a"], ["b"]])),
        (pa.array([[[1]], [[2]]]), None),
        (pa.array([1, 2]).cast(pa.decimal128(30, 2)), None),
        (pa.array([{"a": 1}] * 2), None),
    ],
    ids=lambda array: str(getattr(array, "type", "refused")),
)
def test_types_become_those_that_the_client_reads(array: pa.Array, expected: pa.Array | None) -> None:
    if expected is None:
        with pytest.raises(SchemaError, match="'x'"):
            stream.serve(collection(array))
        return
    (batch,) = one_pass(collection(array))
    assert batch["x"].equals(expected)


def test_tensors_become_flat_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype="int64").reshape(4, 2, 3))
    path = str(tmp_path / "images")
    dask_tfrecord.to_tfrecord(pa.table({"image": images}), path)
    with stream.serve(path) as server:
        (batch,) = arrow_clients.batches(server.endpoints[0])
        assert "tf.reshape(row['image'], [-1, 2, 3])" in server.client_code()
        _, arguments = arrow_clients.constructed(server.client_code(), monkeypatch)
    assert batch["image"].to_pylist() == np.arange(24).reshape(4, 6).tolist()
    assert arguments["output_shapes"] == ([6],)


def test_lists_of_different_lengths_are_sent_to_clients_that_read_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stream.serve(collection(pa.array([[1], [2, 3], []])), batch_size=None) as server:
        (batch,) = arrow_clients.batches(server.endpoints[0])
        _, arguments = arrow_clients.constructed(server.client_code(), monkeypatch)
    assert batch["x"].to_pylist() == [[1], [2, 3], []]
    assert "batch_size" not in arguments
    assert arguments["output_shapes"] == ([None],)


def test_no_rows_are_one_empty_batch_and_empty_partitions_none(written: Path) -> None:
    ddf = dask_tfrecord.read_tfrecord(written)
    (batch,) = one_pass(ddf[ddf["id"] < 0])
    assert (batch.num_rows, batch.schema.names) == (0, ["id", "x"])
    ddf = dd.from_pandas(pd.DataFrame({"id": np.arange(ROWS)}), npartitions=10)
    batches = one_pass(ddf[ddf["id"].isin([1, 801])], batch_mode="auto")
    assert [batch.num_rows for batch in batches] == [1, 1]


def test_a_further_endpoint_without_rows_fails_instead_of_crashing_the_client() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"id": np.arange(20)}), npartitions=2)
    with stream.serve(ddf[ddf["id"] < 10], [":0", ":0"]) as server:
        assert ids(arrow_clients.batches(server.endpoints[0])) == list(range(10))
        assert arrow_clients.received(server.endpoints[1]) == b""
        server.wait(2)
        assert "fewer endpoints" in str(server.errors[0])


def test_a_failing_producer_ends_the_stream_so_that_the_client_raises() -> None:
    def fail(partition: pd.DataFrame) -> pd.DataFrame:
        if 900 in partition["id"].values:
            raise RuntimeError("the worker was lost")
        return partition

    ddf = dd.from_pandas(pd.DataFrame({"id": np.arange(ROWS)}), npartitions=3)
    with stream.serve(ddf.map_partitions(fail, meta=ddf._meta), batch_size=100, prefetch=0) as server:
        data = arrow_clients.received(server.endpoints[0])
        server.wait(1)
        assert "worker was lost" in str(server.errors[0])
        assert (server.passes[0].outcome, server.passes[0].rows) == ("failed", 600)
    with pa.ipc.open_stream(data) as reader:
        found = [reader.read_next_batch() for _ in range(6)]
        with pytest.raises(pa.ArrowInvalid):
            reader.read_next_batch()
    assert ids(found) == list(range(600))


@pytest.fixture
def large() -> dd.DataFrame:
    """More rows than the buffers of a socket hold."""
    return dd.from_pandas(pd.DataFrame({"id": np.arange(4_000_000)}), npartitions=4)


def test_a_slow_client_makes_the_server_wait(large: dd.DataFrame) -> None:
    with stream.serve(large, batch_size=100_000) as server:
        with arrow_clients.connect(server.endpoints[0]) as client:
            client.recv(1)
        server.wait(1)
        assert server.passes[0].outcome == "client left"
        with arrow_clients.connect(server.endpoints[0]) as client, client.makefile("rb") as file:
            file.read(1)
            assert server.passes[1].outcome == "running"
            assert server.passes[1].rows < 4_000_000
            file.read()
        server.wait(2)
        assert (server.passes[1].rows, server.passes[1].outcome) == (4_000_000, "done")
        assert server.errors == []


def test_closing_fails_a_client_that_does_not_read(
    large: dd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_tfrecord.feed.stream._PATIENCE", 0.1)
    with stream.serve(large, batch_size=100_000) as server:
        client = arrow_clients.connect(server.endpoints[0])
        first = client.recv(1)
    with client, client.makefile("rb") as file:
        data = first + file.read()
    with pa.ipc.open_stream(data) as reader, pytest.raises((pa.ArrowInvalid, OSError)):
        list(reader)
    assert server.passes[0].outcome == "closed"


def test_a_closed_server_refuses_clients_and_leaves_no_threads(written: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))  # the socket of a server that is gone is replaced
    server = stream.serve(written, [":0", f"unix://{path}"], columns="id")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    arrow_clients.batches(server.endpoints[1])
    server.close()
    server.close()
    server.wait()
    for endpoint in server.endpoints:
        with pytest.raises(OSError, match=r"refused|No such file"):
            arrow_clients.connect(endpoint)
    assert not path.exists()
    for thread in threading.enumerate():
        if thread.name == "dask_tfrecord-serve":
            thread.join()


def test_the_path_of_a_file_or_of_another_server_is_refused(written: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TFRecordError, match="not a socket"):
        stream.serve(written, f"unix://{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "mine"
    with stream.serve(written, f"unix://{tmp_path}/s.sock") as server:
        with pytest.raises(TFRecordError, match="another server"):
            stream.serve(written, f"unix://{tmp_path}/s.sock")
        assert ids(arrow_clients.batches(server.endpoints[0])) == list(range(ROWS))


def test_a_port_in_use_is_refused_and_the_other_endpoints_are_closed(written: Path, tmp_path: Path) -> None:
    with stream.serve(written) as server, pytest.raises(TFRecordError, match="cannot be opened"):
        stream.serve(written, [f"unix://{tmp_path}/s.sock", server.endpoints[0]])
    assert not (tmp_path / "s.sock").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"endpoints": "http://127.0.0.1:0"}, "is not an endpoint.*unix://path"),
        ({"endpoints": "127.0.0.1"}, "no port number"),
        ({"endpoints": "127.0.0.1:http"}, "no port number"),
        ({"endpoints": "[::1]:0"}, "IPv6"),
        ({"endpoints": "fd://many"}, "not an open file descriptor"),
        ({"endpoints": "fd://99999"}, "not an open file descriptor"),
        ({"endpoints": []}, "empty"),
        ({"endpoints": 8080}, "8080 is not an endpoint"),
        ({"endpoints": f"unix:///tmp/{'x' * 200}"}, "path too long"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"fill_nulls": {"nothing": 0}}, "fill_nulls= names the column 'nothing'"),
        ({"fill_nulls": {"id": "text"}}, "fill_nulls= gives 'text'"),
        ({"fill_nulls": {"id": None}}, "by null"),
        ({"endpoints": [":0"] * 4, "columns": "nothing"}, "nothing"),
    ],
)
def test_wrong_arguments_are_named(written: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TFRecordError, match=message):
        stream.serve(written, **arguments)


def test_a_file_descriptor_gets_one_pass_and_is_closed(written: Path) -> None:
    reading, writing = os.pipe()
    with stream.serve(written, f"fd://{writing}") as server:
        assert "['fd://0']" in server.client_code()
        with open(reading, "rb") as file, pa.ipc.open_stream(file) as reader:
            assert ids(list(reader)) == list(range(ROWS))
            assert file.read() == b""
        server.wait(1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writing)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_feather_files_hold_the_same_batches(
    written: Path, compression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/numbers.feather"
    written = stream.write_feather(written, path, batch_size=100, compression=compression)
    with pa.ipc.open_file(path) as reader:
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    assert written.rows == ROWS
    assert [batch.num_rows for batch in batches] == [100] * 10 + [3]
    assert feather.read_table(path)["id"].to_pylist() == list(range(ROWS))
    name, arguments = arrow_clients.constructed(written.client_code(), monkeypatch)
    assert name == "ArrowFeatherDataset"
    assert arguments["filenames"] == [path]


def test_a_feather_file_that_fails_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="nulls"):
        stream.write_feather(collection(pa.array([1, None])), tmp_path / "x.feather")
    with pytest.raises(TFRecordError, match="unknown compression 'gzip'"):
        stream.write_feather(collection(pa.array([1])), tmp_path / "x.feather", compression="gzip")
    with pytest.raises(TFRecordError, match="no rows"):
        stream.write_feather(collection(pa.array([], pa.int64())), tmp_path / "x.feather")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("array", "message", "filler", "filled"),
    [
        (pa.array([1, None]), "feature 'x': a batch has 1 nulls.*fill_nulls=.\"x\"", -1, [1, -1]),
        (pa.array(["a", None]), "feature 'x': a batch has 1 nulls", "", ["a", ""]),
        (pa.array([[1, None], [2, 3]]), "feature 'x': a batch has 1 nulls inside lists", 0, [[1, 0], [2, 3]]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), "has 1 nulls", 7, [[1, 2], [7, 7]]),
        (pa.array([[1], [2, 3]]), "lists of 1 to 2 values.*batch_size=None", None, None),
    ],
)
def test_values_that_clients_misread_are_refused_or_filled(
    array: pa.Array, message: str, filler: Any, filled: list[Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    with stream.serve(collection(array)) as server:
        assert arrow_clients.received(server.endpoints[0]) == b""  # a client without a schema raises
        server.wait(1)
        (error,) = server.errors
    with pytest.raises(SchemaError, match=message):
        raise error
    assert "read_tfrecord" not in str(error)  # which takes none of the keywords of a server
    assert "its client raises: SchemaError" in caplog.text
    if filled:
        several = pa.concat_arrays([array] * 3)  # no batch moves the filled values of the next
        batches = one_pass(collection(several), batch_size=2, fill_nulls={"x": filler})
        assert [row for batch in batches for row in batch["x"].to_pylist()] == filled * 3


@pytest.mark.parametrize(
    ("mode", "rows", "named"), [("drop", 1000, "drop_remainder"), ("auto", ROWS, "auto")]
)
def test_the_code_for_the_client_constructs_its_dataset(
    written: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, rows: int, named: str
) -> None:
    size = {} if mode == "auto" else {"batch_size": 100}
    with stream.serve(written, batch_mode=mode, **size) as server:
        name, arguments = arrow_clients.constructed(server.client_code(), monkeypatch)
        assert name == "ArrowStreamDataset"
        expected = {
            "endpoints": server.endpoints,
            "columns": (0, 1),
            "output_types": ("tf.int64", "tf.float32"),
            "output_shapes": ([], []),
            "batch_mode": named,
        }
        assert arguments == expected | size
        assert len(ids(arrow_clients.batches(server.endpoints[0]))) == rows
