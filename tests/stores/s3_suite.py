"""The suite of remote stores by s3fs. A fixture `server` of the test file gives the options of a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, ClassVar

import pytest
import s3fs
from abstract import RemoteSuite
from faults import Faults, faulty_requests

_buckets = count()


class S3Suite(RemoteSuite):
    options: ClassVar[dict[str, Any]] = {}
    uploads = True

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
