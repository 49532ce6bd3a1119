"""Random datasets and random queries, the same for the same seed. A query is a line of Python about ``d``."""

import datetime
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, time, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe import methods

from dask_tfrecord import open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.names import snapshot_path
from dask_tfrecord.dataset.snapshot.entry_log import EntryLog
from dask_tfrecord.dataset.snapshot.head import kept_versions
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.versions import encode
from dask_tfrecord.storage.store import Store

# The global names that the text of a query uses.
NAMES = {
    "datetime": datetime,
    "Decimal": Decimal,
    "np": np,
    "pd": pd,
    "nan": math.nan,
    "inf": math.inf,
    "UTC": UTC,
}

_MOMENTS = [datetime.datetime(2020, 1, day, hour) for day in (1, 2, 3) for hour in (0, 12)]
_WORDS = ["a", "b", "c", "ä", "", "2020-01-02", "x" * 70]
_REAL = [0.0, -0.0, 0.5, 1.5, -2.0, 1e30, math.nan, math.inf, -math.inf]

# For each column: its type, its values, and the literals that queries compare it to.
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 5, 127], ["1000", "0.5", "np.int8(1)", "np.float32(1.5)", "True"]),
    "i16": (pa.int16(), [-300, 0, 1, 300], ["0.5", "nan"]),
    "i32": (pa.int32(), [-(2**31), 0, 1, 2**24 + 1], ["2**24", "np.float32(2**24)", "inf"]),
    "i64": (
        pa.int64(),
        [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1],
        ["2.0**53", "1.5", "np.uint64(2**63)", "np.uint64(1)", "2**63", "'1'"],
    ),
    "u8": (pa.uint8(), [0, 1, 255], ["-1", "256", "np.uint8(1)"]),
    "u64": (pa.uint64(), [0, 1, 2**53 + 1, 2**63 - 1], ["-1", "2.0**53", "2**64"]),
    "f16": (pa.float16(), [np.float16(v) for v in (0.5, -0.0, 0.0, math.nan, math.inf)], ["0.1", "1"]),
    "f32": (pa.float32(), [*_REAL, 0.1], ["0.1", "np.float32(0.1)", "1", "np.float64(0.1)", "None"]),
    "f64": (pa.float64(), [*_REAL, 0.1], ["0.1", "np.float32(0.1)", "2**53 + 1", "Decimal('0.5')"]),
    "flag": (pa.bool_(), [True, False], ["1", "0.0", "np.bool_(True)", "'True'"]),
    "date": (
        pa.date32(),
        [date(2020, 1, day) for day in (1, 2, 3)],
        ["'2020-01-02'", "pd.Timestamp('2020-01-02')", "np.datetime64('2020-01-02')"],
    ),
    "time": (pa.time64("us"), [time(0), time(12, 30)], ["'12:30'"]),
    "ts_s": (
        pa.timestamp("s"),
        [*_MOMENTS, datetime.datetime(9999, 1, 1)],
        ["'2020-01-02'", "pd.Timestamp('2020-01-02')", "np.datetime64('2020-01-02', 'ns')", "pd.NaT"],
    ),
    "ts_ns": (
        pa.timestamp("ns"),
        _MOMENTS,
        ["'2020-01-02 12:00'", "pd.Timestamp('2020-01-02')", "datetime.date(2020, 1, 2)"],
    ),
    "ts_utc": (
        pa.timestamp("us", "UTC"),
        [moment.replace(tzinfo=UTC) for moment in _MOMENTS],
        [
            "'2020-01-02T00:00:00+00:00'",
            "'2020-01-02'",
            "pd.Timestamp('2020-01-02 01:00', tz='Europe/Warsaw')",
        ],
    ),
    "dur": (
        pa.duration("ms"),
        [timedelta(0), timedelta(seconds=1), timedelta(days=-1)],
        ["pd.Timedelta('1s')", "np.timedelta64(1, 's')", "'1s'", "np.timedelta64(1, 'ns')"],
    ),
    "dec": (pa.decimal128(6, 2), [Decimal("0.50"), Decimal("-1.25"), Decimal("3")], ["0.5", "1", "'0.5'"]),
    "text": (pa.string(), _WORDS, ["1", "b'a'", "None", "np.str_('a')"]),
    "big": (pa.large_string(), _WORDS, ["1"]),
    "raw": (pa.binary(), [b"", b"a", b"\xff", b"x" * 70], ["'a'", "bytearray(b'a')"]),
    "cat": (pa.dictionary(pa.int32(), pa.string()), _WORDS[:4], ["'zz'", "1"]),
    "cat_i": (pa.dictionary(pa.int32(), pa.int64()), [3, 1, 2], ["9", "1.0", "'1'"]),
    "list": (pa.list_(pa.int64()), [[], [1], [2**53 + 1, 3]], []),
    "pair": (pa.list_(pa.int64(), 2), [[1, 2], [2**53 + 1, 0]], []),
    "words": (pa.list_(pa.string()), [[], ["a", "b"]], []),
}
_UNORDERED = ("list", "pair", "words")
_KEYS = ["i8", "i64", "u8", "f32", "flag", "date", "ts_s", "ts_utc", "text", "cat", "cat_i", "dec"]


