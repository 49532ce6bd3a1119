"""Read and encode the offsets file of a snapshot, which locates each record. docs/format.md specifies the
file.

An offsets file describes only uncompressed data files. An offsets file stores the lengths of the payloads,
because they take less space than offsets.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec import FRAME_BYTES
from dask_tfrecord.dataset.snapshot.column_statistics import check
from dask_tfrecord.dataset.snapshot.names import METADATA_DIRECTORY, offsets_path
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.store import Store

# An array of the byte offset of each record of a file, followed by the end of the last record.
Offsets: TypeAlias = npt.NDArray[np.int64]

# The smallest number of records in a row group of the offsets file, except in the last one. A row group ends
# after a whole data file, so that readers need little memory.
_GROUP_RECORDS = 1 << 20

_TABLE = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("lengths", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
    ]
)


def to_parquet(files: Iterable[tuple[FileEntry, Offsets]]) -> bytes:
    """Return the content of an offsets file, given the record offsets of each uncompressed data file.

    Raises
    ------
    ValueError
        If the record offsets of a file do not match the size or the record count of the file in the snapshot.
    """
    sink = pa.BufferOutputStream()
    writer = pq.ParquetWriter(
        sink,
        _TABLE,
        use_dictionary=False,
        column_encoding={"lengths.list.element": "DELTA_BINARY_PACKED"},
        compression="zstd",
        write_page_checksum=True,
    )
    with writer:
        for group in _groups(files):
            entries, lengths = [entry for entry, _ in group], [found for _, found in group]
            starts = np.cumsum([0, *map(len, lengths)])
            lists = pa.ListArray.from_arrays(
                pa.array(starts, pa.int32()), pa.array(np.concatenate(lengths), pa.int32())
            )
            columns = [[getattr(entry, name) for entry in entries] for name in _TABLE.names[:3]]
            arrays = [pa.array(column, item.type) for column, item in zip(columns, _TABLE, strict=False)]
            writer.write_table(pa.Table.from_arrays([*arrays, lists.cast(_TABLE.types[3])], schema=_TABLE))
    return bytes(sink.getvalue())


def _groups(files: Iterable[tuple[FileEntry, Offsets]]) -> Iterator[list[tuple[FileEntry, Offsets]]]:
    """Yield the data files of each row group of the offsets file, with the lengths of their payloads."""
    group: list[tuple[FileEntry, Offsets]] = []
    for entry, offsets in files:
        lengths = np.diff(offsets) - FRAME_BYTES
        _check_lengths(entry, lengths)
        group.append((entry, lengths))
        if sum(len(found) for _, found in group) >= _GROUP_RECORDS:
            yield group
            group = []
    if group:
        yield group


def read_offsets(store: Store, number: int, entries: Mapping[str, FileEntry]) -> dict[str, Offsets]:
    """Read the stored record offsets of the data files of a snapshot.

    Parameters
    ----------
    store : Store
        The root of the dataset.
    number : int
        The version of the dataset.
    entries : mapping of str to FileEntry
        The files of the snapshot, by their paths in the store. Stored offsets of a file are ignored if the
        stored size or checksum differs from the size or checksum in the file's entry.

    Returns
    -------
    dict of str to numpy.ndarray
        Map from the path of each data file in the store to the byte offsets of its records, followed by the
        end of the last record. The dict is empty if no offsets are stored.

    Raises
    ------
    TFRecordError
        If the offsets file is damaged.
    """
    name = offsets_path(number)
    if name.rpartition("/")[2] not in store.names(METADATA_DIRECTORY):
        return {}
    path = store.join(name)
    try:
        data = store.fs.cat_file(path)
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        found: dict[str, Offsets] = {}
        for group in range(file.num_row_groups):
            found |= _offsets_of(
                store,
                file.read_row_group(group, use_threads=False).select(_TABLE.names).cast(_TABLE),
                entries,
            )
        return found
    except FileNotFoundError:  # an overwrite has removed the offsets file in the meantime
        return {}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise TFRecordError(
            f"not valid offsets of records ({error})",
            path=store.public(path),
            advice="remove the file; RecordTable.store_offsets() creates it again",
        ) from error


def _offsets_of(store: Store, table: pa.Table, entries: Mapping[str, FileEntry]) -> dict[str, Offsets]:
    lists = table["lengths"].combine_chunks()
    values, starts = lists.values.to_numpy(), lists.offsets.to_pylist()
    described = zip(*(table[name].to_pylist() for name in _TABLE.names[:3]), strict=True)
    found = {}
    for at, (path, size, crc32c) in enumerate(described):
        entry = entries.get(store.join(path))
        if entry is None or (entry.bytes, entry.crc32c) != (size, crc32c):
            continue
        lengths = values[starts[at] : starts[at + 1]]
        _check_lengths(entry, lengths)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.add(lengths, FRAME_BYTES, out=offsets[1:], dtype=np.int64)
        found[store.join(path)] = np.cumsum(offsets, out=offsets)
    return found


def _check_lengths(entry: FileEntry, lengths: npt.NDArray[np.integer]) -> None:
    """Raise unless records with payloads of these lengths fill the file exactly and match its record
    count.
    """
    fills = int(lengths.sum(dtype=np.int64)) + FRAME_BYTES * len(lengths) == entry.bytes
    is_valid = fills and len(lengths) == entry.records and lengths.min(initial=0) >= 0
    check(is_valid, f"the lengths of the records are not those of {entry.path!r}")
