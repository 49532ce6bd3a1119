"""`read_tfrecord`: arguments -> dataset -> collection."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import dask.dataframe as dd
import pyarrow as pa
from dask.utils import parse_bytes

from dask_tfrecord import expr
from dask_tfrecord.codec import RecordType
from dask_tfrecord.codec.compression import SUFFIXES
from dask_tfrecord.dataset.files import ReadCompression, ReadOptions
from dask_tfrecord.dataset.listing import PathLike
from dask_tfrecord.dataset.opening import Infer, check_choice, open_dataset
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.parallel import compute_each
from dask_tfrecord.schema import Schema


def read_tfrecord(
    path: PathLike | Sequence[PathLike],
    *,
    columns: str | Sequence[str] | None = None,
    schema: Mapping[str, pa.DataType] | pa.Schema | None = None,
    hive: bool | Mapping[str, pa.DataType] = True,
    use_snapshot: bool = True,
    infer: Infer = "sample",
    filters: Sequence[Any] | None = None,
    blocksize: int | str | None = "128 MiB",
    record_type: RecordType | Literal["infer"] = "infer",
    compression: ReadCompression = "infer",
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
        the files of a write that has not committed; a file that is spelled out is always read.
    columns : str or list of str, optional
        The columns to load, in this order. One name that is not in a list gives a Series.
    schema : mapping of str to pyarrow.DataType, or pyarrow.Schema, optional
        A mapping gives the types of some columns, whatever was inferred or stored for them; one that no
        record holds is all missing, or refused where a snapshot or ``infer="all"`` tells that none does. A
        schema gives all columns: nothing is inferred, others are not read.
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
        between, or from every record of all files, which reads everything once more.
    filters : list of tuple or list of list of tuple, optional
        Which rows to load: conditions ``(column, operator, value)`` that must all hold, or lists of such of
        which one must hold. Operators are ``=``, ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``,
        ``not in``, and ``is`` and ``is not``, which look for None. Missing values are false in all but ``is``
        and ``not in``. Files that hold no such row by their partition columns or by the statistics of the
        snapshot are not opened; of the others all rows are looked at. Values are compared as they are stored:
        those of floating point columns with 32 bits.
    blocksize : int, str or None, default "128 MiB"
        How much of the files, in stored bytes, a partition should be. Larger files are split: those that
        `to_tfrecord` wrote at no cost, compressed ones too; uncompressed ones of others are read once, in
        parallel, to find their records, unless `index` has done so. Neighbouring files that are smaller
        share a partition if their partition columns hold the same. None makes a partition of each file.
    record_type : "infer", "example", "sequence_example" or "bytes"
        What the records are. With "bytes" they may be anything, and are one column, ``record``.
    compression : "infer", "gzip", "zlib", "zstd", "lz4", "bz2", "xz" or None
        "infer" goes by the first bytes of each file, whatever its name.
    storage_options : dict, optional
        Passed to the filesystem, such as credentials.

    Returns
    -------
    dask.dataframe.DataFrame or dask.dataframe.Series
        With Arrow-backed columns, and a new range index in every partition.

    Raises
    ------
    FileNotFoundError
        If there is nothing to read.
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
    check_choice("record_type", record_type, ("infer", *get_args(RecordType)))
    check_choice("infer", infer, get_args(Infer))
    check_choice("compression", compression, ("infer", *SUFFIXES))
    dataset = open_dataset(
        path,
        schema=schema,
        hive=hive,
        use_snapshot=use_snapshot,
        infer=infer,
        record_type=record_type,
        compute_each=compute_each,
        options=ReadOptions(compression=compression),
        blocksize=_bytes(blocksize),
        filters=None if isinstance(filters, list | tuple) and not filters else filters,
        storage_options=storage_options,
    )
    ddf = expr.read(dataset, None if columns is None else _names(dataset.schema, columns))
    return ddf[columns] if isinstance(columns, str) else ddf


def _bytes(blocksize: int | str | None) -> int | None:
    """A number of bytes, such as "64 MB"."""
    if blocksize is None:
        return None
    try:
        size = int(parse_bytes(blocksize))
    except (AttributeError, OverflowError, ValueError):
        size = 0
    if size < 1 or isinstance(blocksize, bool):
        raise TFRecordError(
            f"blocksize={blocksize!r} is not a size", advice='pass bytes, a text such as "128 MiB", or None'
        )
    return size


def _names(schema: Schema, columns: str | Sequence[str]) -> list[str]:
    """The columns asked for, each of which there must be, and once."""
    names = schema.select([columns] if isinstance(columns, str) else columns).names
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SchemaError(f"columns= names {', '.join(map(repr, repeated))} more than once")
    return names
