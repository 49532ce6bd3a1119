"""The manual of the compiled kernel: framed TFRecord bytes <-> Arrow columns.

Arrow data crosses the boundary through the Arrow PyCapsule interface, bytes through the buffer
protocol. Every call releases the GIL while it works. An object serves one call at a time; a second,
concurrent call on the same object raises RuntimeError.

A column is ``(name, kind, depth)``: kind is "int64", "float" (32 bit), "bytes" or "string" (bytes that
must be UTF-8); depth is 0 for a scalar, 1 for a list, 2 for a list of lists (a FeatureList).
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from typing_extensions import Buffer, CapsuleType

class ArrowArray(Protocol):
    def __arrow_c_array__(
        self, requested_schema: CapsuleType | None = None
    ) -> tuple[CapsuleType, CapsuleType]: ...

class Batch(ArrowArray, Protocol):
    def array_address(self) -> int:
        """Address of a C Data Interface ArrowArray without its schema, to be moved from while this lives."""

Column = tuple[str, Literal["int64", "float", "bytes", "string"], int]

# (record, offset, size, reason, column, found): record and offset count from the start of the call's
# data; size is the record's whole frame, 0 when it cannot be known; column is an index into the
# columns or -1; found is what was met (a number of values, or the name of a kind) or ""; unknown is the
# column that would read a feature which is neither a column nor known.
Damage = tuple[int, int, int, str, int, str, Column | None]

class EncodeError(ValueError):
    """A value that has no encoding; args are (row, column or -1, reason)."""

class Encoder:
    """Encodes batches whose storage is exactly what the columns say.

    int64 is Arrow int64; float is float32; bytes and string are binary or utf8, 32 or 64 bit offsets;
    lists are list, large_list or fixed_size_list. For record type "bytes" there is one bytes column,
    whose values are the records. A null is an absent key; a list may not contain a null.
    """

    def __init__(self, columns: Sequence[Column], record_type: str) -> None: ...
    def bind(self, batch: ArrowArray) -> None:
        """Take the batch whose rows the next calls encode. Raises EncodeError if its storage is another."""

    def encode_into(self, row: int, out: Buffer, end: int | None = None) -> tuple[int, int, int]:
        """Fill ``out`` with whole framed records of the rows from ``row`` to before ``end``, or to the last.

        Returns (next row, bytes written, need). need is 0, or, when not even one record fits, the size of
        buffer that is enough. Raises EncodeError.
        """

    def statistics(self, row: int, end: int) -> list[tuple[int, Any, Any]]:
        """(nulls, least, greatest) of each column's rows from ``row`` to before ``end``.

        Of a list it is the length that counts. NaN does not count, and there is no negative zero; bytes and
        strings are in the order of their bytes. None and None if there is no value. Strings must be UTF-8,
        as those of encoded rows are.
        """

class Decoder:
    """Decodes framed records to the wanted columns; all other features are skipped unparsed.

    Batches have the columns' order; bytes come as binary, string as utf8, lists as list, 32 bit offsets.
    Unless ``known`` is None, a feature that has a kind and is neither a column nor ``known`` is damage.
    A known feature is its name and whether it is a feature list; the other place is another feature.
    A record that is a message of another type is damage: it is not empty, but has no field of an Example, or
    it has a map entry without a value whose name holds control characters.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        record_type: str,
        *,
        verify_crc: bool = True,
        max_record_bytes: int = 2147483647,
        known: Sequence[tuple[str, bool]] | None = None,
    ) -> None: ...
    def decode(self, data: Buffer, *, final: bool) -> tuple[Batch, int, Damage | None]:
        """The whole records at the start of ``data``: (batch, bytes consumed, damage).

        Unless ``final``, a record that goes on past the end is left for the next call, which gets it
        from its start. Damage ends the batch before the damaged record.
        """

class Inference:
    """Gathers what features the records hold. ``record_type`` "example" or "sequence_example"."""

    def __init__(
        self,
        record_type: str,
        *,
        verify_crc: bool = True,
        max_record_bytes: int = 2147483647,
        max_records: int = -1,
    ) -> None: ...
    def feed(self, data: Buffer, *, final: bool) -> tuple[int, int, Damage | None]:
        """(records seen in this call, bytes consumed, damage)."""

    def features(self) -> list[dict[str, Any]]:
        """One dict a feature, in the order first seen.

        name; feature_list: bool (in SequenceExample.feature_lists); records: in how many it is present
        with a kind; kinds: {"int64" | "float" | "bytes": number of the first record, over all calls};
        min_values, max_values: values a record; min_steps, max_steps: Features a FeatureList;
        utf8: whether all bytes seen are valid UTF-8.
        text: whether all bytes seen are valid UTF-8 without control characters but tab, newline and return.
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
    """Walk frames without decoding: (records, bytes consumed, damage, offsets, numbers).

    The checksums of the lengths are always verified, those of the payloads if ``verify_crc``. ``offsets``
    (int64) are those of all records, if asked for; with ``every``, of the first, and then of each that begins
    at least so many bytes after the last one given, and ``numbers`` (int64) says which records these are.
    """

def find_record(
    data: Buffer,
    start: int,
    *,
    final: bool,
    max_record_bytes: int = 2147483647,
    lenient: bool = False,
) -> tuple[int, int, bool]:
    """The first record from ``start`` on that is proven to be one: (offset, size of its frame, True).

    Proven: the checksums of its length and of its payload hold, and so does that of the length that follows,
    or it ends with the data, if that is ``final``. If ``lenient``, one of the latter two is enough, be the
    payload damaged or what follows.

    (offset, size, False): nothing before ``offset`` is a record. If ``size`` is not 0, one may begin there,
    and ``size`` bytes from there, and 12 more unless the data ends there, will tell; that is at most
    ``max_record_bytes`` + 28. If it is 0, there is none; unless ``final``, the bytes from ``offset`` on, at
    most 11, may be the begin of one. If ``final``, ``offset`` is the end.
    """

def take_bytes(column: ArrowArray, rows: Buffer) -> ArrowArray:
    """The values of a binary or utf8 array, 32 or 64 bit offsets, at ``rows`` (int64), as such an array.

    Raises IndexError for a row that there is not, and if rows are repeated so that there would be more bytes
    than the whole array has.
    """

def crc32c(data: Buffer, value: int = 0, implementation: str = "best") -> int:
    """Unmasked CRC-32C (Castagnoli) of ``data``, continuing from ``value``."""

def crc32c_combine(crc1: int, crc2: int, size2: int) -> int:
    """CRC-32C of two byte strings together: CRC ``crc1``, then ``size2`` bytes with CRC ``crc2``."""

def crc32c_implementations() -> list[str]:
    """What this processor can run, fastest first; the last is always "table"."""
