"""Declare the compiled kernel, which converts framed TFRecord bytes to Arrow columns and back.

Arrow data is passed through the Arrow PyCapsule interface, and bytes through the buffer protocol. Every call
releases the GIL while the kernel works. If two threads call methods of one object at the same time, the
second call raises RuntimeError.

A column is ``(name, kind, depth)``. The kind is "int64", "float" (32 bits), "bytes" or "string" (bytes that
are valid UTF-8). The depth is 0 for a scalar, 1 for a list, and 2 for a list of lists (a FeatureList).
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, CapsuleType

class ArrowArray(Protocol):
    def __arrow_c_array__(
        self, requested_schema: CapsuleType | None = None
    ) -> tuple[CapsuleType, CapsuleType]: ...

class Batch(ArrowArray, Protocol):
    def array_address(self) -> int:
        """Return the address of an ArrowArray of the C Data Interface, without its schema.

        The importer may move the array out while this object is alive.
        """

Column = tuple[str, Literal["int64", "float", "bytes", "string"], int]

# (record, offset, size, reason, column, found, unknown). record and offset count from the start of the call's
# data. size is the size of the record's whole frame, or 0 if the frame's length is not reliable. column is an
# index into the columns, or -1. found is what the record contains instead of a fitting value: a number of
# values, the name of a kind, or "". If a feature is neither a column nor known, unknown is the column that
# would read the feature.
Damage = tuple[int, int, int, str, int, str, Column | None]

class EncodeError(ValueError):
    """Signal that a value has no encoding. The arguments are the row, the column or -1, and the reason."""

class Encoder:
    """Encode batches whose Arrow types are the storage types of the columns.

    The storage type of int64 is Arrow int64, and the storage type of float is float32. Bytes and strings are
    binary or utf8, with 32-bit or 64-bit offsets. Lists are list, large_list or fixed_size_list. For the
    record type "bytes", the only column is a bytes column, whose values are the payloads. A null is written
    as an absent key. A list may not contain a null.
    """

    def __init__(self, columns: Sequence[Column], record_type: str) -> None: ...
    def bind(self, batch: ArrowArray) -> None:
        """Set the batch to encode. Raises EncodeError if an Arrow type does not fit the column."""

    def encode_into(
        self, row: int, out: Buffer, end: int | None = None, starts: Buffer | None = None
    ) -> tuple[int, int, int]:
        """Fill ``out`` with complete framed records of the rows from ``row`` to before ``end``.

        By default, ``end`` is the end of the batch. Returns (next row, bytes written, need). need is 0 if at
        least one row fits into ``out``. Otherwise need is the buffer size that the next row requires.
        ``starts`` (int64, with an element for each row up to ``end``) receives the position in ``out`` of
        each written record. Raises EncodeError.
        """

    def statistics(self, bounds: Sequence[int]) -> list[tuple[list[int], list[Any], list[Any]]]:
        """Return (nulls, least, greatest) for each column: lists with an element for each range of rows.

        Range ``k`` contains the rows from ``bounds[k]`` to before ``bounds[k + 1]``.

        For a list column, least and greatest are lengths of lists. NaN is ignored, and a negative zero is
        returned as zero. Bytes and strings are ordered by their bytes. Least and greatest are None if the
        column has no values. Strings must be valid UTF-8; encoded rows contain only valid strings.
        """

class Decoder:
    """Decode framed records to columns. Features that are not columns are skipped without parsing.

    A batch contains its columns in the order of ``columns``. Bytes are decoded as binary, strings as utf8,
    and lists as list, all with 32-bit offsets. If ``known`` is not None, a feature with a kind that is
    neither a column nor known is damage. Each element of ``known`` consists of a feature's name, and True if
    the feature is a feature list. A feature of the context and a feature list of the same name are two
    features. If ``known`` is None and ``one_map`` is True, a feature with a kind is damage if only its name
    is that of a column: a feature list where the column reads the context, or the reverse. The columns of
    floats in ``integers`` also read integers. An integer that no 32-bit float equals is damage. A record that
    is a message of another type is damage. A record counts as a message of another type if no feature has a
    kind, and the record has at least one of these parts: an unknown field, a malformed feature, or a map
    entry without a value and with control characters in its name. The decision depends only on the bytes of
    the record, and an `Inference` decides in the same way.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        record_type: str,
        *,
        verify_crc: bool = True,
        max_record_bytes: int = 2147483647,
        known: Sequence[tuple[str, bool]] | None = None,
        one_map: bool = False,
        integers: Sequence[str] = (),
    ) -> None: ...
    def feed(self, data: Buffer, *, final: bool, more: int = 0) -> tuple[int, int, Damage | None]:
        """Decode the complete records at the start of ``data``. Return (records of this call, bytes used,
        damage).

        The records are added to a batch. Unless ``final`` is True, an incomplete last record is left to the
        next call, whose data must begin with the incomplete record. Damage ends the call before the damaged
        record. The next call may add the records after the damaged record to the same batch. Memory is
        reserved for about ``more`` bytes of records that later calls add to the same batch. If the batch
        already contains records, and these records and ``data`` together exceed 2 GiB, the call raises
        ValueError: call `take` first.
        """

    def feed_records(
        self, data: Sequence[Buffer], places: Buffer, rows: Buffer
    ) -> tuple[int, int, Damage | None]:
        """Decode the records ``rows`` (int64), in this order, and return what `feed` returns.

        ``places`` (int64) contains three numbers for each record: the index of the record's buffer in
        ``data``, and the start and the end of the record's whole frame in this buffer. The record and the
        offset in the damage are counted as if the decoded records followed each other without gaps. The call
        ends before a record with which the batch would exceed 2 GiB. Raises IndexError for an index outside
        ``places``, and for a record outside its buffer.
        """

    def take(self) -> Batch:
        """Return the batch of the records that were added since the last call of `take`."""

