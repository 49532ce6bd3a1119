"""A writer that is killed at any operation: readers see all old rows or all new rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OLD = list(range(7))
NEW = [11, 12, 13]

# The rows before and after, and the least number of operations; replacing data takes more.
CASES = {
    "create": ([], NEW, 20),
    "append": (OLD, OLD + NEW, 30),
    "shuffle": (OLD, OLD + NEW, 40),
    "overwrite": (OLD, NEW, 30),
    "others": (OLD, NEW, 30),
    "partitions": (OLD, [0, 2, 3, 5, 6, 10, 13], 30),
}

# Writes before which there is no snapshot, so none with a base.
ALIKE = {("create", "delta"), ("others", "delta")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the sweep kills forks of a writer; Windows has no fork")
@pytest.mark.parametrize(
    ("mode", "snapshots"),
    [(mode, kind) for kind in ("full", "delta") for mode in CASES if (mode, kind) not in ALIKE],
)
def test_a_kill_at_any_instant_leaves_the_old_rows_or_the_new(
    tmp_path: Path, mode: str, snapshots: str
) -> None:
    old, new, instants = CASES[mode]
    script = Path(__file__).parents[2] / "helpers" / "kill_sweep.py"
    command = [sys.executable, str(script), mode, str(tmp_path), snapshots]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found) >= instants
    readable = [seen["killed"] for seen in found]
    switch = readable.index(new)
    assert readable == [old] * switch + [new] * (len(found) - switch)
    assert 0 < switch < len(found) - 1
    assert [seen["cleaned"] for seen in found] == readable
    # The files of invisible rows are removed, and the next write succeeds.
    assert {seen["files"] for seen in found[:switch]} <= {found[0]["files"], found[0]["files"] - 1}
    assert {seen["files"] for seen in found[switch:]} == {found[-1]["files"]}
    adds = mode in ("append", "shuffle")
    again = sorted(new + NEW) if adds else new
    expected = [new if adds and rows == old else again for rows in readable]
    assert [seen["written"] for seen in found] == expected
