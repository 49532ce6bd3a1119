"""`read_tfrecord`: arguments -> dataset -> collection."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, get_args, overload

import dask.dataframe as dd
import pyarrow as pa
import pyarrow.compute as pc
from dask.utils import parse_bytes

from dask_tfrecord import arguments, expr
from dask_tfrecord.cluster import check_cluster
from dask_tfrecord.codec import MAX_RECORD_BYTES, RecordType
from dask_tfrecord.dataset.discovery import Infer, check_choice, open_dataset
from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.dataset.snapshot.model import Levels, Snapshot
from dask_tfrecord.dataset.write.destination import destination
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.files.damage import DamagePolicy, OnCorrupt, check_policy, check_quarantine_path
from dask_tfrecord.files.options import Extra, ReadCompression, ReadOptions
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.frames.arrow_to_pandas import numpy_names
from dask_tfrecord.keywords import AnyCompression, AnyRecordType, AnySchema, DtypeBackend, ReadKeywords
from dask_tfrecord.parallel import compute_each
from dask_tfrecord.schema.model import Schema


@overload
def read_tfrecord(
    path: PathLike | Sequence[PathLike], *, columns: str, **keywords: Unpack[ReadKeywords]
) -> dd.Series: ...
@overload
def read_tfrecord(
    path: PathLike | Sequence[PathLike],
    *,
    columns: Sequence[str] | None = None,
    **keywords: Unpack[ReadKeywords],
) -> dd.DataFrame: ...
def read_tfrecord(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    schema: AnySchema | None = None,
    hive: bool | Mapping[str, Any] = True,
    use_snapshot: bool = True,
    infer: Infer = "sample",
    filters: Sequence[Any] | pc.Expression | None = None,
    blocksize: int | str | None = "128 MiB",
    record_type: AnyRecordType = "infer",
    compression: AnyCompression | Literal["infer"] | None = "infer",
    extra: Extra = "raise",
    include_path_column: bool | str = False,
    include_offset_column: bool | str = False,
    on_corrupt: OnCorrupt = "raise",
    max_corrupt: int | float | None = None,
    quarantine_path: PathLike | None = None,
    verify_crc: bool = True,
    max_record_bytes: int | str = MAX_RECORD_BYTES,
    index: str | Sequence[str] | Literal[False] | None = None,
    calculate_divisions: bool = False,
    categories: Sequence[str] | None = None,
    dtype_backend: DtypeBackend | None = "pyarrow",
    storage_options: dict[str, Any] | None = None,
) -> dd.DataFrame | dd.Series:
    """Read TFRecord files into a Dask DataFrame.

    Only the columns that a computation needs are decoded, only the files of the partitions that it needs
    are opened, and every checksum of what is read is verified.

    Parameters
    ----------
    path : str, path-like or list of these
        A directory (with all that is below it), a glob (``*``, ``?``, ``[ab]``, ``**``, ``{a,b}``), a file,
        or a list of these. Prepend a protocol such as ``s3://`` for remote data. A directory that
        `to_tfrecord` wrote, if it is not in a list, knows its columns and their types; for all other files
        they are inferred. Rows come in the order of the paths' names, those of a list in its order. Names
        that start with ``.`` or ``_`` are hidden, as in Spark. A glob or list of directories gives none of
        the files of a write that has not committed; a file that is spelled out is always read. Links are
        followed. A directory that several links lead to is read once, unless the name of a link makes
        another partition key; a link to a directory above itself is not followed; a link to a file is a
        file. Pipes, sockets and devices are passed over, and refused where they are spelled out.
    columns : str or list of str, optional
        The columns to load, in this order. One name that is not in a list gives a Series.
    schema : mapping of str to pyarrow.DataType or None, pyarrow.Schema, Schema or Snapshot, optional
        The types of columns. A mapping gives the types of some columns, which replace the inferred or stored
        types; None leaves a column out. Names such as "int64" and types of NumPy, pandas and Python mean the
        Arrow type. A column found in no record is all null. It raises if a snapshot or ``infer="all"`` proves
        that no record has it, and if it takes times for those of another unit than the snapshot tells. A
        schema gives all columns: nothing is inferred, and no other feature is read.
        It may be that of another dataset, as ``Snapshot.open("train")`` gives it.
    hive : bool or mapping of str to pyarrow.DataType, default True
        Whether directories that are called ``key=value`` make columns. Without a snapshot those of all
        levels below ``path`` count if it is a directory, and for globs, files and lists those of the whole
        path. Where all values of a key are integers in their plain spelling it becomes int64, else string;
        a mapping gives types, and prefers those directories to features of the same names. The value
        ``__HIVE_DEFAULT_PARTITION__`` is missing, as is a key that the path of a file does not have.
    use_snapshot : bool, default True
        Whether to read a directory that `to_tfrecord` wrote by its snapshot. Otherwise the files that are
        there are read like anyone's.
    infer : "sample" or "all"
        Whether columns and types are inferred from some records of the first file, the last and a few
        between, or from every record of all files, which reads everything once more. If these records show no
        column, or a column without a value, up to 64 MiB more of the files are looked at.
    filters : list of tuple or list of list of tuple, optional
        Which rows to load: conditions ``(column, operator, value)`` that must all hold, or lists of such of
        which one must hold. Operators are ``=``, ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``,
        ``not in``, and ``is`` and ``is not``, which look for None. Missing values are false in all but ``is``
        and ``not in``. An expression of pyarrow, such as ``pc.field("year") > 2020``, works too, but leaves
        no file out. Files that hold no such row by their partition columns or by the statistics of the
        snapshot are not opened; of the others all rows are looked at. Values are compared as they are stored:
        those of floating point columns with 32 bits.
    blocksize : int, str or None, default "128 MiB"
        How much of the files, in stored bytes, a partition should be. Larger files are split: those that
        `to_tfrecord` wrote at no cost, compressed ones too; uncompressed ones of others are read once, in
        parallel, to find their records, unless `index` has done so. Neighbouring files that are smaller
        share a partition if their partition columns hold the same. None makes a partition of each file.
    record_type : "infer", "example", "sequence_example" or "bytes"
        What the records are. With "bytes" they may be anything, and are one column, ``record``. "infer" gives
        bytes for records that are no messages, and, with a warning, for messages that are no Examples.
    compression : "infer", "gzip", "zlib", "zstd", "lz4", "bz2", "xz" or None
        "infer" goes by the first bytes of each file, whatever its name. "GZIP", "ZLIB" and "", as TensorFlow
        spells them, are understood.
    extra : "raise" or "ignore"
        What becomes of a feature that is no column, for example because the sample did not hold it. It
        raises where all columns are read, unless ``schema`` is a whole one.
    include_path_column : bool or str, default False
        Whether a column, called ``path`` or as given, tells the file of each record.
    include_offset_column : bool or str, default False
        Whether a column, called ``offset`` or as given, tells where in its file, once decompressed, each
        record begins.
    on_corrupt : "raise", "skip" or "quarantine"
        What becomes of damage. By default it raises. "skip" reads all other records: where a payload is
        damaged or is no message, that record is lost; where a length is, all up to the next record whose
        checksums hold. What is lost is told by one warning for each file of a partition. "quarantine" keeps
        the lost bytes, too. A file that was replaced, and values that do not fit their column, always raise.
    max_corrupt : int or float, optional
        How many records, or stretches in which none can be told, each partition may lose; a float between 0
        and 1 is the fraction of its records. More raise.
    quarantine_path : str or path-like, optional
        Directory for the lost bytes, as Parquet files with the columns ``file``, ``offset``, ``length``,
        ``reason`` and ``bytes``, one for each damaged stretch that a task reads; best a new one. Long damage
        takes several rows. ``storage_options`` hold for it, too.
    verify_crc : bool, default True
        Whether the checksums of the payloads are verified. Without, reading is a little faster, and damaged
        values may be taken for good ones. The checksums of lengths are always verified.
    max_record_bytes : int or str, default 2 GiB - 1
        A longer record is damage. It bounds the memory that hostile files can take.
    index : str, list of str or False, optional
        The column or columns that become the index, and are no columns then. By default it is the index that
        `to_tfrecord` wrote, if the snapshot tells of one, but for levels that ``columns`` names. Without one,
        or with False, rows are counted in each partition, and what was an index is a column. Timestamps and
        durations become pandas' own indexes, which look up texts and can be resampled.
    calculate_divisions : bool, default False
        Whether to find the divisions of the index, so that ``ddf.loc[a:b]`` opens only files that hold such
        rows. They are known where the snapshot's statistics, or the partition values, prove that each
        partition has greater values than the one before, and no missing or floating ones; of categories if
        these are listed in the order of their values. Files are not split then, and the rows of each
        partition come in the order of the index.
    categories : list of str, optional
        Columns to read as pandas categories. Their values become known as they are read.
    dtype_backend : "pyarrow", "numpy" or None
        What holds the columns; None means "pyarrow". "numpy" takes pandas' older dtypes for those columns
        that they can hold whatever comes: floats (missing is NaN), timestamps and durations in their unit
        (missing is NaT), strings (``str`` from pandas 3 on, else objects), and bytes and lists, as objects.
        Integers and bools are among them only if none is missing by the statistics of the snapshot, or by a
        `pyarrow.Schema` in ``schema=`` with fields that are not nullable; a missing value then raises. Dates,
        times and decimals, lists of these, and lists of timestamps with a time zone stay Arrow-backed. A
        timestamp or duration of -2^63, which NumPy takes for NaT, raises. Categories are categories with
        either.
    storage_options : dict, optional
        Passed to the filesystem, such as credentials.

    Returns
    -------
    dask.dataframe.DataFrame or dask.dataframe.Series
        With Arrow-backed columns, if no other are wanted, and a new range index in every partition if no
        column is the index.

    Raises
    ------
    FileNotFoundError
        If there is nothing to read, or a link leads to nothing.
    FileChangedError
        If a file is not the one that the dataset's snapshot describes, here or when the file is read.
    CorruptRecordError
        For damage, here if it is in the sample, else when the file is read.
    SchemaError
        For values that do not fit their column.

    See Also
    --------
    to_tfrecord

    Examples
    --------
    >>> import dask_tfrecord, dask.dataframe as dd
    >>> ddf = dd.read_tfrecord("s3://bucket/train", columns=["label"])  # doctest: +SKIP
    """
    path = arguments.paths(path)
    check_choice("record_type", record_type, ("infer", *get_args(RecordType)))
    check_choice("infer", infer, get_args(Infer))
    dtype_backend = "pyarrow" if dtype_backend is None else dtype_backend
    check_choice("dtype_backend", dtype_backend, get_args(DtypeBackend))
    codec: ReadCompression = arguments.compression(compression, "infer")
    arguments.flags(use_snapshot=use_snapshot, verify_crc=verify_crc, calculate_divisions=calculate_divisions)
    arguments.mappings(storage_options=storage_options)
    schema = arguments.schema(schema)
    check_choice("extra", extra, get_args(Extra))
    check_choice("on_corrupt", on_corrupt, get_args(OnCorrupt))
    if quarantine_path is not None:
        arguments.path(quarantine_path, "quarantine_path")
    quarantine = None if quarantine_path is None else destination(quarantine_path, storage_options)
    damage = DamagePolicy(on_corrupt, max_corrupt, quarantine)
    check_policy(damage)
    options = ReadOptions(
        compression=codec,
        verify_crc=verify_crc,
        max_record_bytes=_record_bytes(max_record_bytes),
        extra="ignore" if isinstance(schema, pa.Schema | Schema | Snapshot) else extra,
        damage=damage,
        path_column=_origin_name(include_path_column, "path"),
        offset_column=_origin_name(include_offset_column, "offset"),
    )
    check_cluster()
    dataset = open_dataset(
        path,
        columns=_asked(columns, index),
        schema=schema,
        hive=hive,
        use_snapshot=use_snapshot,
        infer=infer,
        record_type=record_type,
        compute_each=compute_each,
        options=options,
        blocksize=_bytes("blocksize", blocksize),
        whole_files=calculate_divisions,
        filters=None if isinstance(filters, list | tuple) and not filters else filters,
        storage_options=storage_options,
    ).with_origin_columns()
    check_quarantine_path(quarantine, dataset.store)
    if categories is not None:
        dataset = replace(dataset, schema=_with_categories(dataset.schema, categories))
    numpy = _numpy_names(dataset, schema) if dtype_backend == "numpy" else None
    names = None if columns is None else _names(dataset.schema, "columns", columns)
    levels = _levels(dataset, index, names)
    divisions = _divisions(dataset, levels) if calculate_divisions else None
    numpy = [*(numpy or ()), *(column for column, _ in levels if _is_time(dataset.schema, column))]
    ddf = expr.read(dataset, names, numpy=numpy, index=levels, divisions=divisions)
    return ddf[columns] if isinstance(columns, str) else ddf


def _bytes(name: str, given: int | str | None) -> int | None:
    """A number of bytes, such as "64 MB"."""
    if given is None:
        return None
    try:
        size = int(parse_bytes(given)) if given != "" else 0
    except (AttributeError, OverflowError, TypeError, ValueError):
        size = 0
    if size < 1 or isinstance(given, bool):
        raise TFRecordError(
            f"{name}={given!r} is not a size", advice='pass bytes, a text such as "128 MiB", or None'
        )
    return size


def _numpy_names(dataset: Dataset, schema: Any) -> list[str]:
    """The columns for numpy; of those without missing values some are known, of others it was said."""
    said = {item.name for item in schema if not item.nullable} if isinstance(schema, pa.Schema) else set()
    return numpy_names(dataset.schema, dataset.non_null_columns | said)


def _asked(columns: Any, index: Any) -> list[str] | None:
    """The only columns that are read; None if all are."""
    if columns is None:
        return None
    levels = [] if index is None or index is False else arguments.names("index", index)
    return [*arguments.names("columns", columns), *levels]


def _levels(dataset: Dataset, given: Any, columns: Sequence[str] | None) -> Levels:
    """The columns that become the index: those that are given, or those that were the index."""
    if given is None:
        return tuple(level for level in dataset.index if level[0] not in (columns or ()))
    names = [] if given is False else _names(dataset.schema, "index", given)
    for item in dataset.schema.select(names).fields:
        if columns is not None and item.name in columns:
            raise SchemaError("columns= names the column that index= takes", feature=item.name)
        if item.depth:
            raise SchemaError(f"an index cannot hold {item.type}", feature=item.name)
    return tuple((name, name) for name in names)


def _is_time(schema: Schema, name: str) -> bool:
    """Whether pandas has an index of its own for a column, which looks up texts and can be resampled."""
    [item] = schema.select([name]).fields
    return bool(pa.types.is_timestamp(item.type) or pa.types.is_duration(item.type))


def _divisions(dataset: Dataset, levels: Levels) -> tuple[Any, ...] | None:
    if len(levels) != 1:
        problem = "no index" if not levels else f"an index of {len(levels)} levels"
        raise TFRecordError(
            f"calculate_divisions=True, but there is {problem}", advice="name its column by index="
        )
    return dataset.divisions(levels[0][0])


def _with_categories(schema: Schema, given: Any) -> Schema:
    """The schema with pandas categories in place of some columns' values."""
    given = list(given) if isinstance(given, Mapping) else given  # Dask's mapping says how many there are
    names = _names(schema, "categories", given)
    fields = []
    for item in schema.fields:
        if item.name in names and not pa.types.is_dictionary(item.type):
            if item.depth:
                raise SchemaError(f"categories= names a column of {item.type}", feature=item.name)
            item = replace(item, type=pa.dictionary(pa.int32(), item.type))
        fields.append(item)
    return replace(schema, fields=tuple(fields))


def _names(schema: Schema, keyword: str, given: Any) -> list[str]:
    """The columns that a keyword names, each of which there must be, and once."""
    names = arguments.names(keyword, given)
    try:
        schema.select(names)
    except SchemaError as error:
        raise SchemaError(f"{keyword}={given!r}: {error}") from None
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SchemaError(f"{keyword}= names {', '.join(map(repr, repeated))} more than once")
    return names


def _record_bytes(given: int | str) -> int:
    """A limit of records, which is at most what protobuf itself allows."""
    size = _bytes("max_record_bytes", given)
    if size is None or size > MAX_RECORD_BYTES:
        raise TFRecordError(
            f"max_record_bytes={given!r} is no limit",
            advice=f"pass at most {MAX_RECORD_BYTES:,}, or leave it out",
        )
    return size


def _origin_name(given: bool | str, usual: str) -> str | None:
    """The name of a column that is wanted or not."""
    if isinstance(given, str) and given:
        return given
    if not isinstance(given, bool):
        raise TFRecordError(
            f"include_{usual}_column={given!r} is neither a name nor True or False",
            advice=f"pass True for a column {usual!r}, or a name for it",
        )
    return usual if given else None
