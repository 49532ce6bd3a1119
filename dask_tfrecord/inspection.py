"""`index` and `verify`: what is in files, looked at once and written down, and what is wrong with them."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args
from uuid import uuid4

import pandas as pd
import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.dataset.discovery import check_choice, open_dataset
from dask_tfrecord.dataset.indexing import examine, renewed
from dask_tfrecord.dataset.requested_columns import GivenHive, GivenSchema
from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot, snapshot_path, to_parquet
from dask_tfrecord.dataset.snapshot.stamps import is_proven
from dask_tfrecord.dataset.snapshot.visibility import snapshot_files
from dask_tfrecord.dataset.verifying import Found, differences, drift, look_through, missing, sampled_schema
from dask_tfrecord.dataset.write.destination import check_destination, destination
from dask_tfrecord.dataset.write.staging import finish_newest
from dask_tfrecord.errors import ConcurrentWriteError, CorruptRecordError, DestinationError
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.part_names import is_part
from dask_tfrecord.files.storage.listing import PathLike, list_directory, list_files
from dask_tfrecord.files.storage.not_found import nothing_at
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.parallel import compute_each
from dask_tfrecord.schema.model import Schema

# `index` takes directories only, so a glob that reads the other files is of no use to it.
_GLOB = re.compile(
    r'leave the file out, for example with the glob "[^"]*"'
    r"|move the file elsewhere, or pass a glob or a list without it"
)
_HIDE = 'move the file elsewhere, or give it a name that begins with "_" or "."'


@redact_errors
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
    are split without being searched, and `take` finds rows. Its data is not changed.

    Call `index` again, with the same arguments, after files were added, removed or rewritten: all files are
    read anew. Call it, too, after a dataset that `to_tfrecord` wrote was copied without the times of its
    files: the checksums of the files are compared, columns and types stay, and the copy gets a snapshot that
    knows its files.

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
        If there is a snapshot that is up to date, or if it is not a directory.
    FileChangedError
        If a file that `to_tfrecord` wrote has other content.
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
    store = destination(path, storage_options)
    root = store.public(store.root)
    check_destination(store, "append")
    finish_newest(store)
    before = find_snapshot(store)
    if before is not None and any(is_part(file.path) for file in before.files):
        return _create(store, _renewed(store, before))
    if before is not None and not _is_outdated(store, before):
        raise _up_to_date(root)
    if not store.fs.isdir(store.root):
        raise nothing_at(store, "no such directory")
    try:
        dataset = open_dataset(
            path,
            schema=schema,
            hive=hive,
            record_type=record_type,
            infer="all",
            compute_each=compute_each,
            use_snapshot=False,
            options=ReadOptions(extra="raise" if schema is None or isinstance(schema, Mapping) else "ignore"),
            storage_options=storage_options,
        )
        snapshot = examine(dataset, compute_each, uuid4().hex)
    except CorruptRecordError as error:  # whose advice for a reader may be a glob
        raise error.replaced(advice=_GLOB.sub(_HIDE, error.advice or "") or None) from None
    return _create(store, replace(snapshot, number=before.number + 1 if before else 1))


def _create(store: Store, snapshot: Snapshot) -> Snapshot:
    """Store a snapshot, unless there is one of its number."""
    try:
        store.create_exclusively(
            store.join(snapshot_path(snapshot.number)), to_parquet(snapshot).to_pybytes()
        )
    except FileExistsError:
        root = store.public(store.root)
        raise ConcurrentWriteError("another write committed a snapshot here first", path=root) from None
    return snapshot


def _is_outdated(store: Store, snapshot: Snapshot) -> bool:
    """Whether the files are others than those that a snapshot describes, as far as their listing shows."""
    listed = {file.path: file for file in list_directory(store)}
    entries = {store.join(entry.path): entry for entry in snapshot.files}
    if listed.keys() != entries.keys():
        return True
    return not all(
        file.size in (None, entries[path].bytes) and is_proven(file, entries[path])
        for path, file in listed.items()
    )


def _renewed(store: Store, before: Snapshot) -> Snapshot:
    """The next snapshot of a dataset that `to_tfrecord` wrote, and that was copied or has files of others."""
    files = snapshot_files(store, before)
    if all(map(is_proven, files, before.files)):
        raise _up_to_date(store.public(store.root))
    return renewed(store, before, files, compute_each, uuid4().hex)


def _up_to_date(root: str) -> DestinationError:
    return DestinationError("there is a snapshot already", path=root, advice="it is up to date")


@redact_errors
def verify(
    path: PathLike | Sequence[PathLike],
    *,
    record_type: RecordType | Literal["infer"] = "infer",
    storage_options: dict[str, Any] | None = None,
) -> pd.DataFrame:
    """Read all files to their ends, in parallel and in bounded memory, and tell what is wrong with them.

    Parameters
    ----------
    path : str, path-like or list of these
        As in `read_tfrecord`.
    record_type : "infer", "example", "sequence_example" or "bytes"
        What the records are. Those of bytes may be anything, and only their checksums are looked at.
    storage_options : dict, optional
        Passed to the filesystem, such as credentials.

    Returns
    -------
    pandas.DataFrame
        A row for each file, Arrow-backed, with the columns

        - path
        - bytes : stored bytes
        - records : how many are whole
        - damaged : how many records, or stretches in which no record can be told, are not
        - damaged_bytes : of the (decompressed) content
        - offset, reason : where in the content the first damage is, and what it is; null without damage
        - drift : how features differ from the columns, which are those of the snapshot, or those that
          `read_tfrecord` infers from a sample; empty if they do not. It also says why `read_tfrecord` reads
          messages as bytes
        - agrees : whether the file is as the dataset's snapshot says; null where there is none
        - differs : in what it is not; null where there is no snapshot

    Raises
    ------
    FileNotFoundError
        If there is nothing to read. Damage raises nothing.

    See Also
    --------
    index, read_tfrecord

    Examples
    --------
    >>> import dask_tfrecord
    >>> report = dask_tfrecord.verify("s3://bucket/train")  # doctest: +SKIP
    >>> report[(report.damaged > 0) | (report.drift != "") | ~report.agrees]  # doctest: +SKIP
    """
    check_choice("record_type", record_type, ("infer", *get_args(RecordType)))
    if isinstance(path, str | os.PathLike):
        store = Store.at(path, storage_options)
        snapshot = find_snapshot(store)
        if snapshot is not None:
            return _verify_snapshot(store, snapshot)
    listing = list_files(path, storage_options)
    schema, doubt = sampled_schema(listing.store, listing.files, record_type)
    found = look_through(listing.store, listing.files, schema.record_type, compute_each)
    paths = [listing.store.public(file.path) for file in listing.files]
    return _report(paths, found, schema, [None] * len(found), doubt and f"is read as bytes: {doubt}")


def _verify_snapshot(store: Store, snapshot: Snapshot) -> pd.DataFrame:
    """The same of a dataset of which the files are known, and of those that should not be among them."""
    entries = {store.join(entry.path): entry for entry in snapshot.files}
    files = [file for file in list_directory(store) if file.path in entries or not is_part(file.path)]
    looked = look_through(store, files, snapshot.schema.record_type, compute_each)
    found = dict.fromkeys(entries, missing("the file is missing, the dataset's snapshot lists it"))
    found |= {file.path: one for file, one in zip(files, looked, strict=True)}
    differs: list[str | None] = [
        differences(one, entries[path]) if path in entries else "the snapshot does not list it"
        for path, one in found.items()
    ]
    return _report([*map(store.public, found)], [*found.values()], snapshot.schema, differs)


def _report(
    paths: Sequence[str],
    found: Sequence[Found],
    schema: Schema,
    differs: Sequence[str | None],
    doubt: str = "",
) -> pd.DataFrame:
    columns = {
        "path": pa.array(paths, pa.string()),
        "bytes": pa.array([one.bytes for one in found], pa.int64()),
        "records": pa.array([one.sample.records for one in found], pa.int64()),
        "damaged": pa.array([one.damaged for one in found], pa.int64()),
        "damaged_bytes": pa.array([one.damaged_bytes for one in found], pa.int64()),
        "offset": pa.array([one.first and one.first.offset for one in found], pa.int64()),
        "reason": pa.array([one.first and one.first.reason for one in found], pa.string()),
        "drift": pa.array([doubt or drift(one.sample, schema) for one in found], pa.string()),
        "agrees": pa.array([None if one is None else not one for one in differs], pa.bool_()),
        "differs": pa.array(differs, pa.string()),
    }
    frame: pd.DataFrame = pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)
    return frame
