"""`to_tfrecord`: arguments -> plan -> collection, or its result."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, get_args, overload
from uuid import uuid4

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

from dask_tfrecord import arguments, expr
from dask_tfrecord.cluster import check_cluster
from dask_tfrecord.codec import RecordType
from dask_tfrecord.codec.codecs import CODECS, Compression, check_level
from dask_tfrecord.dataset.discovery import check_choice
from dask_tfrecord.dataset.inferred_schema import PAYLOAD
from dask_tfrecord.dataset.shuffling import Shuffle
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.destination import Mode, check_agreement, check_destination, destination
from dask_tfrecord.dataset.write.overwriting import replaceable_files
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.part_names import check_labels
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.frames import pandas_to_arrow
from dask_tfrecord.frames.index_levels import index_levels
from dask_tfrecord.keywords import AnyCompression, AnyRecordType, AnySchema, WriteKeywords
from dask_tfrecord.schema.model import Lossy, Schema
from dask_tfrecord.sources import check_not_read

# Times that a task on a remote store is tried again, as in Dask's own `to_parquet`.
_RETRIES = 5


@overload
def to_tfrecord(
    ddf: dd.DataFrame, path: PathLike, *, compute: Literal[True] = True, **keywords: Unpack[WriteKeywords]
) -> Snapshot: ...
@overload
def to_tfrecord(
    ddf: dd.DataFrame, path: PathLike, *, compute: Literal[False], **keywords: Unpack[WriteKeywords]
) -> dd.Scalar: ...
@overload
def to_tfrecord(
    ddf: dd.DataFrame, path: PathLike, *, compute: bool, **keywords: Unpack[WriteKeywords]
) -> Snapshot | dd.Scalar: ...
def to_tfrecord(
    ddf: dd.DataFrame,
    path: PathLike,
    *,
    compression: AnyCompression | None = None,
    compression_level: int | None = None,
    record_type: AnyRecordType = "infer",
    schema: AnySchema | None = None,
    lossy: Lossy = "warn",
    write_index: bool | None = None,
    append: bool = False,
    overwrite: bool | Literal["partitions"] = False,
    partition_on: str | Sequence[str] | None = None,
    colocate: bool = False,
    shuffle: int | None = None,
    npartitions: int | None = None,
    num_shards: int | None = None,
    max_rows_per_file: int | None = None,
    max_bytes_per_file: int | None = None,
    max_files_per_task: int | None = 1024,
    name_function: Callable[[int], str] | None = None,
    custom_metadata: Mapping[str, str] | None = None,
    compute: bool = True,
    compute_kwargs: dict[str, Any] | None = None,
    retries: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Any:
    """Write a Dask DataFrame as TFRecord files, which TensorFlow and Spark read.

    Each partition becomes one file, or more where it has rows for several directories or exceeds a limit.

    The files appear together when all of them are whole; a write that fails leaves what was there. With them
    a snapshot is stored in ``_tfrecord/``, so that `read_tfrecord` gives the same columns and types back.

    Parameters
    ----------
    ddf : dask.dataframe.DataFrame
        What to write.
    path : str or path-like
        Directory to write to, which must be empty or not exist unless ``append`` or ``overwrite`` says what
        becomes of its data. Prepend a protocol such as ``s3://`` for remote data.
    compression : "gzip", "zlib", "zstd", "lz4", "bz2", "xz" or None
        Of whole files. TensorFlow must be told it, ``TFRecordDataset(files, compression_type="GZIP")``, and
        reads only the first two.
    compression_level : int, optional
        More is smaller and slower; which there are depends on the compression.
    record_type : "infer", "example", "sequence_example" or "bytes"
        What each row becomes. Lists of lists need "sequence_example"; "bytes" takes one column of bytes
        and stores its values as they are. "infer" means "example", unless the DataFrame was made by
        `read_tfrecord` alone: records of bytes stay records of bytes if one column of bytes is written, and
        sequence examples stay sequence examples if any of their lists of lists is written.
    schema : mapping of str to pyarrow.DataType, pyarrow.Schema, Schema or Snapshot, optional
        Types of some columns, where the dtype does not tell. Names such as "int64" and types of NumPy,
        pandas and Python mean the Arrow type. A value that the type cannot hold exactly raises `SchemaError`
        with its row. Without a schema, columns of objects are computed as far as is needed to see what they
        hold; a column without any value has the null type.
    lossy : "warn", "allow" or "raise"
        TFRecord has 32-bit floats only. What to do about columns of float64 and decimals, and about floats
        that ``schema`` makes shorter: warn, once; say nothing; or refuse any value that would change.
        Columns that were read from TFRecord and not changed since are not warned of.
    write_index : bool, optional
        True writes the index as the first columns, and `read_tfrecord` makes it the index again. False drops
        it. By default an index is written if it has a name, or if it holds no integers: integers without a
        name only count the rows.
    append : bool, default False
        Whether to add to the data in the directory, whoever wrote it. Columns and types must be the same.
    overwrite : bool or "partitions", default False
        Replace all data in the directory, or only the partition directories that are written to. The old
        files are removed after the new dataset is committed; readers see the old or the new data, never
        both. An overwrite removes the files that the snapshot lists, and other files whose content is
        TFRecord. It raises before anything is computed if the directory holds any other visible file, or
        is the current directory, the home directory, the root of a filesystem, or contains one of these.
    partition_on : str or list of str, optional
        Columns that become directories, ``country=US/day=2026-01-31``, and are no part of the records; from
        there they come back as they were. Values are spelled and percent-encoded as Spark does, missing ones
        are ``__HIVE_DEFAULT_PARTITION__``. A partition writes a file for each combination that it holds.
    colocate : bool, default False
        Whether to bring rows with the same values of ``partition_on`` into one partition first, so that
        each directory gets one file, or as many as the limits ask for. The rows move as with ``shuffle``, and
        all rows of one directory must fit into the memory of a task.
    shuffle : int, optional
        Seed of a shuffle of all rows over all files. The same seed gives the same order on every scheduler.
        With ``colocate=True``, rows are shuffled within the directories. The rows move through temporary
        files at the destination, so they need not fit into memory.
    npartitions, num_shards : int, optional
        Partitions to write, and so files, if there are no directories and no limits. Two names of the same.
    max_rows_per_file, max_bytes_per_file : int, optional
        A file that would exceed one of these is followed by another. Bytes count before compression; a
        record that is larger by itself has its own file.
    max_files_per_task : int or None, default 1024
        The most directories that one partition may write to; more are refused, unless it is None.
    name_function : callable, optional
        Gives, for the number of a partition, a string that its files' names end with; no two the same.
    custom_metadata : mapping of str to str, optional
        Kept in the snapshot, whose ``custom_metadata`` it is.
    compute : bool, default True
        Whether to write now, or to return a lazy object that writes when it is computed.
    compute_kwargs : dict, optional
        Passed to ``compute``, such as ``{"scheduler": "processes"}``.
    retries : int, optional
        Times that a task is tried again before the write fails; 5 on remote stores by default. With
        ``compute=False``, pass it to ``compute`` yourself.
    storage_options : dict, optional
        Passed to the filesystem, such as credentials.

    Returns
    -------
    Snapshot or dask.dataframe.dask_expr.Scalar
        What was written: files, records, bytes, schema. Lazy if ``compute=False``.

    Raises
    ------
    DestinationError
        If the directory already holds anything that a reader would see, or is to be overwritten with what
        is read from it, or if an overwrite would remove something that is not TFRecord data.
    ConcurrentWriteError
        If another write committed in the meantime, unless data is appended.
    SchemaError
        For columns or values that TFRecord cannot hold, or that do not go with what is there.

    See Also
    --------
    read_tfrecord

    Examples
    --------
    >>> import dask_tfrecord
    >>> ddf.to_tfrecord("s3://bucket/train", compression="gzip")  # doctest: +SKIP
    Snapshot(16 files, 1,000,000 records, 81,321,104 bytes)
    """
    if not isinstance(ddf, dd.DataFrame):
        raise TFRecordError(
            f"{type(ddf).__name__} is not a Dask DataFrame",
            advice="pass dask.dataframe.from_pandas(frame, npartitions=8), or a column as ddf[[name]]",
        )
    arguments.path(path)
    arguments.mappings(compute_kwargs=compute_kwargs, storage_options=storage_options)
    store = destination(path, storage_options)
    codec: Compression | None = arguments.compression(compression)
    check_level(codec, compression_level)
    check_choice("record_type", record_type, ("infer", *get_args(RecordType)))
    check_choice("lossy", lossy, get_args(Lossy))
    arguments.flags(colocate=colocate, compute=compute)
    if write_index is not None:
        arguments.flags(write_index=write_index)
        write_index = bool(write_index)
    counts = {"npartitions": npartitions, "num_shards": num_shards, "max_files_per_task": max_files_per_task}
    counts |= {"max_rows_per_file": max_rows_per_file, "max_bytes_per_file": max_bytes_per_file}
    for name, given in counts.items():
        arguments.count(name, given)
    check_cluster((compute_kwargs or {}).get("scheduler"))
    keys = () if partition_on is None else tuple(arguments.names("partition_on", partition_on))
    count = _one_count(npartitions, num_shards)
    moved = _plan_shuffle(keys, colocate, shuffle, count or ddf.npartitions)
    metadata = arguments.metadata(custom_metadata)
    arguments.count("retries", retries, 0)
    arguments.function("name_function", name_function)
    if name_function is not None:
        check_labels([name_function(index) for index in range(count or ddf.npartitions)])
    mode = _mode(append, overwrite, keys)
    if mode in ("overwrite", "partitions"):
        check_not_read(ddf, store)
    base = check_destination(store, mode)
    schema = arguments.arrow_schema(schema)
    levels = index_levels(ddf._meta, write_index)
    ddf, texts = expr.checked(ddf, pandas_to_arrow.text_names(ddf._meta, schema, levels))
    replaceable = replaceable_files(store) if mode in ("overwrite", "partitions") else frozenset()
    plan = pandas_to_arrow.plan_schema(
        ddf._meta,
        schema=schema,
        record_type=_nested_type(ddf) if record_type == "infer" else record_type,
        write_index=bool(levels),
        sample=lambda names: _partitions(ddf[names]),
        partition_on=keys,
        known=expr.large_strings(ddf),
    )
    records = plan.select(name for name in plan.names if name not in keys)
    if record_type == "infer":
        records = _as_read(ddf, records)
    if lossy == "warn":
        _warn_of_rounding(_rounded(ddf, records, bool(levels)))
    if codec and not CODECS[codec].tensorflow:
        _warn_of_compression(codec)
    if mode in ("append", "partitions"):
        check_agreement(store, records, plan.select(keys).fields, levels)
    run = WriteRun(
        store,
        records,
        codec,
        lossy,
        uuid4().hex,
        mode=mode,
        base=base,
        partitioning=plan.select(keys).fields,
        order=tuple(plan.names),
        max_rows=max_rows_per_file,
        max_bytes=max_bytes_per_file,
        max_parts=max_files_per_task or sys.maxsize,
        level=compression_level,
        custom_metadata=metadata,
        label=name_function,
        index=levels,
        replaceable=replaceable,
    )
    if moved is None:
        ddf = _repartitioned(ddf, count)
    keep = True if levels else write_index
    result = expr.write(ddf, run, write_index=keep, texts=texts, shuffle=moved)
    return _compute(result, run, compute_kwargs, retries) if compute else result


def _compute(
    result: Any, run: WriteRun, compute_kwargs: dict[str, Any] | None, retries: int | None
) -> Snapshot:
    kwargs = dict(compute_kwargs or {})
    if retries is not None:
        kwargs["retries"] = retries
    elif not run.store.local:
        kwargs.setdefault("retries", _RETRIES)
    try:
        # Dask's compute() alone does not fuse reading, transforming and writing to one task per partition.
        snapshot: Snapshot = result.optimize().compute(**kwargs)
    except BaseException:
        run.abandon()
        raise
    return snapshot


def _nested_type(ddf: dd.DataFrame) -> RecordType:
    """What can hold the lists of lists that come from sequence examples; no others are expected."""
    read = expr.records_read(ddf)
    nested = {item.name for schema in read for item in schema.fields if item.depth > 1}
    return "example" if nested.isdisjoint(ddf.columns) else "sequence_example"


def _as_read(ddf: dd.DataFrame, records: Schema) -> Schema:
    """The columns of the records; a column of bytes alone is whole records, if such were read."""
    read = expr.records_read(ddf)
    only = len(records.fields) == 1 and records.fields[0].type in (pa.binary(), pa.large_binary())
    if only and read and all(schema.record_type == "bytes" for schema in read):
        return replace(records, record_type="bytes")
    payloads = {name for schema in read if schema.record_type == "bytes" for name in schema.names}
    if only and not read and expr.was_computed(ddf):
        payloads = {PAYLOAD.name}
    for item in records.fields:
        if item.name in payloads and item.kind == "bytes":
            _warn_of_wrapping(item.name)
    return records


def _warn_of_wrapping(name: str) -> None:
    warnings.warn(
        f"each value of {name!r}, which was a whole record, becomes a feature of an Example; pass "
        f'record_type="bytes" and ddf[[{name!r}]] to write the records as they were, or else '
        'record_type="example".',
        UserWarning,
        stacklevel=4,
    )


def _one_count(npartitions: int | None, num_shards: int | None) -> int | None:
    if npartitions is not None and num_shards is not None and npartitions != num_shards:
        raise TFRecordError(
            f"npartitions={npartitions} and num_shards={num_shards} are two names of the same",
            advice="pass one of them",
        )
    return num_shards if npartitions is None else npartitions


def _plan_shuffle(
    partition_on: tuple[str, ...], colocate: bool, seed: int | None, npartitions: int
) -> Shuffle | None:
    if seed is not None and (not isinstance(seed, int | np.integer) or isinstance(seed, bool)):
        raise TFRecordError(f"shuffle={seed!r} is not a seed", advice="pass an integer, such as shuffle=0")
    if colocate and not partition_on:
        raise TFRecordError("colocate=True without partition_on= has nothing to bring together")
    if not colocate and seed is None:
        return None
    together = partition_on if colocate else ()
    return Shuffle(together, None if seed is None else int(seed), npartitions)


def _repartitioned(ddf: dd.DataFrame, npartitions: int | None) -> dd.DataFrame:
    """The collection with exactly this number of partitions; divisions could stand in the way of some."""
    if npartitions in (None, ddf.npartitions):
        return ddf
    return ddf.clear_divisions().repartition(npartitions=npartitions)


def _mode(append: bool, overwrite: bool | Literal["partitions"], partition_on: tuple[str, ...]) -> Mode:
    check_choice("append", append, (False, True))
    check_choice("overwrite", overwrite, (False, True, "partitions"))
    if append and overwrite:
        raise TFRecordError(
            "append=True keeps what is there, overwrite= replaces it", advice="pass one of them"
        )
    if overwrite == "partitions" and not partition_on:
        raise TFRecordError('overwrite="partitions" without partition_on= has no partitions to replace')
    if append:
        return "append"
    return "partitions" if overwrite == "partitions" else "overwrite" if overwrite else "create"


def _partitions(ddf: dd.DataFrame) -> Iterator[pd.DataFrame]:
    for index in range(ddf.npartitions):
        yield ddf.partitions[index].compute()


def _rounded(ddf: dd.DataFrame, records: Schema, write_index: bool) -> list[str]:
    """The columns whose values may be rounded; those that were read as the same type were rounded before."""
    names = pandas_to_arrow.rounded_names(ddf._meta, records, write_index=write_index)
    before = expr.read_types(ddf, names)
    return [name for name in names if before.get(name) != records.arrow.field(name).type]


def _warn_of_rounding(names: list[str]) -> None:
    if not names:
        return
    columns = ", ".join(map(repr, names))
    warnings.warn(
        f"TFRecord has 32-bit floats only, to which the values of {columns} are rounded; "
        'pass lossy="allow" if that is wanted, or lossy="raise" to refuse values that would change.',
        UserWarning,
        stacklevel=3,
    )


def _warn_of_compression(compression: Compression | None) -> None:
    warnings.warn(
        f"TensorFlow reads only gzip and zlib, and no file that is compressed with {compression}.",
        UserWarning,
        stacklevel=3,
    )
