"""Say what the task of a partition reads, without reading it. Only filters on column files are evaluated."""

from dataclasses import dataclass
from typing import Literal

from dask_tfrecord.dataset.read.column_reads import Choice, ColumnReads
from dask_tfrecord.dataset.read.read_task import Partition
from dask_tfrecord.files.splits import Split

Read = Literal["all records", "some records", "column file", "no records", "snapshot", "left out"]

_READS: dict[str, Read] = {
    "decode": "all records",
    "records": "some records",
    "columns": "column file",
    "nothing": "no records",
}


@dataclass(frozen=True)
class SplitReport:
    """What is read of a data file, or of a part of a large data file.

    Attributes
    ----------
    file : str
        The path of the data file.
    read : str
        What is read: "all records", "some records", the "column file" alone, "no records" because the column
        file shows that no row passes the filters, or "snapshot" if only the number of records is needed. A
        file that no row can pass is "left out".
    rule : str
        The reason.
    stored_bytes, data_bytes, column_bytes : int
        The stored size of the file or part, and the number of bytes that are read of the data file and of its
        column file.
    rows : int, optional
        The number of rows that are read, or None if this number is unknown.
    column_file : str, optional
        The path of the column file that is read, relative to the root of the dataset.
    files : int, default 1
        The number of files, which is more than 1 only for files that are left out together.
    """

    file: str
    read: Read
    rule: str
    stored_bytes: int
    data_bytes: int = 0
    column_bytes: int = 0
    rows: int | None = None
    column_file: str | None = None
    files: int = 1


def explain_partition(partition: Partition) -> list[SplitReport]:
    """Return what the task of a partition reads of each of its splits."""
    reads = ColumnReads(partition, picks_rows=partition.predicate is not None)
    return [_report(partition, reads, split) for split in partition.splits]


def _report(partition: Partition, reads: ColumnReads, split: Split) -> SplitReport:
    path, stored = partition.store.public(split.file.path), split.stored_bytes
    if (count := partition.known_count(split)) is not None:
        return SplitReport(path, "snapshot", "the number of records is known", stored, rows=count)
    choice = reads.choose(split, reads.possible(split))
    data = {"decode": stored, "records": choice.fetch.bytes if choice.fetch else 0}.get(choice.way, 0)
    column_bytes = reads.column_bytes(split, choice)
    column_file = split.columns.path if split.columns is not None and column_bytes else None
    rows = _rows(split, choice)
    return SplitReport(path, _READS[choice.way], choice.rule, stored, data, column_bytes, rows, column_file)


def _rows(split: Split, choice: Choice) -> int | None:
    if choice.fetch is not None and choice.way == "records":
        return len(choice.fetch.rows)
    if choice.way == "decode":
        return split.records
    return sum(one.stop - one.start if one.rows is None else len(one.rows) for one in choice.chunks)
