"""What is wrong with files: damage, features that are not in the schema, other sizes than were noted."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple

from dask_tfrecord.codec import RecordType, crc32c_combine, scan
from dask_tfrecord.dataset.inferred_schema import infer_schema
from dask_tfrecord.dataset.packing import plan_partitions
from dask_tfrecord.dataset.sampling import take_sample
from dask_tfrecord.dataset.schema_drift import find_drift
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.files.boundaries import ComputeEach, find_blocks
from dask_tfrecord.files.damage import DamagedRange, DamagePolicy, Losses
from dask_tfrecord.files.entry import BLOCK_BYTES, FileEntry
from dask_tfrecord.files.inference import AskedType, FeatureSummary, Sample, sample_split
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import run_kernel
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.checksum import ChecksumStore
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.stream import WINDOW_BYTES
from dask_tfrecord.schema.model import Schema

# Stored bytes that a task reads.
_TASK_BYTES = 1 << 26

_SKIP = DamagePolicy("skip")


class Found(NamedTuple):
    """What a stretch of a file holds, and what of it is lost.

    ``bytes`` and ``crc32c`` are those of what is stored.
    """

    sample: Sample
    bytes: int
    crc32c: int
    damaged: int
    damaged_bytes: int
    first: DamagedRange | None


def missing(problem: str) -> Found:
    """What is found of a file that cannot be read."""
    return Found(Sample("infer"), 0, 0, 1, 0, DamagedRange(0, 0, problem))


def look_through(
    store: Store, files: Sequence[FileInfo], record_type: RecordType, compute_each: ComputeEach
) -> list[Found]:
    """What is in each file, in tasks that read stretches of large files or many small ones."""
    options = ReadOptions(damage=_SKIP)
    once = list({file.path: file for file in files}.values())
    large = [file for file in once if (file.size or 0) > _TASK_BYTES]
    located = find_blocks(
        store, large, options, compute_each, task_bytes=_TASK_BYTES, block_bytes=BLOCK_BYTES
    )
    partitions, _ = plan_partitions(once, [located.get(file.path) for file in once], blocksize=_TASK_BYTES)
    found = compute_each(partial(_look_through, store, options, record_type), partitions)
    of_file: dict[str, list[Found]] = {file.path: [] for file in once}
    for partition, of_partition in zip(partitions, found, strict=True):
        for split, one in zip(partition, of_partition, strict=True):
            of_file[split.file.path].append(one)
    return [reduce(_joined, of_file[file.path]) for file in files]


def sampled_schema(store: Store, files: Sequence[FileInfo], record_type: AskedType) -> tuple[Schema, str]:
    """The schema that readers infer, in which the first kind of a feature counts.

    With it goes why readers take messages for bytes; empty if they do not. Damage in the sample is passed
    over only where it would make readers raise.
    """
    take = partial(take_sample, store, files, record_type=record_type)
    try:
        sample = take(options=ReadOptions())
    except CorruptRecordError:
        sample = take(options=ReadOptions(damage=_SKIP))
    if sample.record_type == "bytes":
        return infer_schema(sample, {}), sample.doubt
    features: dict[str, FeatureSummary] = {}
    for one in sample.features:
        if one.name not in features or not features[one.name].kinds:
            features[one.name] = replace(one, kinds=dict(list(one.kinds.items())[:1]))
    return infer_schema(replace(sample, features=tuple(features.values())), {}), ""


def drift(sample: Sample, schema: Schema) -> str:
    """How what was seen differs from the columns; empty if it does not."""
    return "; ".join(one.problem for one in find_drift(sample, schema))


def differences(found: Found, entry: FileEntry) -> str:
    """In what a file is not as it was; empty if it is."""
    pairs = [
        ("bytes", found.bytes, entry.bytes),
        ("records", found.sample.records, entry.records),
        ("crc32c", found.crc32c, entry.crc32c),
    ]
    return "; ".join(f"{name}: {now:,} instead of {was:,}" for name, now, was in pairs if now != was)


@redact_errors
def _look_through(
    store: Store, options: ReadOptions, record_type: RecordType, splits: Sequence[Split]
) -> list[Found]:
    return [_look_at(store, options, record_type, split) for split in splits]


def _look_at(store: Store, options: ReadOptions, record_type: RecordType, split: Split) -> Found:
    path = store.public(split.file.path)
    summing = ChecksumStore(store.fs, store.root)
    losses = Losses(_SKIP)
    try:
        if record_type == "bytes":
            steps = run_kernel(summing, split, options, scan, losses=losses)
            sample = Sample("bytes", (), sum(step.result.records for step in steps))
        else:
            sample = sample_split(summing, split, options=options, record_type=record_type, losses=losses)
        _sum_the_rest(summing, split)
    except FileNotFoundError:
        return missing("the file is gone")
    except TFRecordError as error:
        return missing(error.problem)
    lost = losses.file(path)
    total = summing.checksum
    first = lost.first[0] if lost.first else None
    return Found(sample, total.bytes, total.crc32c, lost.count, lost.bytes, first)


def _sum_the_rest(store: ChecksumStore, split: Split) -> None:
    """Read what damage to a compressed file kept from being read."""
    start = split.start.offset + store.checksum.bytes
    stop = split.file.size if split.stop is None else split.stop.offset
    if stop is None or start >= stop:
        return
    view = memoryview(bytearray(WINDOW_BYTES))
    with store.open(split.file.path, split.file.size, start, stop, split.file.stamp) as source:
        while source.readinto(view):
            pass


def _joined(one: Found, after: Found) -> Found:
    """Two stretches of a file as one."""
    return Found(
        one.sample.merged(after.sample),
        one.bytes + after.bytes,
        crc32c_combine(one.crc32c, after.crc32c, after.bytes),
        one.damaged + after.damaged,
        one.damaged_bytes + after.damaged_bytes,
        one.first or after.first,
    )
