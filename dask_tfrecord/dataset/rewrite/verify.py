"""Read all files completely, and report damage and differences from the snapshot."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import RecordType, crc32c_combine
from dask_tfrecord.dataset.listing import list_files, with_trailing_slash
from dask_tfrecord.dataset.read.inferred_schema import find_drift, infer_schema
from dask_tfrecord.dataset.read.layouts import find_splits
from dask_tfrecord.dataset.read.sample import merge_by_file, take_sample
from dask_tfrecord.dataset.rewrite.add_snapshot import groups_of_entries
from dask_tfrecord.dataset.snapshot import visibility
from dask_tfrecord.dataset.snapshot.check import find_newest_files
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.moved_files import with_version
from dask_tfrecord.errors import CorruptRecordError, FileChangedError, TFRecordError
from dask_tfrecord.files.column_files import OFFSET, ColumnFileReader, StoredRows
from dask_tfrecord.files.damage import DamagedRange, DamagePolicy, Losses
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.inference import AskedType, FeatureSummary, Sample, sample_split
from dask_tfrecord.files.record_file import RecordFile
from dask_tfrecord.files.splice import feature_schema, rows_of_file
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.window import WINDOW_BYTES
from dask_tfrecord.schema.dtypes import arrow_backed
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.tfds import INFO
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.paths import PathLike
from dask_tfrecord.storage.reader import Checksum
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store

_LENIENT = ReadOptions(damage=DamagePolicy("skip"))


class FileReport(NamedTuple):
    """A report on the content and the damage of a file or a split.

    ``sample`` summarizes the undamaged records. ``damaged`` counts damaged records and damaged ranges without
    any recognisable record. ``damaged_bytes`` is the total size of the damage in the decompressed file.
    ``first`` is the first damaged range, or None if there is no damage.
    """

    sample: Sample
    bytes: int
    crc32c: int
    damaged: int
    damaged_bytes: int
    first: DamagedRange | None

    @property
    def records(self) -> int:
        return self.sample.records


def unreadable(problem: str) -> FileReport:
    return FileReport(Sample("infer"), 0, 0, 1, 0, DamagedRange(0, 0, problem))


def verify(
    path: PathLike | Sequence[PathLike],
    compute_each: ComputeEach,
    *,
    record_type: AskedType = "infer",
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> pd.DataFrame:
    """Read all files completely, and return the report that `Dataset.verify` describes."""
    if isinstance(path, str | os.PathLike):
        store = with_trailing_slash(Store.at(path, storage_options, filesystem))
        snapshot = Head.read(store).snapshot
        if snapshot is not None:
            return _verify_snapshot(store, snapshot, compute_each)
    listing = list_files(path, storage_options, filesystem)
    store, files = listing.store, visibility.tfrecord_files(listing).files
    schema = sampled_schema(store, files, record_type)
    reports = verify_files(store, files, schema.record_type, compute_each)
    splits = find_splits(listing)
    missing = [] if splits is None else [*splits.missing.values()]
    reports += [unreadable(f"the file is missing, but {INFO} lists it") for _ in missing]
    return _report_frame(store.public_paths([*files.paths, *missing]), reports, schema, [None] * len(reports))


def _verify_snapshot(store: Store, snapshot: Snapshot, compute_each: ComputeEach) -> pd.DataFrame:
    """Verify the files that the newest snapshot lists, and report files that it does not list."""
    compared = find_newest_files(store, snapshot)
    snapshot = compared.snapshot
    store = with_version(store, snapshot.number)  # a restore may not have moved all files back yet
    rows = snapshot.file_list.rows.select(["bytes", "records", "crc32c"]).to_pylist()
    listed = dict(zip(snapshot.file_list.names, rows, strict=True))
    found = FileList.joined([compared.files.filter(pc.invert(compared.is_missing)), compared.unlisted])
    verified = verify_files(store, found, snapshot.schema.record_type, compute_each)
    missing = unreadable("the file is missing, but the dataset's snapshot lists it")
    reports = {**dict.fromkeys(listed, missing), **dict(zip(found.names, verified, strict=True))}
    differs: dict[str, str | None] = {
        name: describe_changes(report, listed[name]) if name in listed else "the snapshot does not list it"
        for name, report in reports.items()
    }
    entries = [one for one in snapshot.files if one.columns is not None and not differs[one.path]]
    if entries:
        compare = partial(_column_file_differences, store, snapshot.schema.record_type)
        texts = chain.from_iterable(compute_each(compare, groups_of_entries(entries)))
        differs |= zip((one.path for one in entries), texts, strict=True)
    paths = [store.public(store.join(name)) for name in reports]
    return _report_frame(paths, [*reports.values()], snapshot.schema, [*differs.values()])


def _report_frame(
    paths: Sequence[str], reports: Sequence[FileReport], schema: Schema, differs: Sequence[str | None]
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
            ["; ".join(one.problem for one in find_drift(report.sample, schema)) for report in reports],
            pa.string(),
        ),
        "agrees": pa.array([None if text is None else not text for text in differs], pa.bool_()),
        "differs": pa.array(differs, pa.string()),
    }
    return arrow_backed(pa.table(columns))


# -- Comparison with the records -----------------------------------------------------------------------------


@redact_errors
def _column_file_differences(
    store: Store, record_type: RecordType, entries: Sequence[FileEntry]
) -> list[str]:
    """Describe how the column files of some data files differ from the records, or "" if they agree.

    ``entries`` must describe the present content of the data files, all of which have a column file.
    """
    readers = {
        columns: ColumnFileReader(store, columns) for one in entries if (columns := one.columns) is not None
    }

    def compare(entry: FileEntry) -> str:
        assert entry.columns is not None
        return _column_file_difference(store, record_type, entry, readers[entry.columns])

    return store.for_each(compare, entries)


def _column_file_difference(
    store: Store, record_type: RecordType, entry: FileEntry, reader: ColumnFileReader
) -> str:
    features = sorted(reader.features)
    schema = feature_schema(features, record_type)
    path = entry.columns and entry.columns.path
    unusable = f"the column file {path} is missing, damaged or out of date"
    stored = StoredRows.of(reader, entry)
    if stored is None:
        return unusable
    start = 0
    try:
        for values, sizes in rows_of_file(store, entry, features, record_type):
            stop = start + len(sizes)
            offsets = stored.offsets(start, stop)
            table = stored.read(schema, start, stop)
            if offsets is None or table is None:
                return unusable
            names = [name for name in schema.names if not _are_equal(values[name], table[name])]
            if not np.array_equal(np.diff(offsets), sizes):
                names.append(OFFSET)
            if names:
                return f"the column {names[0]!r} of {path} differs from the records"
            start = stop
    except FileChangedError:  # the data file has changed since the caller verified the file
        raise
    except TFRecordError:  # the features in the records do not fit the columns of the column file
        return unusable
    return unusable if stored.offsets(start, start) is None else ""


def _are_equal(first: pa.ChunkedArray, second: pa.ChunkedArray) -> bool:
    """Compare two columns of feature values bit by bit, because NaN is not equal to itself."""
    one, other = first.combine_chunks(), second.combine_chunks()
    if pa.types.is_list(one.type):
        lengths = pc.list_value_length(one).equals(pc.list_value_length(other))
        return bool(lengths) and _are_equal(
            pa.chunked_array([one.flatten()]), pa.chunked_array([other.flatten()])
        )
    if pa.types.is_floating(one.type):
        one, other = one.view(pa.int32()), other.view(pa.int32())
    return bool(one.equals(other))


def verify_files(
    store: Store, files: FileList, record_type: RecordType, compute_each: ComputeEach
) -> list[FileReport]:
    """Read all bytes of each file. Return one report for each file."""
    verify = partial(_verify_split, record_type)
    return merge_by_file(verify, _merge_findings, store, files, _LENIENT, compute_each)


def sampled_schema(store: Store, files: FileList, record_type: AskedType) -> Schema:
    """Return the schema that `read_tfrecord` would infer.

    A sample of the files determines it, without damaged records. If the values of a feature have several
    kinds, the column gets the first one. Warn if the records are read as bytes because they are messages of
    another type.
    """
    take = partial(take_sample, store, files, record_type=record_type)
    try:
        sample = take(options=ReadOptions())
    except CorruptRecordError:
        sample = take(options=_LENIENT)
    if sample.record_type == "bytes":
        return infer_schema(sample, {})
    features: dict[str, FeatureSummary] = {}
    for feature in sample.features:
        if feature.name not in features or not features[feature.name].kinds:
            features[feature.name] = replace(feature, kinds=dict(list(feature.kinds.items())[:1]))
    return infer_schema(replace(sample, features=tuple(features.values())), {})


def describe_changes(report: FileReport, was: Mapping[str, int]) -> str:
    """Describe how a file differs from its row in a snapshot's file list. Return "" for an unchanged file."""
    now = {"bytes": report.bytes, "records": report.records, "crc32c": report.crc32c}
    return "; ".join(
        f"{name}: {now[name]:,} instead of {was[name]:,}" for name in now if now[name] != was[name]
    )


