"""`take`: rows by their numbers, from no more bytes than the blocks that hold them.

Modules: row_selection.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, row_selection, take, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files import file_writer
from dask_tfrecord.files.storage import open_file

ROWS = 1_000
COMPRESSIONS = [None, "gzip", "zlib", "zstd", "bz2"]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    data = [rng.bytes(int(size)) for size in rng.integers(300, size=ROWS)]
    return pd.DataFrame(
        {
            "n": pd.array(range(ROWS), pd.ArrowDtype(pa.int64())),
            "data": pd.array(data, pd.ArrowDtype(pa.binary())),
            "list": pd.array([[n] * (n % 3) for n in range(ROWS)], pd.ArrowDtype(pa.list_(pa.int64()))),
            "kind": pd.Categorical([f"kind {n // 300}" for n in range(ROWS)]),
        }
    )


@pytest.fixture(scope="module", params=COMPRESSIONS)
def root(
    request: pytest.FixtureRequest, frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Three files of many small blocks."""
    root = tmp_path_factory.mktemp("take") / "data"
    ddf = dd.from_pandas(frame, npartitions=3)
    with pytest.MonkeyPatch.context() as patched, dask.config.set(scheduler="sync"):
        patched.setattr(file_writer, "BLOCK_BYTES", 2_000)
        to_tfrecord(ddf, root, compression=request.param)
    return root


pytestmark = [pytest.mark.filterwarnings("ignore:.*TensorFlow"), pytest.mark.usefixtures("one_thread")]


@pytest.fixture(autouse=True, scope="module")
def _split_at_every_block() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_selection, "BLOCK_BYTES", 1)
        yield


@given(st.lists(st.integers(-ROWS, ROWS - 1), max_size=60))
def test_rows_are_those_that_numpy_would_take(root: Path, frame: pd.DataFrame, indices: list[int]) -> None:
    found = take(root, indices)
    assert found["n"].tolist() == np.arange(ROWS)[np.array(indices, int)].tolist()
    expected = frame.iloc[indices].reset_index(drop=True)
    assert found["kind"].tolist() == expected["kind"].tolist()
    pd.testing.assert_frame_equal(found.drop(columns="kind"), expected.drop(columns="kind"))


@pytest.mark.parametrize("root", [None], indirect=True)
def test_dtypes_are_those_of_a_partition(root: Path) -> None:
    partition = read_tfrecord(root).compute()
    for indices in ([0, 1], [], range(ROWS)):
        found = take(root, indices)
        assert {name: str(dtype) for name, dtype in found.dtypes.items() if name != "kind"} == {
            name: str(dtype) for name, dtype in partition.dtypes.items() if name != "kind"
        }
        assert isinstance(found["kind"].dtype, pd.CategoricalDtype)


@pytest.mark.parametrize("root", [None], indirect=True)
@pytest.mark.parametrize(
    "indices",
    [
        np.array([3, -1], np.int8),
        np.array([3, 999], np.uint64),
        pd.Index([3, 999]),
        (3, 999),
        pd.Series([3, 999]),
    ],
)
def test_indices_may_be_any_integers(root: Path, indices: Any) -> None:
    assert take(root, indices)["n"].tolist() == [3, 999]


@pytest.mark.parametrize("root", [None], indirect=True)
def test_one_number_is_one_row_and_a_mask_is_its_true_rows(root: Path) -> None:
    assert take(root, 17)["n"].tolist() == [17]
    mask = np.arange(ROWS) % 400 == 7
    assert take(root, mask)["n"].tolist() == [7, 407, 807]


@pytest.mark.parametrize("root", [None], indirect=True)
@pytest.mark.parametrize(
    ("indices", "kind"),
    [
        *((one, IndexError) for one in ([0, ROWS], [-ROWS - 1], [2**63], [True], np.zeros(0, bool))),
        *((one, TFRecordError) for one in ([0.5], ["a"], [[1, 2]])),
    ],
)
def test_indices_that_name_no_row_raise(root: Path, indices: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=str(root)):
        take(root, indices)


