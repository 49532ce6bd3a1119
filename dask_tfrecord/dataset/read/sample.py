"""Read the records from which the columns of files are inferred: a sample of limited size, or all records.

The splits of many files are read in tasks of about the same size.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import too_many_features
from dask_tfrecord.dataset.read.plan import plan_partitions
from dask_tfrecord.files.damage import DamagePolicy
from dask_tfrecord.files.entry import BLOCK_BYTES
from dask_tfrecord.files.file_list import INFO_SCHEMA, FileList
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import ComputeEach, find_blocks
from dask_tfrecord.files.inference import AskedType, Sample, sample_split
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.window import WINDOW_BYTES
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store

# One task reads about this many stored bytes.
TASK_BYTES = 1 << 26

Result = TypeVar("Result")


def merge_by_file(
    function: Callable[[Store, Split], Result],
    merge: Callable[[Result, Result], Result],
    store: Store,
    files: FileList,
    options: ReadOptions,
    compute_each: ComputeEach,
) -> list[Result]:
    """Call a function with every split of the files, and merge the results of each file.

    Large uncompressed files are split, and several small files are read in one task. ``merge`` merges the
    results of two adjacent splits. A file that is listed twice is read only once.
    """
    once = files.select(INFO_SCHEMA.names).distinct()
    large = np.flatnonzero(pc.fill_null(once["bytes"], 0).to_numpy() > TASK_BYTES)
    infos = once.take(large).infos
    blocks = find_blocks(store, infos, options, compute_each, task_bytes=TASK_BYTES, block_bytes=BLOCK_BYTES)
    known = {
        at: blocks[file.path] for at, file in zip(large.tolist(), infos, strict=True) if file.path in blocks
    }
    partitions = plan_partitions(once, known, blocksize=TASK_BYTES)
    results = compute_each(partial(_call_each, function, store), partitions)
    merged: dict[str, Result] = {}
    for splits, of_splits in zip(partitions, results, strict=True):
        for split, result in zip(splits, of_splits, strict=True):
            path = split.file.path
            merged[path] = merge(merged[path], result) if path in merged else result
    return [merged[path] for path in files.paths]


@redact_errors
def _call_each(
    function: Callable[[Store, Split], Result], store: Store, splits: Sequence[Split]
) -> list[Result]:
    with store.reading_ahead([split.stored_range for split in splits]) as ahead:
        return [function(ahead, split) for split in splits]


# The sample contains records of at most this many files, and at most this many records of each file. All
# sampled records of a file are in its first window.
_FILES = 5
_RECORDS = 100_000

# If the sample leaves a column without a type, additional files are read. The next three constants limit how
# many stored bytes, files, and windows of each file are read. The number of windows is limited because a
# small file may decompress to many bytes.
_MORE_BYTES = 1 << 26
_MORE_FILES = 256
_MORE_WINDOWS = 64

# At most this many files are read at the same time.
_THREADS = 16

# An uncompressed, gzip or zlib file without records usually has at most this many bytes. A file that contains
# a value of a feature has more bytes.
_EMPTY_BYTES = 20


def take_sample(store: Store, files: FileList, *, record_type: AskedType, options: ReadOptions) -> Sample:
    """Read records of the first file, the last file and some files between them.

    Additional files are read if the sampled records have no features, or have a feature without any value.
    With ``record_type="infer"``, the inferred record type is "sequence_example" if a record has a feature
    list. The inferred record type is "bytes" if the records are not valid messages, or do not look like
    Examples. Raise CorruptRecordError if a sampled record is damaged, unless the record is in an additional
    file. Damaged records in additional files are skipped here; the tasks that read these files later raise
    the error.
    """
    if record_type == "bytes":
        return Sample("bytes")
    files = files.distinct()
    sample = partial(sample_split, store, options=options, record_type=record_type)
    with ThreadPoolExecutor(_THREADS) as pool:
        chosen = _choose(files)
        samples = dict(
            zip(chosen, pool.map(partial(sample, limit=_RECORDS), _splits(files, chosen)), strict=True)
        )
        if _needs_more(samples.values()):
            more, windows = _choose_more(files)
            lenient = replace(options, damage=DamagePolicy("skip"))
            sample = partial(sample, options=lenient, windows=windows)
            samples |= zip(more, pool.map(sample, _splits(files, more)), strict=True)
    in_order = [samples[row] for row in sorted(samples)]
    return _with_record_type(_merged(in_order, record_type, options), record_type)


def _splits(files: FileList, rows: list[int]) -> list[Split]:
    return list(map(Split, files.take(pa.array(rows, pa.int64())).infos))


def sample_all(
    store: Store, files: FileList, *, record_type: AskedType, options: ReadOptions, compute_each: ComputeEach
) -> Sample:
    """Read every record of the files in tasks, and merge the results into one sample."""
    if record_type == "bytes":
        return Sample("bytes")
    partitions = plan_partitions(files, blocksize=TASK_BYTES)
    samples = compute_each(partial(_sample_splits, store, options, record_type), partitions)
    return _with_record_type(_merged(samples, record_type, options), record_type)


@redact_errors
def _sample_splits(
    store: Store, options: ReadOptions, record_type: AskedType, splits: Sequence[Split]
) -> Sample:
    with store.reading_ahead([split.stored_range for split in splits]) as ahead:
        sample = partial(sample_split, ahead, options=options, record_type=record_type)
        return _merged(map(sample, splits), record_type, options)


def _merged(samples: Iterable[Sample], record_type: AskedType, options: ReadOptions) -> Sample:
    """Merge samples. Raise SchemaError if the merged sample has more features than the options allow."""
    merged = reduce(Sample.merged, samples, Sample(record_type))
    count = len(merged.features)
    if options.max_features is not None and count > options.max_features:
        raise too_many_features(count, path=merged.features[-1].path)
    return merged


def _choose(files: FileList) -> list[int]:
    """Choose a few files to sample. Return the indices of the chosen files in ascending order.

    The choice depends only on the sizes of the files. Empty files are chosen only if all files are empty.
    """
    sizes = files["bytes"].to_pylist()
    rows = [at for at, size in enumerate(sizes) if size is None or size > _EMPTY_BYTES] or range(len(sizes))
    middle = range(1, len(rows) - 1)
    some = random.Random(len(rows)).sample(middle, min(len(middle), _FILES - 2))
    return [rows[at] for at in sorted({0, *some, len(rows) - 1})]


def _needs_more(samples: Iterable[Sample]) -> bool:
    """Return True if the records may be Examples and the sample has no features or has a feature without
    values.
    """
    merged = reduce(Sample.merged, samples)
    if merged.non_message or (merged.payload and not merged.features):
        return False
    return not merged.features or any(not feature.kinds for feature in merged.features)


def _choose_more(files: FileList) -> tuple[list[int], int]:
    """Return the indices of the additional files to sample, and how many windows to read from each file."""
    sizes = {at: size for at, size in enumerate(files["bytes"].to_pylist()) if size is not None}
    if len(sizes) <= _MORE_FILES and sum(sizes.values()) <= _MORE_BYTES:
        return [*sizes], _MORE_WINDOWS
    some = random.Random(len(files)).sample([*sizes], min(len(sizes), _MORE_FILES))
    windows = max(1, _MORE_BYTES // WINDOW_BYTES // len(some))
    costs = accumulate(min(sizes[at], windows * WINDOW_BYTES) for at in some)
    return [at for at, cost in zip(some, costs, strict=True) if cost <= _MORE_BYTES], windows


def _with_record_type(sample: Sample, record_type: AskedType) -> Sample:
    """Set the record type of a sample to the requested type, or infer it from the records."""
    if record_type == "infer" and (reason := _reason_for_bytes(sample)):
        return replace(sample, record_type="bytes", reason_for_bytes=reason)
    if sample.non_message and (sample.features or record_type != "infer"):
        raise sample.non_message
    if record_type != "infer":
        return replace(sample, reason_for_bytes="")
    if sample.payload and not sample.features:
        return Sample("bytes")
    has_lists = any(feature.feature_list for feature in sample.features)
    inferred: AskedType = "sequence_example" if has_lists else "example"
    return Sample(inferred, sample.features, sample.records, sample.payload)


def _reason_for_bytes(sample: Sample) -> str:
    """Return the reason why records that parse as messages are not Examples, or ""."""
    if not sample.features:
        return sample.reason_for_bytes
    return "" if any(feature.kinds for feature in sample.features) else "no feature has a value"
