"""Records that are read by number are those of the whole split, and errors are the same.

Modules: files.selected_records.
"""

import os
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_tfrecord import CorruptRecordError, row_selection, take, to_tfrecord
from dask_tfrecord.dataset.read import read_task
from dask_tfrecord.files import file_writer, record_file, selected_records

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[None, "gzip"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files in each of two directories, with blocks of about 50 records."""
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 2_000)
    monkeypatch.setattr(row_selection, "BLOCK_BYTES", 1)
    frame = pd.DataFrame({"n": range(1000), "text": [str(n) * (n % 9) for n in range(1000)]})
    frame["half"] = frame["n"] // 500
    to_tfrecord(
        dd.from_pandas(frame, npartitions=4), tmp_path, compression=request.param, partition_on=["half"]
    )
    return tmp_path


def outcome(root: Path, rows: Any, **read: Any) -> Any:
    try:
        return take(root, rows, **read).to_dict("list")
    except Exception as error:  # the error is compared
        return type(error), str(error)


def check_same(root: Path, rows: Any, **read: Any) -> Any:
    found = outcome(root, rows, **read)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_task, "_DENSE", 1000)
        assert found == outcome(root, rows, **read)
    return found


@pytest.mark.parametrize(
    "read",
    [
        {},
        {"columns": ["text"]},
        {"columns": ["half"]},
        {"verify_crc": False},
        {"on_corrupt": "skip"},
        {"filters": [("n", ">", 300)]},
        {"include_path_column": True},
    ],
    ids=str,
)
def test_selected_records_are_those_of_the_whole_split(root: Path, read: dict[str, Any]) -> None:
    for count in (1, 10, 400):
        check_same(root, np.random.default_rng(count).integers(0, 600, count), **read)


def test_selected_records_of_several_batches_are_joined(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "WINDOW_BYTES", 500)
    monkeypatch.setattr(selected_records, "TABLE_BYTES", 1)
    check_same(root, range(0, 600, 10))


def test_other_records_are_not_decoded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_task, "read_split", None)
    assert take(root, [120, 380, 620])["n"].tolist() == [120, 380, 620]
    some_of_each_block = [*range(0, 500, 20)]
    assert take(root, some_of_each_block)["n"].tolist() == some_of_each_block


def test_a_damaged_record_raises_if_it_is_selected(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(50_000), "text": ["some text"] * 50_000})
    [file] = to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path).files
    path = tmp_path / file.path
    status, content = path.stat(), bytearray(path.read_bytes())
    row = 40_000
    at = [at for at in range(len(content)) if content[at : at + 9] == b"some text"][row]
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert check_same(tmp_path, [row])[0] is CorruptRecordError
    assert take(tmp_path, [row - 1, row + 1])["n"].tolist() == [row - 1, row + 1]
