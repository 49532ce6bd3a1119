"""Lists with damaged bytes, cut lists and exchanged lists: each read raises an error or gives the right rows.

Modules: dataset.snapshot.list_files, dataset.snapshot.versions, files.bounded_parquet.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from list_rules import RULES
from strides import IS_QUICK

from dask_tfrecord import TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot import entry_log, list_files
from dask_tfrecord.dataset.snapshot.model import Snapshot

ROWS = 90


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset whose versions consist of a list for each write. Long lists are read in ranges."""
    monkeypatch.setattr(list_files, "_GROUP_ROWS", 8)
    monkeypatch.setattr(list_files, "TAIL_BYTES", 1 << 12)
    monkeypatch.setattr(list_files, "_SINGLE_TAILS", 1)
    monkeypatch.setattr(entry_log, "_kept_lists", RULES["delta"])
    for path in (tmp_path / "d", tmp_path / "other"):
        for start, stop, size in ((0, 80, 1), (80, 86, 2), (86, ROWS, 2)):
            numbers = range(start, stop)
            table = pa.table(
                {"n": numbers, "k": [n % 3 for n in numbers], "text": [f"{n:_>40}" for n in numbers]}
            )
            options = {"max_rows_per_file": size}
            to_tfrecord(table, path, append=True, partition_on="k", write_options=options)
    return tmp_path / "d"


def file(root: Path, number: int) -> Path:
    return root / "_tfrecord" / f"{number:08d}.parquet"


def files(root: Path) -> list[Any]:
    return [*Snapshot.open(root).files]


def rows(root: Path) -> list[int]:
    return sorted(read_tfrecord(root)["n"].compute())


def few(root: Path) -> list[int]:
    return sorted(read_tfrecord(root, filters=[("k", "==", 1), ("n", ">", 70)])["n"].compute())


READS: list[Callable[[Path], list[Any]]] = [files, rows, few, lambda root: [len(read_tfrecord(root))]]


def check(root: Path, expected: list[list[Any]]) -> int:
    """Read the dataset in several ways. Return how many reads have raised the error."""
    errors = 0
    for read, right in zip(READS, expected, strict=True):
        caught: TFRecordError | None = None
        try:
            found = read(root)
        except TFRecordError as error:
            caught = error
        if caught is None:
            assert found == right
        else:
            errors += 1
            assert ".parquet" in str(caught.path)
            assert caught.remedies
    return errors


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_byte_of_a_list_is_noticed_by_who_reads_it(root: Path, number: int) -> None:
    expected = [read(root) for read in READS]
    choose, path = random.Random(number), file(root, number)
    data, footer = path.read_bytes(), pq.read_metadata(path)
    chunks = [
        footer.row_group(group).column(at)
        for group in range(footer.num_row_groups)
        for at in range(footer.num_columns)
    ]
    for chunk in choose.sample(chunks, min(len(chunks), 4 if IS_QUICK else 12)):
        end = chunk.data_page_offset + chunk.total_compressed_size
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        at = choose.randrange(start, min(end, start + chunk.total_compressed_size))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :])
        check(root, expected)
    path.write_bytes(data)
    assert check(root, expected) == 0


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_cut_list_raises(root: Path, number: int) -> None:
    expected = [read(root) for read in READS]
    path, choose = file(root, number), random.Random(number)
    data = path.read_bytes()
    for size in (0, 3, len(data) - 1, choose.randrange(len(data))):
        path.write_bytes(data[:size])
        assert check(root, expected) >= 3, size


def test_an_exchanged_list_raises(root: Path) -> None:
    """The list of another version, or that of another dataset with files of the same names and sizes."""
    expected = [read(root) for read in READS]
    for number, other in (
        (1, file(root, 2)),
        (2, file(root, 1)),
        (2, file(root, 3)),
        (1, file(root / "../other", 1)),
    ):
        shutil.copy(file(root, number), root / "../copy")
        shutil.copy(other, file(root, number))
        assert check(root, expected) >= 3, (number, other)
        shutil.copy(root / "../copy", file(root, number))
    assert check(root, expected) == 0
    shutil.copy(file(root / "../other", 2), file(root, 2))
    with pytest.raises(TFRecordError, match="not a valid snapshot"):
        open_dataset(root).compact(target_bytes=1 << 20)
