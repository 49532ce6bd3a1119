"""Records without features, files without records and directories without files work everywhere.

Modules: dataset.read.inferred_schema.
"""

from pathlib import Path
from typing import Any

import oracle
import pytest

from dask_tfrecord import SchemaError, Snapshot, index, read_tfrecord, take, to_tfrecord, verify

pytestmark = pytest.mark.usefixtures("one_thread")

# The number of records of each file.
RECORDS = [2, 0, 3]


def fill(root: Path, *, hive: bool, records: list[int]) -> Path:
    for number, count in enumerate(records):
        path = root / (f"k={number}/a.tfrecord" if hive else f"{number}.tfrecord")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(oracle.features_file([{}] * count))
    return root


@pytest.mark.parametrize("hive", [False, True])
@pytest.mark.parametrize("records", [RECORDS, [0, 0]], ids=["records", "no records"])
def test_an_index_of_records_without_features_reads_as_the_files_do(
    tmp_path: Path, hive: bool, records: list[int]
) -> None:
    root = fill(tmp_path / "files", hive=hive, records=records)
    before = read_tfrecord(root).compute()
    snapshot = index(root)
    assert (snapshot.records, len(snapshot.files)) == (sum(records), len(records))
    assert Snapshot.open(root).records == sum(records)
    ddf = read_tfrecord(root)
    assert ddf.compute().equals(before)
    assert len(ddf) == len(before) == sum(records)
    assert read_tfrecord(root, columns=[]).compute().shape == (sum(records), 0)
    assert list(ddf.columns) == (["k"] if hive else [])
    assert take(root, []).shape == (0, len(ddf.columns))
    report = verify(root)
    assert report["records"].tolist() == records
    assert report["agrees"].all()
    if sum(records):
        assert take(root, [-1, 0]).shape == (2, len(ddf.columns))
    else:
        with pytest.raises(IndexError, match="0 rows"):
            take(root, [0])


def test_partition_columns_alone_filter_and_prune(tmp_path: Path, opened: list[str]) -> None:
    root = fill(tmp_path / "files", hive=True, records=RECORDS)
    index(root)
    ddf = read_tfrecord(root)
    opened.clear()
    assert len(read_tfrecord(root, filters=[("k", ">", 1)])) == len(ddf[ddf.k > 1]) == 3
    assert read_tfrecord(root, filters=[("k", "==", 1)]).compute()["k"].tolist() == []
    assert opened == []
    assert ddf[ddf.k == 0].compute()["k"].tolist() == [0, 0]


def test_without_columns_there_is_nothing_to_filter_or_to_write(tmp_path: Path) -> None:
    root = fill(tmp_path / "files", hive=False, records=RECORDS)
    index(root)
    with pytest.raises(SchemaError, match="no column is named 'k'; there are none"):
        read_tfrecord(root, filters=[("k", "==", 1)])
    with pytest.raises(SchemaError, match="there are no columns to store"):
        to_tfrecord(read_tfrecord(root), tmp_path / "copy")


@pytest.mark.parametrize("call", [read_tfrecord, index, verify])
def test_a_directory_without_files_is_named(tmp_path: Path, call: Any) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        call(tmp_path)


def test_records_of_bytes_that_are_empty_are_indexed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(oracle.frame(b"") * 3)
    assert index(tmp_path, record_type="bytes").records == 3
    assert read_tfrecord(tmp_path).compute()["record"].tolist() == [b""] * 3
