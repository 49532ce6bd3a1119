"""Define the names of the files in the directory ``_tfrecord`` of a dataset."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import is_inside
from dask_tfrecord.storage.found_files import FoundFiles
from dask_tfrecord.storage.store import Store

# The name of the metadata directory in the root of a dataset. Readers ignore directories whose names start
# with "_".
METADATA_DIRECTORY = "_tfrecord"

# The staging directory, which contains one subdirectory for each running or interrupted write.
STAGING = f"{METADATA_DIRECTORY}/staging"

# Hadoop and Spark create this empty file after a write, and some tools wait for it before they read. Readers
# of this library ignore it.
SUCCESS = "_SUCCESS"

# This file in a run's staging directory lists the files that the run's commit removes.
REPLACED = "replaced.json"

# This file in a run's staging directory lists the files that the run's commit moves, either to the directory
# `KEPT` or back to their original paths.
MOVED = "kept.json"

# This directory in a run's staging directory contains the spill files of a shuffle.
SPILLS = "rows"

# The directory for data files that older versions list, but the newest version does not. Below this
# directory, each file keeps its relative path in the dataset.
KEPT = f"{METADATA_DIRECTORY}/kept"

# The largest number of bytes that common filesystems allow in a file name.
_LONGEST_NAME = 255

# The directory that contains a dataset's column files.
COLUMNS = f"{METADATA_DIRECTORY}/columns"

# The JSON file that lists the paths of all files that `export` wrote.
EXPORTS = f"{METADATA_DIRECTORY}/exports.json"

# Matches the names of data files and column files. They contain the random id of a run, and never change.
CONSTANT_NAME = r"(part-)?[0-9a-f]{32}-\d{5,}[^/]*\.(tfrecord(\.\w+)?|parquet)"

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_COLUMN_FILE = re.compile(r"(?:.*/)?_tfrecord/columns/([0-9a-f]{32})-\d{5,}(-\d{5,})?\.parquet")


def snapshot_path(number: int) -> str:
    return f"{METADATA_DIRECTORY}/{number:08d}.parquet"


def column_file_path(run: str, number: int, file: int | None = None) -> str:
    """Return the path of column file ``number`` of a run. ``file`` is the index of a data file of its task if
    the column file is about this one only.
    """
    more = "" if file is None else f"-{file:05d}"
    return f"{COLUMNS}/{run}-{number:05d}{more}.parquet"


def run_of_column_file(path: str) -> str | None:
    """Return the id of the run that created a column file, or None for the path of any other file."""
    match = _COLUMN_FILE.fullmatch(path)
    return match[1] if match else None


def staged(run: str, name: str) -> str:
    """Return the path of a file in the staging directory of a run, relative to the root of the dataset."""
    return f"{STAGING}/{run}/{name}"


def open_runs(store: Store | FoundFiles) -> list[str]:
    """Return the ids of the runs with a staging directory. A run with a staging directory is active or was
    interrupted.
    """
    return [name for name in store.names(STAGING) if _RUN_ID.fullmatch(name)]


def closed_column_files(store: Store, found: FoundFiles | None = None) -> list[str]:
    """Return the paths, relative to the root, of the column files that belong to no open run.

    ``found`` is an existing listing, or None to make one. A returned file that no snapshot lists was left by
    a failed run, or belongs to data files that a commit has replaced. To find such files, read the snapshots
    after this call.
    """
    paths = [f"{COLUMNS}/{name}" for name in (found or store).names(COLUMNS)]
    # Each run creates its staging directory before it creates any other file. List the open runs after the
    # column files, so that the run of a new column file is not missed.
    runs = open_runs(store) if paths else []
    return [path for path in paths if run_of_column_file(path) not in (None, *runs)]


def exported_files(store: Store) -> list[str]:
    paths = stored_paths(store, EXPORTS)
    return [*paths, EXPORTS] if paths else []


def record_exports(store: Store, paths: Sequence[str]) -> None:
    known = dict.fromkeys([*stored_paths(store, EXPORTS), *paths])
    store.write_file(store.join(EXPORTS), json.dumps(list(known)).encode())


def _is_file_path(value: object) -> bool:
    directories = (METADATA_DIRECTORY, STAGING, KEPT, COLUMNS)
    if not isinstance(value, str) or not is_inside(value) or value in directories:
        return False
    # In the names of local files, Python represents bytes that are not valid UTF-8 as low surrogates, which
    # the error handler `surrogateescape` converts back to the same bytes.
    with suppress(UnicodeEncodeError):
        names = value.encode(errors="surrogateescape").split(b"/")
        return max(map(len, names)) <= _LONGEST_NAME
    return False


def stored_paths(store: Store, name: str) -> list[str]:
    """Return the paths that a JSON file in the metadata directory lists. If the JSON file does not exist,
    return an empty list.

    Raise TFRecordError if the JSON file is damaged.
    """
    path = store.join(name)
    problem = "not a list of paths inside the dataset"
    try:
        paths = json.loads(store.read_file(path))
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:
        paths, problem = None, f"{problem} ({error})"
    if not isinstance(paths, list) or not all(map(_is_file_path, paths)):
        raise TFRecordError(
            problem,
            "remove it; the files that it listed may then stay in the directory, where reads with the "
            "snapshot ignore them",
            path=store.public(path),
        )
    return paths
