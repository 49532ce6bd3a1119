"""With verify_crc=False, large values that no column needs are not read, and the rows stay the same.

Modules: files.record_file, files.storage.open_file.
"""

import os
import random
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import Buffer

from dask_tfrecord import FileChangedError, read_tfrecord, to_tfrecord
from dask_tfrecord.codec import SparseReader
from dask_tfrecord.files import record_file
from dask_tfrecord.files.storage import open_file
from dask_tfrecord.files.storage.open_file import FileReader

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = (0, 100, 33_000, 50_000, 600_000)


def images(random_: random.Random, count: int) -> pd.DataFrame:
    values = [None if size == 100 else bytes([size % 251]) * size for size in random_.choices(SIZES, k=count)]
    lists = [[float(n)] * (n % 3 * 9_000) for n in range(count)]
    return pd.DataFrame(
        {
            "image": pd.arrays.ArrowExtensionArray(pa.array(values, pa.binary())),
            "label": pd.array([n if n % 5 else None for n in range(count)], "Int64"),
            "vector": pd.arrays.ArrowExtensionArray(pa.array(lists, pa.list_(pa.float32()))),
            "text": [f"row {n}" for n in range(count)],
        }
    )


def outcome(root: Path, **read: Any) -> Any:
    try:
        return read_tfrecord(root, **read).compute().to_dict("list")
    except Exception as error:  # the error is compared
        return type(error), str(error)


def compare(root: Path, monkeypatch: pytest.MonkeyPatch, **read: Any) -> Any:
    """Read a dataset with and without the values that may be left out."""
    found = outcome(root, verify_crc=False, **read)
    with monkeypatch.context() as patch:
        patch.setattr(FileReader, "leave_out_values", lambda self, columns: None)
        assert repr(found) == repr(outcome(root, verify_crc=False, **read))
    return found


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sets(st.sampled_from(["image", "label", "vector", "text"]), max_size=3))
def test_rows_are_those_of_a_whole_read(
    tmp_path_factory: pytest.TempPathFactory, seed: int, columns: set[str]
) -> None:
    random_ = random.Random(seed)
    root = tmp_path_factory.mktemp("images")
    frame = images(random_, random_.randrange(1, 30))
    to_tfrecord(dd.from_pandas(frame, npartitions=random_.randrange(1, 3)), root)
    read: dict[str, Any] = {"columns": sorted(columns), "include_offset_column": True}
    if random_.randrange(2):
        read["use_snapshot"] = False
        read["blocksize"] = random_.choice([None, 200_000, 2_000_000])
    if not random_.randrange(3):
        read["filters"] = [("label", ">", 10)]
    if not random_.randrange(4):
        read["on_corrupt"] = "skip"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_file, "WINDOW_BYTES", random_.choice([64, 70_000, 1 << 22]))
        if not random_.randrange(3):
            file = random_.choice(sorted(root.glob("*.tfrecord")))
            os.truncate(file, random_.randrange(file.stat().st_size))
        compare(root, patch, **read)


def test_a_damaged_value_is_not_noticed_and_other_values_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = images(random.Random(1), 20)
    to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path)
    [file] = tmp_path.glob("*.tfrecord")
    content = bytearray(file.read_bytes())
    content[content.index(bytes([600_000 % 251]) * 600_000) + 300_000] ^= 1
    file.write_bytes(content)
    read: dict[str, Any] = {"columns": ["label", "text"], "use_snapshot": False}
    assert compare(tmp_path, monkeypatch, **read)["text"] == frame["text"].tolist()
    assert "checksum" in outcome(tmp_path, **read)[1]


@pytest.mark.parametrize(
    ("read", "is_sparse"),
    [
        ({"verify_crc": False}, True),
        ({"verify_crc": False, "use_snapshot": False}, True),
        ({}, False),
        ({"verify_crc": False, "on_corrupt": "skip"}, False),
    ],
    ids=str,
)
def test_values_are_left_out_if_nothing_is_checked_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: dict[str, Any], is_sparse: bool
) -> None:
    frame = images(random.Random(2), 30)
    to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path)
    left_out = 0

    class Counting(SparseReader):
        def readinto(self, out: Buffer) -> int:
            nonlocal left_out
            memoryview(out)[:] = b"\xfe" * len(memoryview(out))
            count = super().readinto(out)
            left_out += bytes(memoryview(out)[:count]).count(b"\xfe" * 10_000)
            return count

    monkeypatch.setattr(open_file, "SparseReader", Counting)
    read = {"columns": ["label"], **read}
    found = read_tfrecord(tmp_path, **read)["label"].compute()
    assert found.tolist() == frame["label"].tolist()
    assert (left_out > 0) == is_sparse


def test_a_file_that_is_cut_while_it_is_read_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_tfrecord(dd.from_pandas(images(random.Random(3), 60), npartitions=1), tmp_path)
    [file] = tmp_path.glob("*.tfrecord")
    before = FileReader.leave_out_values

    def cut(reader: FileReader, columns: list[str]) -> None:
        before(reader, columns)
        os.truncate(file, file.stat().st_size - 5)

    monkeypatch.setattr(FileReader, "leave_out_values", cut)
    with pytest.raises(FileChangedError, match="bytes when the dataset was listed"):
        read_tfrecord(tmp_path, columns=["label"], verify_crc=False).compute()
