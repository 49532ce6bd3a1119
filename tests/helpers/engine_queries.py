"""Random conditions, each written for DuckDB, DataFusion, Polars and pyarrow, and the rows to query."""

import datetime
import operator
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROWS = 600
_DAY = datetime.date(2024, 1, 1)
_TIME = datetime.datetime(2024, 1, 1)
_FLOATS = [-np.inf, -1.5, -0.0, 0.0, 0.25, 0.5, 1.5, np.inf, np.nan]
_WORDS = ["", "a", "ab", "b", "%", "zażółć", "B"]
_COMPARE: dict[str, Callable[..., Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LOGIC: dict[str, Callable[..., Any]] = {"and": operator.and_, "or": operator.or_, "not": operator.invert}


def table() -> pa.Table:
    """Rows of many types with nulls and NaN. The column ``k`` ascends, so that statistics exclude files."""
    chance = random.Random(1)

    def column(type_: pa.DataType, choose: Callable[[int], Any], nulls: float = 0.2) -> pa.Array:
        return pa.array([None if chance.random() < nulls else choose(at) for at in range(ROWS)], type_)

    return pa.table(
        {
            "k": column(pa.int64(), lambda at: at, 0),
            "n": column(pa.int32(), lambda at: chance.randint(-3, 3)),
            "u": column(pa.uint8(), lambda at: at // 100),
            "f": column(pa.float32(), lambda _: chance.choice(_FLOATS)),
            "g": column(pa.float32(), lambda at: np.nan if at < 100 else at / 8),
            "s": column(pa.string(), lambda _: chance.choice(_WORDS)),
            "b": column(pa.binary(), lambda _: chance.choice([b"", b"a", b"\xff", b"ab"])),
            "day": column(pa.date32(), lambda at: _DAY + datetime.timedelta(at // 20)),
            "time": column(pa.timestamp("us"), lambda at: _TIME + datetime.timedelta(minutes=at)),
            "zoned": column(pa.timestamp("us", "UTC"), lambda at: _TIME + datetime.timedelta(minutes=at)),
            "price": column(pa.decimal128(9, 2), lambda at: Decimal(at) / 4),
            "flag": column(pa.bool_(), lambda _: chance.random() < 0.5),
            "p": column(pa.string(), lambda _: chance.choice("xyz"), 0.1),
            "q": column(pa.int64(), lambda at: at % 4, 0),
        }
    )


_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "k": lambda chance: chance.randint(-5, ROWS + 5),
    "n": lambda chance: chance.randint(-4, 4),
    "u": lambda chance: chance.randint(0, 7),
    "f": lambda chance: chance.choice(_FLOATS),
    "g": lambda chance: chance.choice([np.nan, 0.0, 20.0, 50.125, 80.0]),
    "s": lambda chance: chance.choice(_WORDS),
    "b": lambda chance: chance.choice([b"", b"a", b"\xff", b"zz"]),
    "day": lambda chance: _DAY + datetime.timedelta(chance.randint(-2, 32)),
    "time": lambda chance: _TIME + datetime.timedelta(minutes=chance.randint(-5, ROWS)),
    "zoned": lambda chance: (
        _TIME.replace(tzinfo=datetime.UTC) + datetime.timedelta(minutes=chance.randint(-5, ROWS))
    ),
    "price": lambda chance: Decimal(chance.randint(-3, ROWS)) / 4,
    "p": lambda chance: chance.choice("wxyz"),
    "q": lambda chance: chance.randint(-1, 4),
}
_PAIRS = [("k", "q"), ("n", "u"), ("f", "g"), ("s", "p")]


class Condition(NamedTuple):
    """A condition: a symbol, and columns, values or other conditions."""

    symbol: str
    parts: tuple[Any, ...]


def condition(chance: random.Random, depth: int = 2) -> Condition:
    if depth and chance.random() < 0.6:
        symbol = chance.choice([*_LOGIC])
        parts = (condition(chance, depth - 1) for _ in range(1 if symbol == "not" else 2))
        return Condition(symbol, tuple(parts))
    name = chance.choice([*_VALUES])
    value = _VALUES[name]
    match chance.choice(
        ["compare"] * 4 + ["in", "not in", "null", "between", "columns", "like", "nan", "flag"]
    ):
        case "compare":
            return Condition(chance.choice([*_COMPARE]), (name, value(chance)))
        case "in" | "not in" as symbol:
            return Condition(symbol, (name, [value(chance) for _ in range(chance.randint(1, 6))]))
        case "null":
            return Condition(chance.choice(["is null", "is not null"]), (name,))
        case "between":
            return Condition("between", (name, value(chance), value(chance)))
        case "columns":
            return Condition(f"columns {chance.choice([*_COMPARE])}", chance.choice(_PAIRS))
        case "like":
            return Condition("like", (chance.choice("sp"), chance.choice(["a", "b", "x", "ó"])))
        case "nan":
            return Condition("is nan", (chance.choice("fg"),))
    return Condition("flag", ("flag",))


def sql(one: Condition, literal: Callable[[Any], str]) -> str:
    symbol, parts = one
    if symbol in ("and", "or"):
        return f"({sql(parts[0], literal)} {symbol} {sql(parts[1], literal)})"
    if symbol == "not":
        return f"(not {sql(parts[0], literal)})"
    if symbol in ("in", "not in"):
        return f"({parts[0]} {symbol} ({', '.join(map(literal, parts[1]))}))"
    if symbol.startswith("columns "):
        return f"({parts[0]} {symbol.removeprefix('columns ')} {parts[1]})"
    if symbol == "between":
        return f"({parts[0]} between {literal(parts[1])} and {literal(parts[2])})"
    if symbol == "like":
        return f"({parts[0]} like '%{parts[1]}%')"
    if symbol == "is nan":
        return f"isnan({parts[0]})"
    if symbol == "flag":
        return "flag"
    return f"({parts[0]} {symbol}{'' if len(parts) == 1 else ' ' + literal(parts[1])})"


def _common_literal(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value}'"
    if isinstance(value, float) and not np.isfinite(value):
        return f"CAST('{value}' AS FLOAT)"
    return str(value)


def duckdb_literal(value: Any) -> str:
    if isinstance(value, bytes):
        escaped = "".join(rf"\x{byte:02x}" for byte in value)
        return f"'{escaped}'::BLOB"
    if getattr(value, "tzinfo", None):
        return f"TIMESTAMPTZ '{value:%Y-%m-%d %H:%M:%S}+00'"
    return _common_literal(value)


def datafusion_literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if getattr(value, "tzinfo", None):
        return f"arrow_cast('{value:%Y-%m-%dT%H:%M:%S}Z', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return _common_literal(value)


def arrow(one: Condition, types: pa.Schema) -> pc.Expression:
    symbol, parts = one
    if symbol in ("and", "or", "not"):
        return _LOGIC[symbol](*(arrow(part, types) for part in parts))
    column = pc.field(parts[0])
    if symbol in _COMPARE and not isinstance(parts[1], str) and parts[1] == 1:
        return _COMPARE[symbol](pc.scalar(parts[1]), column)  # the value comes first
    if symbol in _COMPARE:
        return _COMPARE[symbol](column, parts[1])
    if symbol in ("in", "not in"):
        found = column.isin(
            pa.array([*parts[1], *([None] if len(parts[1]) > 4 else [])], types.field(parts[0]).type)
        )
        return ~found if symbol == "not in" else found
    if symbol == "between":
        return (column >= parts[1]) & (column <= parts[2])
    if symbol.startswith("columns "):
        return _COMPARE[symbol.removeprefix("columns ")](column, pc.field(parts[1]))
    if symbol == "like":
        return pc.match_substring(column, parts[1])
    if symbol == "is nan":
        return pc.is_nan(column)
    if symbol == "is null":
        return column.is_null(nan_is_null=parts[0] < "k")
    return column.is_valid() if symbol == "is not null" else column


def polars(one: Condition) -> Any:
    import polars as pl

    symbol, parts = one
    if symbol in ("and", "or", "not"):
        return _LOGIC[symbol](*map(polars, parts))
    column = pl.col(parts[0])
    if symbol in _COMPARE:
        return _COMPARE[symbol](column, pl.lit(parts[1]))
    if symbol in ("in", "not in"):
        found = column.is_in(parts[1])
        return ~found if symbol == "not in" else found
    if symbol == "between":
        return column.is_between(pl.lit(parts[1]), pl.lit(parts[2]))
    if symbol.startswith("columns "):
        return _COMPARE[symbol.removeprefix("columns ")](column, pl.col(parts[1]))
    if symbol == "like":
        return column.str.contains(parts[1], literal=True)
    if symbol == "is nan":
        return column.is_nan()
    if symbol == "is null":
        return column.is_null()
    return column.is_not_null() if symbol == "is not null" else column
