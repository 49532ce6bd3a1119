"""The schema of files that carry none, from a bounded sample of their records, or from all of them."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from dask_tfrecord.codec import NOT_AN_EXAMPLE, Damage, Feature, Inference, RecordType, scan
from dask_tfrecord.errors import CorruptRecordError, TFRecordError
from dask_tfrecord.files.damage import DamagePolicy, Losses
from dask_tfrecord.files.options import ReadOptions
from dask_tfrecord.files.reading import WINDOW_BYTES, walk
from dask_tfrecord.files.splits import Split, plan_pieces
from dask_tfrecord.files.storage.listing import FileInfo
from dask_tfrecord.files.storage.redaction import discreet
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import FRAME_BYTES

# The first file, the last, and some between; of each, the records of one window, at most so many.
_FILES = 5
_RECORDS = 100_000

# Where these records do not show the type of each column: so many stored bytes and files are looked at in
# addition, and of each file so many windows at most, which bounds what a file may decompress to.
_MORE_BYTES = 1 << 26
_MORE_FILES = 256
_MORE_WINDOWS = 64

# Requests at a time.
_THREADS = 16

# Stored bytes that a task looks at when all records are looked at.
_TASK_BYTES = 1 << 27

# A file without records, plain or in gzip or zlib, has no more bytes than that; one with a feature has more.
_EMPTY_BYTES = 20

AskedType: TypeAlias = RecordType | Literal["infer"]

# Calls a function with each argument, in parallel maybe, and gives the results in their order.
ComputeEach: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]


class Place(NamedTuple):
    """Where a record is: the file, its number in the file, and where its frame begins in the content."""

    path: str
    record: int
    offset: int


@dataclass(frozen=True)
class Seen:
    """What was seen of one feature; the counts are over the records that hold it with a kind.

    Attributes
    ----------
    path : str
        The first file that has it.
    kinds : dict of str to Place
        The kinds it has, and of each the first record.
    """

    name: str
    feature_list: bool
    path: str
    records: int
    kinds: dict[str, Place]
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

    def merged(self, later: "Seen") -> "Seen":
        """The same of these records and of later ones."""
        return Seen(
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
    features : tuple of Seen
        In the order first seen.
    records, payload : int
        How many records there are, and the bytes in them.
    stranger : TFRecordError, optional
        For the first record that is no message, after which its file was not looked at any further.
    doubt : str
        Why records that parse as messages may be none of the record type. Of a sample whose record type is
        known, why they were taken for bytes; empty if they were not.
    """

    record_type: AskedType
    features: tuple[Seen, ...] = ()
    records: int = 0
    payload: int = 0
    stranger: TFRecordError | None = None
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
            self.stranger or later.stranger,
            "" if self._is_certain or later._is_certain else self.doubt or later.doubt,
        )

    @property
    def _is_certain(self) -> bool:
        """Whether a record is no message of any type, so that the records are bytes without doubt."""
        return self.stranger is not None and not self.doubt

    @property
    def known_type(self) -> RecordType:
        """The record type; that of plain examples where no record told."""
        return "example" if self.record_type == "infer" else self.record_type

    def is_nullable(self, feature: Seen) -> bool:
        """Whether some of the records lack the feature."""
        return feature.records < self.records


@discreet
def take_sample(
    store: Store, files: Sequence[FileInfo], *, record_type: AskedType, options: ReadOptions
) -> Sample:
    """Look at records of the first file, the last and some between.

    More files are looked at if these records leave a column without a type, or show no column at all.
    Records are recognised as sequence examples if any holds a feature list. They are recognised as bytes if
    they are no messages, or if they are messages that do not look like Examples.

    Raises
    ------
    CorruptRecordError
        For damage in the first part of the sample. Damage in the other part is left to the tasks.
    """
    if record_type == "bytes":
        return Sample("bytes")
    look = partial(look_at_split, store, options=options, record_type=record_type)
    with ThreadPoolExecutor(_THREADS) as pool:
        chosen = _choose(files)
        seen = dict(zip(chosen, pool.map(partial(look, limit=_RECORDS), map(Split, chosen)), strict=True))
        if _leaves_open(seen.values()):
            more, windows = _choose_more(files)
            lenient = replace(options, damage=DamagePolicy("skip"))
            look = partial(look, options=lenient, windows=windows)
            seen |= zip(more, pool.map(look, map(Split, more)), strict=True)
    return _concluded((seen[file] for file in dict.fromkeys(files) if file in seen), record_type)


def look_at_all(
    store: Store,
    files: Sequence[FileInfo],
    *,
    record_type: AskedType,
    options: ReadOptions,
    compute_each: ComputeEach,
) -> Sample:
    """Look at every record, in tasks that read many small files each.

    Raises
    ------
    CorruptRecordError
        For any damage.
    """
    if record_type == "bytes":
        return Sample("bytes")
    look = partial(_look_at_piece, store, options=options, record_type=record_type)
    pieces, _ = plan_pieces(files, blocksize=_TASK_BYTES)
    return _concluded(compute_each(look, pieces), record_type)


