"""What a write finds at its destination, and whether the two go together."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from dask_tfrecord.dataset.inferred_schema import infer_schema
from dask_tfrecord.dataset.partitioning import hive
from dask_tfrecord.dataset.sampling import take_sample
from dask_tfrecord.dataset.snapshot.model import Levels, Snapshot, find_snapshot, library_version, versions
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.dataset.write.overwriting import is_disk_root, may_be_overwritten, refusal
from dask_tfrecord.errors import DestinationError, SchemaError, TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import count_records
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.checksum import ChecksumStore
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.not_found import check_bucket
from dask_tfrecord.files.storage.paths import parent_of
from dask_tfrecord.files.storage.redaction import redact_errors, without_credentials
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.conversion import same_layout
from dask_tfrecord.schema.model import Field, Schema

# What becomes of the data that is there: refuse any; keep all; replace all; replace the partition
# directories that are written to.
Mode = Literal["create", "append", "overwrite", "partitions"]

# What fsspec takes out of a path, and for what.
_NO_NAMES = {
    "::": "chains filesystems for fsspec; they can be read from, not written to",
    "?versionId=": "asks S3 for a version of an object",
}

# Files that are read at a time when they enter a dataset.
_THREADS = 8


@redact_errors
def destination(path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> Store:
    """The store at a path or URL that files are to be created or removed at.

    Raises
    ------
    TFRecordError
        If it is no path.
    DestinationError
        If fsspec would not take the text as the name of one directory.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text:
        raise TFRecordError(f"{path!r} is not a path", advice="pass the directory to write to")
    for sign, meaning in _NO_NAMES.items():
        if sign in text:
            raise DestinationError(
                f"{without_credentials(text)!r} contains {sign!r}, which {meaning}",
                advice="choose a directory without it in its name",
            )
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in text):
        raise DestinationError(
            f"{without_credentials(text)!r} contains a line break or another control character",
            advice="choose a directory without it in its name",
        )
    return Store.at(text, storage_options)


@redact_errors
def check_destination(store: Store, mode: Mode = "create") -> int:
    """Refuse a place that cannot be written to in this mode; return the number of its newest snapshot, or 0.

    Raises
    ------
    DestinationError
        If it is a file, or holds anything that a reader would see although the mode is "create".
    """
    root = store.public(store.root)
    if is_disk_root(store):  # which takes for ever to list
        advice = "write to a directory that holds nothing but the dataset"
        raise DestinationError("the root of a filesystem holds no dataset", path=root, advice=advice)
    if store.fs.isfile(store.root):
        raise DestinationError("is a file, not a directory", path=root)
    newest = max(versions(store), default=0)
    if not newest:
        check_bucket(store)
    if mode == "create" and newest:
        advice = "choose another directory, or pass append=True"
        advice += " or overwrite=True" * may_be_overwritten(store)
        raise DestinationError("the directory already holds a dataset", path=root, advice=advice)
    if mode == "create" and (files := visible_files(store)):
        raise refusal(store, files)
    return newest


@redact_errors
def check_agreement(store: Store, schema: Schema, partitioning: Sequence[Field], index: Levels = ()) -> None:
    """Refuse to add such columns to what is there, if there is anything.

    Raises
    ------
    SchemaError
        If columns, types or partition columns differ, naming one that does.
    """
    snapshot = find_snapshot(store)
    if snapshot is not None:
        agreed(snapshot, schema, partitioning, store, index)
    elif files := visible_files(store):
        _values(store, files, partitioning)
        _foreign_schema(store, files, schema)


def agreed(
    snapshot: Snapshot, schema: Schema, partitioning: Sequence[Field], store: Store, index: Levels
) -> None:
    """As `check_agreement`, with a snapshot."""
    root = store.public(store.root)
    _check_partitioning([item.name for item in partitioning], list(snapshot.partition_on), root)
    _check_index(index, snapshot.index, root)
    _check_names(schema, snapshot.schema, root)
    found = {item.name: item for item in snapshot.schema.fields}
    pairs = [(item, found[item.name]) for item in schema.fields]
    for ours, theirs in [*pairs, *zip(partitioning, snapshot.partitioning, strict=True)]:
        _check_type(ours, theirs, root)


def adopt(store: Store, schema: Schema, partitioning: Sequence[Field]) -> Snapshot | None:
    """A snapshot (numbered 0, stored nowhere) of files that others wrote; None if there are none.

    All of them are read: nothing else knows how many records they hold.
    """
    files = visible_files(store)
    if not files:
        return None
    existing = _foreign_schema(store, files, schema)
    values = _values(store, files, partitioning)
    with ThreadPoolExecutor(_THREADS) as pool:
        entries = list(pool.map(lambda file: _entry(store, file), files))
    entries = [replace(entry, values=found) for entry, found in zip(entries, values, strict=True)]
    return Snapshot(tuple(entries), existing, None, "", library_version(), tuple(partitioning), 0)


