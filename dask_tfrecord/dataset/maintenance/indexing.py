"""Build a snapshot of existing files by reading every file once.

A commit of `index` writes no data files.
"""

import logging
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import Decoder, Encoder, Scanned, crc32c_combine, scan
from dask_tfrecord.codec.codecs import detect, known_codec
from dask_tfrecord.dataset.read.map_files import merge_by_file
from dask_tfrecord.dataset.read.read_plan import ReadPlan
from dask_tfrecord.dataset.snapshot.column_statistics import from_entries, to_entries
from dask_tfrecord.dataset.snapshot.file_table import concatenate, identities, with_known_versions
from dask_tfrecord.dataset.snapshot.model import Snapshot, find_snapshot
from dask_tfrecord.dataset.snapshot.visibility import are_proven
from dask_tfrecord.dataset.write.commit import create_version
from dask_tfrecord.dataset.write.newest import following
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import ConcurrentWriteError, TFRecordError, index_again
from dask_tfrecord.files import statistics
from dask_tfrecord.files.damage import locate_error
from dask_tfrecord.files.entry import BLOCK_BYTES, Block, FileEntry
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.part_names import is_part
from dask_tfrecord.files.reading import run_kernel
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.checksum import ChecksumStore
from dask_tfrecord.files.storage.listing import column_paths, with_column
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import changed_since_snapshot
from dask_tfrecord.schema.model import Schema

logger = logging.getLogger(__name__)


class _Content(NamedTuple):
    """The part of a file's entry that describes the content, computed for a whole file or for a split of a
    file.

    The field ``blocks`` is empty for a compressed file.
    """

    records: int
    bytes: int
    crc32c: int
    columns: statistics.Columns
    blocks: tuple[Block, ...]
    codec: str


def create_snapshot(dataset: ReadPlan, compute_each: ComputeEach, run: str) -> Snapshot:
    """Describe the files of a read plan.

    Parameters
    ----------
    dataset : ReadPlan
        The read plan of the dataset, with one partition for each file.
    compute_each : callable
        Function that runs the tasks that read the files.
    run : str
        The id of the run that creates the snapshot.

    Returns
    -------
    Snapshot
        The content of the new snapshot, for `store_snapshot`.

    Raises
    ------
    CorruptRecordError
        If a record of a file is damaged.
    SchemaError
        If a value in a record does not fit its column.
    """
    files = dataset.partitions.rows
    partition_names = dataset.partition_values
    schema = dataset.schema.select(name for name in dataset.schema.names if name not in partition_names)
    partitioning = dataset.schema.select(partition_names).fields if partition_names else ()
    contents = _read_files(dataset.store, files, schema, dataset.options, compute_each)
    columns = statistics.file_statistics(schema, [content.columns for content in contents], len(contents))
    values = list(zip(*(column.to_pylist() for column in dataset.partition_values.values()), strict=True))
    paths = map(dataset.store.relative, column_paths(files["path"]))
    stamps = files["stamp"].to_pylist()
    entries = [
        FileEntry(
            path, one.bytes, one.records, one.crc32c, of_file, one.blocks, of_columns, stamp, codec=one.codec
        )
        for path, one, of_file, of_columns, stamp in zip(
            paths, contents, values or [()] * len(files), columns, stamps, strict=True
        )
    ]
    codecs = {content.codec for content in contents}
    return Snapshot(
        from_entries(entries, schema, partitioning),
        schema=schema,
        compression=known_codec(codecs.pop(), "") if len(codecs) == 1 else None,
        run=run,
        library="",
        partitioning=partitioning,
        order=tuple(dataset.schema.names),
        partial=bool(dataset.ignored_features) or dataset.options.extra == "ignore",
    )


def renew_snapshot(
    store: Store, snapshot: Snapshot, files: pa.Table, compute_each: ComputeEach, run: str
) -> Snapshot:
    """Describe the files of a dataset again, some of which may have been rewritten or copied.

    Only files whose stamp differs from the stamp in the snapshot are read. A stamp identifies the version of
    a file. If the content of a file is unchanged, only the stamp in its entry changes.

    Parameters
    ----------
    store : Store
        The root of the dataset.
    snapshot : Snapshot
        The newest snapshot.
    files : pyarrow.Table
        The existing files of the snapshot, as `snapshot_files` returns them.
    compute_each : callable
        Function that runs the tasks that read the files.
    run : str
        The id of the run that creates the new snapshot.

    Returns
    -------
    Snapshot
        The content of the next snapshot, for `store_snapshot`.

    Raises
    ------
    FileChangedError
        If the content of a file that this library wrote has changed.
    CorruptRecordError
        If a record of a file is damaged.
    SchemaError
        If a value in a record does not fit its column in the snapshot.
    """
    rows = snapshot.file_list
    changed = pc.invert(are_proven(files, rows))
    unproven = files.filter(changed)
    unproven = with_column(unproven, "crc32c", pa.nulls(len(unproven), pa.uint32()))
    contents = _read_files(store, unproven, snapshot.schema, ReadOptions(), compute_each)
    columns = statistics.file_statistics(
        snapshot.schema, [content.columns for content in contents], len(contents)
    )
    entries = []
    described = to_entries(rows.filter(changed), snapshot.schema, snapshot.partitioning)
    for path, entry, content, of_columns in zip(
        column_paths(unproven["path"]), described, contents, columns, strict=True
    ):
        if content.crc32c != entry.crc32c:
            if is_part(path):
                raise changed_since_snapshot(store, path)
            names = ("bytes", "records", "crc32c", "blocks", "codec")
            changes = {name: getattr(content, name) for name in names}
            entry = replace(entry, **changes, statistics=of_columns, columns=None)
        entries.append(entry)
    read = from_entries(entries, snapshot.schema, snapshot.partitioning)
    known = concatenate([rows.filter(pc.invert(changed)), read])
    now = with_known_versions(known.take(pc.index_in(rows["path"], known["path"])), rows)
    return replace(snapshot, file_list=with_column(now, "stamp", files["stamp"]), run=run)