def _choose(files: Sequence[FileInfo]) -> list[FileInfo]:
    """A few files, the same ones every time, in their order; none that is empty, unless all are."""
    files = [file for file in files if file.size is None or file.size > _EMPTY_BYTES] or files
    middle = range(1, len(files) - 1)
    some = random.Random(len(files)).sample(middle, min(len(middle), _FILES - 2))
    return [files[index] for index in sorted({0, *some, len(files) - 1})]


def _leaves_open(samples: Iterable[Sample]) -> bool:
    """Whether records were seen, or none were, that do not show the type of each column."""
    found = reduce(Sample.merged, samples)
    if found.stranger or (found.payload and not found.features):
        return False
    return not found.features or any(not feature.kinds for feature in found.features)


def _choose_more(files: Sequence[FileInfo]) -> tuple[list[FileInfo], int]:
    """Files to look at further, and how many windows of each: all of small datasets, some of large ones."""
    sized = [file for file in dict.fromkeys(files) if file.size is not None]
    if len(sized) <= _MORE_FILES and sum(file.size or 0 for file in sized) <= _MORE_BYTES:
        return sized, _MORE_WINDOWS
    some = random.Random(len(files)).sample(sized, min(len(sized), _MORE_FILES))
    windows = max(1, _MORE_BYTES // WINDOW_BYTES // len(some))
    costs = accumulate(min(file.size or 0, windows * WINDOW_BYTES) for file in some)
    return [file for file, cost in zip(some, costs, strict=True) if cost <= _MORE_BYTES], windows


def _concluded(samples: Iterable[Sample], record_type: AskedType) -> Sample:
    """The samples as one, of a record type that is known."""
    found = reduce(Sample.merged, samples, Sample(record_type))
    if record_type == "infer" and (doubt := _doubt(found)):
        return replace(found, record_type="bytes", doubt=doubt)
    if found.stranger and (found.features or record_type != "infer"):
        raise found.stranger
    if record_type != "infer":
        return replace(found, doubt="")
    if found.payload and not found.features:
        return Sample("bytes")
    lists = any(feature.feature_list for feature in found.features)
    return Sample("sequence_example" if lists else "example", found.features, found.records, found.payload)


def _doubt(found: Sample) -> str:
    """Why records that parse as messages are not Examples; empty if they may be."""
    open_ = [feature.name for feature in found.features if not feature.kinds]
    strange = next(filter(_has_control, open_), None)
    if strange is not None:
        return f"a feature without a value has a name with control characters, {strange[:40]!r}"
    if open_ and len(open_) == len(found.features):
        return "no feature has a value"
    return "" if found.features else found.doubt


def _has_control(name: str) -> bool:
    """Whether a name holds control characters other than tab, newline and carriage return."""
    return any((ord(sign) < 32 and sign not in "\t\n\r") or ord(sign) == 127 for sign in name)


@discreet
def _look_at_piece(
    store: Store, splits: Sequence[Split], *, options: ReadOptions, record_type: AskedType
) -> Sample:
    looks = (look_at_split(store, split, options=options, record_type=record_type) for split in splits)
    return reduce(Sample.merged, looks, Sample(record_type))


def look_at_split(
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
    places: dict[int, Place] = {}
    records = payload = 0
    stranger = None
    kernel = _Feed(inference)
    if options.damage.passes:  # and is told of, and counted, by who reads
        options = replace(options, damage=DamagePolicy("skip"))
    try:
        for step in walk(store, split, options, kernel, losses=losses):
            count = step.result.records
            _note_places(places, inference, records, step.data, Place(path, step.record, step.offset))
            records += count
            payload += len(step.data) - FRAME_BYTES * count + kernel.payload
            if count and windows is not None and step.result.damage is None:
                windows -= 1
                if windows <= 0:
                    break
    except CorruptRecordError as error:
        if not kernel.payload:
            raise
        stranger = error
    features = tuple(_seen(feature, path, places) for feature in inference.features())
    doubt = "" if kernel.other is None else f"{path}, record {kernel.other:,} is a message of another type"
    return Sample(record_type, features, records, payload, stranger, doubt)


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
    places: dict[int, Place], inference: Inference, before: int, data: memoryview, start: Place
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
            places[number] = Place(start.path, start.record + at, start.offset + offset)


def _is_framed(data: memoryview, damage: Damage) -> bool:
    frame = data[damage.offset : damage.offset + damage.size]
    return damage.size > 0 and scan(frame, final=True).damage is None


def _seen(feature: Feature, path: str, places: Mapping[int, Place]) -> Seen:
    kinds = {kind: places[number] for kind, number in sorted(feature.kinds.items(), key=itemgetter(1))}
    return Seen(**{**feature._asdict(), "kinds": kinds, "path": path})
