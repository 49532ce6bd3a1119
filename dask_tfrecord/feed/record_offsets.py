"""Find the offsets of a dataset's records in its files."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import HEADER_BYTES, scan
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.codec.codecs import detect, is_frame
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.column_files import open_column_file
from dask_tfrecord.files.damage import locate_error
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import WINDOW_BYTES, Allocate, must_verify_content, open_window
from dask_tfrecord.progress import Progress, Report

# The number of threads that read files when a table is opened.
THREADS = 8

# The number of splits, of about 1 MiB each, that one task searches for records.
_SPLITS_PER_TASK = 64


class Records(NamedTuple):
    """A buffer that holds records, with the offset of each record.

    Attributes
    ----------
    data : pyarrow.Buffer
        The buffer, which is a file, a block, or a range of a file.
    offsets : numpy.ndarray
        The position of the first byte of each record in the buffer, followed by the end of the last record.
    """

    data: pa.Buffer
    offsets: Ints


class Unit(NamedTuple):
    """The records that a table reads from one buffer: those of a memory-mapped file, or those of a split.

    Attributes
    ----------
    split : int
        The number of the split, or of the first split of the memory-mapped file.
    offsets : numpy.ndarray or None
        The offset in the file of each record of the unit, followed by the end of the last record. If None,
        the split is read as a block.
    """

    split: int
    offsets: Ints | None


def find_units(dataset: ReadPlan, splits: Sequence[Split]) -> list[Unit]:
    """Divide the splits of a dataset into units, and find the offsets of their records.

    The offsets of the records of uncompressed files come from column files, if there are any. Without column
    files, uncompressed local files are searched for records. If damage is skipped, all splits are read as
    blocks.
    """
    if dataset.options.damage.skips:
        return [Unit(number, None) for number in range(len(splits))]

    def find(group: list[Split]) -> list[Ints | None]:
        """Return the offsets of the records of a file, or those of each of its splits."""
        store, path = dataset.store, group[0].file.path
        data = memoryview(map_file(store, path) if store.local else b"")
        if dataset.options.compression not in ("infer", None) or detect(bytes(data[:HEADER_BYTES])):
            return [None] * len(group)
        known = _of_column_file(dataset, group)
        if not store.local:
            return [None if known is None else _of_split(known, split) for split in group]
        if known is None:
            known = _joined([_scan(store, dataset.options, split, data) for split in group])
        return [known]

    firsts, groups = zip(*splits_by_file(splits), strict=True) if splits else ((), ())
    units: list[Unit] = []
    with ThreadPoolExecutor(THREADS) as pool, Progress(_title(dataset.store)) as progress:
        for index, found in enumerate(pool.map(find, groups)):
            units += map(Unit, range(firsts[index], firsts[index] + len(found)), found)
            rows = sum(len(one) - 1 for one in found if one is not None)
            progress.add(Report("", 1, 1, index, len(groups), rows, 0))
    return units


def _of_column_file(dataset: ReadPlan, group: Sequence[Split]) -> Ints | None:
    """Return the offsets of the records of a file, given its splits, or None if they are not known."""
    store, file, beside = dataset.store, group[0].file, group[0].columns
    counts = [split.records for split in group if split.records is not None]
    # The offsets are those in the decompressed content.
    if beside is None or len(counts) < len(group) or file.compression is not None:
        return None
    path, count = file.path[len(store.join("")) :], sum(counts)
    offsets = open_column_file(store, beside).offsets(path, file.size, file.crc32c, 0, count)
    # If the snapshot does not tell the codec, the file may be compressed; its content then has another size.
    is_usable = offsets is not None and len(offsets) == count + 1 and offsets[-1] == file.size
    return offsets if is_usable else None


def map_file(store: Store, path: str) -> pa.Buffer:
    """Map a local file to memory."""
    return store.follow(path, lambda at: pa.memory_map(at).read_buffer())


def _title(store: Store) -> str:
    return f"{store.public()}: find records"


def splits_by_file(splits: Sequence[Split]) -> Iterator[tuple[int, list[Split]]]:
    """Yield the splits of each file, with the number of the first of these splits."""
    for _, group in groupby(enumerate(splits), key=lambda item: item[1].file.path):
        numbered = list(group)
        yield numbered[0][0], [split for _, split in numbered]


def _of_split(offsets: Ints, split: Split) -> Ints:
    """Select the record offsets of one split from the record offsets of the whole file."""
    start = split.start.record
    return offsets[start:] if split.stop is None else offsets[start : split.stop.record + 1]


def _scan(store: Store, options: ReadOptions, split: Split, data: memoryview) -> Ints:
    """Return the file offset of each record of a split, followed by the end of the split."""
    start = split.start.offset
    stop = len(data) if split.stop is None else split.stop.offset
    offsets = _offsets(store, options, split, data[start:stop])
    offsets += start
    return offsets


def _offsets(store: Store, options: ReadOptions, split: Split, data: memoryview) -> Ints:
    limit = options.max_record_bytes
    scanned = scan(data, final=True, offsets=True, verify_crc=False, max_record_bytes=limit)
    if scanned.damage is not None:
        error = scanned.damage.error((), 0, split.start.content)
        raise locate_error(error, store.public(split.file.path), split.start.record)
    found = np.zeros(0, np.int64) if scanned.offsets is None else scanned.offsets.to_numpy()
    return np.append(found, scanned.consumed)


def read_block(store: Store, options: ReadOptions, split: Split, allocate: Allocate | None = None) -> Records:
    """Read and decompress a split, and find its records. ``allocate`` has the same meaning as in `Window`."""
    path = store.public(split.file.path)
    if allocate is not None and (directly := _read_directly(store, options, split, allocate)) is not None:
        return Records(pa.py_buffer(directly), _offsets(store, options, split, directly))
    joined = bytearray()
    data = memoryview(joined)
    try:
        with open_window(store, split, options, WINDOW_BYTES, allocate) as window:
            for view in window:
                window.advance(len(view))
                if window.final and window.stop is not None and not joined:
                    data = view  # the window does not overwrite its last view
                    break
                data.release()
                joined += view
                data = memoryview(joined)
    except TFRecordError as error:
        raise locate_error(error, path, split.start.record) from None
    return Records(pa.py_buffer(data), _offsets(store, options, split, data))


def _read_directly(store: Store, options: ReadOptions, split: Split, allocate: Allocate) -> memoryview | None:
    """Read a split of an uncompressed local file in a third of the time that a window takes.

    Return None if the split must be read through a window, for example because the window raises an error.
    """
    file, start = split.file, split.start
    stop = file.size if split.stop is None else split.stop.offset
    if not store.local or options.compression not in ("infer", None) or must_verify_content(split, options):
        return None
    if stop is None or start.offset != start.content:
        return None
    try:
        with open(file.path, "rb", buffering=0) as opened:
            status = os.fstat(opened.fileno())
            if status.st_size != file.size or file.stamp not in ("", str(status.st_mtime)):
                return None
            data = allocate(stop - start.offset)
            opened.seek(start.offset)
            count = opened.readinto(data)
    except OSError:
        return None
    return data if count == len(data) and is_frame(bytes(data[:HEADER_BYTES])) else None


def _joined(parts: Sequence[Ints]) -> Ints:
    """Join the record offsets of adjacent splits of a file into one array."""
    return np.concatenate([*(part[:-1] for part in parts), parts[-1][-1:]])
