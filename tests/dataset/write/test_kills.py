"""A writer that is killed at any operation: readers see all old rows or all new rows.

Two operations at once: whenever one stops for the other, each succeeds or raises what the guides promise.

By default, the operation stops at a sample of its filesystem events, and at all around the event that
makes new rows visible. ``DASK_TFRECORD_FAULTS=1 pytest tests/dataset/write/test_kills.py`` tries every event.

Modules: dataset.write.transaction, dataset.write.orphans, dataset.rewrite.versions.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from strides import IS_FULL, every

OLD = list(range(7))
NEW = [11, 12, 13]

# The rows before and after, and the least number of instants; replacing data takes more.
CASES = {
    "create": ([], NEW, 20),
    "append": (OLD, OLD + NEW, 30),
    "named append": (OLD, OLD + NEW, 30),
    "shuffle": (OLD, OLD + NEW, 40),
    "stream": (OLD, OLD + NEW, 40),
    "writer": (OLD, OLD + NEW, 25),
    "named writer": (OLD, OLD + NEW, 25),
    "named partitions": (OLD, [0, 2, 3, 5, 6, 10, 13], 30),
    "overwrite": (OLD, NEW, 30),
    "others": (OLD, NEW, 30),
    "keeping": (OLD, NEW, 30),
    "partitions": (OLD, [0, 2, 3, 5, 6, 10, 13], 30),
    "compact": (OLD, OLD, 30),
    "delete": (OLD, [0, 3], 30),
    "restore": (NEW, OLD, 20),
    "expire": (NEW, NEW, 20),
    "repair": ([-1], OLD, 10),  # before it, reads raise, because a file is missing
}

# Writes before which there is no snapshot, so none with a base; the commit of a stream is that of others.
ALIKE = {("create", "delta"), ("others", "delta"), ("stream", "delta")}
# All commits find the base in the same way, so most modes are tried either with a base or without.
if not IS_FULL:
    ALIKE |= {(mode, "full") for mode in ("writer", "partitions", "delete", "restore", "repair")}
    ALIKE |= {(mode, "delta") for mode in ("shuffle", "keeping", "compact", "expire")}
    ALIKE |= {("named append", "full"), ("named writer", "delta"), ("named partitions", "full")}

# One of so many operations is killed.
STRIDE = every(16)

Ask = Callable[..., Any]


@contextmanager
def asking(script: str) -> Iterator[Ask]:
    """Run a script, and let it answer lists of arguments."""
    command = [sys.executable, str(Path(__file__).parents[2] / "helpers" / script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(*arguments: object) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(arguments), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask


@pytest.fixture(scope="module")
def sweep() -> Iterator[Ask]:
    """Run a sweep in a process that has no threads, and that imports the library once for all sweeps."""
    with asking("kill_sweep.py") as ask:
        yield ask


@pytest.fixture(scope="module")
def interleave() -> Iterator[Ask]:
    """Interleave operations in a process of its own, because an audit hook cannot be removed."""
    with asking("interleavings.py") as ask:
        yield ask


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the sweep kills forks of a writer; Windows has no fork")
@pytest.mark.parametrize(
    ("mode", "snapshots"),
    [(mode, kind) for kind in ("full", "delta") for mode in CASES if (mode, kind) not in ALIKE],
)
def test_a_kill_at_any_instant_leaves_the_old_rows_or_the_new(
    tmp_path: Path, sweep: Ask, mode: str, snapshots: str
) -> None:
    old, new, instants = CASES[mode]
    answer = sweep(mode, str(tmp_path), snapshots, STRIDE)
    assert "error" not in answer, answer["error"]
    assert answer["operations"] + 1 >= instants  # the last instant is after all operations
    numbers, found = [int(number) for number in answer["found"]], list(answer["found"].values())
    assert {*range(0, answer["operations"], STRIDE), answer["operations"]} <= set(numbers)
    versions = [seen["version"] for seen in found]
    switch = versions.index(versions[-1])
    assert versions == [versions[-1] - 1] * switch + [versions[-1]] * (len(found) - switch)
    readable = [seen["killed"] for seen in found]
    assert readable == [old] * switch + [new] * (len(found) - switch)
    assert 0 < switch < len(found) - 1
    assert numbers[switch] == numbers[switch - 1] + 1
    assert [seen["cleaned"] for seen in found] == readable
    # The files of invisible rows are removed, and the next write succeeds.
    assert {seen["files"] for seen in found[:switch]} <= {found[0]["files"], found[0]["files"] - 1}
    assert {seen["files"] for seen in found[switch:]} == {found[-1]["files"]}
    # A write with an id that runs again after the kill adds no row twice.
    adds = mode in ("append", "shuffle", "stream", "writer")
    again = sorted(new + NEW) if adds else new
    expected = [new if adds and rows == old else again for rows in readable]
    assert [seen["written"] for seen in found] == expected
    assert all(seen["kept"] == ([old, old] if mode in ("keeping", "restore") else []) for seen in found)


# What is in the directory, the operation that stops, the operation meanwhile, and where it stops: at every
# n-th event. Directories are made and removed within few events of a first write.
PAIRS = [
    ("nothing", "append", "append", 5),
    ("nothing", "overwrite", "create", 21),
    ("own", "append", "append", 14),
    ("own", "writer", "writer", 14),
    ("nothing", "named append", "named append", 9),
    ("own", "named append", "named writer", 14),
    ("own", "named writer", "named append", 14),
    ("own", "named writer", "named then overwrite", 14),
    ("foreign", "writer", "overwrite", 21),
    ("own", "append", "dying overwrite", 14),
    ("own", "overwrite", "dying overwrite", 21),
    ("own", "dying overwrite", "append", 21),
    ("own", "read", "partitions", 14),
    ("columns", "append", "compact", 26),
    ("own", "compact", "partitions", 26),
    ("columns", "delete", "compact", 26),
    ("columns", "keeping overwrite", "delete", 26),
    ("own", "read kept", "keeping overwrite", 14),
    ("own", "index", "compact", 26),
    ("columns", "index", "partitions", 26),
    ("kept", "read kept", "restore", 5),
    ("kept", "read kept", "expire", 14),
    ("kept", "restore", "expire now", 21),
    ("kept", "restore", "delete", 26),
    ("kept", "restore", "compact", 26),
    ("kept", "expire now", "partitions", 26),
    ("kept", "repair", "restore", 5),
    ("kept", "restore", "repair", 21),
    ("own", "repair", "keeping overwrite", 5),
    ("foreign", "append", "overwrite", 14),
    ("foreign", "overwrite", "overwrite", 14),
    ("foreign", "partitions", "append", 21),
    ("foreign", "read", "dying overwrite", 14),
    ("lists", "append", "overwrite", 14),
    ("lists", "keeping delete", "overwrite", 21),
    ("lists", "compact", "overwrite", 21),
    ("lists", "expire", "overwrite", 21),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("start", "first", "second", "stride"), PAIRS)
def test_an_operation_that_stops_for_another_loses_no_row(
    tmp_path: Path, interleave: Ask, start: str, first: str, second: str, stride: int
) -> None:
    stride = every(stride)
    stops, wrong = interleave(start, first, second, str(tmp_path), stride)
    assert not wrong
    assert stops > 0
