"""Two operations at once: whenever one stops for the other, each succeeds or raises what the guides promise.

By default, the first operation stops at a sample of its filesystem events.
``DASK_TFRECORD_FAULTS=1 pytest tests/dataset/write/test_interleavings.py`` stops it at every event.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# What is in the directory, the operation that stops, the operation meanwhile, and where it stops: at every
# n-th event. Directories are made and removed within few events of a first write.
CASES = [
    ("nothing", "append", "append", 2),
    ("nothing", "overwrite", "create", 9),
    ("own", "append", "append", 6),
    ("own", "writer", "writer", 6),
    ("own", "writer", "dying overwrite", 6),
    ("own", "overwrite", "writer", 9),
    ("foreign", "writer", "overwrite", 9),
    ("own", "append", "dying overwrite", 6),
    ("own", "overwrite", "dying overwrite", 9),
    ("own", "dying overwrite", "append", 9),
    ("own", "read", "partitions", 6),
    ("own", "append", "compact", 12),
    ("own", "compact", "partitions", 12),
    ("own", "delete", "compact", 12),
    ("own", "keeping overwrite", "delete", 12),
    ("own", "read kept", "keeping overwrite", 6),
    ("own", "index", "compact", 12),
    ("kept", "read kept", "restore", 2),
    ("kept", "read kept", "expire", 6),
    ("kept", "restore", "expire now", 9),
    ("kept", "restore", "delete", 10),
    ("kept", "restore", "compact", 10),
    ("kept", "expire now", "partitions", 12),
    ("kept", "repair", "restore", 2),
    ("kept", "restore", "repair", 9),
    ("own", "repair", "keeping overwrite", 2),
    ("foreign", "append", "overwrite", 6),
    ("foreign", "append", "dying overwrite", 6),
    ("foreign", "overwrite", "overwrite", 6),
    ("foreign", "partitions", "append", 9),
    ("foreign", "read", "dying overwrite", 6),
    ("foreign", "read", "keeping overwrite", 6),
]

Ask = Callable[..., tuple[int, list[str]]]


@pytest.fixture(scope="module")
def interleave() -> Iterator[Ask]:
    """Interleave operations in a process of its own, because an audit hook cannot be removed."""
    script = Path(__file__).parents[2] / "helpers" / "interleavings.py"
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def ask(*arguments: object) -> tuple[int, list[str]]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(arguments), file=process.stdin, flush=True)
            stops, wrong = json.loads(process.stdout.readline())
            return stops, wrong

        yield ask


@pytest.mark.parametrize(("start", "first", "second", "stride"), CASES)
def test_an_operation_that_stops_for_another_loses_no_row(
    tmp_path: Path, interleave: Ask, start: str, first: str, second: str, stride: int
) -> None:
    stride = int(os.environ.get("DASK_TFRECORD_FAULTS", stride))
    stops, wrong = interleave(start, first, second, str(tmp_path), stride)
    assert not wrong
    assert stops > 0
