"""Which epoch a loader reads next, and at which position, through choices, states and worker processes.

Modules: feed.epochs.
"""

import json
import pickle
from typing import Any

import numpy as np
import pytest

from dask_tfrecord import TFRecordError
from dask_tfrecord.feed.epochs import SHARED_NUMBERS, Epochs


def used(epochs: Epochs, stage: Any = "ended", worker: int | None = None) -> tuple[int, list[Any]]:
    """Begin an iteration, use it up to a stage, and return where it began."""
    iteration = epochs.begin(worker)
    iteration.stage = stage
    return iteration.start.epoch, list(iteration.start.states)


def saved(epochs: Epochs, worker: int | None = None) -> Any:
    """Return a state through JSON. A position is the text of the epoch to which it belongs."""
    waiting = epochs.waiting(worker)
    if waiting is None:
        newest = epochs._newest
        assert newest is not None
        return json.loads(json.dumps(epochs.state([{"at": newest.start.epoch}])))
    return json.loads(json.dumps(epochs.state([{"at": waiting.epoch} for _ in waiting.states])))


def loaded(*states: Any, worker: int | None = None, shared: Any = None) -> Epochs:
    epochs = Epochs(shared=shared)
    epochs.load(states, "Loader", worker)
    return epochs


def state_in(epoch: int, stage: Any) -> Any:
    epochs = Epochs(epoch)
    used(epochs, stage)
    return saved(epochs)


def shared_by(workers: int) -> Any:
    return np.zeros(SHARED_NUMBERS + 2 * workers, np.int64)


AT = [{"at": 4}]


def test_each_iteration_reads_the_next_epoch() -> None:
    for stage in ("new", "running", "left", "ended"):
        epochs = Epochs(3)
        assert [used(epochs, stage) for _ in range(3)] == [(3, []), (4, []), (5, [])]
    assert [used(begun) for begun in [Epochs(2, AT)] for _ in range(2)] == [(2, AT), (3, [])]


def test_an_iteration_that_cannot_begin_changes_nothing() -> None:
    for epochs in (Epochs(3), loaded(state_in(3, "running")), loaded(state_in(2, "ended"))):
        first = epochs.next()
        assert first.epoch == 3
        assert epochs.next() is first
        assert epochs.begin(start=first).start is first
        assert saved(epochs)["epoch"] == 3


def test_the_last_choice_determines_the_next_epoch() -> None:
    epochs = Epochs()
    used(epochs)
    epochs.choose(7)
    epochs.choose(5)
    assert [used(epochs) for _ in range(2)] == [(5, []), (6, [])]
    for wrong in (-1, 1.5, "1"):
        with pytest.raises(TFRecordError, match="epoch="):
            epochs.choose(wrong)


@pytest.mark.parametrize("stage", ["new", "running", "left"])
@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize(("chosen", "following"), [(None, 5), (4, 5), (0, 0), (9, 9)])
def test_a_loaded_position_comes_before_the_chosen_epoch(
    stage: Any, is_before: bool, chosen: int | None, following: int
) -> None:
    epochs = Epochs()
    if chosen is not None and is_before:
        epochs.choose(chosen)
    epochs.load([state_in(4, stage)], "Loader")
    if chosen is not None and not is_before:
        epochs.choose(chosen)
    again = loaded(saved(epochs))  # a state of the loaded position has the choice, too
    for one in (epochs, again):
        assert [used(one) for _ in range(3)] == [(4, AT), (following, []), (following + 1, [])]


@pytest.mark.parametrize(("chosen", "expected"), [(None, 5), (5, 5), (9, 9), (0, 0)])
def test_a_state_from_the_end_of_an_epoch_begins_the_following_or_the_chosen_one(
    chosen: int | None, expected: int
) -> None:
    epochs = loaded(state_in(4, "ended"))
    if chosen is not None:
        epochs.choose(chosen)
    for one in (loaded(saved(epochs)), epochs):
        assert [used(one) for _ in range(2)] == [(expected, []), (expected + 1, [])]


@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize("dropped", [0, 1])
def test_nothing_remains_of_a_chosen_epoch_that_has_ended(is_before: bool, dropped: int) -> None:
    epochs = Epochs()
    if is_before:
        epochs.choose(4)
    epochs.load([state_in(4, "ended")], "Loader")
    if not is_before:
        for _ in range(dropped):
            used(epochs, "new")  # `StatefulDataLoader` begins an iteration when it is asked for a state
        epochs.choose(4)
    waiting = saved(epochs)
    assert (waiting["epoch"], waiting["states"], waiting["ended"]) == (4, [], True)
    again, worker = loaded(waiting), loaded(waiting, worker=0, shared=shared_by(1))
    again.choose(4)
    for one in (epochs, again):
        for _ in range(dropped):
            assert one.begin().start.is_over
        start = one.next()
        assert (start.epoch, start.is_over) == (4, True)
        used(one)
        assert saved(one)["ended"]
        assert [used(one), used(one)] == [(5, []), (6, [])]
    assert worker.next(0).is_over
    epochs.choose(4)  # the program wants the epoch again
    assert not epochs.next().is_over


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize(("remain", "is_over"), [((False, False), True), ((True, False), False)])
def test_workers_learn_that_a_loaded_position_of_earlier_workers_was_the_end(
    remain: tuple[bool, bool], is_over: bool, is_persistent: bool
) -> None:
    epochs = Epochs(shared=shared_by(2))
    workers = [pickle.loads(pickle.dumps(epochs)) for _ in range(4)]
    for one in workers:
        one._shared = epochs._shared
    epochs.choose(4)
    for worker in range(2):
        workers[worker].load([state_in(4, "running")], "Loader", worker)
        workers[worker].begin(worker, is_empty=not remain[worker]).stage = "ended"
    later = workers[:2] if is_persistent else workers[2:]
    assert [one.next(worker).is_over for worker, one in enumerate(later)] == [is_over] * 2
    for worker, one in enumerate(later):
        used(one, "ended", worker)
    epochs.choose(5)
    assert [used(one, "ended", worker) for worker, one in enumerate(later)] == [(5, [])] * 2


