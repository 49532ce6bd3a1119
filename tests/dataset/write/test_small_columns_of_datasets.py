"""Datasets written by the defaults: which files have column files, and rows that do not depend on them.

Modules: dataset.write.run, files.small_columns.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files.column_files import open_column_file
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def images(count: int, seed: int = 1, image_bytes: int = 100_000) -> pa.Table:
    rng = random.Random(seed)
    return pa.table(
        {
            "image": [rng.randbytes(image_bytes) for _ in range(count)],
            "id": [*range(count)],
            "label": pa.array([rng.choice(["cat", "dog", "ż", "", None]) for _ in range(count)]),
            "caption": ["a cat sits on a mat " * 100] * count,
        }
    )


def stored_columns(root: Path | str) -> list[tuple[int, list[str]]]:
    """The number of rows of each data file, and the columns that its column file stores."""
    found = []
    for file in Snapshot.open(root).files:
        features = open_column_file(Store.at(root), file.columns).features if file.columns else ()
        found.append((file.records, sorted(one.name for one in features)))
    return found


def test_a_newcomer_gets_the_labels_of_large_files_beside_the_records(tmp_path: Path) -> None:
    """The caption takes 2 % of the bytes. The second file has less than 8 MiB."""
    rows = images(150)
    frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
    to_tfrecord(frame, tmp_path, write_options={"max_rows_per_file": 90})
    assert stored_columns(tmp_path) == [(90, ["id", "label"]), (60, [])]
    assert len([*(tmp_path / "_tfrecord" / "columns").iterdir()]) == 1
    found = read_tfrecord(tmp_path)["label"].value_counts().compute()
    assert found.to_dict() == frame["label"].value_counts().to_dict()


def tree(root: Path) -> dict[str, bytes]:
    """The data files and column files."""
    paths = [
        path
        for path in root.rglob("*")
        if path.suffix in (".tfrecord", ".gz") or path.parent.name == "columns"
    ]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def batches(rows: pa.Table, sizes: list[int]) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield from rows.slice(start, size).combine_chunks().to_batches()
        start += size
    yield from rows.slice(start).to_batches()


def write_rows(rows: pa.Table, root: Path, sizes: list[int], **keywords: Any) -> None:
    with dask_tfrecord.Writer(root, **keywords) as writer:
        for batch in batches(rows, sizes):
            writer.write(batch)


def write_stream(rows: pa.Table, root: Path, sizes: list[int], **keywords: Any) -> None:
    to_tfrecord(pa.RecordBatchReader.from_batches(rows.schema, batches(rows, sizes)), root, **keywords)


WAYS: dict[str, Callable[..., Any]] = {"stream": write_stream, "Writer": write_rows}


@pytest.mark.usefixtures("column_files_of_all")
@pytest.mark.parametrize(
    "keywords",
    [{}, {"compression": "gzip", "write_options": {"max_rows_per_file": 70}}, {"partition_on": "label"}],
    ids=["plain", "gzip", "directories"],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_rerun_writes_the_same_bytes_whatever_the_batches(
    tmp_path: Path, way: str, keywords: dict[str, Any]
) -> None:
    rows = images(200, image_bytes=50)
    found = []
    for at, sizes in enumerate(([], [1, 60, 3, 99], [50] * 3)):
        with (
            patch("dask_tfrecord.dataset.write.run.uuid4", lambda: UUID(int=1)),
            patch("dask_tfrecord.dataset.shuffle.table_stream.uuid4", lambda: UUID(int=1)),
        ):
            WAYS[way](rows, tmp_path / str(at), sizes, **keywords)
        found.append(tree(tmp_path / str(at)))
    assert found[0] == found[1] == found[2]
    assert any(path.endswith(".parquet") for path in found[0])


def by_id(frame: pd.DataFrame) -> dict[int, dict[str, Any]]:
    """Maps the id of each row to its other values."""
    assert frame["id"].is_unique
    columns = {name: pa.array(frame[name].array).to_pylist() for name in sorted(frame.columns)}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {row.pop("id"): row for row in rows}


def mixed(root: Path) -> dict[int, dict[str, Any]]:
    """A dataset whose files have column files of each setting or none, of several codecs. Return its rows."""
    settings: list[dict[str, Any]] = [
        {},
        {"compression": "gzip"},
        {"columnar": ["id"]},
        {"columnar": None},
        {"columnar": []},
        {"columnar": "scalars", "write_options": {"max_rows_per_file": 4}},
        {"columnar": "auto", "compression": "zlib"},
    ]
    tables = [images(9, seed, 200) for seed in range(len(settings) + 1)]
    tables = [
        one.set_column(1, "id", pa.array([9 * at + n for n in range(9)])) for at, one in enumerate(tables)
    ]
    to_tfrecord(tables[-1], root)
    for path in root.glob("*.tfrecord"):  # as another tool would write it
        path.rename(root / "other.tfrecord")
    shutil.rmtree(root / "_tfrecord")
    open_dataset(root).add_snapshot()
    for table, keywords in zip(tables[:-1], settings, strict=True):
        to_tfrecord(table, root, append=True, **keywords)
    return by_id(pa.concat_tables(tables).to_pandas(types_mapper=pd.ArrowDtype))


# What happens to a column file. "other" receives the content of the column file of another data file.
DAMAGES: dict[str, Callable[[Path, Path], Any]] = {
    "intact": lambda path, other: None,
    "gone": lambda path, other: path.unlink(),
    "empty": lambda path, other: path.write_bytes(b""),
    "truncated": lambda path, other: path.write_bytes(path.read_bytes()[:-20]),
    "flipped": lambda path, other: path.write_bytes(flipped(path.read_bytes())),
    "of another file": lambda path, other: path.write_bytes(other.read_bytes()),
}


def flipped(data: bytes) -> bytes:
    return bytes([*data[:40], data[40] ^ 4, *data[41:]])


@pytest.mark.usefixtures("column_files_of_all")
@pytest.mark.parametrize("damage", DAMAGES)
def test_files_of_all_settings_have_the_same_rows_after_damage_of_their_column_files(
    tmp_path: Path, damage: str
) -> None:
    root = tmp_path / "data"
    expected = mixed(root)
    paths = sorted({root / file.columns.path for file in Snapshot.open(root).files if file.columns})
    assert len(paths) >= 5
    for path, other in zip(paths, [*paths[1:], paths[0]], strict=True):
        DAMAGES[damage](path, other)
    assert by_id(read_tfrecord(root).compute()) == expected
    labels = by_id(read_tfrecord(root, columns=["id", "label"]).compute())
    assert labels == {number: {"label": row["label"]} for number, row in expected.items()}
    assert len(read_tfrecord(root)) == len(expected)
    dogs = read_tfrecord(root, filters=[("label", "==", "dog"), ("id", "<", 60)]).compute()
    assert by_id(dogs) == {n: row for n, row in expected.items() if row["label"] == "dog" and n < 60}
    batches = open_dataset(root, columns=["id", "label"]).batches(5)
    assert by_id(pa.Table.from_batches(batches).to_pandas(types_mapper=pd.ArrowDtype)) == labels
    open_dataset(root).compact()
    assert by_id(read_tfrecord(root).compute()) == expected
    assert ["caption", "id", "label"] in [columns for _, columns in stored_columns(root)]