class Inference:
    """Find out which features the records contain, and which records are damaged.

    All features are parsed, so a malformed feature is reported as damage. Damaged records add no features.
    Records of the type "bytes" are not parsed. If a record contains a key twice, only the last value counts,
    as in a `Decoder`. A record that would raise the number of features above ``max_features`` is damage. In
    this damage, ``found`` is the number of features before the record plus the number of features in the
    record.
    """

    def __init__(
        self,
        record_type: str,
        *,
        verify_crc: bool = True,
        max_record_bytes: int = 2147483647,
        max_records: int = -1,
        max_features: int | None = None,
    ) -> None: ...
    def feed(self, data: Buffer, *, final: bool) -> tuple[int, int, Damage | None]:
        """Add the complete records at the start of ``data``. Return (records of this call, bytes used,
        damage).
        """

    def check(
        self, data: Buffer, *, final: bool, limit: int | None = None
    ) -> tuple[int, int, bool, bool, ArrowArray, ArrowArray, ArrowArray, ArrowArray, list[str]]:
        """Add the intact records of ``data``, and find the damage between the records.

        On one object, use either `check` or `feed`. The data of each call must begin with the byte at which
        the previous call stopped. The file ends after ``limit`` bytes of the data.

        Returns (intact records, bytes used, continues, is open, starts, ends, records before, reasons,
        texts). The four arrays (int64) contain an element for each damaged range: where the range starts and
        ends, the number of intact records of this call before the range, and the reason as an index into
        ``texts``. A range is either a damaged record that `find_record` proves if ``lenient`` is True, or
        ends at the first record that `find_record` then proves. If ``continues`` is True, the first range
        continues the last range of the previous call. If ``is open`` is True, the last range may continue in
        the next call.
        """

    def features(self) -> list[dict[str, Any]]:
        """Return one dict per feature, in the order of their first occurrence.

        - name.
        - feature_list: bool, True if the feature is in SequenceExample.feature_lists.
        - kinds: {"int64" | "float" | "bytes": number of the first record with this kind, over all calls}.
        - max_values: the greatest number of values in one Feature.
        - utf8: bool, True if all bytes values are valid UTF-8.
        - text: bool, True if all bytes values are valid UTF-8 without control characters except tab, newline
          and carriage return.
        """

def scan(
    data: Buffer,
    *,
    final: bool,
    verify_crc: bool = True,
    max_record_bytes: int = 2147483647,
    offsets: bool = False,
    every: int = 0,
) -> tuple[int, int, Damage | None, ArrowArray | None, ArrowArray | None]:
    """Walk over frames without decoding the records. Return (records, bytes used, damage, offsets, numbers).

    The checksums of the lengths are always verified. The checksums of the payloads are verified only if
    ``verify_crc`` is True. If ``offsets`` is True, the result contains the offsets (int64) of all records. If
    ``every`` is not 0, the result contains the offsets and the indices (``numbers``, int64) of some records:
    the first record, and each record that starts at least ``every`` bytes after the last returned record.
    """