def literal(value: Any) -> str:
    if isinstance(value, np.float16):
        return repr(float(value))
    return repr(value).replace("datetime.timezone.utc", "UTC")


@dataclass(frozen=True)
class Data:
    """A dataset and the arguments by which it is read."""

    seed: int
    root: Path
    names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def plain(self) -> Any:
        return self.read()

    @cached_property
    def arrow(self) -> pd.DataFrame:
        found: pd.DataFrame = self.read(dtype_backend="pyarrow").compute()
        return found

    def read(self, **options: Any) -> Any:
        found = {**self.options, **options}
        return read_tfrecord(found.pop("path", self.root), **found)


def make_data(seed: int, root: Path) -> Data:
    """Write a dataset of random columns in several files; each file holds few of the values of a column."""
    rng = random.Random(f"data {seed}")
    names = ["n", *rng.sample(sorted(COLUMNS), rng.randint(3, 6))]
    suitable = [name for name in names if name in _KEYS]
    keys = rng.sample(suitable, min(len(suitable), rng.choice([0, 0, 1, 2])))
    gaps = {name for name in names[1:] if rng.random() < 0.5}
    frames, first = [], 0
    for _ in range(rng.randint(1, 5)):
        count = rng.choice([0, 1, 3, 6, 12])
        frames.append(_frame(rng, names, gaps, first, count))
        first += count
    keywords: dict[str, Any] = {
        "partition_on": keys or None,
        "lossy": "allow",
        "compression": rng.choice([None, None, "gzip", "zlib"]),
        "write_options": {"max_rows_per_file": rng.choice([None, None, 4])},
    }
    # The files of the append may have other column files than the others, or none.
    columnar = random.Random(f"columnar {seed}").choice(["auto", None, "scalars", ["n"], []])
    own = root / "own"
    for some, more in ((frames[:1], {}), (frames[1:], {"append": True, "columnar": columnar})):
        if some:
            ddf = dd.from_map(lambda at, some=some: some[at], range(len(some)), meta=some[0].iloc[:0])
            to_tfrecord(ddf, own, **keywords, **more)
    options = {
        "blocksize": rng.choice([None, None, "64 B", "128 MiB"]),
        "dtype_backend": rng.choice(["pyarrow", "numpy", "numpy_nullable", None]),
    }
    return Data(seed, own, tuple(names), options)


def _frame(rng: random.Random, names: list[str], gaps: set[str], first: int, count: int) -> pd.DataFrame:
    found = {}
    for name in names:
        if name == "n":
            found[name] = pd.array(range(first, first + count), pd.ArrowDtype(pa.int64()))
            continue
        type_, values, _ = COLUMNS[name]
        pool = rng.sample(values, rng.randint(1, min(3, len(values))))
        nulls = rng.choice([0, 0.3, 1]) if name in gaps else 0
        chosen = [None if rng.random() < nulls else rng.choice(pool) for _ in range(count)]
        if pa.types.is_dictionary(type_):
            found[name] = pd.Categorical(chosen, categories=values)
        else:
            found[name] = pd.arrays.ArrowExtensionArray(pa.chunked_array([pa.array(chosen, type_)]))
    return pd.DataFrame(found)


