"""Implement `iter_batches`: Arrow record batches of an exact size, with shuffling, sharding and resuming.

The data of a source is read in pieces, such as blocks of files. With ``shuffle``, the pieces are shuffled
first, and then the rows within each window of several pieces. A shard is a range of positions in the row
order of an epoch, or with ``elastic``, some of the sequences into which the order is divided. The position
of an iteration consists of the rows of each sequence that remain. The permutation of a window depends only on
the seed, the epoch and the position of the window, so any process can continue any window.
"""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import RLock
from time import perf_counter
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, Unpack, get_args

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import Ints
from dask_tfrecord.errors import FileChangedError, Remedy, TFRecordError, check_instance, counted, short_list
from dask_tfrecord.feed.batch_statistics import BatchStatistics, Counters
from dask_tfrecord.feed.numpy_columns import one_chunk
from dask_tfrecord.feed.rows.epoch_order import (
    BATCH_ROWS,
    Fraction,
    Plan,
    Span,
    check_batch_size,
    checked_shard,
    plan_batches,
)
from dask_tfrecord.feed.rows.mixed_source import MixedSource, is_mixture
from dask_tfrecord.feed.rows.mixtures import MixedRows
from dask_tfrecord.feed.rows.resume_position import (
    State,
    Steps,
    begin,
    checked_states,
    describe,
    steps_of,
    stored_spans,
)
from dask_tfrecord.feed.rows.sequence_reader import Position, SequenceReader, beginning_of
from dask_tfrecord.feed.rows.sources import DatasetSource
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import BatchKeywords, BatchMode, LastBatch, Uneven
from dask_tfrecord.keywords.public_functions import calling, public_function

Element = TypeVar("Element")
# A batch, and the position after it.
_Positioned: TypeAlias = tuple[pa.Table, "_At"]


class _At(NamedTuple):
    """A position of an iteration: after ``taken()`` rows of each sequence, and before ``skip`` batches of
    other parts. ``is_over`` is True if no batch follows in any part.
    """

    position: Position
    taken: Callable[[], Ints]  # a function, because few positions are asked for their rows
    skip: int
    is_over: bool

    @property
    def remaining(self) -> list[list[Span]]:
        spans = [spans for _, spans in self.position.remaining(self.taken())]
        return [[] for _ in spans] if self.is_over else spans


