"""Check the destination of a write: whether the path is usable, and which existing files may be removed.

A directory belongs to at most one dataset, so the checks search for datasets above and below the destination.
Otherwise, readers of an outer dataset would not see the rows of a write to one of its subdirectories, and an
overwrite there would remove files that the snapshot of the outer dataset lists.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow.compute as pc

from dask_tfrecord.codec.codecs import SUFFIXES, is_frame
from dask_tfrecord.dataset.listing import SIDE_FILES, directories_holding, is_hidden, listing_of
from dask_tfrecord.dataset.names import COLUMNS, EXPORTS, KEPT, METADATA_DIRECTORY, STAGING, exported_files
from dask_tfrecord.dataset.read.layouts import ALL, SPLIT, find_splits
from dask_tfrecord.dataset.side_files import first_bytes
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.model import Snapshot, listed_files
from dask_tfrecord.dataset.snapshot.versions import versions
from dask_tfrecord.dataset.snapshot.visibility import data_files, visible_files
from dask_tfrecord.errors import (
    Call,
    ConcurrentWriteError,
    DestinationError,
    FileChangedError,
    Remedy,
    TFRecordError,
    short_list,
)
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.storage.filesystem import Filesystem, check_writable
from dask_tfrecord.storage.found_files import FoundFiles
from dask_tfrecord.storage.paths import name_of, path_text
from dask_tfrecord.storage.redaction import redact_errors, without_credentials
from dask_tfrecord.storage.store import Store
from dask_tfrecord.storage.uploading import check_bucket

# The mode determines what `to_tfrecord` does with existing data. "create" raises an error, "append" keeps all
# rows, "overwrite" replaces all rows, and "partitions" replaces the rows of the partition directories that
# get new rows.
Mode = Literal["create", "append", "overwrite", "partitions"]


def parent_dataset(store: Store) -> Store | None:
    """Return the dataset whose directory contains the root of the store, if any.

    A hidden directory of a dataset, such as ``_quarantine``, does not belong to the dataset, and a directory
    with its own snapshot is a separate dataset.
    """
    # Several paths may lead to the same local directory. Search for datasets along the path that the caller
    # passed, and along the one with all links resolved.
    above = dict.fromkeys([*_above(store, store.root), *_above(store, store.real_path(store.root))])
    parents = [Store.of(store.fs, root) for root in above]
    for parent, is_found in zip(parents, store.for_each(_has_metadata, parents), strict=True):
        if is_found and versions(parent) and not versions(store):
            return parent
    return None


def _above(store: Store, path: str) -> Iterator[str]:
    """Yield each directory above ``path``, the nearest first."""
    root = path.rstrip("/")
    while root:
        root, _, name = root.rpartition("/")
        root = root.rstrip("/")
        if is_hidden(name) and name != METADATA_DIRECTORY:
            return
        if root or store.can_rename:
            yield root


def _has_metadata(store: Store) -> bool:
    try:
        # On S3, `isdir` needs only one request. For a missing directory, a listing would list the parent
        # directory as well.
        return bool(store.fs.isdir(store.join(METADATA_DIRECTORY)))
    except PermissionError:  # many users are allowed to read only some directories of a bucket
        return False


def refuse_inside_dataset(store: Store, function: str) -> None:
    """Raise DestinationError if a directory lies inside another dataset. The error suggests ``function``."""
    if (parent := parent_dataset(store)) is not None:
        raise _inside(store, parent, calls=[Call(function, parent.public(), {})])


@redact_errors
def refuse_write_inside(store: Store, mode: Mode) -> None:
    """Raise DestinationError if the directory lies inside another dataset.

    The error advises the user to write to that dataset instead.
    """
    if (parent := parent_dataset(store)) is None:
        return
    keys: list[str] = []
    with suppress(TFRecordError):
        snapshot = Head.read(parent).snapshot
        keys = [*snapshot.partition_on] if snapshot is not None else []
    partitions: dict[str, Any] = {"partition_on": keys} if keys else {}
    path = parent.public()
    columns = _values_below(parent, store, keys)
    add = Call("to_tfrecord", path, partitions | {"append": True}, "to add the rows", columns)
    effect = "to replace the partitions" if keys else "to replace all rows of that dataset"
    overwrite = {"overwrite": "partitions" if keys else True}
    replace = Call("to_tfrecord", path, partitions | overwrite, effect, columns)
    calls = {"append": [add], "overwrite": [replace], "partitions": [replace]}.get(mode, [add, replace])
    raise _inside(store, parent, calls=calls)


def _values_below(parent: Store, store: Store, keys: Sequence[str]) -> dict[str, Any]:
    """Return the values of partition columns in the names of the directories from ``parent`` to ``store``."""
    parts = [part.partition("=") for part in store.root.removeprefix(parent.root).strip("/").split("/")]
    values = {key: unquote(value) for key, sign, value in parts if sign and key in keys}
    return {key: int(value) if re.fullmatch(r"-?\d+", value) else value for key, value in values.items()}


def refuse_other_files(store: Store) -> None:
    """Raise DestinationError if files written to ``store`` would mix with the files of a dataset."""
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


def refuse_datasets_below(store: Store, harm: str, listed: Store | FoundFiles | None = None) -> None:
    """Raise DestinationError if a subdirectory contains another dataset. ``harm`` is the part of the error
    message that explains what would go wrong.

    ``listed`` is an existing listing of the files, or None to list them.
    """
    for directory in directories_holding(store, METADATA_DIRECTORY, listed):
        if store.names(f"{directory}/{METADATA_DIRECTORY}"):
            raise DestinationError(
                f"the directory holds another dataset, {directory!r}, {harm}",
                "choose another directory, or move that dataset elsewhere; remove only "
                f"{directory}/{METADATA_DIRECTORY} if its files belong to this directory",
            )


# Maps each string with a special meaning in fsspec's paths to that meaning.
_FSSPEC_SYNTAX = {
    "::": "chains filesystems in fsspec; a chain can be read but not written",
    "?versionId=": "selects a version of an object on S3",
}

# An error message lists at most this many names, and gives the number of remaining names.
_MOST_NAMES = 5

# At most this many files are opened to decide whether an error suggests overwrite=True.
_MOST_FILES = 100

# Matches names of TFRecord files. An empty file with a matching name counts as a TFRecord file without
# records.
_TFRECORD_NAME = re.compile(
    r"(.*\.tfr\w*(-\d+-of-\d+)?|part-[\w-]+|[^.]*-\d{2,}-of-\d{2,})"
    rf"(\.({'|'.join(SUFFIXES)}|zlib|deflate))?",
    re.IGNORECASE,
)

# The names of TensorBoard's event files contain this text. TensorBoard's event files consist of records, but
# do not form a dataset.
_EVENTS = "tfevents"


@redact_errors
def destination(
    path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None, filesystem: Filesystem = None
) -> Store:
    """Return the store for a directory in which files will be created or removed.

    Raise DestinationError if fsspec would not interpret ``path`` as the name of one directory, if the
    filesystem cannot create files atomically, or if a directory for metadata is a link.
    """
    text = path_text(path, advice="pass the directory of the dataset")
    for syntax, meaning in _FSSPEC_SYNTAX.items():
        if syntax in text:
            problem = f"{without_credentials(text)!r} contains {syntax!r}, which {meaning}"
            raise DestinationError(problem, "choose a directory without it in its name")
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in text):
        problem = f"{without_credentials(text)!r} contains a line break or another control character"
        raise DestinationError(problem, "choose a directory without it in its name")
    store = Store.at(text, storage_options, filesystem)
    check_writable(store.cache or store.fs)
    if not store.is_remote:  # on a remote store, these checks would need additional requests
        directories = [store.join(one) for one in (STAGING, KEPT, COLUMNS)]
        store.refuse_links(f"{one}/" for one in directories)
        for one in directories:
            store.refuse_file(one)
    return store


@redact_errors
def check_destination(store: Store, mode: Mode, newest: Snapshot | None = None) -> None:
    """Check that a write in the mode ``mode`` can use a directory.

    ``newest`` is the newest snapshot, by default looked for now. Raise DestinationError if the path is a file
    or the root of a filesystem; in the mode "create", if the directory contains a dataset; in all modes but
    "overwrite", if readers would see files that no snapshot lists.
    """
    if is_disk_root(store):  # listing the root directory would take a very long time
        advice = "write to a directory that holds nothing but the dataset"
        raise DestinationError("the root of a filesystem cannot be a dataset", advice)
    kind = "directory" if newest is not None else _kind(store)
    if newest is not None or (kind != "missing" and Head.read(store, intact=True).number):
        if mode == "create":
            problem = "the directory already holds a dataset"
            remedies = [Remedy("append", True, "add to it"), *_overwriting(store, "it")]
            raise DestinationError(problem, "choose another directory", remedies=remedies)
        return
    if kind == "file":
        raise DestinationError("is a file, not a directory", "pass a directory")
    check_bucket(store)
    # On S3, listing a missing directory takes three requests.
    if mode == "overwrite" or kind == "missing":
        return
    files = visible_files(store) if mode == "create" else data_files(store)
    if len(files):
        newest = Head.read(store, intact=True).snapshot
        if newest is not None:  # another write has just committed the first version
            check_destination(store, mode, newest)
            return
        raise _without_snapshot(store, files, mode)


def _kind(store: Store) -> str:
    """Return "missing", "file", or "directory" for the root of the store.

    If the store fails, return "directory".
    """
    store.fs.invalidate_cache(store.root)
    try:
        return "file" if store.fs.info(store.root)["type"] == "file" else "directory"
    except FileNotFoundError:
        return "missing"
    except Exception:  # ignore failures of any class, because the write that follows reports them
        return "directory"


@redact_errors
def replaceable_files(store: Store, newest: Snapshot | None) -> frozenset[str]:
    """Return the files that an overwrite may remove although the newest snapshot does not list them.

    The returned paths are relative to the root of ``store``. ``newest`` is the newest snapshot, or None if it
    is damaged or missing. Raise DestinationError if the directory is protected, or if it contains files that
    are not TFRecord files, links to other directories, or another dataset.
    """
    if (role := _protected_role(store)) is not None:
        raise DestinationError(
            f"{role} is never overwritten", "write to a directory that holds nothing but the dataset"
        )
    found = store.list_visible(is_hidden)
    files = visible_files(store, newest, found)
    for link in found.links:
        raise DestinationError(
            f"the link {link} leads to another directory, and the overwrite would remove the files there",
            "remove the link first",
        )
    listed = listed_files(newest)
    unlisted = files.filter(np.array([name not in listed for name in files.names], bool))
    exported = exported_files(store) if name_of(EXPORTS) in found.names(METADATA_DIRECTORY) else []
    described = SIDE_FILES.difference(exported).intersection(found.names(""))
    foreign = [*_foreign_files(store, unlisted), *sorted(described)]
    if foreign:
        names = short_list([*map(repr, foreign)], _MOST_NAMES)
        problem = f"an overwrite removes only TFRecord files, and the directory also holds {names}"
        raise DestinationError(problem, "move the other files elsewhere, or write to another directory")
    refuse_datasets_below(store, "which the overwrite would remove", found)
    return frozenset(unlisted.names)


def _without_snapshot(store: Store, files: FileList, mode: Mode) -> DestinationError:
    """Return the exception for a write to a directory that contains ``files``, but no snapshot."""
    count, size = len(files), pc.sum(files["bytes"]).as_py() or 0
    total = f"{count:,} files with {size:,} bytes" if count > 1 else f"a file with {size:,} bytes"
    foreign = _foreign_files(store, files.slice(0, _MOST_FILES))
    if foreign:
        problem = f"the directory already holds files, such as {foreign[0]!r}"
        return DestinationError(problem, "choose another directory")
    refuse_datasets_below(store, "whose files would belong to both")
    problem = f"the directory already holds files of other tools ({total}) and no snapshot"
    found = find_splits(listing_of(store).keep(files))
    splits = [] if found is None else [*{*found.names}]
    chosen: dict[str, Any] = {} if splits in ([], [None]) else {SPLIT: splits[0] if len(splits) == 1 else ALL}
    columns = f" with partition_on=[{SPLIT!r}]" if len(splits) > 1 else " then"
    call = Call("add_snapshot", store.public(), chosen, f"first, and append{columns}")
    overwrite = [] if mode == "append" else _overwriting(store, "them")
    return DestinationError(problem, "choose another directory", calls=[call], remedies=overwrite)


def _overwriting(store: Store, what: str) -> list[Remedy]:
    """Return the remedy ``overwrite=True``, unless the directory is protected."""
    return [Remedy("overwrite", True, f"remove {what}")] * (_protected_role(store) is None)


def _foreign_files(store: Store, files: FileList) -> list[str]:
    """Return the paths, relative to the root, of the files that are not TFRecord files."""
    try:
        results = store.for_each(partial(_is_tfrecord, store), files.infos)
    except (FileNotFoundError, FileChangedError):
        raise ConcurrentWriteError(
            "another write removed or replaced files here at the same time", "start the write again"
        ) from None
    return [name for name, is_tfrecord in zip(files.names, results, strict=True) if not is_tfrecord]


def _is_tfrecord(store: Store, file: FileInfo) -> bool:
    """Return True if the decompressed content of a file begins with a record's length and the correct
    checksum of this length.

    An empty file counts as a TFRecord file if its name matches `_TFRECORD_NAME`.
    """
    name = name_of(file.path)
    if _EVENTS in name:
        return False
    if not file.size:
        return bool(_TFRECORD_NAME.fullmatch(name))
    try:
        content = first_bytes(store, file)
    except FileChangedError:
        raise
    except (TFRecordError, PermissionError):
        return False
    return is_frame(content) or (not content and bool(_TFRECORD_NAME.fullmatch(name)))


def is_disk_root(store: Store) -> bool:
    root = os.path.realpath(store.root)
    return not store.is_remote and os.path.dirname(root) == root


def _protected_role(store: Store) -> str | None:
    """Return the reason why a directory is protected from overwrites, such as "the home directory", or None.

    The root of a filesystem, the working directory, the home directory and their parents are protected.
    """
    if not store.root.strip("/") or is_disk_root(store):
        return "the root of a filesystem"
    if store.is_remote:
        return None
    root = os.path.realpath(store.root)
    protected = {}
    with suppress(OSError):  # the current directory may have been removed
        protected["the current directory"] = os.path.realpath(".")
    protected["the home directory"] = os.path.realpath(os.path.expanduser("~"))
    for role, path in protected.items():
        # On some filesystems, two paths that differ in case lead to the same directory.
        with suppress(OSError):
            if root == path or os.path.samefile(root, path):
                return role
    for role, path in protected.items():
        if path.startswith(f"{root}{os.sep}"):
            return f"a directory that contains {role}"
    return None


def refuse_linked_files(store: Store, files: FileList) -> None:
    """Raise DestinationError if files of a dataset are in a directory that is a link."""
    directories = pc.unique(pc.replace_substring_regex(files["path"], "[^/]*$", ""))
    store.refuse_links(store.join(one.decode(errors="surrogateescape")) for one in directories.to_pylist())
