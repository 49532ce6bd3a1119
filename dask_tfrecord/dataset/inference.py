"""The schema of files that carry none, from a bounded sample of their records."""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa

from dask_tfrecord.codec import Damage, Feature, Inference, RecordType, scan
from dask_tfrecord.dataset.files import FRAME_BYTES, WINDOW_BYTES, ReadOptions, open_window, placed
from dask_tfrecord.dataset.listing import FileInfo
from dask_tfrecord.dataset.splits import Split
from dask_tfrecord.dataset.store import Store
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.schema import Field, Schema

# The first file, the last, and some between; of each, the records of one window.
_FILES = 5

# The one column of records that are not messages.
PAYLOAD = pa.field("record", pa.binary())

_TYPES = {"int64": pa.int64(), "float": pa.float32(), "bytes": pa.binary()}


class SampledFile(NamedTuple):
    """A file, how many records of others were looked at before its own, and where its own begin."""

    path: str
    first: int
    offsets: pa.Array


@dataclass(frozen=True)
class Sample:
    """What some records of some files hold.

    Attributes
    ----------
    record_type : "example", "sequence_example" or "bytes"
        As asked for, or as recognised.
    features : tuple of Feature
        In the order first seen.
    files : tuple of SampledFile
        In their order.
    """

    record_type: RecordType
    features: tuple[Feature, ...]
    files: tuple[SampledFile, ...]

    def place(self, record: int) -> tuple[str, int, int]:
        """File of a sampled record, its number in the file, and its offset."""
        file = self.files[bisect_right(self.files, record, key=lambda file: file.first) - 1]
        number = record - file.first
        return file.path, number, file.offsets[number].as_py()


def take_sample(
    store: Store,
    files: Sequence[FileInfo],
    *,
    record_type: RecordType | Literal["infer"],
    options: ReadOptions,
) -> Sample:
    """Look at records of the first file, the last and some between.

    Records are recognised as sequence examples if any holds a feature list, and as bytes if the first are
    not messages, or are not empty and yet none of them holds a feature.

    Raises
    ------
    CorruptRecordError
        For damage in the sampled part.
    """
    if record_type == "bytes":
        return Sample("bytes", (), ())
    # An Example reads as a SequenceExample that has a context only.
    inference = Inference("example" if record_type == "example" else "sequence_example")
    sampled: list[SampledFile] = []
    records = payload = 0
    for file in _choose(files):
        path = store.public(file.path)
        try:
            offsets, consumed = _feed(inference, store, file, options)
        except _NotAMessageError as error:
            if record_type == "infer" and not inference.features():
                return Sample("bytes", (), ())
            raise placed(error.damage, path, 0) from None
        except TFRecordError as error:
            raise placed(error, path, 0) from None
        sampled.append(SampledFile(path, records, offsets))
        records += len(offsets)
        payload += consumed - FRAME_BYTES * len(offsets)
    features = tuple(inference.features())
    if record_type == "infer":
        if payload and not features:
            return Sample("bytes", (), ())
        lists = any(feature.feature_list for feature in features)
        record_type = "sequence_example" if lists else "example"
    return Sample(record_type, features, tuple(sampled))


def infer_schema(sample: Sample, given: Mapping[str, pa.DataType]) -> Schema:
    """The columns that hold what was sampled, except for those whose types are ``given``.

    A feature that never has more than one value becomes a scalar, a feature list a list of lists; bytes
    become strings if all are valid UTF-8. A feature without any value gets the null type.

    Raises
    ------
    SchemaError
        If a feature has two kinds, naming a record of each.
    """
    types = dict(given)
    if sample.record_type == "bytes":
        types = types or {PAYLOAD.name: PAYLOAD.type}
    known = Schema.from_arrow(pa.schema(list(types.items())), sample.record_type).fields if types else ()
    fields = {field.name: field for field in known}
    names = Counter(feature.name for feature in sample.features)
    inferred = {
        feature.name: fields.get(feature.name) or _field(feature, sample, names[feature.name])
        for feature in sample.features
    }
    return Schema(tuple((inferred | fields).values()), sample.record_type)


class _NotAMessageError(Exception):
    """The frame of a record is whole, but what is in it is not a message."""

    def __init__(self, damage: TFRecordError) -> None:
        super().__init__(str(damage))
        self.damage = damage


def _choose(files: Sequence[FileInfo]) -> list[FileInfo]:
    """A few files, the same ones every time, in their order."""
    middle = range(1, len(files) - 1)
    some = random.Random(len(files)).sample(middle, min(len(middle), _FILES - 2))
    return [files[index] for index in sorted({0, *some, len(files) - 1})]


def _feed(inference: Inference, store: Store, file: FileInfo, options: ReadOptions) -> tuple[pa.Array, int]:
    """Show the file's first records to the inference: where they begin, and their bytes."""
    with open_window(store, Split(file), options, WINDOW_BYTES) as window:
        for data in window:
            records, consumed, damage = inference.feed(data, final=window.final)
            if damage:
                error = damage.error((), 0, 0)
                raise _NotAMessageError(error) if _is_framed(data, damage) else error
            if records:
                return scan(data[:consumed], final=True, offsets=True).offsets, consumed
    return pa.array([], pa.int64()), 0


def _is_framed(data: memoryview, damage: Damage) -> bool:
    frame = data[damage.offset : damage.offset + damage.size]
    return damage.size > 0 and scan(frame, final=True).damage is None


def _field(feature: Feature, sample: Sample, count: int) -> Field:
    if count > 1:
        raise SchemaError(
            "is both a feature of the context and a feature list",
            path=sample.files[0].path,
            feature=feature.name,
            advice=f'pass schema={{"{feature.name}": ...}} with the type of the one to read',
        )
    if len(feature.kinds) > 1:
        (one, at), (other, elsewhere) = sorted(feature.kinds.items(), key=lambda item: item[1])[:2]
        path, record, offset = sample.place(at)
        other_path, other_record, _ = sample.place(elsewhere)
        raise SchemaError(
            f"holds {one} here and {other} in {other_path}, record {other_record:,}",
            path=path,
            record=record,
            offset=offset,
            feature=feature.name,
            advice="pass a schema= without the feature, or read files of one kind at a time",
        )
    if not feature.kinds and not feature.feature_list:
        return Field(feature.name, pa.null())
    type_ = next((_TYPES[kind] for kind in feature.kinds), pa.binary())
    if pa.types.is_binary(type_) and feature.utf8 and feature.max_values:
        type_ = pa.string()
    depth = 2 if feature.feature_list else int(feature.max_values > 1)
    for _ in range(depth):
        type_ = pa.list_(type_)
    return Field(feature.name, type_)