@public_function
def iter_batches(
    source: Any,
    batch_size: int = BATCH_ROWS,
    *,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    epoch: int = 0,
    shard: tuple[int, int] = (0, 1),
    uneven: Uneven = "keep",
    start: State | Sequence[State] | None = None,
    **keywords: Unpack[BatchKeywords],
) -> "Batches":
    """Iterate over a dataset or a Dask collection as Arrow record batches.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series, or dict
        A path that `read_tfrecord` accepts, any Dask collection, or the sources of a mixture as in `mix`.

        The partitions of a collection are computed one after the other, while the batches are used. A task of
        a Dask cluster that calls this function leaves the thread pool of its worker (``distributed.secede``),
        so that the partitions find a free thread.
    batch_size : int, default 1024
        The number of rows in each batch, which may come from several files.
    columns : str or list of str, optional
        The columns to read, in this order. By default, all columns are read.
    batch_mode : "keep", "drop" or "auto", default "keep"
        What to do with an incomplete last batch: "keep" returns it, and "drop" omits it. "auto" returns
        batches of any size, as the rows are read.
    shuffle : bool, "buffer" or "blocks", optional
        How the rows are shuffled. By default, they are not.

        True and "buffer" shuffle the blocks of the files, and then the rows within each shuffle buffer.
        "blocks" shuffles the rows of up to 24 blocks together, of about 1 MiB each. It takes less memory, but
        a batch mixes rows of only these blocks. It needs a path, and gives the order of
        `RecordTable.block_order`.
    seed : int, default 0
        The seed of the row order, which also depends on ``epoch``.
    shuffle_buffer : int, default 65536
        The number of rows that are shuffled together, or fewer if they take more than 256 MiB.

        In that case, the first four buffers of an epoch contain about 16, 32, 64 and 128 MiB, so that the
        first batch comes early. The buffer stores undecoded records, which are decoded batch by batch. It
        stores decoded rows if the source is a Dask collection, if ``filters`` or ``on_corrupt`` exclude rows,
        or if ``columns`` leaves out a column of lists or bytes.
    epoch : int, default 0
        The epoch, counted from 0. With ``shuffle``, each epoch has a different row order.
    shard : tuple of int, default (0, 1)
        The index of the shard to return, counted from 0, and the number of shards. By default, every row is
        in exactly one shard, and the sizes of the shards differ by at most one row. The shards of a Dask
        collection consist of whole partitions.
    uneven : "keep", "drop" or "pad", default "keep"
        What to do if the rows cannot be divided equally among the shards. "keep" makes some shards one row
        longer. "drop" omits the extra rows, and "pad" repeats rows of neighbouring shards, so that all have
        the same length. "pad" may repeat more rows if an iteration resumes with another number of shards, but
        fewer than there are new shards. A Dask collection allows only "keep".
    elastic : int, optional
        Divide the rows into this number of sequences, so that the batches of all shards together contain the
        same rows at every step, for any number of shards ``k`` that divides ``elastic``.

        Shard ``r`` reads the sequences ``r``, ``r + k``, ..., with equally many rows of each in a batch, so
        ``batch_size`` must be a multiple of ``elastic // k``. Keep ``batch_size * k`` the same for all ``k``.
        An iteration may then resume with a different number of shards, at the same step. ``uneven`` says what
        to do if the sequences have unequal lengths. ``batch_mode="drop"`` omits the same rows for each ``k``.
        ``shuffle_buffer`` is divided among the sequences. ``elastic`` needs a path.
    prefetch : int or str, optional
        How far threads read ahead: a number of blocks or partitions, or their size in memory, such as
        "256 MiB". With 0, the calling thread reads the data.

        The default is 2 blocks, or 64 MiB of a remote store, and then up to 256 MiB until the next shuffle
        buffer is complete; for local files whose buffers take less than 32 MiB, it is 2 blocks. Local files
        and partitions are read by 2 threads, and a remote store by up to 16, each with one or several
        requests. A number ``n`` also limits the threads to ``n``. A process uses up to 32 connections to S3.
    cache : str or path-like, optional
        A directory on a local disk in which the blocks of remote files are kept, for later epochs and other
        processes of the machine.
    cache_bytes : int or str, optional
        The maximum size of ``cache``, in bytes or as text such as "100 GiB". By default, three quarters of
        the free disk.
    until : "first", "all" or int, optional
        Where an epoch of a mixture ends, as in `mix`. For other sources, only None is allowed.
    start : dict or list of dict, optional
        The `Batches.state` of an earlier iteration of the same epoch, after which this one continues. If the
        number of shards has changed, pass a list of the states of all shards, whose remaining rows are
        divided among the new ones.

        ``batch_size`` may change, but not the columns and the shuffle. If the state belongs to an older
        version of the dataset, the iteration reads that version. It raises if ``version`` selects another.
    **read
        Keywords of `read_tfrecord` that control what is read from a path, such as ``schema``, ``filters`` and
        ``version``. ``max_corrupt`` applies to each block separately. If ``filters`` or ``on_corrupt``
        exclude rows, the others are first counted, from the columns of the filter, or from all columns if
        damage is skipped.

    Returns
    -------
    Batches
        An iterator of `pyarrow.RecordBatch`. After each batch, `Batches.state` is the position of the
        iteration.

    Raises
    ------
    TFRecordError
        If an argument has a wrong type or value, or if there are more shards than rows. If ``start`` was
        saved with another dataset or other arguments, or lacks the state of a shard.
    FileChangedError
        If a file was rewritten after the call of `iter_batches`.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> ddf = dd.from_dict({"x": list(range(5))}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "numbers")
    >>> for batch in dask_tfrecord.open_dataset("numbers").batches(2):
    ...     print(batch["x"].to_pylist())
    [0, 1]
    [2, 3]
    [4]
    """
    check_batch_size(batch_size, batch_mode)
    plan = plan_batches(
        source,
        batch_size,
        surface=iter_batches,
        columns=columns,
        batch_mode=batch_mode,
        uneven=uneven,
        **keywords,
    )
    return Batches(plan, epoch, shard, start=start)


