"""A plan with a filter reads only the row groups of the lists that may match, and finds the same files.

The files of all types of columns and partition columns are compared with those of a read of all entries.

Modules: dataset.snapshot.list_files, dataset.snapshot.entry_log, dataset.read.plan, dataset.read.discovery.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from list_rules import RULES

from dask_tfrecord import read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.names import snapshot_path
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import file_outcomes
from dask_tfrecord.dataset.read import discovery
from dask_tfrecord.dataset.snapshot import entry_log, list_files
from dask_tfrecord.dataset.snapshot.entry_log import EntryLog
from dask_tfrecord.dataset.snapshot.head import kept_versions
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.stored_files import from_entries
from dask_tfrecord.dataset.snapshot.versions import encode
from dask_tfrecord.files.entry import ColumnStatistics, FileEntry
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

WARSAW = ZoneInfo("Europe/Warsaw")
MOMENT = datetime(2026, 10, 25, 2, 30)

# For each type: a function from a number to a value. Greater numbers give greater values.
TYPES: dict[pa.DataType, Callable[[int], Any]] = {
    pa.bool_(): lambda n: n > 20,
    pa.int8(): lambda n: n - 20,
    pa.int64(): lambda n: 2**62 + n if n % 2 else n - 2**62,
    pa.uint32(): lambda n: 2**32 - 40 + n,
    pa.uint64(): lambda n: 2**63 - 20 + n,
    pa.float16(): lambda n: float(n) / 4,
    pa.float32(): lambda n: float("inf") if n == 39 else (n - 20) / 8,
    pa.float64(): lambda n: (n - 20) / 8,
    pa.string(): lambda n: "ä" * (n // 10) + f"{n:03}",
    pa.large_string(): lambda n: f"{n:03}",
    pa.dictionary(pa.int32(), pa.string()): lambda n: "" if not n else f"{n:03}",
    pa.binary(): lambda n: bytes([n * 6]) * (n % 3),
    pa.decimal128(7, 2): lambda n: Decimal(n * 25 - 500) / 100,
    pa.date32(): lambda n: date(1970, 1, 20) + timedelta(n - 20),
    pa.timestamp("s"): lambda n: MOMENT + timedelta(hours=n),
    pa.timestamp("ms"): lambda n: MOMENT + timedelta(milliseconds=n),
    pa.timestamp("us", "Europe/Warsaw"): lambda n: MOMENT.replace(tzinfo=WARSAW) + timedelta(minutes=7 * n),
    pa.timestamp("ns", "UTC"): lambda n: pd.Timestamp(2**60 + n, tz="UTC"),
    pa.time32("s"): lambda n: time(n // 2, 30 * (n % 2)),
    pa.time64("us"): lambda n: time(1, 2, 3, n),
    pa.duration("us"): lambda n: timedelta(microseconds=n - 20),
    pa.duration("ns"): lambda n: timedelta(seconds=n),
}
FILES = 40


def entries(type_: pa.DataType, seed: int) -> tuple[list[FileEntry], Schema, Schema]:
    """Files with statistics and partition values of a type, some of them unknown or null."""
    choose, value = random.Random(seed), TYPES[type_]
    numbers = [n for n in range(FILES) for _ in range(1 + n % 2)]
    found = []
    for at, n in enumerate(numbers):
        key = None if n in (0, 13) else value(n)
        if pa.types.is_floating(type_) and n == 7:
            key = float("nan")
        bounds = sorted((choose.randrange(FILES), min(n + 1, FILES - 1)))
        low, high = map(value, bounds)
        if isinstance(low, bytes) and low > high:
            low, high = high, low
        statistics: tuple[ColumnStatistics, ...] = (
            ColumnStatistics("x", low, high, choose.choice([0, 0, 2])),
        )
        if n % 11 == 5:
            statistics = (ColumnStatistics("x", None, None, choose.choice([0, 5])),)
        found.append(FileEntry(f"{at:03}", 9, 5, at, (key,), statistics=statistics * (n % 17 != 3)))
    return found, Schema.from_arrow(pa.schema({"x": type_})), Schema.from_arrow(pa.schema({"k": type_}))


def stored(root: Path, type_: pa.DataType, seed: int) -> tuple[Snapshot, list[FileEntry]]:
    """Store a version of three lists: some files are removed, some replaced, and some added later."""
    files, schema, keys = entries(type_, seed)
    store = Store.at(str(root) + "/")
    choose = random.Random(seed)
    choose.shuffle(files)
    first = EntryLog(from_entries(files[:50], schema, keys.fields))
    snapshot = Snapshot(first, schema, None, "0" * 32, "1", keys.fields)
    left = files[:50]
    for number in (1, 2, 3):
        data, log = encode(store, vars(snapshot), kept_versions)
        store.create_exclusively(store.join(snapshot_path(number)), data)
        if number < 3:
            gone, added = left[number::7], files[50 + 5 * number : 55 + 5 * number]
            left = [file for file in left if file not in gone] + added
            removed = log.files.filter(
                pc.is_in(log.files["path"], pa.array([one.path.encode() for one in gone]))
            )
            log = log.changed(from_entries(added, schema, keys.fields), removed)
            snapshot = replace(snapshot, log=log, number=number + 1, run=str(number) * 32, before=log.lists)
    return Snapshot.open(root), left


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_files, "_GROUP_ROWS", 4)
    monkeypatch.setattr(entry_log, "_kept_lists", RULES["delta"])


@pytest.mark.sampled
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_pruned_read_finds_the_files_of_a_whole_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: pa.DataType
) -> None:
    """Every other type is read in ranges of the files."""
    monkeypatch.setattr(list_files, "TAIL_BYTES", [1 << 16, 5000][[*TYPES].index(type_) % 2])
    snapshot, left = stored(tmp_path, type_, seed=len(str(type_)))
    assert sorted(file.path for file in snapshot.files) == sorted(file.path for file in left)
    # No comparison is true for NaN, but the bounds of a file with a NaN as its partition value are unknown.
    nans = {file.path for file in left if file.values[0] != file.values[0]}
    read = pruned = 0
    fresh = Snapshot.open(tmp_path)
    for n in (13, 20, 39):
        for name in "kx":
            for operator in ("==", "!=", "<", "<=", ">", ">=", "in", "not in"):
                value = TYPES[type_](n)
                filters = [(name, operator, [value] if "in" in operator else value)]
                predicate = parse_filters(filters, snapshot.columns)
                fewer = discovery._matching_files(fresh, snapshot.columns, predicate)
                kept = []
                for files in (fewer, snapshot.file_list):
                    outcomes = file_outcomes(predicate, snapshot.columns, files, files["records"])
                    kept.append(files.filter(outcomes.true).paths)
                assert [path for path in kept[1] if path not in nans or path in kept[0]] == kept[0], filters
                read, pruned = read + len(fewer), pruned + len(snapshot.file_list) - len(fewer)
    assert pruned > 0 or pa.types.is_float16(type_) or pa.types.is_boolean(type_)
    assert read > 0


@pytest.mark.parametrize("keys", [None, "k"])
def test_filters_of_a_read_give_the_rows_of_pandas(tmp_path: Path, keys: str | None) -> None:
    frame = pd.DataFrame({"k": [n // 3 % 11 for n in range(99)], "n": range(99), "y": np.arange(99) % 7 / 2})
    for start in range(0, 99, 33):
        table = pa.Table.from_pandas(frame[start : start + 33], preserve_index=False)
        options: Any = {"max_rows_per_file": 2}
        to_tfrecord(table, tmp_path, append=True, partition_on=keys, write_options=options, lossy="allow")
    conditions = [
        [("k", "==", 4)],
        [("n", "<", 40), ("k", ">", 7)],
        [[("n", "==", 98)], [("k", "in", [0, 1]), ("y", ">=", 2.5)]],
        [("n", "<", 0)],
        [("n", ">", 5), ("n", "not in", [7, 8])],
    ]
    masks = [
        frame.k == 4,
        (frame.n < 40) & (frame.k > 7),
        (frame.n == 98) | (frame.k.isin([0, 1]) & (frame.y >= 2.5)),
        frame.n < 0,
        (frame.n > 5) & ~frame.n.isin([7, 8]),
    ]
    for filters, mask in zip(conditions, masks, strict=True):
        found = read_tfrecord(tmp_path, filters=filters).compute()
        assert sorted(found.n.tolist()) == frame.n[mask].tolist()
        assert sorted(found.k.tolist()) == sorted(frame.k[mask].tolist())
