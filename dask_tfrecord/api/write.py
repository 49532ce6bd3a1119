"""Implement `to_tfrecord`: validate the arguments, check the destination, plan and start the write."""

import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, Unpack, overload

import dask.dataframe as dd
import pandas as pd

from dask_tfrecord.collection.expr import lineage
from dask_tfrecord.collection.expr.write_expression import CollectionRows, committed
from dask_tfrecord.collection.frames.schema_plan import Existing, given_types
from dask_tfrecord.collection.frames.table_sources import ArrowArray, ArrowStream, Source, open_source
from dask_tfrecord.collection.scheduler import check_cluster, is_local
from dask_tfrecord.dataset.read.layouts import SPLIT
from dask_tfrecord.dataset.shuffle.table_stream import write_shuffled, write_tables
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.model import Commit
from dask_tfrecord.dataset.write.append_schema import check_existing_data, fixed_columns
from dask_tfrecord.dataset.write.destination import (
    check_destination,
    destination,
    refuse_linked_files,
    refuse_write_inside,
    replaceable_files,
)
from dask_tfrecord.dataset.write.operations import Operation
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import (
    abandon,
    commit,
    discard,
    discard_uncommitted,
    earlier_commit,
    log_summary,
    written,
)
from dask_tfrecord.keywords import arguments, requests
from dask_tfrecord.keywords.arguments import (
    AllWriteKeywords,
    StreamKeywords,
    WriteKeywords,
    WriteOptionKeywords,
    keyword_or_default,
)
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.keywords.requests import WriteRequest
from dask_tfrecord.keywords.splits import SPLIT_FIELD
from dask_tfrecord.storage.paths import PathLike
from dask_tfrecord.storage.redaction import hide_secrets
from dask_tfrecord.storage.store import Store

logger = logging.getLogger(__name__)

# A failed task of a write to a remote store is retried this many times, as in Dask's `to_parquet`.
_RETRIES = 5


