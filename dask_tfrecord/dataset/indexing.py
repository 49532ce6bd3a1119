"""What a snapshot says of files that others wrote: found out by reading all of them once. Changes nothing."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple

from dask_tfrecord.codec import Decoder, Encoder, Scanned, crc32c_combine, scan
from dask_tfrecord.codec.codecs import Compression, detect
from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.dataset.snapshot.model import Snapshot, library_version
from dask_tfrecord.dataset.snapshot.stamps import is_proven
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files import statistics
from dask_tfrecord.files.boundaries import ComputeEach, find_blocks
from dask_tfrecord.files.entry import BLOCK_BYTES, Block, FileEntry
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.part_names import is_part
from dask_tfrecord.files.reading import locate_error, run_kernel
from dask_tfrecord.files.splits import Split, split_file
from dask_tfrecord.files.storage.checksum import ChecksumStore
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.stream import changed_since_snapshot
from dask_tfrecord.schema.model import Schema

# A larger file is read by several tasks.
STRETCH_BYTES = 1 << 27


class _Examined(NamedTuple):
    """What was found in a stretch of a file."""

    records: int
    bytes: int
    crc32c: int
    columns: statistics.Columns
    blocks: tuple[Block, ...]
    compression: Compression | None


def examine(dataset: Dataset, compute_each: ComputeEach, run: str) -> Snapshot:
    """A snapshot, stored nowhere yet, of a dataset that was opened with a partition for each of its files.

    Raises
    ------
    CorruptRecordError
        For damage anywhere.
    SchemaError
        For a value that does not fit its column.
    """
    files = [split.file for partition in dataset.partitions for split in partition]
    schema = dataset.schema.select(
        name for name in dataset.schema.names if name not in dataset.partition_values
    )
    partitioning = dataset.schema.select(dataset.partition_values).fields if dataset.partition_values else ()
    found = _examine_all(dataset.store, files, schema, dataset.options, compute_each)
    told = statistics.file_statistics(schema, [one.columns for one in found])
    values = list(zip(*(column.to_pylist() for column in dataset.partition_values.values()), strict=True))
    entries = [
        FileEntry(
            dataset.store.relative(file.path),
            one.bytes,
            one.records,
            one.crc32c,
            value,
            one.blocks,
            columns,
            file.stamp,
        )
        for file, one, columns, value in zip(files, found, told, values or [()] * len(files), strict=True)
    ]
    compressions = {one.compression for one in found}
    return Snapshot(
        files=tuple(entries),
        schema=schema,
        compression=compressions.pop() if len(compressions) == 1 else None,
        run=run,
        library=library_version(),
        partitioning=partitioning,
        order=tuple(dataset.schema.names),
        partial=bool(dataset.ignored_features) or dataset.options.extra == "ignore",
    )


def renewed(
    store: Store, snapshot: Snapshot, files: Sequence[FileInfo], compute_each: ComputeEach, run: str
) -> Snapshot:
    """The next snapshot, stored nowhere yet: that of a dataset with files that may have been rewritten.

    These files are read once. Where their content is the same, only the stamp is new.

    Raises
    ------
    FileChangedError
        If a file that a write of ours made has other content.
    CorruptRecordError, SchemaError
        For damage, and for values that do not fit the columns of the snapshot.
    """
    told = list(zip(files, snapshot.files, strict=True))
    doubted = [replace(file, crc32c=None) for file, entry in told if not is_proven(file, entry)]
    found = _examine_all(store, doubted, snapshot.schema, ReadOptions(), compute_each)
    columns = statistics.file_statistics(snapshot.schema, [one.columns for one in found])
    examined = {file.path: pair for file, pair in zip(doubted, zip(found, columns, strict=True), strict=True)}
    entries = []
    for file, entry in told:
        one, known = examined.get(file.path, (None, ()))
        if one is not None and one.crc32c != entry.crc32c:
            if is_part(file.path):
                raise changed_since_snapshot(store, file.path)
            content = {name: getattr(one, name) for name in ("bytes", "records", "crc32c", "blocks")}
            entry = replace(entry, **content, statistics=known)
        entries.append(replace(entry, stamp=file.stamp))
    return replace(
        snapshot, files=tuple(entries), run=run, library=library_version(), number=snapshot.number + 1
    )


def _examine_all(
    store: Store, files: Sequence[FileInfo], schema: Schema, options: ReadOptions, compute_each: ComputeEach
) -> list[_Examined]:
    """What is in each file."""
    large = [file for file in files if (file.size or 0) > STRETCH_BYTES]
    located = find_blocks(
        store, large, options, compute_each, task_bytes=STRETCH_BYTES, block_bytes=BLOCK_BYTES
    )
    known = [located.get(file.path) for file in files]
    splits = [split_file(file, one, STRETCH_BYTES) for file, one in zip(files, known, strict=True)]
    parts = iter(compute_each(partial(_examine, store, schema, options), [s for of in splits for s in of]))
    found = [reduce(_joined, [next(parts) for _ in of_file]) for of_file in splits]
    return [
        one if place is None else one._replace(blocks=place.blocks)
        for one, place in zip(found, known, strict=True)
    ]


def _joined(one: _Examined, after: _Examined) -> _Examined:
    """Two stretches of a file as one."""
    return _Examined(
        one.records + after.records,
        one.bytes + after.bytes,
        crc32c_combine(one.crc32c, after.crc32c, after.bytes),
        statistics.merge_statistics(one.columns, after.columns),
        one.blocks + after.blocks,
        one.compression,
    )


@redact_errors
def _examine(store: Store, schema: Schema, options: ReadOptions, split: Split) -> _Examined:
    """Read a stretch of a file; its blocks are those of a file that is not compressed."""
    summing = ChecksumStore(store.fs, store.root)
    decoder = Decoder(
        schema.columns,
        schema.record_type,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
    )
    encoder = Encoder(schema.columns, schema.record_type, buffer_bytes=0)
    columns = statistics.empty_statistics(schema)
    blocks: list[Block] = []
    records = 0
    for step in run_kernel(summing, split, options, decoder.decode, schema.columns):
        batch = step.result.batch
        if not batch.num_rows:
            continue
        try:
            schema.from_storage(batch)  # refuses values that do not fit
        except TFRecordError as error:
            raise locate_error(error, store.public(split.file.path), step.record) from None
        encoder.bind(batch)
        columns = statistics.merge_statistics(columns, encoder.statistics(0, batch.num_rows))
        places = scan(step.data, final=True, verify_crc=False, every=BLOCK_BYTES)
        blocks += _blocks(places, step.offset, step.record)
        records += batch.num_rows
    total = summing.checksum
    compression = detect(total.head)
    kept = () if compression else tuple(blocks)
    return _Examined(records, total.bytes, total.crc32c, columns, kept, compression)


def _blocks(found: Scanned, offset: int, record: int) -> list[Block]:
    """Places in some bytes as those in the file."""
    if found.offsets is None or found.numbers is None:
        return []
    pairs = zip(found.offsets.to_pylist(), found.numbers.to_pylist(), strict=True)
    return [Block(offset + at, offset + at, record + number) for at, number in pairs]
