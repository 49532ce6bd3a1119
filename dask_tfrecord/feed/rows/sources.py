"""Define the sources of batches: a dataset on disk, or the partitions of a Dask collection.

The records of several pieces are shuffled in a window, and stay encoded until a batch needs them. Decoding
the records of a batch together, in the order of the batch, takes less time and memory than decoding whole
pieces and then copying the rows of each batch.
"""

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import dask
import numpy as np
import pyarrow as pa
from dask.base import get_scheduler

from dask_tfrecord.codec import Ints, pool_array, raise_pool_limit
from dask_tfrecord.collection.frames import pandas_to_arrow
from dask_tfrecord.collection.frames.schema_plan import plan_schema
from dask_tfrecord.collection.opened_path import open_columns
from dask_tfrecord.collection.scheduler import compute_each, leave_thread_pool
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.read.task import Partition, wrong_number
from dask_tfrecord.errors import (
    FileChangedError,
    Remedy,
    RemedyWarning,
    SchemaError,
    TFRecordError,
    check_instance,
    did_you_mean,
    warn_caller,
)
from dask_tfrecord.feed.rows.record_buffers import RecordDecoder
from dask_tfrecord.files.record_file import RecordFile, Records
from dask_tfrecord.files.window import Allocate
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import ReadKeywords
from dask_tfrecord.keywords.public_functions import calling
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.block_cache import BlockCache
from dask_tfrecord.storage.range_requests import RequestCounts
from dask_tfrecord.storage.redaction import redact_errors

if TYPE_CHECKING:
    import dask.dataframe as dd

# A shuffle window is complete when it has this many bytes, even if it has fewer rows than ``shuffle_buffer``.
WINDOW_BYTES = 1 << 28

# The minimum size in bytes of one allocation. Several pieces share one allocation.
_PART_BYTES = 1 << 24


@dataclass(frozen=True)
class EncodedRows:
    """Hold encoded records of one piece. The records of each split form one block.

    A slice keeps the ``whole`` piece, so that other slices find it in memory.
    """

    piece: int
    blocks: list[Records]
    whole: Self | None = None

    @property
    def num_rows(self) -> int:
        return sum(len(block.offsets) - 1 for block in self.blocks)

    @property
    def nbytes(self) -> int:
        return sum(int(block.offsets[-1] - block.offsets[0]) for block in self.blocks)

    def slice(self, start: int, length: int) -> Self:
        """Return ``length`` records from ``start`` on. Omit blocks without any requested record."""
        blocks = []
        for block in self.blocks:
            first, last = max(start, 0), min(start + length, len(block.offsets) - 1)
            if first < last:
                blocks.append(Records(block.data, block.offsets[first : last + 1]))
            start -= len(block.offsets) - 1
        return replace(self, blocks=blocks, whole=self)


class WindowMemory:
    """Allocate the memory of the windows of one iteration, for several threads.

    Memory is allocated in large parts, and the memory pool of the C++ kernel reuses them for later windows.
    """

    def __init__(self) -> None:
        raise_pool_limit(_PART_BYTES + 2 * WINDOW_BYTES)  # the current window, and the next one
        self._lock = Lock()
        self._left = memoryview(b"")

    def allocate(self, size: int) -> memoryview:
        """Return uninitialised memory of ``size`` bytes."""
        with self._lock:
            if len(self._left) < size:
                self._left = pool_array(max(size, _PART_BYTES)).data
            # Processors copy bytes fastest to addresses that are multiples of 64.
            found, self._left = self._left[:size], self._left[size + -size % 64 :]
        return found


