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

    A computation decodes only the needed columns, opens only the needed files, and verifies every checksum in
    the bytes that it reads.

    Parameters
    ----------
    path : str, path-like or list of these
        A directory with all its subdirectories, a glob (``*``, ``?``, ``[ab]``, ``**``, ``{a,b}``), a file,
        or a list of these. A remote path begins with a protocol such as ``s3://``.

        A directory that `to_tfrecord` wrote has a snapshot. If ``path`` is a directory with a snapshot, the
        read takes columns and types from the snapshot. For a path that is not a directory with a snapshot,
        and for a list of directories, the columns and types are inferred.

        Files that another tool wrote are read in the order of their paths, with or without a snapshot. A list
        of paths is read in the order of the list. A dataset that `to_tfrecord` wrote is read in the order of
        the writes, and the rows of each write keep their order. If the dataset has partition columns, all
        rows of a partition directory are adjacent, and the directories are in ascending order of the
        partition values. With ``use_snapshot=False``, files are read in the order of their paths.

        As in Spark, files and directories whose names start with ``.`` or ``_`` are hidden, which means that
        they are not read. Globs and lists of directories skip the files of writes that are not committed. A
        file whose full path is passed is always read.

        Reads follow symbolic links to files and directories, except links to a parent directory. A directory
        that several links point to is read once, unless a link's name contains a different partition value.
        Pipes, sockets and devices are skipped. Passing the full path of a pipe, socket or device raises.
    columns : str or list of str, optional
        The columns to load, in this order. If ``columns`` is a single name and not a list, the result is a
        Series. By default, all columns are loaded. The name of a group of columns, such as "objects" for
        "objects/bbox" and "objects/label", loads all columns of the group. The name "point/x" loads the field
        "x" of the struct column "point" as a column. An unknown or repeated column name raises an error.
    schema : mapping, pyarrow.Schema, Schema, str or path-like, optional
        The types of some or all columns.

        A mapping sets the types of some columns, overriding the inferred or stored types. In a mapping, the
        type None drops the column. A complete schema lists all columns. With a complete schema, no type is
        inferred, and features outside the schema are not read. In a mapping, a type may be an Arrow type, a
        string such as ``"int64"``, or a type of NumPy, pandas or Python.

        A complete schema may come from another library. From TensorFlow Metadata, pass a ``Schema`` message
        or the path of a ``schema.pbtxt``. From TFDS, pass the path of a ``features.json`` or of its
        directory. From TensorFlow, pass a dict of feature specs, such as ``tf.io.FixedLenFeature``. If
        ``schema`` is the path of a dataset, the schema in that dataset's snapshot is used. The page `types
        <../types.html>`_ lists which column each kind of feature becomes. If no column can represent a
        feature of the schema, the read raises. The records decide whether a column reads the context or the
        feature lists of sequence examples. A list column reads a feature list if each step has one value.

        A column found in no record is all null. If a snapshot or ``infer="all"`` proves that no record
        contains the column, the read raises instead. A timestamp, time or duration type in ``schema`` raises
        if its unit differs from the unit in the snapshot.
    hive : bool or mapping of str to pyarrow.DataType, default True
        With ``hive=True``, directories named ``key=value`` become partition columns.

        If ``path`` is a directory without a snapshot, only directory names below ``path`` are used; for
        globs, files and lists, all directory names of the path are used. A key whose values are all integers
        in canonical form (``7``, not ``07``) becomes an int64 column. Any other key becomes a string column.
        If ``hive`` is a mapping, it sets the types of the partition columns. A partition column that the
        mapping names replaces a feature of the same name. The value ``__HIVE_DEFAULT_PARTITION__`` is read as
        null. If the path of a file lacks a key, the key is null in the rows of that file. With
        ``hive=False``, directory names are ignored.
    use_snapshot : bool, default True
        If the directory has a snapshot, ``use_snapshot=True`` reads the files that the snapshot lists.
        ``use_snapshot=False`` reads all files in the directory as if another tool had written them.
    filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression, optional
        Conditions that select the rows to load. A list of conditions ``(column, operator, value)`` selects
        the rows that meet all conditions. A list of lists of conditions selects the rows that meet all
        conditions of at least one inner list. The operators are ``=``, ``==``, ``!=``, ``<``, ``<=``, ``>``,
        ``>=``, ``in``, ``not in``, ``is`` and ``is not``. With ``is`` and ``is not``, the value None stands
        for nulls, and the value NaN for both nulls and NaN. A null meets only conditions with the operators
        ``is`` and ``not in``. Values of floating-point columns are compared as 32-bit floats, because
        TFRecord stores 32-bit floats. The name "point/x" refers to the field "x" of the struct column
        "point".

        A file is not opened if its partition values or the statistics of the snapshot prove that no row of
        the file passes the filters. In a pyarrow expression, such as ``pc.field("year") > 2020``, only the
        parts that could be written as lists of conditions are used to skip files.
    split : str or list of str, optional
        The split to load, such as ``"train"``, a list of splits, or ``"all"``. If ``split`` is a list or
        "all", the read adds a partition column ``split``, unless a column of this name exists. Filters on the
        column ``split`` skip the files of excluded splits. A single split name adds no column, and drops the
        column ``split`` of directories such as ``split=train``.

        Splits are found in the ``dataset_info.json`` and the file names of TensorFlow Datasets (TFDS), in TFX
        directories such as ``Split-train``, and in directories such as ``split=train``. Without ``split``,
        all splits of a TFDS or TFX directory are read, with the column ``split``. If a glob, or one path of a
        list, leads to several splits, the read raises unless a partition column separates the splits. The
        read raises if the path contains several versions or configurations of a dataset. Unless ``path`` is a
        glob or a list, the read raises if a file listed in ``dataset_info.json`` is missing.

        In a TFDS directory, ``features.json`` declares the columns. Each leaf of the tree of features becomes
        a column with the declared type and shape, and a name such as ``objects/bbox``. The page `types
        <../types.html>`_ lists the Arrow type of each feature class.
    labels : {"names", "codes"}, default "names"
        How columns of TFDS class labels are read. "names" reads each column as a categorical of class names,
        in which the class number -1 becomes null. "codes" reads class numbers.
    version : int, optional
        The version of the dataset to read, as in `open_dataset`. By default, the newest version is read.
        `Dataset.history` lists the versions of a dataset. An append keeps all earlier versions of the
        dataset. Without ``keep_versions``, an overwrite removes all earlier versions;
        ``overwrite="partitions"`` removes them only if it replaces a file. `cleanup` never removes a version.
    blocksize : int, str or None, default "default"
        The target size of a partition, measured in stored bytes. With ``blocksize=None``, each file is one
        partition. "default" stands for the value of ``dask-tfrecord.blocksize`` in Dask's configuration,
        which is "128 MiB" unless it was changed.

        Files larger than ``blocksize`` are split. Splitting files that `to_tfrecord` wrote needs no extra
        read, even if the files are compressed. Uncompressed files that another tool wrote are first read
        once, in parallel, to find where records begin. After `Dataset.add_snapshot`, files are split without
        an extra read. Neighbouring files that are smaller than ``blocksize`` share a partition if their
        partition columns have the same values.
    partition_by : str or list of str, optional
        The partition columns that divide the rows into Dask partitions. With ``partition_by``, each Dask
        partition contains exactly the rows of one key. A key is a combination of values of the named columns,
        where null counts as a value. With ``partition_by``, ``ddf.map_partitions(function, meta=...)`` calls
        the function once for each key, without a shuffle.

        All rows of a key, from all files, must fit into the memory of a worker. With ``partition_by``, files
        are neither split nor joined: ``blocksize`` has no effect, and ``max_corrupt`` applies to each file.
        The partition of a key is empty if no row of the key passes ``filters``. If ``filters`` skip all files
        of a key, the key has no partition. A name in ``partition_by`` that is not a partition column raises.
    record_type : {"infer", "example", "sequence_example", "bytes"}, default "infer"
        The type of the message in each record. ``record_type="bytes"`` accepts any payload, and reads the
        payloads into one binary column, ``record``. ``record_type="infer"`` selects "bytes" for records that
        are not messages and, with a warning, for messages that are not Examples. "example" reads only the
        context of sequence examples, and raises if sampled records have feature lists, unless ``extra`` is
        "ignore" or ``columns`` names the columns to read.
    compression : {"infer", "gzip", "zlib", "zstd", "lz4", "bz2", "xz", None}, default "infer"
        The codec of the files. "infer" detects the codec of each file from its first bytes, not from its
        name. TensorFlow's codec names "GZIP", "ZLIB" and "" are accepted.
    extra : {"raise", "ignore"}, default "raise"
        How the read treats a feature without a column, which can occur because no sampled record contains the
        feature. ``extra="raise"`` raises an error, but only if all columns are read and ``schema`` is not a
        complete schema. Records are not checked if ``filters`` skip them before they are read.
        Every read raises for a feature list whose column reads the context of other records, or the reverse.
        ``extra="ignore"`` leaves out features for which the DataFrame has no column.
    include_path_column : bool or str, default False
        If True, add a column ``path`` with the path of each record's file; a string sets another column name.
    on_corrupt : {"raise", "skip", "quarantine"}, default "raise"
        How the read treats damaged records. ``on_corrupt="raise"`` raises an error for a damaged record.
        ``on_corrupt="skip"`` drops damaged records, reads all other records, and warns once per file and
        partition. ``on_corrupt="quarantine"`` skips damaged records, and stores the lost bytes in the
        directory ``quarantine_path``.

        If the payload of a record is damaged or is not a valid message, only this record is lost. If the
        length of a record is damaged, all bytes up to the next record with valid checksums are lost. Whatever
        ``on_corrupt`` is, the read raises if a file was replaced after it was listed, or if a value does not
        fit its column.
    read_options : dict, optional
        Options that few reads need:

        ``infer`` : {"sample", "all"}, default "sample"
            The records from which columns and types are inferred. ``infer="sample"`` infers columns and types
            from some records of the first file, the last file and a few files between them. If the sample
            contains no feature, or a feature without a value, up to 64 MiB more data is read. ``infer="all"``
            uses every record, so all files are read once more.

        ``include_offset_column`` : bool or str, default False
            If True, add a column ``offset`` with the byte offset of each record in its decompressed file; a
            string sets another column name.

        ``max_corrupt`` : int or float, optional
            The maximum number or fraction of records that each partition may lose to damage; a greater loss
            raises. If ``max_corrupt`` is an integer, it limits the number of records, and a byte range
            without recognisable records counts as one record. If ``max_corrupt`` is a float between 0 and 1,
            it limits the fraction of the partition's records. By default, any number of records may be lost.

        ``quarantine_path`` : str or path-like, optional
            The directory, preferably a new one, for the lost bytes of ``on_corrupt="quarantine"``. Each task
            writes one Parquet file for each file, or part of a file, in which it finds damage. The Parquet
            file contains a row for each damaged range, with the columns ``file``, ``offset``, ``length``,
            ``reason`` and ``bytes``. A long damaged range is divided into several rows. ``storage_options``
            apply to the quarantine directory as well.

        ``verify_crc`` : bool, default True
            If True, verify the checksum of each record's payload. With ``verify_crc=False``, damaged values
            may be read as valid values. The checksums of the record lengths are always verified. With
            ``verify_crc=False``, a file's checksum in the snapshot is verified only if the modification time
            of the file differs from the snapshot.

        ``max_record_bytes`` : int or str, default 2 GiB - 1
            The maximum size of a record, in bytes. A record above this size is treated as damage, so that
            hostile files cannot use up the memory.

        ``max_features`` : int, optional
            The maximum number of different features in all sampled records, if columns are inferred from
            these records. If the sampled records have more features, the read raises, so that hostile files
            cannot use up the memory. The default is 10,000. With ``max_features=None``, the number of
            features is not limited. ``max_features`` does not limit the columns of a snapshot.
    index : str, list of str or False, optional
        The columns that become the index of the DataFrame. By default, the index that `to_tfrecord` stored is
        restored, except for index levels that ``columns`` names. If no index is stored, the index counts the
        rows of each partition. With ``index=False``, a stored index is loaded as columns, and the index
        counts the rows of each partition. Timestamps and durations become pandas' own index types, which
        support string lookup and resampling.
    calculate_divisions : bool, default False
        If True, compute the divisions of the index, so that ``ddf.loc[a:b]`` opens only files that may
        contain rows from ``a`` to ``b``.

        The divisions are known only if statistics in the snapshot, or partition values, prove that the
        partitions are ordered. The index must contain no nulls, and must not be floating-point. The
        categories of a categorical index must be listed in the order of their values. Without an index, the
        divisions are unknown. With ``calculate_divisions``, files are not split, and the rows of each
        partition are sorted by the index.
    categories : list of str, optional
        The columns to read as pandas categoricals. Dask does not know the categories of the columns in
        ``categories`` before the data is read.
    dtype_backend : {"pyarrow", "numpy", "numpy_nullable", None}, default None
        The dtypes of the columns. By default, each column gets the dtype with which the column was written,
        such as int64, Int64 or ``str``. If a column was written with several dtypes, it gets a dtype that can
        hold all values. A column whose dtype is unknown is Arrow-backed, for example if the files were
        written by another tool or from Arrow data. ``dtype_backend="pyarrow"`` makes all columns
        Arrow-backed.

        "numpy" uses NumPy and object dtypes where they can hold every value of a column. In floats, null
        becomes NaN. Timestamps and durations keep their unit, and null becomes NaT. Strings become ``str``
        from pandas 3 on, otherwise object. Bytes and lists become object. Integer and bool columns get NumPy
        dtypes only if the statistics in the snapshot prove that there are no nulls, or if ``schema`` is a
        `pyarrow.Schema` with ``nullable=False`` for the field. A null in a field with ``nullable=False``
        raises. Dates, times, decimals, lists of these, and lists of timestamps with a time zone stay
        Arrow-backed. A timestamp or duration of -2^63, which is NaT in NumPy, raises. "numpy_nullable" uses
        pandas' own nullable dtypes, such as Int64 and string, and the dtypes of "numpy" for all other
        columns. Whatever ``dtype_backend`` is, categorical columns are read as pandas categoricals.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    dask.dataframe.DataFrame or dask.dataframe.Series
        A DataFrame with the dtypes that ``dtype_backend`` selects. If ``columns`` is a single name, the
        result is a Series. Each partition has a new range index, unless columns become the index.

    Raises
    ------
    FileNotFoundError
        If the path matches no file, if a link is broken, or if the dataset does not have the requested
        ``version``.
    FileChangedError
        If a file of the dataset is missing or has another size (checked on a local disk, for at most 1,000
        files). Computing a partition raises if one of its files is missing, has another size or other
        content, or was removed by a write after the read was planned.
    CorruptRecordError
        If a sampled record is damaged. Damage to any other record raises when the partition of that record is
        read.
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

    Read files that another tool wrote. The columns and types of these files are inferred:

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