@overload
def to_tfrecord(
    ddf: pd.DataFrame | ArrowStream | ArrowArray, path: PathLike, **keywords: Unpack[StreamKeywords]
) -> Commit: ...
@overload
def to_tfrecord(
    ddf: dd.DataFrame, path: PathLike, *, compute: Literal[True] = True, **keywords: Unpack[WriteKeywords]
) -> Commit: ...
@overload
def to_tfrecord(
    ddf: dd.DataFrame, path: PathLike, *, compute: Literal[False], **keywords: Unpack[WriteKeywords]
) -> dd.Scalar: ...
@overload
def to_tfrecord(
    ddf: dd.DataFrame, path: PathLike, *, compute: bool, **keywords: Unpack[WriteKeywords]
) -> Commit | dd.Scalar: ...
@public_function
def to_tfrecord(
    ddf: dd.DataFrame | pd.DataFrame | ArrowStream | ArrowArray,
    path: PathLike,
    **keywords: Unpack[AllWriteKeywords],
) -> Any:
    """Write a Dask DataFrame, or other rows, as TFRecord files, which TensorFlow and Spark can read.

    Importing `dask_tfrecord` adds this function to Dask as the method ``DataFrame.to_tfrecord``.

    Each partition becomes one file, or several if its rows belong to several directories or exceed a size
    limit. All files of a write become visible together, after the last one is complete. A failed write leaves
    the existing data unchanged. The write stores a snapshot in ``_tfrecord/``, from which `read_tfrecord`
    restores the same columns and types.

    Parameters
    ----------
    ddf : dask.dataframe.DataFrame, pandas.DataFrame, or object that exports Arrow data
        The rows to write. Besides a Dask DataFrame, this may be a pandas or Polars DataFrame, a
        `pyarrow.Table`, `pyarrow.RecordBatch` or `pyarrow.RecordBatchReader`, a DuckDB relation, or any
        object with the method ``__arrow_c_stream__`` or ``__arrow_c_array__``.

        Data other than a Dask DataFrame is written in the calling process, as a single partition with a file
        for each 32 MiB of Arrow data. A stream is never loaded completely into memory. ``compute=False``,
        ``compute_kwargs`` and the option ``npartitions`` need a Dask DataFrame.
    path : str or path-like
        The destination directory. A remote path begins with a protocol such as ``s3://``. If the destination
        contains data, the write raises unless ``append`` or ``overwrite`` is set.
    compression : {"default", None, "gzip", "zlib", "zstd", "lz4", "bz2", "xz"}
        The codec of the files, or None for uncompressed files. "default" stands for
        ``dask-tfrecord.compression`` in Dask's configuration, which is None unless it was changed. TensorFlow
        reads only "gzip", "zlib" and uncompressed files, and must be told the codec, as in
        ``TFRecordDataset(files, compression_type="GZIP")``.
    record_type : {"infer", "example", "sequence_example", "bytes"}, default "infer"
        The type of the message in each record. "sequence_example" stores lists of lists in feature lists.
        "example" stores them flat, with the lengths of the inner lists in other features, as TensorFlow
        Datasets does. "bytes" needs one binary column, whose values become the records.

        "infer" selects "sequence_example" if the option ``feature_lists`` is passed, and otherwise "example".
        Rows from `read_tfrecord` are written as they were read: a single binary column as bytes if the
        records were bytes, and columns of feature lists as sequence examples. "infer" raises for nested lists
        from anywhere else.
    schema : mapping of str to pyarrow.DataType, pyarrow.Schema or Schema, optional
        The types of some or all columns, for example of object columns, whose dtype does not say what they
        hold. In a mapping, a type may be an Arrow, NumPy, pandas or Python type, or a string such as
        ``"int64"``. If a type cannot hold a value exactly, the write raises `SchemaError` and names the row.

        A column from `read_tfrecord` is stored in the features from which it was read, unless a mapping sets
        its type. The schema of a dataset, such as ``open_dataset(path).schema``, also says how that dataset
        stores the columns.

        An object column that comes unchanged from Parquet files gets the type that it has there. For other
        object columns without a type here, the write computes partitions one by one until the values
        determine one, or all of them for decimals. A column without any value gets the null type.
    lossy : {"default", "warn", "allow", "raise"}
        What to do if values are rounded, because TFRecord stores only 32-bit floats. "warn" warns once per
        write, "allow" rounds silently, and "raise" raises for every value that would change. "default" stands
        for ``dask-tfrecord.lossy`` in Dask's configuration, which is "warn" unless it was changed.

        Values of float64 and decimal columns are rounded, and those of other float columns if ``schema`` sets
        a shorter type. Columns that come unchanged from `read_tfrecord` cause no warning.
    write_index : bool, optional
        If True, the index becomes the first columns, from which `read_tfrecord` restores it. If False, it is
        dropped. By default, the index is written if it has a name or does not consist of integers. Arrow data
        has no index.
    append : bool, default False
        If True, add the rows to the dataset in the directory, or write a new dataset. Files of other tools
        need a snapshot first, which `Dataset.add_snapshot` creates.

        The rows must have the columns and types of the dataset, unless ``schema_change`` is "add". Some other
        types fit as well: columns without any value fit every column, whole floats and NaN fit an integer
        column, decimals fit a decimal column (which gets enough digits), and Python objects fit a type that
        holds them.
    schema_change : "add", optional
        With "add", an append, or an overwrite of partitions, may add columns to the dataset and widen types.
        By default, the rows must have the columns of the dataset.

        New columns become the last columns, and are null in the existing rows. Columns that only the dataset
        has are null in the new rows, so one producer can add a column before the others do. A column gets the
        type of the rows if that is wider, such as int64 instead of int32 or float32 instead of float16.
        Existing files are not rewritten. Any other difference raises.
    overwrite : bool or "partitions", default False
        If True, replace all data in the directory. "partitions" replaces only the partition directories to
        which the write adds files. The replaced files are removed after the commit, so readers see either the
        old or the new data.

        With True, the write removes the files that the snapshot lists, other TFRecord files, and the files
        that `export` wrote. Before anything is computed, it raises `DestinationError` if the directory
        contains any other visible file, or if it is or contains the current directory, the home directory or
        the root of a filesystem. With "partitions", only files that the snapshot lists are removed.
    keep_versions : bool, optional
        If True, an overwrite keeps the earlier versions, which ``read_tfrecord(version=...)`` reads; the
        replaced files move to the hidden directory ``_tfrecord/kept``. If False, it removes them. The default
        is ``dask-tfrecord.keep-versions`` in Dask's configuration, or False if that is not set.
    partition_on : str or list of str, optional
        The partition columns, whose values become directory names, such as
        ``country=US/day=2026-01-31``, instead of being stored in the records. `read_tfrecord` restores the
        columns from these names. The values are percent-encoded as in Spark, and null becomes
        ``__HIVE_DEFAULT_PARTITION__``. Each partition of ``ddf`` writes a file for each combination of values
        in it.
    columnar : {"auto", "scalars", None, False} or list of str, default "auto"
        The columns that are also stored in Parquet files below ``_tfrecord/``, so that reads and filters of
        these columns decode no records. "scalars" stands for all columns of numbers, booleans, dates, times
        and text. With "auto", each file of at least 8 MiB gets those scalar columns that together take at
        most 1 % of its stored bytes, such as the labels of images; the largest are left out first.
        ``columnar=[]`` stores only the offsets of the records. None and False write no Parquet file.

        Other tools read the records, and ignore the Parquet files. An append with "auto" keeps the setting of
        the dataset.
    split : mapping of str to float, optional
        Maps the name of each split to its fraction of the rows, such as ``dict(train=0.9, eval=0.1)``. The
        fractions must sum to 1.

        Each row belongs to exactly one split, and the same rows get the same split in every write. The split
        becomes the first partition column, ``split``, with directories such as ``split=train``.
    colocate : bool, default False
        If True, first move all rows with equal values in the columns of ``partition_on`` into one partition.
        Each directory then gets one file, or several if the rows exceed a size limit.

        The rows move through temporary files, as with ``shuffle``, so they need not fit into memory. The
        directories are ordered by hashes of their partition values. Within a directory, the rows keep their
        order unless ``shuffle`` is True.
    shuffle : bool, default False
        If True, shuffle all rows over all files, or with ``colocate=True``, the rows of each directory. They
        move through temporary files at the destination, so they need not fit into memory.
    seed : int, default 0
        The seed of the shuffle. The same seed gives the same order on every scheduler.
    name_function : callable, optional
        A function that maps a partition index to a string, which is added to the end of the partition's file
        names. The write raises if two partitions get the same string.
    custom_metadata : mapping of str to str, optional
        Metadata to store in the snapshot, as ``Dataset.metadata``.
    write_id : str, optional
        An id of the write, such as the day of a nightly job. If one of the last 1,000 commits has the same
        id, the write changes nothing, whatever its rows are, and returns the `Commit` of that earlier write.
        So a job that was killed can run again without adding rows twice.

        If two writes with the same id run at once, one of them commits, and both return its `Commit`. The ids
        stay known if versions expire, are overwritten or are restored. `Dataset.history` lists them.
    write_options : dict, optional
        Options that few writes need:

        ``split_by`` : str, list of str, or int, optional
            The columns, or the seed, that determine the split of each row. Rows with equal values in these
            columns go to the same split. With a seed (0 by default), each row goes to a random split, which
            also depends on its position in the collection.

        ``npartitions`` : int, optional
            The number of partitions to write. Each becomes one file, unless there are partition columns or
            size limits. By default, the partitions of ``ddf`` are kept.

        ``max_rows_per_file`` : int, optional
            The maximum number of rows in a file. A larger partition is split into several files.

        ``max_bytes_per_file`` : int or str, optional
            The maximum size of a file before compression, in bytes or as text such as ``"128 MiB"``. A larger
            partition is split into several files. A single record above the limit gets its own file.

        ``max_files_per_task`` : int or None, default 1024
            The maximum number of directories for the rows of one partition, or of 32 MiB of a stream. The
            write raises if there are more. With None, there is no limit.

        ``feature_lists`` : list of str, optional
            The list columns to store in feature lists of sequence examples, with one value in each step,
            which TensorFlow reads with ``FixedLenSequenceFeature``. By default, only lists of lists become
            feature lists, and columns from `read_tfrecord` are stored as they were read.

        ``compression_level`` : int, optional
            The compression level, whose valid range depends on the codec. A higher level gives smaller files,
            but is slower.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.
    compute_kwargs : dict, optional
        Keywords for Dask's ``compute``, such as ``dict(scheduler="processes")``.

        The keyword ``retries`` sets how often a failed task is repeated before the write fails. Its default
        is ``dask-tfrecord.retries`` in Dask's configuration, or else 5 for remote stores and 0 for local
        ones. With ``compute=False``, pass it to ``compute`` instead.
    compute : bool, default True
        If True, write the dataset now. If False, return a lazy object that writes it when it is computed.

    Returns
    -------
    Commit or dask.dataframe.dask_expr.Scalar
        The version that the write created, with the total rows, files and bytes of the dataset.
        ``Commit.details`` counts what the write added: ``added_files``, ``added_rows`` and ``added_bytes``.
        With ``compute=False``, a lazy scalar that computes to the `Commit`.

        If an earlier write has the same ``write_id``, the result describes that one. If its version is no
        longer kept, the result describes the newest version, and ``details`` counts the files of the earlier
        write that the newest version lists.

    Raises
    ------
    DestinationError
        If the directory is inside another dataset, or contains visible data while neither ``append`` nor
        ``overwrite`` is set. If an overwrite would replace a directory from which ``ddf`` reads, or remove
        files that are not TFRecord.
    ConcurrentWriteError
        If another write was committed since this write was planned. An append does not raise it.
    SchemaError
        If TFRecord cannot store a column or a value, or if the columns differ from those of the existing
        data.
    TFRecordError
        If an argument is invalid, or if a stream fails. The error of the stream is then its cause.

    See Also
    --------
    read_tfrecord : Read TFRecord files into a Dask DataFrame.

    Examples
    --------
    >>> import dask_tfrecord
    >>> import pandas as pd
    >>> from dask import dataframe as dd
    >>> people = pd.DataFrame({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]})
    >>> ddf = dd.from_pandas(people, npartitions=2)
    >>> done = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> done.version, done.rows, done.files
    (1, 3, 2)

    Append the rows again, and then replace all data with one directory for each name:

    >>> dask_tfrecord.to_tfrecord(ddf, "people", append=True).details
    {'added_files': 2, 'added_rows': 3, 'added_bytes': 156}
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "people", overwrite=True, partition_on=["name"])
    >>> dask_tfrecord.open_dataset("people").files["name"].tolist()
    ['Ada', 'Alan', 'Grace']

    A job that runs again with the same ``write_id`` adds its rows only once:

    >>> for attempt in range(2):
    ...     done = dask_tfrecord.to_tfrecord(ddf, "days", append=True, write_id="2026-05-01")
    >>> done.version, done.rows
    (1, 3)

    The method ``DataFrame.to_tfrecord`` is the same function:

    >>> ddf.to_tfrecord("copy", compression="gzip").rows
    3

    Write a pandas DataFrame or an Arrow stream without Dask:

    >>> dask_tfrecord.to_tfrecord(people, "of_pandas", compression="gzip").rows
    3
    """
    with ExitStack() as closing:
        write = arguments.with_defaults(AllWriteKeywords, keywords)
        rare = arguments.options("write_options", write["write_options"], WriteOptionKeywords)
        compute, kwargs = write["compute"], write["compute_kwargs"]
        rows: CollectionRows | Source
        if isinstance(ddf, dd.DataFrame):
            rows = CollectionRows(ddf)
        else:
            rows = open_source(ddf)
            closing.callback(rows.close)
            requests.refuse_for_streams(
                rows.kind,
                compute=None if compute is True else compute,
                compute_kwargs=kwargs,
                npartitions=rare["npartitions"],
            )
        arguments.path(path)
        arguments.mappings(compute_kwargs=kwargs, storage_options=write["storage_options"])
        arguments.flag("compute", compute)
        kwargs = kwargs or {}
        retries = keyword_or_default(
            "retries", kwargs.get("retries"), partial(arguments.count, "retries", least=0), None
        )
        request = requests.write_request(rows.columns, rows.npartitions, rare, write)
        if isinstance(rows, CollectionRows):
            check_cluster(kwargs.get("scheduler"))
        store = destination(path, write["storage_options"], write["filesystem"])
        if isinstance(rows, CollectionRows) and request.mode in ("overwrite", "partitions"):
            lineage.check_not_read(ddf, store)
        head = _head(store, request)
        if (earlier := earlier_commit(store, head, request.write_id)) is not None:
            return earlier if compute else committed(earlier)
        run, operation = _plan(rows, store, head, request)
        if isinstance(rows, CollectionRows):
            result = rows.write(
                run,
                operation,
                write_index=bool(run.index) or request.write_index,
                splits=request.splits,
                shuffle=request.shuffle,
                npartitions=request.npartitions,
            )
            return _compute(result, run, kwargs, retries) if compute else result
        task = partial(_write_source, rows, run, operation, request)
        return _finish(run, task, is_over=lambda error: True)


