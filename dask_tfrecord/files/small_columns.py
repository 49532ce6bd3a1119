"""Store the small columns of large data files in column files.

docs/format.md specifies which columns of a data file are small. Only the rows and the size of the data file
decide, so all writers choose the same columns. The columns of the data file wait in memory until the data
file is complete. The module knows nothing about datasets.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import KIND_TYPES, Column, Ints
from dask_tfrecord.files.column_files import create_column_file
from dask_tfrecord.files.entry import ColumnFile
from dask_tfrecord.files.storage.store import Store

# A data file with fewer stored bytes than this gets no column file.
LEAST_FILE_BYTES = 1 << 23

# The small columns of a data file take at most this part of its stored bytes.
_PART = 100

# While rows are added, the largest columns are left out at each multiple of this number of content bytes, so
# that the columns that wait in memory take at most `_WAITING_BYTES`, or the part `_PART` of the content.
_STEP_BYTES = 1 << 24
_WAITING_BYTES = 1 << 22

# A string takes this many bytes in addition to its text.
_LENGTH_BYTES = 4


class SmallColumnFiles(NamedTuple):
    """Describe the column files with the small columns of data files, one for each large data file.

    Attributes
    ----------
    features : sequence of Column
        The features that may be small: numbers and text, but no lists.
    place : callable
        The function receives the index of a data file among the files of a task. The function returns the
        path of the column file in the store, and its path relative to the dataset's root.
    """

    features: Sequence[Column]
    place: Callable[[int], tuple[str, str]]

    def may_store(self, records: int, size: int) -> bool:
        """Return False if no column of a data file with ``records`` rows and ``size`` bytes can be small."""
        least = [_least_bytes(one) * records for one in self.features]
        return size >= LEAST_FILE_BYTES and bool(least) and min(least) <= size // _PART


def why_no_column_file(size: int) -> str:
    """Explain why a data file with ``size`` bytes has no column file."""
    if size < LEAST_FILE_BYTES:
        return f"it has fewer than {LEAST_FILE_BYTES:,} bytes"
    return "its columns are not small enough"


class SmallColumns:
    """Choose the small columns of each data file of a task, and write them to a column file.

    Add all rows of one data file before the rows of the next data file.
    """

    def __init__(self, store: Store, files: SmallColumnFiles) -> None:
        self._store, self._files = store, files
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        """Begin a data file. All its columns may be small."""
        self._sizes = dict.fromkeys(self._files.features, 0)
        self._rows: list[pa.Table] = []
        self._offsets: list[Ints] = []
        self._copied = 0  # The first of the waiting tables are copies.
        self._next_step = _STEP_BYTES

    def add(self, rows: pa.RecordBatch | pa.Table, offsets: Ints) -> None:
        """Add rows of the current data file. The columns of ``rows`` have storage types.

        ``offsets`` contains the offsets of the records in the decompressed data file.
        """
        start = 0
        while self._sizes and start < len(offsets):
            stop = int(np.searchsorted(offsets, self._next_step))
            self._hold(rows.slice(start, stop - start), offsets[start:stop])
            if stop < len(offsets):
                self._leave_out(int(offsets[stop]))
            start = stop

    def _hold(self, rows: pa.RecordBatch | pa.Table, offsets: Ints) -> None:
        if len(offsets):
            for one in self._sizes:
                self._sizes[one] += _stored_bytes(one, rows[one.name])
            columns = {one.name: rows[one.name] for one in self._sizes}
            self._rows.append(pa.table(columns))
            self._offsets.append(offsets)

    def _leave_out(self, content: int) -> None:
        """Leave out columns that take too many bytes after ``content`` bytes of records."""
        self._next_step = (content // _STEP_BYTES + 1) * _STEP_BYTES
        self._choose(max(_WAITING_BYTES, content // _PART))
        self._copy()

    def _copy(self) -> None:
        """Copy the remaining columns of the rows since the last copy, so that they keep no larger buffers in
        memory. All batches of the same rows give the same chunks, and so the same pages in Parquet.
        """
        names = [one.name for one in self._sizes]
        done = self._copied
        rows = [one.select(names) for one in self._rows]
        if names and len(rows) > done:
            # The text of some rows may be of the type large_string.
            new = pa.concat_tables(rows[done:], promote_options="permissive")
            rows[done:] = [new.take(pa.array(np.arange(len(new)))).combine_chunks()]
            self._offsets[done:] = [np.concatenate(self._offsets[done:])]
        self._rows, self._copied = rows, len(rows)

    def _choose(self, most_bytes: int) -> None:
        """Keep the smallest columns that together take at most ``most_bytes`` bytes.

        Columns of the same size are kept together or left out together, so that a table of numbers does not
        get a copy of its first columns.
        """
        sizes = np.sort(np.array([*self._sizes.values()], np.int64))
        fits = np.searchsorted(sizes.cumsum(), most_bytes, "right")
        limit = sizes[fits] if fits < len(sizes) else most_bytes + 1
        self._sizes = {one: size for one, size in self._sizes.items() if size < limit}
        if not self._sizes:
            self._rows, self._offsets = [], []

    def end_file(self, path: str, size: int, checksum: int, content: int) -> ColumnFile | None:
        """End the current data file, and write its column file if the data file is large and has small
        columns. ``content`` is the decompressed size of the data file.
        """
        written = None
        if size >= LEAST_FILE_BYTES and self._rows:
            self._choose(size // _PART)
            if self._rows:
                written = self._write(path, size, checksum, content)
        self._number += 1
        self._begin()
        return written

    def _write(self, path: str, size: int, checksum: int, content: int) -> ColumnFile:
        in_store, name = self._files.place(self._number)
        self._copy()
        rows = pa.concat_tables(self._rows, promote_options="permissive")
        required = [column for column in rows.column_names if not rows[column].null_count]
        with create_column_file(self._store, in_store, [*self._sizes], required) as writer:
            writer.add(rows, np.concatenate(self._offsets))
            writer.end_file(path, size, checksum, content)
        return ColumnFile(name, *writer.written)


def _least_bytes(feature: Column) -> int:
    """Return the smallest number of bytes that a value of a feature takes."""
    is_number = feature.kind in ("int64", "float")
    return KIND_TYPES[feature.kind].bit_width // 8 if is_number else _LENGTH_BYTES


def _stored_bytes(feature: Column, values: pa.Array | pa.ChunkedArray) -> int:
    """Return the number of bytes that values of a feature take. A null takes as many as a number or ""."""
    text = pc.sum(pc.binary_length(values)).as_py() if feature.kind == "string" else 0
    return _least_bytes(feature) * len(values) + (text or 0)
