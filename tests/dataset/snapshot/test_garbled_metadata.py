"""Metadata files that are garbled, cut off, nested too deeply, of wrong types, or directories.

Modules: dataset.snapshot.versions.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_tfrecord import (
    Snapshot,
    TFRecordError,
    Writer,
    cleanup,
    compact,
    delete,
    expire,
    index,
    read_tfrecord,
    restore,
    to_tfrecord,
    verify,
)

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = pd.DataFrame({"n": [1, 2, 3]})
DEEP = b"[" * 200_000 + b"]" * 200_000
LISTS = ["replaced.json", "kept.json", "exports.json"]
PATHS = [b'["\\ud800"]', b'["_tfrecord"]', b'["%s"]' % (b"x" * 999)]
# Each content of a list with one name, and each name with one content.
GARBLED: list[tuple[str, bytes | None]] = [
    *zip(
        LISTS * 3, [b"\xff\xfe", DEEP, None, b'["part-', b"", DEEP, b"[[]]", b'["/etc/x"]', b"7"], strict=True
    ),
    *zip(LISTS * 2, [*PATHS, *PATHS[1:], PATHS[0]], strict=True),
    *zip(["snapshot"] * 2, [b"", None], strict=True),
]


def put(path: Path, content: bytes | None) -> None:
    """Put a file, or a directory if there is no content, instead of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.mkdir() if content is None else path.write_bytes(content)


def write(root: Path) -> None:
    with Writer(root) as writer:
        writer.write(ROWS)


OPERATIONS: dict[str, Callable[[Path], Any]] = {
    "read": lambda root: read_tfrecord(root).compute(),
    "read without the snapshot": lambda root: read_tfrecord(root, use_snapshot=False).compute(),
    "history": Snapshot.history,
    "append": lambda root: to_tfrecord(ROWS, root, append=True),
    "Writer": write,
    "overwrite": lambda root: to_tfrecord(ROWS, root, overwrite=True),
    "compact": compact,
    "delete": lambda root: delete(root, [("n", "==", 1)]),
    "restore": lambda root: restore(root, 1),
    "expire": lambda root: expire(root, versions=1, grace="0s"),
    "cleanup": lambda root: cleanup(root, older_than="0s"),
    "index": lambda root: index(root, columnar="scalars"),
    "verify": verify,
}


READING = ["read", "read without the snapshot", "history", "verify"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dataset") / "d"
    to_tfrecord(ROWS, root)
    to_tfrecord(ROWS, root, append=True)
    return root


# A directory with the name of a snapshot cannot be removed.
@pytest.mark.filterwarnings("ignore:.*the data is written, but not all files")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("name", "content"), GARBLED, ids=lambda one: repr(one)[:12])
def test_a_garbled_file_is_ignored_or_named_with_advice(
    dataset: Path, tmp_path: Path, operation: str, name: str, content: bytes | None
) -> None:
    root = tmp_path / "d"
    shutil.copytree(dataset, root)
    data = {path.name: path.read_bytes() for path in root.glob("*.tfrecord")}
    paths = {"exports.json": root / "_tfrecord" / name, "snapshot": root / "_tfrecord" / "00000003.parquet"}
    put(paths.get(name, root / "_tfrecord" / "staging" / Snapshot.open(root).run / name), content)
    try:
        OPERATIONS[operation](root)
    except TFRecordError as raised:
        error = raised
    else:
        return
    assert paths.get(name, Path(name)).name in (error.path or "")
    assert error.advice or "read_tfrecord takes use_snapshot=False" in str(error) or error.remedies
    assert data.items() <= {path.name: path.read_bytes() for path in root.glob("*.tfrecord")}.items()


@pytest.mark.parametrize("metadata", [DEEP, b"[]", b"7", b"{}", b'{"format_version": 1, "schema": []}'])
def test_garbled_metadata_of_a_snapshot_is_named_with_a_remedy(tmp_path: Path, metadata: bytes) -> None:
    to_tfrecord(ROWS, tmp_path)
    table = pa.table({"path": pa.array([], pa.string())}).replace_schema_metadata(
        {b"dask_tfrecord": metadata}
    )
    pq.write_table(table, tmp_path / "_tfrecord" / "00000002.parquet")
    for read in (lambda: read_tfrecord(tmp_path), lambda: Snapshot.history(tmp_path)):
        with pytest.raises(TFRecordError, match=r"00000002\.parquet: not a valid snapshot"):
            read()
    assert len(read_tfrecord(tmp_path, use_snapshot=False)) == 3


@pytest.mark.parametrize("name", ["staging", "kept", "columns"])
def test_a_file_instead_of_a_directory_is_named_before_anything_is_written(
    dataset: Path, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "d"
    shutil.copytree(dataset, root)
    place = root / "_tfrecord" / name
    shutil.rmtree(place, ignore_errors=True)
    place.touch()
    for operation in (operation for one, operation in OPERATIONS.items() if one not in READING):
        with pytest.raises(TFRecordError, match=f"_tfrecord/{name}: a file has the name of a directory"):
            operation(root)
    assert len(read_tfrecord(root)) == 6
