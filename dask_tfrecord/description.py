"""Describe a dataset (`Facts`), and explain which bytes the tasks of a read will read (`explain`)."""

import html
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from os.path import commonprefix
from typing import Any, NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from dask_tfrecord.codec import RecordType
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.collection.expr.read_expression import planned_reads
from dask_tfrecord.collection.opened_path import OpenedPath
from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.read.layouts import SPLIT, read_info, supervised_keys
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.dataset.read.read_task import Partition, SplitReport, explain_partition
from dask_tfrecord.dataset.snapshot.model import history_of, html_table, open_version, short_list
from dask_tfrecord.dataset.snapshot.visibility import kept_files
from dask_tfrecord.errors import NotFoundError, TFRecordError, counted
from dask_tfrecord.files.entry import read_column_files
from dask_tfrecord.files.storage.file_list import FileList, statistics_name
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.range_requests import MOST_REQUESTS, ByteRange
from dask_tfrecord.files.storage.store_failures import redact_errors
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.public_functions import public_function
from dask_tfrecord.schema.fields import Field, Schema, feature_text

# To detect a dataset's codecs, read the first `_HEAD_BYTES` bytes of about `_DETECTED_FILES` files.
_HEAD_BYTES = 16
_DETECTED_FILES = 16


class Facts(OpenedPath):
    """Describe the files, columns and versions of a `Dataset`. No property and no method reads a row."""

    def __repr__(self) -> str:
        try:
            version = "" if self.version is None else f"version {self.version}: "
            rows = "rows not counted" if self.num_rows is None else counted(self.num_rows, "row")
            files = f"{counted(self._count_files(), 'file')}, {self.nbytes:,} bytes"
            names = short_list(self._selected.names)
            return f"Dataset({self.path!r}, {version}{rows}, {files}, columns: {names})"
        # The repr of a damaged dataset must not raise an error.
        except (TFRecordError, NotFoundError) as error:
            return f"Dataset({error})"

    def _repr_html_(self) -> str:
        facts = {
            "path": self.path,
            "version": "none" if self.version is None else str(self.version),
            "rows": "not counted" if self.num_rows is None else f"{self.num_rows:,}",
            "files": f"{self._count_files():,}",
            "bytes": f"{self.nbytes:,}",
        }
        if count := len(self.column_files):
            facts["column bytes"] = f"{_sum(self.column_files['bytes']):,}, in {counted(count, 'file')}"
        if names := self.partitioning.schema.names:
            facts["partition columns"] = ", ".join(names)
        if self.splits:
            facts["splits"] = ", ".join(self.splits)
        known = self.statistics.dropna(axis="columns", how="all").astype(object)
        return html_table(facts) + known.where(known.notna(), "").to_html()

    @cached_property
    def _plan_of_files(self) -> ReadPlan:
        """The read plan, with one partition for each file in which rows may pass the filters."""
        return self.plan(blocksize=None)

    @property
    def _files(self) -> FileList:
        return self._plan_of_files.files

    @cached_property
    def _selected(self) -> Schema:
        """The columns requested when the path was opened, in the requested order; by default, all columns."""
        return self.columns_of(self._plan_of_files)

    @property
    def path(self) -> str:
        """The path of the dataset, or the first of several paths, without credentials."""
        return self._opened().store.public()

    @property
    def version(self) -> int | None:
        """The version of the dataset that this object reads, or None if the path has no snapshot."""
        return self._opened().version

    @property
    def record_type(self) -> RecordType:
        """The type of the message in each record: "example", "sequence_example" or "bytes"."""
        return self._plan_of_files.schema.record_type

    @cached_property
    def num_rows(self) -> int | None:
        """The number of rows that pass the filters, or None if counting the rows requires reading the files.

        If ``num_rows`` is None, `count_rows` reads the files to count the rows.
        """
        plan = self._plan_of_files
        if plan.count is not None:
            return plan.count
        counts = _row_counts(plan)
        return None if counts.null_count else _sum(counts)

    @property
    def nbytes(self) -> int:
        """The stored size of the files in bytes."""
        totals = self._plan_of_files.totals
        return totals.bytes if totals is not None else _sum(self._files["bytes"])

    def _count_files(self) -> int:
        totals = self._plan_of_files.totals
        return totals.files if totals is not None else len(self._files)

    @cached_property
    def kept_bytes(self) -> int:
        """The stored size in bytes of the replaced files that only earlier versions need.

        `Dataset.expire` removes these files after the earlier versions have expired and a grace period has
        passed. The property lists the directory of these files once.
        """
        plan = self._opened()
        return 0 if plan.version is None else _sum(kept_files(plan.store)["bytes"])

    @cached_property
    def files(self) -> pa.Table:
        """The data files in which a row may pass the filters, in row order.

        The table has the columns ``path``, ``bytes``, ``rows`` (null if unknown) and the partition columns.
        """
        plan = self._plan_of_files  # a commit of another thread may replace the plan
        paths = pa.array(plan.store.public_paths(plan.files.paths), pa.string())
        table = pa.table({"path": paths, "bytes": plan.files["bytes"], "rows": _row_counts(plan)})
        for name, values in plan.partition_values.items():
            table = table.append_column(name, values)
        return table

    @cached_property
    def column_files(self) -> pa.Table:
        """The Parquet files with copies of columns of the data files in the table `files`.

        The table has the columns ``path`` and ``bytes``. A dataset without column files has an empty table.
        """
        plan = self._plan_of_files
        # Several data files may share a column file.
        found = [*dict.fromkeys(filter(None, read_column_files(plan.files)))]
        paths = plan.store.public_paths([plan.store.join(one.path) for one in found])
        sizes = pa.array([one.bytes for one in found], pa.int64())
        return pa.table({"path": pa.array(paths, pa.string()), "bytes": sizes})

    @property
    def metadata(self) -> dict[str, str]:
        """The ``custom_metadata`` of this version. If the path has no snapshot, the dict is empty."""
        plan = self._opened()
        if plan.version is None:
            return {}
        return dict(open_version(plan.store, plan.version).custom_metadata)

    @cached_property
    def codecs(self) -> list[str]:
        """The codecs of a sample of the files. The name "none" stands for uncompressed files."""
        plan = self._plan_of_files
        count = len(plan.files)
        files = plan.files.take(np.arange(0, count, max(1, count // _DETECTED_FILES)))
        sizes = zip(files.paths, files["bytes"].to_pylist(), strict=True)
        heads = plan.store.read_ranges([ByteRange(path, 0, _HEAD_BYTES) for path, size in sizes if size])
        return list(dict.fromkeys(detect(head) or "none" for head in heads))

    @property
    def partitioning(self) -> pads.Partitioning:
        """The names and types of the partition columns. The table `files` contains the partition values."""
        plan = self._plan_of_files
        return pads.partitioning(plan.schema.select([*plan.partition_values]).arrow, flavor="hive")

    @cached_property
    def splits(self) -> dict[str, int | None]:
        """Map the name of each split to the number of its rows, or to None if this number is unknown.

        The splits are the values of the partition column ``split``. Without a partition column ``split``, the
        dict is empty.
        """
        plan = self._plan_of_files
        if SPLIT not in plan.partition_values:
            return {}
        files = pa.table({"split": plan.partition_values[SPLIT], "rows": _row_counts(plan)})
        keeps_nulls = pc.ScalarAggregateOptions(skip_nulls=False)
        sums = files.group_by("split").aggregate([("rows", "sum", keeps_nulls)])
        return dict(zip(sums["split"].to_pylist(), sums["rows_sum"].to_pylist(), strict=True))

    @cached_property
    def supervised_keys(self) -> tuple[str, ...]:
        """The input and label columns that TFDS's ``dataset_info.json`` names, or an empty tuple."""
        plan = self._plan_of_files
        infos = (read_info(plan.store, parent_of(path)) for path in plan.files.slice(0, 1).paths)
        return next((supervised_keys(info.get("supervisedKeys")) for info in infos), ())

    @cached_property
    def statistics(self) -> pd.DataFrame:
        """The statistics of the columns, as a table with one row for each column.

        The rows for the fields of a struct column follow the row for the column. The columns of the table are
        ``type`` (the Arrow type), ``feature`` (the kind of feature that stores the column, or "directory"),
        ``nulls`` (the number of nulls), ``min`` and ``max`` (the least and the greatest value of a scalar
        column), and ``min_length`` and ``max_length`` (of the lists of a list column). Statistics come from
        the snapshot. A statistic is None if it is unknown, for example if it is unknown how many rows of a
        file pass the filters.
        """
        plan = self._plan_of_files
        columns = [one for item in self.columns_of(plan).fields for one in item.family]
        rows = [_statistics(plan, one) for one in columns]
        return pd.DataFrame(rows, pd.Index([one.name for one in columns], name="column"), dtype=object)

    @public_function
    def history(self) -> pd.DataFrame:
        """List the versions of the dataset that can still be read, without opening the data files.

        Returns
        -------
        pandas.DataFrame
            A table with a row for each version, the newest last. The columns are Arrow-backed:

            - version : number of the version, for ``open_dataset(path, version=...)``
            - created : time of the commit in UTC; null if this time is unknown
            - mode : "create", "append", "overwrite", "partitions", "compact", "delete", "restore", "repair",
              "expire" or "index"; null if the mode is unknown
            - details : for "delete", the number of removed rows; for "restore", the restored version; for
              "expire", the expired versions; for "repair", the number of dropped files; otherwise null
            - files, rows, bytes : totals of the whole version, not only of the files that the write added
            - run : id of the write, which is part of the names of the files that the write added
            - write_id : the id that the user passed to the write; null if there is none
            - library : version of this package that created the version

        Raises
        ------
        FileNotFoundError
            If the directory has no snapshot.

        Examples
        --------
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
        >>> first = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> second = dask_tfrecord.to_tfrecord(ddf, "people", append=True)
        >>> dask_tfrecord.open_dataset("people").history()[["version", "mode", "files", "rows", "bytes"]]
           version    mode  files  rows  bytes
        0        1  create      2     2     71
        1        2  append      4     4    142
        """
        return history_of(self._directory("history", writes=False))


class ColumnStatistics(NamedTuple):
    """Store one row of `Dataset.statistics`."""

    type: pa.DataType
    feature: str
    nulls: int | None = None
    min: Any = None
    max: Any = None
    min_length: int | None = None
    max_length: int | None = None


def _row_counts(plan: ReadPlan) -> pa.Array:
    """Return the number of rows in each file that pass the filters, or null if the number is unknown."""
    return plan.counts[: len(plan.files)]  # a plan without files contains one empty partition


def _statistics(plan: ReadPlan, item: Field) -> ColumnStatistics:
    counts, values = _row_counts(plan), plan.partition_values.get(item.name)
    if values is not None:
        nulls = None if counts.null_count else _sum(counts.filter(values.is_null()))
        return ColumnStatistics(item.type, "directory", nulls, *_bounds(values, values))
    unknown = ColumnStatistics(item.type, feature_text(item))
    if counts.null_count or not plan.is_described:
        return unknown
    files, name = plan.files.filter(pc.greater(counts, 0)), statistics_name(item.name)
    if name not in files or files[name].null_count:
        return unknown._replace(nulls=None if len(files) else 0)
    statistics = files[name].combine_chunks()
    known = {one.name: statistics.field(one.name) for one in statistics.type}
    described = unknown._replace(nulls=_sum(known["nulls"]))
    if "min_length" in known:
        shortest, longest = _bounds(known["min_length"], known["max_length"])
        return described._replace(min_length=shortest, max_length=longest)
    has_bounds = pc.or_(known["min"].is_valid(), pc.equal(known["nulls"], files["records"]))
    if not pc.all(has_bounds, min_count=0).as_py():
        return described
    least, greatest = _bounds(known["min"], known["max"])
    return described._replace(min=least, max=greatest)


def _sum(numbers: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.sum(numbers, min_count=0).as_py())


def _bounds(low: pa.Array, high: pa.Array) -> tuple[Any, Any]:
    """Return the minimum of ``low`` and the maximum of ``high``. For an array with only nulls, the bound is
    None.
    """
    lows, highs = low.drop_null().to_pylist(), high.drop_null().to_pylist()
    return min(lows, default=None), max(highs, default=None)


# The text of an explanation lists at most this many files.
_MOST_LINES = 40

# Matches the id of a run in a file name. The text of an explanation omits the ids of runs.
_RUN_ID = re.compile(r"(?<=part-)[0-9a-f]{32}")

_HEAD = ("partition", "file", "read", "data bytes", "column bytes", "stored bytes", "rule")

_RULE = "the partition values or the statistics in the snapshot exclude all rows"


@public_function
def explain(collection: "dd.DataFrame | dd.Series | dd.Scalar") -> "Explanation":
    """Report which bytes of which files a Dask collection reads, and why.

    `explain` decodes no record. If column files contain the columns that filters use, `explain` reads these
    columns and evaluates the filters, just as a computation of the collection does.

    Parameters
    ----------
    collection : dask.dataframe.DataFrame, Series or Scalar
        A collection that is computed from `read_tfrecord`, such as ``ddf[ddf.x > 3].y.sum()``.

    Returns
    -------
    Explanation
        What the task of each partition reads from each file. ``print`` shows the explanation as a table, and
        `Explanation.to_dict` returns values for JSON.

    Raises
    ------
    TFRecordError
        If the argument is not a Dask collection.
    FileChangedError
        If a file of another tool, of which a column file would be read, has another size or is missing.

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
        # If a read has only one task, explain the read in this process.
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
        start = commonprefix(directories).rfind("/") + 1  # noqa: RUF071  # the rule suggests `commonpath`, which would make "s3:/bucket" of "s3://bucket"; the next call cuts the prefix at a slash
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
    beside = counted(totals["column_files"], "column file")
    return (
        f"{read:,} of {totals['stored_bytes']:,} stored bytes are read: {totals['data_bytes']:,} of "
        f"{opened}, {totals['column_bytes']:,} of {beside}; {totals['files_not_opened']:,} data files are "
        f"not opened, and {totals['files_left_out']:,} are left out"
    )
