"""Random writes on one dataset: a model in plain Python knows the rows of each version.

Each seed is another order of writes, of which most are small, so that versions consist of many merged lists.
Files of one version have column files of several settings, or none.

Modules: dataset.snapshot.entry_log, dataset.write.operations, dataset.rewrite.delete,
dataset.rewrite.compact.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from strides import IS_QUICK

from dask_tfrecord import Writer, open_dataset, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")

WRITES = 25
KEYS = "abcde"
NUMBERS = [None, float("nan"), 1.5, -2.0, 7.0]

Row = tuple[str, float | None]  # the key and the number; the id of a row is its key in `Rows`
Rows = dict[int, Row]


class History:
    """A dataset, the rows that it should have, and those of each version."""

    def __init__(self, seed: int, path: str) -> None:
        self.random, self.path = random.Random(seed), path
        self.is_keyed = seed % 2 == 0
        self.rows: Rows = {}
        self.versions: dict[int, Rows] = {}
        self.next_id = 0

    def new(self, keys: str = KEYS) -> Rows:
        count = self.random.choice([1, 1, 2, 9])
        self.next_id += count
        return {
            self.next_id + n: (self.random.choice(keys), self.random.choice(NUMBERS))
            for n in range(-count, 0)
        }

    def write(self, rows: Rows, **how: Any) -> None:
        size = {"max_rows_per_file": self.random.choice([1, 4])}
        how = {"columnar": self.random.choice(["auto", "auto", "auto", ["id"], "scalars", None]), **how}
        keys = "key" if self.is_keyed else None
        to_tfrecord(table(rows), self.path, partition_on=keys, write_options=size, **how)

    def filters(self) -> tuple[Any, Callable[[int, Row], bool]]:
        """Return a random filter and the predicate in Python with the same meaning."""
        at, key = self.random.randint(0, self.next_id), self.random.choice(KEYS)
        end, bound = at + self.random.choice([0, 3, 20]), self.random.choice([1.5, -2.0])

        def either(n: int, of_row: str) -> bool:
            return (of_row != key and n < at) or n == end

        choices: list[tuple[Any, Callable[[int, Row], bool]]] = [
            ([("id", ">=", at), ("id", "<=", end)], lambda n, row: at <= n <= end),
            ([("key", "==", key)], lambda n, row: row[0] == key),
            ([[("key", "!=", key), ("id", "<", at)], [("id", "==", end)]], lambda n, row: either(n, row[0])),
            ([("x", ">=", bound)], lambda n, row: row[1] is not None and row[1] >= bound),
            ([("x", "is", None)], lambda n, row: row[1] is None),
        ]
        return self.random.choice(choices)

    # -- The writes. Each returns the rows that the dataset should have afterwards. --------------------------

    def append(self) -> Rows:
        new = self.new()
        self.write(new, append=True)
        return self.rows | new

    def writer(self) -> Rows:
        with Writer(self.path, partition_on="key" if self.is_keyed else None) as writer:
            for _ in range(3):
                new = self.new()
                writer.write(table(new))
                self.note(writer.commit().version, self.rows | new)
        return self.rows

    def partitions(self) -> Rows:
        if not self.is_keyed:
            return self.append()
        new = self.new("ab")
        self.write(new, overwrite="partitions", keep_versions=True)
        keys = {key for key, _ in new.values()}
        return {n: row for n, row in self.rows.items() if row[0] not in keys} | new

    def delete(self) -> Rows:
        filters, is_deleted = self.filters()
        open_dataset(self.path).delete(filters, keep_versions=True)
        return {n: row for n, row in self.rows.items() if not is_deleted(n, row)}

    def compact(self) -> Rows:
        open_dataset(self.path).compact(target_bytes=self.random.choice([300, 1 << 20]), keep_versions=True)
        return self.rows

    def restore(self) -> Rows:
        version = self.random.choice(open_dataset(self.path).history()["version"].tolist())
        open_dataset(self.path).restore(version)
        return self.versions[version]

    def expire(self) -> Rows:
        open_dataset(self.path).expire(versions=12, grace="0s")
        return self.rows

    def overwrite(self) -> Rows:
        new = self.new()
        self.write(new, overwrite=True, keep_versions=True)
        return new

    # -- The checks ------------------------------------------------------------------------------------------

    def note(self, version: int, rows: Rows) -> None:
        assert self.versions.setdefault(version, rows) == rows  # a write that changes nothing has no version
        self.rows = rows

    def check_newest(self) -> None:
        ddf = read_tfrecord(self.path)
        found = ddf.compute()
        assert to_rows(found) == plain(self.rows)
        assert len(ddf) == len(self.rows)
        filters, is_read = self.filters()
        wanted = {n for n, row in self.rows.items() if is_read(n, row)}
        filtered = read_tfrecord(self.path, filters=filters)
        assert filtered["id"].compute().tolist() == [n for n in found["id"] if n in wanted], filters
        assert len(filtered) == len(wanted), filters

    def check_versions(self) -> None:
        for version, count in open_dataset(self.path).history()[["version", "rows"]].itertuples(index=False):
            assert to_rows(read_tfrecord(self.path, version=version).compute()) == plain(
                self.versions[version]
            )
            assert count == len(self.versions[version])
        assert open_dataset(self.path).verify()["agrees"].all()  # also the column files


def table(rows: Rows) -> pa.Table:
    keys, numbers = zip(*rows.values(), strict=True)
    return pa.table({"id": [*rows], "key": keys, "x": pa.array(numbers, pa.float32())})


def to_rows(found: pd.DataFrame) -> list[tuple[int, str, str]]:
    numbers = [None if x is pd.NA else x for x in found["x"]]
    return sorted((n, str(key), str(x)) for n, key, x in zip(found["id"], found["key"], numbers, strict=True))


def plain(rows: Rows) -> list[tuple[int, str, str]]:
    return sorted((n, key, str(x)) for n, (key, x) in rows.items())


@pytest.mark.parametrize("seed", range(2 if IS_QUICK else 6))
def test_each_version_has_the_rows_of_its_write(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    if seed % 3 != 1:
        request.getfixturevalue("column_files_of_all")
    history = History(seed, f"{tmp_path}/data")
    first = history.new()
    history.write(first)
    history.note(1, first)
    writes: dict[Callable[[], Rows], int] = {history.append: 8, history.writer: 2, history.partitions: 3}
    writes |= {
        history.delete: 5,
        history.compact: 3,
        history.restore: 2,
        history.expire: 1,
        history.overwrite: 1,
    }
    for write in history.random.choices([*writes], [*writes.values()], k=WRITES):
        rows = write()
        history.note(int(open_dataset(history.path).history()["version"].iloc[-1]), rows)
        history.check_newest()
    history.check_versions()