def variants(data: Data) -> Iterator[tuple[str, Data]]:
    """Copies of the dataset: without statistics, without the snapshot, and with a snapshot of `index`."""
    yield "snapshot", data
    snapshot = Snapshot.open(data.root)
    if not snapshot.files:
        return
    schema = data.read(dtype_backend="pyarrow").expr.dataset.schema
    names = [name for name in snapshot.file_list.rows.column_names if not name.startswith("statistics.")]
    bare = replace(snapshot, log=EntryLog(snapshot.file_list.select(names)))
    for name in ("bare", "foreign", "indexed"):
        root = data.root.parent / name
        root.mkdir()
        for entry in snapshot.files:
            path = root / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(data.root / entry.path)
        options = dict(data.options)
        if name == "bare":
            store = Store.at(root)
            stored, _ = encode(store, vars(bare), kept_versions)
            store.create_exclusively(store.join(snapshot_path(bare.number)), stored)
        else:
            hive = {item.name: item.type for item in snapshot.partitioning}
            known: dict[str, Any] = {"schema": snapshot.schema.arrow, "hive": hive or False}
            options["columns"] = schema.names
            if name == "indexed":
                open_dataset(root, **known).add_snapshot()
            else:
                options |= known
        yield name, replace(data, root=root, options=options)


