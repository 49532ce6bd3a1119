"""`index`: what is in files that others wrote, looked at once and written down."""

import os
from typing import Any, Literal
from uuid import uuid4

from dask_tfrecord.codec import RecordType
from dask_tfrecord.dataset.columns import GivenHive, GivenSchema
from dask_tfrecord.dataset.indexing import examine
from dask_tfrecord.dataset.modes import check_destination
from dask_tfrecord.dataset.opening import open_dataset
from dask_tfrecord.dataset.snapshot import Snapshot, snapshot_path, to_parquet, versions
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.errors import ConcurrentWriteError, DestinationError
from dask_tfrecord.parallel import compute_each


def index(
    path: str | os.PathLike[str],
    *,
    schema: GivenSchema | None = None,
    hive: GivenHive = True,
    record_type: RecordType | Literal["infer"] = "infer",
    storage_options: dict[str, Any] | None = None,
) -> Snapshot:
    """Read all files of a directory that others wrote, and write down what is in them, as a snapshot.

    From then on the directory is a dataset like those of `to_tfrecord`: it is opened without looking into
    any file, its lengths are known, files are left out that a filter cannot match, large uncompressed files
    are split without being searched, and `take` finds rows. Its data is not changed. Files that come later
    are not part of it until the snapshot is removed and `index` called again.

    Parameters
    ----------
    path : str or path-like
        The directory.
    schema : mapping of str to pyarrow.DataType, or pyarrow.Schema, optional
        As in `read_tfrecord`. What it leaves open is inferred from all records.
    hive : bool or mapping of str to pyarrow.DataType, default True
        As in `read_tfrecord`: whether directories such as ``country=US`` make columns.
    record_type : "infer", "example", "sequence_example" or "bytes"
        What the records are.
    storage_options : dict, optional
        Passed to the filesystem, such as credentials.

    Returns
    -------
    Snapshot
        What was written.

    Raises
    ------
    FileNotFoundError
        If there is nothing to read.
    DestinationError
        If there is a snapshot already, or if it is not a directory.
    CorruptRecordError, SchemaError
        For damage, and for values that do not fit their column; `verify` tells of all of it.

    See Also
    --------
    verify, take

    Examples
    --------
    >>> import dask_tfrecord
    >>> dask_tfrecord.index("s3://bucket/from-spark")  # doctest: +SKIP
    Snapshot(200 files, 1,000,000 records, 3,512,904,110 bytes)
    """
    store = Store.at(path, storage_options)
    root = store.public(store.root)
    check_destination(store, "append")
    if versions(store):
        advice = "there is nothing to do, unless files were added by others: then remove _tfrecord first"
        raise DestinationError("there is a snapshot already", path=root, advice=advice)
    if not store.fs.isdir(store.root):
        raise FileNotFoundError(f"{root}: no such directory")
    dataset = open_dataset(
        path,
        schema=schema,
        hive=hive,
        record_type=record_type,
        infer="all",
        compute_each=compute_each,
        storage_options=storage_options,
    )
    snapshot = examine(dataset, compute_each, uuid4().hex)
    try:
        store.create_exclusively(
            store.join(snapshot_path(snapshot.number)), to_parquet(snapshot).to_pybytes()
        )
    except FileExistsError:
        raise ConcurrentWriteError("another write committed a snapshot here first", path=root) from None
    return snapshot
