"""Two operations at once: whenever one stops for the other, each succeeds or raises what the guides promise.

By default, the first operation stops at a sample of its filesystem events.
``DASK_TFRECORD_FAULTS=1 pytest tests/dataset/write/test_interleavings.py`` stops it at every event.

Modules: dataset.write.transaction, dataset.write.orphans, dataset.maintenance.metadata_commits.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from strides import every

# What is in the directory, the operation that stops, the operation meanwhile, and where it stops: at every
# n-th event. Directories are made and removed within few events of a first write.
CASES = [
    ("nothing", "append", "append", 3),
    ("nothing", "overwrite", "create", 14),
    ("own", "append", "append", 9),
    ("own", "writer", "writer", 9),
    ("own", "writer", "dying overwrite", 9),
    ("own", "overwrite", "writer", 14),
    ("foreign", "writer", "overwrite", 14),
    ("own", "append", "dying overwrite", 9),
    ("own", "overwrite", "dying overwrite", 14),
    ("own", "dying overwrite", "append", 14),
    ("own", "read", "partitions", 9),
    ("columns", "append", "compact", 17),
    ("own", "compact", "partitions", 17),
    ("columns", "delete", "compact", 17),
    ("columns", "keeping overwrite", "delete", 17),
    ("own", "read kept", "keeping overwrite", 9),
    ("own", "index", "compact", 17),
    ("columns", "index columns", "partitions", 17),
    ("columns", "overwrite", "index columns", 17),
    ("kept", "read kept", "restore", 3),
    ("kept", "read kept", "expire", 9),
    ("kept", "restore", "expire now", 14),
    ("kept", "restore", "delete", 17),
    ("kept", "restore", "compact", 17),
    ("kept", "expire now", "partitions", 17),
    ("kept", "repair", "restore", 3),
    ("kept", "restore", "repair", 14),
    ("own", "repair", "keeping overwrite", 3),
    ("foreign", "append", "overwrite", 9),
    ("foreign", "append", "dying overwrite", 9),
    ("foreign", "overwrite", "overwrite", 9),
    ("foreign", "partitions", "append", 14),
    ("foreign", "read", "dying overwrite", 9),
    ("foreign", "read", "keeping overwrite", 9),
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
    stride = every(stride)
    stops, wrong = interleave(start, first, second, str(tmp_path), stride)
    assert not wrong
    assert stops > 0
