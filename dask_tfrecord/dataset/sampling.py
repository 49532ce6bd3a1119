"""Which records show the schema of files that carry none: a bounded sample, or all of them."""

import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate

from dask_tfrecord.dataset.packing import plan_partitions
from dask_tfrecord.files.boundaries import ComputeEach
from dask_tfrecord.files.damage import DamagePolicy
from dask_tfrecord.files.inference import AskedType, Sample, sample_split
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.stream import WINDOW_BYTES

# The first file, the last, and some between; of each, the records of one window, at most so many.
_FILES = 5


_RECORDS = 100_000


# Where these records do not show the type of each column: so many stored bytes and files are looked at in
# addition, and of each file so many windows at most, which bounds what a file may decompress to.
_MORE_BYTES = 1 << 26


_MORE_FILES = 256


_MORE_WINDOWS = 64


# Requests at a time.
_THREADS = 16


# Stored bytes that a task looks at when all records are looked at.
_TASK_BYTES = 1 << 27


# A file without records, plain or in gzip or zlib, has no more bytes than that; one with a feature has more.
_EMPTY_BYTES = 20


@redact_errors
def take_sample(
    store: Store, files: Sequence[FileInfo], *, record_type: AskedType, options: ReadOptions
) -> Sample:
    """Look at records of the first file, the last and some between.

    More files are looked at if these records leave a column without a type, or show no column at all.
    Records are recognised as sequence examples if any holds a feature list. They are recognised as bytes if
    they are no messages, or if they are messages that do not look like Examples.

    Raises
    ------
    CorruptRecordError
        For damage in the first part of the sample. Damage in the other part is left to the tasks.
    """
    if record_type == "bytes":
        return Sample("bytes")
    look = partial(sample_split, store, options=options, record_type=record_type)
    with ThreadPoolExecutor(_THREADS) as pool:
        chosen = _choose(files)
        seen = dict(zip(chosen, pool.map(partial(look, limit=_RECORDS), map(Split, chosen)), strict=True))
        if _leaves_open(seen.values()):
            more, windows = _choose_more(files)
            lenient = replace(options, damage=DamagePolicy("skip"))
            look = partial(look, options=lenient, windows=windows)
            seen |= zip(more, pool.map(look, map(Split, more)), strict=True)
    return _concluded((seen[file] for file in dict.fromkeys(files) if file in seen), record_type)


def sample_all(
    store: Store,
    files: Sequence[FileInfo],
    *,
    record_type: AskedType,
    options: ReadOptions,
    compute_each: ComputeEach,
) -> Sample:
    """Look at every record, in tasks that read many small files each.

    Raises
    ------
    CorruptRecordError
        For any damage.
    """
    if record_type == "bytes":
        return Sample("bytes")
    look = partial(_look_at_partition, store, options=options, record_type=record_type)
    partitions, _ = plan_partitions(files, blocksize=_TASK_BYTES)
    return _concluded(compute_each(look, partitions), record_type)


def _choose(files: Sequence[FileInfo]) -> list[FileInfo]:
    """A few files, the same ones every time, in their order; none that is empty, unless all are."""
    files = [file for file in files if file.size is None or file.size > _EMPTY_BYTES] or files
    middle = range(1, len(files) - 1)
    some = random.Random(len(files)).sample(middle, min(len(middle), _FILES - 2))
    return [files[index] for index in sorted({0, *some, len(files) - 1})]


def _leaves_open(samples: Iterable[Sample]) -> bool:
    """Whether records were seen, or none were, that do not show the type of each column."""
    found = reduce(Sample.merged, samples)
    if found.non_message or (found.payload and not found.features):
        return False
    return not found.features or any(not feature.kinds for feature in found.features)


def _choose_more(files: Sequence[FileInfo]) -> tuple[list[FileInfo], int]:
    """Files to look at further, and how many windows of each: all of small datasets, some of large ones."""
    sized = [file for file in dict.fromkeys(files) if file.size is not None]
    if len(sized) <= _MORE_FILES and sum(file.size or 0 for file in sized) <= _MORE_BYTES:
        return sized, _MORE_WINDOWS
    some = random.Random(len(files)).sample(sized, min(len(sized), _MORE_FILES))
    windows = max(1, _MORE_BYTES // WINDOW_BYTES // len(some))
    costs = accumulate(min(file.size or 0, windows * WINDOW_BYTES) for file in some)
    return [file for file, cost in zip(some, costs, strict=True) if cost <= _MORE_BYTES], windows


def _concluded(samples: Iterable[Sample], record_type: AskedType) -> Sample:
    """The samples as one, of a record type that is known."""
    found = reduce(Sample.merged, samples, Sample(record_type))
    if record_type == "infer" and (doubt := _doubt(found)):
        return replace(found, record_type="bytes", doubt=doubt)
    if found.non_message and (found.features or record_type != "infer"):
        raise found.non_message
    if record_type != "infer":
        return replace(found, doubt="")
    if found.payload and not found.features:
        return Sample("bytes")
    lists = any(feature.feature_list for feature in found.features)
    return Sample("sequence_example" if lists else "example", found.features, found.records, found.payload)


def _doubt(found: Sample) -> str:
    """Why records that parse as messages are not Examples; empty if they may be."""
    open_ = [feature.name for feature in found.features if not feature.kinds]
    strange = next(filter(_has_control, open_), None)
    if strange is not None:
        return f"a feature without a value has a name with control characters, {strange[:40]!r}"
    if open_ and len(open_) == len(found.features):
        return "no feature has a value"
    return "" if found.features else found.doubt


def _has_control(name: str) -> bool:
    """Whether a name holds control characters other than tab, newline and carriage return."""
    return any((ord(sign) < 32 and sign not in "\t\n\r") or ord(sign) == 127 for sign in name)


@redact_errors
def _look_at_partition(
    store: Store, splits: Sequence[Split], *, options: ReadOptions, record_type: AskedType
) -> Sample:
    looks = (sample_split(store, split, options=options, record_type=record_type) for split in splits)
    return reduce(Sample.merged, looks, Sample(record_type))
