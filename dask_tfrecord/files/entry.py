"""Define the entry of a data file in a snapshot: path, size, blocks and statistics of the file."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

# The largest size of a block in decompressed bytes. Only a block that consists of a single longer record
# exceeds this size.
BLOCK_BYTES = 1 << 20


class Block(NamedTuple):
    """A block of a data file, at which a read can start.

    A block holds about 1 MiB of whole records, measured before compression.

    Attributes
    ----------
    offset : int
        Offset of the block in the stored file, in bytes. In gzip and zlib files, a raw deflate stream can be
        decompressed from this offset. In files of other codecs, a new frame starts at this offset.
    content : int
        Offset of the block's first record in the decompressed bytes.
    record : int
        Number of the block's first record in the file, counted from 0.

    Examples
    --------
    >>> import dask_tfrecord
    >>> import pandas as pd
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_pandas(pd.DataFrame({"id": [1, 2, 3]}), npartitions=1)
    >>> dask_tfrecord.to_tfrecord(ddf, "ids", compression="gzip").files[0].blocks
    (Block(offset=10, content=0, record=0),)
    """

    offset: int
    content: int
    record: int


class ColumnStatistics(NamedTuple):
    """The statistics of one column in one file.

    Attributes
    ----------
    name : str
        The column name.
    min, max : object
        The smallest and the greatest value of the column in the file, as exact Python values, or None if the
        column has no values in the file, or if its smallest and greatest value were not computed.
    nulls : int
        Number of nulls of the column in the file.
    min_length, max_length : int, optional
        The lengths of the shortest and the longest list, or None if the column does not hold lists.

    Examples
    --------
    >>> import dask_tfrecord
    >>> import pandas as pd
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_pandas(pd.DataFrame({"id": [1, 2, 3]}), npartitions=1)
    >>> dask_tfrecord.to_tfrecord(ddf, "ids").files[0].statistics
    (ColumnStatistics(name='id', min=1, max=3, nulls=0, min_length=None, max_length=None),)
    """

    name: str
    min: Any
    max: Any
    nulls: int
    min_length: int | None = None
    max_length: int | None = None


class ColumnFile(NamedTuple):
    """The column file that holds a copy of some columns of a data file.

    Attributes
    ----------
    path : str
        Path of the column file relative to the dataset's root.
    bytes : int
        Size of the column file in bytes.
    crc32c : int
        CRC-32C of the footer of the column file. The checksums of its column chunks are in the column file.

    Examples
    --------
    >>> import dask_tfrecord
    >>> import pandas as pd
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_pandas(pd.DataFrame({"id": [1, 2, 3]}), npartitions=1)
    >>> snapshot = dask_tfrecord.to_tfrecord(ddf, "ids", columnar=["id"])
    >>> snapshot.files[0].columns.path.endswith("-00000.parquet")
    True
    """

    path: str
    bytes: int
    crc32c: int


# The columns of a file list that name the column file of each data file. They are null without a column file.
COLUMN_FILE_NAMES = tuple(f"columns.{name}" for name in ColumnFile._fields)


def read_column_files(rows: pa.Table) -> list[ColumnFile | None]:
    """Return the column file of each file of a file list."""
    if COLUMN_FILE_NAMES[0] not in rows.column_names:
        return [None] * len(rows)
    values = zip(*(rows[name].to_pylist() for name in COLUMN_FILE_NAMES), strict=True)
    return [None if row[0] is None else ColumnFile(*row) for row in values]


@dataclass(frozen=True, repr=False)
class FileEntry:
    """The entry of one data file in a snapshot. `Snapshot.files` is a tuple of file entries.

    Attributes
    ----------
    path : str
        Path of the file relative to the dataset's root.
    bytes : int
        Size of the stored file in bytes.
    records : int
        Number of records in the file.
    crc32c : int
        CRC-32C of the file's stored bytes.
    values : tuple
        The file's values of the partition columns, in the order of `Snapshot.partition_on`, as plain Python
        values. The Python value of a null is None.
    blocks : tuple of Block
        The blocks of the file, in order. The tuple is empty if the file can only be read from its start.
    statistics : tuple of ColumnStatistics
        The statistics of each column for which statistics were computed.
    stamp : str
        Modification time or ETag of the file when the snapshot was written. The string is empty if the store
        gives neither.
    columns : ColumnFile, optional
        The column file with a copy of some columns of the file, or None if there is none.
    codec : str, optional
        The codec of the file, such as "gzip", or "none" if the file is uncompressed. None if the program that
        wrote the snapshot did not store the codec.

    Examples
    --------
    >>> import dask_tfrecord
    >>> import pandas as pd
    >>> from dask import dataframe as dd
    >>> cities = pd.DataFrame({"city": ["Oslo", "Rome"], "country": ["NO", "IT"]})
    >>> ddf = dd.from_pandas(cities, npartitions=1)
    >>> snapshot = dask_tfrecord.to_tfrecord(ddf, "cities", partition_on="country")
    >>> for file in snapshot.files:
    ...     print(file.values, file.records, file.bytes)
    ('NO',) 1 36
    ('IT',) 1 36
    """

    path: str
    bytes: int
    records: int
    crc32c: int
    values: tuple[Any, ...] = ()
    blocks: tuple[Block, ...] = ()
    statistics: tuple[ColumnStatistics, ...] = ()
    stamp: str = ""
    columns: ColumnFile | None = None
    codec: str | None = None

    def __repr__(self) -> str:
        return f"FileEntry({self.path!r}, {self.records:,} records, {self.bytes:,} bytes)"


def is_inside(path: str) -> bool:
    """Return True if a path is relative and normalised, lies below the root, and is not a URL for fsspec."""
    names = path.split("/")
    return not any(name in ("", ".", "..") for name in names) and not re.search(r"[\\\0]|::|^\w+:", path)
