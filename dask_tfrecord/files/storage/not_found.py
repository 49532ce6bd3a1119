"""Why nothing is found at a place: the words for it, looked up only when nothing was found."""

from collections.abc import Iterator
from contextlib import suppress

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.store import Store

# `layout.STAGING`, which is built on this module.
_STAGING = "_tfrecord/staging"


def nothing_at(store: Store, otherwise: str, pattern: str = "") -> FileNotFoundError:
    """The error for a directory, or a pattern in it, where nothing is.

    It says the reason if there is a better one than ``otherwise``.
    """
    check_bucket(store)
    reason = next(_reasons(store, store.public(store.root)), otherwise)
    return FileNotFoundError(f"{store.public(pattern or store.root)}: {reason}")


def unfinished_only(place: str) -> str:
    """What to say of a directory that holds nothing but a write that is under way or broke off."""
    return (
        "the only files are those of a write that has not finished; wait for it, or, if it broke off, remove "
        f"what it left with dask_tfrecord.cleanup({place!r})"
    )


def check_bucket(store: Store) -> None:
    """Raise FileNotFoundError if the root is in a bucket of S3 that does not exist.

    Only a clear answer counts: those who may write to a bucket may not always look at it.
    """
    if not hasattr(store.fs, "call_s3"):
        return
    bucket = store.root.strip("/").partition("/")[0]
    try:
        store.fs.call_s3("head_bucket", Bucket=bucket)
    except FileNotFoundError:
        raise FileNotFoundError(f"{store.public(store.root)}: the bucket {bucket!r} does not exist") from None
    except Exception:  # whatever was asked for fails with the same, or does not need this
        return


def unreachable(place: str, error: BaseException) -> TFRecordError | None:
    """The error for a server that could not be asked; None if it said that there is nothing.

    fsspec makes "not found" of all that goes wrong over HTTP. The text of the failure may hold the URL with
    its secrets, so only its kind is told.
    """
    cause = error.__cause__
    status = getattr(cause, "status", None)
    if cause is None or isinstance(cause, FileNotFoundError) or status in (404, 410):
        return None
    how = f"it answers {status}" if status else type(cause).__name__
    advice = "check the address, and whether the server runs and lets you in"
    return TFRecordError(f"the server could not be asked what is there ({how})", path=place, advice=advice)


def _reasons(store: Store, place: str) -> Iterator[str]:
    with suppress(Exception):
        if store.names(_STAGING):
            yield unfinished_only(place)
