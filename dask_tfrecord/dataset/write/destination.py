"""The directory that a write goes to: is it a usable path, and does its content allow the write?"""

import os
from typing import Any

from dask_tfrecord.dataset.snapshot.versions import versions
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.dataset.write.overwriting import change_remedies, is_disk_root, refusal
from dask_tfrecord.dataset.write.run import Mode
from dask_tfrecord.errors import DestinationError, TFRecordError
from dask_tfrecord.files.storage.filesystem import Filesystem, check_writable
from dask_tfrecord.files.storage.not_found import check_bucket
from dask_tfrecord.files.storage.redaction import redact_errors, without_credentials
from dask_tfrecord.files.storage.store import Store

# Parts of a path that fsspec interprets, and what fsspec does with each.
_FSSPEC_SYNTAX = {
    "::": "chains filesystems in fsspec; a chain can be read but not written",
    "?versionId=": "selects a version of an object on S3",
}


@redact_errors
def destination(
    path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None, filesystem: Filesystem = None
) -> Store:
    """Return the store for a directory in which files will be created or removed.

    Raises
    ------
    TFRecordError
        If ``path`` is not a path.
    DestinationError
        If fsspec would not interpret ``path`` as the name of one directory, or if files cannot be created
        atomically on its filesystem.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text:
        raise TFRecordError(f"{path!r} is not a path", advice="pass the directory to write to")
    for syntax, meaning in _FSSPEC_SYNTAX.items():
        if syntax in text:
            raise DestinationError(
                f"{without_credentials(text)!r} contains {syntax!r}, which {meaning}",
                advice="choose a directory without it in its name",
            )
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in text):
        raise DestinationError(
            f"{without_credentials(text)!r} contains a line break or another control character",
            advice="choose a directory without it in its name",
        )
    store = Store.at(text, storage_options, filesystem)
    check_writable(store.fs)
    return store


@redact_errors
def check_destination(store: Store, mode: Mode = "create") -> int:
    """Check that a directory can be written to in this mode.

    Returns
    -------
    int
        The number of the newest snapshot there, or 0.

    Raises
    ------
    DestinationError
        If ``path`` is a file, or if the mode is "create" and the directory has files that readers would see.
    """
    root = store.public(store.root)
    if is_disk_root(store):  # listing it would take very long
        advice = "write to a directory that holds nothing but the dataset"
        raise DestinationError("the root of a filesystem cannot be a dataset", path=root, advice=advice)
    if store.fs.isfile(store.root):
        raise DestinationError("is a file, not a directory", path=root, advice="pass a directory")
    newest = max(versions(store), default=0)
    if not newest:
        check_bucket(store)
    if mode == "create" and newest:
        raise DestinationError(
            "the directory already holds a dataset",
            path=root,
            advice="choose another directory",
            remedies=change_remedies(store, "it"),
            function="to_tfrecord",
        )
    if mode == "create" and len(files := visible_files(store)):
        raise refusal(store, files)
    return newest
