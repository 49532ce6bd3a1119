"""OpenStack Swift, a real object store, by s3fs and Swift's S3 API.

Modules: files.storage.store.
"""

from collections.abc import Iterator
from time import sleep
from typing import Any

import pytest
from s3_suite import S3Suite
from swift_server import needs_swift, swift_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with swift_server(tmp_path_factory.mktemp("swift")) as options:
        yield options


@needs_swift
class TestSwiftStore(S3Suite):
    def clean(self, place: str) -> list[str]:
        """Swift rounds times up to full seconds, so the youngest files have times in the future."""
        sleep(1)
        return super().clean(place)
