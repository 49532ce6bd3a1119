"""Make the next version of a dataset. Remember the newest version, so that a process that appends again need
not read the file list again.
"""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import crc32c
from dask_tfrecord.dataset.snapshot.column_statistics import VERSION
from dask_tfrecord.dataset.snapshot.file_table import Base, Stored
from dask_tfrecord.dataset.snapshot.metadata import library_version, next_ancestors
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.names import snapshot_path
from dask_tfrecord.files.storage.listing import with_column
from dask_tfrecord.files.storage.open_file import stamp_of
from dask_tfrecord.files.storage.store import Store

# A file list that consists of more Arrow chunks than this is copied into one chunk, because each chunk takes
# time in every later commit.
_MOST_CHUNKS = 64


class Newest(NamedTuple):
    """The newest version of a dataset at the time when this process read or created the version.

    Attributes
    ----------
    snapshot : Snapshot
        The version, with the way in which its file list is stored.
    stamp : str or None
        The `stamp_of` the version's Parquet file. The stamp differs if the directory was removed in the
        meantime and another dataset was written, whose newest version has the same number. If the stamp is
        None, the next commit reads the newest version.
    """

    snapshot: Snapshot
    stamp: str | None

    @classmethod
    def of(cls, store: Store, snapshot: Snapshot) -> "Newest":
        """Remember a snapshot that was just read from the root of the store, or created there."""
        return cls(snapshot, _stamp(store, snapshot.number))

    def is_unchanged(self, store: Store) -> bool:
        """Return True if the Parquet file of the version is still the file that this process knows."""
        return self.stamp is not None and _stamp(store, self.snapshot.number) == self.stamp


def _stamp(store: Store, number: int) -> str | None:
    """Return the stamp of the Parquet file of a version, or None if the store does not show the file."""
    with suppress(Exception):  # the version is then read again
        return stamp_of(store.look(store.join(snapshot_path(number))))
    return None


def following(
    content: Snapshot, newest: Snapshot | None, run: str, mode: str, details: str = "", number: int = 0
) -> Snapshot:
    """Return the version that follows the newest version, and has the files and columns of ``content``.

    ``number`` is the number of the newest version if no newest version is known, for example because the
    newest version is damaged.
    """
    return replace(
        content,
        run=run,
        library=library_version(),
        number=(number if newest is None else newest.number) + 1,
        mode=mode,
        details=details,
        created=datetime.now(UTC).replace(microsecond=0),
        ancestors=() if newest is None else next_ancestors(newest.ancestors, newest.run),
        oldest=0 if newest is None else newest.oldest,
        stored=None,
    )


def as_stored(store: Store, snapshot: Snapshot, data: bytes) -> Snapshot:
    """Return the snapshot that a read of ``data``, the stored form of the snapshot, would give."""
    rows, stored = _with_versions(snapshot.file_list, snapshot.number), snapshot.stored
    if rows["path"].num_chunks > _MOST_CHUNKS:
        rows = rows.combine_chunks()
    if stored is None or not stored.is_delta(rows):
        path = store.public(store.join(snapshot_path(snapshot.number)))
        stored = Stored(path, Base(snapshot.number, crc32c(data)), rows.schema.empty_table())
    added = _with_versions(stored.added, snapshot.number).combine_chunks()
    return replace(snapshot, file_list=rows, stored=stored._replace(added=added))


def _with_versions(rows: pa.Table, number: int) -> pa.Table:
    """Return a file list in which the files without a version have this version."""
    if VERSION not in rows.column_names:
        return rows.append_column(VERSION, pa.array([number] * len(rows), pa.int64()))
    return with_column(rows, VERSION, pc.fill_null(rows[VERSION], number))
