"""Write column files, which `dask_tfrecord.files.column_files` reads."""

import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec import crc32c, crc32c_combine, decoded_schema
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.codec.columns import Column
from dask_tfrecord.files.column_files import (
    METADATA_KEY,
    OFFSET,
    all_chunks,
    chunk_range,
    pack_checksums,
)
from dask_tfrecord.files.storage.store import Store

# The largest number of rows of a row group, its largest size in bytes, and that of each of its columns. A
# read of a few rows reads whole row groups. The last limit divides only row groups with texts or lists.
_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 1 << 26
_COLUMN_BYTES = 1 << 21

# The largest size of the dictionary of a column of texts. Texts that mostly differ are stored without one.
_DICTIONARY_BYTES = 1 << 16


class _Sink(io.RawIOBase):
    """A file that counts its bytes, and computes the CRC-32C of each write."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ends: list[int] = []
        self._checksums: list[int] = []
        self.bytes = 0

    def hold(self) -> io.BytesIO:
        """Write to the returned buffer, and no longer to the file, from now on."""
        self._file = held = io.BytesIO()
        return held

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.bytes += len(data)
        self._ends.append(self.bytes)
        self._checksums.append(crc32c(data))
        return len(data)

    def checksum(self, start: int, stop: int) -> int:
        """Return the CRC-32C of a range of bytes that consists of whole writes."""
        first, last = bisect_right(self._ends, start), bisect_left(self._ends, stop)
        total = 0
        for at in range(first, last + 1):
            total = crc32c_combine(
                total, self._checksums[at], self._ends[at] - (self._ends[at - 1] if at else 0)
            )
        return total


class ColumnFileWriter:
    """Write one column file, for the data files of a task. `create_column_file` makes such a writer.

    Rows are added one data file after the other.
    """

    def __init__(self, file: BinaryIO, features: Sequence[Column], required: Collection[str]) -> None:
        self._file, self._sink = file, _Sink(file)
        self.written = 0, 0  # the size of the closed column file, and the CRC-32C of its footer
        fields = decoded_schema(tuple(features))
        self._features = [item.with_nullable(item.name not in required) for item in fields]
        self._schema = pa.schema([*self._features, pa.field(OFFSET, pa.int64(), nullable=False)])
        paths = [(f"{one.name}.list.element" if one.depth else one.name, one.kind) for one in features]
        integers = {OFFSET, *(path for path, kind in paths if kind == "int64")}
        integers -= {path for path, kind in paths if kind != "int64"}  # a name may be the path of a list
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="none",
            # Numbers are written and read faster without a dictionary.
            use_dictionary=[path for path, kind in paths if kind in ("bytes", "string")],
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
            write_statistics=[path for path, _ in paths],
        )
        self._files: list[dict[str, Any]] = []
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0  # of the waiting tables
        self._records = self._row_groups = 0  # of the current data file, as far as they are written

    def add(self, rows: pa.RecordBatch | pa.Table, offsets: Ints) -> None:
        """Add rows of the current data file.

        The columns of ``rows`` are the features, in types that are encoded. ``offsets`` are the positions of
        the records in the decompressed content of the data file.
        """
        columns = [
            column if (column := rows[item.name]).type == item.type else column.cast(item.type)
            for item in self._features
        ]
        added = pa.table([*columns, pa.array(offsets)], schema=self._schema)
        self._waiting.append(added)
        self._rows += len(added)
        self._bytes += added.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write()

    def end_file(self, path: str, size: int, checksum: int, content: int) -> None:
        """End the current data file. ``content`` is the size of its decompressed content."""
        self._write()
        self._files.append(
            {
                "path": path,
                "bytes": size,
                "crc32c": checksum,
                "records": self._records,
                "content": content,
                "row_groups": self._row_groups,
            }
        )
        self._records = self._row_groups = 0

    def _write(self) -> None:
        if self._waiting:
            self._write_groups(pa.concat_tables(self._waiting))
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _write_groups(self, rows: pa.Table) -> None:
        widest = max(column.nbytes for column in rows.columns)
        if len(rows) > 1 and (
            len(rows) > _GROUP_ROWS or rows.nbytes > _GROUP_BYTES or widest > _COLUMN_BYTES
        ):
            half = len(rows) // 2
            self._write_groups(rows.slice(0, half))
            self._write_groups(rows.slice(half))
        elif len(rows):
            self._writer.write_table(rows, row_group_size=len(rows))
            self._records += len(rows)
            self._row_groups += 1

    def close(self) -> None:
        """Write the checksums of the column chunks, and the footer."""
        self._writer.add_key_value_metadata({METADATA_KEY: json.dumps({"files": self._files})})
        held = self._sink.hold()
        self._writer.close()
        footer = held.getvalue()
        metadata = pq.read_metadata(pa.BufferReader(footer))
        chunks = [chunk_range(metadata, at, column) for at, column in all_chunks(metadata)]
        checksums = pack_checksums([self._sink.checksum(*chunk) for chunk in chunks])
        self._file.write(checksums + footer)
        self.written = self._sink.bytes + len(checksums), crc32c(footer)

    def discard(self) -> None:
        """Close the writer of Parquet without writing to the file, which will not appear."""
        self._sink.hold()
        self._writer.close()


@contextmanager
def create_column_file(
    store: Store, path: str, features: Sequence[Column], required: Collection[str] = ()
) -> Iterator[ColumnFileWriter]:
    """Create a column file that appears at ``path`` when the ``with`` block ends, as `Store.create` does.

    The features that ``required`` names have a value in each row: Parquet writes and reads such columns
    faster. A power cut may damage the column file, because a flush to the disk takes as long as writing many
    rows.
    """
    with store.create(path, durable=False) as file:
        writer = ColumnFileWriter(file, features, required)
        try:
            yield writer
        except BaseException:  # also on KeyboardInterrupt
            writer.discard()
            raise
        writer.close()