def _verify_split(record_type: RecordType, store: Store, split: Split) -> FileReport:
    total = Checksum()
    checked = replace(store, checksum=total)
    losses = Losses(_LENIENT.damage)
    try:
        if record_type == "bytes":
            sample = Sample("bytes", (), RecordFile(checked, split, _LENIENT).count(losses))
        else:
            sample = sample_split(checked, split, options=_LENIENT, record_type=record_type, losses=losses)
        _read_the_rest(checked, split, total.bytes)
    except FileNotFoundError:
        return unreadable("the file is gone")
    except CorruptRecordError as error:
        return unreadable(error.problem)
    lost = losses.file(store.public(split.file.path))
    first = lost.first[0] if lost.first else None
    return FileReport(sample, total.bytes, total.crc32c, lost.count, lost.bytes, first)


def _read_the_rest(store: Store, split: Split, count: int) -> None:
    """Read the bytes of a split after the first ``count`` bytes, so that the checksum covers the complete
    split.

    If a compressed file is damaged, decoding stops at the damage and leaves the remaining bytes unread.
    """
    start = split.start.offset + count
    stop = split.file.size if split.stop is None else split.stop.offset
    if stop is None or start >= stop:
        return
    view = memoryview(bytearray(WINDOW_BYTES))
    with store.open(split.file.path, split.file.size, start, stop, split.file.stamp) as source:
        while source.readinto(view):
            pass  # each read adds the returned bytes to the checksum


def _merge_findings(first: FileReport, second: FileReport) -> FileReport:
    return FileReport(
        first.sample.merged(second.sample),
        first.bytes + second.bytes,
        crc32c_combine(first.crc32c, second.crc32c, second.bytes),
        first.damaged + second.damaged,
        first.damaged_bytes + second.damaged_bytes,
        first.first or second.first,
    )
