"""Run a function on all parts of many files, in tasks of about the same size, and merge the results."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TypeVar

from dask_tfrecord.dataset.read.plan_partitions import plan_partitions
from dask_tfrecord.files.entry import BLOCK_BYTES
from dask_tfrecord.files.find_blocks import ComputeEach, find_blocks
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import FileInfo, info_table
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store

# Stored bytes that one task reads.
TASK_BYTES = 1 << 26

Result = TypeVar("Result")


def merge_by_file(
    function: Callable[[Split], Result],
    merge: Callable[[Result, Result], Result],
    store: Store,
    files: Sequence[FileInfo],
    options: ReadOptions,
    compute_each: ComputeEach,
) -> dict[str, Result]:
    """Call a function with every split of the files, and merge the results of each file.

    Large uncompressed files are split, and small files share a task.

    Parameters
    ----------
    function : callable
        Reads a split.
    merge : callable
        Merges the results of two splits of a file, of which the second follows the first.
    store : Store
        The place of the files.
    files : sequence of FileInfo
        The files. A file that is listed twice is read once.
    options : ReadOptions
        How the files are read.
    compute_each : callable
        Runs the tasks.

    Returns
    -------
    dict
        A result for each path.
    """
    files = list({file.path: file for file in files}.values())
    large = [file for file in files if (file.size or 0) > TASK_BYTES]
    blocks = find_blocks(store, large, options, compute_each, task_bytes=TASK_BYTES, block_bytes=BLOCK_BYTES)
    known = {at: blocks[file.path] for at, file in enumerate(files) if file.path in blocks}
    partitions, _ = plan_partitions(info_table(files), known, blocksize=TASK_BYTES)
    results = compute_each(partial(_call_each, function), partitions)
    merged: dict[str, Result] = {}
    for splits, of_splits in zip(partitions, results, strict=True):
        for split, result in zip(splits, of_splits, strict=True):
            path = split.file.path
            merged[path] = merge(merged[path], result) if path in merged else result
    return merged


def merge_all(
    function: Callable[[Split], Result],
    merge: Callable[[Result, Result], Result],
    initial: Result,
    files: Sequence[FileInfo],
    compute_each: ComputeEach,
) -> Result:
    """Call a function with every file as one split, and merge all results in the order of the files.

    The tasks merge the results of their own files, so that little travels back.
    """
    partitions, _ = plan_partitions(info_table(files), blocksize=TASK_BYTES)
    results = compute_each(partial(_call_and_merge, function, merge, initial), partitions)
    return reduce(merge, results, initial)


@redact_errors
def _call_each(function: Callable[[Split], Result], splits: Sequence[Split]) -> list[Result]:
    return [function(split) for split in splits]


@redact_errors
def _call_and_merge(
    function: Callable[[Split], Result],
    merge: Callable[[Result, Result], Result],
    initial: Result,
    splits: Sequence[Split],
) -> Result:
    return reduce(merge, map(function, splits), initial)
