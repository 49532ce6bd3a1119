"""Model which rows of the dataset readers may see while writes run, without any file.

A write adds and removes whole chunks. A chunk is the rows of one write with one key in one part, so a reader
sees all of its rows or none. The model follows every order of commits that the times of the operations allow.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

Chunk = tuple[int, str, int]  # the id of the write, the key, and the part
State = frozenset[Chunk]


PARTS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Write:
    """Describe an operation that changes the rows of the dataset.

    The mode is "append", "writer" (which appends, too), "overwrite", "partitions", "delete" or "restore". A
    delete removes rows of its keys and parts, of writes with smaller ids than ``before``.
    """

    id: int
    mode: str
    keys: tuple[str, ...] = ()
    rows: int = 0
    parts: tuple[int, ...] = PARTS
    before: int | None = None
    restored: State = field(default=frozenset(), repr=False)

    def applied_to(self, state: State) -> State:
        """Return the dataset after the commit of this write, which is no delete."""
        if self.mode == "restore":
            return self.restored
        kept = {
            "append": state,
            "writer": state,
            "overwrite": frozenset(),
            "partitions": frozenset(chunk for chunk in state if chunk[1] not in self.keys),
        }
        return kept[self.mode] | {(self.id, key, part) for key in self.keys for part in self.parts}

    def deleted_from(self, state: State) -> State:
        """Return the chunks that a delete finds in a dataset."""
        is_old = (chunk for chunk in state if self.before is None or chunk[0] < self.before)
        return frozenset(chunk for chunk in is_old if chunk[1] in self.keys and chunk[2] in self.parts)


@dataclass(frozen=True)
class Seen:
    """Count the rows of one chunk in a read: all rows, distinct rows, and rows with other values."""

    rows: int
    distinct: int
    changed: int


@dataclass(frozen=True)
class _History:
    """Hold one possible order of commits, with the ids of the writes, and the dataset after it.

    ``satisfied`` has the numbers of the open reads that may have seen the dataset, and ``planned`` the ids of
    the open deletes that have searched the dataset, with the chunks that each has found.
    """

    state: State
    committed: frozenset[int] = frozenset()
    satisfied: frozenset[int] = frozenset()
    planned: frozenset[tuple[int, State]] = frozenset()


class Model:
    """Hold the datasets that are possible now. Call the methods in the order of the operations.

    ``wrong`` counts the errors in all reads: rows that were "lost", "doubled", "changed", or "unexpected",
    which means that they belong to a write that the nearest possible dataset does not hold; and "impossible
    reads", which no possible dataset explains.
    """

    def __init__(self) -> None:
        self.wrong: Counter[str] = Counter()
        self._rows: dict[int, int] = {}
        self._open: dict[int, Write] = {}
        self._reads: dict[int, State] = {}
        self._possible = {_History(frozenset())}
        self._past: set[State] = set()
        self._versions: dict[int, State] = {}

    def begin_write(self, write: Write) -> None:
        self._rows[write.id] = write.rows
        self._open[write.id] = write
        self._follow()

    def end_write(self, write: Write, *, committed: bool) -> None:
        """End a write that was committed, or that cannot be committed later than now.

        Do not end a write whose client died. Its commit stays possible until :meth:`settle`.
        """
        del self._open[write.id]
        if committed:
            self._possible = {one for one in self._possible if write.id in one.committed}
        else:
            self._possible = {_without_search(one, write.id) for one in self._possible}

    def begin_read(self, number: int, seen: Mapping[Chunk, Seen]) -> None:
        """Begin a read whose result will be ``seen``."""
        self._reads[number] = frozenset(seen)
        self._follow()

    def end_read(self, number: int, seen: Mapping[Chunk, Seen]) -> None:
        """End a read, and count what is wrong with its result."""
        del self._reads[number]
        self._check_chunks(seen)
        satisfied = {one for one in self._possible if number in one.satisfied}
        if satisfied:
            self._possible = {replace(one, satisfied=one.satisfied - {number}) for one in satisfied}
        else:
            self._count_differences(seen, {one.state for one in self._possible})

    def read_version(self, version: int, seen: Mapping[Chunk, Seen]) -> None:
        """Check that an older version was possible once, and that every read of it gives the same rows."""
        self._check_chunks(seen)
        state = frozenset(seen)
        expected = {self._versions[version]} if version in self._versions else self._past
        if state in expected:
            self._versions[version] = state
        else:
            self._count_differences(seen, expected)

    def settle(self, seen: Mapping[Chunk, Seen]) -> None:
        """Check a read while nothing runs, and forget the writes that are not in its result."""
        self.begin_read(-1, seen)
        self.end_read(-1, seen)
        self._open.clear()
        self._possible = {_History(frozenset(seen))}

    def _check_chunks(self, seen: Mapping[Chunk, Seen]) -> None:
        for (write, _, _), chunk in seen.items():
            self.wrong["lost"] += max(0, self._rows.get(write, 0) - chunk.distinct)
            self.wrong["doubled"] += chunk.rows - chunk.distinct
            self.wrong["changed"] += chunk.changed

    def _count_differences(self, seen: Mapping[Chunk, Seen], possible: Iterable[State]) -> None:
        """Compare a result with the possible dataset that is nearest to it."""
        state = frozenset(seen)
        nearest = min(possible, key=lambda other: len(other ^ state))
        self.wrong["lost"] += sum(self._rows[write] for write, _, _ in nearest - state)
        self.wrong["unexpected"] += sum(seen[chunk].rows for chunk in state - nearest)
        self.wrong["impossible reads"] += 1

    def _follow(self) -> None:
        """Add what the commits of open writes, in any order, make possible."""
        found: set[_History] = set()
        left = [self._with_reads(one) for one in self._possible]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += [self._with_reads(other) for other in self._commits(one)]
        self._possible = found
        self._past |= {one.state for one in found}

    def _commits(self, history: _History) -> Iterable[_History]:
        """Return the histories in which an open write has committed, or an open delete has searched."""
        for write in self._open.values():
            if write.id in history.committed:
                continue
            committed = history.committed | {write.id}
            if write.mode != "delete":
                yield replace(history, state=write.applied_to(history.state), committed=committed)
                continue
            # A delete that is overtaken searches again. Rows that are added after its last search stay.
            others = _without_search(history, write.id)
            search = write.id, write.deleted_from(history.state)
            yield replace(others, planned=others.planned | {search})
            for _, found in history.planned - others.planned:
                yield replace(others, state=history.state - found, committed=committed)

    def _with_reads(self, history: _History) -> _History:
        """Mark the open reads that may have seen this state."""
        now = {number for number, state in self._reads.items() if state == history.state}
        return replace(history, satisfied=history.satisfied | now)


def _without_search(history: _History, number: int) -> _History:
    """Forget what a delete that has failed has found."""
    return replace(history, planned=frozenset(one for one in history.planned if one[0] != number))