def _head(store: Store, request: WriteRequest) -> Head:
    """Return the newest version, if the write needs to know it before its commit."""
    if request.mode == "create" and request.write_id is None:
        return Head()
    reads_files = request.mode in ("overwrite", "partitions")
    # The commit of an append notices any newer version.
    return Head.read(store, intact=True, is_exact=request.mode != "append", reads_files=reads_files)


def _plan(
    rows: CollectionRows | Source, store: Store, head: Head, request: WriteRequest
) -> tuple[WriteRun, Operation]:
    """Check the destination and the columns of a write, and plan it. ``head`` is the newest version."""
    newest, keys = head.snapshot, request.keys
    if not head.number:
        refuse_write_inside(store, request.mode)
    check_destination(store, request.mode, newest)
    replaceable = replaceable_files(store, newest) if request.mode == "overwrite" else frozenset()
    adds_rows = request.mode in ("append", "partitions")
    if request.mode == "partitions" and newest is not None:
        refuse_linked_files(store, newest.file_list)
    levels = rows.levels(request.write_index)
    columns = newest.columns if newest is not None and adds_rows else None
    known = Existing.of(columns, adds_columns=request.adds_columns)
    planned = rows.plan(request.schema, request.record_type, keys, levels, known)
    planned = requests.with_feature_lists(planned, request.rare)
    partition_fields, order = planned.select(keys).fields, tuple(planned.names)
    if request.splits is not None:
        partition_fields, order = (SPLIT_FIELD, *partition_fields), (*order, SPLIT)
    records = planned.select(name for name in planned.names if name not in keys)
    if request.options.lossy == "warn":
        requests.warn_of_rounding(rows.rounded(records, levels))
    requests.warn_of_compression(request.options.compression)
    existing = None
    if adds_rows:
        records = records if newest is None else records.as_in(newest.schema)
        existing = check_existing_data(
            store, records, partition_fields, levels, adds_columns=request.adds_columns, known=newest
        )
    run = WriteRun(
        store,
        records,
        options=request.options,
        head=head,
        appends=existing is not None,
        fitted=frozenset(order if existing is not None else ()) - {*given_types(request.schema)},
        partitioning=partition_fields,
        order=order,
        max_directories=request.rare["max_files_per_task"] or sys.maxsize,
        custom_metadata=request.custom_metadata,
        write_id=request.write_id,
        label=request.name_function,
        index=levels,
        columns_name=rows.columns_name if isinstance(rows.columns_name, str) else None,
        columnar=requests.plan_columnar(request.columnar, records, keys, existing),
    )
    unit = f"{request.npartitions} partitions" if isinstance(rows, CollectionRows) else rows.kind
    plan = f"{unit}, {len(order)} columns, compression {request.options.compression}"
    logger.info("%s: planned: mode %s after version %d, %s", run.title, request.mode, head.number, plan)
    if request.mode == "create" and not isinstance(rows, CollectionRows):
        requests.warn_of_file_name(store.public())
    return run, request.operation(newest, replaceable)