@pytest.mark.parametrize("root", [None], indirect=True)
def test_out_of_range_names_the_row_and_the_number_of_rows(root: Path) -> None:
    with pytest.raises(IndexError, match="index 1000 is out of bounds for a dataset of 1,000 rows"):
        take(root, [5, 1000])


@pytest.mark.parametrize("root", [None, "gzip"], indirect=True)
def test_columns_are_projected(root: Path) -> None:
    assert list(take(root, [1, 2], columns=["kind", "n"]).columns) == ["kind", "n"]
    assert take(root, [1, 2], columns="n").tolist() == [1, 2]
    assert take(root, [1, 2, 2], columns=[]).shape == (3, 0)
    for columns, problem in ((["n", "n"], "more than once"), (["m"], "'m'")):
        with pytest.raises(SchemaError, match=problem):
            take(root, [1], columns=columns)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes of each read of a file."""
    counts: list[int] = []
    readinto = open_file.FileReader._read

    def counting(self: Any, *args: Any) -> int:
        counts.append(readinto(self, *args))
        return counts[-1]

    monkeypatch.setattr(open_file.FileReader, "_read", counting)
    return counts


def test_only_the_blocks_that_hold_the_rows_are_read(root: Path, read: list[int]) -> None:
    snapshot = Snapshot.open(root)
    file = snapshot.files[1]
    first = snapshot.files[0].records
    blocks = file.blocks
    assert len(blocks) > 10
    rows = [first + blocks[4].record + 2, first + blocks[4].record, first + blocks[7].record]
    assert take(root, rows)["n"].tolist() == rows
    assert sum(read) == sum(blocks[n + 1].offset - blocks[n].offset for n in (4, 7))


def test_the_last_row_reads_the_last_block_to_the_end_of_its_file(root: Path, read: list[int]) -> None:
    file = Snapshot.open(root).files[-1]
    assert take(root, -1)["n"].tolist() == [ROWS - 1]
    assert sum(read) == file.bytes - file.blocks[-1].offset


@pytest.mark.parametrize("root", [None], indirect=True)
def test_many_blocks_are_read_by_several_tasks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[int] = []
    each = row_selection.compute_each

    def counting(function: Any, arguments: Any, title: str) -> Any:
        tasks.append(len(arguments))
        return each(function, arguments, title)

    monkeypatch.setattr(row_selection, "compute_each", counting)
    assert take(root, [5, 6])["n"].tolist() == [5, 6]
    assert tasks == []
    assert take(root, range(ROWS)[::-1])["n"].tolist() == list(range(ROWS))[::-1]
    blocks = sum(len(file.blocks) for file in Snapshot.open(root).files)
    assert tasks == [-(-blocks // 16)]


def test_partition_columns_are_among_the_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(30), "key": ["a", "b", None] * 10})
    to_tfrecord(dd.from_pandas(frame, npartitions=2), tmp_path / "d", partition_on=["key"])
    every = read_tfrecord(tmp_path / "d", blocksize=None).compute().reset_index(drop=True)
    indices = [29, 0, 3, 3, -12]
    pd.testing.assert_frame_equal(take(tmp_path / "d", indices), every.iloc[indices].reset_index(drop=True))
    assert take(tmp_path / "d", [0], columns=["key"]).equals(every.loc[[0], ["key"]])


def test_files_that_others_wrote_are_indexed_first(tmp_path: Path) -> None:
    rows = [{"n": ("int64", [n])} for n in range(50)]
    for name, compression in (("a", None), ("b", "gzip")):
        (tmp_path / name).write_bytes(oracle.compress(oracle.features_file(rows), compression))
    with pytest.raises(FileNotFoundError, match=r"dask_tfrecord\.index\("):
        take(tmp_path, [3])
    dask_tfrecord.index(tmp_path)
    assert take(tmp_path, [3, 53, -1])["n"].tolist() == [3, 3, 49]
