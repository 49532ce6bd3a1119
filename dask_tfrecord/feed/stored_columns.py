"""Read all records of a table from column files, so that the table keeps its columns in memory."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from dask_tfrecord.feed.batches import as_batch
from dask_tfrecord.feed.record_offsets import THREADS, splits_by_file
from dask_tfrecord.files.splits import Split
from dask_tfrecord.random_access import NumberedRows

# The largest size in bytes of the columns that a table keeps in memory. A table reads other columns from the
# records.
_KEPT_BYTES = 1 << 26


def read_stored_columns(rows: NumberedRows, splits: Sequence[Split]) -> pa.RecordBatch | None:
    """Return all records of a dataset from its column files.

    Return None if a column file does not have all columns, or if the columns take too much memory.
    """
    partition = rows.plan.partitioner(rows.schema)

    def read(group: tuple[int, list[Split]]) -> pa.Table | None:
        first, of_file = group
        counts = [split.records or 0 for split in of_file]
        whole = replace(of_file[0], stop=of_file[-1].stop, records=sum(counts))
        return replace(partition(first), splits=(whole,)).read_column_file(_KEPT_BYTES)

    tables, size = [pa.Table.from_batches([rows.schema.no_rows()])], 0
    with ThreadPoolExecutor(THREADS) as pool:
        for table in pool.map(read, splits_by_file(splits)):
            size += 0 if table is None else table.nbytes
            if table is None or size > _KEPT_BYTES:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            tables.append(table)
    return as_batch(pa.concat_tables(tables), rows.schema.arrow)
