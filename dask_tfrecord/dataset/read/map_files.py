"""Run a function on all splits of many files, in tasks of about the same size, and merge the results."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.read.plan_partitions import plan_partitions
from dask_tfrecord.files.entry import BLOCK_BYTES
from dask_tfrecord.files.find_blocks import ComputeEach, find_blocks
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.listing import column_paths, distinct, table_infos
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store

# The number of stored bytes that one task reads.
TASK_BYTES = 1 << 26

Result = TypeVar("Result")


def merge_by_file(
    function: Callable[[Split], Result],
    merge: Callable[[Result, Result], Result],
    store: Store,
    files: pa.Table,
    options: ReadOptions,
    compute_each: ComputeEach,
) -> list[Result]:
    """Call a function with every split of the files, and merge the results of each file.

    Large uncompressed files are split, and several small files are read in one task.

    Parameters
    ----------
    function : callable
        Function that reads a split and returns a result.
    merge : callable
        Function that merges the results of two adjacent splits of a file.
    store : Store
        The store that holds the files.
    files : pyarrow.Table
        The list of the files to read. A file that is listed twice is read only once.
    options : ReadOptions
        The options for reading the files.
    compute_each : callable
        Function that runs the tasks.

    Returns
    -------
    list
        The merged result of each file.
    """
    once = distinct(files)
    large = np.flatnonzero(pc.fill_null(once["size"], 0).to_numpy() > TASK_BYTES)
    infos = table_infos(once.take(pa.array(large)))
    blocks = find_blocks(store, infos, options, compute_each, task_bytes=TASK_BYTES, block_bytes=BLOCK_BYTES)
    known = {
        at: blocks[file.path] for at, file in zip(large.tolist(), infos, strict=True) if file.path in blocks
    }
    partitions, _ = plan_partitions(once, known, blocksize=TASK_BYTES)
    results = compute_each(partial(_call_each, function), partitions)
    merged: dict[str, Result] = {}
    for splits, of_splits in zip(partitions, results, strict=True):
        for split, result in zip(splits, of_splits, strict=True):
            path = split.file.path
            merged[path] = merge(merged[path], result) if path in merged else result
    return [merged[path] for path in column_paths(files["path"])]


@redact_errors
def _call_each(function: Callable[[Split], Result], splits: Sequence[Split]) -> list[Result]:
    return [function(split) for split in splits]