class RecordReader:
    """Read pieces of a dataset as encoded records. Several threads may call `read` at the same time.

    The windows of one iteration share the reader's decoder.
    """

    def __init__(
        self, source: "DatasetSource", memory: WindowMemory, counts: RequestCounts | None = None
    ) -> None:
        self.source, self._memory, self._counts = source, memory, counts
        self.decoder = RecordDecoder(source.dataset, source.schema)
        self._has_partitions = any(name in source.dataset.partition_values for name in source.schema.names)
        # This array is used again for each table, because fresh memory would take longer than the copy.
        self._places = np.empty((0, 3), np.int64)

    def read(self, piece: int) -> EncodedRows:
        return self.source.read_encoded(piece, self._memory.allocate, self._counts)

    def window(self, pieces: list[EncodedRows], order: Ints | None) -> "RecordWindow":
        """Return the records of several pieces in a random order, or in the order of the pieces."""
        return RecordWindow(self.source, pieces, order, self._memory.allocate)

    def decode(self, parts: "Sequence[tuple[RecordWindow, int, int]]", order: Ints | None) -> pa.Table:
        """Decode ranges of rows of several windows together.

        Row ``i`` of the table is row ``order[i]`` among those of all ranges.
        """
        buffers, pieces = list[pa.Buffer](), list[int]()
        shuffled = parts[0][0].places if len(parts) == 1 else None
        if shuffled is not None:
            window, start, stop = parts[0]
            places, rows = shuffled, window.rows(start, stop)
            if order is not None:
                rows = rows[order]
            buffers, pieces = window.buffers, window.pieces
        else:
            count = sum(stop - start for _, start, stop in parts)
            if len(self._places) < count:
                self._places = np.empty((count, 3), np.int64)
            places, at = self._places[:count], 0
            for window, start, stop in parts:
                window.copy_places(places[at : at + stop - start], start, stop, len(buffers))
                buffers += window.buffers
                pieces += window.pieces
                at += stop - start
            rows = np.arange(count) if order is None else order
        batches = []
        piece_of_buffer = np.array(pieces)
        while len(rows):
            numbers = piece_of_buffer[places[rows, 0]] if self._has_partitions else None
            try:
                batch = self.decoder.decode(buffers, places, rows, numbers)
            except TFRecordError as error:
                # Another read of the piece should raise an error that names the file and the record.
                buffer = int(places[rows[error.record or 0], 0])
                sources = [window.source for window, _, _ in parts for _ in window.buffers]
                sources[buffer].read(pieces[buffer])
                problem = f"a file changed while its records were read: {error}"
                raise FileChangedError(problem) from None
            batches.append(batch)
            rows = rows[batch.num_rows :]
        return pa.Table.from_batches(batches, self.source.schema.arrow)


class RecordWindow:
    """The records of several pieces, in the order in which batches return them.

    Row ``i`` of the window is the record with the index ``order[i]`` among all records of the pieces. If
    ``order`` is None, the records are in the order of the pieces, and ``places`` is None. Each row of
    ``places`` describes one record by three numbers: the index of its buffer, and the start and the end of
    its frame.
    """

    def __init__(
        self, source: "DatasetSource", pieces: list[EncodedRows], order: Ints | None, allocate: Allocate
    ) -> None:
        self.source = source
        blocks = [(piece.piece, block) for piece in pieces for block in piece.blocks]
        self.buffers = [block.data for _, block in blocks]
        self.pieces = [piece for piece, _ in blocks]
        self.num_rows = sum(len(block.offsets) - 1 for _, block in blocks)
        self.nbytes = sum(piece.nbytes for piece in pieces)
        self._order, self._kept = order, pieces
        self._offsets = [block.offsets for _, block in blocks]
        self.places: Ints | None = None
        if order is not None:
            self.places = np.frombuffer(allocate(24 * self.num_rows), np.int64).reshape(-1, 3)
            self._write_places(self.places, 0, self.num_rows)

    def _write_places(self, places: Ints, start: int, stop: int) -> None:
        """Write the places of the records from ``start`` to ``stop``, in the order of the pieces."""
        for number, offsets in enumerate(self._offsets):
            first, last = max(start, 0), min(stop, len(offsets) - 1)
            if first < last:
                written, places = places[: last - first], places[last - first :]
                written[:, 0], written[:, 1], written[:, 2] = (
                    number,
                    offsets[first:last],
                    offsets[first + 1 : last + 1],
                )
            start, stop = start - len(offsets) + 1, stop - len(offsets) + 1

    def rows(self, start: int, stop: int) -> Ints:
        """Return the indices of the places of a range of rows."""
        assert self._order is not None
        return self._order[start:stop]

    def copy_places(self, places: Ints, start: int, stop: int, first: int) -> None:
        """Copy the places of a range of rows. ``first`` is added to the index of each buffer."""
        if self.places is None:
            self._write_places(places, start, stop)
        else:
            np.take(self.places, self.rows(start, stop), axis=0, out=places, mode="clip")  # "raise" copies
        places[:, 0] += first


_Usable: TypeAlias = tuple[int | None, Callable[[int], Partition] | None]


