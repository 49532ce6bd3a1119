"""Every type with its edge values, and the equality of values of two types by the rules of Python."""

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa

_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
INT64 = (0, 1, -1, 255, 2**24 + 1, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, 1.5, -1.5, 0.1, 2.0**24 + 1, 2.0**53, 1e300, 65520.0)
SPECIAL = (float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "a", "1", "01", "-1", "1.5", "1.50", "NaN", "nan", "inf", "true", "True", "é", "2020-01-01")
TEXTS += ("2020-01-01 12:00:00", "12:00:00", "-0", "2020-01-01 12:00:00Z", "16777217", "1e400", " 1")
BYTES = (b"", b"a", b"1", b"ab", b"\xff", b"\0", b"2020-01-01", b"true")
MOMENTS = (0, 1, -1, _DAY, 1_577_836_800, 1_577_880_000, 1_603_587_600, -62_135_596_800, 253_402_300_799)


def _ints(bits: int, signed: bool) -> list[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return sorted({value for value in (*INT64, low, high) if low <= value <= high})


def _counts(unit: str, seconds: tuple[int, ...]) -> list[int]:
    """Times as counts of a unit; some of the times cannot be expressed in a coarser unit."""
    found = {value * _TICKS[unit] for value in seconds} | {1, -1, 1_577_880_000 * _TICKS[unit] + 1, 2**62}
    return sorted(value for value in found if abs(value) < 2**63)


def _timestamps(unit: str, zone: str | None = None) -> tuple[pa.DataType, list[int]]:
    return pa.timestamp(unit, zone), _counts(unit, MOMENTS)


def _times(type_: pa.DataType) -> tuple[pa.DataType, list[int]]:
    day = _DAY * _TICKS[type_.unit]
    return type_, [0, 1, day // 2, day // 2 + 1, day - 1]


# Each type with values. Times and durations are integers: the counts of their unit.
SOURCES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    *((pa.type_for_alias(f"int{bits}"), _ints(bits, True)) for bits in (8, 16, 32, 64)),
    *((pa.type_for_alias(f"uint{bits}"), _ints(bits, False)) for bits in (8, 16, 32, 64)),
    (pa.float16(), [np.float16(value) for value in (0.0, -0.0, 1.0, 1.5, -1.5, 0.1, 2048.0, *SPECIAL)]),
    (pa.float32(), [np.float32(v).item() for v in (*FLOATS, *SPECIAL) if abs(v) < 1e38 or v in SPECIAL]),
    (pa.float64(), [*FLOATS, *SPECIAL]),
    (pa.decimal32(9, 2), [Decimal("0.00"), Decimal("1.00"), Decimal("1.55"), Decimal("-9999999.99")]),
    (pa.decimal64(18, 3), [Decimal("0.125"), Decimal("1.001"), Decimal("9") * 10**14]),
    (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("0.10"), Decimal(2**53 + 1), Decimal(10) ** 17]),
    (pa.decimal128(38, 0), [Decimal(0), Decimal(255), Decimal(2**64), Decimal(10) ** 37]),
    (pa.decimal256(60, 5), [Decimal("0.00001"), Decimal("1.5"), Decimal(10) ** 50]),
    (pa.date32(), [0, 1, -1, 18_262, -719_162, 2_932_896, 2**31 - 1]),
    (pa.date64(), [day * _DAY * 1000 for day in (0, 1, -1, 18_262, -719_162, 2_932_896)]),
    *(_times(type_) for type_ in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *(_timestamps(unit) for unit in _TICKS),
    _timestamps("s", "UTC"),
    _timestamps("us", "Europe/Warsaw"),
    _timestamps("ns", "+02:00"),
    *((pa.duration(unit), _counts(unit, (0, 1, -1, _DAY))) for unit in _TICKS),
    (pa.string(), [*TEXTS]),
    (pa.large_string(), [*TEXTS]),
    (pa.binary(), [*BYTES]),
    (pa.large_binary(), [*BYTES]),
    (pa.binary(2), [b"ab", b"\xff\0", b"12"]),
]
# More target types of casts.
TARGETS: list[pa.DataType] = [
    *(type_ for type_, _ in SOURCES),
    pa.decimal128(3, 1),
    pa.binary(1),
    pa.string_view(),
    pa.binary_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.dictionary(pa.int32(), pa.float64()),
    pa.null(),
]


_WARSAW = ZoneInfo("Europe/Warsaw")
OBJECTS: list[Any] = [
    *(True, np.True_, 0, 1, -1, 300, 2**24 + 1, 2**53 + 1, 2**63, 10**20, np.int8(1), np.uint64(2**64 - 1)),
    *(1.0, 1.5, -0.0, 0.1, 1e300, float("inf"), np.float16(0.1), np.float32(0.1), np.float64(0.1)),
    *(Decimal(1), Decimal("1.5"), Decimal("0.10"), Decimal("1E+3"), Decimal("-0"), Decimal("Infinity")),
    *("", "a", "1", "1.5", "é", b"", b"a", b"\xff", bytearray(b"a"), np.str_("a"), np.bytes_(b"a")),
    *(dt.date(2020, 1, 1), dt.date(1, 1, 1), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 12, 0, 0, 5)),
    *(pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-01 00:00:00.000000001"), dt.datetime(1, 1, 1)),
    dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2020, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    *(dt.datetime(2020, 10, 25, 2, 30, fold=fold, tzinfo=_WARSAW) for fold in (0, 1)),
    pd.Timestamp("2020-10-25 00:30:00.000000001", tz="UTC").tz_convert("Europe/Warsaw"),
    *(
        np.datetime64("2020-01-01", "ns"),
        np.datetime64("2020-01-01T00:00:00.000000001"),
        np.datetime64(1, "D"),
    ),
    *(dt.time(1, 2, 3), dt.time(1, 2, 3, 4), dt.time(1, tzinfo=dt.UTC), dt.time(23, 59, 59, 999999)),
    *(dt.timedelta(1), dt.timedelta(microseconds=-5), pd.Timedelta("1ns"), np.timedelta64(1, "s")),
]


def of_object(value: Any) -> tuple[str, Any]:
    """The family of a Python object, and the value to compare."""
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64 | np.floating):
        value = value.item()
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if isinstance(value, np.timedelta64):
        value = pd.Timedelta(value)
    if isinstance(value, dt.datetime):
        plain = dt.datetime(*value.timetuple()[:6], value.microsecond)
        if value.tzinfo is not None:
            plain = plain - value.utcoffset()
        nanoseconds = value.nanosecond if isinstance(value, pd.Timestamp) else 0
        family = "moment" if value.tzinfo is None else "instant"
        return family, _length(plain - dt.datetime(1970, 1, 1)) + Fraction(nanoseconds, 10**9)
    if isinstance(value, dt.date):
        return "date", _length(value - dt.date(1970, 1, 1))
    if isinstance(value, dt.timedelta):
        nanoseconds = value.nanoseconds if isinstance(value, pd.Timedelta) else 0
        return "duration", _length(value) + Fraction(nanoseconds, 10**9)
    if isinstance(value, dt.time):
        return ("time" if value.tzinfo is None else "time with a zone"), _seconds(value)
    if isinstance(value, Decimal) and not value.is_finite():
        return "number", str(float(value))
    return _of_python(bytes(value) if isinstance(value, bytearray) else value)


