"""Validate the keywords of reads, and the keywords with which a write divides, names and replaces files.

All functions that read a path, such as `read_tfrecord` and `open_dataset`, share the keywords of reads.
`api.read` checks those that only affect a Dask collection, such as ``dtype_backend``.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Unpack, get_args

import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.codec.codecs import CODECS, Compression, check_level
from dask_tfrecord.dataset.read.columns import Infer, ReadRequest
from dask_tfrecord.dataset.read.layouts import SPLIT
from dask_tfrecord.dataset.read.schema_sources import known_schema
from dask_tfrecord.dataset.shuffle.spill import Shuffle
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.stored_files import Columnar, check_columnar
from dask_tfrecord.dataset.write.destination import Mode, destination
from dask_tfrecord.dataset.write.operations import (
    Append,
    Create,
    Operation,
    Overwrite,
    ReplacePartitions,
    planned_rows,
)
from dask_tfrecord.errors import Remedy, RemedyWarning, SchemaError, TFRecordError, warn_caller
from dask_tfrecord.files.damage import DamagePolicy, OnCorrupt, check_policy
from dask_tfrecord.files.entry import check_labels
from dask_tfrecord.files.file_options import Extra, ReadOptions, WriteOptions
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import (
    AllWriteKeywords,
    AnyRecordType,
    FileOptionKeywords,
    ReadOptionKeywords,
    RequestKeywords,
    WriteOptionKeywords,
    keyword_or_default,
)
from dask_tfrecord.keywords.public_functions import OPTIONS, WRITER_OPTIONS, parameters_of
from dask_tfrecord.keywords.splits import Splits, parse_splits
from dask_tfrecord.schema.feature_maps import in_feature_lists
from dask_tfrecord.schema.fields import Lossy, Schema
from dask_tfrecord.schema.tfds import Labels


def read_request(
    columns: str | Sequence[str] | None = None, **keywords: Unpack[RequestKeywords]
) -> ReadRequest:
    """Validate the keywords of a read, which the docstring of `read_tfrecord` describes."""
    read = arguments.with_defaults(RequestKeywords, keywords)
    stores: dict[str, Any] = {name: read[name] for name in ("storage_options", "filesystem")}
    arguments.choice("record_type", read["record_type"], ("infer", *get_args(RecordType)))
    arguments.choice("extra", read["extra"], get_args(Extra))
    arguments.choice("labels", read["labels"], get_args(Labels))
    arguments.flag("use_snapshot", read["use_snapshot"])
    given = read["calculate_divisions"]
    calculate_divisions = arguments.flag("calculate_divisions", False if given is None else given)
    arguments.mappings(storage_options=read["storage_options"])
    schema = arguments.schema(known_schema(read["schema"], labels=read["labels"], **stores))
    arguments.choice("on_corrupt", read["on_corrupt"], get_args(OnCorrupt))
    rare = arguments.options("read_options", read["read_options"], ReadOptionKeywords)
    arguments.choice("infer", rare["infer"], get_args(Infer))
    arguments.flag("verify_crc", rare["verify_crc"])
    quarantine = None
    if (directory := rare["quarantine_path"]) is not None:
        quarantine = destination(arguments.path(directory, "quarantine_path"), **stores)
    damage = DamagePolicy(read["on_corrupt"], rare["max_corrupt"], quarantine)
    check_policy(damage)
    is_complete = isinstance(schema, pa.Schema | Schema | Snapshot)
    options = ReadOptions(
        compression=arguments.compression(read["compression"], "infer"),
        verify_crc=rare["verify_crc"],
        max_record_bytes=arguments.record_limit(rare["max_record_bytes"]),
        max_features=arguments.count("max_features", rare["max_features"]),
        extra="other names" if read["extra"] == "raise" and is_complete else read["extra"],
        damage=damage,
        path_column=arguments.origin_column(read["include_path_column"], "path"),
        offset_column=arguments.origin_column(rare["include_offset_column"], "offset"),
    )
    return ReadRequest(
        columns=_requested_columns(columns, read["index"]),
        schema=schema,
        hive=read["hive"],
        use_snapshot=read["use_snapshot"],
        record_type=read["record_type"],
        infer=rare["infer"],
        filters=None if isinstance(filters := read["filters"], list | tuple) and not filters else filters,
        options=options,
        split=_requested_splits(read["split"]),
        labels=read["labels"],
        version=arguments.count("version", read["version"]),
        blocksize=keyword_or_default(
            "blocksize", read["blocksize"], partial(arguments.byte_count, "blocksize")
        ),
        whole_files=calculate_divisions,
        partition_by=_key_columns(read["partition_by"], calculate_divisions),
        **stores,
    )


OPTIONS["read_options"] = parameters_of(ReadOptionKeywords)
OPTIONS["write_options"] = parameters_of(WriteOptionKeywords)
WRITER_OPTIONS.extend(parameters_of(FileOptionKeywords))


def existing_names(schema: Schema, keyword: str, value: Any) -> list[str]:
    """Return the column names that were passed as a keyword. Raise SchemaError if one is unknown or repeated.

    For ``columns=``, the name of a group, such as "objects", stands for all its columns, such as
    "objects/bbox".
    """
    names = arguments.names(keyword, value)
    if keyword == "columns":
        names = [one for name in names for one in _of_group(schema, name)]
    try:
        schema.select(names)
    except SchemaError as error:
        raise SchemaError(f"{keyword}={value!r}: {error}") from None
    fields = [] if keyword == "columns" else [name for name in names if name not in schema.names]
    if fields:
        problem = f"{keyword}= needs a column, but only columns= and filters= can name the field of a struct"
        raise SchemaError(problem, feature=fields[0])
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        problem = f"{keyword}= names {', '.join(map(repr, repeated))} more than once"
        raise SchemaError(problem, Remedy(keyword, list(dict.fromkeys(names)), "name each column once"))
    return names


def _of_group(schema: Schema, name: str) -> list[str]:
    """Return the columns of the group ``name``, or only ``name`` if it is a column or names no group."""
    members = [one for one in schema.names if one.startswith(f"{name}/")]
    return members if members and name not in schema.names else [name]


def _requested_splits(split: Any) -> str | tuple[str, ...] | None:
    if split is None or isinstance(split, str):
        return split
    names = tuple(arguments.names("split", split))
    if not names:
        raise TFRecordError(f"split={split!r} names no split", Remedy("split", None, "read all splits"))
    return names


def _key_columns(partition_by: Any, calculate_divisions: bool) -> tuple[str, ...]:
    if partition_by is None:
        return ()
    names = arguments.names("partition_by", partition_by)
    if not names or len(set(names)) < len(names):
        problem = f"partition_by={partition_by!r} must name at least one column, and none twice"
        raise TFRecordError(problem, "pass the names of partition columns")
    if calculate_divisions:
        raise TFRecordError(
            "partition_by= and calculate_divisions=True cannot be combined", "pass one of them"
        )
    return tuple(names)


def _requested_columns(columns: Any, index: Any) -> list[str] | None:
    if columns is None:
        return None
    levels = [] if index is None or index is False else arguments.names("index", index)
    return [*arguments.names("columns", columns), *levels]


# The values that ``commit_every=`` accepts: a number of rows, a size or a duration.
CommitEvery = int | str | timedelta | None

# The unit and the value of the limit after which a `Writer` commits.
CommitLimit = tuple[Literal["rows", "bytes", "seconds"], float]


def write_options(compression: Any, lossy: Any, rare: FileOptionKeywords) -> WriteOptions:
    """Return the options for writing each file, with defaults from Dask's configuration."""
    codec: Compression | None = keyword_or_default("compression", compression, arguments.compression)
    check_level(codec, rare["compression_level"])
    lossy = keyword_or_default("lossy", lossy, partial(arguments.choice, "lossy", known=get_args(Lossy)))
    # The limits become Python integers, because computations with NumPy integers could overflow.
    max_rows = arguments.count("max_rows_per_file", rare["max_rows_per_file"])
    max_bytes = arguments.byte_count("max_bytes_per_file", rare["max_bytes_per_file"])
    return WriteOptions(codec, rare["compression_level"], lossy, max_rows, max_bytes)


