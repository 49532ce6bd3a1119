"""Write a stream of tables in one or several commits, in this process and without Dask.

The stream is the only partition of the write, and each table adds files to it. A write with one commit may
shuffle the rows. Because the number of tables is known only at the end of the stream, a shuffle first writes
the rows of each table, in order, to a spill file. It then divides them among as many target partitions as
there were tables, in the second of the two rounds that `dask_tfrecord.dataset.shuffle.spill` describes.

The caller of an `Appender` passes tables, and decides when to commit. Each commit is one run, whose rows wait
first in memory and then in staged files.
"""

import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.partitioning import directory_groups, group
from dask_tfrecord.dataset.shuffle.merge import regroup, write_target
from dask_tfrecord.dataset.shuffle.spill import Route, Shuffle, Spill, source_of, spill_unsorted
from dask_tfrecord.dataset.snapshot.entry_log import CommitId
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.versions import LostListError
from dask_tfrecord.dataset.write.operations import Append
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import (
    Transaction,
    discard,
    discard_uncommitted,
    is_repeated,
    log_repeated,
    remove_replaced,
)
from dask_tfrecord.errors import SchemaError, TFRecordError, located
from dask_tfrecord.files.entry import FileEntry, check_labels
from dask_tfrecord.storage.redaction import hide_secrets
from dask_tfrecord.storage.store import Store

logger = logging.getLogger(__name__)

# Waiting rows are written to a staged file once they use this many bytes of memory, even if ``max_bytes``
# allows larger files.
_WAITING_BYTES = 1 << 27


