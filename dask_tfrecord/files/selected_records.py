"""Read some records of a split by number. The other records are only located, not verified or decoded."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import scan, take_bytes
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.codec.columns import FeatureKey
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import TABLE_BYTES, decoding, run_kernel
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import must_verify_content
from dask_tfrecord.schema.model import Schema


def read_selected(
    store: Store,
    split: Split,
    wanted: Ints,
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[FeatureKey] | None = None,
) -> tuple[pa.Table, int] | None:
    """Read the records of a split whose numbers, counted from the start of the split, are in ``wanted``.

    Parameters
    ----------
    wanted : numpy.ndarray
        The numbers of the records, in ascending order.
    store, split, schema, options, known
        These parameters have the same meaning as in `read_split`.

    Returns
    -------
    tuple of (pyarrow.Table, int), optional
        The rows of the records, and the number of all records of the split. None if the split must be read
        completely: the checksum of the file must be verified, damage is skipped, or a record that was read is
        damaged or does not fit the schema.
    """
    if options.damage.skips or options.origin_columns or must_verify_content(split, options):
        return None
    stored, decoder, _ = decoding(schema, options, known)
    batches = []
    locate = partial(scan, offsets=True, verify_crc=False, max_record_bytes=options.max_record_bytes)
    count = waiting = 0  # `waiting` counts the bytes of the records that the decoder holds
    try:
        for step in run_kernel(store, split, replace(options, verify_crc=False), locate):
            bounds = np.append(pa.array(step.result.offsets), len(step.data))
            first, count = count, count + step.result.records
            here = wanted[slice(*np.searchsorted(wanted, (first, count)))] - first
            buffers = [None, pa.py_buffer(bounds), pa.py_buffer(step.data)]
            records = take_bytes(
                pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers), here.data
            )
            if not len(here):
                continue
            data = records.buffers()[2]
            if waiting and waiting + data.size > TABLE_BYTES:
                batches.append(stored.from_storage(decoder.take()))
                waiting = 0
            # The decoder stops before a damaged record, and before a column exceeds 2 GiB.
            if decoder.feed(data, final=True).records < len(here):
                return None
            waiting += data.size
        batches.append(stored.from_storage(decoder.take()))
        return pa.Table.from_batches(batches), count
    except (TFRecordError, OSError):  # reading the whole split raises the error with its position in the file
        return None
