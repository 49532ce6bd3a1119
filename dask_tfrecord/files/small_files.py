"""Read several small files at once: join the bytes of the files in one buffer, and decode them together.

Creating a window, a decoder and a batch for each file would take several times as long as decoding a hundred
records. The module `small_files` reports no errors. If the files cannot be read together, for example because
one of them is damaged, the caller reads each file alone, and that read reports the error.
"""

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO

import numpy as np
import pyarrow as pa

from dask_tfrecord.codec import HEADER_BYTES, crc32c, scan
from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.codec.codecs import decompressor, detect
from dask_tfrecord.codec.columns import FeatureKey
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import (
    as_table,
    content_bytes,
    decoding,
    only_counts,
    rows_without_columns,
)
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import WINDOW_BYTES, must_verify_content
from dask_tfrecord.schema.model import Schema

# The factor by which the content of the files may exceed the estimated size. Most of the buffer's memory is
# never touched.
_MARGIN = 4


def groups_of_small_files(splits: Iterable[Split]) -> Iterator[list[Split]]:
    """Group consecutive splits that are whole files and together fit in a window.

    Each other split forms a group alone.
    """
    group: list[Split] = []
    left = WINDOW_BYTES
    for split in splits:
        is_whole = not split.start.offset and split.stop is None and split.file.size is not None
        size = content_bytes(split) if is_whole else WINDOW_BYTES + 1
        if group and size > left:
            yield group
            group, left = [], WINDOW_BYTES
        group.append(split)
        left -= size
    if group:
        yield group


def read_together(
    store: Store,
    splits: Sequence[Split],
    schema: Schema,
    options: ReadOptions,
    *,
    known: Sequence[FeatureKey] | None = None,
) -> tuple[pa.Table, list[int]] | None:
    """Read all records of a group of small files.

    Parameters
    ----------
    store : Store
        The store that holds the files.
    splits : sequence of Split
        A group of splits that `groups_of_small_files` returned.
    schema, options, known
        These parameters have the same meaning as in `read_split`.

    Returns
    -------
    tuple of (pyarrow.Table, list of int), optional
        The rows of all files, and the number of rows of each file, or None if each file must be read alone: a
        file is damaged or has changed, a value does not fit its column, or the content is much larger than
        estimated.
    """
    try:
        joined = _join(store, splits, options)
        if joined is None:
            return None
        data, starts = joined
        counts_only = only_counts(schema, options, known)
        verify_crc, longest = counts_only and options.verify_crc, options.max_record_bytes
        found = scan(data, final=True, offsets=True, verify_crc=verify_crc, max_record_bytes=longest)
        offsets = np.append(pa.array(found.offsets), len(data))
        firsts = np.searchsorted(offsets, starts)
        # A record must not continue in the next file. The checksum of a record that does so would be correct.
        if found.damage or not np.array_equal(offsets[firsts], starts):
            return None
        counts = np.diff(firsts)
        if counts_only:
            return rows_without_columns(found.records), counts.tolist()
        stored, decoder, check = decoding(schema, options, known)
        if check is not None and len(check(data, final=True).starts):
            return None
        if decoder.feed(data, final=True).damage:
            return None
        batch = stored.from_storage(decoder.take())
    except (TFRecordError, OSError):  # reading each file alone raises the error of the first such file
        return None
    paths = [store.public(split.file.path) for split in splits]
    files = [(path, count) for path, count in zip(paths, counts, strict=True) if count]
    if not files:
        return pa.Table.from_batches([schema.no_rows()]), counts.tolist()
    in_file = pa.array(offsets[:-1] - np.repeat(starts[:-1], counts))
    return as_table(batch, schema, options, files, [in_file]), counts.tolist()


def _join(store: Store, splits: Sequence[Split], options: ReadOptions) -> tuple[memoryview, Ints] | None:
    """Read the content of files into one buffer, one file after the other.

    Returns
    -------
    tuple of (memoryview, numpy.ndarray), optional
        The decompressed content of the files, and the position of each file in the content, followed by the
        end of the content, or None if a file must be read alone.
    """
    # The buffer has one byte more than the files, so that a file that has grown is noticed.
    size = _MARGIN * sum(map(content_bytes, splits)) + 1
    buffer = memoryview(pa.allocate_buffer(size)).cast("B")
    starts = [0]
    for split in splits:
        file, at = split.file, starts[-1]
        expected = file.size or 0
        stored = buffer[at : at + expected + 1]
        with store.open(file.path, file.size, 0, None, file.stamp) as reader:
            count = got = reader.readinto(stored)
            while got and count < expected:
                got = reader.readinto(stored[count:])
                count += got
        if count != expected or len(stored) == expected:
            return None
        stored = stored[:expected]
        if must_verify_content(split, options) and crc32c(stored) != file.crc32c:
            return None
        codec = detect(bytes(stored[:HEADER_BYTES]))
        if expected and options.compression not in ("infer", codec):
            return None
        at += expected
        if codec:
            at = starts[-1]
            content = decompressor(BytesIO(stored).readinto, codec, inside=False)
            while at < size and (count := content.readinto(buffer[at:])):
                at += count
        if at >= size:
            return None
        starts.append(at)
    return buffer[: starts[-1]], np.array(starts)
