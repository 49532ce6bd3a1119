"""Handle damaged records: apply the policy, count and quarantine damage, and add remedies to errors."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec import DAMAGED_DATA, MAX_RECORD_BYTES, PAYLOAD_REASONS, TOO_LONG, Checked
from dask_tfrecord.codec.other_formats import OtherFormat
from dask_tfrecord.errors import (
    SKIP_DAMAGE,
    CorruptRecordError,
    CorruptRecordWarning,
    FileChangedError,
    Remedy,
    TFRecordError,
)
from dask_tfrecord.storage.store import Store

OnCorrupt = Literal["raise", "skip", "quarantine"]
Warn = Callable[[str], None]

# A warning lists at most this many damaged ranges of a file. Damaged ranges beyond this number are only
# counted.
_LISTED = 10

# A row group of a quarantine file is written when it has _WAITING_ROWS rows or about _WAITING_BYTES bytes.
_WAITING_ROWS = 1 << 14
_WAITING_BYTES = 1 << 22

# The advice in errors about a file that is not a TFRecord file.
LEAVE_OUT = (
    'move the file elsewhere, give it a name that begins with "_" or ".", or name only the other files'
)

_CHECK = "check that it is a TFRecord file, uncompressed or compressed with a supported codec"
_AS_BYTES = (
    Remedy("schema", None),
    Remedy("record_type", "bytes", "read the payload of every record as bytes"),
)
_ANY_LENGTH = Remedy("read_options", {"max_record_bytes": MAX_RECORD_BYTES}, "read a record of any length")

LOG = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("bytes", pa.large_binary(), nullable=False),
    ]
)


@dataclass(frozen=True)
class DamagePolicy:
    """Define how a reader treats damaged records, as in `read_tfrecord`.

    ``quarantine`` is the directory for the bytes of damaged records.
    """

    on_corrupt: OnCorrupt = "raise"
    max_corrupt: int | float | None = None
    quarantine: Store | None = None

    @property
    def skips(self) -> bool:
        return self.on_corrupt != "raise"


def warn_here(message: str) -> None:
    warnings.warn(message, CorruptRecordWarning, stacklevel=2)


RAISE = DamagePolicy()


def check_policy(policy: DamagePolicy) -> None:
    most, mode = policy.max_corrupt, policy.on_corrupt
    if mode == "quarantine" and policy.quarantine is None:
        raise TFRecordError(
            'on_corrupt="quarantine" requires a directory for the damaged bytes',
            Remedy("read_options", {"quarantine_path": "damaged"}, "keep them in a directory of this name"),
        )
    if mode != "quarantine" and policy.quarantine is not None:
        problem = f"quarantine_path= has no effect with on_corrupt={mode!r}"
        effect = "skip damaged records, and keep their bytes in this directory"
        raise TFRecordError(problem, Remedy("on_corrupt", "quarantine", effect))
    if most is None:
        return
    if mode == "raise":
        problem = f"max_corrupt={most!r} has no effect, because any damage raises"
        raise TFRecordError(problem, Remedy("on_corrupt", "skip", "skip damaged records up to this limit"))
    is_count = isinstance(most, int) and not isinstance(most, bool) and most >= 0
    if not is_count and not (isinstance(most, float) and 0 < most < 1):
        raise TFRecordError(
            f"max_corrupt={most!r} is not a valid limit",
            "give a number of records such as 100, or a fraction between 0 and 1 such as 0.01",
        )


def check_quarantine_path(quarantine: Store, store: Store) -> None:
    """Raise if later reads of the dataset would treat the files in the quarantine directory as data.

    A directory inside the dataset is accepted only if its path below the root begins with "_" or ".".
    """
    if quarantine.fs == store.fs and (
        _is_inside(quarantine, store) or _is_inside(*map(_real, (quarantine, store)))
    ):
        effect = "keep the damaged bytes where readers of the dataset ignore them"
        raise TFRecordError(
            "the quarantine is inside the dataset that is read, so later reads would treat its files as data",
            "choose a directory outside of the dataset",
            Remedy("read_options", {"quarantine_path": store.public(store.join("_quarantine"))}, effect),
            path=quarantine.public(),
        )


def _is_inside(quarantine: Store, store: Store) -> bool:
    inside = quarantine.join("").removeprefix(store.join(""))
    return inside != quarantine.join("") and not inside.startswith(("_", "."))


def _real(store: Store) -> Store:
    return Store.of(store.fs, store.real_path(store.root))


class DamagedRange(NamedTuple):
    """A damaged range of a file. ``offset`` is the start of the range in the decompressed file."""

    offset: int
    length: int
    reason: str


@dataclass
class _FileLosses:
    """The damage of one file: the number of damaged ranges, their total size, and the first few ranges."""

    count: int = 0
    bytes: int = 0
    first: list[DamagedRange] = field(default_factory=list)

    def add(self, offset: int, checked: Checked) -> None:
        """Add the damaged ranges that a check found in data that begins at ``offset`` in the file."""
        lengths = checked.ends - checked.starts
        old = int(checked.continues)
        if old and self.count <= _LISTED:
            last = self.first.pop()
            self.first.append(last._replace(length=last.length + int(lengths[0])))
        self.count += len(lengths) - old
        self.bytes += int(lengths.sum())
        for row in range(old, min(len(lengths), old + _LISTED - len(self.first))):
            start, reason = offset + int(checked.starts[row]), checked.texts[checked.reasons[row]]
            self.first.append(DamagedRange(start, int(lengths[row]), reason))

    def __str__(self) -> str:
        what = "damaged record or range" if self.count == 1 else "damaged records or ranges"
        listed = ", ".join(f"{offset:,} to {offset + length:,}" for offset, length, _ in self.first)
        more = self.count - len(self.first)
        rest = f" and {more:,} more" if more else ""
        return f"skipped {self.count:,} {what}, {self.bytes:,} bytes: bytes {listed}{rest}"


class Losses:
    """Collect the damage that was skipped in all files of one partition.

    `add` and `finish` raise CorruptRecordError if the damage exceeds ``max_corrupt``. If the damage does not
    exceed the limit, `finish` warns about each damaged file. ``rows`` is the number of intact records that
    were read.
    """

    def __init__(self, policy: DamagePolicy) -> None:
        self.policy = policy
        self.rows = 0
        self._files: dict[str, _FileLosses] = {}

    @property
    def count(self) -> int:
        """The number of skipped records, and of skipped ranges in which no record was identified."""
        return sum(file.count for file in self._files.values())

    @contextmanager
    def split(self, path: str, start: int) -> Iterator["SplitLosses"]:
        with ExitStack() as stack:
            split = SplitLosses(self, path, start, stack)
            yield split
            split.flush()

    def add(self, path: str, offset: int, checked: Checked) -> None:
        """Add the damage that a check found in data that begins at ``offset`` of a file.

        If ``max_corrupt`` is an integer, raise CorruptRecordError when the total of skipped records and
        ranges exceeds it.
        """
        self.file(path).add(offset, checked)
        most = self.policy.max_corrupt
        if isinstance(most, int) and self.count > most:
            raise self._too_many(path)

    def file(self, path: str) -> _FileLosses:
        return self._files.setdefault(path, _FileLosses())

    def finish(self, warn: Warn) -> None:
        """Warn about each damaged file, or raise if ``max_corrupt`` is a fraction that the damage exceeds."""
        most, total = self.policy.max_corrupt, self.rows + self.count
        if isinstance(most, float) and self.count > most * total:
            raise self._too_many(next(iter(self._files)), f"of {total:,}")
        self.report(warn)

    def report(self, warn: Warn) -> None:
        for path, found in self._files.items():
            warn(f"{path}: {found}")

    def _too_many(self, path: str, among: str = "") -> CorruptRecordError:
        problem = f"{self.count:,} {among and among + ' '}records or ranges of the partition are damaged"
        remedy = Remedy("read_options", {"max_corrupt": None}, "read the other records anyway")
        return CorruptRecordError(problem, remedy, path=path)


class SplitLosses:
    """Collect the damage that was skipped in one split, and write the damaged bytes to the quarantine.

    The quarantine contains one Parquet file for each split with damage. The Parquet file appears only when it
    is complete. If a task runs again, the new Parquet file replaces the file of the previous attempt.
    """

    def __init__(self, losses: Losses, path: str, start: int, stack: ExitStack) -> None:
        self._losses = losses
        self._path = path
        self._start = start
        self._stack = stack
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0  # the total number of rows and bytes of the batches in `_waiting`

    def add(self, offset: int, data: memoryview, checked: Checked) -> None:
        """Count and quarantine the damaged ranges in data that begins at ``offset`` of the file.

        Raise CorruptRecordError as `Losses.add` does.
        """
        if not len(checked.starts):
            return
        self._losses.add(self._path, offset, checked)
        if self._losses.policy.quarantine is None:
            return
        lengths = checked.ends - checked.starts
        columns = [
            pa.repeat(self._path, len(lengths)),
            checked.starts + offset,
            lengths,
            pa.array(checked.texts).take(pa.array(checked.reasons)),
            checked.damaged(data),
        ]
        self._waiting.append(pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=LOG))
        self._rows += len(lengths)
        self._bytes += int(lengths.sum())
        self._writer = self._writer or self._open(self._losses.policy.quarantine)
        if self._rows >= _WAITING_ROWS or self._bytes >= _WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.write_table(pa.Table.from_batches(self._waiting, LOG))
        self._waiting = []
        self._rows = self._bytes = 0

    def _open(self, store: Store) -> pq.ParquetWriter:
        name = hashlib.sha256(self._path.encode()).hexdigest()[:16]
        path = store.join(f"damage-{name}-{self._start:012d}.parquet")
        file = self._stack.enter_context(store.create(path))
        writer = pq.ParquetWriter(file, LOG, compression="zstd", use_dictionary=["file", "reason"])
        self._stack.enter_context(writer)
        return writer


def not_tfrecord(found: OtherFormat) -> CorruptRecordError:
    """Return the error for a file that has another format."""
    advice = f"{found.advice}; beside TFRecord files, {LEAVE_OUT}" if found.advice else LEAVE_OUT
    return CorruptRecordError(found.problem, advice, record=0, offset=0)


def locate_error(
    error: TFRecordError, path: str, first: int, longest: int = MAX_RECORD_BYTES
) -> TFRecordError:
    """Return a copy of an error with the path, the index of the record in the file, and remedies.

    ``first`` is the index in the file of the record that has index 0 in the error. ``longest`` is the
    ``max_record_bytes`` of the read.
    """
    damaged = isinstance(error, CorruptRecordError) and not isinstance(error, FileChangedError)
    error = error.replaced(path=error.path or path)
    if error.record is not None or damaged:
        error = error.replaced(record=first + (error.record or 0))
    missing = damaged and not (error.advice or error.remedies)
    return error.replaced(**_actions(error, longest)) if missing else error


def _actions(error: TFRecordError, longest: int) -> dict[str, Any]:
    if error.reason == TOO_LONG:
        return {"remedies": (*[_ANY_LENGTH] * (longest < MAX_RECORD_BYTES), SKIP_DAMAGE)}
    if error.reason in PAYLOAD_REASONS:
        later = {"remedies": (*_AS_BYTES, SKIP_DAMAGE)}
        return later if error.record else {"advice": LEAVE_OUT, "remedies": _AS_BYTES}
    if error.offset or error.reason == DAMAGED_DATA:
        return {"remedies": (SKIP_DAMAGE,)}
    return {"advice": f"{_CHECK}; otherwise {LEAVE_OUT}"}
