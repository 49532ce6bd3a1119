"""The model of the soak accepts what the guides promise to readers, and finds everything else."""

from typing import Any

import pytest
import soak_model

OLD = "0a 0b"  # the chunks of the dataset: the number of the write, and the key
LOST, UNEXPECTED = {"lost": 10, "impossible reads": 1}, {"unexpected": 10, "impossible reads": 1}


def whole(chunks: str) -> dict[tuple[int, str, int], Any]:
    return {(int(one[0]), one[1], 0): soak_model.Seen(10, 10, 0) for one in chunks.split()}


def write(number: int, mode: str, keys: str = "", **fields: Any) -> Any:
    return soak_model.Write(number, mode, tuple(keys), 10, parts=(0,), **fields)


@pytest.fixture
def model() -> Any:
    model = soak_model.Model()
    _do(model, "commit", write(0, "append", "ab"))
    return model


def _do(model: Any, step: str, write: Any) -> None:
    if step in ("begin", "commit", "refuse"):
        model.begin_write(write)
    if step != "begin":
        model.end_write(write, committed=step != "refuse")


def found(model: Any) -> dict[str, int]:
    return {name: count for name, count in model.wrong.items() if count}


DELETE = write(1, "delete", "ab")
DURING_DELETE = [("begin", DELETE), ("commit", write(2, "append", "ab")), ("end", DELETE)]
AROUND_DELETE = [write(1, "append", "a"), write(2, "delete", "a", before=2), write(3, "append", "a")]
RESTORE = write(2, "restore", restored=frozenset(whole(OLD)))
RESULTS = {"append": f"{OLD} 1a", "overwrite": "1a", "partitions": "0b 1a", "delete": "0b"}


@pytest.mark.parametrize(
    ("steps", "right", "wrong", "counts"),
    [
        # During a write, a reader sees the old or the new rows, and never again the old rows.
        *(([("begin", write(1, mode, "a"))], [OLD, RESULTS[mode]], OLD, None) for mode in RESULTS),
        *(([("commit", write(1, mode, "a"))], [RESULTS[mode]], OLD, None) for mode in RESULTS),
        ([("begin", write(1, "append", "a"))], [OLD, f"{OLD} 1a"], OLD, LOST),
        ([("refuse", write(1, "overwrite", "a"))], [OLD], "1a", {"lost": 20, **UNEXPECTED}),
        ([("begin", write(1, "append", "ab"))], [OLD], f"{OLD} 1a", None),
        # One of two overwrites and an append may come last. The append does not come again.
        ([("begin", write(n, "overwrite", "a")) for n in (1, 2)], ["1a", "2a"], "1a", None),
        (
            [("begin", write(1, "append", "a")), ("begin", write(2, "overwrite", "b"))],
            [f"{OLD} 1a", "2b"],
            "2b 1a",
            UNEXPECTED,
        ),
        # Rows that are added during a delete are all kept or all deleted.
        (DURING_DELETE, [""], "2a", None),
        (DURING_DELETE, ["2a 2b"], "2a", None),
        ([("commit", one) for one in AROUND_DELETE], ["0b 3a"], "0b", LOST),
        ([("commit", write(1, "overwrite", "b")), ("begin", RESTORE)], ["1b", OLD], f"{OLD} 1b", None),
    ],
)
def test_a_reader_sees_only_what_the_writes_may_have_left(
    model: Any, steps: list[tuple[str, Any]], right: list[str], wrong: str, counts: dict[str, int] | None
) -> None:
    for step in steps:
        _do(model, *step)
    for chunks in [*right, wrong]:
        assert found(model) == {}
        model.begin_read(100, whole(chunks))
        model.end_read(100, whole(chunks))
    assert found(model)["impossible reads"] == 1
    assert counts is None or found(model) == counts


@pytest.mark.parametrize(
    ("seen", "fault"), [((9, 9, 0), "lost"), ((11, 10, 0), "doubled"), ((10, 10, 1), "changed")]
)
def test_a_wrong_row_is_counted(model: Any, seen: tuple[int, int, int], fault: str) -> None:
    model.settle({**whole(OLD), (0, "a", 0): soak_model.Seen(*seen)})
    assert found(model) == {fault: 1}


def test_a_write_without_an_end_is_decided_when_nothing_runs(model: Any) -> None:
    _do(model, "begin", write(1, "append", "a"))
    model.settle(whole(OLD))
    assert found(model) == {}
    model.settle(whole(f"{OLD} 1a"))
    assert found(model) == UNEXPECTED


def test_an_older_version_was_possible_and_is_the_same_in_all_reads(model: Any) -> None:
    _do(model, "commit", write(1, "overwrite", "a"))
    model.read_version(1, whole(OLD))
    model.read_version(2, whole("1a"))
    assert found(model) == {}
    model.read_version(2, whole(OLD))
    assert found(model) == {"lost": 10, "unexpected": 20, "impossible reads": 1}
    model.read_version(3, whole(f"{OLD} 1a"))
    assert found(model) == {"lost": 10, "unexpected": 30, "impossible reads": 2}