def _length(value: dt.timedelta) -> Fraction:
    return Fraction(value.days * _DAY + value.seconds) + Fraction(value.microseconds, 10**6)


def array_of(value: Any, type_: pa.DataType) -> pa.Array:
    """An array of a null and the value."""
    if is_count(type_):
        bits = pa.int32() if type_.bit_width == 32 else pa.int64()
        return pa.array([None, value], bits).view(type_)
    return pa.array([None, value], type_)


def is_count(type_: pa.DataType) -> bool:
    """Return True if the values of the type are counts of a unit."""
    tests = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration)
    return any(test(type_) for test in tests)


class Value:
    """A value of a type: its family, and the Python value to compare."""

    def __init__(self, array: pa.Array, row: int) -> None:
        type_ = array.type
        if pa.types.is_dictionary(type_):
            array = array.dictionary_decode()
            type_ = array.type
        self.type = type_
        if is_count(type_):
            bits = pa.int32() if type_.bit_width == 32 else pa.int64()
            self.stored = array.view(bits)[row].as_py()
            self.family, self.exact = _of_count(self.stored, type_)
            return
        self.stored = array[row].as_py()
        self.family, self.exact = _of_python(self.stored)

    def is_object(self, value: Any) -> bool:
        """Return True if the value equals a Python object."""
        family, exact = of_object(value)
        if family != self.family:
            return False
        if exact == self.exact:
            return True
        floats = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}
        if isinstance(value, Decimal) and self.type in floats:
            return bool(floats[self.type](str(value)) == self.stored)
        if isinstance(self.stored, Decimal) and isinstance(value, float | np.floating):
            return bool(type(value)(str(self.stored)) == value)
        return False

    def equals(self, other: "Value") -> bool:
        """Return True if the other value is equal, or is a lossless conversion of this value."""
        if self.family == other.family:
            return bool(self.exact == other.exact) or self.is_decimal_of(other) or other.is_decimal_of(self)
        pair = {self.family: self, other.family: other}
        kinds = set(pair)
        if kinds == {"date", "moment"}:
            return bool(pair["date"].exact == pair["moment"].exact)
        if "number" in kinds and kinds & {"date", "time", "moment", "instant", "duration"}:
            count = next(value for value in pair.values() if value.family != "number")
            return bool(pair["number"].exact == count.stored)
        if kinds == {"text", "bytes"}:
            return bool(pair["text"].exact.encode() == pair["bytes"].exact)
        if "text" in kinds:
            (known,) = (value for value in pair.values() if value.family != "text")
            return known.is_spelled(pair["text"].exact)
        return False

    def is_decimal_of(self, other: "Value") -> bool:
        """Return True if this is a decimal whose nearest float is the other value."""
        floats = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}
        if not isinstance(self.stored, Decimal) or other.type not in floats:
            return False
        return bool(floats[other.type](str(self.stored)) == other.stored)

    def is_spelled(self, text: str) -> bool:
        """Return True if Python parses the text as this value."""
        try:
            if self.family == "number":
                if isinstance(self.stored, bool):
                    return text == str(self.stored).lower()
                if isinstance(self.stored, float | np.floating):
                    return _of_python(type(self.stored)(text))[1] == self.exact or (
                        _of_python(np.float32(text).item())[1] == self.exact
                    )
                return Fraction(text) == self.exact
            if self.family == "duration":
                return int(text) == self.stored
            if self.family == "time":
                return _seconds(dt.time.fromisoformat(text)) == self.exact
            if self.family == "date":
                return Fraction((dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days * _DAY) == self.exact
            when = pd.Timestamp(text)
            zoned = when.tzinfo is not None
            if zoned != (self.family == "instant"):
                return False
            scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[when.unit]
            return Fraction(int(when.asm8.astype("int64")), scale) == self.exact
        except ValueError:
            return False


def _seconds(time: dt.time) -> Fraction:
    whole = time.hour * 3600 + time.minute * 60 + time.second
    return Fraction(whole) + Fraction(time.microsecond, 10**6)


def _of_count(stored: int, type_: pa.DataType) -> tuple[str, Fraction]:
    if pa.types.is_date32(type_):
        return "date", Fraction(stored * _DAY)
    if pa.types.is_date64(type_):
        return "date", Fraction(stored, 1000)
    seconds = Fraction(stored, _TICKS[type_.unit])
    if pa.types.is_time(type_):
        return "time", seconds
    if pa.types.is_duration(type_):
        return "duration", seconds
    return ("moment" if type_.tz is None else "instant"), seconds


def _of_python(value: Any) -> tuple[str, Any]:
    if isinstance(value, str):
        return "text", value
    if isinstance(value, bytes):
        return "bytes", value
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return "number", str(float(value))
    if isinstance(value, Decimal | int | float | np.floating | bool):
        return "number", Fraction(float(value) if isinstance(value, np.floating) else value)
    raise AssertionError(f"a value of the class {type(value)}")