def _write_source(source: Source, run: WriteRun, operation: Operation, request: WriteRequest) -> Commit:
    title = f"{run.store.public()}, {source.kind}"
    tables = source.tables(run.columns, run.options.lossy, request.splits, run.index, title, run.fitted)
    try:
        with fixed_columns(run.columns, run.appends):
            if request.shuffle is None:
                files = write_tables(run, tables, title)
            else:
                files = write_shuffled(run, tables, title, request.shuffle)
    except BaseException:  # KeyboardInterrupt is included
        discard(run)
        raise
    return written(run, commit(run, operation, files, is_alone=True))


def _compute(result: Any, run: WriteRun, kwargs: dict[str, Any], retries: int | None) -> Commit:
    if retries is None and run.store.is_remote:
        retries = _RETRIES
    kwargs = kwargs if retries is None else {"retries": retries, **kwargs}

    def write() -> Commit:
        # Without optimize(), compute() would not fuse reading, transforming and writing into one task for
        # each partition.
        done: Commit = result.optimize().compute(**kwargs)
        return done

    # An interrupt does not stop Dask's threads, one of which may be committing the write.
    local = is_local(kwargs.get("scheduler"))
    return _finish(run, write, is_over=lambda error: local and isinstance(error, Exception))


def _finish(run: WriteRun, write: Callable[[], Commit], is_over: Callable[[BaseException], bool]) -> Commit:
    """Run ``write``, and log a summary. After a failure or an interrupt, remove the files of the write.

    ``is_over`` returns True for an exception after which no task can still be committing the write.
    """
    start = time.monotonic()
    try:
        done = write()
    except BaseException as error:  # KeyboardInterrupt is included
        seconds, reason = time.monotonic() - start, hide_secrets(repr(error), run.store)
        logger.error("%s: failed after %.1f s: %s", run.title, seconds, reason)
        (discard_uncommitted if is_over(error) else abandon)(run)
        raise
    log_summary(run, done, time.monotonic() - start)
    return done
