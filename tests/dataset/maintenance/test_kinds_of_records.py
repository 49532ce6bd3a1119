"""Compaction and deletion of every kind of records: only files and rows change, and no type or form.

Modules: dataset.maintenance.rewrites, files.window.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import Snapshot, compact, delete, index, read_tfrecord, to_tfrecord, verify

pytestmark = pytest.mark.usefixtures("one_thread")

NUMBERS = [*range(10), None, 11]


def written(root: Path, columns: dict[str, Any], **options: Any) -> None:
    """Write columns as three files."""
    frame = pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)
    to_tfrecord(dd.from_pandas(frame, npartitions=3), root, write_index=False, **options)


def structs(root: Path, **options: Any) -> None:
    values = [None if n is None or n % 4 == 1 else {"x": n, "y": [None, "é"][n % 2]} for n in NUMBERS]
    type_ = pa.struct([("x", pa.int64()), ("y", pa.string())])
    written(root, {"n": NUMBERS, "s": pa.array(values, type_)}, **options)


def sequences(root: Path) -> None:
    steps = pa.array([[[n, n]] * (n % 3) if n else None for n in NUMBERS], pa.list_(pa.list_(pa.int64())))
    written(root, {"n": NUMBERS, "steps": steps}, record_type="sequence_example", compression="zlib")


def payloads(root: Path) -> None:
    records = pa.array([b"" if n is None else b"\xff" * n for n in NUMBERS], pa.binary())
    written(root, {"record": records}, record_type="bytes", compression="gzip")


def of_tfds(name: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        shutil.copytree(Path(__file__).parents[2] / "data" / "tfds" / name, root)
        index(root)

    return make


SPLIT = ("split", lambda value: value == "train", [("split", "==", "train")])
# How the dataset is made, a column, which of its values are deleted, and the filters that say the same.
KINDS: dict[str, tuple[Callable[[Path], None], str, Callable[[Any], bool], Any]] = {
    "structs": (structs, "n", lambda n: n in (4, 5), [("n", "in", [4, 5])]),
    "structs, all of a file": (structs, "n", lambda n: n is not None and n > 3, [("n", ">", 3)]),
    "sequence examples": (sequences, "n", lambda n: n is None, [("n", "is", None)]),
    "bytes": (payloads, "record", lambda record: record > b"\xff" * 8, [("record", ">", b"\xff" * 8)]),
    "labels": (of_tfds("labels/1.0.0"), "num", lambda n: n in (0, 4), [("num", "in", [0, 4])]),
    "scalars": (of_tfds("scalars/1.0.0"), "id", lambda n: n % 2 == 1, [("id", "in", [1, 3, 5])]),
    "mixed": (of_tfds("mixed/1.0.0"), "a/b/c", lambda n: n == 1, [("a/b/c", "==", 1)]),
    "sequences": (of_tfds("sequences/1.0.0"), *SPLIT),
    "tensors": (of_tfds("tensors/1.0.0"), *SPLIT),
    "taxi": (of_tfds("taxi/CsvExampleGen/examples/1"), "tip", lambda n: n == 1, [("tip", "==", 1)]),
}


def contents(root: Path, **options: Any) -> pd.DataFrame:
    frame: pd.DataFrame = read_tfrecord(root, **options).compute().reset_index(drop=True)
    return frame


def shown(frame: pd.DataFrame) -> list[Any]:
    """The values as text, in which NaN equals NaN."""
    return [frame.dtypes.tolist(), *frame.map(repr).to_numpy().tolist()]


def check_statistics(snapshot: Snapshot, frame: pd.DataFrame) -> None:
    """Check the statistics of each file against its rows."""
    first = 0
    for file in snapshot.files:
        rows = frame[first : first + file.records]
        first += file.records
        for column in file.statistics:
            if column.name in frame:
                values = rows[column.name].dropna()  # of Arrow values, this keeps NaN
                assert column.nulls == len(rows) - len(values), column.name
                assert column.min is None or not any(
                    value < column.min or value > column.max for value in values
                )
    assert first == len(frame)


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_every_kind_are_compacted_and_deleted(tmp_path: Path, kind: str) -> None:
    make, name, is_deleted, filters = KINDS[kind]
    root = tmp_path / "data"
    make(root)
    before, old = contents(root), Snapshot.open(root)
    is_gone = pd.Series([is_deleted(None if value is pd.NA else value) for value in before[name]])
    assert is_gone.any()
    assert shown(contents(root, filters=filters)) == shown(before[is_gone])
    shutil.copytree(root, tmp_path / "compacted first")
    for at in (root, tmp_path / "compacted first"):
        left = before
        if at != root:
            done = compact(at, keep_versions=True)
            assert len(done.snapshot.files) == len({(file.values) for file in old.files})
            assert shown(contents(at)) == shown(left)
            check_statistics(done.snapshot, left)
        left = before[~is_gone].reset_index(drop=True)
        gone = delete(at, filters, keep_versions=True)
        assert gone.rows == is_gone.sum()
        assert shown(contents(at)) == shown(left)
        check_statistics(gone.snapshot, left)
        compacted = compact(at, keep_versions=True).snapshot
        assert shown(contents(at)) == shown(left)
        check_statistics(compacted, left)
        assert shown(contents(at, version=1)) == shown(before)
        assert (compacted.schema, compacted.partitioning, compacted.order) == (
            old.schema,
            old.partitioning,
            old.order,
        )
        assert verify(at)["agrees"].all()
