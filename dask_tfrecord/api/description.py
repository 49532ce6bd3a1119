"""Define what a `Dataset` reports about itself: rows, files, columns, statistics, history, damage."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from dask_tfrecord.codec import RecordType
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.collection.opened_path import OpenedPath
from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.read.layouts import SPLIT, read_info, supervised_keys
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.rewrite.verify import verify
from dask_tfrecord.dataset.snapshot.check import check
from dask_tfrecord.dataset.snapshot.head import history_of, open_version
from dask_tfrecord.dataset.snapshot.model import html_table
from dask_tfrecord.dataset.snapshot.visibility import kept_files
from dask_tfrecord.errors import NotFoundError, TFRecordError, counted, short_list
from dask_tfrecord.files.entry import read_column_files
from dask_tfrecord.files.file_list import FileList, statistics_name
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.dtypes import arrow_backed
from dask_tfrecord.schema.fields import Field, Schema, feature_text
from dask_tfrecord.storage.paths import parent_of
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.uploading import check_bucket

# To detect a dataset's codecs, read the first `_HEAD_BYTES` bytes of about `_DETECTED_FILES` files.
_HEAD_BYTES = 16
_DETECTED_FILES = 16


class Facts(OpenedPath):
    """Describe the files, columns and versions of a `Dataset`. Only `verify` reads rows."""

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
            facts["column bytes"] = f"{self.column_files['bytes'].sum():,}, in {counted(count, 'file')}"
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
        """The number of rows that pass the filters, or None if `count_rows` must read files for it."""
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

        `Dataset.expire` removes them after a grace period. Their directory is listed once.
        """
        plan = self._opened()
        return 0 if plan.version is None else _sum(kept_files(plan.store)["bytes"])

    @property
    def files(self) -> pd.DataFrame:
        """The data files in which a row may pass the filters, in row order.

        The columns are ``path``, ``bytes``, ``rows`` (null if unknown) and the partition columns. They are
        Arrow-backed.
        """
        plan = self._plan_of_files  # a commit of another thread may replace the plan
        paths = pa.array(plan.store.public_paths(plan.files.paths), pa.string())
        table = pa.table({"path": paths, "bytes": plan.files["bytes"], "rows": _row_counts(plan)})
        for name, values in plan.partition_values.items():
            table = table.append_column(name, values)
        return arrow_backed(table)

    @property
    def column_files(self) -> pd.DataFrame:
        """The Parquet files with copies of columns of the data files in `files`.

        The columns are ``path`` and ``bytes``. They are Arrow-backed. Without column files, the DataFrame
        is empty.
        """
        plan = self._plan_of_files
        # Several data files may share a column file.
        found = [*dict.fromkeys(filter(None, read_column_files(plan.files)))]
        paths = plan.store.public_paths([plan.store.join(one.path) for one in found])
        sizes = pa.array([one.bytes for one in found], pa.int64())
        return arrow_backed(pa.table({"path": pa.array(paths, pa.string()), "bytes": sizes}))

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
        """The names and types of the partition columns, whose values `files` lists."""
        plan = self._plan_of_files
        return pads.partitioning(plan.schema.select([*plan.partition_values]).arrow, flavor="hive")

    @cached_property
    def splits(self) -> dict[str, int | None]:
        """Map each split to the number of its rows, or to None if it is unknown.

        The splits are the values of the partition column ``split``. Without it, the dict is empty.
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
        """The statistics of the columns in the snapshot, with one row for each column.

        The columns of the DataFrame are ``type`` (the Arrow type), ``feature`` (the kind of feature that
        stores the column, or "directory"), ``nulls`` (the number of nulls), ``min`` and ``max`` (the least
        and the greatest value of a scalar column), and ``min_length`` and ``max_length`` (of the lists of a
        list column). An unknown value is null, for example if the filters may exclude some rows of a file.
        The fields of a struct column follow it.
        """
        plan = self._plan_of_files
        columns = [one for item in self.columns_of(plan).fields for one in item.family]
        rows = [_statistics(plan, one) for one in columns]
        index = pd.Index([one.name for one in columns], name="column")
        return pd.DataFrame(rows, index, ColumnStatistics._fields, dtype=object).astype(_DTYPES)

    @public_function
    def history(self) -> pd.DataFrame:
        """List the versions of the dataset that can still be read, without opening the data files.

        Returns
        -------
        pandas.DataFrame
            One row for each version, the newest last, with these Arrow-backed columns:

            - version : number of the version, for ``open_dataset(path, version=...)``
            - created : time of the commit in UTC; null if this time is unknown
            - mode : "create", "append", "overwrite", "partitions", "compact", "delete", "restore", "repair",
              "expire" or "add_snapshot"; null if the mode is unknown
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

    @public_function
    def check(self) -> pd.DataFrame:
        """List the files once, and report how they differ from the newest version of the dataset.

        No data file is opened, and nothing is changed. Call `verify` to also read all files. On a web server,
        whose pages state no sizes, resized files are not found.

        Returns
        -------
        pandas.DataFrame
            One row for each problem, with these Arrow-backed columns:

            - path : path of the file
            - problem : "missing" for a file of the dataset that does not exist; "resized" for a file of the
              dataset whose size differs from the snapshot; "unlisted" for a TFRecord file that the snapshot
              does not list, so that reads ignore it; "unfinished" for a file of a write that is still
              running or was interrupted
            - bytes : stored size of the file, in bytes; null if the file is missing or its size is unknown
            - listed_bytes : size in the snapshot; null if the snapshot does not list the file
            - rows : row count in the snapshot; null if the snapshot does not list the file

        Raises
        ------
        FileNotFoundError
            If the directory has no snapshot.

        See Also
        --------
        Dataset.verify : Read all files, and also report damaged files.
        Dataset.repair : Drop missing files from the dataset.
        Dataset.add_snapshot : List files that other tools have added or changed.
        Dataset.cleanup : Remove the files of interrupted writes.

        Examples
        --------
        >>> import pathlib
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> people = dask_tfrecord.open_dataset("people")
        >>> len(people.check())
        0
        >>> pathlib.Path(people.files["path"][0]).unlink()
        >>> people.check()[["problem", "listed_bytes", "rows"]]
           problem  listed_bytes  rows
        0  missing            35     1
        """
        self._whole("check")
        store = self._directory("check", writes=False)
        check_bucket(store)
        return check(store)

    @public_function
    def verify(self) -> pd.DataFrame:
        """Read all files completely, and report damaged files and files that differ from the snapshot.

        The files are read in parallel and in bounded memory. Damage is reported, and raises no error.

        Returns
        -------
        pandas.DataFrame
            One row for each file, with these Arrow-backed columns:

            - path : path of the file
            - bytes : stored size of the file, in bytes
            - rows : number of intact records
            - damaged : number of damaged records, counting a byte range without recognisable records as one
            - damaged_bytes : number of damaged bytes in the decompressed content
            - offset : byte offset of the first damage in the decompressed content; null without damage
            - reason : description of the first damage; null without damage
            - drift : how the features in the file differ from the expected columns; empty without a
              difference. The expected columns come from the snapshot, or are inferred from a sample as in
              `read_tfrecord`
            - agrees : false if the file differs from the snapshot; null if there is no snapshot
            - differs : how the file differs from the snapshot; null if there is no snapshot

        Raises
        ------
        FileNotFoundError
            If the path matches no file.

        See Also
        --------
        Dataset.add_snapshot : Store a snapshot of files that another tool wrote.
        read_tfrecord : Read the files; ``on_corrupt`` skips or quarantines damage.

        Examples
        --------
        Damage the first of two files, and let `verify` find the damaged file:

        >>> import pathlib
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> people = dask_tfrecord.open_dataset("people")
        >>> file = pathlib.Path(people.files["path"][0])
        >>> _ = file.write_bytes(file.read_bytes().replace(b"Ada", b"Eve"))

        >>> report = people.verify()
        >>> report[["rows", "damaged", "offset", "agrees"]]
           rows  damaged  offset agrees
        0     0        1       0  False
        1     1        0    <NA>   True
        """
        return verify(self._path, compute_each, **self._whole("verify", "record_type"))


class ColumnStatistics(NamedTuple):
    """Store one row of `Dataset.statistics`."""

    type: pa.DataType
    feature: str
    nulls: int | None = None
    min: Any = pd.NA
    max: Any = pd.NA
    min_length: int | None = None
    max_length: int | None = None


# The least and greatest values keep the dtype object, because the columns of a dataset have different types.
_DTYPES = {
    "feature": pd.ArrowDtype(pa.string()),
    **dict.fromkeys(("nulls", "min_length", "max_length"), pd.ArrowDtype(pa.int64())),
}


def _row_counts(plan: ReadPlan) -> pa.Array:
    """Return the number of rows in each file that pass the filters, or null if it is unknown."""
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
    """Return the minimum of ``low`` and the maximum of ``high``, which are null for arrays of nulls."""
    lows, highs = low.drop_null().to_pylist(), high.drop_null().to_pylist()
    return min(lows, default=pd.NA), max(highs, default=pd.NA)
