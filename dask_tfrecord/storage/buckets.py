"""Check that a bucket exists, and find or abort its unfinished uploads."""

from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from dask_tfrecord.errors import NotFoundError
from dask_tfrecord.storage.filesystem import protocols_of
from dask_tfrecord.storage.store import Store


def check_bucket(store: Store) -> None:
    """Raise NotFoundError if the bucket (S3, GCS) or the Azure container of the root does not exist.

    Any other failure is ignored, because a user may be allowed to write to a bucket but not to inspect the
    bucket.
    """
    fs, bucket = store.fs, store.root.strip("/").partition("/")[0]
    is_azure = hasattr(fs, "service_client")
    try:
        if is_azure:
            fs.info(bucket, refresh=True)
        elif hasattr(fs, "call_s3"):
            fs.call_s3("head_bucket", Bucket=bucket)
        elif "gs" in protocols_of(fs):
            fs.call("GET", f"b/{bucket}")
    except FileNotFoundError:
        kind = "container" if is_azure else "bucket"
        problem = f"{store.public()}: the {kind} {bucket!r} does not exist"
        raise NotFoundError(problem, "check its name, or create it") from None
    # A later operation on the bucket either raises the same error, or does not need the missing permission.
    except Exception:
        return


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
