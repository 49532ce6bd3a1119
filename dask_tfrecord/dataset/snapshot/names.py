"""What lies in the ``_tfrecord`` directory of a dataset, and the names of those files."""

import json
import re
from collections.abc import Sequence

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import is_inside
from dask_tfrecord.files.storage.store import Store

# The directory of this library in the root of a dataset. Names that start with "_" are hidden from readers.
METADATA_DIRECTORY = "_tfrecord"

# Holds a directory for each write that is running or was interrupted.
STAGING = f"{METADATA_DIRECTORY}/staging"

# An empty file that Hadoop and Spark create after a write. Other tools wait for it; this library ignores it.
SUCCESS = "_SUCCESS"

# The file in the staging directory of a run that lists what its commit replaces.
REPLACED = "replaced.json"

# The list of the files that `export` wrote.
EXPORTS = f"{METADATA_DIRECTORY}/exports.json"

_OFFSETS = re.compile(r"(\d{8})\.offsets\.parquet")
_RUN_ID = re.compile(r"[0-9a-f]{32}")


def snapshot_path(number: int) -> str:
    """Return the path of a snapshot, relative to the root."""
    return f"{METADATA_DIRECTORY}/{number:08d}.parquet"


def offsets_path(number: int) -> str:
    """Return the path of the offsets of the records of a snapshot's files, relative to the root."""
    return f"{METADATA_DIRECTORY}/{number:08d}.offsets.parquet"


def stored_offsets(store: Store) -> dict[int, str]:
    """Return the files of offsets, relative to the root, by the numbers of their snapshots."""
    matches = map(_OFFSETS.fullmatch, store.names(METADATA_DIRECTORY))
    return {int(match[1]): f"{METADATA_DIRECTORY}/{match[0]}" for match in matches if match}


def staged(run: str, name: str) -> str:
    """Return the path in the staging directory of a run, relative to the root."""
    return f"{STAGING}/{run}/{name}"


def open_runs(store: Store) -> list[str]:
    """Return the ids of the runs that have a staging directory: they are running or were interrupted."""
    return [name for name in store.names(STAGING) if _RUN_ID.fullmatch(name)]


def replaced_files(store: Store, run: str) -> list[str]:
    """Return the files that a run replaces and has not removed yet, relative to the root.

    Raises
    ------
    TFRecordError
        If the list is damaged.
    """
    return _stored_paths(store, staged(run, REPLACED))


def exported_files(store: Store) -> list[str]:
    """Return the files that describe the dataset to other libraries, and their list, relative to the root.

    Raises
    ------
    TFRecordError
        If the list is damaged.
    """
    paths = _stored_paths(store, EXPORTS)
    return [*paths, EXPORTS] if paths else []


def record_exports(store: Store, paths: Sequence[str]) -> None:
    """Add files to the list of those that describe the dataset to other libraries."""
    known = dict.fromkeys([*_stored_paths(store, EXPORTS), *paths])
    with store.create(store.join(EXPORTS)) as file:
        file.write(json.dumps(list(known)).encode())


def _stored_paths(store: Store, name: str) -> list[str]:
    """Return the paths that a file of the metadata directory lists; none if there is no such file."""
    path = store.join(name)
    try:
        paths = json.loads(store.fs.cat_file(path))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise TFRecordError(f"not a list of paths ({error})", path=store.public(path)) from None
    if not isinstance(paths, list) or not all(isinstance(one, str) and is_inside(one) for one in paths):
        raise TFRecordError("not a list of paths inside the dataset", path=store.public(path))
    return paths
