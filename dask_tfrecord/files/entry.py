"""What a snapshot records about one data file."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

# The decompressed bytes from the start of one block to the start of the next. More only for a longer record.
BLOCK_BYTES = 1 << 20


class Block(NamedTuple):
    """A block of a data file: reading can start at each block.

    A block holds whole records, about 1 MiB of them before compression.

    Attributes
    ----------
    offset : int
        Offset of the block in the stored file, in bytes. In gzip and zlib files, a raw deflate stream can be
        decompressed from there; in files of other codecs, a new frame starts there.
    content : int
        Offset of the block's first record in the decompressed bytes.
    record : int
        Number of the block's first record in the file, from 0.

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
        The column.
    min, max : object
        The smallest and the greatest value as exact Python values. None if there are no values, or none were
        computed.
    nulls : int
        Number of nulls.
    min_length, max_length : int, optional
        The lengths of the shortest and the longest list. None for a scalar column.

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


@dataclass(frozen=True, repr=False)
class FileEntry:
    """One data file of a dataset, as the snapshot records it. `Snapshot.files` is a tuple of them.

    Attributes
    ----------
    path : str
        Path relative to the dataset's root.
    bytes : int
        Stored size.
    records : int
        Number of records.
    crc32c : int
        CRC-32C of the stored bytes.
    values : tuple
        The values of the partition columns, in the order of `Snapshot.partition_on`, as plain Python values.
        None is null.
    blocks : tuple of Block
        The blocks in the order of the file. Empty if the file can only be read from its start.
    statistics : tuple of ColumnStatistics
        The statistics of the columns that have any.
    stamp : str
        Modification time or ETag of the file when the snapshot was written. Empty if it is unknown.

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

    def __repr__(self) -> str:
        return f"FileEntry({self.path!r}, {self.records:,} records, {self.bytes:,} bytes)"


def is_inside(path: str) -> bool:
    """Return True if a path is relative, normalised, stays below the root, and is not a URL for fsspec."""
    names = path.split("/")
    return not any(name in ("", ".", "..") for name in names) and not re.search(r"[\\\0]|::|^\w+:", path)
