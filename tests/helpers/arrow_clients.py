"""Clients of Arrow streams: plain sockets with pyarrow, and stubs of TensorFlow I/O."""

import socket
import sys
import types
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest


def connect(endpoint: str) -> socket.socket:
    kind, _, place = endpoint.partition("://")
    if kind == "unix":
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(place)
        except OSError:
            client.close()
            raise
        return client
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)))


def received(endpoint: str) -> bytes:
    with connect(endpoint) as client, client.makefile("rb") as file:
        return file.read()


def batches(endpoint: str) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(received(endpoint)) as reader:
        return list(reader)


def constructed(code: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """Run the code for a client with stubs: the name of the class that it constructs, and the arguments."""
    tensorflow: Any = types.ModuleType("tensorflow")
    for name in ("bool", "int8", "int32", "int64", "uint64", "float16", "float32", "float64", "string"):
        setattr(tensorflow, name, f"tf.{name}")
    classes = {name: MagicMock() for name in ("ArrowStreamDataset", "ArrowFeatherDataset")}
    arrow: Any = types.ModuleType("tensorflow_io.arrow")
    for name, stub in classes.items():
        setattr(arrow, name, stub)
    package: Any = types.ModuleType("tensorflow_io")
    package.arrow = arrow
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setitem(sys.modules, "tensorflow_io", package)
    monkeypatch.setitem(sys.modules, "tensorflow_io.arrow", arrow)
    exec(compile(code, "client", "exec"), {})
    ((name, stub),) = [(name, stub) for name, stub in classes.items() if stub.called]
    return name, stub.call_args.kwargs
