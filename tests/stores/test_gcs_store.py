"""The suite of stores on Google Cloud Storage: gcsfs and an emulator in this process.

Modules: storage.store, storage.uploading.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from threading import Event
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from abstract import RemoteSuite
from faults import FaultError, Faults, faulty_requests
from google_emulator import emulator

os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # otherwise gcsfs looks up each bucket over gRPC
import gcsfs.retry

from dask_tfrecord.storage import uploading

_buckets = count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    seconds = patch.object(gcsfs.retry, "min", lambda *_: 0, create=True)  # no waiting between attempts
    with emulator() as url, seconds:
        yield url


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs sends whole blocks
class TestGCSStore(RemoteSuite):
    options: ClassVar[dict[str, Any]] = {}
    uploads = True
    names: ClassVar[list[str]] = ["[!a]"]

    @pytest.fixture
    def place(self, endpoint: str) -> str:
        self.options |= {"endpoint_url": endpoint, "token": "anon", "project": "project"}
        bucket = f"bucket-{next(_buckets)}"
        gcsfs.GCSFileSystem(**self.options).mkdir(bucket)
        return f"gs://{bucket}/place"

    @contextmanager
    def faults(self, faults: Faults) -> Iterator[None]:
        with faulty_requests(gcsfs.GCSFileSystem, "_request", faults):
            yield

    def test_a_file_is_written_on_while_its_parts_wait_for_the_store(self, place: str) -> None:
        content, answered, requests = Random(1).randbytes(20 << 20), Event(), []
        call = gcsfs.GCSFileSystem._request

        async def waiting(fs: Any, method: str, *args: Any, **kwargs: Any) -> Any:
            requests.append(method)
            await asyncio.to_thread(answered.wait)
            return await call(fs, method, *args, **kwargs)

        store = self.store(place)
        with patch.object(gcsfs.GCSFileSystem, "_request", waiting):
            with store.create(store.join("large")) as file:
                file.write(content)
                assert len(requests) <= 1
                answered.set()
            assert requests == ["POST"] * 4  # the first one starts the upload
            with store.create(store.join("small")) as file:
                file.write(b"small")
            assert len(requests) == 5
        assert store.fs.cat_file(store.join("large")) == content

    def test_an_upload_fails_if_its_start_fails_after_the_last_part_was_written(self, place: str) -> None:
        """The file of gcsfs then counts as closed, so that the end of the upload sends nothing."""
        written = Event()
        complete = uploading._OtherUploader.complete

        def completing(uploader: Any) -> Any:
            future = complete(uploader)
            written.set()
            return future

        async def failing(*_: Any, **__: Any) -> Any:
            await asyncio.to_thread(written.wait)
            raise FaultError

        store = self.store(place)
        with (
            patch.object(gcsfs.GCSFileSystem, "_request", failing),
            patch.object(uploading._OtherUploader, "complete", completing),
            pytest.raises(FaultError),
            store.create(store.join("large")) as file,
        ):
            file.write(bytes(2 * uploading.PART_BYTES + 1))
        assert store.find_everything() == {}
