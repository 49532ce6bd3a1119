"""Which directories may be overwritten, and which files an overwrite may remove. Removes nothing itself."""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import decompressor, detect, is_frame
from dask_tfrecord.dataset.snapshot.model import find_snapshot
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.errors import DestinationError, TFRecordError
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.local_links import linked_directories
from dask_tfrecord.files.storage.paths import name_of, parent_of
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store

# Files whose first bytes are read at a time.
_THREADS = 16

# Names that an error lists before it only counts the others.
_MOST_NAMES = 5

# Files whose content is looked at before a refused write says what an overwrite would remove.
_MOST_FILES = 100

# An empty file is a TFRecord file without records only if its name suggests that.
_TFRECORD_NAME = re.compile(
    r"(.*\.tfr\w*(-\d+-of-\d+)?|part-[\w-]+|[^.]*-\d{2,}-of-\d{2,})(\.(gz|zlib|deflate|zst|lz4|bz2|xz))?",
    re.IGNORECASE,
)

# Logs of TensorBoard have the framing of TFRecord, but they are never a dataset.
_EVENTS = "tfevents"


@redact_errors
def replaceable_files(store: Store) -> frozenset[str]:
    """The files that an overwrite may remove although no snapshot lists them, as paths below the root.

    Raises
    ------
    DestinationError
        If the root is a directory that is never overwritten, or if it holds anything but TFRecord files.
    """
    _refuse_precious(store)
    files = visible_files(store)
    if store.local:
        _refuse_links(store)
    listed = listed_files(store)
    unlisted = [file for file in files if store.relative(file.path) not in listed]
    foreign = _foreign(store, unlisted)
    if foreign:
        raise DestinationError(
            f"an overwrite removes only TFRecord files, and the directory also holds {_names(foreign)}",
            path=store.public(store.root),
            advice="move everything else to another place, or write to another directory",
        )
    _refuse_datasets_below(store, unlisted)
    return frozenset(store.relative(file.path) for file in unlisted)


def listed_files(store: Store) -> frozenset[str]:
    """The files that the newest snapshot lists; none if there is no snapshot that can be read."""
    with suppress(TFRecordError):
        snapshot = find_snapshot(store)
        if snapshot is not None:
            return frozenset(file.path for file in snapshot.files)
    return frozenset()


def refusal(store: Store, files: Sequence[FileInfo]) -> DestinationError:
    """The error for a new dataset in a directory that holds these files, which no snapshot lists."""
    count, size = len(files), sum(file.size or 0 for file in files)
    found = f"{count:,} files with {size:,} bytes" if count > 1 else f"a file with {size:,} bytes"
    foreign = _foreign(store, files[:_MOST_FILES])
    if foreign:
        problem, advice = f"the directory already holds files, such as {_names(foreign[:1])}", ""
    else:
        problem = f"the directory already holds files of others ({found}) and no snapshot"
        advice = ", or pass append=True to add to them"
        advice += " or overwrite=True to remove them" * may_be_overwritten(store)
    return DestinationError(
        problem, path=store.public(store.root), advice=f"choose another directory{advice}"
    )


def _foreign(store: Store, files: Sequence[FileInfo]) -> list[str]:
    """The files that are not TFRecord files, as paths below the root."""
    with ThreadPoolExecutor(_THREADS) as pool:
        known = list(pool.map(lambda file: _is_tfrecord(store, file), files))
    return [store.relative(file.path) for file, is_known in zip(files, known, strict=True) if not is_known]


def _is_tfrecord(store: Store, file: FileInfo) -> bool:
    """Whether the content, after decompression, begins with the length of a record and its checksum."""
    name = name_of(file.path)
    if _EVENTS in name:
        return False
    if not file.size:
        return bool(_TFRECORD_NAME.fullmatch(name))
    try:
        content = _first_bytes(store, file, file.size)
    except (TFRecordError, FileNotFoundError, PermissionError):
        return False
    return is_frame(content) or (not content and bool(_TFRECORD_NAME.fullmatch(name)))


def _first_bytes(store: Store, file: FileInfo, size: int) -> bytes:
    """The first bytes of the content; empty if the file holds a compressed stream of nothing."""
    with store.open(file.path, size, 0, min(size, HEADER_BYTES)) as source:
        head = source.peek(HEADER_BYTES)
    compression = detect(head)
    if compression is None:
        return head
    with store.open(file.path, size) as source:
        stream = decompressor(source.readinto, compression)
        content = bytearray()
        view = memoryview(bytearray(HEADER_BYTES))
        while len(content) < HEADER_BYTES and (count := stream.readinto(view)):
            content += view[:count]
        return bytes(content)


def may_be_overwritten(store: Store) -> bool:
    """False for the root of a filesystem, the working directory and home, and for what contains them."""
    return _role(store) is None


def is_disk_root(store: Store) -> bool:
    """Whether a store is the local disk from its top."""
    root = os.path.realpath(store.root)
    return store.local and os.path.dirname(root) == root


def _refuse_precious(store: Store) -> None:
    role = _role(store)
    if role:
        raise DestinationError(
            f"{role} is never overwritten",
            path=store.public(store.root),
            advice="write to a directory that holds nothing but the dataset",
        )


def _role(store: Store) -> str | None:
    """What a directory is that must not be overwritten, if it is any such."""
    return _local_role(store) if store.root.strip("/") else "the root of a filesystem"


def _local_role(store: Store) -> str | None:
    """What a local directory is that must not be overwritten, if it is any such."""
    if not store.local:
        return None
    root = os.path.realpath(store.root)
    if is_disk_root(store):
        return "the root of a filesystem"
    places = {}
    with suppress(OSError):  # the current directory may be gone
        places["the current directory"] = os.path.realpath(".")
    places["the home directory"] = os.path.realpath(os.path.expanduser("~"))
    for role, place in places.items():
        if root == place or _is_same(root, place):
            return role
    for role, place in places.items():
        if place.startswith(f"{root}{os.sep}"):
            return f"a directory that contains {role}"
    return None


def _is_same(one: str, other: str) -> bool:
    """Whether two paths lead to one directory, as on a disk that ignores case."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _refuse_links(store: Store) -> None:
    own = store.join(METADATA_DIRECTORY)
    for link in [own] * os.path.islink(own) + linked_directories(store.root):
        raise DestinationError(
            f"a link, {link}, leads out of it, and the overwrite would remove what is there",
            path=store.public(store.root),
            advice="remove the link first",
        )


def _refuse_datasets_below(store: Store, files: Sequence[FileInfo]) -> None:
    """Refuse a directory of datasets, each with a snapshot of its own."""
    below: set[str] = set()
    for file in files:
        directory = parent_of(store.relative(file.path))
        while directory and directory not in below:
            below.add(directory)
            directory = parent_of(directory)
    looked = sorted(below)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda one: store.names(f"{one}/{METADATA_DIRECTORY}"), looked))
    for directory, names in zip(looked, found, strict=True):
        if names:
            raise DestinationError(
                f"the directory holds another dataset, {directory!r}, which the overwrite would remove",
                path=store.public(store.root),
                advice="write to a directory of its own, or remove that dataset first",
            )


def _names(found: Sequence[str]) -> str:
    names = ", ".join(map(repr, found[:_MOST_NAMES]))
    more = len(found) - _MOST_NAMES
    return f"{names} and {more:,} more" if more > 0 else names