@pytest.mark.parametrize("chosen", [None, 8])
def test_the_epoch_after_an_ended_one_can_be_begun_again_until_its_first_batch(chosen: int | None) -> None:
    """`StatefulDataLoader` drops the first iteration."""
    first = chosen or 5
    epochs, other = (loaded(state_in(4, "ended")) for _ in range(2))
    if chosen is not None:
        epochs.choose(chosen)
    assert used(epochs, "new") == (first, [])
    assert saved(epochs) == state_in(first, "new")
    assert [used(epochs, "running") for _ in range(2)] == [(first, []), (first + 1, [])]
    used(other, "new")
    other.choose(9)
    assert [used(other, "new"), used(other)] == [(9, []), (10, [])]
    epochs = loaded(state_in(4, "running"))  # a loop may have no step left in the epoch
    assert [used(epochs, "new"), used(epochs)] == [(4, AT), (5, [])]


@pytest.mark.parametrize(
    ("stage", "epoch", "has_position"),
    [("new", 4, True), ("running", 4, True), ("left", 6, False), ("ended", 6, False)],
)
def test_a_choice_gives_up_an_iteration_that_is_over(stage: Any, epoch: int, has_position: bool) -> None:
    epochs = Epochs(4)
    used(epochs, stage)
    epochs.choose(6)
    state = saved(epochs)
    assert (state["epoch"], state["states"], state["ended"]) == (epoch, AT if has_position else [], False)
    assert used(epochs)[0] == 6


def test_a_worker_that_has_ended_waits_for_the_others() -> None:
    """Its iteration is empty, because its position is behind its last row."""
    for stage in ("running", "ended"):
        worker = loaded(state_in(4, stage), worker=1, shared=shared_by(2))
        assert [used(worker, worker=1) for _ in range(2)] == [(4, AT), (5, [])]


def test_workers_begin_a_loaded_position_once_and_adopt_choices_when_they_begin() -> None:
    epochs = loaded(state_in(4, "running"), shared=shared_by(2))
    shared, workers = epochs._shared, [pickle.loads(pickle.dumps(epochs)) for _ in range(4)]
    for one in workers:  # processes share the memory, which a copy does not
        one._shared = shared
    assert not epochs.is_in_workers
    assert [used(workers[worker], "running", worker) for worker in range(2)] == [(4, AT)] * 2
    assert epochs.is_in_workers
    epochs.choose(8)
    assert [saved(workers[worker], worker)["following"] for worker in range(2)] == [5, 5]
    assert [used(workers[worker], "ended", worker) for worker in range(2)] == [(8, [])] * 2
    # The processes of the next epoch are copies of the same object, and begin no used position.
    assert [used(workers[2 + worker], "running", worker) for worker in range(2)] == [(8, [])] * 2
    assert epochs.is_in_workers
    assert used(epochs) == (8, [])
    assert not epochs.is_in_workers


def test_a_state_can_be_loaded_after_workers_have_read() -> None:
    epochs = Epochs(shared=shared_by(1))
    used(epochs, worker=0)
    epochs.load([state_in(4, "running")], "Loader")
    assert not epochs.is_in_workers
    assert used(epochs) == (4, AT)
    assert used(pickle.loads(pickle.dumps(epochs))) == (5, [])


def test_a_copy_has_the_coming_iterations_and_no_running_one() -> None:
    epochs = Epochs(3)
    used(epochs, "running")
    assert saved(epochs)["epoch"] == 3
    assert saved(pickle.loads(pickle.dumps(epochs))) == saved(Epochs(4))


def test_states_of_one_step_are_loaded_together() -> None:
    running, ended = (state_in(4, stage) for stage in ("running", "ended"))
    assert used(loaded(running, ended)) == (4, [*AT, *AT])  # a worker that has ended before the others
    beginning = saved(Epochs(5))
    assert used(loaded(ended, ended)) == used(loaded(ended, beginning)) == (5, [])
    for wrong in ([running, state_in(3, "running")], [running, saved(Epochs(4))], [ended, saved(Epochs(4))]):
        with pytest.raises(TFRecordError, match="different epochs"):
            loaded(*wrong)


@pytest.mark.parametrize("change", [{"epoch": 5}, {"ended": True}, {"states": []}, {"other": 1}])
def test_a_changed_state_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TFRecordError, match="not a state of Loader, or the state was changed"):
        loaded({**state_in(4, "running"), **change})
