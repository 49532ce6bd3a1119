"""The model of the soak accepts what the guides promise to readers, and finds everything else."""

from copy import deepcopy
from typing import Any

import pytest
import soak_model


def whole(*chunks: tuple[int, str]) -> dict[tuple[int, str, int], Any]:
    return {(*chunk, 0): soak_model.Seen(10, 10, 0) for chunk in chunks}


def write(number: int, mode: str, *keys: str, **fields: Any) -> Any:
    return soak_model.Write(number, mode, keys, 10, parts=(0,), **fields)


def commit(model: Any, write: Any) -> None:
    model.begin_write(write)
    model.end_write(write, committed=True)


@pytest.fixture
def model() -> Any:
    """A dataset of one write, with the keys "a" and "b"."""
    model = soak_model.Model()
    commit(model, write(0, "append", "a", "b"))
    return model


def read(model: Any, seen: dict[tuple[int, str, int], Any]) -> dict[str, int]:
    model.begin_read(100, seen)
    model.end_read(100, seen)
    return found(model)


def found(model: Any) -> dict[str, int]:
    """What the model has found wrong."""
    return {name: count for name, count in model.wrong.items() if count}


OLD = [(0, "a"), (0, "b")]
RESULTS = {
    "append": [*OLD, (1, "a")],
    "overwrite": [(1, "a")],
    "partitions": [(0, "b"), (1, "a")],
    "delete": [(0, "b")],
}


@pytest.mark.parametrize("mode", RESULTS)
def test_a_reader_during_a_write_sees_the_old_or_the_new_rows(model: Any, mode: str) -> None:
    model.begin_write(write(1, mode, "a"))
    assert read(model, whole(*OLD)) == {}
    assert read(model, whole(*RESULTS[mode])) == {}


@pytest.mark.parametrize("mode", RESULTS)
def test_a_stale_read_after_a_write_is_found(model: Any, mode: str) -> None:
    model.begin_write(write(1, mode, "a"))
    model.end_write(write(1, mode, "a"), committed=True)
    assert read(model, whole(*RESULTS[mode])) == {}
    assert read(model, whole(*OLD))["impossible reads"] == 1


def test_a_reader_never_sees_new_rows_and_then_old_ones(model: Any) -> None:
    model.begin_write(write(1, "append", "a"))
    assert read(model, whole(*OLD, (1, "a"))) == {}
    assert read(model, whole(*OLD)) == {"lost": 10, "impossible reads": 1}


def test_a_refused_write_does_not_appear_later(model: Any) -> None:
    model.begin_write(write(1, "overwrite", "a"))
    model.end_write(write(1, "overwrite", "a"), committed=False)
    assert read(model, whole(*OLD)) == {}
    assert read(model, whole((1, "a"))) == {"lost": 20, "unexpected": 10, "impossible reads": 1}


def test_part_of_a_write_is_never_seen(model: Any) -> None:
    model.begin_write(write(1, "append", "a", "b"))
    assert "impossible reads" in read(model, whole(*OLD, (1, "a")))


def test_one_of_two_overwrites_and_an_append_may_come_last(model: Any) -> None:
    for number, mode in ((1, "overwrite"), (2, "overwrite"), (3, "append")):
        model.begin_write(write(number, mode, "a"))
    assert read(model, whole((1, "a"), (3, "a"))) == {}
    assert read(model, whole((2, "a"))) == {}
    assert "impossible reads" in read(model, whole((2, "a"), (3, "a")))


@pytest.mark.parametrize(
    ("seen", "fault"), [((9, 9, 0), "lost"), ((11, 10, 0), "doubled"), ((10, 10, 1), "changed")]
)
def test_a_wrong_row_is_counted(model: Any, seen: tuple[int, int, int], fault: str) -> None:
    assert read(model, {**whole(*OLD), (0, "a", 0): soak_model.Seen(*seen)}) == {fault: 1}


def test_a_write_without_an_end_is_decided_when_nothing_runs(model: Any) -> None:
    model.begin_write(write(1, "append", "a"))
    model.settle(whole(*OLD))
    assert found(model) == {}
    model.settle(whole(*OLD, (1, "a")))
    assert found(model) == {"unexpected": 10, "impossible reads": 1}


def test_an_append_that_comes_again_after_an_overwrite_is_found(model: Any) -> None:
    model.begin_write(write(1, "append", "a"))
    assert read(model, whole(*OLD, (1, "a"))) == {}
    model.begin_write(write(2, "overwrite", "b"))
    assert read(model, whole((2, "b"))) == {}
    assert read(model, whole((2, "b"), (1, "a"))) == {"unexpected": 10, "impossible reads": 1}


def test_rows_added_during_a_delete_are_all_kept_or_all_deleted(model: Any) -> None:
    model.begin_write(write(1, "delete", "a", "b"))
    commit(model, write(2, "append", "a", "b"))
    model.end_write(write(1, "delete", "a", "b"), committed=True)
    assert read(deepcopy(model), whole()) == {}
    assert read(deepcopy(model), whole((2, "a"), (2, "b"))) == {}
    assert "impossible reads" in read(model, whole((2, "a")))


def test_rows_added_before_or_after_a_delete_are_decided(model: Any) -> None:
    commit(model, write(1, "append", "a"))
    commit(model, write(2, "delete", "a", before=2))
    commit(model, write(3, "append", "a"))
    assert read(model, whole((0, "b"), (3, "a"))) == {}
    assert read(model, whole((0, "b"))) == {"lost": 10, "impossible reads": 1}


def test_a_restore_brings_back_the_rows_of_its_version(model: Any) -> None:
    commit(model, write(1, "overwrite", "b"))
    restored = frozenset(whole(*OLD))
    model.begin_write(write(2, "restore", restored=restored))
    assert read(model, whole((1, "b"))) == {}
    assert read(model, whole(*OLD)) == {}
    assert "impossible reads" in read(model, whole(*OLD, (1, "b")))


def test_an_older_version_is_the_same_in_all_reads(model: Any) -> None:
    commit(model, write(1, "overwrite", "a"))
    model.read_version(1, whole(*OLD))
    model.read_version(2, whole((1, "a")))
    assert found(model) == {}
    model.read_version(2, whole(*OLD))
    assert found(model) == {"lost": 10, "unexpected": 20, "impossible reads": 1}


def test_an_older_version_that_never_was_is_found(model: Any) -> None:
    model.read_version(1, whole((0, "a"), (0, "b"), (1, "a")))
    assert found(model) == {"unexpected": 10, "impossible reads": 1}
