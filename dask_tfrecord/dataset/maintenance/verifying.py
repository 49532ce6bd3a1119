"""Read files completely, and report damaged records and differences from the schema and the snapshot."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from dask_tfrecord.codec import crc32c_combine, scan
from dask_tfrecord.codec.columns import RecordType
from dask_tfrecord.dataset.read.inferred_schema import infer_schema
from dask_tfrecord.dataset.read.map_files import merge_by_file
from dask_tfrecord.dataset.read.sampling import take_sample
from dask_tfrecord.dataset.read.schema_drift import find_drift
from dask_tfrecord.errors import CorruptRecordError
from dask_tfrecord.files.damage import DamagedRange, DamagePolicy, Losses
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.inference import AskedType, FeatureSummary, Sample, sample_split
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import run_kernel
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.checksum import ChecksumStore
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import WINDOW_BYTES
from dask_tfrecord.schema.model import Schema

_LENIENT = ReadOptions(damage=DamagePolicy("skip"))


class FileReport(NamedTuple):
    """The content and the damage of a file, or of a split of a file.

    Attributes
    ----------
    sample : Sample
        A summary of the undamaged records of the file.
    bytes, crc32c : int
        The number of stored bytes of the file, and the CRC-32C of these bytes.
    damaged : int
        The number of damaged records, plus the number of damaged ranges without any recognisable record.
    damaged_bytes : int
        The total size of the damaged records and ranges in the decompressed file, in bytes.
    first : DamagedRange, optional
        The first damaged record or range in the file, or None if the file is undamaged.
    """

    sample: Sample
    bytes: int
    crc32c: int
    damaged: int
    damaged_bytes: int
    first: DamagedRange | None

    @property
    def records(self) -> int:
        """The number of undamaged records of the file."""
        return self.sample.records


def unreadable(problem: str) -> FileReport:
    """Return the report for a file that cannot be read because of `problem`."""
    return FileReport(Sample("infer"), 0, 0, 1, 0, DamagedRange(0, 0, problem))


def verify_files(
    store: Store, files: pa.Table, record_type: RecordType, compute_each: ComputeEach
) -> list[FileReport]:
    """Read files completely, in tasks, and return a report for each file."""
    verify = partial(_verify_split, store, record_type)
    return merge_by_file(verify, _merge, store, files, _LENIENT, compute_each)


def sampled_schema(store: Store, files: pa.Table, record_type: AskedType) -> tuple[Schema, str]:
    """Return the schema that `read_tfrecord` would infer from a sample of the files.

    If a feature has several kinds, its column gets the first kind. Damaged records in the sample are skipped.

    Returns
    -------
    Schema
        The schema with the inferred columns.
    str
        The reason why records that parse as messages are read as bytes. The text is empty if the records are
        not read as bytes.
    """
    take = partial(take_sample, store, files, record_type=record_type)
    try:
        sample = take(options=ReadOptions())
    except CorruptRecordError:
        sample = take(options=_LENIENT)
    if sample.record_type == "bytes":
        return infer_schema(sample, {}), sample.reason_for_bytes
    features: dict[str, FeatureSummary] = {}
    for feature in sample.features:
        if feature.name not in features or not features[feature.name].kinds:
            features[feature.name] = replace(feature, kinds=dict(list(feature.kinds.items())[:1]))
    return infer_schema(replace(sample, features=tuple(features.values())), {}), ""


def describe_drift(sample: Sample, schema: Schema) -> str:
    """Describe how the sampled features differ from the columns of a schema.

    The description is empty if there is no difference.
    """
    return "; ".join(drift.problem for drift in find_drift(sample, schema))


def describe_changes(report: FileReport, was: Mapping[str, int]) -> str:
    """Describe how a file differs from its row in a snapshot's file list.

    The description is empty if there is no difference.
    """
    now = {"bytes": report.bytes, "records": report.records, "crc32c": report.crc32c}
    return "; ".join(
        f"{name}: {now[name]:,} instead of {was[name]:,}" for name in now if now[name] != was[name]
    )


def _verify_split(store: Store, record_type: RecordType, split: Split) -> FileReport:
    checked = ChecksumStore(store.fs, store.root)
    losses = Losses(_LENIENT.damage)
    try:
        if record_type == "bytes":
            steps = run_kernel(checked, split, _LENIENT, partial(scan, verify_crc=False), losses=losses)
            sample = Sample("bytes", (), sum(step.result.records for step in steps))
        else:
            sample = sample_split(checked, split, options=_LENIENT, record_type=record_type, losses=losses)
        _read_the_rest(checked, split)
    except FileNotFoundError:
        return unreadable("the file is gone")
    except CorruptRecordError as error:
        return unreadable(error.problem)
    lost = losses.file(store.public(split.file.path))
    total = checked.checksum
    first = lost.first[0] if lost.first else None
    return FileReport(sample, total.bytes, total.crc32c, lost.count, lost.bytes, first)


def _read_the_rest(store: ChecksumStore, split: Split) -> None:
    """Read the rest of a split to complete its checksum, because decoding a compressed file ends at
    damage.
    """
    start = split.start.offset + store.checksum.bytes
    stop = split.file.size if split.stop is None else split.stop.offset
    if stop is None or start >= stop:
        return
    view = memoryview(bytearray(WINDOW_BYTES))
    with store.open(split.file.path, split.file.size, start, stop, split.file.stamp) as source:
        while source.readinto(view):
            pass  # reading a part of the file adds its bytes to the checksum


def _merge(first: FileReport, second: FileReport) -> FileReport:
    return FileReport(
        first.sample.merged(second.sample),
        first.bytes + second.bytes,
        crc32c_combine(first.crc32c, second.crc32c, second.bytes),
        first.damaged + second.damaged,
        first.damaged_bytes + second.damaged_bytes,
        first.first or second.first,
    )
