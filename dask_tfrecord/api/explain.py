"""Implement `explain`: which bytes of which files a computation reads, and why."""

import html
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from os.path import commonprefix
from typing import Any

import dask.dataframe as dd
import pandas as pd

from dask_tfrecord.collection.expr.read_expression import planned_reads
from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.read.task import Partition, SplitReport, explain_partition
from dask_tfrecord.errors import TFRecordError, counted
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.storage.range_requests import MOST_REQUESTS
from dask_tfrecord.storage.redaction import redact_errors

# The text of an explanation lists at most this many files.
_MOST_LINES = 40

# Matches the id of a run in a file name, which the text of an explanation omits.
_RUN_ID = re.compile(r"(?<=part-)[0-9a-f]{32}")

_HEAD = ("partition", "file", "read", "data bytes", "column bytes", "stored bytes", "rule")

_RULE = "the partition values or the statistics in the snapshot exclude all rows"


@public_function
def explain(collection: "dd.DataFrame | dd.Series | dd.Scalar") -> "Explanation":
    """Report which bytes of which files a Dask collection reads, and why.

    No record is decoded. If column files contain the columns that filters use, they are read and the filters
    evaluated, as a computation of the collection does.

    Parameters
    ----------
    collection : dask.dataframe.DataFrame, Series or Scalar
        A collection that is computed from `read_tfrecord`, such as ``ddf[ddf.x > 3].y.sum()``.

    Returns
    -------
    Explanation
        What the task of each partition reads from each file. It prints as a table, and `Explanation.to_dict`
        returns values for JSON.

    Raises
    ------
    TFRecordError
        If the argument is not a Dask collection.
    FileChangedError
        If a file of another tool, whose column file would be read, has a different size or is missing.

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
    for plan, numbers, parts in planned_reads(collection.expr):
        # A read with only one task is explained in this process.
        found = compute_each(_explain, parts) if len(parts) > 1 else [*map(_explain, parts)]
        partitions += found
        left_out += _left_out(plan, numbers, parts)
    return Explanation(partitions, left_out)


@redact_errors
def _explain(partitions: list[Partition]) -> list[SplitReport]:
    return [report for partition in partitions for report in explain_partition(partition)]


def _left_out(
    plan: ReadPlan, numbers: list[list[int]], parts: list[list[Partition]]
) -> Iterator[SplitReport]:
    files, size = plan.left_out
    if files:
        root = plan.store.public(plan.store.join(""))
        yield SplitReport(f"{root}({counted(files, 'file')})", "left out", _RULE, size, files=files)
    for of_task, partitions in zip(numbers, parts, strict=True):
        for number, partition in zip(of_task, partitions, strict=True):
            kept = {(split.file.path, split.start) for split in partition.splits}
            for split in plan.partitions[number]:
                if (split.file.path, split.start) not in kept:
                    path = plan.store.public(split.file.path)
                    yield SplitReport(path, "left out", _RULE, split.stored_bytes)


@dataclass(frozen=True, repr=False)
class Explanation:
    """Report which bytes a Dask collection reads. `explain` returns this object.

    Attributes
    ----------
    partitions : list of list of SplitReport
        What the task of each partition reads from each data file. A `SplitReport` has the attributes
        ``file``, ``read``, ``rule``, ``stored_bytes``, ``data_bytes``, ``column_bytes``, ``rows``,
        ``column_file``, ``files`` and ``requests``, which is about how many requests the task sends to a
        remote store.
    left_out : list of SplitReport
        The files that no task opens, because none of their records can be in the result.
    """

    partitions: list[list[SplitReport]]
    left_out: list[SplitReport]

    @property
    def totals(self) -> dict[str, int]:
        """The numbers of opened, unopened and left-out files, the numbers of stored and read bytes, and about
        how many requests all tasks send to a remote store.
        """
        files = [report for of_task in self.partitions for report in of_task]
        return {
            "files_opened": len({report.file for report in files if report.data_bytes}),
            "files_not_opened": len({one.file for one in files if not one.data_bytes}),
            "files_left_out": sum(report.files for report in self.left_out),
            "column_files": len({report.column_file for report in files} - {None}),
            "stored_bytes": sum(report.stored_bytes for report in [*files, *self.left_out]),
            "data_bytes": sum(report.data_bytes for report in files),
            "column_bytes": sum(report.column_bytes for report in files),
            "requests": sum(report.requests for report in files),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as dicts and lists, which can be written as JSON."""
        return {
            "partitions": [[asdict(report) for report in of_task] for of_task in self.partitions],
            "left_out": [asdict(report) for report in self.left_out],
            "totals": self.totals,
        }

    def __repr__(self) -> str:
        head, *rows = [_HEAD, *self._rows]
        widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
        return "\n".join([*lines, *self._ends])

    def _repr_html_(self) -> str:
        table = pd.DataFrame(self._rows, columns=[*_HEAD]).to_html(index=False)
        return table + "".join(f"<p>{html.escape(end)}</p>" for end in self._ends)

    @cached_property
    def _rows(self) -> list[tuple[str, ...]]:
        """The rows of the table: one row for each of the first ``_MOST_LINES`` reports about files."""
        every = [("", report) for report in self.left_out]
        every[:0] = [(f"{at:,}", report) for at, of_task in enumerate(self.partitions) for report in of_task]
        directories = [report.file.rpartition("/")[0] + "/" for _, report in every if "/" in report.file]
        start = commonprefix(directories).rfind("/") + 1  # noqa: RUF071  # `commonpath` would turn "s3://bucket" into "s3:/bucket"; `rfind` cuts the prefix at a slash
        return [(number, *_cells(report, start)) for number, report in every[:_MOST_LINES]]

    @property
    def _ends(self) -> list[str]:
        """The lines below the table: the number of files not listed, and a summary."""
        more = sum(map(len, [*self.partitions, self.left_out])) - _MOST_LINES
        ends = [*([f"and {counted(more, 'more file')}"] if more > 0 else []), _summary(self.totals)]
        of_tasks = [sum(report.requests for report in of_task) for of_task in self.partitions]
        if most := max(of_tasks, default=0):
            every, tasks = counted(sum(of_tasks), "request"), counted(sum(map(bool, of_tasks)), "task")
            ends.append(
                f"about {every} to the store in {tasks}, up to {most:,} in a task, of which up to "
                f"{min(most, MOST_REQUESTS)} are sent at once"
            )
        return ends


def _cells(report: SplitReport, start: int) -> tuple[str, ...]:
    """Return the cells of a table row. Omit the first ``start`` characters of the path, which all paths
    share.
    """
    numbers = (f"{number:,}" for number in (report.data_bytes, report.column_bytes, report.stored_bytes))
    return (_RUN_ID.sub("…", report.file[start:]), report.read, *numbers, report.rule)


def _summary(totals: dict[str, int]) -> str:
    read = totals["data_bytes"] + totals["column_bytes"]
    opened = counted(totals["files_opened"], "data file")
    of_files = counted(totals["column_files"], "column file")
    return (
        f"{read:,} of {totals['stored_bytes']:,} stored bytes are read: {totals['data_bytes']:,} of "
        f"{opened}, {totals['column_bytes']:,} of {of_files}; {totals['files_not_opened']:,} data files are "
        f"not opened, and {totals['files_left_out']:,} are left out"
    )