class Queries:
    def __init__(self, data: Data, seed: int) -> None:
        self.rng = random.Random(f"query {data.seed} {seed}")
        self.names = data.names
        self.index: str | None = None
        # Dask cannot compare an index backed by NumPy.
        self.arrow = data.options["dtype_backend"] == "pyarrow"

    def become_index(self) -> str | None:
        """Choose a column that queries look at as the index, if one can be."""
        suitable = [name for name in self.names if name not in ("n", "f16", *_UNORDERED)]
        self.index = self.rng.choice(suitable) if suitable else None
        self.names = tuple(name for name in self.names if name != self.index)
        return self.index

    def query(self) -> str:
        """A Python expression of ``d`` and ``other``, two reads of one dataset."""
        rng, steps = self.rng, self.rng.choice([0, 1, 1, 1, 2, 2, 3])
        found, columns = "d", list(self.names)
        if self.index is not None and rng.random() < 0.4:
            low, high = map(literal, rng.choices(COLUMNS[self.index][1], k=2))
            ways = [f"d.loc[{low}:{high}]", f"d.loc[{low}:]"]
            found = rng.choice([*ways, f"d[d.index >= {low}]"] if self.arrow else ways)
        for _ in range(steps):
            found, columns = self._step(found, columns)
        return self._end(found, columns) if rng.random() < 0.5 else found

    def filters(self) -> list[Any] | None:
        """A value for ``filters=``, which compares columns to values of their own types."""
        rng = self.rng
        groups = []
        for _ in range(rng.choice([1, 1, 2])):
            conditions: list[Any] = []
            for name in rng.choices(
                [name for name in self.names if name not in _UNORDERED], k=rng.randint(1, 2)
            ):
                values = [*range(5)] if name == "n" else COLUMNS[name][1]
                values = [value for value in values if value == value]
                symbol = rng.choice(["==", "!=", "<", "<=", ">", ">=", "in", "not in", "is", "is not"])
                value = None if symbol.startswith("is") else rng.choice(values)
                if symbol.endswith("in"):
                    value = rng.sample(values, rng.randint(0, len(values)))
                conditions.append((name, symbol, value))
            groups.append(conditions)
        return groups

    def mask(self, found: str, columns: list[str], depth: int = 0) -> str:
        rng = self.rng
        kind = rng.random()
        if depth < 3 and kind < 0.35:
            symbol = rng.choice("&|")
            return f"({self.mask(found, columns, depth + 1)} {symbol} {self.mask(found, columns, depth + 1)})"
        if depth < 3 and kind < 0.45:
            return f"(~{self.mask(found, columns, depth + 1)})"
        return self._leaf(found, rng.choice(columns), columns)

    def _leaf(self, found: str, name: str, columns: list[str]) -> str:
        rng = self.rng
        column = f"{found}[{name!r}]" if rng.random() < 0.9 else f"{found}.{name}"
        if name == "z":
            return f"({column} > {rng.randint(0, 40)})"
        if name in _UNORDERED or rng.random() < 0.1:
            return f"{column}.{rng.choice(['isna', 'notnull'])}()"
        values = [str(rng.randint(0, 30))] if name == "n" else [*map(literal, COLUMNS[name][1])]
        others = ["3.5", "2**70"] if name == "n" else COLUMNS[name][2]
        value = rng.choice(values if rng.random() < 0.75 or not others else others)
        kind = rng.random()
        if name == "flag" and kind < 0.2:
            return column
        if kind < 0.2:
            some = rng.sample([*values, *others], rng.randint(0, min(3, len(values))))
            return f"{column}.isin([{', '.join(some)}])"
        if kind < 0.3:
            inclusive = rng.choice(["both", "neither", "left", "right"])
            return f"{column}.between({value}, {rng.choice(values)}, inclusive={inclusive!r})"
        if kind < 0.35:
            return f"({column} == {found}[{rng.choice(columns)!r}])"
        if kind < 0.4 and name in ("n", "i8", "i64", "f32"):
            return f"({column} + 1 > {value})"
        symbol = rng.choice(["==", "!=", "<", "<=", ">", ">="] if rng.random() < 0.6 else ["==", "!="])
        return f"({value} {symbol} {column})" if kind < 0.5 else f"({column} {symbol} {value})"

    def _step(self, found: str, columns: list[str]) -> tuple[str, list[str]]:
        rng = self.rng
        kind = rng.random()
        mask = self.mask("e", columns)
        if kind < 0.5:
            return f"(lambda e: e[{mask}])({found})", columns
        if kind < 0.56:
            return f"(lambda e: e.loc[{mask}])({found})", columns
        if kind < 0.68:
            some = rng.sample(columns, rng.randint(1, len(columns)))
            some = some if "n" in some else ["n", *some]
            if rng.random() < 0.5:
                return f"{found}[{some}]", some
            return f"(lambda e: e.loc[{mask}, {some}])({found})", some
        if kind < 0.76:
            return f"{found}.assign(z={found}['n'] * 2)", list(dict.fromkeys([*columns, "z"]))
        if kind < 0.80:
            name = rng.choice([name for name in columns if name != "n"] or ["z"])
            return f"{found}.assign({name}={found}['n'])", [one for one in columns if one != name]
        if kind < 0.84:
            return f"each({found})", columns
        if kind < 0.88:
            return (
                f"both([(lambda e: e[{mask}])({found}), (lambda e: e[{self.mask('e', columns)}])({found})])",
                columns,
            )
        if kind < 0.92:
            return f"{found}.drop_duplicates(subset=['n'])", columns
        if kind < 0.95:
            right = f"(lambda e: e[{self.mask('e', list(self.names))}])(other)[['n']]"
            return f"{found}.merge({right}, on='n', how={rng.choice(['inner', 'left'])!r})", columns
        if kind < 0.97:
            return f"apart({found})", columns
        return f"{found}.reset_index(drop=True)", columns

    def _end(self, found: str, columns: list[str]) -> str:
        rng = self.rng
        name = rng.choice(columns)
        mask = self.mask("e", columns)
        return rng.choice(
            [
                f"len({found})",
                f"{found}['n'].sum()",
                f"{found}['n'].max()",
                f"{found}[{name!r}].count()",
                f"{found}[{name!r}]",
                f"(lambda e: e['n'][{mask}])({found})",
                f"(lambda e: e[{mask}]['n'].sum() + e['n'].count())({found})",
                f"(lambda e: e[{mask}]['n'].count() + e[{self.mask('e', columns)}]['n'].count())({found})",
                f"{found}.groupby({name!r})['n'].count()" if name not in _UNORDERED else f"len({found})",
                f"{found}.groupby({name!r}, sort=True)['n'].sum()"
                if name not in _UNORDERED
                else f"len({found})",
                f"{found}[{name!r}].isna().sum()",
                f"{found}.index.size",
                f"{found}['n'].nlargest(3)",
                f"first({found}, {rng.randint(0, 5)})",
                f"{'first' if 'apart' in found else 'last'}({found}, {rng.randint(0, 5)})",
                f"{found}.sort_values('n')",
            ]
        )


def run(query: str, d: Any, other: Any) -> Any:
    """Evaluate the query on a frame of Dask or pandas."""
    lazy = isinstance(d, dd.DataFrame)
    helpers = {
        "d": d,
        "other": other,
        "each": lambda frame: frame.map_partitions(pd.DataFrame.copy) if lazy else frame,
        "both": lambda frames: dd.concat(frames) if lazy else methods.concat(frames),
        "apart": lambda frame: frame.repartition(npartitions=2) if lazy else frame,
        "first": lambda frame, n: frame.head(n, npartitions=-1, compute=False) if lazy else frame.head(n),
        "last": lambda frame, n: frame.tail(n, compute=False) if lazy else frame.tail(n),
    }
    return eval(query, {**NAMES, **helpers})
