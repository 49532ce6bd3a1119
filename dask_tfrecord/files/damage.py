"""Damage that a reader may pass over: what was lost, how much of it is allowed, where its bytes are kept."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.errors import CorruptRecordError, CorruptRecordWarning, TFRecordError
from dask_tfrecord.files.storage.store import Store

OnCorrupt = Literal["raise", "skip", "quarantine"]
Warn = Callable[[str], None]

# How many places a warning lists before it says how many more there are.
_LISTED = 10

# Rows of a quarantine file that wait for being written: at most so many, and about so many bytes.
_WAITING_ROWS = 1 << 14
_WAITING_BYTES = 1 << 22

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
    """What becomes of damage, as `read_tfrecord` says; ``quarantine`` is where its bytes are kept."""

    on_corrupt: OnCorrupt = "raise"
    max_corrupt: int | float | None = None
    quarantine: Store | None = None

    @property
    def skips(self) -> bool:
        """Whether damage is passed over."""
        return self.on_corrupt != "raise"


def warn_here(message: str) -> None:
    """Say it in this process."""
    warnings.warn(message, CorruptRecordWarning, stacklevel=2)


RAISE = DamagePolicy()


def check_policy(policy: DamagePolicy) -> None:
    """Refuse what does not fit together."""
    most, mode = policy.max_corrupt, policy.on_corrupt
    if mode == "quarantine" and policy.quarantine is None:
        raise TFRecordError(
            'on_corrupt="quarantine" needs a place for the damaged bytes', advice="pass quarantine_path="
        )
    if mode != "quarantine" and policy.quarantine is not None:
        raise TFRecordError(
            f"quarantine_path= with on_corrupt={mode!r}", advice='pass on_corrupt="quarantine"'
        )
    if most is None:
        return
    if mode == "raise":
        raise TFRecordError(
            f"max_corrupt={most!r}, but any damage raises", advice='pass on_corrupt="skip" or "quarantine"'
        )
    is_count = isinstance(most, int) and not isinstance(most, bool) and most >= 0
    if not is_count and not (isinstance(most, float) and 0 < most < 1):
        raise TFRecordError(
            f"max_corrupt={most!r} is no bound",
            advice="pass a number of records such as 100, or a fraction between 0 and 1 such as 0.01",
        )


def check_quarantine_path(quarantine: Store | None, store: Store) -> None:
    """Refuse a quarantine among the files that are read, of which the next reader would make data."""
    if quarantine is None or quarantine.fs != store.fs:
        return
    inside = quarantine.join("").removeprefix(store.join(""))
    if inside != quarantine.join("") and not inside.startswith(("_", ".")):
        raise TFRecordError(
            "the quarantine is among the files that are read",
            path=quarantine.public(quarantine.root),
            advice=f"pass a quarantine_path= elsewhere, or {store.public(store.join('_quarantine'))}",
        )


class DamagedRange(NamedTuple):
    """A stretch of a file's content that was passed over."""

    offset: int
    length: int
    reason: str


@dataclass
class _OfFile:
    """What was lost of one file: how much, and its first places."""

    count: int = 0
    bytes: int = 0
    places: list[DamagedRange] = field(default_factory=list)

    def add(self, offset: int, length: int, reason: str) -> None:
        self.count += 1
        self.bytes += length
        if len(self.places) < _LISTED:
            self.places.append(DamagedRange(offset, length, reason))

    def extend(self, length: int) -> None:
        self.bytes += length
        if self.count <= _LISTED:
            last = self.places.pop()
            self.places.append(last._replace(length=last.length + length))

    def __str__(self) -> str:
        what = "damaged record or stretch" if self.count == 1 else "damaged records or stretches"
        listed = ", ".join(f"{offset:,} to {offset + length:,}" for offset, length, _ in self.places)
        more = self.count - len(self.places)
        rest = f" and {more:,} more" if more else ""
        return f"passed over {self.count:,} {what}, {self.bytes:,} bytes: bytes {listed}{rest}"


