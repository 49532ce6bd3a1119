"""Describe a dataset (`inspect`), and explain what the tasks of a read will read (`explain`)."""

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain
from os.path import commonprefix
from typing import Any, Unpack

import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.arguments import ReadKeywords
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.collection.expr.read_expression import planned_reads
from dask_tfrecord.collection.requests import open_columns
from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.query.comparison_keys import comparison_key
from dask_tfrecord.dataset.read.layouts import SPLIT, read_info, supervised_keys
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.dataset.read.read_task import Partition, SplitReport, explain_partition
from dask_tfrecord.dataset.snapshot.file_list import statistics_name
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import TFRecordError, check_instance
from dask_tfrecord.files.storage.listing import PathLike, column_paths
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.storage.store_failures import redact_errors
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.public_functions import calling, public_function
from dask_tfrecord.schema.fields import Field, Schema, feature_text

# The number of bytes at the start of a file from which the codec is detected. It is also the approximate
# number of files whose codec is detected.
_HEAD_BYTES = 16
_DETECTED_FILES = 16


@dataclass(frozen=True)
class ColumnDescription:
    """The description of a column: its type, and what the statistics of all files prove about its values.

    Parameters
    ----------
    name : str
        The name of the column.
    type : pyarrow.DataType
        The type of the column.
    feature : str
        The kind of feature that stores the column, or "directory" for a partition column.
    nulls : int, optional
        The number of nulls in the column, or None if the number of nulls is not known.
    min, max : object, optional
        The smallest and the greatest value of the column, or None if the column has no values, or if the
        smallest and the greatest value are not known.
    lengths : tuple of int, optional
        The lengths of the shortest and the longest list, or None if the column has no lists, or if the
        lengths of its lists are not known.
    """

    name: str
    type: pa.DataType
    feature: str
    nulls: int | None = None
    min: Any = None
    max: Any = None
    lengths: tuple[int, int] | None = None


@public_function
def inspect(
    path: PathLike | Sequence[PathLike], *, columns: Sequence[str] | None = None, **read: Unpack[ReadKeywords]
) -> "Description":
    """Open a dataset without Dask, to see what it holds or to iterate over its rows.

    If the dataset has a snapshot, the description is taken from the snapshot. If the dataset has no snapshot,
    a sample of its records is read.

    Parameters
    ----------
    path : str, path-like or list of these
        A directory, a glob, a file, or a list of these, as in `read_tfrecord`.
    columns : list of str, optional
        The columns to describe and to read, in this order. By default, all columns are described.
    **read
        Keywords that say which rows are read, as in `read_tfrecord`, such as ``schema``, ``filters`` and
        ``version``. ``max_corrupt`` applies to each file separately.

    Returns
    -------
    Description
        The description of the dataset's files and columns. `Description.iter_tables` reads the rows of the
        dataset.

    Raises
    ------
    FileNotFoundError
        If the path matches no file, or if the dataset does not have this ``version``.
    CorruptRecordError
        If a record of the sample is damaged.
    SchemaError
        If ``columns`` or ``filters`` name an unknown column.

    See Also
    --------
    verify : Read all files, and report damage and differences.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan", None], "born": [1815, 1912, 1906]}, npartitions=2)
    >>> snapshot = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> found = dask_tfrecord.inspect("people")
    >>> found.rows, len(found.files)
    (3, 2)
    >>> for column in found.columns:
    ...     print(column.name, column.type, column.nulls, column.min, column.max)
    name string 1 Ada Alan
    born int64 0 1815 1912
    >>> next(found.iter_tables()).to_pylist()
    [{'name': 'Ada', 'born': 1815}, {'name': 'Alan', 'born': 1912}]
    """
    dataset, schema = open_columns(path, columns, None, read)
    return Description(dataset, schema)


