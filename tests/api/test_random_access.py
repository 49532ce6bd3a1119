"""`take`: rows by their numbers, from no more bytes than the blocks that hold them.

Modules: collection.numbered_rows.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.collection import numbered_rows
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.feed import RecordTable
from dask_tfrecord.files import file_writer
from dask_tfrecord.storage import location

ROWS = 1_000
_RANDOM = np.random.default_rng(3)
FRAME = pd.DataFrame(
    {
        "n": pd.array(range(ROWS), pd.ArrowDtype(pa.int64())),
        "data": pd.array(
            [_RANDOM.bytes(int(n)) for n in _RANDOM.integers(300, size=ROWS)], pd.ArrowDtype(pa.binary())
        ),
        "list": pd.array([[n] * (n % 3) for n in range(ROWS)], pd.ArrowDtype(pa.list_(pa.int64()))),
        "kind": pd.Categorical([f"kind {n // 300}" for n in range(ROWS)]),
    }
)

pytestmark = [pytest.mark.filterwarnings("ignore:.*TensorFlow"), pytest.mark.usefixtures("one_thread")]
plain = pytest.mark.parametrize("root", [None], indirect=True)


@pytest.fixture(scope="module", params=[None, "gzip", "zlib", "zstd", "bz2"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three files of many small blocks. Each block is read by a task of its own."""
    root = tmp_path_factory.mktemp("take") / "data"
    with pytest.MonkeyPatch.context() as patched, dask.config.set(scheduler="sync"):
        patched.setattr(file_writer, "BLOCK_BYTES", 2_000)
        patched.setattr(numbered_rows, "BLOCK_BYTES", 1)
        to_tfrecord(dd.from_pandas(FRAME, npartitions=3), root, compression=request.param)
        yield root


