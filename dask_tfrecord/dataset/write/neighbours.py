"""Find datasets above and below a directory, because a directory may belong to only one dataset.

If a write goes to a subdirectory of another dataset, readers of the other dataset do not see the new rows. An
overwrite of such a subdirectory removes files that the snapshot of the other dataset lists.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from dask_tfrecord.dataset.snapshot.model import find_snapshot, listed_files
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY
from dask_tfrecord.dataset.snapshot.versions import versions
from dask_tfrecord.dataset.write.run import Mode
from dask_tfrecord.errors import Call, DestinationError, TFRecordError
from dask_tfrecord.files.storage.listing import directories_holding
from dask_tfrecord.files.storage.local_links import is_hidden
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store

# The largest number of concurrent requests to the store.
_THREADS = 16


def parent_dataset(store: Store) -> Store | None:
    """Return the dataset in whose directory the root of the store lies, or None.

    A hidden directory of a dataset, such as ``_quarantine``, does not belong to the dataset. A directory with
    a separate snapshot belongs to the dataset above only if that dataset's snapshot lists files in the
    directory.
    """
    # Several paths may lead to the same local directory. Two of these paths are searched for datasets: the
    # path that the caller passed, and the path without links.
    paths = [store.root, os.path.realpath(store.root)] if store.local else [store.root]
    above = dict(one for path in paths for one in _above(store, path))
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda root: _has_metadata(Store(store.fs, root)), above))
    for (root, below), is_found in zip(above.items(), found, strict=True):
        parent = Store(store.fs, root)
        if is_found and versions(parent) and (not versions(store) or _lists_below(parent, below)):
            return parent
    return None


def _above(store: Store, path: str) -> Iterator[tuple[str, str]]:
    """Yield each directory above a path, the nearest first, with the path relative to this directory."""
    root, below = path.rstrip("/"), ""
    while root:
        root, _, name = root.rpartition("/")
        root, below = root.rstrip("/"), f"{name}/{below}"
        if is_hidden(name) and name != METADATA_DIRECTORY:
            return
        if root or store.renames:  # the root of an object store holds only buckets, and is no dataset
            yield root, below


def _has_metadata(store: Store) -> bool:
    try:
        # On S3, `isdir` needs only one request. Listing a directory that does not exist would also list the
        # parent of the directory.
        return bool(store.fs.isdir(store.join(METADATA_DIRECTORY)))
    except PermissionError:  # many users may read only some directories of a bucket
        return False


def _lists_below(parent: Store, below: str) -> bool:
    try:
        snapshot = find_snapshot(parent)
    except TFRecordError:  # a damaged snapshot may list any file
        return True
    return any(path.startswith(below) for path in listed_files(snapshot))


def refuse_inside_dataset(store: Store, function: str) -> None:
    """Raise an error if the directory lies inside another dataset.

    Parameters
    ----------
    store : Store
        The directory to check, which need not exist.
    function : str
        The function that the error suggests for the directory of the other dataset, such as ``index``.

    Raises
    ------
    DestinationError
        If the directory lies inside another dataset.
    """
    if (parent := parent_dataset(store)) is not None:
        raise _inside(store, parent, calls=[Call(function, parent.public(), {})])


@redact_errors
def refuse_write_inside(store: Store, mode: Mode) -> None:
    """Raise an error if a write of rows goes to a directory inside another dataset.

    Raises
    ------
    DestinationError
        If the directory lies inside another dataset. The error suggests a write to the other dataset.
    """
    if (parent := parent_dataset(store)) is None:
        return
    keys: list[str] = []
    with suppress(TFRecordError):
        snapshot = find_snapshot(parent)
        keys = [*snapshot.partition_on] if snapshot is not None else []
    partitions: dict[str, Any] = {"partition_on": keys} if keys else {}
    path = parent.public()
    add = Call("to_tfrecord", path, partitions | {"append": True}, "to add the rows")
    effect = "to replace the partitions" if keys else "to replace all rows of that dataset"
    replace = Call("to_tfrecord", path, partitions | {"overwrite": "partitions" if keys else True}, effect)
    calls = {"append": [add], "overwrite": [replace], "partitions": [replace]}.get(mode, [add, replace])
    raise _inside(store, parent, calls=calls)


def refuse_other_files(store: Store) -> None:
    """Raise an error if files that do not belong to a dataset would be written into a dataset.

    Raises
    ------
    DestinationError
        If the path is a dataset, or lies inside a dataset.
    """
    parent = store if versions(store) else parent_dataset(store)
    if parent is not None:
        hidden = parent.public(parent.join("_files"))
        raise _inside(store, parent, advice=f"choose a hidden directory, such as {hidden!r}")


def _inside(
    store: Store, parent: Store, *, advice: str | None = None, calls: Sequence[Call] = ()
) -> DestinationError:
    outside = "choose a path outside of the dataset"
    inside = f"lies inside the dataset {parent.public()!r}"
    return DestinationError(
        "the directory holds a TFRecord dataset" if parent is store else f"the path {inside}",
        f"{advice}, or {outside}" if advice else outside,
        calls=calls,
    )


def refuse_datasets_below(store: Store, harm: str) -> None:
    """Raise an error if a subdirectory of the store's root holds another dataset.

    Raises
    ------
    DestinationError
        If a subdirectory holds another dataset. ``harm`` is the part of the error message that says what
        would go wrong.
    """
    for directory in directories_holding(store, METADATA_DIRECTORY):
        if store.names(f"{directory}/{METADATA_DIRECTORY}"):
            raise DestinationError(
                f"the directory holds another dataset, {directory!r}, {harm}",
                "choose another directory, or move that dataset elsewhere; remove only "
                f"{directory}/{METADATA_DIRECTORY} if its files belong to this directory",
            )