class Description:
    """The files, the columns and the rows of a dataset, as `inspect` returns them.

    Attributes
    ----------
    schema : Schema
        The schema of the columns that are read.
    version : int, optional
        The number of the dataset's version that is described, or None if the dataset has no snapshot.
    """

    def __init__(self, dataset: ReadPlan, schema: Schema) -> None:
        check_instance("dataset", dataset, ReadPlan)
        check_instance("schema", schema, Schema)
        self._dataset = dataset
        self.schema = schema
        self.version = dataset.version

    def __repr__(self) -> str:
        return f"Description({self.path!r}, {len(self.files):,} files, {len(self.schema.fields):,} columns)"

    @property
    def path(self) -> str:
        """The root path of the dataset, without credentials."""
        return self._dataset.store.public()

    @property
    def _files(self) -> pa.Table:
        """The file list of the plan. Each file has one row, because files are not split."""
        return self._dataset.partitions.rows

    @property
    def files(self) -> list[str]:
        """The paths of the files in the order of their rows.

        Files that cannot hold a row that passes the filters are omitted.
        """
        return self._dataset.store.public_paths(column_paths(self._files["path"]))

    @property
    def sizes(self) -> list[int]:
        """The stored size of each file, in bytes."""
        sizes: list[int] = pc.fill_null(self._files["size"], 0).to_pylist()
        return sizes

    @cached_property
    def rows(self) -> int | None:
        """The number of rows in the files, counted before filters are applied.

        None if no snapshot proves the number of rows.
        """
        return None if self._records is None else _sum(self._records)

    @cached_property
    def versions(self) -> list[dict[str, Any]]:
        """The readable versions of the dataset, the newest last, as `Snapshot.history` describes them.

        The list is empty if the dataset has no snapshot.
        """
        if self.version is None:
            return []
        store = self._dataset.store
        history = Snapshot.history(store.root, filesystem=store.fs)
        versions: list[dict[str, Any]] = pa.Table.from_pandas(history, preserve_index=False).to_pylist()
        return versions

    @cached_property
    def codecs(self) -> list[str]:
        """The codecs of a sample of the dataset's files. The name "none" stands for uncompressed files."""
        files = self._files.take(np.arange(0, len(self._files), max(1, len(self._files) // _DETECTED_FILES)))
        sizes = zip(column_paths(files["path"]), files["size"].to_pylist(), strict=True)
        heads = self._dataset.store.read_ranges([(path, 0, _HEAD_BYTES) for path, size in sizes if size])
        return list(dict.fromkeys(detect(head) or "none" for head in heads))

    @property
    def partition_columns(self) -> list[str]:
        """The names of the partition columns, whose values are in directory names."""
        return list(self._dataset.partition_values)

    @cached_property
    def splits(self) -> dict[str, int | None]:
        """Map the name of each split to the number of its rows, before filters. None if it is not known.

        The splits are the values of the partition column ``split``. Empty if there is no such column.
        """
        if SPLIT not in self.partition_columns:
            return {}
        # Each file is a partition, so there is a partition value for each file.
        names = self._dataset.partition_values[SPLIT]
        files = pa.table({"split": names, "records": self._files["records"]})
        sums = files.group_by("split").aggregate(
            [("records", "sum", pc.ScalarAggregateOptions(skip_nulls=False))]
        )
        return dict(zip(sums["split"].to_pylist(), sums["records_sum"].to_pylist(), strict=True))

    @cached_property
    def supervised_keys(self) -> tuple[str, ...]:
        """The columns that ``dataset_info.json`` of TFDS calls the input and the label of a model."""
        paths = column_paths(self._files["path"][:1])
        infos = (read_info(self._dataset.store, parent_of(path)) for path in paths)
        return next((supervised_keys(info.get("supervisedKeys")) for info in infos), ())

    @property
    def directories(self) -> int:
        """The number of partition directories."""
        values = (column.to_pylist() for column in self._dataset.partition_values.values())
        return len(set(zip(*values, strict=True)))

    @cached_property
    def columns(self) -> list[ColumnDescription]:
        """The description of each column. The fields of a struct follow the struct."""
        return [self._column(one) for item in self.schema.fields for one in item.family]

    def iter_tables(self, files: Iterable[int] | None = None) -> Generator[pa.Table, None, None]:
        """Yield the rows that pass the filters, in the order of the files, as tables of a few MiB.

        This thread reads one table after the other, so little memory is used. If the iterator is closed
        early, the rest of the current file is not read.

        Parameters
        ----------
        files : iterable of int, optional
            The files to read, as positions in the list `files`. By default, all files are read.

        Raises
        ------
        CorruptRecordError
            If data is damaged, unless ``on_corrupt`` skips damaged data.
        FileChangedError
            If a file changed after it was listed.
        SchemaError
            If a value in a record does not fit its column.
        TFRecordError
            If ``files`` are not positions in the list.
        """
        every = range(self._dataset.npartitions)
        check_instance("files", files, Iterable, type(None))
        for index in every if files is None else files:
            if index not in every:
                raise TFRecordError(f"files={files!r}: there is no file at the position {index!r}")
            with closing(self._dataset.partition(index, self.schema).stream()) as tables:
                while (table := _next(tables, self._dataset.store)) is not None:
                    if table.num_rows:
                        yield table

    @property
    def _records(self) -> pa.ChunkedArray | None:
        """The numbers of records of the files; None if the snapshot does not describe all files."""
        is_described = self.version is not None and "file_records" in self._files.column_names
        records = self._files["file_records"] if is_described else None
        return None if records is None or records.null_count else records

    def _column(self, item: Field) -> ColumnDescription:
        records, values = self._records, self._dataset.partition_values.get(item.name)
        if values is not None:
            nulls = None if records is None else _sum(records.filter(values.is_null()))
            return ColumnDescription(item.name, item.type, "directory", nulls, *_bounds(item, values))
        unknown = ColumnDescription(item.name, item.type, feature_text(item))
        if records is None:
            return unknown
        files, name = self._files.filter(pc.greater(records, 0)), statistics_name(item.name)
        if name not in files.column_names or files[name].null_count:
            return replace(unknown, nulls=None if len(files) else 0)
        statistics = files[name].combine_chunks()
        known = {one.name: statistics.field(one.name) for one in statistics.type}
        described = replace(unknown, nulls=_sum(known["nulls"]))
        if "min_length" in known:
            ends = pc.min(known["min_length"]).as_py(), pc.max(known["max_length"]).as_py()
            return replace(described, lengths=None if None in ends else ends)
        has_bounds = pc.or_(known["min"].is_valid(), pc.equal(known["nulls"], files["file_records"]))
        if not pc.all(has_bounds, min_count=0).as_py():
            return described
        least, greatest = _bounds(item, pa.concat_arrays([known["min"], known["max"]]))
        return replace(described, min=least, max=greatest)


def _sum(numbers: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.sum(numbers, min_count=0).as_py())


@redact_errors
def _next(tables: Iterator[pa.Table], store: Store) -> pa.Table | None:
    """Return the next table, or None. The remedies of an error are those that `inspect` accepts."""
    with calling(inspect):
        return next(tables, None)


def _bounds(item: Field, values: pa.Array) -> tuple[Any, Any]:
    """Return the smallest and the greatest value, in the order of comparisons in filters."""
    try:
        ordered = sorted(values.drop_null().to_pylist(), key=lambda value: comparison_key(value, item.type))
    except TFRecordError:  # values of the column's type have no order
        return None, None
    return (ordered[0], ordered[-1]) if ordered else (None, None)


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
    for plan, numbers, parts in planned_reads(collection.expr):
        plan.is_unchanged(chain.from_iterable(numbers))  # raises if a file has changed
        title = f"{plan.store.public()}: explain"
        # A read of few files needs no tasks.
        found = compute_each(_explain, parts, title) if len(parts) > 1 else [*map(_explain, parts)]
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
