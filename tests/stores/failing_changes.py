"""The tests of changes of which one operation fails, for every store."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain, count
from unittest.mock import patch
from zlib import crc32

import pyarrow as pa
import pytest
from faults import FaultError, Faults
from list_rules import RULES, rule
from pattern_names import PatternNames, killed_before_the_commit, rows
from strides import IS_FULL

from dask_tfrecord import Writer, open_dataset, to_tfrecord
from dask_tfrecord.dataset.names import open_runs
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.storage.store import Store

# The rows before each change, and for each kind of change the rows after it.
OLD = [0, 1, 2]
CHANGES = {
    "append": [0, 1, 2, 3, 5],
    "stream": [0, 1, 2, 3, 5],
    "writer": [0, 1, 2, 3, 5],
    "overwrite": [3, 5],
    "compact": [0, 1, 2],
    "delete": [2],
    "restore": [0],
    "expire": [0, 1, 2],
}

# The changes that differ most in what they ask of a store.
DIFFERENT = tuple(CHANGES) if IS_FULL else ("append", "overwrite", "delete", "expire")

# The rows that a stream appends, shuffled on the way.
STREAM = pa.table({"n": [3, 5], "key": [0, 2]})


# In place of the number of an operation: the creation of the next snapshot fails, only its answer is lost, or
# the next operation fails.
COMMIT, ANSWER, NEXT = -1, -2, -3


@contextmanager
def failing_commit(faults: Faults, number: int) -> Iterator[None]:
    create = Store.create_exclusively

    def fail(store: Store, path: str, data: bytes) -> None:
        if number != COMMIT:
            create(store, path, data)
        if number != NEXT:
            raise FaultError("on purpose")
        faults.left = 0

    with patch.object(Store, "create_exclusively", fail):
        yield


class FailingChanges(PatternNames):
    """A part of `StoreSuite`, whose methods the tests call."""

    # The changes of which an operation fails.
    changes: tuple[str, ...] = DIFFERENT

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for argument, values in (("kind", self.changes), ("name", self.names)):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, values)

    def points(self, request: pytest.FixtureRequest) -> Iterator[tuple[int, str, bool]]:
        """Numbers of operations, kinds of snapshots, and True if the answer is lost; every n-th of all.

        Each test begins with another one. The caller stops after the last operation.
        """
        ways = [
            (kind, after) for after in (False, True)[: 1 + self.loses_answers] for kind in ("full", "delta")
        ]
        for point in count(crc32(request.node.nodeid.encode()) % self.stride, self.stride):
            yield point // len(ways), *ways[point % len(ways)]

    def copies(self, place: str) -> dict[str, Iterator[str]]:
        """Write a dataset of the old rows with each kind of snapshots. Return the paths of copies of each."""
        return {snapshots: self._copies(f"{place}/{snapshots}", snapshots) for snapshots in RULES}

    def _copies(self, place: str, snapshots: str) -> Iterator[str]:
        with rule(snapshots):
            self.write_twice(f"{place}/0", *OLD)
        store = self.store(place)
        contents = {name: store.fs.cat_file(store.join(f"0/{name}")) for name in self.files(f"{place}/0")}
        for number in count(1):
            for directory in {name.rpartition("/")[0] for name in contents} if store.can_rename else ():
                store.fs.makedirs(store.join(f"{number}/{directory}"), exist_ok=True)
            store.fs.pipe({store.join(f"{number}/{name}"): data for name, data in contents.items()})
            yield f"{place}/{number}"

    def change(self, place: str, kind: str) -> None:
        options = {"storage_options": self.options}
        match kind:
            case "writer":
                with Writer(place, **options) as writer:
                    writer.write(STREAM)
            case "stream":
                to_tfrecord(STREAM, place, append=True, shuffle=True, seed=1, **options)
            case "compact":
                open_dataset(place, **options).compact()
            case "delete":  # one file loses all rows, the other one of two
                open_dataset(place, **options).delete([("n", "in", [0, 1])])
            case "restore":
                open_dataset(place, **options).restore(1)
            case "expire":
                open_dataset(place, **options).expire(versions=1, grace="0s")
            case _:
                self.write(rows(3, 5), place, **{kind: True})

    def test_any_operation_may_fail_or_its_answer_be_lost(
        self, request: pytest.FixtureRequest, place: str, kind: str
    ) -> None:
        """A change that raises keeps the old rows; after others there are the new rows."""
        outcomes = set()
        copies = self.copies(place)
        commits = [(number, "full", False) for number in (COMMIT, ANSWER, NEXT)]
        for number, snapshots, after in chain(commits, self.points(request)):
            here = next(copies[snapshots])
            before = self.files(here)
            faults = Faults(number if number >= 0 else 10**9, after=after)
            failing = failing_commit(faults, number) if number < 0 else nullcontext()
            try:
                with (
                    rule(snapshots),
                    self.faults(faults),
                    failing,
                ):
                    self.change(here, kind)
            except OSError:
                assert faults.hit or number < 0
                # The files of expired versions are removed after the commit, and a failure raises.
                is_done = kind == "expire" and Snapshot.open(here, storage_options=self.options).mode == kind
            else:
                is_done = True
            outcomes.add(is_done)
            expected = CHANGES[kind] if is_done else OLD
            assert self.read(here) == expected
            assert Snapshot.open(here, storage_options=self.options).number == 2 + is_done
            # A lost answer may leave a file that reads ignore, and so may the removal of the file of `expire`
            # that asks the store for its time.
            if not is_done and not self.uploads and not after and kind != "expire":
                assert self.files(here) == before
            self.clean(here)
            assert self.read(here) == expected
            if not is_done:
                assert self.files(here) == before
            assert open_runs(self.store(here)) == []
            # A snapshot with a base takes at least as many operations.
            if number >= 0 and not faults.hit and snapshots == "delta":
                break
        assert number > 8
        assert outcomes == {False, True}

    def test_a_write_that_is_tried_again_succeeds_whatever_failed(
        self, request: pytest.FixtureRequest, place: str
    ) -> None:
        copies = self.copies(place)
        for number, snapshots, after in self.points(request):
            here = next(copies[snapshots])
            lazy = self.write(rows(3, 5), here, overwrite=True, compute=False)
            faults = Faults(number, after=after)
            for _ in range(2):
                with suppress(FaultError), self.faults(faults):
                    lazy.compute()
            assert self.read(here) == [3, 5]
            if not faults.hit and snapshots == "delta":
                break
        assert number > 5

    def test_a_dead_run_is_cleaned_up(self, place: str) -> None:
        self.write_twice(place, 0, 1)
        before = self.files(place)
        with killed_before_the_commit():
            self.write(rows(2, 3), place, append=True)
        assert self.read(place) == [0, 1]
        assert open_dataset(place, storage_options=self.options).cleanup() == []
        assert len(self.clean(place)) >= 2
        assert self.files(place) == before
        assert self.read(place) == [0, 1]
