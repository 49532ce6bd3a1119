"""OpenStack Swift, a real object store, by s3fs and Swift's S3 API."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from time import sleep
from typing import Any, ClassVar

import pytest
import s3fs
from abstract import RemoteSuite
from faults import Faults, faulty_requests
from swift_server import needs_swift, swift_server

_buckets = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with swift_server(tmp_path_factory.mktemp("swift")) as options:
        yield options


@needs_swift
class TestSwiftStore(RemoteSuite):
    options: ClassVar[dict[str, Any]] = {}
    uploads = True
    stride = 13  # every request takes about 50 ms

    @pytest.fixture
    def place(self, server: dict[str, Any]) -> str:
        self.options |= server
        bucket = f"bucket-{next(_buckets)}"
        s3fs.S3FileSystem(**self.options).call_s3("create_bucket", Bucket=bucket)
        return f"s3://{bucket}/place"

    @contextmanager
    def faults(self, faults: Faults) -> Iterator[None]:
        with faulty_requests(s3fs.S3FileSystem, "_call_s3", faults):
            yield

    def clean(self, place: str) -> list[str]:
        """Swift rounds times up to full seconds, so the youngest files have times in the future."""
        sleep(1)
        return super().clean(place)
