"""The stored versions of a dataset: their numbers, and the files of one version, with those of its base."""

import re
from typing import Any

import pyarrow as pa

from dask_tfrecord.dataset.snapshot.column_statistics import check, check_unique
from dask_tfrecord.dataset.snapshot.file_table import Base, Stored, concatenate, invalid_snapshot
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY, snapshot_path
from dask_tfrecord.dataset.snapshot.snapshot_file import Part, read_part
from dask_tfrecord.files.storage.store import Store

_NAME = re.compile(r"\d{8}\.parquet")


class _LostBaseError(FileNotFoundError):
    """The base of a version is gone: an overwrite has just removed it, or the dataset is damaged."""


def versions(store: Store) -> list[int]:
    """Return the numbers of the snapshots in the store's root, the newest last."""
    return sorted(int(name[:8]) for name in store.names(METADATA_DIRECTORY) if _NAME.fullmatch(name))


def find_newest(store: Store) -> dict[str, Any] | None:
    """Return the fields of the newest snapshot in the store's root, or None.

    Raises
    ------
    TFRecordError
        If its file or the file of its base is damaged, or if its base is lost.
    """
    while numbers := versions(store):
        try:
            return read_version(store, numbers[-1])
        except FileNotFoundError as error:  # an overwrite has just removed it, and created a newer one
            if versions(store) != numbers:
                continue
            if isinstance(error, _LostBaseError):
                raise invalid_snapshot(error, store.public(store.join(snapshot_path(numbers[-1])))) from error
            raise
    return None


def read_version(store: Store, number: int) -> dict[str, Any]:
    """Return the fields of one snapshot in the store's root.

    Raises
    ------
    FileNotFoundError
        If its file is gone, or the file of its base.
    TFRecordError
        If one of the files is damaged.
    """
    part = read_part(store, number)
    return assemble(part, None if part.base is None else _read_base(store, part.base))


def _read_base(store: Store, base: Base) -> Part:
    path = store.public(store.join(snapshot_path(base.version)))
    try:
        part = read_part(store, base.version)
    except FileNotFoundError:
        raise _LostBaseError(f"{path}: later versions add to this version, and its file is missing") from None
    if part.crc32c != base.crc32c:
        raise _LostBaseError(f"{path}: later versions add to this version, and its file is another one")
    return part


def assemble(part: Part, base: Part | None) -> dict[str, Any]:
    """Return the fields of the snapshot that a file and the file of its base describe.

    Raises
    ------
    TFRecordError
        If the two do not belong together.
    """
    rows, added = part.rows, part.rows.slice(0, 0)
    try:
        check((part.base is None) == (base is None), "the files of its base are missing")
        if base is not None:
            check(base.base is None, "its base adds to another version")
            for name in ("schema", "partitioning"):
                check(base.fields[name] == part.fields[name], f"its base has another {name}")
            rows, added = concatenate([base.rows, part.rows]), part.rows
            check_unique(rows["path"])
    except (pa.ArrowException, ValueError) as error:
        raise invalid_snapshot(error, part.path) from error
    stored = Stored(part.path, part.base or Base(part.number, part.crc32c), added)
    return {**part.fields, "number": part.number, "file_list": rows, "stored": stored}
