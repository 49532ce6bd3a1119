"""Two writes that are planned on the same version: the table in docs/guarantees.md says what happens."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from small_frames import keyed

import dask_tfrecord
from dask_tfrecord import ConcurrentWriteError, Snapshot, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.maintenance import indexing
from dask_tfrecord.dataset.write.commit import commit
from dask_tfrecord.dataset.write.conflicts import Group, GroupsLostError
from dask_tfrecord.dataset.write.run import WriteRun, draw_run
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.listing import with_trailing_slash
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

Rows = frozenset[tuple[str, int]]
START: Rows = frozenset({("a", 0), ("a", 1), ("a", 2), ("b", 4), ("b", 5), ("b", 6)})
GUIDE = Path(__file__).parents[3] / "docs" / "guarantees.md"


def table() -> dict[tuple[str, str], str]:
    """The cells of the table, by the operation that commits last and the operation that commits first."""
    lines = [line for line in GUIDE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    start = next(at for at, row in enumerate(rows) if row[0] == "planned first, committed last")
    found = {}
    for row in rows[start + 2 : start + 11]:
        found |= {(row[0], other): cell for other, cell in zip(rows[start][1:], row[1:], strict=True)}
    return found


class Planned(NamedTuple):
    """An operation that was planned: its commit, and the rows after it, from the rows before it."""

    commit: Callable[[], Any]
    applied: Callable[[Rows], Rows]


def rewriting(place: Path, mode: Any, key: str, keeps: Callable[[int], bool]) -> Callable[[], Any]:
    """Replace all files of a partition by one file with some of the rows."""
    snapshot, store = Snapshot.open(place), with_trailing_slash(Store.at(place))
    run = WriteRun(
        store,
        snapshot.schema,
        draw_run(store),
        mode=mode,
        base=snapshot.number,
        partitioning=snapshot.partitioning,
        order=snapshot.order,
    )
    groups: list[Group] = []
    entries: list[FileEntry] = []
    old = [file for file in snapshot.files if file.values == (key,)]
    for at, files in enumerate((old[:1], old[1:]) if mode == "delete" else (old,)):
        found = read_tfrecord([f"{place}/{file.path}" for file in files])["n"].compute().tolist()
        kept = [n for n in found if keeps(n)]
        rows = pa.table({"n": kept, "key": pa.array([key] * len(kept), pa.string())})
        new = run.write(rows, at, 2) if kept else ()
        if len(kept) < len(found) or mode == "compact":
            groups.append(
                Group(tuple((file.path, file.crc32c) for file in files), tuple(f.path for f in new))
            )
            entries += new
    return lambda: commit(run, entries, groups)


def index(place: Path) -> Planned:
    """Describe files that were touched. The commit of the index is held back."""
    for path in place.glob("*/part-*"):
        os.utime(path, ns=(1, 1))
    held: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_tfrecord.inspection.store_snapshot", lambda *args: held.append(args))
        dask_tfrecord.index(place)
    return Planned(lambda: indexing.store_snapshot(*held[0]), lambda rows: rows)


def plan(operation: str, place: Path, key: str, n: int) -> Planned:
    def write(applied: Callable[[Rows], Rows], **options: Any) -> Planned:
        lazy = to_tfrecord(keyed(**{key: [n]}), place, partition_on="key", compute=False, **options)
        return Planned(lazy.compute, applied)

    new = frozenset({(key, n)})
    match operation:
        case "append":
            return write(lambda rows: rows | new, append=True)
        case "overwrite":
            return write(lambda rows: new, overwrite=True)
        case "partitions":
            kept = lambda rows: frozenset(row for row in rows if row[0] != key)  # noqa: E731
            return write(lambda rows: kept(rows) | new, overwrite="partitions")
        case "compact":
            return Planned(rewriting(place, "compact", key, lambda n: True), lambda rows: rows)
        case "delete":
            even = rewriting(place, "delete", key, lambda n: n % 2 == 0)
            return Planned(
                even,
                lambda rows: rows - {(k, n) for k, n in START if k == key and n % 2},
            )
        case "index":
            return index(place)
    raise ValueError(operation)


def found(place: Path) -> Rows:
    frame = read_tfrecord(place).compute()
    pairs = [*zip(frame["key"].astype(str), frame["n"].tolist(), strict=True)]
    assert len({*pairs}) == len(pairs), "rows are doubled"
    return frozenset(pairs)


DONE = ("append", "overwrite", "partitions", "compact", "delete", "index")


@pytest.mark.parametrize("other", ["a", "b"])
@pytest.mark.parametrize(("last", "first"), [pair for pair in table() if {*pair} <= {*DONE}])
def test_what_the_table_says_happens(tmp_path: Path, last: str, first: str, other: str) -> None:
    """The operation that commits last works on the partition a, the one that commits first on a or b."""
    to_tfrecord(keyed(a=[0], b=[4]), tmp_path, partition_on="key")
    to_tfrecord(keyed(a=[1, 2], b=[5, 6]), tmp_path, partition_on="key", append=True)
    assert found(tmp_path) == START
    late = plan(last, tmp_path, "a", 20)
    early = plan(first, tmp_path, other, 31)
    early.commit()
    between = early.applied(START)
    assert found(tmp_path) == between
    words = table()[last, first].split(" or ")
    verdict = words[0] if other != "a" else words[-1]
    error = {"refused": ConcurrentWriteError, "again": GroupsLostError}.get(verdict.removesuffix(" if same"))
    if error is None:
        late.commit()
        assert found(tmp_path) == late.applied(between)
    else:
        with pytest.raises(error):
            late.commit()
        assert found(tmp_path) == between
    dask_tfrecord.cleanup(tmp_path, older_than="0s")
    assert len(read_tfrecord(tmp_path)) == len(found(tmp_path))
    assert dask_tfrecord.verify(tmp_path)["agrees"].all()