class DatasetSource:
    """A TFRecord dataset, divided into pieces of about ``blocksize`` stored bytes.

    Several threads may read pieces at the same time. ``counts`` contains the number of rows of each piece.
    ``fingerprint`` is a hash that identifies the rows, computed without reading them. ``version`` is None if
    the dataset has no snapshot.
    """

    def __init__(
        self, path: Any, columns: Any, blocksize: int, read: ReadKeywords, cache: BlockCache | None = None
    ) -> None:
        self.dataset, self.schema = open_columns(path, checked_names(columns), blocksize, read)
        self.keeps_records = self._keeps_records()
        self.counts: Sequence[int] | None = self._count()
        self.version = self.dataset.version
        self.fingerprint = fingerprint(self.dataset, self.counts)
        # Tasks on other machines may have counted the rows, so only reads use the cache.
        self.dataset = with_cache(self.dataset, cache)
        # The id of a process, and the function that returns the pieces in this process. One attribute
        # contains both, so that no thread sees the new id together with the old function.
        self._usable: _Usable = os.getpid(), self.dataset.partitioner(self.schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_usable": (None, None)}  # `_partition` recreates the function

    def _count(self) -> list[int]:
        """Count the rows of each piece. Dask tasks read the pieces whose number of rows is unknown."""
        counts = self.dataset.counts.to_pylist()
        # If the read skips damaged records, count the rows with the requested columns. A read of different
        # columns could skip different records.
        schema = self.schema if self.dataset.options.damage.skips else self.schema.select([])
        partition = self.dataset.partitioner(schema)
        unknown = [partition(piece) for piece, count in enumerate(counts) if count is None]
        found = iter(compute_each(_count_rows, unknown))
        return [next(found) if count is None else count for count in counts]

    @property
    def npieces(self) -> int:
        return self.dataset.npartitions

    @property
    def is_remote(self) -> bool:
        return self.dataset.store.is_remote

    def read(self, piece: int, counts: RequestCounts | None = None) -> pa.Table:
        """Read the rows of one piece, and add the requests to a remote store to ``counts``."""
        return self._partition(piece, counts).read()

    def stream(self, piece: int, counts: RequestCounts | None = None) -> Iterable[pa.Table]:
        """Yield the rows that `read` returns, in tables of a few MiB, as they arrive."""
        return self._partition(piece, counts).stream()

    def read_encoded(
        self, piece: int, allocate: Allocate, counts: RequestCounts | None = None
    ) -> EncodedRows:
        """Read the records of one piece without decoding them.

        ``allocate`` returns memory for the records.
        """
        partition = self._partition(piece, counts)
        try:
            files = (RecordFile(partition.store, split, partition.options) for split in partition.splits)
            blocks = [file.records(allocate) for file in files]
        except TFRecordError:
            partition.read()  # this read raises an error that explains the cause
            raise
        for split, block in zip(partition.splits, blocks, strict=True):
            if split.records not in (None, len(block.offsets) - 1):
                path = partition.store.public(split.file.path)
                raise wrong_number(path, len(block.offsets) - 1, split.records)
        return EncodedRows(piece, blocks)

    def _partition(self, piece: int, counts: RequestCounts | None) -> Partition:
        process, partition = self._usable
        if partition is None or process != os.getpid():
            self.dataset = usable_after_fork(self.dataset)
            partition = self.dataset.partitioner(self.schema)
            self._usable = os.getpid(), partition
        found = partition(piece)
        if counts is None or not self.is_remote:
            return found
        return replace(found, store=replace(found.store, counts=counts))

    def _keeps_records(self) -> bool:
        """Return True if a shuffle keeps encoded records, and decodes the records of each batch together.

        The result depends only on the dataset and on the arguments, so that a resumed iteration has the same
        windows.
        """
        dataset = self.dataset
        if dataset.options.damage.skips or dataset.options.origin_columns:
            return False
        if dataset.filters is not None and not dataset.outcomes(dataset.filters).only_true.all():
            return False
        stored = self.schema.select(
            name for name in self.schema.names if name not in dataset.partition_values
        ).columns
        # A window that keeps records would waste memory on large values that are not read.
        large = {column.name for column in dataset.schema.columns if column.depth or column.kind == "bytes"}
        return bool(stored) and large <= {column.name for column in stored}


class CollectionSource:
    """A Dask collection whose partitions are computed one by one.

    The number of rows is not known in advance.
    """

    def __init__(self, ddf: "dd.DataFrame | dd.Series", columns: Sequence[str] | None) -> None:
        leave_thread_pool()  # other threads of the current task may call `read`
        frame = ddf.to_frame() if ddf.ndim == 1 else ddf
        names = checked_names(columns)
        frame = frame if names is None else frame[names]
        frame = frame.optimize()
        self.schema = plan_schema(
            frame._meta,
            schema=None,
            record_type="example",
            write_index=False,
            sample=partial(_computed_partitions, frame),
        )
        self.counts: Sequence[int] | None = None
        self.version: int | None = None
        self.keeps_records = self.is_remote = False
        self.fingerprint = digest(frame._name)
        self._partitions = frame.to_delayed(optimize_graph=False)
        self._scheduler = get_scheduler()  # other threads cannot see the current Dask client

    @property
    def npieces(self) -> int:
        return len(self._partitions)

    def read(self, piece: int, counts: RequestCounts | None = None) -> pa.Table:
        """Compute one partition. The requests of its tasks are not counted."""
        with calling(None):
            (frame,) = dask.compute(self._partitions[piece], scheduler=self._scheduler)
        return pandas_to_arrow.to_table(frame, self.schema, write_index=None, lossy="allow")


def _computed_partitions(frame: "dd.DataFrame", columns: list[str]) -> Any:
    for partition in frame[columns].to_delayed():
        with calling(None):
            found = dask.compute(partition)
        yield from found


@redact_errors
def _count_rows(partition: Partition) -> int:
    return int(partition.read().num_rows)


def fingerprint(dataset: ReadPlan, counts: Sequence[int]) -> str:
    """Hash the names, sizes and checksums of the files, the filters, and the number of rows of each piece."""
    start = len(dataset.store.join(""))
    splits = (split for piece in dataset.partitions for split in piece)
    files = [(split.file.path[start:], split.file.size, split.file.crc32c, split.start) for split in splits]
    return digest(files, counts, dataset.filters)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


Source: TypeAlias = DatasetSource | CollectionSource


def as_source(
    source: Any,
    columns: Any,
    blocksize: int,
    read: ReadKeywords,
    cache: BlockCache | None,
    version: int | None = None,
) -> Source:
    frames = sys.modules.get("dask.dataframe")  # a process that has collections has imported it
    if frames is not None and isinstance(source, frames.Series | frames.DataFrame):
        given = [name for name, value in {**read, "cache": cache}.items() if value is not None]
        if given:
            raise TFRecordError(f"{given[0]}= suits a path, not a Dask collection")
        return CollectionSource(source, columns)
    return DatasetSource(
        source, columns, blocksize, read if version is None else {**read, "version": version}, cache
    )


def with_cache(dataset: ReadPlan, cache: BlockCache | None) -> ReadPlan:
    """Return a plan that reads the content of files through a cache. Warn if the cache has no effect."""
    store = dataset.store
    if cache is None:
        return dataset
    if not store.is_remote or store.cache is not None:
        why = "the path already has a cache of fsspec" if store.is_remote else "the files are on a local disk"
        problem = f"cache= has no effect, because {why}"
        warn_caller(RemedyWarning(problem, [Remedy("cache", None, "read without a cache")]))
        return dataset
    cache.prepare()
    return replace(dataset, store=replace(store, block_cache=cache))


def check_label(label: str | None, schema: Schema) -> None:
    """Raise SchemaError if ``label=`` names no column of the schema."""
    if label is not None and label not in schema.names:
        problem = f"label={label!r} names no column; there are {', '.join(map(repr, schema.names))}"
        raise SchemaError(problem, did_you_mean(label, schema.names), feature=label, keyword="label")


def checked_names(columns: Any, label: str | None = None) -> list[str] | None:
    """Return the names in ``columns=`` and the label, or None for all columns."""
    check_instance("label", label, str, type(None))
    if columns is None:
        return None
    names = arguments.names("columns", columns)
    if not names:
        remedy = Remedy("columns", None, "read all columns")
        raise SchemaError("columns= names no column", remedy)
    if len(set(names)) < len(names):
        remedy = Remedy("columns", list(dict.fromkeys(names)), "read each column once")
        problem = "columns= names a column more than once"
        raise SchemaError(problem, remedy, keyword="columns")
    return names if label is None or label in names else [*names, label]


def usable_after_fork(dataset: ReadPlan) -> ReadPlan:
    """Return a plan with a new filesystem, because filesystems of object stores do not survive a fork."""
    return replace(dataset, store=pickle.loads(pickle.dumps(dataset.store)))
