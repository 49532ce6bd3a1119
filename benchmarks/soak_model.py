"""Model which rows of the dataset readers may see while writes run, without any file.

A write adds whole chunks. A chunk is the rows of one write with one key, so a reader sees all of its rows or
none. The model follows every order of commits that the times of the operations allow.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

Chunk = tuple[int, str]  # the id of the write, and the key
State = frozenset[Chunk]


@dataclass(frozen=True)
class Write:
    """Describe a write of ``rows`` rows for each key.

    The mode is "append", "writer", "overwrite" or "partitions". A `Writer` appends, too.
    """

    id: int
    mode: str
    keys: tuple[str, ...]
    rows: int

    def applied_to(self, state: State) -> State:
        """Return the dataset after the commit of this write."""
        kept = {
            "append": state,
            "writer": state,
            "overwrite": frozenset(),
            "partitions": frozenset(chunk for chunk in state if chunk[1] not in self.keys),
        }
        return kept[self.mode] | {(self.id, key) for key in self.keys}


@dataclass(frozen=True)
class Seen:
    """Count the rows of one chunk in a read: all rows, distinct rows, and rows with other values."""

    rows: int
    distinct: int
    changed: int


@dataclass(frozen=True)
class _History:
    """Hold one possible order of commits, the dataset after it, and the reads that may have ended."""

    state: State
    committed: frozenset[int]
    satisfied: frozenset[int]


class Model:
    """Hold the datasets that are possible now.

    Call the methods in the order in which operations began and ended.

    Attributes
    ----------
    wrong : collections.Counter
        The counts of errors in all reads so far: rows that were "lost", "doubled", "changed", or
        "unexpected", which means that the row belongs to a write that the nearest possible dataset does not
        hold; and "impossible reads", which no possible dataset explains.
    """

    def __init__(self) -> None:
        self.wrong: Counter[str] = Counter()
        self._rows: dict[int, int] = {}
        self._open: dict[int, Write] = {}
        self._reads: dict[int, State] = {}
        self._possible = {_History(frozenset(), frozenset(), frozenset())}
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
        self._possible = {_History(frozenset(seen), frozenset(), frozenset())}

    def _check_chunks(self, seen: Mapping[Chunk, Seen]) -> None:
        for (write, _), chunk in seen.items():
            self.wrong["lost"] += max(0, self._rows.get(write, 0) - chunk.distinct)
            self.wrong["doubled"] += chunk.rows - chunk.distinct
            self.wrong["changed"] += chunk.changed

    def _count_differences(self, seen: Mapping[Chunk, Seen], possible: Iterable[State]) -> None:
        """Compare a result with the possible dataset that is nearest to it."""
        state = frozenset(seen)
        nearest = min(possible, key=lambda other: len(other ^ state))
        self.wrong["lost"] += sum(self._rows[write] for write, _ in nearest - state)
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
        for write in self._open.values():
            if write.id not in history.committed:
                committed = history.committed | {write.id}
                yield _History(write.applied_to(history.state), committed, history.satisfied)

    def _with_reads(self, history: _History) -> _History:
        """Mark the open reads that may have seen this state."""
        now = {number for number, state in self._reads.items() if state == history.state}
        return _History(history.state, history.committed, history.satisfied | now)
