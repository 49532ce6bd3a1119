"""A file that another operation removes between the plan of a read and the read.

Modules: dataset.read.sample, files.storage.listing.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_tfrecord
from dask_tfrecord import FileChangedError, TFRecordDataset

FRAME = pd.DataFrame({"id": range(60), "text": ["x" * 300] * 60})


def _plan(**options: Any) -> Callable[[Path], Any]:
    return lambda path: dask_tfrecord.read_tfrecord(path, **options)


def _later(plan: Callable[[Path], Any], read: Callable[[Any], Any]) -> Callable[[Path], Callable[[], Any]]:
    """Return a function that plans a read of a path, and returns the call that reads."""

    def planned(path: Path) -> Callable[[], Any]:
        found = plan(path)
        return lambda: read(found)

    return planned


def _polars(path: Path) -> Callable[[], Any]:
    pytest.importorskip("polars")
    from dask_tfrecord.feed.polars import scan_tfrecord

    return scan_tfrecord(path).collect


READS: dict[str, Callable[[Path], Callable[[], Any]]] = {
    "records": _later(_plan(), lambda ddf: ddf.compute()),
    "columns": _later(_plan(columns=["id"]), lambda ddf: ddf.compute()),
    "ranges": _later(_plan(blocksize="4 kB"), lambda ddf: ddf.compute()),
    "skipped damage": _later(_plan(on_corrupt="skip"), lambda ddf: ddf.compute()),
    "filter": _later(_plan(filters=[("id", "<", 3)]), lambda ddf: ddf.compute()),
    "length": _later(_plan(), len),
    "explain": _later(_plan(columns=["id"]), dask_tfrecord.explain),
    "table": _later(TFRecordDataset, lambda found: found.to_table()),
    "count": _later(TFRecordDataset, lambda found: found.count_rows()),
    "batches": _later(lambda path: dask_tfrecord.iter_batches(path, 7), list),
    "shuffled": _later(lambda path: dask_tfrecord.iter_batches(path, 7, shuffle=20), list),
    "one record": _later(dask_tfrecord.RecordTable, lambda found: found[3]),
    "many records": _later(dask_tfrecord.RecordTable, lambda found: found[np.arange(50)]),
    "inspected": _later(dask_tfrecord.inspect, lambda found: [*found.iter_tables()]),
    "polars": _polars,
}


@pytest.mark.parametrize(
    ("read", "columnar"), [(read, [None, ["id"]][at % 2]) for at, read in enumerate(READS)]
)
def test_a_read_of_files_that_were_overwritten_since_its_plan_raises_one_class(
    tmp_path: Path, read: str, columnar: list[str] | None
) -> None:
    dask_tfrecord.to_tfrecord(FRAME, tmp_path, max_rows_per_file=20, columnar=columnar)
    names = [path.name for path in tmp_path.glob("part-*")]
    call = READS[read](tmp_path)
    dask_tfrecord.to_tfrecord(FRAME, tmp_path, max_rows_per_file=20, columnar=columnar, overwrite=True)
    with pytest.raises(FileChangedError, match="read the dataset again") as caught:
        call()
    assert isinstance(caught.value, FileNotFoundError)
    assert Path(str(caught.value.path)).name in names


@pytest.mark.parametrize("read", READS)
def test_a_read_of_plain_files_that_were_removed_since_its_plan_raises_one_class(
    tmp_path: Path, read: str
) -> None:
    dask_tfrecord.to_tfrecord(FRAME, tmp_path, max_rows_per_file=20)
    (tmp_path / "_tfrecord").rename(tmp_path.parent / f"{tmp_path.name}-metadata")
    files = [path.rename(path.with_name(f"{at}.tfrecord")) for at, path in enumerate(tmp_path.glob("part-*"))]
    call = READS[read](tmp_path)
    for path in files:
        path.unlink()
    with pytest.raises(FileChangedError, match=r"\d\.tfrecord: the file was removed after"):
        call()


@pytest.mark.parametrize(
    "step", ["snapshot.model.read_snapshot", "maintenance.metadata_commits.planned_rows"]
)
def test_a_restore_whose_version_expires_meanwhile_says_so(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "d"
    for _ in range(3):
        dask_tfrecord.to_tfrecord(FRAME, root, overwrite=root.exists(), keep_versions=True)
    module, _, name = f"dask_tfrecord.dataset.{step}".rpartition(".")
    function = getattr(importlib.import_module(module), name)

    def expire_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        dask_tfrecord.expire(root, versions=1, grace="0s")
        return function(*arguments)

    monkeypatch.setattr(f"{module}.{name}", expire_first)
    with pytest.raises((FileChangedError, dask_tfrecord.NotFoundError), match="version 1"):
        dask_tfrecord.restore(root, 1)
    assert len(dask_tfrecord.read_tfrecord(root)) == len(FRAME)
