"""Small columns of rewritten files: their column files are those of a write of the same rows.

Modules: dataset.maintenance.rewrites, files.small_columns, files.splice.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import LinkedStore

from dask_tfrecord import open_dataset, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files import small_columns
from dask_tfrecord.files.column_files import METADATA_KEY, all_chunks, chunk_range

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 200_000)


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


@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
@pytest.mark.parametrize("rewrite", [compacted, deleted])
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