@settings(max_examples=settings.default.max_examples // 4)
@given(st.lists(st.integers(-ROWS, ROWS - 1), max_size=60))
def test_rows_are_those_that_numpy_would_take(root: Path, indices: list[int]) -> None:
    found = open_dataset(root).take(indices).to_pandas(types_mapper=pd.ArrowDtype)
    assert found["n"].tolist() == np.arange(ROWS)[np.array(indices, int)].tolist()
    expected = FRAME.iloc[indices].reset_index(drop=True)
    assert found["kind"].tolist() == expected["kind"].tolist()
    pd.testing.assert_frame_equal(found.drop(columns="kind"), expected.drop(columns="kind"))


@plain
def test_types_are_those_of_the_dataset(root: Path) -> None:
    for indices in ([0, 1], [], range(ROWS)):
        assert open_dataset(root).take(indices).schema == open_dataset(root).schema


MASK = np.arange(ROWS) % 400 == 7
INTEGERS = [np.array([3, -1], np.int8), np.array([3, 999], np.uint64), pd.Index([3, 999]), (3, 999)]


@plain
@pytest.mark.parametrize(
    ("indices", "rows"),
    [*((one, [3, 999]) for one in (*INTEGERS, pd.Series([3, 999]))), (MASK, [7, 407, 807])],
)
def test_indices_may_be_any_integers_or_a_mask(root: Path, indices: Any, rows: list[int]) -> None:
    assert open_dataset(root).take(indices)["n"].to_pylist() == rows


@plain
@pytest.mark.parametrize(
    ("indices", "kind"),
    [
        *((one, IndexError) for one in ([0, ROWS], [-ROWS - 1], [2**63], [True], np.zeros(0, bool))),
        *((one, TFRecordError) for one in ([0.5], ["a"], [[1, 2]])),
    ],
)
def test_indices_that_name_no_row_raise(root: Path, indices: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=str(root)) as caught:
        open_dataset(root).take(indices)
    problem = "index 1000 is out of bounds for a dataset of 1,000 rows"
    assert (problem in str(caught.value)) == (indices == [0, ROWS] if isinstance(indices, list) else False)


@pytest.mark.parametrize("root", [None, "gzip"], indirect=True)
def test_columns_are_projected(root: Path) -> None:
    assert open_dataset(root).take([1, 2], columns=["kind", "n"]).column_names == ["kind", "n"]
    assert open_dataset(root).take([1, 2], columns="n").to_pydict() == {"n": [1, 2]}
    assert open_dataset(root).take([1, 2, 2], columns=[]).shape == (3, 0)
    for columns, problem in ((["n", "n"], "more than once"), (["m"], "'m'")):
        with pytest.raises(SchemaError, match=problem):
            open_dataset(root).take([1], columns=columns)


def test_only_the_blocks_that_hold_the_rows_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = location.FileReader._read

    def counting(self: Any, *args: Any) -> int:
        read.append(original(self, *args))
        return read[-1]

    monkeypatch.setattr(location.FileReader, "_read", counting)
    first, file, last = Snapshot.open(root).files
    blocks = file.blocks
    assert len(blocks) > 10
    rows = [first.records + blocks[at].record + more for at, more in ((4, 2), (4, 0), (7, 0))]
    assert open_dataset(root).take(rows)["n"].to_pylist() == rows
    assert sum(read) == sum(blocks[n + 1].offset - blocks[n].offset for n in (4, 7))
    read.clear()
    assert open_dataset(root).take([-1])["n"].to_pylist() == [ROWS - 1]
    assert sum(read) == last.bytes - last.blocks[-1].offset


@plain
def test_many_blocks_are_read_by_several_tasks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[int] = []
    each = numbered_rows.compute_each

    def counting(function: Any, arguments: Any) -> Any:
        tasks.append(len(arguments))
        return each(function, arguments)

    monkeypatch.setattr(numbered_rows, "compute_each", counting)
    assert open_dataset(root).take([5, 6])["n"].to_pylist() == [5, 6]
    assert tasks == []
    assert open_dataset(root).take(range(ROWS)[::-1])["n"].to_pylist() == list(range(ROWS))[::-1]
    blocks = sum(len(file.blocks) for file in Snapshot.open(root).files)
    assert tasks == [-(-blocks // 16)]


def test_partition_columns_are_among_the_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(30), "key": ["a", "b", None] * 10})
    to_tfrecord(dd.from_pandas(frame, npartitions=2), tmp_path, partition_on=["key"])
    every = read_tfrecord(tmp_path, blocksize=None, dtype_backend="pyarrow").compute().reset_index(drop=True)
    indices = [29, 0, 3, 3, -12]
    found = open_dataset(tmp_path).take(indices).to_pandas(types_mapper=pd.ArrowDtype)
    pd.testing.assert_frame_equal(found, every.iloc[indices].reset_index(drop=True))
    assert open_dataset(tmp_path).take([0], columns=["key"]).to_pydict() == {"key": ["a"]}


def test_rows_of_other_tools_are_counted_first(tmp_path: Path) -> None:
    rows = [{"n": ("int64", [n])} for n in range(50)]
    for name, compression in (("a", None), ("b", "gzip")):
        (tmp_path / name).write_bytes(oracle.compress(oracle.features_file(rows), compression))
    assert open_dataset(tmp_path).take([3, 53, -1])["n"].to_pylist() == [3, 3, 49]
    dask_tfrecord.open_dataset(tmp_path).add_snapshot()
    assert open_dataset(tmp_path).take([3, 53, -1])["n"].to_pylist() == [3, 3, 49]


@plain
@pytest.mark.parametrize("index", [5, np.int64(5), np.array(5), True])
def test_one_number_is_no_list_of_indices_and_head_is_named(root: Path, index: Any) -> None:
    found = open_dataset(root)
    for take in (found.take, found.scanner().take, RecordTable(str(root)).batch):
        with pytest.raises(TFRecordError, match=r"call head\("):
            take(index)


@plain
@pytest.mark.parametrize(
    ("index", "advice"),
    [
        (-1, "pass [-1] for the row with this index"),
        (
            np.int64(5),
            "pass [5] for the row with this index, or call head(5) of a Dataset for the first rows",
        ),
        (slice(3), "pass a range, such as range(0, 5) for the first rows"),
        *((one, "pass a list of integers, such as [0, 1]") for one in (2.5, "3", None, {1, 2})),
    ],
)
def test_advice_for_a_single_index_works_as_written(root: Path, index: Any, advice: str) -> None:
    for take in (open_dataset(root).take, open_dataset(root).scanner().take, RecordTable(str(root)).batch):
        with pytest.raises(TFRecordError, match=re.escape(f"; {advice}") + "$"):
            take(index)


@pytest.mark.parametrize(
    "indices", [[True] * 3 + [False] * (ROWS - 3), np.arange(ROWS) % 7 == 0, [-1, 0], [], [2, -2, 2]]
)
@pytest.mark.parametrize("root", [None, "gzip"], indirect=True)
def test_masks_and_negative_indices_mean_the_same_in_each_take(root: Path, indices: Any) -> None:
    dataset = open_dataset(root)
    expected = dataset.take(indices)["n"].to_pylist()
    fragment = next(iter(dataset.get_fragments()))
    assert fragment.count_rows() == ROWS
    for found in (
        dataset.take(indices, {"n": pc.field("n")}),
        dataset.scanner().take(indices),
        fragment.take(indices),
    ):
        assert found["n"].to_pylist() == expected


@plain
@pytest.mark.parametrize("indices", [[0.5], ["1"], [[1, 2]], [None], pa.array([1, None]), [True], [ROWS]])
def test_a_scan_refuses_indices_that_a_dataset_refuses(root: Path, indices: Any) -> None:
    dataset = open_dataset(root)
    with pytest.raises((TFRecordError, IndexError)) as refused:
        dataset.take(indices)
    for take in (dataset.scanner().take, lambda one: dataset.take(one, {"n": pc.field("n")})):
        with pytest.raises(refused.type):
            take(indices)


@plain
@pytest.mark.parametrize("count", [2.5, "3", None, [1]])
def test_head_takes_integers_only(root: Path, count: Any) -> None:
    for one in (open_dataset(root), open_dataset(root).scanner()):
        with pytest.raises(TFRecordError, match=f"num_rows= is not a int.*got {type(count).__name__}"):
            one.head(count)


@plain
@pytest.mark.parametrize("count", [0, 3, ROWS + 1, -1, -990, -ROWS, -ROWS - 1])
def test_head_returns_the_rows_that_pandas_returns(root: Path, count: int) -> None:
    dataset = open_dataset(root, columns="n")
    assert dataset.head(count)["n"].to_pylist() == FRAME["n"].head(count).tolist()
    few = dataset.filter(pc.field("n") < 10)
    assert few.head(count)["n"].to_pylist() == FRAME["n"][:10].head(count).tolist()
