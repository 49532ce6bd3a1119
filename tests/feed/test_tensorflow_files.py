"""TensorFlow: files that change while they are read, and reads of no file.

Modules: feed.tensorflow.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_tfrecord

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow", reason="TensorFlow has no wheel for this platform")


def test_a_dataset_that_is_overwritten_between_epochs_raises(tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    dask_tfrecord.to_tfrecord(dd.from_dict({"x": [1, 2]}, npartitions=1), tmp_path / "d")
    elements = tensorflow_dataset(tmp_path / "d", 1, engine="kernel")
    assert len(list(elements)) == 2
    dask_tfrecord.to_tfrecord(dd.from_dict({"x": [3, 4, 5]}, npartitions=1), tmp_path / "d", overwrite=True)
    with pytest.raises(tf.errors.OpError, match="removed after the dataset was listed"):
        list(elements)


def _rewrite(old: Path, new: Path) -> None:
    old.write_bytes(new.read_bytes())


def _cut(old: Path, new: Path) -> None:
    os.truncate(old, old.stat().st_size // 2)  # all records have the same size: cut between two


def _append(old: Path, new: Path) -> None:
    old.write_bytes(old.read_bytes() + new.read_bytes())


CHANGES: dict[str, Any] = {
    "replaced by a file of the same size": lambda old, new: os.replace(new, old),
    "rewritten with the same size": _rewrite,
    "cut": _cut,
    "appended to": _append,
    "removed": lambda old, new: old.unlink(),
}


FIRST, MIDDLE, LATER = "before the first epoch", "in an epoch", "after an epoch"


@pytest.mark.parametrize(
    ("change", "moment", "arguments", "has_snapshot"),
    [
        ("replaced by a file of the same size", FIRST, {"shuffle": 1, "shuffle_buffer": 10}, True),
        ("replaced by a file of the same size", MIDDLE, {}, False),
        ("replaced by a file of the same size", LATER, {"shard": (1, 2)}, False),
        ("rewritten with the same size", FIRST, {}, False),
        ("rewritten with the same size", MIDDLE, {"shard": (1, 2)}, True),
        ("rewritten with the same size", LATER, {"batch_mode": "drop"}, True),
        ("cut", FIRST, {"shuffle": 1}, False),
        ("cut", MIDDLE, {"shard": (1, 2)}, True),
        ("cut", LATER, {}, True),
        ("appended to", FIRST, {"shard": (1, 2)}, True),
        ("appended to", MIDDLE, {}, False),
        ("removed", MIDDLE, {"shuffle": 1, "shuffle_buffer": 10}, True),
        ("removed", LATER, {"shard": (1, 2)}, False),
    ],
)
def test_native_notices_changed_files(
    tmp_path: Path, change: str, moment: str, arguments: dict[str, Any], has_snapshot: bool
) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    for name in ("old", "new"):
        frame = pd.DataFrame({"x": np.arange(200) + 1000})
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=2), tmp_path / name)
    if not has_snapshot:
        shutil.rmtree(tmp_path / "old" / "_tfrecord")
    last, new = (sorted((tmp_path / name).glob("*.tfrecord"))[-1] for name in ("old", "new"))
    os.utime(new, (1e9, 1e9))  # a change within one tick of the clock cannot be noticed
    given = {"fill_nulls": {"x": -1}, "engine": "native", "prefetch": 0, **arguments}
    elements = tensorflow_dataset(tmp_path / "old", 10, **given)
    if moment == LATER:
        assert len(list(elements)) == 10 if "shard" in arguments else 20
    iterator = iter(elements)
    if moment == MIDDLE:
        next(iterator)
    CHANGES[change](last, new)
    with pytest.raises(tf.errors.OpError, match=r"FileChangedError|FileRemovedError|No such file") as raised:
        list(iterator)
    assert last.name in str(raised.value)


@pytest.mark.parametrize("engine", ["kernel", "native"])
def test_a_kept_version_is_read(engine: Any, tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    dask_tfrecord.to_tfrecord(dd.from_dict({"x": [1, 2, 3]}, npartitions=1), tmp_path / "d")
    dask_tfrecord.delete(tmp_path / "d", [("x", "==", 2)], keep_versions=True)
    for version, expected in ((1, [1, 2, 3]), (2, [1, 3])):
        [batch] = tensorflow_dataset(tmp_path / "d", 10, engine=engine, version=version)
        assert batch["x"].numpy().tolist() == expected


def test_native_saves_its_position(tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    dask_tfrecord.to_tfrecord(dd.from_dict({"x": list(range(100))}, npartitions=3), tmp_path / "d")
    iterator = iter(tensorflow_dataset(tmp_path / "d", 10, engine="native"))
    next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    expected = [batch["x"].numpy().tolist() for batch in iterator]
    resumed = iter(tensorflow_dataset(tmp_path / "d", 10, engine="native"))
    tf.train.Checkpoint(iterator=resumed).restore(saved)
    assert [batch["x"].numpy().tolist() for batch in resumed] == expected


@pytest.mark.parametrize("more", [{}, {"shuffle": 1}, {"batch_mode": "drop"}])
@pytest.mark.parametrize("engine", ["kernel", "native"])
def test_a_read_of_no_file_has_no_batch(engine: Any, more: dict[str, Any], tmp_path: Path) -> None:
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    rows = pd.DataFrame({"x": [1, 2], "key": [1, 2], "text": ["a", "b"]})
    dask_tfrecord.to_tfrecord(dd.from_pandas(rows, npartitions=1), tmp_path / "d", partition_on=["key"])
    nulls = {"x": -1, "text": ""}
    found = tensorflow_dataset(
        tmp_path / "d", 2, engine=engine, filters=[("key", ">", 2)], fill_nulls=nulls, **more
    )
    assert (list(found), found.cardinality().numpy()) == ([], 0)
    assert {name: spec.dtype for name, spec in found.element_spec.items()} == {
        "x": tf.int64,
        "key": tf.int64,
        "text": tf.string,
    }
