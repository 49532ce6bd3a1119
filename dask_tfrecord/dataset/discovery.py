"""What a path means: the files, the columns, and how the reading of them is divided."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.dataset.inferred_schema import (
    PAYLOAD,
    check_places,
    conflicts,
    guess_of,
    infer_schema,
    refuse,
)
from dask_tfrecord.dataset.packing import plan_partitions
from dask_tfrecord.dataset.partitioning.key_columns import (
    key_clash,
    key_columns,
    key_fields,
    payload_clash,
    snapshot_values,
    with_keys,
)
from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.dataset.query.filters import names_in, parse_filters
from dask_tfrecord.dataset.query.predicates import Predicate, outcomes_in_file
from dask_tfrecord.dataset.requested_columns import GivenHive, GivenSchema, Wanted, check_given, override
from dask_tfrecord.dataset.sampling import look_at_all, take_sample
from dask_tfrecord.dataset.snapshot.model import FileEntry, Snapshot, find_snapshot
from dask_tfrecord.dataset.snapshot.stamps import is_proven
from dask_tfrecord.dataset.snapshot.visibility import committed_files, snapshot_files
from dask_tfrecord.errors import CorruptRecordError, SchemaError
from dask_tfrecord.files.boundaries import ComputeEach, index_large_files
from dask_tfrecord.files.inference import AskedType, Sample
from dask_tfrecord.files.options import Guess, ReadOptions
from dask_tfrecord.files.part_names import is_part
from dask_tfrecord.files.splits import BlockIndex
from dask_tfrecord.files.storage.glob_advice import suggest_globs
from dask_tfrecord.files.storage.listing import FileInfo, PathLike, as_paths, list_files, with_trailing_slash
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.storage_types import is_list

Infer = Literal["sample", "all"]

_USUAL = ReadOptions()


def one_by_one(function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """What `open_dataset` needs to look at all files, without any parallelism."""
    return list(map(function, arguments))


def open_dataset(
    paths: PathLike | Sequence[PathLike],
    *,
    columns: Iterable[str] | None = None,
    schema: GivenSchema | None = None,
    hive: GivenHive = True,
    use_snapshot: bool = True,
    record_type: AskedType = "infer",
    infer: Infer = "sample",
    compute_each: ComputeEach = one_by_one,
    options: ReadOptions = _USUAL,
    blocksize: int | None = None,
    filters: Any = None,
    whole_files: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> Dataset:
    """Find the files that the paths mean, the schema to read them with, and how to divide the reading.

    A directory that this library wrote is read by its snapshot, which knows all that. All else is listed, and
    what ``schema`` leaves open is inferred from a sample, or from all records by tasks of ``compute_each``,
    which also locate the records of large files. Files that hold no row that the filters want are left out
    at once, where that is known. With ``whole_files`` those of a snapshot are not split. What is wrong with
    the types of columns other than ``columns``, if these are given, is no error.
    """
    places = as_paths(paths)
    wanted = Wanted.of(schema, hive, None if columns is None else {*columns, *names_in(filters)})
    if isinstance(filters, pc.Expression):  # which does not list its columns
        wanted = replace(wanted, mentioned=str(filters))
    record_type = wanted.record_type or "infer" if record_type == "infer" else record_type
    locate = partial(index_large_files, options=options, blocksize=blocksize, compute_each=compute_each)
    look = partial(_look, record_type=record_type, infer=infer, compute_each=compute_each, options=options)
    alone = isinstance(paths, str | os.PathLike)
    if use_snapshot and alone:
        store = with_trailing_slash(Store.at(places[0], storage_options))
        snapshot = find_snapshot(store)
        while snapshot is not None:
            try:
                place = _whole if whole_files else locate
                return _open_snapshot(
                    store, snapshot, wanted, record_type, options, blocksize, filters, look, place
                )
            except CorruptRecordError:
                newest = find_snapshot(store)
                if newest is None or newest.number == snapshot.number:
                    raise
                snapshot = newest  # an overwrite has taken the place of the one before
    listing = list_files(paths if alone else places, storage_options)
    listing = listing._replace(files=committed_files(listing, use_snapshot=use_snapshot))
    values = {name: column for name, column in key_columns(listing, wanted).items() if wanted.keeps(name)}
    options = replace(options, globs=suggest_globs(listing), guessed=record_type == "infer")
    look_here = partial(look, listing.store, listing.files, options=options)
    found = _record_columns(wanted, list(values), record_type, look_here, certain=infer == "all")
    every = with_keys(found.schema, key_fields(values, wanted), wanted)
    predicate = None if filters is None else parse_filters(filters, every)
    kept = _that_may_match(predicate, every, [None] * len(listing.files), values)
    files = [listing.files[index] for index in kept]
    known = locate(listing.store, files, [None] * len(files))
    partitions, values = plan_partitions(files, known, _taken(values, kept), blocksize=blocksize)
    guarded = frozenset(values) - wanted.keys.keys()
    return Dataset(
        listing.store,
        partitions,
        every,
        replace(options, guess=found.guess),
        values,
        filters=predicate,
        refused_features=guarded,
        ignored_features=found.left_out,
    )


def _open_snapshot(
    store: Store,
    snapshot: Snapshot,
    wanted: Wanted,
    record_type: AskedType,
    options: ReadOptions,
    blocksize: int | None,
    filters: Any,
    look: Callable[..., Sample],
    locate: Callable[..., list[FileEntry | BlockIndex | None]],
) -> Dataset:
    files: Sequence[FileInfo] = snapshot_files(store, snapshot)
    left_out = wanted.left_out
    if snapshot.partial:
        options = replace(options, extra="ignore")
    if record_type in ("infer", snapshot.schema.record_type) or not files:
        columns = override(snapshot, wanted)
    else:
        keys = [item for item in snapshot.partitioning if wanted.hive]
        names = [item.name for item in keys]
        found = _record_columns(wanted, names, record_type, partial(look, store, files))
        columns = with_keys(found.schema, [item for item in keys if wanted.keeps(item.name)], wanted)
        left_out, options = found.left_out, replace(options, guess=found.guess)
    values = snapshot_values(snapshot, columns)
    predicate = None if filters is None else parse_filters(filters, columns)
    described = list(zip(files, snapshot.files, _with_statistics(snapshot, columns), strict=True))
    entries = [entry if is_proven(file, told) else None for file, told, entry in described]
    told_of = [entry or _doubted(told) for entry, (_, told, _) in zip(entries, described, strict=True)]
    kept = _that_may_match(predicate, columns, entries, values)
    by_values = _that_may_match(predicate, columns, [None] * len(files), values)
    by_path = {files[at].path: replace(entry, blocks=()) for at in kept if (entry := entries[at])}
    pruned = tuple(files[index] for index in sorted(set(by_values) - set(kept)))
    files = [files[index] for index in kept]
    known = locate(store, files, [told_of[index] for index in kept])
    partitions, values = plan_partitions(files, known, _taken(values, kept), blocksize=blocksize)
    return Dataset(
        store,
        partitions,
        columns,
        options,
        values,
        by_path,
        predicate,
        pruned_files=pruned,
        ignored_features=left_out,
        index=tuple(level for level in snapshot.index or () if level[0] in columns.names),
    )


def _whole(
    store: Store, files: Sequence[FileInfo], known: Sequence[FileEntry | BlockIndex]
) -> list[FileEntry | BlockIndex | None]:
    """What is known of files that are not to be split."""
    return [replace(one, blocks=()) for one in known]


def _doubted(entry: FileEntry) -> BlockIndex:
    """What to use of the entry of a file that may be another one now.

    Neither statistics nor counts: they could leave out rows. Files with the name of a write of ours are
    split at their blocks, because no other content ever gets such a name; the checksums of the records that
    begin there would show it.
    """
    return BlockIndex(None, entry.blocks if is_part(entry.path) else ())


def _with_statistics(snapshot: Snapshot, schema: Schema) -> Sequence[FileEntry]:
    """The files; statistics of columns that are to be read as another type, or of others, are left out."""
    same = schema.record_type == snapshot.schema.record_type  # else one of the same name may be the payload
    names = {item.name for item in set(snapshot.schema.fields) & set(schema.fields) if same}
    if names == set(snapshot.schema.names):
        return snapshot.files
    return [
        replace(file, statistics=tuple(column for column in file.statistics if column.name in names))
        for file in snapshot.files
    ]


def _that_may_match(
    predicate: Predicate | None,
    schema: Schema,
    entries: Sequence[FileEntry | None],
    values: dict[str, pa.Array],
) -> list[int]:
    """The numbers of the files that may hold rows for which the predicate is true."""
    if predicate is None:
        return list(range(len(entries)))
    fields = [item for item in schema.fields if item.name in predicate.columns()]
    keys = [item.name for item in fields if item.name in values]
    return [
        index
        for index, entry in enumerate(entries)
        if True in outcomes_in_file(predicate, fields, entry, {name: values[name][index] for name in keys})
    ]


def _taken(values: dict[str, pa.Array], kept: Sequence[int]) -> dict[str, pa.Array]:
    """The partition columns of the files that are kept."""
    taken = pa.array(kept, pa.int64())
    return {name: column.take(taken) for name, column in values.items()}


def _look(
    store: Store,
    files: Sequence[FileInfo],
    *,
    record_type: AskedType,
    infer: Infer,
    compute_each: ComputeEach,
    options: ReadOptions,
) -> Sample:
    """What the files hold."""
    if infer == "sample":
        return take_sample(store, files, record_type=record_type, options=options)
    return look_at_all(store, files, record_type=record_type, options=options, compute_each=compute_each)


class _Columns(NamedTuple):
    """The columns in the records, the features that are none, and what a sample had to guess."""

    schema: Schema
    left_out: frozenset[str] = frozenset()
    guess: Guess | None = None


def _record_columns(
    wanted: Wanted,
    keys: Sequence[str],
    record_type: AskedType,
    look: Callable[[], Sample],
    *,
    certain: bool = False,
) -> _Columns:
    """The columns in the records; a whole schema that is given with its record type is enough."""
    types = {name: type_ for name, type_ in wanted.types.items() if name not in keys}
    if wanted.whole and not types:
        return _Columns(Schema((), "example" if record_type == "infer" else record_type))
    if wanted.whole and record_type != "infer":
        return _Columns(Schema(wanted.fields(types, record_type), record_type))
    sample = _trusted(look(), types, record_type)
    if wanted.whole:
        check_places(sample, types)
        return _Columns(Schema(wanted.fields(types, sample.known_type), sample.known_type))
    check_places(sample, {name: type_ for name, type_ in types.items() if wanted.wants(name)})
    if sample.record_type == "bytes":
        if PAYLOAD.name in keys and not types:
            raise payload_clash(PAYLOAD.name)
        return _Columns(infer_schema(sample, types, without=keys))
    _check_keys(sample, keys, wanted)
    known = [*(feature.name for feature in sample.features), *keys]
    if warning := check_given([*types, *sorted(wanted.left_out)], known, certain=certain):
        warnings.warn(warning, UserWarning, stacklevel=4)
    clashes = conflicts(sample, skip={*types, *keys, *wanted.left_out})
    if refused := [clash for name, clash in clashes.items() if wanted.wants(name)]:
        raise refuse(refused)
    left_out = wanted.left_out | clashes.keys()
    schema = infer_schema(sample, types, without=[*keys, *left_out])
    return _Columns(schema, left_out, guess_of(sample, types, everything=certain))


def _trusted(sample: Sample, types: Mapping[str, pa.DataType], record_type: AskedType) -> Sample:
    """The sample, of another record type if the given types or the doubts about it speak for that."""
    lists = any(is_list(type_) and is_list(type_.value_type) for type_ in types.values())
    if sample.doubt and sample.features and types:  # the caller knows the features
        sample = replace(sample, record_type="example", doubt="")
        lists = lists or any(feature.feature_list for feature in sample.features)
    if sample.record_type == "bytes" and record_type == "infer" and types and not _is_payload(types):
        raise SchemaError(
            f"schema= names {', '.join(map(repr, types))}, but the records are no Examples"
            + (f": {sample.doubt}" if sample.doubt else ""),
            advice='pass record_type="bytes" without schema= to read the payloads as they are',
        )
    if sample.doubt:
        warnings.warn(
            f"the records do not look like Examples and are read as bytes: {sample.doubt}; "
            'pass record_type="bytes" to read them so without this warning, or record_type="example" or '
            '"sequence_example" if they are such',
            UserWarning,
            stacklevel=5,
        )
    if lists and record_type == "infer" and sample.known_type == "example":  # none of the sample has a list
        return replace(sample, record_type="sequence_example")
    return sample


def _is_payload(types: Mapping[str, pa.DataType]) -> bool:
    """Whether the types are those of one column of payloads."""
    return len(types) == 1 and all(type_ in (pa.binary(), pa.string()) for type_ in types.values())


def _check_keys(sample: Sample, keys: Sequence[str], wanted: Wanted) -> None:
    """Refuse a key that is a feature as well, unless it was said that the directories decide."""
    for feature in sample.features:
        name = feature.name
        if name in keys and name not in wanted.keys and wanted.wants(name):
            raise key_clash(name).located(path=feature.path)
