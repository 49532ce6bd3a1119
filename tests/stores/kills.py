"""Writes to a remote store that are killed at any request: readers see all old rows or all new rows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from strides import IS_FULL, every

SCRIPT = Path(__file__).parents[1] / "helpers" / "remote_kills.py"

# By default, the write is killed at few requests, and at those around the request that makes the new rows
# visible. ``DASK_TFRECORD_FAULTS=1`` kills appends, too, and at every request.
STRIDE = every(200)
MODES = ["overwrite", "append"][: 1 + IS_FULL]


def check_kills(place: str, options: dict[str, Any], mode: str) -> None:
    """Kill writes of the rows 3 and 5 to a dataset of the rows 0, 1 and 2."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps([mode, place, options, STRIDE]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    old = [0, 1, 2]
    new = {"append": [0, 1, 2, 3, 5], "overwrite": [3, 5]}[mode]
    found = list(answer["found"].values())
    readable = [seen["killed"] for seen in found]
    switch = readable.index(new)
    assert readable == [old] * switch + [new] * (len(found) - switch)
    assert 0 < switch < len(found)
    assert {"cleaned", "written"} <= found[switch - 1].keys() & found[switch].keys()
    cleaned = [seen for seen in found if "cleaned" in seen]
    assert [seen["cleaned"] for seen in cleaned] == [seen["killed"] for seen in cleaned]
    for rows in (old, new):
        assert len({seen["files"] for seen in cleaned if seen["killed"] == rows}) == 1
    expected = [[7] if mode == "overwrite" else [*seen["killed"], 7] for seen in cleaned]
    assert [seen["written"] for seen in cleaned] == expected