def find_record(
    data: Buffer,
    start: int,
    *,
    final: bool,
    max_record_bytes: int = 2147483647,
    lenient: bool = False,
    limit: int | None = None,
) -> tuple[int, int, bool]:
    """Find the first proven record from ``start`` on. Return (offset, size of its frame, True).

    A record is proven if three conditions hold. First, the checksum of the record's length is correct.
    Second, the checksum of the record's payload is correct. Third, a length with a correct checksum follows,
    or the record ends where the file ends.

    If ``lenient`` is True, the third condition need not hold. The second condition need not hold if the third
    condition holds and no intact record begins inside the record and ends after its payload. An intact record
    at this position would show that bytes are missing, so that the length does not match the bytes in the
    file.

    The file ends after ``limit`` bytes of the data. If ``final`` is True, the file ends where the data ends.

    Without a proven record the result is (offset, size, False), and no record starts before ``offset``. If
    ``size`` is not 0, a record may start at ``offset``. To decide, the search needs ``size`` bytes from
    ``offset`` on, and 12 more bytes unless the file ends there. The search needs at most ``max_record_bytes``
    + 28 bytes, or twice as many if ``lenient`` is True. If ``size`` is 0, no record was found. Unless
    ``final`` is True, the bytes from ``offset`` on, at most 11, may be the start of a record. If ``final`` is
    True, ``offset`` is the end of the data.
    """

def take_bytes(column: ArrowArray, rows: Buffer) -> ArrowArray:
    """Return the values of a binary or utf8 array at ``rows`` (int64), as an array of the same type.

    The array may have 32-bit or 64-bit offsets. Raises IndexError for a row outside the array, and if
    repeated rows would make the result larger in bytes than the array.
    """

def choose_turns(weights: Buffer, deficits: Buffer, chosen: Buffer) -> None:
    """Fill ``chosen`` (int16) with the source of each of the next turns. Each turn chooses one source.

    ``weights`` (int64) contains the weight of each source. ``deficits`` (int64) is updated. It contains the
    turns that each source should have had by its weight, minus the turns that it had, times the sum of all
    weights. If the deficits are 0 at first, the number of turns of a source always differs from what its
    weight demands by less than one. The choices do not depend on how the turns are divided among calls.
    Raises ValueError for deficits to which no earlier choices lead, and for weights whose sum exceeds 2**40.
    """

def limit_pool(bytes: int) -> None:
    """Limit the memory that the process keeps for later batches.

    By default, the limit is 64 MiB plus 64 MiB for each processor, but at most 1 GiB. A process that has
    decoded nothing for a second keeps at most 64 MiB.
    """

def raise_pool_limit(bytes: int) -> None:
    """Raise the pool's default limit to ``bytes``. Do nothing if `limit_pool` was called before."""

def pool_array(size: int) -> npt.NDArray[np.uint8]:
    """Return an array of uninitialised memory. The memory returns to the pool when the array is dropped."""

def pool_bytes() -> int:
    """Return the number of bytes that the process currently keeps for later batches."""

def crc32c(data: Buffer, value: int = 0, implementation: str = "best") -> int:
    """Return the unmasked CRC-32C (Castagnoli) of ``data``. ``value`` is the CRC of the preceding bytes."""

def crc32c_combine(crc1: int, crc2: int, size2: int) -> int:
    """Return the CRC-32C of bytes with CRC ``crc1`` followed by ``size2`` bytes with CRC ``crc2``."""

def crc32_combine(crc1: int, crc2: int, size2: int) -> int:
    """Return the CRC-32 of gzip for bytes with CRC ``crc1`` followed by ``size2`` bytes with CRC ``crc2``."""

def adler32_combine(adler1: int, adler2: int, size2: int) -> int:
    """Return the Adler-32 of bytes with checksum ``adler1`` followed by ``size2`` bytes with checksum
    ``adler2``.
    """

def crc32c_of_records(data: Buffer, records: int, value: int = 0) -> int:
    """Return what `crc32c` returns for ``data``, which begins with ``records`` intact records.

    The payloads of large records are not read; the checksums that the records contain are combined instead.
    """

def crc32c_implementations() -> list[str]:
    """Return the CRC-32C implementations for this processor, the fastest first. "table" is always last."""