def written_type(record_type: AnyRecordType, rare: FileOptionKeywords) -> RecordType | None:
    """Return the type of the records to write, or None if the rows determine it."""
    if record_type == "infer":
        return "sequence_example" if rare["feature_lists"] else None
    return record_type


def with_feature_lists(schema: Schema, rare: FileOptionKeywords) -> Schema:
    """Return a schema in which feature lists store the columns that the option ``feature_lists`` names."""
    if rare["feature_lists"] is None:
        return schema
    names = arguments.names("feature_lists", rare["feature_lists"])
    if names and schema.record_type != "sequence_example":
        problem = f"feature_lists={names!r} needs sequence examples, not {schema.record_type!r} records"
        raise TFRecordError(problem, Remedy("record_type", "sequence_example", "write feature lists"))
    return in_feature_lists(schema, names)


def commit_every_limit(value: CommitEvery) -> CommitLimit | None:
    """Return the unit and the value of the limit after which a `Writer` commits, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, str | timedelta):
        with suppress(TFRecordError):  # a string that is not a duration may be a size
            if wait := arguments.duration("commit_every", value):
                return "seconds", wait.total_seconds()
        # Text without a unit may be meant as a number of rows.
        if isinstance(value, str) and value.rstrip()[-1:].isalpha():
            with suppress(TFRecordError):
                return "bytes", arguments.byte_count("commit_every", value) or 0
    else:
        with suppress(TFRecordError):
            return "rows", arguments.count("commit_every", value) or 0
    meant, unknown = arguments.meant_unit(value, (*arguments.DURATION_UNITS, *arguments.SIZE_UNITS))
    problem = f"commit_every={value!r} is not a number of rows, or a size or duration with a unit{unknown}"
    examples = f'"{meant}"' if meant else '10_000, "64 MiB" or "2 s"'
    raise TFRecordError(problem, f"pass for example {examples}")


def keeps_versions(value: Any, default: bool) -> bool:
    """Return True if an operation that replaces files keeps the earlier versions of the dataset.

    ``default`` applies if neither the caller nor Dask's configuration sets ``keep_versions``.
    """

    def checked(given: Any) -> bool:
        return default if given is None else arguments.flag("keep_versions", given)

    return keyword_or_default("keep_versions", value, checked, None)


def write_mode(
    columns: Sequence[Any],
    append: bool,
    overwrite: bool | Literal["partitions"],
    partition_on: tuple[str, ...],
) -> Mode:
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


def is_auto(columnar: Any) -> bool:
    """Return True if the argument ``columnar=`` leaves the choice of the columns to the dataset."""
    return isinstance(columnar, str) and columnar == "auto"


def plan_columnar(
    value: Any, schema: Schema, partition_on: Sequence[str], existing: Snapshot | None
) -> Columnar:
    """Return the columns that a write stores in column files. ``value`` is the argument ``columnar=``.

    "auto" stands for the setting of the existing dataset, if there is one.
    """
    # The setting of the existing dataset is not checked, because the rows to write may lack some columns.
    if is_auto(value):
        return "auto" if existing is None else existing.columnar
    if value is None or value is False:
        return "never"
    is_word = isinstance(value, str) and value == "scalars"
    columns: Columnar = "scalars" if is_word else tuple(dict.fromkeys(arguments.names("columnar", value)))
    check_columnar(columns, schema, partition_on)
    return columns


def refuse_for_streams(kind: str, **given: Any) -> None:
    """Raise if the caller passed a keyword that only applies to Dask collections."""
    for keyword, value in given.items():
        if value is not None:
            problem = f"{keyword}={value!r} is for Dask collections, and this {kind} is written without Dask"
            raise TFRecordError(problem, f"leave out {keyword}=, or pass a Dask DataFrame")


def schema_change_mode(value: Literal["add"] | None, mode: Mode) -> bool:
    """Return True if ``schema_change=`` allows a write that keeps existing rows to add columns."""
    if arguments.choice("schema_change", value, (None, "add")) and mode == "overwrite":
        problem = f"schema_change={value!r} is for writes that keep columns, and overwrite=True replaces all"
        raise TFRecordError(problem, Remedy("schema_change", None, "replace all rows and columns"))
    if value is not None and mode == "create":
        problem = f"schema_change={value!r} is for writes that keep existing rows"
        remedies = [Remedy("append", True, "add rows"), Remedy("schema_change", None, "write a new dataset")]
        raise TFRecordError(problem, remedies=remedies)
    return value is not None


def _partition_columns(columns: Sequence[Any]) -> list[Remedy]:
    """Return the remedy to partition on the first column, or an empty list if no other column remains."""
    names = list(map(str, columns[: len(columns) > 1]))
    return [Remedy("partition_on", names, "write a directory for each of its values")] if names else []


def plan_shuffle(
    columns: Sequence[Any], partition_on: tuple[str, ...], colocate: bool, seed: int | None, npartitions: int
) -> Shuffle | None:
    """Return how rows move between the partitions of a write, or None if they do not."""
    if colocate and not partition_on:
        raise TFRecordError("colocate=True requires partition columns", remedies=_partition_columns(columns))
    if not colocate and seed is None:
        return None
    together = partition_on if colocate else ()
    return Shuffle(together, seed, npartitions)


def check_name_function(name_function: Callable[[int], str] | None, npartitions: int) -> None:
    """Raise unless ``name_function`` returns unique strings that are valid in file names."""
    arguments.function("name_function", name_function)
    if name_function is not None:
        check_labels([name_function(index) for index in range(npartitions)])


def warn_of_rounding(names: list[str]) -> None:
    if names:
        columns = ", ".join(map(repr, names))
        warn_caller(
            RemedyWarning(
                f"TFRecord has 32-bit floats only, so the values of {columns} are rounded",
                [
                    Remedy("lossy", "allow", "accept this"),
                    Remedy("lossy", "raise", "refuse values that would change"),
                ],
            )
        )


def warn_of_file_name(path: str) -> None:
    """Warn if a path looks like that of one file, because a write creates a directory."""
    if re.search(r"\.tfrecords?(\.\w+)?$", path):
        warn_caller(f"{path!r} will be a directory of files, as of to_parquet in Dask, and not one file.")


def warn_of_compression(codec: Compression | None) -> None:
    """Warn if TensorFlow cannot read files compressed with ``codec``."""
    if codec and not CODECS[codec].tensorflow:
        warn_caller(
            f"TensorFlow reads only gzip and zlib, so it cannot read files that are compressed with {codec}."
        )


@dataclass(frozen=True)
class WriteRequest:
    """The checked keywords of `to_tfrecord`, apart from the destination and from how Dask computes."""

    mode: Mode
    options: WriteOptions
    rare: WriteOptionKeywords
    schema: Any
    record_type: RecordType | None
    write_index: bool | None
    keys: tuple[str, ...]
    splits: Splits | None
    npartitions: int
    shuffle: Shuffle | None
    adds_columns: bool
    keep_versions: bool
    columnar: Any
    name_function: Callable[[int], str] | None
    custom_metadata: dict[str, str]
    write_id: str | None

    def operation(self, newest: Snapshot | None, replaceable: frozenset[str]) -> Operation:
        """Return how the write changes the newest version. An overwrite also removes ``replaceable``."""
        sets_columnar = not is_auto(self.columnar)
        if self.mode == "append":
            return Append(self.adds_columns, sets_columnar)
        if self.mode == "overwrite":
            return Overwrite(planned_rows(newest), replaceable, self.keep_versions)
        if self.mode == "partitions":
            return ReplacePartitions(
                planned_rows(newest, by_partition=True),
                keep_versions=self.keep_versions,
                adds_columns=self.adds_columns,
                sets_columnar=sets_columnar,
            )
        return Create()


def write_request(
    columns: Sequence[Any], npartitions: int, rare: WriteOptionKeywords, write: AllWriteKeywords
) -> WriteRequest:
    """Check the keywords of `to_tfrecord` for rows with ``columns`` in ``npartitions`` partitions.

    ``write`` contains a value for each keyword.
    """
    record_type, write_index = write["record_type"], write["write_index"]
    partition_on, name_function = write["partition_on"], write["name_function"]
    arguments.choice("record_type", record_type, ("infer", *get_args(RecordType)))
    arguments.count("max_files_per_task", rare["max_files_per_task"])
    colocate = arguments.flag("colocate", write["colocate"])
    options = write_options(write["compression"], write["lossy"], rare)
    keys = () if partition_on is None else tuple(arguments.names("partition_on", partition_on))
    splits = parse_splits(columns, write["split"], rare["split_by"])
    directories = keys if splits is None else (SPLIT, *keys)
    mode = write_mode(columns, write["append"], write["overwrite"], directories)
    count = arguments.count("npartitions", rare["npartitions"]) or npartitions
    check_name_function(name_function, count)
    seed = arguments.seed_of(write["shuffle"], write["seed"])
    return WriteRequest(
        mode,
        options,
        rare,
        schema=arguments.arrow_schema(write["schema"]),
        record_type=written_type(record_type, rare),
        write_index=None if write_index is None else arguments.flag("write_index", write_index),
        keys=keys,
        splits=splits,
        npartitions=count,
        shuffle=plan_shuffle(columns, directories, colocate, seed, count),
        adds_columns=schema_change_mode(write["schema_change"], mode),
        keep_versions=keeps_versions(write["keep_versions"], default=False),
        columnar=write["columnar"],
        name_function=name_function,
        custom_metadata=arguments.metadata(write["custom_metadata"]),
        write_id=arguments.write_id(write["write_id"]),
    )
