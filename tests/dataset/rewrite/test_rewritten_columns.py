"""Small columns of rewritten and foreign files: their column files are those of a write of the same rows.

Modules: dataset.rewrite.verify, dataset.rewrite.add_snapshot, dataset.rewrite.delete,
dataset.rewrite.compact, files.small_columns, files.splice.
"""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import LinkedStore

from dask_tfrecord import (
    ConcurrentWriteError,
    CorruptRecordError,
    DestinationError,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.dataset.read import sample
from dask_tfrecord.dataset.rewrite import add_snapshot
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files import file_writer, record_file, small_columns
from dask_tfrecord.files import splice as splicing
from dask_tfrecord.files.column_files import METADATA_KEY, all_chunks, chunk_range
from dask_tfrecord.files.splice import SplicedFile

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files have column files, several blocks, and several steps that leave out columns."""
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 200_000)
    monkeypatch.setattr(small_columns, "_STEP_BYTES", 40_000)
    monkeypatch.setattr(small_columns, "_WAITING_BYTES", 2_000)
    for module in (file_writer, splicing):
        monkeypatch.setattr(module, "BLOCK_BYTES", 12_000)
    monkeypatch.setattr(record_file, "WINDOW_BYTES", 16_000)


def rows(count: int = 60) -> pa.Table:
    """Rows with small labels and names, and with captions that take more than 1 % of the bytes."""
    source = np.random.default_rng(5)
    return pa.table(
        {
            "label": [None if at % 7 == 3 else at % 5 for at in range(count)],
            "name": [f"row {at}" * (at % 3) for at in range(count)],
            "caption": [f"the caption of row {at}" * 10 for at in range(count)],
            "image": [source.bytes(5_000) for _ in range(count)],
            "boxes": [[at] * (at % 4) for at in range(count)],
        }
    )


def column_file(place: Path) -> tuple[dict[str, Any], bytes]:
    """The rows and the pages of the column file of the dataset's only data file."""
    [file] = Snapshot.open(place).files
    assert file.columns is not None
    stored = place / file.columns.path
    assert [*(place / "_tfrecord" / "columns").iterdir()] == [stored]
    metadata = pq.read_metadata(stored)
    assert METADATA_KEY in metadata.metadata
    end = max(chunk_range(metadata, *chunk)[1] for chunk in all_chunks(metadata))
    return pq.read_table(stored).to_pydict(), stored.read_bytes()[:end]


def compacted(place: Path, codec: Any) -> None:
    for start in (0, 10, 40):
        stop = {0: 10, 10: 40, 40: 60}[start]
        to_tfrecord(rows()[start:stop], place, append=start > 0, compression=codec)
    assert not any(file.columns for file in Snapshot.open(place).files)
    open_dataset(place).compact(keep_versions=False)


def deleted(place: Path, codec: Any) -> None:
    """Rows at the start, at the end, and in all blocks are removed."""
    gone = rows(20).set_column(0, "label", [[-1] * 20])
    more = pa.concat_tables([gone[:3], rows()[:31], gone[3:10], rows()[31:], gone[10:]])
    to_tfrecord(more, place, compression=codec)
    open_dataset(place).delete([("label", "==", -1)], keep_versions=False)


def described(place: Path, codec: Any) -> None:
    """The file is read in one task."""
    to_tfrecord(rows(), place, compression=codec)
    shutil.rmtree(place / "_tfrecord")
    open_dataset(place).add_snapshot()


def described_in_parts(place: Path, codec: Any) -> None:
    with patch.object(sample, "TASK_BYTES", 50_000), patch.object(sample, "BLOCK_BYTES", 10_000):
        described(place, codec)


@pytest.mark.sampled
@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
@pytest.mark.parametrize("rewrite", [compacted, deleted, described, described_in_parts])
@pytest.mark.filterwarnings("ignore:TensorFlow reads only gzip and zlib")
def test_a_rewritten_file_has_the_column_file_of_a_write(
    tmp_path: Path, rewrite: Callable[[Path, Any], None], codec: Any
) -> None:
    to_tfrecord(rows(), tmp_path / "written", compression=codec)
    rewrite(tmp_path / "rewritten", codec)
    expected = column_file(tmp_path / "written")
    assert [*expected[0]] == ["label", "name", "tfrecord.offset"]
    assert column_file(tmp_path / "rewritten") == expected
    assert open_dataset(tmp_path / "rewritten").verify()["agrees"].all()


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_compaction_copies_blocks_if_column_files_have_all_small_columns(
    tmp_path: Path, codec: Any
) -> None:
    small = rows().drop_columns("caption")
    to_tfrecord(small, tmp_path / "written", compression=codec)
    with patch.object(small_columns, "LEAST_FILE_BYTES", 50_000):
        for start in (0, 20, 40):
            part = small[start : start + 20]
            to_tfrecord(part, tmp_path / "new", append=start > 0, compression=codec)
    with patch.object(SplicedFile, "read_blocks", side_effect=RuntimeError):
        open_dataset(tmp_path / "new").compact(keep_versions=False)
    assert column_file(tmp_path / "new") == column_file(tmp_path / "written")


def test_a_compaction_that_compresses_again_may_make_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file has the least size of a file with a column file, but its sources are smaller together."""
    place = tmp_path / "place"
    paths = foreign(place, codec="gzip")
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 1 << 30)
    for path in paths:
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 9))
    open_dataset(place).add_snapshot()
    shutil.copytree(place, tmp_path / "first", copy_function=shutil.copy2)
    open_dataset(tmp_path / "first").compact()
    [file] = Snapshot.open(tmp_path / "first").files
    assert file.bytes > sum(path.stat().st_size for path in paths)
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", file.bytes)
    open_dataset(place).compact()
    [file] = Snapshot.open(place).files
    assert file.columns is not None


def test_a_compaction_reads_each_source_once(linked: LinkedStore) -> None:
    place, options = linked.new_place(), {"storage_options": linked.options}
    for start in (0, 20, 40):
        to_tfrecord(rows()[start : start + 20], place, append=start > 0, **options)
    with linked.link.recording() as traffic:
        open_dataset(place, **options).compact()
    [file] = Snapshot.open(place, storage_options=linked.direct).files
    assert file.columns is not None
    assert len(traffic.of("GET", "part-")) == 4  # the first one tells the codec
    assert len(traffic.of("PUT", "_tfrecord/columns/")) == 1


def foreign(place: Path, count: int = 2, codec: Any = None) -> list[Path]:
    """Files of another tool, each with 60 rows."""
    place.mkdir()
    paths = [place / f"{at}.tfrecord" for at in range(count)]
    for path in paths:
        to_tfrecord(rows(), place.parent / path.stem)
        [data] = (place.parent / path.stem).glob("part-*")
        path.write_bytes(gzip.compress(data.read_bytes()) if codec else data.read_bytes())
    return paths


def column_files(place: Path) -> set[str]:
    return {f"_tfrecord/columns/{path.name}" for path in (place / "_tfrecord").glob("columns/*")}


def listed(place: Path) -> list[str | None]:
    return [file.columns and file.columns.path for file in Snapshot.open(place).files]


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_changed_files_get_new_column_files_and_others_keep_theirs(tmp_path: Path, codec: Any) -> None:
    """The second file has other rows, the third file has another time, and the last file is not foreign."""
    place = tmp_path / "place"
    paths = foreign(place, 3, codec)
    open_dataset(place).add_snapshot()
    to_tfrecord(rows(), place, append=True)
    before = listed(place)
    assert column_files(place) == {*before}
    with pytest.raises(DestinationError, match="up to date"):
        open_dataset(place).add_snapshot()
    to_tfrecord(rows()[::-1], tmp_path / "other")
    [other] = (tmp_path / "other").glob("part-*")
    shutil.copy(other, paths[1])
    os.utime(paths[2], (1, 1))
    open_dataset(place).add_snapshot()
    after = listed(place)
    assert (after[0], after[3]) == (before[0], before[3])
    open_dataset(place).expire(versions=1, grace="0s")
    assert column_files(place) == {*after}
    assert {*after}.isdisjoint(before[1:3])
    assert open_dataset(place).verify()["agrees"].all()
    expected = read_tfrecord(place)[["label", "name"]].compute()
    shutil.rmtree(place / "_tfrecord" / "columns")
    pd.testing.assert_frame_equal(read_tfrecord(place)[["label", "name"]].compute(), expected)


@pytest.mark.parametrize("columnar", [None, False, ["name"], "scalars"])
def test_a_setting_replaces_the_rule(tmp_path: Path, columnar: Any) -> None:
    place = tmp_path / "place"
    foreign(place)
    open_dataset(place).add_snapshot(columnar=columnar)
    assert len(column_files(place)) == (1 if columnar else 0)
    assert {*listed(place)} == (column_files(place) or {None})
    to_tfrecord(rows(), place, append=True)
    open_dataset(place).compact(target_bytes=None, keep_versions=False)
    [only] = listed(place)
    assert (only is None) == (not columnar)


class Stopped(BaseException):
    """A process that is killed removes nothing."""


def test_a_description_that_fails_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "place"
    *_, last = foreign(place, 3)
    content = last.read_bytes()
    last.write_bytes(content[:-1])
    with pytest.raises(CorruptRecordError):
        open_dataset(place).add_snapshot()
    last.write_bytes(content)
    with (
        patch.object(add_snapshot, "commit_snapshot", side_effect=RuntimeError("on purpose")),
        pytest.raises(RuntimeError),
    ):
        open_dataset(place).add_snapshot()
    assert not (place / "_tfrecord").exists()


def test_a_refused_description_leaves_no_copy_of_deleted_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    paths = foreign(place)
    open_dataset(place).add_snapshot()
    to_tfrecord(rows(), place, append=True)
    for path in paths:
        os.utime(path, (1, 1))
    store = add_snapshot.commit_snapshot

    def delete_before(*args: Any) -> Snapshot:
        open_dataset(place).delete([("label", "==", 4)], keep_versions=False)
        return store(*args)

    monkeypatch.setattr(add_snapshot, "commit_snapshot", delete_before)
    with pytest.raises(ConcurrentWriteError):
        open_dataset(place).add_snapshot()
    left = column_files(place)
    assert left == {*filter(None, listed(place))}
    assert len(left) == 3
    assert all(4 not in pq.read_table(place / path)["label"].to_pylist() for path in left)


def test_cleanup_finds_what_a_killed_description_leaves(tmp_path: Path) -> None:
    place = tmp_path / "place"
    foreign(place)
    with (
        patch.object(add_snapshot, "commit_snapshot", side_effect=Stopped),
        patch.object(add_snapshot, "_remove_column_files"),
        patch.object(add_snapshot, "remove_staging"),
        pytest.raises(Stopped),
    ):
        open_dataset(place).add_snapshot()
    left = column_files(place)
    assert len(left) == 2
    assert left <= {*open_dataset(place).cleanup(older_than="0s")}
    assert not column_files(place)
