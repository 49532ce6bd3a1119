"""Implement `read_tfrecord`: validate the arguments, open the dataset, choose the dtypes, build the
collection.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, get_args, overload

import pyarrow as pa

from dask_tfrecord.collection.frames.arrow_to_pandas import NUMPY, nullable_dtypes, numpy_names
from dask_tfrecord.collection.opened_path import OpenedPath
from dask_tfrecord.collection.scheduler import check_cluster
from dask_tfrecord.dataset.read.plan import ReadPlan, divisions
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.errors import Remedy, SchemaError, TFRecordError
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import CollectionKeywords, DtypeBackend, RequestKeywords
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.keywords.requests import existing_names
from dask_tfrecord.schema.dtypes import fitting_dtype
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.storage.paths import PathLike

if TYPE_CHECKING:
    import dask.dataframe as dd

logger = logging.getLogger(__name__)


@overload
def read_tfrecord(
    path: PathLike | Sequence[PathLike], *, columns: str, **keywords: Unpack[CollectionKeywords]
) -> "dd.Series": ...
@overload
def read_tfrecord(
    path: PathLike | Sequence[PathLike],
    *,
    columns: Sequence[str] | None = None,
    **keywords: Unpack[CollectionKeywords],
) -> "dd.DataFrame": ...
@public_function
def read_tfrecord(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
    dtype_backend: DtypeBackend | None = None,
    **read: Unpack[RequestKeywords],
) -> "dd.DataFrame | dd.Series":
    """Read TFRecord files into a Dask DataFrame.

    Importing `dask_tfrecord` adds this function to Dask as ``dask.dataframe.read_tfrecord``.

    A computation opens only the files that it needs, decodes only the columns that it needs, and verifies the
    checksums of all records that it reads.

    Parameters
    ----------
    path : str, path-like or list of these
        A directory with all its subdirectories, a glob (``*``, ``?``, ``[ab]``, ``**``, ``{a,b}``), a file,
        or a list of these. A remote path begins with a protocol such as ``s3://``.

        A directory that `to_tfrecord` wrote contains a snapshot, which says what the columns and their types
        are. For all other paths, globs and lists, they are inferred from the records.

        The rows of a dataset come in the order in which they were written. With partition columns, the rows
        of a partition directory are adjacent, and the directories are sorted by the partition values. The
        files of other tools are read in the order of their paths, as are all files with
        ``use_snapshot=False``. A list of paths is read in its own order.

        As in Spark, files and directories whose names start with ``.`` or ``_`` are not read. Globs and lists
        of directories also skip the files of writes that are not committed. A file is always read if its full
        path is passed.

        Reads follow symbolic links, except links to a parent directory. A directory with several links is
        read once, unless the names of the links contain different partition values. Pipes, sockets and
        devices are skipped. Passing one as the path raises.
    columns : str or list of str, optional
        The columns to load, in this order. By default, all columns are loaded. A single name gives a Series.
        The name of a group, such as "objects" for "objects/bbox" and "objects/label", loads all its columns.
        "point/x" loads the field "x" of the struct column "point". An unknown or repeated name raises.
    schema : mapping, pyarrow.Schema, Schema, str or path-like, optional
        The types of some or all columns.

        A mapping replaces the inferred or stored types of some columns, and drops those of type None. A type
        may be an Arrow, NumPy, pandas or Python type, or a string such as ``"int64"``.

        A complete schema lists all columns. Nothing is inferred then, and features outside the schema are not
        read. It may come from other libraries: a ``Schema`` message of TensorFlow Metadata or the path of a
        ``schema.pbtxt``, the path of a ``features.json`` of TFDS or of its directory, or a dict of
        TensorFlow's feature specs, such as ``tf.io.FixedLenFeature``. The path of a dataset stands for the
        schema in its snapshot. The page `types <../types.html>`_ lists which column each feature becomes. The
        read raises for a feature that no column can represent.

        A column found in no record is all null. If a snapshot or ``infer="all"`` proves that no record has
        it, the read raises instead. It also raises if the unit of a timestamp, time or duration differs from
        that in the snapshot. In sequence examples, the records decide whether a column reads the context or
        the feature lists; a list column reads a feature list with one value in each step.
    hive : bool or mapping of str to pyarrow.DataType, default True
        If True, directories named ``key=value`` become partition columns. With False, directory names are
        ignored.

        A key becomes an int64 column if all its values are integers in canonical form (``7``, not ``07``),
        and otherwise a string column. A mapping sets the types of the partition columns, and a column that it
        names replaces a feature of the same name. ``__HIVE_DEFAULT_PARTITION__`` is read as null, and so is a
        key that the path of a file lacks. For a directory without a snapshot, only the names below it count;
        for globs, files and lists, all names in the path do.
    use_snapshot : bool, default True
        If True, read the files that the snapshot of the directory lists. With False, or without a snapshot,
        all files in the directory are read, as if another tool had written them.
    filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression, optional
        Conditions that select the rows to load. In a list of conditions ``(column, operator, value)``, all
        must hold. In a list of such lists, all conditions of at least one must hold.

        The operators are ``=``, ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``not in``, ``is`` and
        ``is not``. With ``is`` and ``is not``, the value None stands for nulls, and NaN for both nulls and
        NaN. A null meets only conditions with ``is`` and ``not in``. Columns of floats are compared as 32-bit
        floats, as TFRecord stores them. "point/x" is the field "x" of the struct column "point".

        A file is not opened if its partition values, or its statistics in the snapshot, prove that none of
        its rows pass. In a pyarrow expression, such as ``pc.field("year") > 2020``, only the parts that could
        be written as such lists help to skip files.
    split : str or list of str, optional
        The split to load, such as ``"train"``, a list of splits, or ``"all"``. A list and "all" add a
        partition column ``split``, unless a column has this name; filters on it skip files. A single name
        adds none, and leaves out the column ``split`` of directories such as ``split=train``.

        Splits are found in the ``dataset_info.json`` and the file names of TensorFlow Datasets (TFDS), in TFX
        directories such as ``Split-train``, and in directories such as ``split=train``. By default, a TFDS or
        TFX directory is read with all splits and the column ``split``. The read raises if a glob, or one path
        of a list, contains several splits, and no partition column separates them. It also raises if the path
        contains several versions or configurations of a dataset, or if a directory lacks a file that its
        ``dataset_info.json`` lists.

        In a TFDS directory, ``features.json`` declares the columns. Each leaf of its tree of features becomes
        a column with the declared type and shape, and a name such as ``objects/bbox``. The page `types
        <../types.html>`_ lists the Arrow type of each feature class.
    labels : {"names", "codes"}, default "names"
        How TFDS class labels are read. "names" gives a categorical of class names, in which the class -1 is
        null, and "codes" gives class numbers.
    version : int, optional
        The version of the dataset to read, as in `open_dataset`. By default, the newest version is read.

        `Dataset.history` lists the versions. An append keeps them all. An overwrite removes them, unless
        ``keep_versions`` is set; ``overwrite="partitions"`` does so only if it replaces a file.
    blocksize : int, str or None, default "default"
        The target size of a partition in stored bytes, as a number or as text such as "64 MiB". "default"
        stands for ``dask-tfrecord.blocksize`` in Dask's configuration, which is "128 MiB" unless it was
        changed. With None, each file is one partition.

        Larger files are split. This needs no extra read for files that `to_tfrecord` wrote, even if they are
        compressed, and for any files after `Dataset.add_snapshot`. Other uncompressed files are first read
        once, in parallel, to find where records begin. Smaller files that follow each other share a
        partition if they have the same partition values.
    partition_by : str or list of str, optional
        The partition columns whose values divide the rows into Dask partitions, one for each combination.
        ``ddf.map_partitions(function, meta=...)`` then calls a function once for each key, without a shuffle.

        All rows of a key must fit into the memory of a worker. Files are neither split nor joined, so
        ``blocksize`` has no effect, and ``max_corrupt`` applies to each file. Null counts as a value. If
        ``filters`` skip all files of a key, it has no partition; if no row passes, its partition is empty.
        The read raises if a name is not a partition column.
    record_type : {"infer", "example", "sequence_example", "bytes"}, default "infer"
        The type of the message in each record. "bytes" reads any payload into one binary column,
        ``record``. "infer" selects "bytes" for records that are not messages and, with a warning, for
        messages that are not Examples. "example" reads only the context of sequence examples, and raises if
        sampled records have feature lists, unless ``extra`` is "ignore" or ``columns`` names the columns to
        read.
    compression : {"infer", "gzip", "zlib", "zstd", "lz4", "bz2", "xz", None}, default "infer"
        The codec of the files. "infer" detects it from the first bytes of each file, not from its name.
        TensorFlow's names "GZIP", "ZLIB" and "" are accepted.
    extra : {"raise", "ignore"}, default "raise"
        What to do with a feature that has no column, for example because no sampled record contains it.
        "raise" raises if all columns are read and ``schema`` is not complete; records that ``filters`` skip
        are not checked. "ignore" leaves the feature out. Every read raises if a column reads the context of
        some records, while others have a feature list of its name, or the reverse.
    include_path_column : bool or str, default False
        If True, add a column ``path`` with the path of each record's file; a string sets another column name.
    on_corrupt : {"raise", "skip", "quarantine"}, default "raise"
        What to do with damaged records. "raise" raises. "skip" drops them, reads all others, and warns once
        for each file and partition. "quarantine" also stores the lost bytes in ``quarantine_path``.

        If a payload is damaged or is not a valid message, only this record is lost. If the length of a record
        is damaged, all bytes up to the next record with valid checksums are lost. The read always raises if a
        file was replaced after it was listed, or if a value does not fit its column.
    read_options : dict, optional
        Options that few reads need:

        ``infer`` : {"sample", "all"}, default "sample"
            The records from which columns and types are inferred. "sample" takes some records of the first
            file, the last file and a few files between them, and reads up to 64 MiB more if it finds no
            feature, or one without a value. "all" reads all files once more.

        ``include_offset_column`` : bool or str, default False
            If True, add a column ``offset`` with the byte offset of each record in its decompressed file; a
            string sets another column name.

        ``max_corrupt`` : int or float, optional
            The maximum number of records (an int), or their fraction (a float between 0 and 1), that each
            partition may lose to damage. A greater loss raises. A byte range without recognisable records
            counts as one. By default, any number may be lost.

        ``quarantine_path`` : str or path-like, optional
            The directory, preferably a new one, for the lost bytes of ``on_corrupt="quarantine"``. Each task
            writes a Parquet file for each file, or part of one, with damage. Its rows are the damaged
            ranges, with the columns ``file``, ``offset``, ``length``, ``reason`` and ``bytes``; a long range
            takes several rows. ``storage_options`` apply to this directory as well.

        ``verify_crc`` : bool, default True
            If True, verify the checksum of each record's payload. With False, damaged values may be read as
            valid ones, and the checksum of a file in the snapshot is verified only if its modification time
            differs. The checksums of record lengths are always verified.

        ``max_record_bytes`` : int or str, default 2 GiB - 1
            The maximum size of a record, in bytes. A larger record counts as damage, so that hostile files
            cannot use up the memory.

        ``max_features`` : int, optional
            The maximum number of different features in the sampled records, by default 10,000. The read
            raises if there are more, so that hostile files cannot use up the memory. With None, there is no
            limit. The columns of a snapshot are not limited.
    index : str, list of str or False, optional
        The columns that become the index of the DataFrame. By default, the index that `to_tfrecord` stored is
        restored, except for levels that ``columns`` names. With False, it is loaded as columns.

        Without an index, the rows of each partition are counted from 0. Timestamps and durations become
        pandas' own index types, which support string lookup and resampling.
    calculate_divisions : bool, default False
        If True, compute the divisions of the index, so that ``ddf.loc[a:b]`` opens only files that may
        contain rows from ``a`` to ``b``. Files are not split then, and the rows of each partition are sorted
        by the index.

        The divisions are known only if statistics in the snapshot, or partition values, prove that the
        partitions are ordered. The index must not be floating-point and must contain no nulls. The categories
        of a categorical index must be in the order of their values.
    categories : list of str, optional
        The columns to read as pandas categoricals. Dask learns their categories only when the data is read.
    dtype_backend : {"pyarrow", "numpy", "numpy_nullable", None}, default None
        The dtypes of the columns. By default, each column gets the dtype with which it was written, such as
        int64, Int64 or ``str``. If writes had different dtypes, the column gets a dtype that can hold all
        values. If no dtype is known, as in files of other tools, the column is Arrow-backed. "pyarrow" makes
        all columns Arrow-backed.

        "numpy" uses NumPy and object dtypes where they can hold every value of a column. In floats, null
        becomes NaN. Timestamps and durations keep their unit, and null becomes NaT; a value of -2^63, which
        is NaT in NumPy, raises. Strings become ``str`` from pandas 3 on, and object in pandas 2. Bytes and
        lists become object. Integer and bool columns get NumPy dtypes only if statistics in the snapshot
        prove that there are no nulls, or if ``schema`` is a `pyarrow.Schema` with ``nullable=False`` for the
        field; a null in such a field raises. Dates, times, decimals, lists of these, and lists of timestamps
        with a time zone stay Arrow-backed.

        "numpy_nullable" uses pandas' nullable dtypes, such as Int64 and string, and those of "numpy" for all
        other columns. Categorical columns are always read as pandas categoricals.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    dask.dataframe.DataFrame or dask.dataframe.Series
        The rows, with the dtypes that ``dtype_backend`` selects. The result is a Series if ``columns`` is a
        single name. Each partition has a new range index, unless columns become the index.

    Raises
    ------
    FileNotFoundError
        If the path matches no file, if a link is broken, or if the dataset has no such ``version``.
    FileChangedError
        If a file of the dataset is missing or has a different size (checked on a local disk, for at most
        1,000 files). Computing a partition raises if one of its files is missing, has a different size or
        content, or was removed by a write after the read was planned.
    CorruptRecordError
        If a sampled record is damaged. Damage to any other record raises when its partition is read.
    SchemaError
        If a value in a record does not fit its column.

    See Also
    --------
    to_tfrecord : Write a Dask DataFrame as TFRecord files.
    Dataset.add_snapshot : Store a snapshot of files that another tool wrote, so that reads are faster.

    Examples
    --------
    >>> import dask_tfrecord
    >>> import pandas as pd
    >>> from dask import dataframe as dd
    >>> people = pd.DataFrame({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]})
    >>> _ = dask_tfrecord.to_tfrecord(dd.from_pandas(people, npartitions=2), "people")

    >>> ddf = dask_tfrecord.read_tfrecord("people")
    >>> ddf.compute()
        name  born
    0    Ada  1815
    1   Alan  1912
    2  Grace  1906
    >>> ddf.dtypes
    name    string
    born     int64
    dtype: object

    Read files that another tool wrote. Their columns and types are inferred:

    >>> filters = [("born", ">", 1900)]
    >>> dask_tfrecord.read_tfrecord("people/*.tfrecord", columns=["born"], filters=filters).compute()
       born
    0  1912
    1  1906
    """
    dataset = OpenedPath(path, columns, read).plan()
    ddf = collection_of(dataset, columns, read, categories, dtype_backend)
    return ddf[columns] if isinstance(columns, str) and list(ddf.columns) == [columns] else ddf


def collection_of(
    dataset: ReadPlan,
    columns: str | Sequence[str] | None,
    read: Mapping[str, Any],
    categories: Sequence[str] | None,
    dtype_backend: DtypeBackend | None,
) -> "dd.DataFrame":
    """Create the Dask DataFrame that reads the rows of a plan. ``read`` contains the keywords of the read."""
    from dask_tfrecord.collection.expr import read_expression  # imports dask.dataframe, which takes long

    arguments.choice("dtype_backend", dtype_backend, (None, *get_args(DtypeBackend)))
    check_cluster()
    if logger.isEnabledFor(logging.INFO):  # computing the summary of many files takes time
        logger.info("%s: read planned: %s", dataset.store.public(), dataset.summary)

    if categories is not None:
        dataset = replace(dataset, schema=_with_categories(dataset.schema, categories))
    names = None if columns is None else existing_names(dataset.schema, "columns", columns)
    levels = _index_levels(dataset, read.get("index"), names)
    divisions = _divisions(dataset, levels) if read.get("calculate_divisions") else None
    times = [column for column, _ in levels if _is_time(dataset.schema.arrow.field(column).type)]
    dtypes = dict.fromkeys(times, NUMPY)
    if dtype_backend == "numpy":
        dtypes |= dict.fromkeys(_numpy_columns(dataset, read.get("schema")), NUMPY)
    elif dtype_backend == "numpy_nullable":
        dtypes |= nullable_dtypes(dataset.schema)
    elif dtype_backend is None:
        found = {item.name: fitting_dtype(item.dtype, item.type) for item in dataset.schema.fields}
        dtypes |= {name: dtype for name, dtype in found.items() if dtype}

    return read_expression.read(dataset, names, dtypes=dtypes, index=levels, divisions=divisions)


def _index_levels(dataset: ReadPlan, index: Any, columns: Sequence[str] | None) -> Levels:
    """Return the index levels that ``index=`` names. By default, return the stored levels that are not in
    ``columns``.
    """
    if index is None:
        return tuple(level for level in dataset.index if level[0] not in (columns or ()))
    names = [] if index is False else existing_names(dataset.schema, "index", index)
    for item in dataset.schema.select(names).fields:
        if columns is not None and item.name in columns:
            problem = "the column is in columns= and in index="
            remedy = Remedy("columns", _without(item.name, columns), "read it only as the index")
            raise SchemaError(problem, remedy, feature=item.name)
        if item.depth:
            problem = f"a column of type {item.type} cannot be the index"
            remedy = Remedy("index", _without(item.name, names) or False, "leave it out of the index")
            raise SchemaError(problem, remedy, feature=item.name)
    return tuple((name, name) for name in names)


def _numpy_columns(dataset: ReadPlan, schema: Any) -> list[str]:
    """Return the columns that NumPy dtypes can hold. Skip integers and bools unless they cannot be null."""
    fields = schema if isinstance(schema, pa.Schema) else ()
    not_nullable = {item.name for item in fields if not item.nullable}
    return numpy_names(dataset.schema, dataset.non_null_columns | not_nullable)


def _is_time(type_: pa.DataType) -> bool:
    """Return True if pandas has an index class for a type (DatetimeIndex or TimedeltaIndex)."""
    return bool(pa.types.is_timestamp(type_) or pa.types.is_duration(type_))


def _divisions(dataset: ReadPlan, levels: Levels) -> tuple[Any, ...] | None:
    if not levels:  # without an index, there are no divisions
        return None
    if len(levels) > 1:
        raise TFRecordError(
            f"calculate_divisions=True needs an index of one column, not of {len(levels)} levels",
            "pass index= with the name of one column",
            Remedy("calculate_divisions", False, "read without divisions"),
        )
    name = levels[0][0]
    found, type_ = divisions(dataset, name), dataset.schema.arrow.field(name).type
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    if found is None or not _is_time(type_):
        return found
    # Dask repartitions by frequency only if the divisions are pandas values.
    return tuple(pa.array(found, type_).to_pandas())


def _with_categories(schema: Schema, categories: Any) -> Schema:
    # As in Dask's own readers, ``categories`` may be a mapping from each column to its number of categories.
    names = list(categories) if isinstance(categories, Mapping) else categories
    names = existing_names(schema, "categories", names)
    return replace(
        schema,
        fields=tuple(_categorical(item, names) if item.name in names else item for item in schema.fields),
    )


def _without(name: str, names: str | Sequence[str]) -> list[str]:
    return [one for one in arguments.names("columns", names) if one != name]


def _categorical(item: Field, names: Sequence[str]) -> Field:
    if pa.types.is_dictionary(item.type):
        return item
    if item.depth:
        problem = f"a column of type {item.type} cannot be categorical"
        remedy = Remedy("categories", _without(item.name, names), "leave it out")
        raise SchemaError(problem, remedy, feature=item.name)
    return replace(item, type=pa.dictionary(pa.int32(), item.type))
