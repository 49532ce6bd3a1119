"""Store the small columns of large data files in column files.

The small columns of a data file of at least 8 MiB are the smallest features of its scalar columns that
together take at most 1 % of its stored bytes. Columns of the same size are stored together or left out
together. Only the rows and the size of the data file decide, so all writers choose the same columns. The
columns wait in memory until the data file is complete; at each multiple of 16 MiB of its content, the largest
ones are left out. The module knows nothing about datasets.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import KIND_TYPES, Column, Ints
from dask_tfrecord.files.column_files import WrittenColumns, create_column_file
from dask_tfrecord.files.entry import ColumnFile
from dask_tfrecord.storage.store import Store

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
    new_paths : callable
        Takes the index of a data file among the files of a task, and returns the path of its column file in
        the store, and the same path relative to the dataset's root.
    """

    features: Sequence[Column]
    new_paths: Callable[[int], tuple[str, str]]

    def may_store(self, records: int, size: int) -> bool:
        """Return False if no column of a data file with ``records`` rows and ``size`` bytes can be small."""
        least = [_least_bytes(kind) * records for kind in {one.kind for one in self.features}]
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

    written: ColumnFile | None = None  # as in `ColumnFileWriter`: no column file is about several data files

    def __init__(self, store: Store, files: SmallColumnFiles) -> None:
        self._store, self._files = store, files
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        """Begin a data file. All its columns may be small."""
        # The columns that are not left out, and their sizes without the rows of `_added`.
        self._features = [*self._files.features]
        self._sizes = np.zeros(len(self._features), np.int64)
        self._waiting: list[tuple[pa.Table, Ints]] = []
        self._added: list[tuple[pa.RecordBatch | pa.Table, Ints]] = []
        self._next_step = _STEP_BYTES

    def add(self, rows: pa.RecordBatch | pa.Table, offsets: Ints) -> None:
        """Add rows of the current data file. The columns of ``rows`` have storage types.

        ``offsets`` contains the offsets of the records in the decompressed data file.
        """
        if not len(offsets):
            return
        if self._added and self._added[-1][1][-1] >= self._next_step:
            self._measure()
            self._wait()
        # The sizes are computed later, because most files have no small column or are not large.
        if self._features:
            self._added.append((rows, offsets))

    def _measure(self) -> None:
        """Add the sizes of the added rows, and leave out the largest columns at each step."""
        for rows, offsets in self._added:
            start = 0
            while self._features and start < len(offsets):
                stop = int(np.searchsorted(offsets, self._next_step))
                self._sizes += _stored_bytes(self._features, rows.slice(start, stop - start))
                if stop < len(offsets):
                    content = int(offsets[stop])
                    self._next_step = (content // _STEP_BYTES + 1) * _STEP_BYTES
                    self._choose(max(_WAITING_BYTES, content // _PART))
                start = stop

    def _choose(self, most_bytes: int) -> None:
        """Keep the smallest columns that together take at most ``most_bytes`` bytes.

        Columns of the same size are kept together or left out together, so that a table of numbers does not
        get a copy of its first columns.
        """
        sizes = np.sort(self._sizes)
        fits = np.searchsorted(sizes.cumsum(), most_bytes, "right")
        if fits < len(sizes):
            kept = self._sizes < sizes[fits]
            self._features, self._sizes = [*compress(self._features, kept)], self._sizes[kept]

    def _wait(self) -> None:
        """Replace the added rows by copies of the columns that are not left out, so that no larger buffers
        stay in memory.
        """
        names = [one.name for one in self._features]
        if not names:
            self._waiting, self._added = [], []
            return
        rows = self._joined(self._added)
        copies = [pa.concat_arrays(rows[name].chunks) for name in names]
        offsets = np.concatenate([offsets for _, offsets in self._added])
        self._waiting = [(waiting.select(names), offsets) for waiting, offsets in self._waiting]
        self._waiting.append((pa.table(copies, names), offsets))
        self._added = []

    def _joined(self, parts: Iterable[tuple[pa.RecordBatch | pa.Table, Ints]]) -> pa.Table:
        """Return the columns that are not left out in one table."""
        names = [one.name for one in self._features]
        tables = [pa.table([rows[name] for name in names], names) for rows, _ in parts]
        # The text of some rows may be of the type large_string.
        return pa.concat_tables(tables, promote_options="permissive")

    def end_file(self, path: str, size: int, checksum: int, content: int) -> ColumnFile | None:
        """End the current data file, and write its column file if it is large and has small columns.
        ``content`` is the decompressed size of the data file.
        """
        written = None
        parts = [*self._waiting, *self._added]
        if parts and self._files.may_store(sum(len(offsets) for _, offsets in parts), size):
            self._measure()
            self._choose(size // _PART)
            if self._features:
                written = self._write(path, size, checksum, content)
        self._number += 1
        self._begin()
        return written

    def _write(self, path: str, size: int, checksum: int, content: int) -> ColumnFile | None:
        columns = WrittenColumns(self._features, *self._files.new_paths(self._number))
        # Copies in one chunk give the same bytes for all batches of these rows: a chunk begins a page of
        # Parquet, and an array that is not copied may have a validity bitmap without nulls.
        self._wait()
        rows = self._joined(self._waiting).combine_chunks()
        required = [column for column in rows.column_names if not rows[column].null_count]
        with create_column_file(self._store, columns, required) as writer:
            writer.add(rows, np.concatenate([offsets for _, offsets in self._waiting]))
            writer.end_file(path, size, checksum, content)
        return writer.written


def _least_bytes(kind: str) -> int:
    """Return the smallest number of bytes that a value takes."""
    return KIND_TYPES[kind].bit_width // 8 if kind in ("int64", "float") else _LENGTH_BYTES


def _stored_bytes(features: Sequence[Column], rows: pa.RecordBatch | pa.Table) -> Ints:
    """Return the number of bytes that each feature takes. A null takes as many as a number or ""."""
    least = {kind: _least_bytes(kind) * rows.num_rows for kind in KIND_TYPES}
    sizes = np.array([least[one.kind] for one in features], np.int64)
    for at, one in enumerate(features):
        if one.kind == "string":
            sizes[at] += _text_bytes(rows[one.name])
    return sizes


def _text_bytes(values: pa.Array | pa.ChunkedArray) -> int:
    if values.null_count or isinstance(values, pa.ChunkedArray):
        return pc.sum(pc.binary_length(values)).as_py() or 0
    # The offsets give the same number in a tenth of the time, which a table of many columns needs.
    type_ = np.int64 if pa.types.is_large_string(values.type) else np.int32
    ends = np.frombuffer(values.buffers()[1], type_, len(values) + 1, values.offset * type_().itemsize)
    return int(ends[-1]) - int(ends[0])
