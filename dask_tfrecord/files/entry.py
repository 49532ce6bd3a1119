"""What is known of each data file of a dataset, and as a table, in which a snapshot keeps it."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

# The decompressed bytes from the start of one block to the start of the next. More only for a longer record.
BLOCK_BYTES = 1 << 20


class Block(NamedTuple):
    """A place inside a file where reading can start.

    Attributes
    ----------
    offset : int
        Of the stored file, where a raw inflate (or a plain read) can start.
    content : int
        Of the decompressed content, where the block's first record starts.
    record : int
        Number of that record in the file.
    """

    offset: int
    content: int
    record: int


class ColumnStatistics(NamedTuple):
    """What is known of a column's values in one file.

    ``min`` and ``max`` are plain Python values, exact, or None where there are no values or nobody looked;
    the lengths are those of lists and None for scalars.
    """

    name: str
    min: Any
    max: Any
    nulls: int
    min_length: int | None = None
    max_length: int | None = None


@dataclass(frozen=True)
class FileEntry:
    """One data file.

    Attributes
    ----------
    path : str
        Below the dataset's root.
    bytes, records, crc32c : int
        Stored bytes, records, and CRC-32C of the stored bytes.
    values : tuple
        Of the partition columns, in the order of `Snapshot.partition_on`, as plain Python values; None is
        missing.
    blocks : tuple of Block
        In the order of the file; empty if it must be read from its start.
    statistics : tuple of ColumnStatistics
        Of those columns that have any.
    stamp : str
        The `FileInfo.stamp` of the file when the snapshot was written; empty if it is not known.
    """

    path: str
    bytes: int
    records: int
    crc32c: int
    values: tuple[Any, ...] = ()
    blocks: tuple[Block, ...] = ()
    statistics: tuple[ColumnStatistics, ...] = ()
    stamp: str = ""


def is_inside(path: str) -> bool:
    """Whether a path is relative, normal, below the root, and nothing that fsspec would take apart."""
    names = path.split("/")
    return not any(name in ("", ".", "..") for name in names) and not re.search(r"[\\\0]|::|^\w+:", path)
