"""Validate the keywords that say how a write divides, names, compresses and replaces files."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from dask_tfrecord import arguments
from dask_tfrecord.codec.codecs import CODECS, Compression, check_level
from dask_tfrecord.config import keyword_or_default
from dask_tfrecord.dataset.shuffle.route import Shuffle
from dask_tfrecord.dataset.snapshot.columnar import Columnar, check_columnar
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.run import Mode
from dask_tfrecord.errors import Remedy, RemedyWarning, TFRecordError, warn_caller
from dask_tfrecord.files.options import WriteOptions
from dask_tfrecord.files.part_names import check_labels
from dask_tfrecord.schema.field import Lossy
from dask_tfrecord.schema.model import Schema

# What a caller may pass as ``commit_every=``: rows, a size or a duration.
CommitEvery = int | str | timedelta | None

# The kind of a limit after which a `Writer` commits, and the limit.
CommitLimit = tuple[Literal["rows", "bytes", "seconds"], float]


def write_options(
    compression: Any, level: int | None, lossy: Any, max_rows: int | None, max_bytes: int | None
) -> WriteOptions:
    """Return the options for writing each file.

    Keywords that are not set get their values from Dask's configuration.
    """
    codec: Compression | None = keyword_or_default("compression", compression, arguments.compression)
    check_level(codec, level)
    lossy = keyword_or_default("lossy", lossy, partial(arguments.choice, "lossy", known=get_args(Lossy)))
    max_rows = arguments.count("max_rows_per_file", max_rows)  # a NumPy integer could overflow later
    max_bytes = arguments.count("max_bytes_per_file", max_bytes)
    return WriteOptions(codec, level, lossy, max_rows, max_bytes)


def commit_every_limit(value: CommitEvery) -> CommitLimit | None:
    """Return when a `Writer` commits, as ``commit_every`` says.

    Returns
    -------
    tuple of (str, float), optional
        The kind of the limit, which is "rows", "bytes" or "seconds", and the limit.

    Raises
    ------
    TFRecordError
        If the value is not a positive number of rows, size or duration.
    """
    if value is None:
        return None
    if isinstance(value, str | timedelta):
        with suppress(TFRecordError):  # if the text is not a duration, it may be a size
            if wait := arguments.duration("commit_every", value):
                return "seconds", wait.total_seconds()
        if isinstance(value, str) and value.rstrip()[-1:].isalpha():  # a size without a unit could be rows
            with suppress(TFRecordError):
                return "bytes", arguments.byte_count("commit_every", value) or 0
    else:
        with suppress(TFRecordError):
            return "rows", arguments.count("commit_every", value) or 0
    problem = f"commit_every={value!r} is not a number of rows, or a size or duration with a unit"
    raise TFRecordError(problem, 'pass for example 10_000, "64 MiB" or "2 s"')


def keeps_versions(value: Any) -> bool:
    """Return True if an operation that replaces files keeps the versions before it.

    If the keyword is not set, its value comes from Dask's configuration.
    """

    def check(value: Any) -> bool:
        arguments.flags(keep_versions=value)
        return bool(value)

    return keyword_or_default("keep_versions", value, check, None)


def write_mode(
    columns: Sequence[Any],
    append: bool,
    overwrite: bool | Literal["partitions"],
    partition_on: tuple[str, ...],
) -> Mode:
    """Return what a write does with the existing data, as ``append`` and ``overwrite`` say."""
    arguments.choice("append", append, (False, True))
    arguments.choice("overwrite", overwrite, (False, True, "partitions"))
    if append and overwrite:
        problem = "append=True keeps the existing data, but overwrite= replaces it"
        raise TFRecordError(problem, "pass only one of the two keywords")
    if overwrite == "partitions" and not partition_on:
        problem = "a replacement of partitions requires partition columns"
        remedy = Remedy("overwrite", True, "replace all data")
        raise TFRecordError(problem, *_partition_columns(columns), remedy)
    if append:
        return "append"
    return "partitions" if overwrite == "partitions" else "overwrite" if overwrite else "create"


def plan_columnar(
    value: Any, schema: Schema, partition_on: Sequence[str], existing: Snapshot | None
) -> Columnar | None:
    """Return the columns of the column files of a write, as ``columnar`` says.

    By default, a write that adds to a dataset continues the column files of the dataset.

    Raises
    ------
    SchemaError
        If column files cannot hold one of the columns.
    """
    columns: Columnar | None
    if value is None:
        columns = None if existing is None else existing.columnar
    elif isinstance(value, str) and value == "scalars":
        columns = "scalars"
    else:
        columns = tuple(dict.fromkeys(arguments.names("columnar", value)))
    if columns == "scalars" or (columns and value is not None):  # a write may lack columns of the dataset
        check_columnar(columns, schema, partition_on)
    return columns


def refuse_for_streams(kind: str, **given: Any) -> None:
    """Raise if a keyword is given that is about the partitions or the scheduler of Dask."""
    for keyword, value in given.items():
        if value is not None:
            problem = f"{keyword}={value!r} is for Dask collections, and this {kind} is written without Dask"
            raise TFRecordError(problem, f"leave out {keyword}=, or pass a Dask DataFrame")


def schema_change_mode(value: Literal["add"] | None, mode: Mode) -> bool:
    """Return True if an append may add columns, as ``schema_change`` says."""
    if arguments.choice("schema_change", value, (None, "add")) and mode != "append":
        problem = f"schema_change={value!r} is for appends, and this write keeps no columns"
        raise TFRecordError(problem, Remedy("append", True, "keep the existing rows"))
    return value is not None


def _partition_columns(columns: Sequence[Any]) -> list[Remedy]:
    """Suggest the first column as ``partition_on`` for a write that needs partition columns."""
    names = list(map(str, columns[:1]))
    return [Remedy("partition_on", names, "write a directory for each of its values")] if names else []


def plan_shuffle(
    columns: Sequence[Any], partition_on: tuple[str, ...], colocate: bool, seed: int | None, npartitions: int
) -> Shuffle | None:
    """Return how the rows move between the partitions of a write, or None if the rows do not move."""
    if seed is not None and (not isinstance(seed, int | np.integer) or isinstance(seed, bool)):
        raise TFRecordError(
            f"shuffle={seed!r} is not an integer seed", Remedy("shuffle", 0, "shuffle with this seed")
        )
    if colocate and not partition_on:
        raise TFRecordError("colocate=True requires partition columns", remedies=_partition_columns(columns))
    if not colocate and seed is None:
        return None
    together = partition_on if colocate else ()
    return Shuffle(together, None if seed is None else int(seed), npartitions)


def check_name_function(name_function: Callable[[int], str] | None, npartitions: int) -> None:
    """Raise if two partitions get the same text from ``name_function``, or a text that is not a file name."""
    arguments.function("name_function", name_function)
    if name_function is not None:
        check_labels([name_function(index) for index in range(npartitions)])


def warn_of_rounding(names: list[str]) -> None:
    """Warn of columns whose values may be rounded."""
    if names:
        columns = ", ".join(map(repr, names))
        warn_caller(
            RemedyWarning(
                f"TFRecord has 32-bit floats only, so the values of {columns} are rounded",
                [
                    Remedy("lossy", "allow", "accept this"),
                    Remedy("lossy", "raise", "refuse values that would change"),
                ],
            ),
        )


def warn_of_compression(codec: Compression | None) -> None:
    """Warn if TensorFlow cannot read files with this codec."""
    if codec and not CODECS[codec].tensorflow:
        warn_caller(
            f"TensorFlow reads only gzip and zlib, so it cannot read files that are compressed with {codec}.",
        )
