"""The tests of changes of which one operation fails, for every store."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from typing import ClassVar
from unittest.mock import patch
from zlib import crc32

import pyarrow as pa
import pytest
from faults import FaultError, Faults
from pattern_names import rows
from strides import IS_FULL

from dask_tfrecord import (
    Snapshot,
    Writer,
    cleanup,
    compact,
    delete,
    expire,
    restore,
    to_tfrecord,
)
from dask_tfrecord.dataset.snapshot import file_list
from dask_tfrecord.dataset.snapshot.names import open_runs
from dask_tfrecord.files.storage.store import Store

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


@contextmanager
def failing_commit(*, after: bool) -> Iterator[None]:
    """Let the creation of the next snapshot fail, or let only its answer be lost."""
    create = Store.create_exclusively

    def fail(store: Store, path: str, data: bytes) -> None:
        if after:
            create(store, path, data)
        raise FaultError("on purpose")

    with patch.object(Store, "create_exclusively", fail):
        yield


class FailingChanges:
    """A part of `StoreSuite`, whose methods the tests call."""

    # The changes of which an operation fails.
    changes: ClassVar[tuple[str, ...]] = tuple(CHANGES)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "kind" in metafunc.fixturenames:
            metafunc.parametrize("kind", self.changes)

    def failing(self, request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
        """Numbers of operations and kinds of snapshots: (0, full), (0, delta), (1, full) and so on.

        Every n-th is taken. Each test begins with another one.
        """
        start = crc32(request.node.nodeid.encode()) % self.stride
        for pair in count(start, self.stride):
            kind = ("full", "delta")[pair % 2]
            with patch.object(file_list, "DELTA_PART", {"full": 0.0, "delta": 1e9}[kind]):
                yield pair // 2, kind

    def test_any_operation_may_fail_or_its_answer_be_lost(
        self, request: pytest.FixtureRequest, place: str, kind: str
    ) -> None:
        both = self.loses_answers and IS_FULL
        for after in (False, True) if both else (kind in self.loses_answers,):
            self.sweep(request, f"{place}/{after}", kind, after=after)

    def change(self, place: str, kind: str) -> None:
        options = {"storage_options": self.options}
        match kind:
            case "writer":
                with Writer(place, **options) as writer:
                    writer.write(STREAM)
            case "stream":
                to_tfrecord(STREAM, place, append=True, shuffle=1, **options)
            case "compact":
                compact(place, **options)
            case "delete":  # one file loses all rows, the other one of two
                delete(place, [("n", "in", [0, 1])], **options)
            case "restore":
                restore(place, 1, **options)
            case "expire":
                expire(place, versions=1, grace="0s", **options)
            case _:
                self.write(rows(3, 5), place, **{kind: True})

    def sweep(self, request: pytest.FixtureRequest, place: str, kind: str, *, after: bool) -> None:
        """Let each operation fail in turn: a change that raises keeps the old rows, others have the new."""
        outcomes = set()
        for number, snapshots in chain([(-1, "full")], self.failing(request)):
            here = f"{place}/{snapshots}-{number}"
            self.write_twice(here, *OLD)
            before = self.files(here)
            faults = Faults(number, after=after)
            failing = self.faults(faults) if number >= 0 else failing_commit(after=after)
            try:
                with failing:
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
            if (
                number >= 0 and not faults.hit and snapshots == "delta"
            ):  # this takes at least as many operations
                break
        assert number > 8
        # The lost answer of the commit does not fail the change, so a sample of lost answers may fail none.
        assert outcomes == {False, True} or (after and outcomes == {True})

    def test_a_write_that_is_tried_again_succeeds_whatever_failed(
        self, request: pytest.FixtureRequest, place: str
    ) -> None:
        for number, kind in self.failing(request):
            here = f"{place}/{kind}-{number}"
            self.write_twice(here, 0, 1, 2)
            lazy = self.write(rows(3, 5), here, overwrite=True, compute=False)
            faults = Faults(number)
            for _ in range(2):
                try:
                    with self.faults(faults):
                        lazy.compute()
                except FaultError:
                    continue
            assert self.read(here) == [3, 5]
            if not faults.hit and kind == "delta":
                break
        assert number > 5

    @pytest.mark.usefixtures("appended_snapshots")
    def test_a_dead_run_is_cleaned_up(self, place: str) -> None:
        self.write_twice(place, 0, 1)
        before = self.files(place)
        lazy = self.write(rows(2, 3), place, append=True, compute=False)
        with (
            patch("dask_tfrecord.expr.write_expression.commit", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            lazy.compute()
        assert self.read(place) == [0, 1]
        assert cleanup(place, storage_options=self.options) == []
        assert len(self.clean(place)) >= 2
        assert self.files(place) == before
        assert self.read(place) == [0, 1]
