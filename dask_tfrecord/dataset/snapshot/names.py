"""Where things lie below a dataset's root and what they are called; which files belong to which write."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress

from dask_tfrecord.dataset.snapshot.model import OWN, find_snapshot
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import is_inside
from dask_tfrecord.files.storage.listing import FileInfo, list_directory
from dask_tfrecord.files.storage.store import Store

# Holds a directory for each write that runs, or that broke off.
STAGING = f"{OWN}/staging"

# What such a directory is called. Anything else beside it is not ours.
_RUN = re.compile(r"[0-9a-f]{32}")

# In such a directory: what a write replaces, which is to be removed after its commit.
_REPLACED = "replaced.json"

# For those who wait for a whole dataset as Hadoop and Spark write it; readers here do not look at it.
SUCCESS = "_SUCCESS"

_PART_NAME = re.compile(
    r"part-(?P<run>[0-9a-f]{8})-(?P<index>\d{5,})-of-(?P<count>\d{5,})(-\d{5,})?(-[^/]+)?\.tfrecord(\.\w+)?"
)

# What users may add to names, so that they are names on every store and in every shell; with all else that is
# in the name of a file which is not whole yet they stay below the 255 bytes of most disks.
_LABEL = re.compile(r"\w[\w.=+@-]*")
_LABEL_BYTES = 100


def part_name(
    run: str, index: int, count: int, *, number: int | None = None, label: str = "", suffix: str = ""
) -> str:
    """The data file ``number`` of partition ``index`` of ``count``; without a number if it is the only one.

    Names sort in the order of the rows, up to 100,000 files of a partition. The label is what a user wants
    to see there too; all else must stay, for it tells the files of one write from those of others.
    """
    digits = max(5, len(str(count)))
    more = "" if number is None else f"-{number:05d}"
    more += f"-{label.removesuffix(suffix).removesuffix('.tfrecord')}" if label else ""
    return f"part-{run[:8]}-{index:0{digits}d}-of-{count:0{digits}d}{more}.tfrecord{suffix}"


def check_labels(labels: Sequence[object]) -> None:
    """Refuse labels that are no names, or not each a different one."""
    for label in labels:
        is_label = isinstance(label, str) and _LABEL.fullmatch(label) and len(label.encode()) <= _LABEL_BYTES
        if not is_label:
            raise TFRecordError(
                f"name_function= gives {label!r}",
                advice=f"let it return up to {_LABEL_BYTES} bytes of letters, digits and _.=+@- alone",
            )
    if len(set(labels)) < len(labels):
        raise TFRecordError("name_function= gives several partitions the same name")


def run_of(path: str) -> str | None:
    """The first 8 characters of the run that a data file's name holds; None if it is not one of ours."""
    part = _PART_NAME.fullmatch(path.rpartition("/")[2])
    return part["run"] if part else None


def is_part(path: str) -> bool:
    """Whether a path has the name of a data file that this library writes."""
    return run_of(path) is not None


def unfinished(paths: Sequence[str]) -> list[str]:
    """Those of the paths that are data files of writes of which other partitions' are missing.

    In partition directories that cannot be told, for an empty partition has no files there.
    """
    writes: dict[tuple[str, int], dict[str, str]] = {}
    for path in paths:
        part = _PART_NAME.fullmatch(path.rpartition("/")[2])
        if part and "=" not in path.rpartition("/")[0].rpartition("/")[2]:
            writes.setdefault((part["run"], int(part["count"])), {})[part["index"]] = path
    return [path for (_, count), found in writes.items() if len(found) < count for path in found.values()]


def open_runs(store: Store) -> list[str]:
    """The runs that have not cleared up: they are under way, or broke off."""
    return [name for name in store.names(STAGING) if _RUN.fullmatch(name)]


def visible_files(store: Store) -> list[FileInfo]:
    """The visible files at the root, without those that writes which have not committed put there."""
    return without_open_runs(store, list_directory(store))


def without_open_runs(store: Store, files: Sequence[FileInfo]) -> list[FileInfo]:
    """The files but for those of writes that have not committed."""
    if not any(is_part(file.path) for file in files):
        return list(files)
    hidden = {run[:8] for run in open_runs(store)}
    return [file for file in files if run_of(file.path) not in hidden]


def staged(run: str, name: str) -> str:
    """Where something of a write waits for its commit, below the root."""
    return f"{STAGING}/{run}/{name}"


def note_replaced(store: Store, run: str, paths: Sequence[str]) -> None:
    """Write down what is to be removed after the commit of a run, whoever comes to do it."""
    with store.create(store.join(staged(run, _REPLACED))) as file:
        file.write(json.dumps(paths).encode())


def replaced_by(store: Store, run: str) -> list[str]:
    """The files below the root that a run replaces and has not removed yet."""
    path = store.join(staged(run, _REPLACED))
    try:
        found = json.loads(store.fs.cat_file(path))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise TFRecordError(f"not a list of replaced files ({error})", path=store.public(path)) from None
    if not isinstance(found, list) or not all(isinstance(one, str) and is_inside(one) for one in found):
        raise TFRecordError("not a list of replaced files", path=store.public(path))
    return found


def remove_staging(store: Store, run: str) -> None:
    """Remove all that waits for the commit of a run."""
    store.remove_tree(f"{STAGING}/{run}")


def clear_up(store: Store, run: str) -> None:
    """After the commit of a run: remove what it replaced and whatever of it is left in staging."""
    store.remove(store.join(path) for path in replaced_by(store, run))
    store.fs.pipe_file(store.join(SUCCESS), b"")
    remove_staging(store, run)


def finish_newest(store: Store) -> None:
    """Finish the newest commit's interrupted cleanup, unless its snapshot is damaged."""
    newest = None
    with suppress(TFRecordError):
        newest = find_snapshot(store)
    if newest is not None and newest.run in open_runs(store):
        clear_up(store, newest.run)
