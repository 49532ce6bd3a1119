"""Read untrusted Parquet files whose rows may take much more memory than the files.

A few bytes of a Parquet file may stand for millions of equal values. The number of values comes from the
footer, and the memory of the rows is also checked while they are read.
"""

from collections.abc import Sequence
from operator import mul

import pyarrow as pa
import pyarrow.parquet as pq

# The rows of a file of N bytes may take at most _BASE + _RATIO * N bytes of memory.
_BASE, _RATIO = 1 << 28, 100

# The largest number of rows that are read before their memory is checked.
_ROWS = 1 << 16

# Assume that each value takes this many bytes, apart from the text of strings.
_VALUE_BYTES = 8


def open_parquet(data: bytes) -> pq.ParquetFile:
    """Open a Parquet file in memory. Its footer may declare no list with more elements than the file has
    bytes.
    """
    most = min(len(data) + 1, 1_000_000)
    return pq.ParquetFile(
        pa.BufferReader(data), page_checksum_verification=True, thrift_container_size_limit=most
    )


def read_bounded(
    file: pq.ParquetFile,
    stored_bytes: int,
    *,
    groups: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    most_values: int = 0,
) -> pa.Table:
    """Read row groups and columns of a file. By default, read all of them.

    ``stored_bytes`` is the number of stored bytes of these row groups. A caller that expects ``most_values``
    values allows more memory. Raise ValueError if the rows take too much memory.
    """
    most = _BASE + _RATIO * stored_bytes + _VALUE_BYTES * most_values
    metadata = file.metadata
    groups = range(metadata.num_row_groups) if groups is None else groups
    wanted = None if columns is None else {*columns}
    chunks = [
        [
            chunk
            for chunk in map(metadata.row_group(at).column, range(metadata.num_columns))
            if wanted is None
            or chunk.path_in_schema.split(".")[0] in wanted
            or chunk.path_in_schema in wanted
        ]
        for at in groups
    ]
    sizes = [
        (one.total_uncompressed_size, _VALUE_BYTES * one.num_values) for group in chunks for one in group
    ]
    declared = sum(map(max, sizes))
    if declared > most:
        raise _too_large(most)
    # Each value of a string column may repeat the longest string of its chunk.
    longest = [
        sum(one.total_uncompressed_size for one in group if one.physical_type == "BYTE_ARRAY")
        for group in chunks
    ]
    values = [max((one.num_values for one in group), default=0) for group in chunks]
    if declared + sum(map(mul, longest, values)) <= most:
        return file.read_row_groups([*groups], columns=columns, use_threads=False)
    found, total = [], 0
    rows = max(1, min(_ROWS, most // max(1, *longest)))
    for batch in file.iter_batches(rows, [*groups], columns, use_threads=False):
        total += batch.nbytes
        if total > most:
            raise _too_large(most)
        found.append(batch)
    # A file without rows has no strings, so it was read above. Operations on many small chunks are slow.
    return pa.Table.from_batches(found).combine_chunks()


def _too_large(most: int) -> ValueError:
    return ValueError(f"its rows would take more than {most:,} bytes of memory")