class Appender:
    """Collect rows and metadata for the next commit, and commit them as one append.

    The caller must set ``plan`` before adding the first row. Each commit uses a copy of ``plan`` with a new
    run id.
    """

    def __init__(self, store: Store, operation: Append) -> None:
        self._store, self.head = store, Head.read(store, reads_files=True)
        self._operation = operation
        self.plan: WriteRun | None = None
        self.metadata: dict[str, str] = {}
        self.write_id: str | None = None
        self.commits = self.committed_rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._run: WriteRun | None = None
        self._new_run()

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest version of the dataset that the `Appender` has read or created, if any."""
        return self.head.snapshot

    @property
    def rows(self) -> int:
        """The number of rows that were added since the last commit."""
        return sum(entry.records for entry in self._entries) + sum(map(len, self._waiting))

    @property
    def bytes(self) -> int:
        """The size in memory, in bytes, of the rows that were added since the last commit."""
        return self._staged_bytes + self._waiting_bytes

    def widen(self, plan: WriteRun) -> None:
        """Set the plan of the next runs. In the current run, columns with only nulls get the types of the
        plan.

        The plan is copied, because it contains categories that the caller of `Writer` may later change in
        place.
        """
        if plan is self.plan:
            return
        self.plan = plan = pickle.loads(pickle.dumps(plan))
        if self._run is not None and not self._is_committing:
            self._run = replace(self._run, schema=plan.schema)

    def add(self, tables: Sequence[pa.Table], metadata: Mapping[str, str]) -> None:
        """Copy rows and their metadata for the next commit. The tables must have the columns of the plan."""
        copies = [_copied(table) for table in tables if len(table)]
        self._waiting += copies
        self._waiting_bytes += sum(table.nbytes for table in copies)
        self.metadata |= metadata

    def stage_full_files(self) -> None:
        """If many rows are waiting in memory, write some or all of them to staged files.

        If writing fails, the unwritten rows stay in memory, and the next call tries again.
        """
        if self._waiting and self._waiting_bytes >= self._limit:
            self._stage(self._limit)

    def commit(self) -> Snapshot | None:
        """Commit the rows and the metadata that were added since the last commit, if there are any.

        Return the version that contains them, or the newest known version if there are none. If ``write_id``
        is the id of a known commit, drop the rows and the metadata, and return the version of that commit.

        If the commit fails, no row and no metadata is lost, and the next call tries again. A `TFRecordError`
        means that trying again cannot succeed.
        """
        if self.write_id is not None and not self._is_committing:
            with suppress(LostListError):  # the commit looks again
                if (past := self.head.commit_of("", write_id=self.write_id)) is not None:
                    return self._forget(past)
        done = self._stage()
        if self._entries or self.metadata:
            self._run = replace(self._begin(), custom_metadata=self.metadata, write_id=self.write_id)
            self.metadata = {}
            done = self._commit_run()
        self.write_id = None
        return done or self.snapshot

    def _forget(self, past: CommitId) -> Snapshot:
        """Drop the rows and the metadata that were added since the last commit, because an earlier commit has
        their id.
        """
        if self._run is not None:
            discard(self._run)
        self._waiting, self._waiting_bytes, self.metadata = [], 0, {}
        self._new_run()
        self.write_id = None
        log_repeated(self._store, past.write_id, past.number)
        return self.head.version_of(self._store, past)

    def drop(self) -> None:
        """Remove the files of the current run, unless the commit of the run has succeeded."""
        run = self._run
        if run is not None and self._is_committing:
            with suppress(Exception):  # ignore this error, because the caller reports that the commit failed
                head = Head.read(run.store)
                if head.commit_of(run.run, run.base) is not None:
                    self.head = head
                    remove_replaced(run.store, run.run)
                    self._count_commit()
            if self._is_committing:
                discard_uncommitted(run)
        elif run is not None:
            discard(run)

    def _new_run(self) -> None:
        """Forget the files of the last run. The next file that is written begins a new run."""
        self._run = None
        self._entries: list[FileEntry] = []
        self._staged_bytes = 0
        self._is_committing = False

    def _begin(self) -> WriteRun:
        if self._run is None:
            assert self.plan is not None  # the caller has set the plan
            self._run = replace(self.plan, run=uuid4().hex, head=self.head)
            # Use the newest list of columns for column files, because another write may have changed it.
            if self.snapshot is not None and not self._operation.sets_columnar:
                self._run = replace(self._run, columnar=self.snapshot.columnar)
        return self._run

    @property
    def _limit(self) -> int:
        assert self.plan is not None  # the caller has set the plan
        return min(self.plan.options.max_bytes or _WAITING_BYTES, _WAITING_BYTES)

    def _stage(self, least: int = 0) -> Snapshot | None:
        """Move rows from memory to staged files, which readers do not see before the commit, until fewer than
        ``least`` bytes of rows remain in memory. Return the version of a commit that failed before, if any.
        """
        # Files that are added to a run after the commit would be lost.
        done = self._commit_run() if self._is_committing else None
        while self._waiting and self._waiting_bytes >= least:
            ends = np.cumsum([table.nbytes for table in self._waiting])
            count = int(np.searchsorted(ends, self._limit)) + 1
            tables, size = self._waiting[:count], int(ends[:count][-1])
            run = self._begin()
            first = sum(entry.records for entry in self._entries)
            title = f"{run.store.public()}, rows since the last commit"
            with located(path=title, first=first):
                rows = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
                written = run.write(rows, 0, 1, len(self._entries))
            self._entries += written
            self._staged_bytes += size
            del self._waiting[:count]
            self._waiting_bytes -= size
        return done

    def _commit_run(self) -> Snapshot:
        """Commit the files of the current run. A repeated call commits the same files only once."""
        assert self._run is not None  # `commit` has begun the run
        self._is_committing = True
        run, entries = self._run, self._entries
        transaction = Transaction(run, self._operation, entries, head=self.head, is_alone=True)
        try:
            done = transaction.commit()
        except TFRecordError:
            raise
        except Exception as error:  # a second attempt often succeeds, and detects if the first one did
            logger.info("%s: the commit failed: %s", run.title, hide_secrets(repr(error), run.store))
            done = transaction.commit()
        self.head = transaction.head
        if is_repeated(run, done):
            self._new_run()
        else:
            self._count_commit()
        return done

    def _count_commit(self) -> None:
        self.commits += 1
        self.committed_rows += sum(entry.records for entry in self._entries)
        self._new_run()


def _copied(table: pa.Table) -> pa.Table:
    """Copy a table, because the caller may change its memory. Serialization in Arrow's stream format copies
    both values and categories.
    """
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table.unify_dictionaries())
    return pa.ipc.open_stream(stream.getvalue()).read_all()


def check_values(run: WriteRun, tables: Sequence[pa.Table], title: str) -> None:
    """Raise SchemaError if a record or a directory name cannot store a value.

    Rows that pass the check can safely wait for the next commit together with other rows. The error names
    ``title`` instead of a path. For a value that a record cannot store, the error also states the index of
    its row in the concatenated ``tables``.
    """
    first, keys = 0, run.partition_on
    for table in tables:
        if keys and len(table):
            with located(path=title):
                directory_groups(group(table, keys), keys, max_directories=run.max_directories)
        for batch in table.select(run.schema.names).to_batches():
            with located(path=title, first=first):
                stored = run.schema.to_storage(batch, lossy=run.options.lossy)
            if run.schema.record_type == "bytes" and stored.column(0).null_count:
                row = pc.index(stored.column(0).is_null(), True).as_py()
                problem, advice = "a record cannot be null", 'drop the row or fill it with b""'
                name = run.schema.names[0]
                raise SchemaError(problem, advice, path=title, record=first + row, feature=name)
            first += batch.num_rows


# About this many bytes of Arrow data are written together.
_CHUNK_BYTES = 1 << 25


def write_tables(run: WriteRun, tables: Iterable[pa.Table], title: str) -> list[FileEntry]:
    """Write the rows of a stream in their order. Return the entries of the written files.

    An error about a value states the index of the row in the stream, and uses ``title`` as the path.
    """
    entries: list[FileEntry] = []
    first = 0
    for table in _chunks(run, tables, run.options.max_rows):
        with located(path=title, first=first):
            entries += run.write(table, 0, 1, len(entries))
        first += table.num_rows
    return entries


def write_shuffled(
    run: WriteRun, tables: Iterable[pa.Table], title: str, shuffle: Shuffle
) -> list[FileEntry]:
    """Shuffle the rows of a stream, and then write them like `write_tables`."""
    starts: list[int] = [0]
    unsorted: list[Spill] = []
    for table in _chunks(run, tables, None):
        unsorted.append(spill_unsorted(run, table, len(unsorted)))
        starts.append(starts[-1] + table.num_rows)
    count = len(unsorted)
    if run.label is not None:
        check_labels([run.label(index) for index in range(count)])
    shuffle = shuffle._replace(npartitions=count)
    route = Route(groups=1, width=count, chunk=1, chunks=count)
    spills: list[Spill] = []
    for one in unsorted:
        spills += regroup(run, [one], 0, shuffle, route)
        run.store.remove([run.store.join(one.path)])
    entries: list[FileEntry] = []
    for index in range(count):
        try:
            entries += write_target(run, spills, index, shuffle, route)
        except TFRecordError as error:
            if error.record is None:
                raise
            source, row = source_of(error.record)
            raise error.replaced(record=starts[source] + row, path=title) from None
        pa.default_memory_pool().release_unused()
    return entries


def _chunks(run: WriteRun, tables: Iterable[pa.Table], max_rows: int | None) -> Iterator[pa.Table]:
    """Concatenate tables into larger tables of about `_CHUNK_BYTES` bytes. If there are no rows, yield one
    empty table.

    If ``max_rows`` limits the rows per file, the larger tables end at file boundaries where possible.
    """
    waiting = [pa.Table.from_batches([run.columns.no_rows()])]
    size = 0
    for table in tables:
        waiting.append(table)
        size += table.nbytes
        if size >= _CHUNK_BYTES:
            chunk = pa.concat_tables(waiting)
            end = len(chunk) - len(chunk) % (max_rows or 1) or len(chunk)
            yield chunk.slice(0, end)
            rest = chunk.slice(end)
            waiting, size = ([rest], rest.nbytes) if len(rest) else ([], 0)
    if waiting:
        yield pa.concat_tables(waiting)
