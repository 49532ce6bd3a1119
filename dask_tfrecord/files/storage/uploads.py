"""List and abort the multipart uploads to S3 that running or killed writes have not completed."""

from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from dask_tfrecord.files.storage.store import Store


class Upload(NamedTuple):
    path: str
    id: str
    started: datetime


def unfinished_uploads(store: Store) -> list[Upload]:
    """List the unfinished multipart uploads below the root. Only S3 has multipart uploads."""
    if not hasattr(store.fs, "call_s3"):
        return []
    bucket, _, key = store.join("").partition("/")
    found: list[Upload] = []
    page: dict[str, Any] = {"IsTruncated": True}
    while page.get("IsTruncated"):
        markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        start = {name: page[last] for name, last in markers.items() if page.get(last)}
        page = store.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, **start)
        found += [
            Upload(f"{bucket}/{one['Key']}", one["UploadId"], one["Initiated"])
            for one in page.get("Uploads", ())
        ]
    return found


def abort(store: Store, upload: Upload) -> None:
    bucket, _, key = upload.path.partition("/")
    with suppress(FileNotFoundError):  # another process may have completed or aborted the upload
        store.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)