@public_function
def mix(
    sources: Mapping[Any, float] | Sequence[tuple[Any, float]],
    batch_size: int = BATCH_ROWS,
    *,
    columns: str | Sequence[str] | None = None,
    batch_mode: LastBatch = "keep",
    epoch: int = 0,
    shard: tuple[int, int] = (0, 1),
    start: State | Sequence[State] | None = None,
    **keywords: Unpack[BatchKeywords],
) -> "Batches":
    """Iterate over a mixture: the rows of several datasets, in fixed proportions.

    After any number of rows, each source has contributed its share to within one row, or to within two rows
    in each of several shards or sequences. The order of the sources depends only on the weights, and with
    several shards or sequences also on ``seed`` and ``epoch``. The loaders accept the same mapping instead of
    a path.

    Parameters
    ----------
    sources : dict, or list of tuple
        Maps each source to its weight: a share such as 0.7, or a number of rows. A source is a path, a tuple
        of paths, a `Dataset`, or an unread result of `iter_batches` with its own columns, filters and shuffle
        (its ``batch_size``, ``batch_mode`` and ``prefetch`` have no effect). All must have the same columns
        and types. Pass a list of pairs ``(source, weight)`` if a source cannot be a key of a dict.
    batch_size : int, default 1024
        Number of rows in each batch. A batch contains rows of all sources.
    columns : str or list of str, optional
        The columns to read from each path. By default, all columns are read.
    batch_mode : "keep" or "drop", default "keep"
        What to do with an incomplete last batch: "keep" returns it, and "drop" omits it.
    until : "first", "all" or int, default "first"
        Where an epoch ends. "first" ends it before the first source would run out of rows, so that no row is
        repeated. "all" ends it when every row of every source was returned. A source that has no more rows
        starts again, in a different order if it is shuffled. An integer is the number of rows of the epoch,
        rounded down to a multiple of the number of shards, or of ``elastic``.
    shuffle, seed : optional
        How the rows of each path are shuffled, as in `iter_batches`. The order of each source depends on
        ``seed``, on its index and on ``epoch``. Without a shuffle, each epoch begins with the same rows, even
        if it ends before all rows were returned.
    shuffle_buffer, prefetch : optional
        These parameters have the same meaning as in `iter_batches`. The sources share the rows of the
        shuffle buffer, and the limits of the memory, in proportion to their weights.
    epoch : int, default 0
        The epoch, counted from 0.
    shard : tuple of int, default (0, 1)
        The index of the shard to return, counted from 0, and the number of shards. All shards have the same
        number of rows. Each shard keeps the proportions within two rows, and begins at another turn of the
        sources. ``uneven`` has no effect.
    elastic : int, optional
        Divide the mixture into this number of sequences, as in `iter_batches`. Each sequence is a mixture of
        one sequence of each source, and keeps the proportions within two rows. Without ``elastic``, each
        shard is a sequence.
    start : dict or list of dict, optional
        The `Batches.state` of an earlier iteration of the same epoch, or a list of the states of all shards,
        as in `iter_batches`. The sources and weights must not change. If the state belongs to an older
        version of a source, the iteration continues with that version. To continue with a different number of
        shards, pass ``elastic``.
    **read
        Keywords of `read_tfrecord` that control what is read from each path. They do not change a source that
        is a feed.

    Returns
    -------
    Batches
        An iterator of `pyarrow.RecordBatch`. `Batches.drawn` counts the rows of each source.

    Raises
    ------
    SchemaError
        If the sources have different columns or types.
    TFRecordError
        If a source, a weight or another argument is wrong.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> from dask_tfrecord.feed import mix
    >>> for name, first in {"web": 0, "books": 100}.items():
    ...     ddf = dd.from_dict({"x": list(range(first, first + 9))}, npartitions=1)
    ...     _ = dask_tfrecord.to_tfrecord(ddf, name)
    >>> batches = mix({"web": 0.75, "books": 0.25}, 4)
    >>> for batch in batches:
    ...     print(batch["x"].to_pylist())
    [0, 1, 100, 2]
    [3, 4, 101, 5]
    [6, 7, 102, 8]
    >>> batches.drawn
    {'web': 9, 'books': 3}
    """
    check_instance("sources", sources, Mapping, list, tuple)
    check_batch_size(batch_size, batch_mode)
    arguments.choice("batch_mode", batch_mode, get_args(LastBatch))
    if not is_mixture(sources):
        problem = "sources= is neither a dict nor a list of pairs of a source and its weight"
        raise TFRecordError(problem, 'pass for example {"train": 0.7, "other": 0.3}')
    plan = plan_batches(sources, batch_size, surface=mix, columns=columns, batch_mode=batch_mode, **keywords)
    return Batches(plan, epoch, shard, start=start)


