"""Create the errors for a path without files, which say why there are no files and what to do.

These errors are created only when a path has no files.
"""

from contextlib import suppress

from dask_tfrecord.errors import Call, NotFoundError, TFRecordError
from dask_tfrecord.files.storage.store import Store

# A copy of `dataset.snapshot.names.STAGING`. That module imports this module, so this module cannot import
# it.
_STAGING = "_tfrecord/staging"


def nothing_at(
    store: Store, otherwise: str, pattern: str = "", *, advice: str | None = None, index: str | None = None
) -> FileNotFoundError:
    """Return the error for a directory without files, or for a glob in the directory that matches no files.

    The message says why there are no files. If the reason is not known, the message is ``otherwise`` with
    ``advice``, and with the advice to call `index` for the effect ``index``.
    """
    check_bucket(store)
    place, root = store.public(pattern or store.root), store.public()
    with suppress(Exception):  # if the store fails, the reason stays unknown
        if store.names(_STAGING):
            return unfinished_only(place, root)
    calls = [] if index is None else [Call("index", root, {}, index)]
    return NotFoundError(f"{place}: {otherwise}", advice, calls)


def unfinished_only(place: str, root: str) -> FileNotFoundError:
    """Return the error for a path whose only files belong to a write that has not finished."""
    return NotFoundError(
        f"{place}: the only files belong to a write that has not finished",
        "wait for the write",
        [Call("cleanup", root, {}, "if the write was interrupted")],
    )


def check_bucket(store: Store) -> None:
    """Raise FileNotFoundError if the root is in a bucket of S3, or a container of Azure, that does not exist.

    Any other failure is ignored, because a user may have permission to write to a bucket but not to inspect
    it.
    """
    fs, bucket = store.fs, store.root.strip("/").partition("/")[0]
    is_azure = hasattr(fs, "service_client")
    try:
        if is_azure:
            fs.info(bucket, refresh=True)
        elif hasattr(fs, "call_s3"):
            fs.call_s3("head_bucket", Bucket=bucket)
    except FileNotFoundError:
        kind = "container" if is_azure else "bucket"
        raise FileNotFoundError(f"{store.public()}: the {kind} {bucket!r} does not exist") from None
    # The operation on the bucket either raises the same error or does not need this permission.
    except Exception:
        return


def unreachable(place: str, error: BaseException) -> TFRecordError | None:
    """Return the error for a web server that failed; None if the server answered that a file does not exist.

    fsspec reports every HTTP failure as "not found". The text of the failure may contain the URL with its
    secrets, so the message contains only the HTTP status or the class of the error.
    """
    cause = error.__cause__
    status = getattr(cause, "status", None)
    if cause is None or isinstance(cause, FileNotFoundError) or status in (404, 410):
        return None
    how = f"it answers {status}" if status else type(cause).__name__
    advice = "check the address, that the server is running, and that it grants you access"
    return TFRecordError(f"the request to the server failed ({how})", advice, path=place)