def _foreign_schema(store: Store, files: Sequence[FileInfo], schema: Schema) -> Schema:
    """The schema of files that carry none, in which ours decides where they say nothing.

    Kinds must agree; types beyond the kind are ours alone, and theirs stay as readers infer them.
    """
    root = store.public(store.root)
    sample = take_sample(store, files, record_type=schema.record_type, options=ReadOptions())
    inferred = infer_schema(sample, {})
    if not inferred.fields:  # there are no records, or there is nothing in them
        return schema
    _check_names(schema, inferred, root)
    ours = {item.name: item for item in schema.fields}
    for item in inferred.fields:
        if not pa.types.is_null(item.type) and item.column != ours[item.name].column:
            _check_type(ours[item.name], item, root)
    fields = [ours[item.name] if pa.types.is_null(item.type) else item for item in inferred.fields]
    return Schema(tuple(fields), schema.record_type)


def _check_names(ours: Schema, theirs: Schema, root: str) -> None:
    if ours.record_type != theirs.record_type:
        raise SchemaError(
            f"the records are {ours.record_type!r}, those of the dataset {theirs.record_type!r}",
            path=root,
            advice=f"pass record_type={theirs.record_type!r}",
        )
    for name in ours.names:
        if name not in theirs.names:
            raise _differs("the dataset has no such column", name, root)
    for name in theirs.names:
        if name not in ours.names:
            raise _differs("the dataset has this column, the DataFrame has not", name, root)


def _check_partitioning(ours: list[str], theirs: list[str], root: str) -> None:
    if ours != theirs:
        missing = [name for name in [*theirs, *ours] if (name in theirs) != (name in ours)]
        raise SchemaError(
            f"the dataset is partitioned on {theirs or 'nothing'}, the write on {ours or 'nothing'}",
            path=root,
            feature=(missing or theirs)[0],
            advice=f"pass partition_on={theirs or None}",
        )


def _check_index(ours: Levels, theirs: Levels | None, root: str) -> None:
    """Refuse another index than the dataset has, if that is known."""
    if theirs is not None and ours != theirs:
        there, here = ([column for column, _ in levels] or "none" for levels in (theirs, ours))
        drop = "" if theirs else ", or pass write_index=False to drop its own"
        raise SchemaError(
            f"the DataFrame has the index {here}, the dataset was written with {there}",
            path=root,
            advice=f"bring the DataFrame to that index with set_index or reset_index{drop}",
        )


def _check_type(ours: Field, theirs: Field, root: str) -> None:
    # Missing values, and strings of either size, make the same records; the dataset keeps its type.
    alike = pa.types.is_null(ours.type) or same_layout(ours.type, theirs.type)
    if not alike:
        raise _differs(f"the column is {ours.type}, in the dataset it is {theirs.type}", ours.name, root)
    if pa.types.is_dictionary(ours.type) and ours.type.ordered and ours.categories != theirs.categories:
        raise _differs("the ordered categories are not those of the dataset", ours.name, root)


def _differs(problem: str, name: str, root: str) -> SchemaError:
    return SchemaError(problem, path=root, feature=name, advice="bring it to the columns of the dataset")


def _values(store: Store, files: Sequence[FileInfo], partitioning: Sequence[Field]) -> list[tuple[Any, ...]]:
    """The partition values of files that somebody else named."""
    directories = [parent_of(store.relative(file.path)) for file in files]
    expected = [item.name for item in partitioning]
    for directory, file in dict(zip(directories, files, strict=True)).items():
        found = [name for name, _ in hive.parse(directory)]
        _check_partitioning(expected, found, store.public(file.path))
    texts = hive.key_texts(directories)
    try:
        columns = [
            hive.to_values(item.name, texts[item.name], item.type, directories) for item in partitioning
        ]
    except SchemaError as error:
        raise error.located(path=store.public(store.root)) from None
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return list(rows) if columns else [()] * len(files)


def _entry(store: Store, file: FileInfo) -> FileEntry:
    summing = ChecksumStore(store.fs, store.root)
    records = count_records(summing, Split(file), ReadOptions())
    name, total = store.relative(file.path), summing.checksum
    return FileEntry(name, total.bytes, records, total.crc32c, stamp=file.stamp)
