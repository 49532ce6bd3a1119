"""Writes to a remote store that are killed at any request: readers see all old rows or all new rows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from strides import IS_FULL, OTHERS, every

SCRIPT = Path(__file__).parents[1] / "helpers" / "remote_kills.py"

# By default, an overwrite on S3 is killed at few requests. ``DASK_TFRECORD_FAULTS=1`` kills at every request,
# also appends, and also on the other stores.
MODES = ["overwrite", "append"][: 1 + IS_FULL]
on_other_stores = pytest.mark.skipif(not IS_FULL, reason="DASK_TFRECORD_FAULTS=1 kills on this store, too")


def check_kills(place: str, options: dict[str, Any], mode: str) -> None:
    """Kill writes of the rows 3 and 5 to a dataset of the rows 0, 1 and 2."""
    stride = every(40) if place.startswith("s3:") else OTHERS
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps([mode, place, options, stride]),
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
    assert [seen["cleaned"] for seen in found] == readable
    for rows in (old, new):
        assert len({seen["files"] for seen in found if seen["killed"] == rows}) == 1
    expected = [[7] if mode == "overwrite" else [*seen["killed"], 7] for seen in found]
    assert [seen["written"] for seen in found] == expected
