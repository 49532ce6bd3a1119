"""Write a stream of tables in this process, without Dask. The rows may be shuffled on the way.

The number of tables is known only at the end of the stream. Therefore the stream is the only partition of the
write, and each table adds files to this partition. A shuffle first writes the rows of each table to a spill
file in their order. At the end of the stream, the shuffle divides the rows among as many target partitions as
there were tables, in the second of the two rounds that `dask_tfrecord.dataset.shuffle.spill` describes.
"""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from dask_tfrecord.dataset.shuffle.merge import regroup, write_target
from dask_tfrecord.dataset.shuffle.route import Route, Shuffle
from dask_tfrecord.dataset.shuffle.spill import Spill, source_of, spill_unsorted
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import TFRecordError, located
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.part_names import check_labels

# The number of bytes of Arrow data that are written together.
_CHUNK_BYTES = 1 << 25

# Function that takes the files that were just written, the number of the chunk of rows, the number of all
# chunks (0 if the number is not known), the number of the step of the write, and the number of all steps.
Note = Callable[[list[FileEntry] | list[Spill], int, int, int, int], None]


def write_tables(run: WriteRun, tables: Iterable[pa.Table], title: str, note: Note) -> list[FileEntry]:
    """Write the files of a stream, and return their entries. The rows keep their order.

    Raises
    ------
    TFRecordError
        If a value cannot be stored. The error has the number of the row in the stream, and ``title`` as its
        path.
    """
    entries: list[FileEntry] = []
    first = 0
    for number, table in enumerate(_chunks(run, tables, run.options.max_rows)):
        with located(path=title, first=first):
            written = list(run.write(table, 0, 1, len(entries)))
        first += table.num_rows
        entries += written
        note(written, number, 0, 1, 1)
    return entries


def write_shuffled(
    run: WriteRun, tables: Iterable[pa.Table], title: str, note: Note, shuffle: Shuffle
) -> list[FileEntry]:
    """Write the files of a stream whose rows move between the files, as `write_tables` does otherwise."""
    starts: list[int] = [0]
    unsorted: list[Spill] = []
    for table in _chunks(run, tables, None):
        unsorted.append(spill_unsorted(run, table, len(unsorted)))
        starts.append(starts[-1] + table.num_rows)
        note(unsorted[-1:], len(unsorted), 0, 1, 3)
    count = len(unsorted)
    if run.label is not None:
        check_labels([run.label(index) for index in range(count)])
    shuffle = shuffle._replace(npartitions=count)
    route = Route(groups=1, width=count, chunk=1, chunks=count)
    spills: list[Spill] = []
    for number, one in enumerate(unsorted):
        spills += regroup(run, [one], 0, shuffle, route)
        run.store.remove([run.store.join(one.path)])
        note([one], number, count, 2, 3)
    entries: list[FileEntry] = []
    for index in range(count):
        try:
            written = list(write_target(run, spills, index, shuffle, route))
        except TFRecordError as error:
            if error.record is None:
                raise
            source, row = source_of(error.record)
            raise error.replaced(record=starts[source] + row, path=title) from None
        entries += written
        note(written, index, count, 3, 3)
        pa.default_memory_pool().release_unused()
    return entries


def _chunks(run: WriteRun, tables: Iterable[pa.Table], max_rows: int | None) -> Iterator[pa.Table]:
    """Concatenate tables to larger tables of about `_CHUNK_BYTES`. A stream without rows is one empty table.

    If files have at most ``max_rows`` rows, a table ends where a file is full.
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
