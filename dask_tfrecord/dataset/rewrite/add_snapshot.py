"""Read all files of a directory, store a snapshot of their content, and write their column files."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import Column, Decoded, Decoder, Encoder, crc32c_combine, scan
from dask_tfrecord.codec.codecs import detect, known_codec
from dask_tfrecord.dataset.listing import nothing_at
from dask_tfrecord.dataset.names import COLUMNS
from dask_tfrecord.dataset.read.columns import ReadRequest
from dask_tfrecord.dataset.read.discovery import open_path
from dask_tfrecord.dataset.read.inferred_schema import INTEGERS_AS_FLOATS
from dask_tfrecord.dataset.read.layouts import ALL, SPLIT, WantedSplits
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.read.sample import TASK_BYTES, merge_by_file
from dask_tfrecord.dataset.snapshot import visibility
from dask_tfrecord.dataset.snapshot.check import ComparedFiles, find_newest_files, refuse_differences
from dask_tfrecord.dataset.snapshot.entry_log import EntryLog
from dask_tfrecord.dataset.snapshot.head import Head
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.stored_files import (
    Columnar,
    columnar_features,
    from_entries,
    to_entries,
    with_known_versions,
)
from dask_tfrecord.dataset.write.destination import (
    check_destination,
    refuse_datasets_below,
    refuse_inside_dataset,
)
from dask_tfrecord.dataset.write.operations import Change, Operation, successor
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.dataset.write.transaction import Transaction, finish_newest, remove_staging
from dask_tfrecord.errors import (
    ConcurrentWriteError,
    CorruptRecordError,
    DestinationError,
    Remedy,
    SchemaError,
    TFRecordError,
    add_snapshot_again,
)
from dask_tfrecord.files import entry as statistics
from dask_tfrecord.files.column_files import ColumnFileReader, StoredRows, WrittenColumns
from dask_tfrecord.files.damage import locate_error
from dask_tfrecord.files.entry import (
    BLOCK_BYTES,
    COLUMN_FILE,
    COLUMN_FILE_TYPE,
    Block,
    ColumnFile,
    FileEntry,
    is_part,
)
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.find_blocks import ComputeEach
from dask_tfrecord.files.record_file import Chunk, RecordFile
from dask_tfrecord.files.small_columns import SmallColumnFiles, SmallColumns
from dask_tfrecord.files.splice import feature_schema, rows_of_file, with_column_file
from dask_tfrecord.files.splits import Split, groups_by_bytes
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.logical_types import value_type
from dask_tfrecord.storage.paths import PathLike
from dask_tfrecord.storage.reader import Checksum
from dask_tfrecord.storage.redaction import redact_errors
from dask_tfrecord.storage.store import Store


def add_snapshot(
    path: PathLike,
    store: Store,
    request: ReadRequest,
    plan_columnar: Callable[[Schema, Sequence[str], Snapshot | None], Columnar],
    compute_each: ComputeEach,
    *,
    sets_columnar: bool,
) -> Snapshot:
    """Read all files of a directory, and store a snapshot, as `Dataset.add_snapshot` describes.

    ``sets_columnar`` is True if the caller chose the columns of the column files. ``plan_columnar`` returns
    these columns for a schema, the partition columns, and the snapshot that exists already.
    """
    refuse_inside_dataset(store, "add_snapshot")
    check_destination(store, "overwrite")  # the mode that accepts files without a snapshot
    finish_newest(store)
    before = Head.read(store).snapshot
    if before is not None and request.split not in (None, ALL):
        raise _other_splits(request.split)
    with open_run(store) as run:
        try:
            is_current = False
            found = None if before is None else find_newest_files(store, before)
            before = None if found is None else found.snapshot
            if sets_columnar or (before is not None and before.columnar != "auto"):
                run = replace(run, columnar="never")  # until all files are described
            if found is not None and _is_known(store, found):
                is_current = not pc.any(found.is_rewritten).as_py()
                snapshot = describe_changed_files(run, found, compute_each)
            else:
                snapshot = _described(path, run, request, compute_each)
                if before is not None:
                    files = with_known_versions(snapshot.file_list, before.file_list)
                    snapshot = replace(snapshot, log=EntryLog(files))
            columns = plan_columnar(snapshot.schema, snapshot.partition_on, before)
            if sets_columnar and columns != "never":
                wanted = [*range(len(snapshot.file_list))]
            else:
                wanted = rows_to_store(store, snapshot, columns, compute_each)
            if is_current and not sets_columnar and not wanted:
                problem = "the directory already has a snapshot, which is up to date"
                raise DestinationError(problem, "leave it as it is until files have changed")
            run = replace(run, columnar=columns)
            snapshot = with_column_files(run, snapshot, wanted, compute_each)
            return commit_snapshot(store, snapshot, before)
        except (FileNotFoundError, CorruptRecordError):
            newest = Head.read(store).snapshot
            if newest is None or (before is not None and newest.run == before.run):
                raise
            problem = (
                "another write was committed while add_snapshot read the files, and replaced some of them"
            )
            raise ConcurrentWriteError(problem, add_snapshot_again(store.public())) from None


def _described(path: PathLike, run: WriteRun, request: ReadRequest, compute_each: ComputeEach) -> Snapshot:
    store = run.store
    if not store.fs.isdir(store.root):
        raise nothing_at(store, "no such directory")
    refuse_datasets_below(store, "whose files the snapshot would list, too")
    try:
        dataset = open_path(path, request, compute_each=compute_each)
        # Only a description that lists splits can omit files of the directory.
        if SPLIT in dataset.partition_values or request.split not in (None, ALL):
            _refuse_undescribed_files(store, dataset, request)
        return describe_files(dataset, run, compute_each)
    except TFRecordError as error:
        # A column of a snapshot has one kind, so its files cannot hold integers and floats.
        error.remedies = tuple(one for one in error.remedies if one.effect != INTEGERS_AS_FLOATS)
        if not any(one.keyword == SPLIT for one in error.remedies):
            raise
        if isinstance(error, CorruptRecordError):  # a file is missing, and a snapshot would hide that
            raise error.replaced(remedies=()) from None
        # A snapshot lists the files of all splits, so suggest only the remedy that reads all splits.
        every = [one for one in error.remedies if one.value == ALL]
        raise error.replaced(advice=None, remedies=every) from None


def _other_splits(split: WantedSplits) -> TFRecordError:
    problem = f"a snapshot lists the files of all splits, but split={split!r} was passed"
    return TFRecordError(problem, Remedy(SPLIT, ALL, "read the splits as a column"))


def _refuse_undescribed_files(store: Store, dataset: ReadPlan, request: ReadRequest) -> None:
    """Raise TFRecordError if the TFDS description, or ``split=``, omits data files, because every later read
    of the snapshot would fail.
    """
    read = {*dataset.files.paths}
    others = [path for path in visibility.data_files(store).paths if path not in read]
    if others and request.split not in (None, ALL):
        raise _other_splits(request.split)
    if others:
        problem = f"the description of the dataset does not list {len(others)} files of the directory"
        raise TFRecordError(problem, "move these files to another directory", path=store.public(others[0]))


def _is_known(store: Store, compared: ComparedFiles) -> bool:
    """Return False if other tools have written all files, and have added, removed or rewritten some, so that
    all files must be described again.

    Raise the errors of `refuse_differences` if the snapshot lists files of this library.
    """
    if any(map(is_part, compared.listed.names)):
        refuse_differences(store, compared, may_be_rewritten=True)
        return True
    changed = pc.or_(compared.is_rewritten, compared.is_missing)
    return not (len(compared.unlisted) or pc.any(changed).as_py())


@contextmanager
def open_run(store: Store) -> Iterator[WriteRun]:
    """Yield a run that may write column files. The ``with`` block must store a snapshot that lists them.

    If the ``with`` block raises an exception, remove the column files. A mark must exist before the first
    column file, so that no other process mistakes column files for leftovers of a failed run.
    """
    run = WriteRun(store, Schema(()))
    try:
        yield run
    except BaseException:  # including KeyboardInterrupt
        _remove_column_files(run)
        with suppress(Exception):  # the caller reports the first error
            remove_staging(store, run.run)
        raise
    with suppress(Exception):  # if the removal fails, the next write removes the staging directory
        remove_staging(store, run.run)


def _remove_column_files(run: WriteRun, stored: Snapshot | None = None) -> None:
    """Remove the column files of a run that the snapshot ``stored`` does not list. If that fails, leave them
    to `cleanup`.
    """
    with suppress(Exception):
        files = [] if stored is None else statistics.read_column_files(stored.file_list)
        listed = {one.path for one in files if one}
        written = {path for name in run.store.names(COLUMNS) if run.owns(path := f"{COLUMNS}/{name}")}
        run.store.remove(map(run.store.join, written.difference(listed)))


def with_column_files(
    run: WriteRun, snapshot: Snapshot, wanted: Sequence[int], compute_each: ComputeEach
) -> Snapshot:
    """Write column files for some data files of a snapshot that is not stored yet, and return the snapshot
    that lists them.

    ``wanted`` contains the indices, in the snapshot's file list, of the data files that get column files.
    """
    if not wanted:
        return replace(snapshot, columnar=run.columnar)
    entries = [*to_entries(snapshot.file_list, snapshot.schema, snapshot.partitioning)]
    run.mark(uuid4().hex)
    groups = groups_of_entries([entries[at] for at in wanted])
    results = compute_each(partial(_write, replace(run, schema=snapshot.schema)), enumerate(groups))
    for at, entry in zip(wanted, (entry for of_group in results for entry in of_group), strict=True):
        entries[at] = entry
    column_files = {COLUMN_FILE: pa.array([entry.columns for entry in entries], COLUMN_FILE_TYPE)}
    return replace(
        snapshot, log=EntryLog(snapshot.file_list.with_columns(column_files)), columnar=run.columnar
    )


def rows_to_store(
    store: Store, snapshot: Snapshot, columnar: Columnar, compute_each: ComputeEach
) -> list[int]:
    """Return the indices, in the file list, of data files without a usable column file for ``columnar``."""
    if columnar in ("auto", "never"):
        return []
    entries = [*to_entries(snapshot.file_list, snapshot.schema, snapshot.partitioning)]
    is_stored = partial(_are_stored, store, frozenset(columnar_features(snapshot.schema, columnar)))
    found = chain.from_iterable(compute_each(is_stored, groups_of_entries(entries)))
    return [at for at, one in enumerate(found) if not one]


@redact_errors
def _are_stored(store: Store, features: frozenset[Column], entries: Sequence[FileEntry]) -> list[bool]:
    """Return, for each data file, True if a usable column file contains all ``features``."""
    reader = cache(partial(ColumnFileReader, store))
    return [
        entry.columns is not None
        and reader(entry.columns).features >= features
        and StoredRows.of(reader(entry.columns), entry) is not None
        for entry in entries
    ]


def groups_of_entries(entries: Sequence[FileEntry]) -> list[list[FileEntry]]:
    """Group data files into tasks that each read at most `TASK_BYTES` bytes, or one file."""
    sizes = [entry.bytes for entry in entries]
    return [[*entries[group]] for group in groups_by_bytes(sizes, TASK_BYTES)]


@redact_errors
def _write(run: WriteRun, numbered: tuple[int, Sequence[FileEntry]]) -> list[FileEntry]:
    """Write one column file for the data files of one task."""
    number, sources = numbered
    columns = run.column_files(number, uuid4().hex, run.store.join(""))
    assert isinstance(columns, WrittenColumns)
    rows = partial(rows_of_file, run.store, features=columns.features, record_type=run.schema.record_type)
    entries = with_column_file(run.store, columns, ((source, rows(source)) for source in sources))
    run.store.copy_permissions([run.store.join(source.path) for source in sources], columns.path)
    return entries


logger = logging.getLogger(__name__)


# Each task of a run that describes files has a random number of this many digits, which the names of its
# column files contain.
_TASK_DIGITS = 15


class _Content(NamedTuple):
    """The result of scanning a file or a split of a file. ``blocks`` is empty for a compressed file.

    ``column_file`` is None for a split that is only a part of a file (``is_part``).
    """

    records: int
    bytes: int
    crc32c: int
    columns: statistics.Columns
    blocks: tuple[Block, ...]
    codec: str
    is_part: bool
    column_file: ColumnFile | None


def describe_files(dataset: ReadPlan, run: WriteRun, compute_each: ComputeEach) -> Snapshot:
    """Read the files of a read plan, and describe them as a snapshot. Each file of the plan must be one
    partition.

    If ``run.columnar`` is "auto", also write column files with the small columns of large files. Raise
    CorruptRecordError if a record is damaged, and SchemaError if a value does not fit its column.
    """
    values = dataset.partition_values
    schema = dataset.schema.select(name for name in dataset.schema.names if name not in values)
    partitioning = dataset.schema.select(values).fields if values else ()
    try:
        described = replace(run, store=dataset.store, schema=schema)
        entries = _read_files(described, dataset.files, dataset.options, compute_each)
    except SchemaError as error:
        if error.feature in dataset.options.integers and error.problem.endswith("int64"):
            problem = "records hold integers and floats, and a column of a snapshot has one kind"
            advice = "read the files with schema=, and write them to another directory with to_tfrecord"
            raise error.replaced(problem=problem, advice=advice, remedies=()) from None
        raise
    values = {item.name: values[item.name].cast(value_type(item.type)) for item in partitioning}
    codecs = {entry.codec for entry in entries}
    return Snapshot(
        EntryLog(from_entries(entries, schema, ()).with_values(values)),
        schema=schema,
        compression=known_codec(codecs.pop(), "") if len(codecs) == 1 else None,
        run=run.run,
        library="",
        partitioning=partitioning,
        order=tuple(dataset.schema.names),
        partial=bool(dataset.left_out_features) or dataset.options.extra != "raise",
    )


def describe_changed_files(run: WriteRun, compared: ComparedFiles, compute_each: ComputeEach) -> Snapshot:
    """Update a snapshot after other tools may have rewritten their files. No file is missing.

    Read only the files whose size or ``stamp``, such as an ETag, differs from the snapshot. If the content of
    a file is unchanged, update only its ``stamp`` and its column file. Write column files and raise errors as
    `describe_files` does.
    """
    snapshot, listed, changed = compared.snapshot, compared.listed, compared.is_rewritten
    entries = []
    described = replace(run, schema=snapshot.schema)
    read = _read_files(described, compared.files.filter(changed), ReadOptions(), compute_each)
    known = to_entries(listed.filter(changed), snapshot.schema, snapshot.partitioning)
    for before, now in zip(known, read, strict=True):
        if now.crc32c == before.crc32c:
            now = replace(before, stamp=now.stamp, columns=now.columns or before.columns)
        entries.append(replace(now, values=before.values))
    renewed = from_entries(entries, snapshot.schema, snapshot.partitioning)
    files = FileList.joined([listed.filter(pc.invert(changed)), renewed])
    files = with_known_versions(files.take(pc.index_in(listed["path"], files["path"])), listed)
    return replace(snapshot, log=EntryLog(files), run=run.run)


def commit_snapshot(store: Store, snapshot: Snapshot, before: Snapshot | None) -> Snapshot:
    """Commit a snapshot that describes all files. ``before`` is the newest snapshot, if there is one.

    Remove the column files of the run that are not listed, which repeated tasks have left. Raise
    ConcurrentWriteError if another write has committed since ``before``.
    """
    head = Head() if before is None else Head.of(before)
    run = WriteRun(store, snapshot.schema, snapshot.run, head=head)
    stored = Transaction(run, _AddSnapshot(snapshot), is_alone=True).commit()
    logger.info("%s: add_snapshot stored version %d: %r", store.public(), stored.number, stored)
    _remove_column_files(run, stored)
    return stored


@dataclass(frozen=True)
class _AddSnapshot(Operation):
    """Commit a description of all files, unless another write has committed meanwhile."""

    mode = "add_snapshot"
    described: Snapshot

    def rebase(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Self:
        if newest is not None and newest.number != run.base:
            problem = "another write was committed while add_snapshot read the files"
            raise ConcurrentWriteError(problem, add_snapshot_again(run.store.public()))
        return self

    def change(self, run: WriteRun, newest: Snapshot | None, files: FileList) -> Change:
        return Change(successor(self.described, newest, run, self))


def _read_files(
    run: WriteRun, files: FileList, options: ReadOptions, compute_each: ComputeEach
) -> list[FileEntry]:
    """Read all records of each file, and return its entry without partition values."""
    schema, store, small = run.schema, run.store, _small_columns(run)
    if small and small.may_store(0, pc.max(files["bytes"]).as_py() or 0):
        run.mark(uuid4().hex)
    contents = merge_by_file(partial(_read_split, run, options), _merge, store, files, options, compute_each)
    if small:
        # Only the task that reads a whole file can choose its small columns.
        again = [
            at for at, one in enumerate(contents) if one.is_part and small.may_store(one.records, one.bytes)
        ]
        scalars = replace(run, schema=feature_schema(small.features, schema.record_type))
        read = partial(_read_again, scalars, options)
        column_files = compute_each(read, files.take(pa.array(again, pa.int64())).infos) if again else []
        for at, column_file in zip(again, column_files, strict=True):
            contents[at] = contents[at]._replace(column_file=column_file)
    columns = statistics.file_statistics(schema, [one.columns for one in contents], len(contents))
    found = zip(files.names, contents, columns, files["stamp"].to_pylist(), strict=True)
    return [
        FileEntry(
            path,
            one.bytes,
            one.records,
            one.crc32c,
            (),
            one.blocks,
            of_file,
            stamp="" if is_part(path) else stamp,  # the name of a file of this library identifies its content
            columns=one.column_file,
            codec=one.codec,
        )
        for path, one, of_file, stamp in found
    ]


def _merge(first: _Content, second: _Content) -> _Content:
    statistics.continue_statistics(first.columns, second.columns)
    return _Content(
        first.records + second.records,
        first.bytes + second.bytes,
        crc32c_combine(first.crc32c, second.crc32c, second.bytes),
        first.columns,
        first.blocks + second.blocks,
        first.codec,
        is_part=True,
        column_file=None,
    )


def _small_columns(run: WriteRun) -> SmallColumnFiles | None:
    """Return a plan for the column files of one task if the run stores the small columns of large files."""
    attempt = uuid4()
    files = run.column_files(attempt.int % 10**_TASK_DIGITS, attempt.hex, run.store.join(""))
    return files if isinstance(files, SmallColumnFiles) else None


@redact_errors
def _read_again(run: WriteRun, options: ReadOptions, file: FileInfo) -> ColumnFile | None:
    """Read a whole file, and write its column file."""
    split = Split(file)
    with run.store.reading_ahead([split.stored_range]) as ahead:
        return _read_split(run, options, ahead, split).column_file


def _read_split(run: WriteRun, options: ReadOptions, store: Store, split: Split) -> _Content:
    """Read the records of a split. If the split is a whole file, also write its column file."""
    is_part = split.start.offset > 0 or split.stop is not None
    files = None if is_part else _small_columns(run)
    small = files and SmallColumns(run.store, files)
    schema, total, content = run.schema, Checksum(), 0
    checked = replace(store, checksum=total)
    decoder = Decoder(
        schema.columns,
        schema.record_type,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
        one_map=options.extra == "other names",
    )
    encoder = Encoder(schema.columns, schema.record_type)
    columns = statistics.empty_statistics(schema)
    blocks: list[Block] = []
    records = 0
    for chunk in RecordFile(checked, split, options).run(decoder.decode, schema.columns):
        batch = chunk.result.batch
        if not batch.num_rows:
            continue
        try:
            schema.from_storage(batch)  # raise if a value does not fit its column
        except TFRecordError as error:
            raise locate_error(error, store.public(split.file.path), chunk.number(0)) from None
        encoder.bind(batch)
        statistics.continue_statistics(columns, encoder.statistics([0, batch.num_rows]))
        blocks += _blocks(chunk)
        records += batch.num_rows
        if small:
            offsets = chunk.offsets(chunk.bounds)
            small.add(batch, offsets[:-1])
            content = int(offsets[-1])
    codec = (detect(total.head) if split.start.offset == 0 else None) or "none"
    path = split.file.path
    column_file = None
    if small:
        column_file = small.end_file(store.relative(path), total.bytes, total.crc32c, content)
    if column_file:
        run.store.copy_permissions([path], run.store.join(column_file.path))
    return _Content(
        records,
        total.bytes,
        total.crc32c,
        columns,
        tuple(blocks) if codec == "none" else (),
        codec,
        is_part,
        column_file,
    )


def _blocks(chunk: Chunk[Decoded]) -> list[Block]:
    """Divide the records in a chunk of an uncompressed file into blocks."""
    found = scan(chunk.data, final=True, verify_crc=False, every=BLOCK_BYTES)
    offsets = chunk.offsets(pa.array(found.offsets).to_numpy()).tolist()
    first, numbers = chunk.number(0), pa.array(found.numbers).to_pylist()
    return [Block(at, at, first + number) for at, number in zip(offsets, numbers, strict=True)]