def store_snapshot(store: Store, snapshot: Snapshot, before: Snapshot | None) -> Snapshot:
    """Store a snapshot of the files that ``before`` lists, or of all files if ``before`` is None.

    If other writes were committed after ``before``, their changes are kept.
    """
    root = store.public()
    run = WriteRun(store, snapshot.schema, snapshot.run, base=0 if before is None else before.number)
    stored = None
    while stored is None:
        newest = find_snapshot(store)
        content = snapshot
        if newest is not None and newest.number > run.base:
            content = _described_again(newest, snapshot, before, root)
        stored = create_version(run, following(content, newest, run.run, "index"))
    logger.info("%s: index stored version %d: %r", root, stored.number, stored)
    return stored


def _described_again(newest: Snapshot, described: Snapshot, before: Snapshot | None, root: str) -> Snapshot:
    """Return the content of the newest snapshot, with a later description of the files that it still lists.

    Parameters
    ----------
    newest : Snapshot
        The newest snapshot.
    described : Snapshot
        The new description of the files of ``before``, without the files that no longer exist.
    before : Snapshot, optional
        The newest snapshot when the description began. If None, there was no snapshot.
    root : str
        The directory of the dataset, for the error message.

    Raises
    ------
    ConcurrentWriteError
        If the newest snapshot has other columns, or lists none of the files of ``before``.
    """
    rows = newest.file_list
    planned = {*identities((before or described).file_list)}
    known = {path: at for at, path in enumerate(described.file_list["path"].to_pylist())}
    still = [at for at, file in enumerate(identities(rows)) if file in planned]
    if (newest.schema, newest.partitioning) != (described.schema, described.partitioning) or not still:
        raise ConcurrentWriteError(
            "another write replaced the files while index read the files", index_again(root)
        )
    paths = rows["path"].to_pylist()
    again = [at for at in still if paths[at] in known]
    others = [*{*range(len(rows))}.difference(still)]
    sets_columnar = described.columnar != (before.columnar if before else None)
    taken = described.file_list.take(pa.array([known[paths[at]] for at in again], pa.int64()))
    merged = concatenate([rows.take(pa.array(others, pa.int64())), with_known_versions(taken, rows)])
    rows = merged.take(np.argsort(np.array(others + again, np.int64), kind="stable"))
    return replace(newest, file_list=rows, columnar=described.columnar if sets_columnar else newest.columnar)


def _read_files(
    store: Store, files: pa.Table, schema: Schema, options: ReadOptions, compute_each: ComputeEach
) -> list[_Content]:
    read = partial(_read_split, store, schema, options)
    return merge_by_file(read, _merge, store, files, options, compute_each)


def _merge(first: _Content, second: _Content) -> _Content:
    statistics.continue_statistics(first.columns, second.columns)
    return _Content(
        first.records + second.records,
        first.bytes + second.bytes,
        crc32c_combine(first.crc32c, second.crc32c, second.bytes),
        first.columns,
        first.blocks + second.blocks,
        first.codec,
    )


def _read_split(store: Store, schema: Schema, options: ReadOptions, split: Split) -> _Content:
    checked = ChecksumStore(store.fs, store.root)
    decoder = Decoder(
        schema.columns,
        schema.record_type,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
    )
    encoder = Encoder(schema.columns, schema.record_type)
    columns = statistics.empty_statistics(schema)
    blocks: list[Block] = []
    records = 0
    for step in run_kernel(checked, split, options, decoder.decode, schema.columns):
        batch = step.result.batch
        if not batch.num_rows:
            continue
        try:
            schema.from_storage(batch)  # this call raises if a value does not fit its column
        except TFRecordError as error:
            raise locate_error(error, store.public(split.file.path), step.record) from None
        encoder.bind(batch)
        statistics.continue_statistics(columns, encoder.statistics([0, batch.num_rows]))
        starts = scan(step.data, final=True, verify_crc=False, every=BLOCK_BYTES)
        blocks += _blocks(starts, step.offset, step.record)
        records += batch.num_rows
    total = checked.checksum
    codec = (detect(total.head) if split.start.offset == 0 else None) or "none"
    return _Content(
        records, total.bytes, total.crc32c, columns, tuple(blocks) if codec == "none" else (), codec
    )


def _blocks(scanned: Scanned, offset: int, record: int) -> list[Block]:
    """Return the blocks of a window of an uncompressed file.

    The window starts at byte ``offset`` and record ``record`` of the file.
    """
    if scanned.offsets is None or scanned.numbers is None:
        return []
    pairs = zip(scanned.offsets.to_pylist(), scanned.numbers.to_pylist(), strict=True)
    return [Block(offset + at, offset + at, record + number) for at, number in pairs]
