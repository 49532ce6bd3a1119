"""The schema of files that carry none, from a bounded sample of their records, or from all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

from dask_tfrecord.codec import FRAME_BYTES, NOT_AN_EXAMPLE, Damage, Feature, Inference, RecordType, scan
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.files.damage import DamagePolicy, Losses
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import run_kernel
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.store import Store

AskedType: TypeAlias = RecordType | Literal["infer"]


class RecordPosition(NamedTuple):
    """Where a record is: the file, its number in the file, and where its frame begins in the content."""

    path: str
    record: int
    offset: int


@dataclass(frozen=True)
class FeatureSummary:
    """What was seen of one feature; the counts are over the records that hold it with a kind.

    Attributes
    ----------
    path : str
        The first file that has it.
    kinds : dict of str to RecordPosition
        The kinds it has, and of each the first record.
    """

    name: str
    feature_list: bool
    path: str
    records: int
    kinds: dict[str, RecordPosition]
    min_values: int
    max_values: int
    min_steps: int
    max_steps: int
    utf8: bool
    text: bool

    @property
    def length(self) -> int | None:
        """How many values each record holds, if that is the same number in all of them."""
        return self.min_values if self.kinds and self.min_values == self.max_values else None

    def merged(self, later: "FeatureSummary") -> "FeatureSummary":
        """The same of these records and of later ones."""
        return FeatureSummary(
            self.name,
            self.feature_list,
            self.path,
            self.records + later.records,
            self.kinds | {kind: place for kind, place in later.kinds.items() if kind not in self.kinds},
            min(one.min_values for one in (self, later) if one.kinds or not (self.kinds or later.kinds)),
            max(self.max_values, later.max_values),
            min(one.min_steps for one in (self, later) if one.records or not (self.records or later.records)),
            max(self.max_steps, later.max_steps),
            self.utf8 and later.utf8,
            self.text and later.text,
        )


@dataclass(frozen=True)
class Sample:
    """What some records hold. Samples of parts merge to that of the whole, exactly.

    Attributes
    ----------
    record_type : "example", "sequence_example", "bytes" or "infer"
        As asked for, or as recognised.
    features : tuple of FeatureSummary
        In the order first seen.
    records, payload : int
        How many records there are, and the bytes in them.
    non_message : TFRecordError, optional
        For the first record that is no message, after which its file was not looked at any further.
    doubt : str
        Why records that parse as messages may be none of the record type. Of a sample whose record type is
        known, why they were taken for bytes; empty if they were not.
    """

    record_type: AskedType
    features: tuple[FeatureSummary, ...] = ()
    records: int = 0
    payload: int = 0
    non_message: TFRecordError | None = None
    doubt: str = ""

    def merged(self, later: "Sample") -> "Sample":
        """What these records and later ones hold."""
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
            "" if self._is_certain or later._is_certain else self.doubt or later.doubt,
        )

    @property
    def _is_certain(self) -> bool:
        """Whether a record is no message of any type, so that the records are bytes without doubt."""
        return self.non_message is not None and not self.doubt

    @property
    def known_type(self) -> RecordType:
        """The record type; that of plain examples where no record told."""
        return "example" if self.record_type == "infer" else self.record_type

    def is_nullable(self, feature: FeatureSummary) -> bool:
        """Whether some of the records lack the feature."""
        return feature.records < self.records


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
    """What the records of a split hold.

    With ``limit``, only the first so many records of the first window count. With ``windows``, the records of
    about so many windows count.
    """
    windows = 1 if limit is not None else windows
    # An Example reads as a SequenceExample that has a context only.
    inference = Inference(
        "example" if record_type == "example" else "sequence_example",
        max_records=-1 if limit is None else limit,
        verify_crc=options.verify_crc,
        max_record_bytes=options.max_record_bytes,
    )
    path = store.public(split.file.path)
    places: dict[int, RecordPosition] = {}
    records = payload = 0
    non_message = None
    kernel = _Feed(inference)
    if options.damage.skips:  # and is told of, and counted, by who reads
        options = replace(options, damage=DamagePolicy("skip"))
    try:
        for step in run_kernel(store, split, options, kernel, losses=losses):
            count = step.result.records
            _note_places(
                places, inference, records, step.data, RecordPosition(path, step.record, step.offset)
            )
            records += count
            payload += len(step.data) - FRAME_BYTES * count + kernel.payload
            if count and windows is not None and step.result.damage is None:
                windows -= 1
                if windows <= 0:
                    break
    except CorruptRecordError as error:
        if not kernel.payload:
            raise
        non_message = error
    features = tuple(_seen(feature, path, places) for feature in inference.features())
    doubt = "" if kernel.other is None else f"{path}, record {kernel.other:,} is a message of another type"
    return Sample(record_type, features, records, payload, non_message, doubt)


class _Fed(NamedTuple):
    records: int
    consumed: int
    damage: Damage | None


class _Feed:
    """Shows records to an inference.

    ``payload`` is what is in the last one if it is whole but no message. ``other`` is the number of the first
    record that is a message of another type.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self.payload = 0
        self.other: int | None = None
        self._records = 0

    def __call__(self, data: memoryview, *, final: bool) -> _Fed:
        fed = _Fed(*self._inference.feed(data, final=final))
        self._records += fed.records
        if fed.damage and fed.damage.reason == NOT_AN_EXAMPLE:
            self.other = self._records if self.other is None else self.other
        is_whole = fed.damage is not None and _is_framed(data, fed.damage)
        self.payload = fed.damage.size - FRAME_BYTES if fed.damage and is_whole else 0
        return fed


def _note_places(
    places: dict[int, RecordPosition],
    inference: Inference,
    before: int,
    data: memoryview,
    start: RecordPosition,
) -> None:
    """Remember where those records of the last call are that were the first of a feature's kind."""
    numbers = {number for feature in inference.features() for number in feature.kinds.values()}
    new = sorted(number for number in numbers if number >= before)
    if new:
        offsets = scan(data, final=True, verify_crc=False, offsets=True).offsets or ()
        for number in new:
            at = number - before
            # What comes next may turn out to be no message after its first features.
            offset = offsets[at].as_py() if at < len(offsets) else len(data)
            places[number] = RecordPosition(start.path, start.record + at, start.offset + offset)


def _is_framed(data: memoryview, damage: Damage) -> bool:
    frame = data[damage.offset : damage.offset + damage.size]
    return damage.size > 0 and scan(frame, final=True).damage is None


def _seen(feature: Feature, path: str, places: Mapping[int, RecordPosition]) -> FeatureSummary:
    kinds = {kind: places[number] for kind, number in sorted(feature.kinds.items(), key=itemgetter(1))}
    return FeatureSummary(**{**feature._asdict(), "kinds": kinds, "path": path})
