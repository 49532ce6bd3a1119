"""Decide which epoch each iteration of a loader reads, and where in the epoch the iteration begins.

This module does not know what a loader returns: a position is a state that the loader saves and understands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.feed.rows.resume_position import State, check_sealed, sealed
from dask_tfrecord.keywords import arguments

_KEYS = ("epoch", "states", "ended", "following")

# The first two numbers of the shared memory: the epoch of the last call of `Epochs.choose`, and the number of
# calls. Then a number for each worker id counts the iterations that the worker process has begun. At last, a
# number for each worker id is the call that chose the epoch of its loaded position, negative if it had rows.
SHARED_NUMBERS = 2


class Start(NamedTuple):
    """Where an iteration begins: at the positions ``states``, or without states at the first row of an epoch.

    ``after`` is set for the first iteration after a loaded state from the end of an epoch, and is this epoch:
    torchdata's `StatefulDataLoader` begins two iterations then, and uses only the second one.
    """

    epoch: int
    states: Sequence[State] = ()
    after: int | None = None

    @property
    def is_over(self) -> bool:
        """True if no row of the epoch remains, because the loaded state is from the end of this epoch."""
        return self.epoch == self.after


@dataclass(eq=False)
class Iteration:
    """An iteration that has begun.

    The loader sets ``stage``: "running" when the first batch is requested, then "ended" after the last batch,
    or "left" if the program gives the iteration up before.
    """

    start: Start
    stage: Literal["new", "running", "ended", "left"] = "new"

    @property
    def is_repeated(self) -> bool:
        """True if the next iteration reads the epoch again, because nobody uses this one."""
        return self.start.after is not None and self.stage == "new"


class Epochs:
    """The epoch and position that a loader reads next.

    The object keeps the starts of the coming iterations, and the newest iteration of this process:

    ===================================  ==================================================
    call                                 the coming iterations afterwards
    ===================================  ==================================================
    ``Epochs(epoch)``                    ``epoch``
    `begin`, an iteration begins         all but the first; if none is left, the next epoch
    `choose`                             the chosen epoch
    `load`, within an epoch              the loaded position, and the epoch after it
    `load`, at the end of an epoch       the epoch after it
    `choose` before or after `load`      the loaded position, and the chosen epoch
    ===================================  ==================================================

    Choosing the epoch of a loaded position changes nothing, because a restarted program chooses the epoch
    again that it continues. At the end of an epoch, nothing of it remains, so the iteration is empty.

    Worker processes have copies of the object. A choice in one process reaches all processes through
    ``shared``, and each adopts it when its next iteration begins.

    Parameters
    ----------
    epoch : int, default 0
        The epoch of the first iteration.
    states : sequence of dict, optional
        The positions in the epoch at which the first iteration begins.
    shared : array of int, optional
        `SHARED_NUMBERS` zeros, and two zeros for each possible worker process, in memory that the processes
        share.
    """

    def __init__(self, epoch: int = 0, states: Sequence[State] = (), shared: Any = None) -> None:
        self._shared = np.zeros(SHARED_NUMBERS, np.int64) if shared is None else shared
        self._coming = [Start(epoch, states), Start(epoch + 1)]
        self._newest: Iteration | None = None
        self._adopted = 0  # The number of calls of `choose` that this process has adopted.
        # The iterations of each worker before this process began its newest iteration, or loaded a state.
        self._elsewhere = self._begun_in_workers()

    @property
    def _possible_workers(self) -> int:
        return (len(self._shared) - SHARED_NUMBERS) // 2

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_newest": None}  # an iteration stays in its process

    def _begun_in_workers(self) -> list[int]:
        begun: list[int] = self._shared[SHARED_NUMBERS : SHARED_NUMBERS + self._possible_workers].tolist()
        return begun

    @property
    def is_in_workers(self) -> bool:
        """True if worker processes have begun an iteration after the newest iteration of this process."""
        return self._elsewhere != self._begun_in_workers()

    def choose(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, or of the one after a loaded position of another epoch."""
        arguments.number("epoch", epoch, 0)
        self._shared[0] = epoch
        self._shared[1] += 1

    def _adopt(self) -> None:
        epoch, calls = self._shared[:SHARED_NUMBERS].tolist()
        if calls == self._adopted:
            return
        self._adopted = calls
        newest = self._newest
        if newest is not None and (newest.is_repeated or newest.stage in ("left", "ended")):
            self._newest = None
            if newest.is_repeated and newest.start.after == epoch:
                self._coming = [newest.start]
        first = self._coming[0]
        if not first.states:
            self._coming = [Start(epoch, after=first.after)]
        elif first.epoch != epoch:
            self._coming = [first, Start(epoch)]

    def next(self, worker: int | None = None) -> Start:
        """Return where the next iteration begins. ``worker`` is the id of this process if it is a worker."""
        self._forget_used_position(worker)
        self._adopt()
        if worker is not None and self._is_over(worker):
            epoch = int(self._shared[0])
            self._newest, self._coming = None, [Start(epoch, after=epoch)]
        if self._newest is not None and self._newest.is_repeated:
            return self._newest.start
        return self._coming[0]

    def _is_over(self, worker: int) -> bool:
        """Return True if the newest chosen epoch is that of a state, and no worker has rows of it left.

        After a state from the end of an epoch, `StatefulDataLoader` drops the iterations of the workers that
        have loaded it, and the workers of the next iterations do not know the state.
        """
        calls = self._shared[1]
        chosen = self._shared[SHARED_NUMBERS + self._possible_workers :]
        return bool(calls and chosen[worker] == calls and not (chosen == -calls).any())

    def begin(
        self, worker: int | None = None, start: Start | None = None, is_empty: bool = False
    ) -> Iteration:
        """Begin an iteration at ``start``, the result of `next`. ``is_empty`` is True if it has no row.

        The epoch advances when an iteration begins, not when it ends: workers that are stopped early must
        stay in the same epoch as workers that reach the end.
        """
        start = self.next(worker) if start is None else start
        if start is self._coming[0]:
            self._coming = self._coming[1:] or [Start(start.epoch + 1)]
        self._newest = Iteration(start)
        if worker is None:
            self._elsewhere = self._begun_in_workers()
        else:
            self._shared[SHARED_NUMBERS + worker] += 1
            if start.epoch == self._shared[0] and (start.states or start.is_over):
                calls = self._shared[1]
                is_over = is_empty or start.is_over
                self._shared[SHARED_NUMBERS + self._possible_workers + worker] = calls if is_over else -calls
        return self._newest

    def _forget_used_position(self, worker: int | None) -> None:
        """Forget a loaded position from which the worker processes of an earlier iteration have continued."""
        before, now = self._elsewhere, self._begun_in_workers()
        is_used = before != now if worker is None else before[worker] != now[worker]
        if is_used and self._coming[0].states:
            self._coming = self._coming[1:]

    def waiting(self, worker: int | None = None) -> Start | None:
        """Return where the next iteration begins, or None if the newest iteration determines the state."""
        # Workers adopt a choice only when an iteration begins: each would notice it at a different batch.
        if worker is None:
            self._adopt()
        return self._coming[0] if self._newest is None else None

    def state(self, states: Sequence[State]) -> State:
        """Return a state for `load`. ``states`` is the position that `waiting` has asked for."""
        if self._newest is None:
            first, *others = self._coming
            epoch, ended = first.epoch, first.is_over
            following = others[0].epoch if others else epoch + 1
        else:
            epoch, following = self._newest.start.epoch, self._coming[0].epoch
            ended = self._newest.stage == "ended" or self._newest.start.is_over
        return sealed({"epoch": epoch, "states": list(states), "ended": ended, "following": following})

    def load(self, states: Sequence[State], owner: str, worker: int | None = None) -> list[State]:
        """Continue at the positions of one or several results of `state`, and return them.

        If all iterations had ended, begin the following epoch. A worker process that has ended an epoch
        begins the next only after an empty iteration, because other workers may continue the first.

        Raises
        ------
        TFRecordError
            If an object is not a state of the class ``owner``, or if the states belong to different epochs.
        """
        for state in states:
            check_sealed(state, _KEYS, owner)
        is_begin = worker is None and all(state["ended"] or not state["states"] for state in states)
        epochs = {state["following" if is_begin and state["ended"] else "epoch"] for state in states}
        positions = [one for state in states for one in state["states"]]
        if len(epochs) != 1 or not (is_begin or all(state["states"] for state in states) or not positions):
            problem = "the states are of different epochs"
            raise TFRecordError(problem, "pass the states that all ranks returned at the same step")
        (epoch,) = epochs
        over = next((state["epoch"] for state in states if state["ended"]), None)
        self._coming = [Start(epoch, positions, None if positions else over), Start(states[0]["following"])]
        if is_begin:
            self._coming = [Start(epoch, after=over)]
        self._newest, self._elsewhere = None, self._begun_in_workers()
        return positions


def ended(state: State, owner: str) -> State:
    """Return a worker's state of a loader that has ended: the loader knows this before each worker does."""
    return sealed({**check_sealed(state, _KEYS, owner), "ended": True})
