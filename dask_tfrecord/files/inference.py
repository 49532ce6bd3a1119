"""Summarise the names, kinds and value counts of the features in sampled records, to infer schemas."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from dask_tfrecord.codec import (
    FRAME_BYTES,
    NOT_AN_EXAMPLE,
    PAYLOAD_REASONS,
    TOO_MANY_FEATURES,
    Checked,
    Feature,
    Fed,
    Inference,
    RecordType,
    scan,
    too_many_features,
)
from dask_tfrecord.errors import CorruptRecordError, FileChangedError, TFRecordError
from dask_tfrecord.files.damage import DamagePolicy, Losses
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import Chunk, RecordFile, Result
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.window import Numbers
from dask_tfrecord.storage.store import Store

AskedType: TypeAlias = RecordType | Literal["infer"]


class RecordPosition(NamedTuple):
    """The position of a record: the path of the file, the index in the file, and the decompressed offset."""

    path: str
    record: int
    offset: int


@dataclass(frozen=True)
class FeatureSummary:
    """Summarise one feature in some records.

    ``path`` is the first file with the feature. ``kinds`` maps each kind of the feature to the first record
    with this kind. ``max_values`` is the largest number of values of the feature in one record. ``utf8`` and
    ``text`` have the same meaning as in `codec.Feature`.
    """

    name: str
    feature_list: bool
    path: str
    kinds: dict[str, RecordPosition]
    max_values: int
    utf8: bool
    text: bool

    def merged(self, later: "FeatureSummary") -> "FeatureSummary":
        return FeatureSummary(
            self.name,
            self.feature_list,
            self.path,
            self.kinds | {kind: position for kind, position in later.kinds.items() if kind not in self.kinds},
            max(self.max_values, later.max_values),
            self.utf8 and later.utf8,
            self.text and later.text,
        )


@dataclass(frozen=True)
class Sample:
    """Summarise the features of some records. `merged` adds the summary of later records.

    ``payload`` is the total size of the payloads in bytes. ``non_message`` is the error for the first record
    that is not a protobuf message; its file was read only up to it. ``reason_for_bytes`` explains why records
    that parse as messages should be read as bytes, or is empty.
    """

    record_type: AskedType
    features: tuple[FeatureSummary, ...] = ()
    records: int = 0
    payload: int = 0
    non_message: TFRecordError | None = None
    reason_for_bytes: str = ""

    def merged(self, later: "Sample") -> "Sample":
        found = {(one.name, one.feature_list): one for one in self.features}
        for one in later.features:
            key = one.name, one.feature_list
            found[key] = found[key].merged(one) if key in found else one
        return Sample(
            self.record_type,
            tuple(found.values()),
            self.records + later.records,
            self.payload + later.payload,
            self.non_message or later.non_message,
            ""
            if self._is_certainly_bytes or later._is_certainly_bytes
            else self.reason_for_bytes or later.reason_for_bytes,
        )

    @property
    def _is_certainly_bytes(self) -> bool:
        """True if a record is not a protobuf message, so that records can be read only as bytes."""
        return self.non_message is not None and not self.reason_for_bytes

    @property
    def known_type(self) -> RecordType:
        """The type of the records, or "example" if the sample does not determine it."""
        return "example" if self.record_type == "infer" else self.record_type


def sample_split(
    store: Store,
    split: Split,
    *,
    options: ReadOptions,
    record_type: AskedType,
    limit: int | None = None,
    windows: int | None = None,
    losses: Losses | None = None,
) -> Sample:
    """Summarise the records of a split. ``limit`` restricts the summary to that many records of the first
    window, and ``windows`` to about that many windows.

    Raise CorruptRecordError for damage that the options do not skip. Raise SchemaError if the records have
    more features than the options allow.
    """
    windows = 1 if limit is not None else windows
    if windows is not None:
        store = replace(store, is_sparing=True)
    # An Example can be parsed as a SequenceExample with a context and without feature lists.
    inference = Inference(
        "example" if record_type == "example" else "sequence_example",
        max_records=-1 if limit is None else limit,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
        max_features=options.max_features,
    )
    places: dict[int, RecordPosition] = {}
    records = payload = 0
    non_message = None
    feed = _Feed(inference)
    kernel: Callable[..., Result] = feed
    if options.damage.skips:  # a later read of the file counts, reports and quarantines the damage
        options = replace(options, damage=DamagePolicy("skip"))
        kernel = partial(scan, verify_crc=False)  # `feed.check` has already verified and parsed the records
    file = RecordFile(store, split, options)
    path = file.path
    try:
        for chunk in file.run(kernel, losses=losses, check=feed.check):
            count = chunk.result.records
            _note_places(places, inference, records, chunk, path)
            records += count
            payload += len(chunk.data) - FRAME_BYTES * count
            if count and windows is not None and chunk.result.damage is None:
                windows -= 1
                if windows <= 0:
                    break
    except CorruptRecordError as error:
        if not feed.payload or isinstance(error, FileChangedError):
            raise
        non_message = error
    features = tuple(_summary(feature, path, places) for feature in inference.features())
    reason = "" if feed.other is None else f"{path}, record {feed.other:,} is a message of another type"
    return Sample(record_type, features, records, payload + feed.payload, non_message, reason)


class _Feed:
    """Provide the kernel function and the check for `RecordFile.run`. Both add records to one inference.

    ``payload`` counts the payload bytes of intact frames whose payload is not a protobuf message. ``other``
    is the index of the first record that is a protobuf message of an unexpected type.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self.payload = 0
        self.other: int | None = None
        self._records = 0

    def __call__(self, data: memoryview, *, final: bool) -> Fed:
        fed = self._inference.feed(data, final=final)
        self._records += fed.records
        if fed.damage and fed.damage.reason == NOT_AN_EXAMPLE:
            self.other = self._records if self.other is None else self.other
        if fed.damage and fed.damage.size:
            frame = data[fed.damage.offset : fed.damage.offset + fed.damage.size]
            if scan(frame, final=True).damage is None:
                self.payload += len(frame) - FRAME_BYTES
        return fed

    def check(self, data: memoryview, *, final: bool, limit: int | None) -> Checked:
        checked = self._inference.check(data, final=final, limit=limit)
        numbers = Numbers(self._records, checked.records_before)
        if TOO_MANY_FEATURES in checked.texts:  # the record is intact, so skipping it would lose a row
            at = checked.reasons.tolist().index(checked.texts.index(TOO_MANY_FEATURES))
            damage = self._inference.feed(data[checked.starts[at] : checked.ends[at]], final=True).damage
            assert damage is not None
            raise too_many_features(int(damage.found), record=int(checked.records_before[at]) + at)
        reasons = np.array([*checked.texts, ""])[checked.reasons]
        others = np.flatnonzero(reasons == NOT_AN_EXAMPLE)
        if len(others) and self.other is None:
            self.other = self._records + int(checked.records_before[others[0]] + others[0])
        is_whole = np.isin(reasons, list(PAYLOAD_REASONS))
        self.payload += int((checked.ends - checked.starts - FRAME_BYTES)[is_whole].sum())
        self._records = numbers.of(checked.records)
        return checked


def _note_places(
    places: dict[int, RecordPosition], inference: Inference, before: int, chunk: Chunk[Result], path: str
) -> None:
    """Store the position of the first record with each kind of a feature that first occurs in this chunk."""
    numbers = {number for feature in inference.features() for number in feature.kinds.values()}
    new = sorted(number for number in numbers if number >= before)
    if new:
        offsets = chunk.offsets(chunk.bounds[:-1])
        for number in new:
            at = number - before
            places[number] = RecordPosition(path, chunk.number(at), int(offsets[at]))


def _summary(feature: Feature, path: str, places: Mapping[int, RecordPosition]) -> FeatureSummary:
    kinds = {kind: places[number] for kind, number in sorted(feature.kinds.items(), key=itemgetter(1))}
    return FeatureSummary(**feature._asdict() | {"path": path, "kinds": kinds})