class Losses:
    """What was lost of the files of one partition; says so, and raises where it is more than allowed.

    ``rows`` are the records that were read.
    """

    def __init__(self, policy: DamagePolicy) -> None:
        self.policy = policy
        self.rows = 0
        self._files: dict[str, _OfFile] = {}

    @property
    def count(self) -> int:
        """How many records, or stretches in which no record can be told, were lost."""
        return sum(file.count for file in self._files.values())

    @contextmanager
    def of(self, path: str, start: int) -> Iterator["SplitLosses"]:
        """Those of the split of a file that begins at byte ``start`` of it."""
        with ExitStack() as stack:
            yield SplitLosses(self, path, start, stack)

    def file(self, path: str) -> _OfFile:
        """Those of one file."""
        return self._files.setdefault(path, _OfFile())

    def finish(self, warn: Warn) -> None:
        """Say what was lost, unless it is too large a fraction."""
        most, total = self.policy.max_corrupt, self.rows + self.count
        if isinstance(most, float) and self.count > most * total:
            raise self.too_many(next(iter(self._files)), f"of {total:,}")
        for path, found in self._files.items():
            warn(f"{path}: {found}")

    def too_many(self, path: str, among: str = "") -> CorruptRecordError:
        """The error for more than allowed."""
        return CorruptRecordError(
            f"{self.count:,} {among and among + ' '}records or stretches of the partition are damaged",
            path=path,
            advice=f"pass more than max_corrupt={self.policy.max_corrupt} to read the others all the same",
        )


class SplitLosses:
    """What was lost of a split, and the quarantine file of its bytes, made when there are any."""

    def __init__(self, losses: Losses, path: str, start: int, stack: ExitStack) -> None:
        self._losses = losses
        self._path = path
        self._start = start
        self._stack = stack
        self._log: _Log | None = None
        self.count = 0

    @property
    def skips(self) -> bool:
        """Whether damage is passed over."""
        return self._losses.policy.skips

    def add(self, offset: int, data: memoryview, reason: str, *, more: bool = False) -> None:
        """Take note of lost bytes, which may be ``more`` of those before."""
        file = self._losses.file(self._path)
        if more:
            file.extend(len(data))
        else:
            self.count += 1
            file.add(offset, len(data), reason)
            most = self._losses.policy.max_corrupt
            if isinstance(most, int) and self._losses.count > most:
                raise self._losses.too_many(self._path)
        if self._losses.policy.quarantine is not None:
            self._quarantine(self._losses.policy.quarantine).add(offset, data, reason)

    def _quarantine(self, store: Store) -> "_Log":
        if self._log is None:
            self._log = self._stack.enter_context(_open_log(store, self._path, self._start))
        return self._log


@contextmanager
def _open_log(store: Store, path: str, start: int) -> Iterator["_Log"]:
    """A file in the quarantine, there as a whole or not at all; a repeated task replaces its own."""
    name = hashlib.sha256(path.encode()).hexdigest()[:16]
    with (
        store.create(store.join(f"damage-{name}-{start:012d}.parquet")) as file,
        pq.ParquetWriter(file, LOG, compression="zstd") as writer,
    ):
        log = _Log(writer, path)
        yield log
        log.flush()


class _Log:
    def __init__(self, writer: pq.ParquetWriter, path: str) -> None:
        self._writer = writer
        self._path = path
        self._rows: list[tuple[int, str, bytes]] = []
        self._bytes = 0

    def add(self, offset: int, data: memoryview, reason: str) -> None:
        self._rows.append((offset, reason, bytes(data)))
        self._bytes += len(data)
        if len(self._rows) >= _WAITING_ROWS or self._bytes >= _WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        offsets, reasons, data = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        columns = [[self._path] * len(data), offsets, [len(part) for part in data], reasons, data]
        arrays = [pa.array(values, item.type) for values, item in zip(columns, LOG, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=LOG))
        self._rows, self._bytes = [], 0
