"""Files whose names have no codec suffix, or the suffix of another codec: the content decides.

Modules: storage.location, api.description, api.explain.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import read_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.storage.reader import FileReader
from dask_tfrecord.storage.store import LocalStore

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = [("gzip", "train-00000-of-00001"), (None, "train.tfrecord.gz"), ("zlib", "train.tfrecord.gz")]
ROWS = 1_000
_BYTES = np.random.default_rng(0)
TABLE = pa.table({"id": range(ROWS), "image": [_BYTES.bytes(1_000) for _ in range(ROWS)]})


@pytest.fixture(params=NAMES, ids=["gzip without suffix", "plain as gz", "zlib as gz"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    codec, name = request.param
    dask_tfrecord.to_tfrecord(TABLE, tmp_path / "source", compression=codec)
    [file] = Snapshot.open(tmp_path / "source").files
    (tmp_path / "set").mkdir()
    shutil.copy(tmp_path / "source" / file.path, tmp_path / "set" / name)
    return tmp_path / "set"


def ids(root: Path, **kwargs: Any) -> list[int]:
    return sorted(read_tfrecord(root, **kwargs)["id"].compute().tolist())


def test_explain_tells_how_many_bytes_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dask_tfrecord.open_dataset(root).add_snapshot(columnar=["id"])
    frame = read_tfrecord(root, filters=[("id", "in", [7, 800])])
    [[report]] = dask_tfrecord.explain(frame).partitions
    sizes: list[int] = []
    forward, ranges = FileReader.readinto, LocalStore._read_ranges

    def count_forward(self: FileReader, view: memoryview) -> int:
        sizes.append(forward(self, view))
        return sizes[-1]

    def count_ranges(store: LocalStore, wanted: Any) -> list[bytes]:
        found = ranges(store, wanted)
        sizes.extend(map(len, found))
        return found

    monkeypatch.setattr(FileReader, "readinto", count_forward)
    monkeypatch.setattr(LocalStore, "_read_ranges", count_ranges)
    assert frame.compute()["id"].tolist() == [7, 800]
    assert report.data_bytes == pytest.approx(sum(sizes) - report.column_bytes, rel=0.2, abs=2_000)


def test_every_operation_treats_the_file_by_its_content(root: Path) -> None:
    assert ids(root) == [*range(ROWS)]
    dask_tfrecord.open_dataset(root).add_snapshot(columnar=["id"])
    indexed = Snapshot.open(root)
    stored = Snapshot.open(root).files
    assert [file.codec for file in stored] == [indexed.compression or "none"]
    table = dask_tfrecord.feed.RecordTable(root)
    assert [table[at]["id"] for at in (0, 999)] == [0, 999]
    dask_tfrecord.to_tfrecord(TABLE[:10], root, append=True, compression=indexed.compression)
    assert ids(root, blocksize=100_000) == sorted([*range(ROWS), *range(10)])
    dask_tfrecord.open_dataset(root).compact()
    compacted = Snapshot.open(root)
    assert [file.codec for file in compacted.files] == [indexed.compression or "none"]
    dask_tfrecord.open_dataset(root).delete([("id", "<", 990)])
    assert dask_tfrecord.open_dataset(root).verify()["damaged"].sum() == 0
    assert ids(root) == ids(root, use_snapshot=False) == [*range(990, ROWS)]