class Batches:
    """Iterate over Arrow record batches. `iter_batches` returns this iterator, which threads may share.

    It exports the remaining rows as an Arrow stream (``__arrow_c_stream__``) of batches of any size, so
    ``pyarrow.table(batches)``, ``polars.DataFrame(batches)`` and others can read them once.

    Parameters
    ----------
    plan : Plan
        The opened source and the options of the batches.
    epoch, shard, start
        These parameters have the same meaning as in `iter_batches`.
    part : tuple of int, default (0, 1)
        The index of the part to return, counted from 0, and the number of parts into which the shard is
        divided. If the source is a path, each part ends between two batches, so that all parts together have
        as many batches as the shard. A part may be empty.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of every batch.
    rows : int or None
        The number of rows that the iteration returns from ``start`` on. None for a Dask collection, whose
        rows are not counted.
    """

    def __init__(
        self,
        plan: Plan,
        epoch: int = 0,
        shard: tuple[int, int] = (0, 1),
        part: tuple[int, int] = (0, 1),
        start: State | Sequence[State] | None = None,
    ) -> None:
        check_instance("plan", plan, Plan)
        arguments.number("epoch", epoch, 0)
        shard = checked_shard(shard)
        states: list[State] = []
        if start is not None:
            plan, states = checked_states(plan, start, epoch)
        self._plan = plan
        rows_of = MixedRows if isinstance(plan.source, MixedSource) else _EpochRows
        self._rows: MixedRows | _EpochRows = rows_of(plan, epoch, shard, part, states)
        self._at: Any = self._rows.start  # only `_rows` knows what a position contains
        self._is_whole = (start, plan.elastic, shard, part, epoch) == (None, None, (0, 1), (0, 1), 0)
        self._lock, self._process = RLock(), os.getpid()
        self._closed = False
        self._ended = False
        self._streamed = False
        self._counters = Counters()
        self._tables: Generator[tuple[pa.Table, Any], None, None] | None = None
        self.schema: pa.Schema = plan.source.schema.arrow
        self.rows = self._rows.steps.rows

    def __repr__(self) -> str:
        rows = "rows not counted" if self.rows is None else counted(self.rows, "row")
        of_path = "" if self._root is None else f"{self._root!r}, "
        return f"Batches({of_path}{rows}, columns: {short_list(self.schema.names)})"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self._next_element(lambda table: as_batch(table, self.schema))

    def _next_element(self, convert: Callable[[pa.Table], Element]) -> Element:
        """Convert the next batch.

        If the read or the conversion raises, the batch does not count as returned.
        """
        self._notice_fork()
        with self._lock:
            at, start = self._at, perf_counter()
            try:
                with calling(self._plan.surface):
                    table = self._advance()
                    element = _converted(convert, table)
                self._counters.add_batch(table.num_rows, start)
            except StopIteration:
                raise
            # An interrupt can occur at any line. The next call returns the rows of the interrupted one.
            except BaseException:
                self._stop()
                self._at = at
                raise
            return element

    def _notice_fork(self) -> None:
        """In a forked process, start reading ahead again, because threads do not survive a fork."""
        if os.getpid() != self._process:
            self._lock, self._tables, self._counters = RLock(), None, Counters()
            self._process = os.getpid()

    def _next_table(self) -> pa.Table:
        """Return the next batch as a table.

        Rows from different pieces stay in separate chunks of the table.
        """
        return self._next_element(lambda table: table)

    def _advance(self) -> pa.Table:
        if self._closed:
            raise StopIteration
        if self._tables is None:
            self._tables = self._rows.tables(self._at, self._counters)
        found = next(self._tables, None)
        if found is None:
            self._ended = True
            raise StopIteration
        table, self._at = found
        return table

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the remaining rows as an Arrow stream. Only the first call succeeds.

        If the iterator is closed before the stream ends, the stream raises TFRecordError.
        """
        with self._lock, calling(self._plan.surface):
            if self._streamed or self._closed or self._ended:
                problem = "the rows of this iterator were already read, and can be read only once"
                raise TFRecordError(problem, "call iter_batches again")
            self._streamed = True
        reader = pa.RecordBatchReader.from_batches(self.schema, self._remaining())
        return reader.__arrow_c_stream__(requested_schema)

    def _remaining(self) -> Iterator[pa.RecordBatch]:
        with suppress(StopIteration):
            while True:
                yield from self._next_table().to_batches()
        if not self._ended:
            problem = "the iterator was closed before all rows of its Arrow stream were read"
            raise TFRecordError(problem, "read the stream first, and close the iterator afterwards")

    def __len__(self) -> int:
        """Return the number of batches from ``start`` on.

        If the number of batches is unknown, raise TypeError.
        """
        if self._rows.steps.batches is None or self._plan.batch_mode == "auto":
            raise TypeError("the number of batches is not known")
        batches: int = self._rows.steps.batches
        return batches

    @property
    def state(self) -> dict[str, Any]:
        """The rows that remain, as a dict that can be stored as JSON.

        To resume, pass the dict as ``start=``, or a list of the dicts of all shards.
        """
        return self._rows.state(self._at)

    @property
    def is_empty(self) -> bool:
        """True if the iteration is known to return no batch."""
        if self._rows.steps.batches is None:
            return not any(self.state["remaining"])
        return self._rows.steps.batches == 0

    @property
    def statistics(self) -> BatchStatistics:
        """The cost of the iteration so far: seconds of waiting, and bytes received and ready.

        The counts start again in a forked process. If the program waits for batches in over a fifth of the
        time, the cause is logged, at most every ten seconds.
        """
        return self._counters.statistics()

    @property
    def _root(self) -> Any:
        """The path of the dataset, by which a mixture names this source."""
        source = self._plan.source
        return source.dataset.store.public() if isinstance(source, DatasetSource) else None

    @property
    def drawn(self) -> dict[str, int]:
        """How many rows of each source of a mixture the batches so far contain.

        Raises
        ------
        TFRecordError
            If the source is not a mixture.
        """
        if not isinstance(self._rows, MixedRows):
            raise TFRecordError("drawn counts the rows of the sources of a mixture", "call feed.mix")
        return self._rows.drawn(self._at)

    def _plan_of_source(self) -> Plan:
        """Return the plan, for a mixture that has this iterator as a source.

        Raise if the iterator returns only some of the rows, or has already returned some.
        """
        if not self._is_whole or self._at is not self._rows.start:
            problem = "the feed has epoch=, shard=, elastic= or start=, or was read already"
            raise TFRecordError(problem, "pass a new feed without these arguments")
        return self._plan

    def close(self) -> None:
        """Stop reading ahead, and end the iteration. A closed iterator returns no more batches."""
        self._closed = True
        self._notice_fork()
        # `close` never waits for the lock: when Python exits, a thread that holds the lock is frozen.
        if self._lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _stop(self) -> None:
        """Drop the rows that were read ahead. The position of the iteration does not change."""
        if self._tables is not None:
            self._tables.close()
        self._tables = None


# The generators below do not refer to a `Batches` object, so deleting it ends their threads.


class _EpochRows:
    """The rows of one source that a part of a shard returns in an epoch, after ``states``."""

    def __init__(
        self, plan: Plan, epoch: int, shard: Fraction, part: Fraction, states: Sequence[State]
    ) -> None:
        self._plan, self._epoch, self._order = plan, epoch, plan.order(epoch)
        self._beginning = begin(plan, self._order, shard, part, states)
        self.steps = steps_of(plan, self._order, self._beginning)
        none = np.zeros(len(self._beginning.sequences), np.int64)
        position = beginning_of(self._beginning.sequences)
        self.start = _At(position, lambda: none, self._beginning.skip, self.steps.count == 0)

    def state(self, at: _At) -> State:
        remaining = [stored_spans(spans) for spans in at.remaining]
        return describe(self._plan, self._epoch, self._beginning, remaining, at.skip)

    def tables(self, at: _At, counters: Counters) -> Generator[_Positioned, None, None]:
        """Yield the batches after a position, each batch with the position after its last row."""
        plan, order = self._plan, self._order
        begun = replace(self._beginning, sequences=at.remaining, skip=at.skip)
        chains = [[(order, spans)] for spans in begun.sequences]
        with SequenceReader(plan.source, plan.prefetch, chains, counters) as reader:
            if plan.batch_mode == "auto" or not order.is_counted:
                yield from _one_by_one(plan, reader)
            else:
                yield from _in_steps(reader, steps_of(plan, order, begun))


def _one_by_one(plan: Plan, reader: SequenceReader) -> Generator[_Positioned, None, None]:
    """Yield the batches of one sequence whose rows are not counted, or batches of any size."""
    while True:
        wanted = 1 if plan.batch_mode == "auto" else plan.batch_size
        ready = int(reader.ready(np.array([wanted]))[0])
        count = reader.rows_of_window if plan.batch_mode == "auto" else min(wanted, ready)
        if not count or (count < wanted and plan.batch_mode == "drop"):
            return
        position = reader.position
        table = reader.take(np.array([[count]]))
        yield table, _At(position, reader.taken.copy, 0, False)
        del table


def _in_steps(reader: SequenceReader, steps: Steps) -> Generator[_Positioned, None, None]:
    """Yield the batches of sequences whose rows are counted. The rows of several batches are decoded
    together.
    """
    assert steps.count is not None
    assert steps.left is not None
    step, own = 0, steps.skip
    while own < steps.count:
        before = reader.taken
        together = max(1, reader.rows_together // (steps.size * len(before)))
        last = min(own + (together - 1) * steps.stride + 1, steps.count)
        after = before + reader.ready(steps.taken(own + 1) - before, steps.taken(last) - before)
        # The number of steps whose rows are ready.
        ready = int(np.where(after < steps.left, after // steps.size, steps.count).min())
        if ready <= own:
            raise FileChangedError("a file has fewer rows than when the dataset was opened", path=reader.path)
        together = max(1, reader.rows_together // (steps.size * len(after)))
        following = range(own, min(ready, own + together * steps.stride), steps.stride)
        numbers = np.arange(step, following[-1] + 1)
        counts = steps.counts(numbers)
        is_kept = None if steps.stride == 1 else (numbers - own) % steps.stride == 0
        position, start = reader.position, 0
        table = reader.take(counts, is_kept)
        step, own = following[-1] + 1, following[-1] + steps.stride
        for number, size in zip(
            following, counts.sum(axis=1)[np.array(following) - numbers[0]].tolist(), strict=True
        ):
            at = _At(position, partial(steps.taken, number + 1), steps.stride - 1, number + 1 >= steps.count)
            yield table.slice(start, size), at
            start += size
        del table


def _converted(convert: Callable[[pa.Table], Element], table: pa.Table) -> Element:
    try:
        return convert(table)
    except StopIteration as error:  # the caller would mistake StopIteration for the end of the batches
        raise RuntimeError("the conversion of a batch raised StopIteration") from error


def as_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a table to one record batch. A column with a single chunk is not copied."""
    batches = table.to_batches()  # this call is five times faster than the code below
    if len(batches) == 1:
        return batches[0]
    try:
        columns = [one_chunk(column) for column in table.columns]
    except pa.ArrowInvalid as error:
        raise TFRecordError(
            f"a batch of {table.num_rows:,} rows does not fit in an Arrow array: {error}",
            Remedy("batch_size", max(1, table.num_rows // 2), "read smaller batches"),
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)
