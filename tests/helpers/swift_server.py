"""OpenStack Swift with its S3 API, started in a process of its own by the tests.

Swift is not a requirement of the tests, because it needs an environment of its own. The environment variable
DASK_TFRECORD_SWIFT_PYTHON names the Python of that environment. CONTRIBUTING.md has the commands.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("DASK_TFRECORD_SWIFT_PYTHON", "")

needs_swift = pytest.mark.skipif(
    not PYTHON, reason="DASK_TFRECORD_SWIFT_PYTHON names no Python with OpenStack Swift; see CONTRIBUTING.md"
)


@contextmanager
def swift_server(directory: Path) -> Iterator[dict[str, Any]]:
    """The storage options of a Swift server that stores its objects in a directory."""
    main = Path(__file__).with_name("swift_main.py")
    log = directory / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [PYTHON, "-W", "ignore", str(main), str(directory)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, log.read_text()
            yield {
                "key": "test:tester",
                "secret": "testing",
                "endpoint_url": f"http://127.0.0.1:{port}",
                "client_kwargs": {"region_name": "us-east-1"},
            }
        finally:
            process.terminate()
