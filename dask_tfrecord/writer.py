"""`to_tfrecord`: arguments -> plan -> collection, or its result."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, get_args
from uuid import uuid4

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa

from dask_tfrecord import expr, frame
from dask_tfrecord.codec import RecordType
from dask_tfrecord.codec.compression import SUFFIXES, Compression
from dask_tfrecord.dataset import check_choice
from dask_tfrecord.dataset.commit import WriteRun
from dask_tfrecord.dataset.listing import PathLike
from dask_tfrecord.dataset.modes import check_destination
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.schema import Lossy

# Times that a task on a remote store is tried again, as in Dask's own `to_parquet`.
_RETRIES = 5


def to_tfrecord(
    ddf: dd.DataFrame,
    path: PathLike,
    *,
    compression: Compression | None = None,
    record_type: RecordType = "example",
    schema: Mapping[str, pa.DataType] | pa.Schema | None = None,
    lossy: Lossy = "warn",
    write_index: bool = False,
    compute: bool = True,
    compute_kwargs: dict[str, Any] | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Any:
    """Write a Dask DataFrame as TFRecord files, one per partition, which TensorFlow and Spark read.

    The files appear together when all of them are whole; a write that fails leaves no dataset. With them a
    snapshot is stored in ``_tfrecord/``, so that `read_tfrecord` gives the same columns and types back.

    Parameters
    ----------
    ddf : dask.dataframe.DataFrame
        What to write.
    path : str or path-like
        Directory to write to, which must be empty or not exist. Prepend a protocol such as ``s3://`` for
        remote data.
    compression : "gzip", "zlib" or None
        Of whole files. TensorFlow must be told it: ``TFRecordDataset(files, compression_type="GZIP")``.
    record_type : "example", "sequence_example" or "bytes"
        What each row becomes. Lists of lists need "sequence_example"; "bytes" takes one column of bytes
        and stores its values as they are.
    schema : mapping of str to pyarrow.DataType, or pyarrow.Schema, optional
        Types of some columns, where the dtype does not tell. Without it, columns of objects are computed
        as far as is needed to see what they hold.
    lossy : "warn", "allow" or "raise"
        TFRecord has 32-bit floats only. What to do about columns of float64 and decimals: warn, once; say
        nothing; or refuse any value that would change.
    write_index : bool, default False
        Whether the index becomes the first column.
    compute : bool, default True
        Whether to write now, or to return a lazy object that writes when it is computed.
    compute_kwargs : dict, optional
        Passed to ``compute``, such as ``{"scheduler": "processes"}``. ``retries`` is 5 on remote stores.
    storage_options : dict, optional
        Passed to the filesystem, such as credentials.

    Returns
    -------
    Snapshot or dask.dataframe.dask_expr.Scalar
        What was written: files, records, bytes, schema. Lazy if ``compute=False``.

    Raises
    ------
    DestinationError
        If the directory already holds anything that a reader would see.
    SchemaError
        For columns or values that TFRecord cannot hold.

    See Also
    --------
    read_tfrecord

    Examples
    --------
    >>> import dask_tfrecord
    >>> ddf.to_tfrecord("s3://bucket/train", compression="gzip")  # doctest: +SKIP
    Snapshot(16 files, 1,000,000 records, 81,321,104 bytes)
    """
    check_choice("compression", compression, tuple(SUFFIXES))
    check_choice("record_type", record_type, get_args(RecordType))
    check_choice("lossy", lossy, get_args(Lossy))
    store = Store.at(path, storage_options)
    check_destination(store)
    plan = frame.plan_schema(
        ddf._meta,
        schema=schema,
        record_type=record_type,
        write_index=write_index,
        sample=lambda names: _partitions(ddf[names]),
    )
    if lossy == "warn" and plan.lossy_names:
        _warn_of_rounding(plan.lossy_names)
    run = WriteRun(store, plan, compression, lossy, uuid4().hex)
    result = expr.write(ddf, run, write_index=write_index)
    if not compute:
        return result
    kwargs = dict(compute_kwargs or {})
    if not store.local:
        kwargs.setdefault("retries", _RETRIES)
    # Dask's compute() alone does not fuse reading, transforming and writing to one task per partition.
    return result.optimize().compute(**kwargs)


def _partitions(ddf: dd.DataFrame) -> Iterator[pd.DataFrame]:
    for index in range(ddf.npartitions):
        yield ddf.partitions[index].compute()


def _warn_of_rounding(names: list[str]) -> None:
    columns = ", ".join(map(repr, names))
    warnings.warn(
        f"TFRecord has 32-bit floats only, to which the values of {columns} are rounded; "
        'pass lossy="allow" if that is wanted, or lossy="raise" to refuse values that would change.',
        UserWarning,
        stacklevel=3,
    )
