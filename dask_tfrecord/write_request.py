"""Validate the keywords that say how a write divides, names, compresses and replaces files."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from dask_tfrecord import arguments
from dask_tfrecord.codec.codecs import Compression, check_level
from dask_tfrecord.config import keyword_or_default
from dask_tfrecord.dataset.shuffle.route import Shuffle
from dask_tfrecord.dataset.write.run import Mode
from dask_tfrecord.errors import Remedy, TFRecordError
from dask_tfrecord.files.options import WriteOptions
from dask_tfrecord.files.part_names import check_labels
from dask_tfrecord.schema.field import Lossy


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
        raise TFRecordError(
            "append=True keeps the existing data, but overwrite= replaces it",
            advice="pass only one of the two keywords",
        )
    if overwrite == "partitions" and not partition_on:
        raise TFRecordError(
            "a replacement of partitions requires partition columns",
            remedies=[*_partition_columns(columns), Remedy("overwrite", True, "replace all data")],
            function="to_tfrecord",
        )
    if append:
        return "append"
    return "partitions" if overwrite == "partitions" else "overwrite" if overwrite else "create"


def _partition_columns(columns: Sequence[Any]) -> list[Remedy]:
    """Suggest the first column as ``partition_on`` for a write that needs partition columns."""
    names = list(map(str, columns[:1]))
    return [Remedy("partition_on", names, "write a directory for each of its values")] if names else []


def partition_count(npartitions: int | None, num_shards: int | None) -> int | None:
    """Return the number of partitions that ``npartitions`` or ``num_shards`` requests, or None to keep the
    partitions.
    """
    arguments.count("npartitions", npartitions)
    arguments.count("num_shards", num_shards)
    if npartitions is not None and num_shards is not None and npartitions != num_shards:
        raise TFRecordError(
            f"npartitions={npartitions} and num_shards={num_shards} are different",
            remedies=[
                Remedy("num_shards", None, f"write {npartitions} partitions"),
                Remedy("npartitions", None, f"write {num_shards} partitions"),
            ],
            function="to_tfrecord",
        )
    return num_shards if npartitions is None else npartitions


def plan_shuffle(
    columns: Sequence[Any], partition_on: tuple[str, ...], colocate: bool, seed: int | None, npartitions: int
) -> Shuffle | None:
    """Return how the rows move between the partitions of a write, or None if the rows do not move."""
    if seed is not None and (not isinstance(seed, int | np.integer) or isinstance(seed, bool)):
        raise TFRecordError(
            f"shuffle={seed!r} is not an integer seed",
            remedies=[Remedy("shuffle", 0, "shuffle with this seed")],
            function="to_tfrecord",
        )
    if colocate and not partition_on:
        raise TFRecordError(
            "colocate=True requires partition columns",
            remedies=_partition_columns(columns),
            function="to_tfrecord",
        )
    if not colocate and seed is None:
        return None
    together = partition_on if colocate else ()
    return Shuffle(together, None if seed is None else int(seed), npartitions)


def check_name_function(name_function: Callable[[int], str] | None, npartitions: int) -> None:
    """Raise if two partitions get the same text from ``name_function``, or a text that is not a file name."""
    arguments.function("name_function", name_function)
    if name_function is not None:
        check_labels([name_function(index) for index in range(npartitions)])
