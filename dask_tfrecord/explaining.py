"""Implement `explain`: say which files a Dask collection reads, and why."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from os.path import commonprefix
from typing import Any

import dask.dataframe as dd

from dask_tfrecord.cluster import compute_each
from dask_tfrecord.dataset.read.explained import SplitReport, explain_partition
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.dataset.read.read_task import Partition
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.expr.reading import planned_reads
from dask_tfrecord.files.storage.listing import column_paths
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.public_functions import public_function

# The largest number of files that the text of an explanation lists.
_MOST_LINES = 40

# The id of a run in the name of a file, which the text of an explanation leaves out.
_RUN_ID = re.compile(r"(?<=part-)[0-9a-f]{32}")

_HEAD = ("partition", "file", "read", "data bytes", "column bytes", "stored bytes", "rule")

_BY_VALUES = "the values of the partition columns exclude all rows"
_BY_STATISTICS = "the statistics in the snapshot exclude all rows"


@public_function
def explain(collection: "dd.DataFrame | dd.Series | dd.Scalar") -> "Explanation":
    """Say which bytes of which files a Dask collection reads, and why.

    Nothing is decoded. If the filters of a read use columns of column files, tasks read these columns and
    evaluate the filters, as the computation of the collection does.

    Parameters
    ----------
    collection : dask.dataframe.DataFrame, Series or Scalar
        A collection that is computed from `read_tfrecord`, such as ``ddf[ddf.x > 3].y.sum()``.

    Returns
    -------
    Explanation
        The files of each partition. The text form of the explanation is a table, and
        `Explanation.to_dict` returns values that JSON can hold.

    Raises
    ------
    TFRecordError
        If the argument is not a Dask collection.
    FileChangedError
        If a file has changed since the read was planned.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}, npartitions=1)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "people", columnar=["born"])
    >>> ddf = dask_tfrecord.read_tfrecord("people")
    >>> [file] = dask_tfrecord.explain(ddf.born.max()).partitions[0]
    >>> file.read, file.data_bytes
    ('column file', 0)
    >>> [file] = dask_tfrecord.explain(ddf.name.max()).partitions[0]
    >>> file.read, file.rule
    ('all records', "the column file does not have 'name'")
    """
    if not hasattr(collection, "expr"):
        problem = f"explain() takes a Dask collection, not {type(collection).__name__}"
        raise TFRecordError(problem, "pass the result of read_tfrecord, or what is computed from it")
    partitions: list[list[SplitReport]] = []
    left_out: list[SplitReport] = []
    for read in planned_reads(collection.expr):
        plan, parts = read.plan, read.partitions
        plan.is_unchanged(chain.from_iterable(read.numbers))  # raises if a file has changed
        title = f"{plan.store.public()}: explain"
        # A read of few files needs no tasks.
        found = compute_each(_explain, parts, title) if len(parts) > 1 else [*map(_explain, parts)]
        partitions += found
        left_out += _left_out(plan, read.numbers, parts)
    return Explanation(partitions, left_out)


@redact_errors
def _explain(partitions: list[Partition]) -> list[SplitReport]:
    """Explain the partitions that one task reads. This function runs in a Dask task."""
    return [report for partition in partitions for report in explain_partition(partition)]


def _left_out(
    plan: ReadPlan, numbers: list[list[int]], parts: list[list[Partition]]
) -> Iterator[SplitReport]:
    """Yield the files of a read that no partition reads."""
    files, size = plan.left_out
    if files:
        root = plan.store.public(plan.store.join(""))
        yield SplitReport(f"{root}({files:,} files)", "left out", _BY_VALUES, size, files=files)
    first = [*column_paths(plan.pruned_files["path"])]
    for path, stored in zip(first, plan.pruned_files["size"].to_pylist(), strict=True):
        yield SplitReport(plan.store.public(path), "left out", _BY_STATISTICS, stored or 0)
    for of_task, partitions in zip(numbers, parts, strict=True):
        for number, partition in zip(of_task, partitions, strict=True):
            kept = {(split.file.path, split.start) for split in partition.splits}
            pruned = partition.pruned_files
            checked = set() if pruned is None else {*column_paths(pruned["path"])}
            for split in plan.partitions[number]:
                path = split.file.path
                if (path, split.start) not in kept:
                    rule = _BY_STATISTICS if path in checked else _BY_VALUES
                    yield SplitReport(plan.store.public(path), "left out", rule, split.stored_bytes)


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a Dask collection reads, as `explain` returns it.

    Attributes
    ----------
    partitions : list of list of SplitReport
        What the task of each partition reads of each data file. A `SplitReport` has the attributes ``file``,
        ``read``, ``rule``, ``stored_bytes``, ``data_bytes``, ``column_bytes``, ``rows``, ``column_file`` and
        ``files``.
    left_out : list of SplitReport
        The files of which no record can be in the result, so that no task opens them.
    """

    partitions: list[list[SplitReport]]
    left_out: list[SplitReport]

    @property
    def totals(self) -> dict[str, int]:
        """The number of files that are opened and not opened, and the bytes that are stored and read."""
        files = [report for of_task in self.partitions for report in of_task]
        return {
            "files_opened": len({report.file for report in files if report.data_bytes}),
            "files_not_opened": len({one.file for one in files if not one.data_bytes}),
            "files_left_out": sum(report.files for report in self.left_out),
            "column_files": len({report.column_file for report in files} - {None}),
            "stored_bytes": sum(report.stored_bytes for report in [*files, *self.left_out]),
            "data_bytes": sum(report.data_bytes for report in files),
            "column_bytes": sum(report.column_bytes for report in files),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as dicts and lists that JSON can hold."""
        return {
            "partitions": [[asdict(report) for report in of_task] for of_task in self.partitions],
            "left_out": [asdict(report) for report in self.left_out],
            "totals": self.totals,
        }

    def __repr__(self) -> str:
        every = [("", report) for report in self.left_out]
        every[:0] = [(f"{at:,}", report) for at, of_task in enumerate(self.partitions) for report in of_task]
        directories = [report.file.rpartition("/")[0] + "/" for _, report in every if "/" in report.file]
        start = commonprefix(directories).rfind("/") + 1  # noqa: RUF071  # the rule suggests `commonpath`, which would make "s3:/bucket" of "s3://bucket"; the next call cuts the prefix at a slash
        lines = [_HEAD, *((number, *_cells(report, start)) for number, report in every)]
        shown = lines if len(lines) <= _MOST_LINES + 1 else lines[: _MOST_LINES + 1]
        widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
        rows = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in shown]
        if len(lines) > len(shown):
            rows.append(f"and {len(lines) - len(shown):,} more files")
        return "\n".join([*rows, _summary(self.totals)])


def _cells(report: SplitReport, start: int) -> tuple[str, ...]:
    """Return the cells of a table row. The first ``start`` characters of all paths are equal."""
    numbers = (f"{number:,}" for number in (report.data_bytes, report.column_bytes, report.stored_bytes))
    return (_RUN_ID.sub("…", report.file[start:]), report.read, *numbers, report.rule)


def _summary(totals: dict[str, int]) -> str:
    read = totals["data_bytes"] + totals["column_bytes"]
    return (
        f"{read:,} of {totals['stored_bytes']:,} stored bytes are read: {totals['data_bytes']:,} of "
        f"{totals['files_opened']:,} data files, {totals['column_bytes']:,} of {totals['column_files']:,} "
        f"column files; {totals['files_not_opened']:,} data files are not opened, and "
        f"{totals['files_left_out']:,} are left out"
    )
