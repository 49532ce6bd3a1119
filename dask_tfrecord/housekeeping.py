"""`exists` and `cleanup`: what is at a place, and what should not be there."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd

from dask_tfrecord.dataset.snapshot.model import versions
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.dataset.write.destination import destination
from dask_tfrecord.dataset.write.orphans import remove_leftovers
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.files.storage.not_found import check_bucket
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store


@redact_errors
def exists(path: PathLike, *, storage_options: dict[str, Any] | None = None) -> bool:
    """Whether there is data at a place, so that `to_tfrecord` would refuse to write to it.

    Parameters
    ----------
    path : str or path-like
        A directory, or a file.
    storage_options : dict, optional
        Passed to the filesystem, such as credentials.

    Returns
    -------
    bool
        True for a dataset, even without rows, for visible files of anyone, and for a file. False for what a
        write left that has not finished.
    """
    store = Store.at(path, storage_options)
    return bool(versions(store) or visible_files(store) or store.fs.isfile(store.root))


@redact_errors
def cleanup(
    path: PathLike,
    *,
    older_than: str | timedelta = "1 day",
    storage_options: dict[str, Any] | None = None,
) -> list[str]:
    """Remove what writes have left that were killed: files that wait for a commit or that no snapshot lists.

    Nothing that a snapshot lists is removed, and nothing that this library did not write, except for what a
    committed overwrite was about to remove. On S3, uploads that were not completed are given up as well.

    Parameters
    ----------
    path : str or path-like
        The directory of the dataset.
    older_than : str or timedelta, default "1 day"
        Writes that have written anything in this time may still be running and are left alone. Less than
        your slowest task takes is dangerous while anyone writes.
    storage_options : dict, optional
        Passed to the filesystem, such as credentials.

    Returns
    -------
    list of str
        What was removed, as paths below the directory.

    Examples
    --------
    >>> dask_tfrecord.cleanup("s3://bucket/train", older_than="6 hours")  # doctest: +SKIP
    ['part-9f3c2a1b-00000-of-00008.tfrecord.gz']
    """
    store = destination(path, storage_options)
    check_bucket(store)
    return remove_leftovers(store, datetime.now(UTC) - _duration(older_than))


def _duration(value: str | timedelta) -> timedelta:
    try:
        if isinstance(value, str | timedelta):
            found = pd.Timedelta(value)
            if found >= timedelta(0):  # which no duration at all, such as that of "", is not
                return found.to_pytimedelta()
    except ValueError:
        pass
    raise TFRecordError(f"older_than={value!r} is not a duration", advice='pass one such as "12 hours"')
