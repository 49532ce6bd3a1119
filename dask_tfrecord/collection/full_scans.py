"""Read all files, to store a snapshot of their content (`index`, for `Dataset.add_snapshot`) or to report
damage (`verify`).
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import RecordType
from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.listing import list_files, nothing_at, with_trailing_slash
from dask_tfrecord.dataset.read.columns import ReadRequest
from dask_tfrecord.dataset.read.discovery import open_path
from dask_tfrecord.dataset.read.inferred_schema import INTEGERS_AS_FLOATS
from dask_tfrecord.dataset.read.layouts import ALL, SPLIT, find_splits
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.rewrite import add_snapshot
from dask_tfrecord.dataset.rewrite import verify as rewrite_verify
from dask_tfrecord.dataset.snapshot import visibility
from dask_tfrecord.dataset.snapshot.check import ComparedFiles, find_newest_files, refuse_differences
from dask_tfrecord.dataset.snapshot.entry_log import EntryLog
from dask_tfrecord.dataset.snapshot.model import Head, Snapshot
from dask_tfrecord.dataset.snapshot.moved_files import with_version
from dask_tfrecord.dataset.snapshot.stored_files import with_known_versions
from dask_tfrecord.dataset.write.destination import (
    check_destination,
    refuse_datasets_below,
    refuse_inside_dataset,
)
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import finish_newest
from dask_tfrecord.errors import (
    ConcurrentWriteError,
    CorruptRecordError,
    DestinationError,
    Remedy,
    TFRecordError,
    add_snapshot_again,
)
from dask_tfrecord.files.entry import is_part
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.keywords.requests import is_auto, plan_columnar, read_request
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.tfds import INFO
from dask_tfrecord.storage.paths import PathLike
from dask_tfrecord.storage.store import Store


def index(
    path: Any, store: Store, read: dict[str, Any], columnar: str | Sequence[str] | Literal[False] | None
) -> Snapshot:
    """Read all files of a directory, and store a snapshot, as `Dataset.add_snapshot` describes.

    ``read`` contains the keywords of `read_tfrecord` with which the caller has opened the path.
    """
    all_records = {"infer": "all", "max_features": None}
    request = read_request(**{**read, "use_snapshot": False, "blocksize": None, "read_options": all_records})
    root = store.public()
    refuse_inside_dataset(store, "add_snapshot")
    check_destination(store, "overwrite")  # the mode that accepts files without a snapshot
    finish_newest(store)
    before = Head.read(store).snapshot
    if before is not None and request.split not in (None, ALL):
        raise _other_splits(request.split)
    sets_columnar = not is_auto(columnar)
    with add_snapshot.open_run(store) as run:
        try:
            is_current = False
            found = None if before is None else find_newest_files(store, before)
            before = None if found is None else found.snapshot
            if sets_columnar or (before is not None and before.columnar != "auto"):
                run = replace(run, columnar="never")  # until all files are described
            if found is not None and _is_known(store, found):
                is_current = not pc.any(found.is_rewritten).as_py()
                snapshot = add_snapshot.describe_changed_files(run, found, compute_each)
            else:
                snapshot = _described(path, run, request)
                if before is not None:
                    files = with_known_versions(snapshot.file_list, before.file_list)
                    snapshot = replace(snapshot, log=EntryLog(files))
            columns = plan_columnar(columnar, snapshot.schema, snapshot.partition_on, before)
            if sets_columnar and columns != "never":
                wanted = [*range(len(snapshot.file_list))]
            else:
                wanted = add_snapshot.rows_to_store(store, snapshot, columns, compute_each)
            if is_current and not sets_columnar and not wanted:
                problem = "the directory already has a snapshot, which is up to date"
                raise DestinationError(problem, "leave it as it is until files have changed")
            run = replace(run, columnar=columns)
            snapshot = add_snapshot.with_column_files(run, snapshot, wanted, compute_each)
            return add_snapshot.commit_snapshot(store, snapshot, before)
        except (FileNotFoundError, CorruptRecordError):
            newest = Head.read(store).snapshot
            if newest is None or (before is not None and newest.run == before.run):
                raise
            problem = (
                "another write was committed while add_snapshot read the files, and replaced some of them"
            )
            raise ConcurrentWriteError(problem, add_snapshot_again(root)) from None


def _described(path: str | os.PathLike[str], run: WriteRun, request: ReadRequest) -> Snapshot:
    store = run.store
    if not store.fs.isdir(store.root):
        raise nothing_at(store, "no such directory")
    refuse_datasets_below(store, "whose files the snapshot would list, too")
    try:
        dataset = open_path(path, request, compute_each=compute_each)
        # Only a description that lists splits can omit files of the directory.
        if SPLIT in dataset.partition_values or request.split not in (None, ALL):
            _refuse_undescribed_files(store, dataset, request)
        return add_snapshot.describe_files(dataset, run, compute_each)
    except TFRecordError as error:
        # A column of a snapshot has one kind, so its files cannot hold integers and floats.
        error.remedies = tuple(one for one in error.remedies if one.effect != INTEGERS_AS_FLOATS)
        if not any(one.keyword == SPLIT for one in error.remedies):
            raise
        if isinstance(error, CorruptRecordError):  # a file is missing, and a snapshot would hide that
            raise error.replaced(remedies=()) from None
        # A snapshot lists the files of all splits, so suggest only the remedy that reads all splits.
        every = [one for one in error.remedies if one.value == ALL]
        raise error.replaced(advice=None, remedies=every) from None


def _other_splits(split: Any) -> TFRecordError:
    problem = f"a snapshot lists the files of all splits, but split={split!r} was passed"
    return TFRecordError(problem, Remedy(SPLIT, ALL, "read the splits as a column"))


def _refuse_undescribed_files(store: Store, dataset: ReadPlan, request: ReadRequest) -> None:
    """Raise TFRecordError if the TFDS description, or ``split=``, omits data files, because every later read
    of the snapshot would fail.
    """
    read = {*dataset.files.paths}
    others = [path for path in visibility.data_files(store).paths if path not in read]
    if others and request.split not in (None, ALL):
        raise _other_splits(request.split)
    if others:
        problem = f"the description of the dataset does not list {len(others)} files of the directory"
        raise TFRecordError(problem, "move these files to another directory", path=store.public(others[0]))


def _is_known(store: Store, compared: ComparedFiles) -> bool:
    """Return False if other tools have written all files, and have added, removed or rewritten some, so that
    all files must be described again.

    Raise the errors of `refuse_differences` if the snapshot lists files of this library.
    """
    if any(map(is_part, compared.listed.names)):
        refuse_differences(store, compared, may_be_rewritten=True)
        return True
    changed = pc.or_(compared.is_rewritten, compared.is_missing)
    return not (len(compared.unlisted) or pc.any(changed).as_py())


def verify(path: PathLike | Sequence[PathLike], read: dict[str, Any]) -> pd.DataFrame:
    """Read all files completely, and return the report that `Dataset.verify` describes."""
    storage_options, filesystem = read.get("storage_options"), read.get("filesystem")
    if isinstance(path, str | os.PathLike):
        store = with_trailing_slash(Store.at(path, storage_options, filesystem))
        snapshot = Head.read(store).snapshot
        if snapshot is not None:
            return _verify_snapshot(store, snapshot)
    listing = list_files(path, storage_options, filesystem)
    store, files = listing.store, visibility.tfrecord_files(listing).files
    schema = rewrite_verify.sampled_schema(store, files, read.get("record_type", "infer"))
    reports = _verify_files(store, files, schema.record_type)
    splits = find_splits(listing)
    missing = [] if splits is None else [*splits.missing.values()]
    reports += [rewrite_verify.unreadable(f"the file is missing, but {INFO} lists it") for _ in missing]
    return _report_frame(
        store.public_paths([*files.paths, *missing]),
        reports,
        schema,
        [None] * len(reports),
    )


def _verify_snapshot(store: Store, snapshot: Snapshot) -> pd.DataFrame:
    """Verify the files that the newest snapshot lists, and report files that it does not list."""
    compared = find_newest_files(store, snapshot)
    snapshot = compared.snapshot
    store = with_version(store, snapshot.number)  # a restore may not have moved all files back yet
    rows = snapshot.file_list.rows.select(["bytes", "records", "crc32c"]).to_pylist()
    listed = dict(zip(snapshot.file_list.names, rows, strict=True))
    found = FileList.joined([compared.files.filter(pc.invert(compared.is_missing)), compared.unlisted])
    verified = _verify_files(store, found, snapshot.schema.record_type)
    missing = rewrite_verify.unreadable("the file is missing, but the dataset's snapshot lists it")
    reports = {**dict.fromkeys(listed, missing), **dict(zip(found.names, verified, strict=True))}
    differs: dict[str, str | None] = {
        name: rewrite_verify.describe_changes(report, listed[name])
        if name in listed
        else "the snapshot does not list it"
        for name, report in reports.items()
    }
    differs |= _column_file_differences(store, snapshot, [name for name, text in differs.items() if not text])
    paths = [store.public(store.join(name)) for name in reports]
    return _report_frame(paths, [*reports.values()], snapshot.schema, [*differs.values()])


def _verify_files(store: Store, files: FileList, record_type: RecordType) -> list[rewrite_verify.FileReport]:
    return rewrite_verify.verify_files(store, files, record_type, compute_each)


def _column_file_differences(store: Store, snapshot: Snapshot, same: Sequence[str]) -> dict[str, str]:
    """Map the path of each data file to a description of how its column file differs from its records, or to
    "" if they agree.
    """
    entries = {one.path: one for one in snapshot.files if one.columns is not None}
    paths = [path for path in same if path in entries]
    compare = partial(rewrite_verify.column_file_differences, store, snapshot.schema.record_type)
    found = compare([entries[path] for path in paths], compute_each) if paths else []
    return dict(zip(paths, found, strict=True))


def _report_frame(
    paths: Sequence[str],
    reports: Sequence[rewrite_verify.FileReport],
    schema: Schema,
    differs: Sequence[str | None],
) -> pd.DataFrame:
    columns = {
        "path": pa.array(paths, pa.string()),
        "bytes": pa.array([report.bytes for report in reports], pa.int64()),
        "rows": pa.array([report.records for report in reports], pa.int64()),
        "damaged": pa.array([report.damaged for report in reports], pa.int64()),
        "damaged_bytes": pa.array([report.damaged_bytes for report in reports], pa.int64()),
        "offset": pa.array([report.first and report.first.offset for report in reports], pa.int64()),
        "reason": pa.array([report.first and report.first.reason for report in reports], pa.string()),
        "drift": pa.array(
            [rewrite_verify.describe_drift(report.sample, schema) for report in reports], pa.string()
        ),
        "agrees": pa.array([None if text is None else not text for text in differs], pa.bool_()),
        "differs": pa.array(differs, pa.string()),
    }
    frame: pd.DataFrame = pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)
    return frame
