"""Batches from DataLoader workers: the same elements as without workers, in few buffers, without leaks.

Modules: feed.workers, feed.torch.
"""

import copy
import gc
import os
import pickle
from collections.abc import Iterator
from decimal import Decimal
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import multiprocessing  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import dask_tfrecord  # noqa: E402
from dask_tfrecord.feed.torch import TFRecordBatches, TFRecordTable, to_tensors  # noqa: E402
from dask_tfrecord.feed.workers import Packed  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning",
    "ignore:.*prototype stage.*",
    "ignore:.*pin_memory.*no accelerator.*",
    "ignore:Sparse.*",
    "ignore:This DataLoader will create",
)

ROWS = 10

TYPES = {
    "bool": pa.array([True, False] * 5),
    "int8": pa.array(range(ROWS), pa.int8()),
    "uint16": pa.array(range(ROWS), pa.uint16()),
    "int64": pa.array([2**62 + i for i in range(ROWS)]),
    "missing": pa.array([None, *range(1, ROWS)], pa.int32()),
    "half": pa.array(np.arange(ROWS, dtype=np.float16)),
    "float": pa.array([0.5, None] * 5, pa.float32()),
    "double": pa.array(np.arange(ROWS) / 4),
    "text": pa.array(["a", None, "ü", "", "long" * 50] * 2),
    "bytes": pa.array([b"\x01\x02", b"", None, b"\x03", b"x" * 70] * 2),
    "large": pa.array([bytes([i]) * 100_000 for i in range(ROWS)]),
    "ragged": pa.array([[1, 2], [], None, [3], [4, 5, 6]] * 2, pa.list_(pa.int64())),
    "empty": pa.array([[]] * ROWS, pa.list_(pa.float32())),
    "vectors": pa.array(
        [[[1, 2]], [], [[3, 4], [5, 6]], [], [[7, 8]]] * 2, pa.list_(pa.list_(pa.int64(), 2))
    ),
    "deep": pa.array([[[1], [2, 3]], [], [[]], [[4]], []] * 2, pa.list_(pa.list_(pa.int64()))),
    "fixed": pa.array([[i, i / 2] for i in range(ROWS)], pa.list_(pa.float32(), 2)),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(ROWS * 6.0).reshape(ROWS, 2, 3)),
    "wide": pa.array([np.full(20_000, i, "float32") for i in range(ROWS)], pa.list_(pa.float32(), 20_000)),
    "time": pa.array(range(ROWS), pa.timestamp("ms")),
    "price": pa.array([Decimal("29.99")] * ROWS, pa.decimal128(9, 2)),
    "words": pa.array([["a"], [], ["b", "c"], [], ["d"]] * 2),
    "category": pa.array(["r", "g"] * 5).dictionary_encode(),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("messages") / "types")
    dask_tfrecord.to_tfrecord(pa.table(TYPES), path, record_type="example", lossy="allow")
    return path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("messages") / "numbers")
    dask_tfrecord.to_tfrecord(pa.table({"id": range(1000), "x": np.arange(1000, dtype="f4") / 2}), path)
    return path


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = multiprocessing.get_sharing_strategy()
    multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    multiprocessing.set_sharing_strategy(before)


def sent(element: Any) -> Any:
    """Send an element as a DataLoader worker does, to this process."""
    return pickle.loads(ForkingPickler.dumps(element))


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.layout, found.requires_grad) == (
            expected.dtype,
            expected.layout,
            expected.requires_grad,
        )
        if expected.is_nested:
            assert_same(list(found.unbind()), list(expected.unbind()))
            assert found.to_padded_tensor(0).shape == expected.to_padded_tensor(0).shape
        elif expected.layout is torch.strided:
            assert (found.shape, found.stride()) == (expected.shape, expected.stride())
            assert torch.equal(found.nan_to_num(), expected.nan_to_num())
        else:
            assert torch.equal(found.to_dense(), expected.to_dense())
    else:
        assert found == expected


@pytest.mark.parametrize("kind", ["batches", "table"])
def test_elements_of_every_type_are_those_without_workers(dataset: str, strategy: str, kind: str) -> None:
    fill = {"missing": -1}

    def loader(workers: int) -> Any:
        options = {"num_workers": workers, "pin_memory": workers == 1}
        if kind == "batches":
            return DataLoader(TFRecordBatches(dataset, 7, fill_nulls=fill), batch_size=None, **options)
        table = TFRecordTable(dataset, fill_nulls=fill)
        return DataLoader(table, 7, collate_fn=table.collate, **options)

    expected = list(loader(0))
    assert [len(batch["text"]) for batch in expected] == [7, 3]
    for workers in (1, 2):
        assert_same(list(loader(workers)), expected)


def odd_tensors() -> dict[str, Any]:
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(2, 1)], layout=torch.jagged)
    return {
        "scalar": torch.tensor(3.5),
        "none": torch.empty(0, 4, dtype=torch.bfloat16),
        "column_major": torch.arange(6).reshape(2, 3).t(),
        "part": torch.arange(100)[10:20],
        "complex": torch.tensor([1 + 2j]),
        "gradient": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "transposed": ragged,
        "mixed": [torch.ones(2, dtype=torch.uint8), torch.ones(2)],
        "pieces": [torch.ones(2, dtype=torch.uint8), torch.ones(0, dtype=torch.uint8)],
        "images": [torch.ones(2, 2, dtype=torch.uint8)],
        "nothing": [],
        "rest": {"a": (1, "b"), "c": None},
    }


def test_every_tensor_of_a_conversion_arrives_as_it_was() -> None:
    batch = odd_tensors()
    assert_same(sent(Packed(batch)), batch)
    assert sent(Packed()) == {}


def test_the_result_of_convert_arrives_as_it_was(numbers: str) -> None:
    for convert in (
        lambda batch: {"sum": batch["id"].to_numpy().sum(), **to_tensors(batch)},
        lambda batch: (torch.tensor(batch["id"].to_pylist()), "label"),
        lambda batch: batch.num_rows,
        lambda batch: batch,
    ):
        batches = TFRecordBatches(numbers, 300, convert=convert)
        expected = list(DataLoader(batches, None))
        batches.set_epoch(0)
        assert_same(list(DataLoader(batches, None, num_workers=1)), expected)


def test_a_batch_that_the_worker_changes_arrives_changed(numbers: str) -> None:
    def collate(batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"] *= 2
        copied = copy.deepcopy(copy.copy(batch))
        copied["rows"] = len(copied.pop("id"))
        return copied

    loader = DataLoader(TFRecordBatches(numbers, 500), None, collate_fn=collate, num_workers=1)
    found = list(loader)
    assert [type(batch) for batch in found] == [dict, dict]
    assert [batch["rows"] for batch in found] == [500, 500]
    assert torch.cat([batch["x"] for batch in found]).tolist() == list(range(1000))


def test_a_received_batch_may_be_changed() -> None:
    found = sent(Packed(x=torch.arange(3), y=torch.arange(3)))
    found["x"] += 1
    assert (found["x"].tolist(), found["y"].tolist()) == ([1, 2, 3], [0, 1, 2])


@pytest.mark.parametrize(("size", "count"), [(1, 0), (10_000, 1), (1_000_000, 2)])
def test_a_message_has_few_shared_buffers(size: int, count: int) -> None:
    """A batch with two columns of ``size`` bytes, and 98 columns of which each has up to 10 kB."""
    batch = {f"c{i}": torch.ones(size if i < 2 else min(size, 10_000), dtype=torch.uint8) for i in range(100)}
    found = sent(Packed(batch))
    shared = {one.untyped_storage().data_ptr() for one in found.values() if one.is_shared()}
    assert len(shared) == (count if size < 1_000_000 else count + 1)
    assert_same(found, batch)


def test_labels_that_are_kept_do_not_keep_the_images() -> None:
    found = sent(Packed(image=[torch.ones(1 << 20, dtype=torch.uint8)], label=torch.ones(1)))
    assert found["label"].untyped_storage().nbytes() < 1000


def test_a_batch_without_shared_memory_travels_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any) -> None:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    batch = {f"c{i}": torch.arange(100_000) for i in range(3)} | {"x": torch.ones(10)}
    found = sent(Packed(batch))
    assert not any(one.is_shared() for one in found.values())
    assert_same(found, batch)


def test_a_slice_of_a_batch_is_sent_without_the_other_rows(numbers: str) -> None:
    words = pa.record_batch({"word": pa.array(["a", "b"] * 500).dictionary_encode(), "id": range(1000)})
    for convert in (lambda batch: batch, lambda _: words.slice(10, 2)):
        batches = TFRecordBatches(numbers, 10, convert=convert)
        found = next(iter(DataLoader(batches, None, num_workers=1)))
        assert found == convert(
            next(iter(DataLoader(TFRecordBatches(numbers, 10, convert=lambda b: b), None)))
        )
        assert len(pickle.dumps(found)) < 3000


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd")) + len(
        [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")]
    )


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not list open files")
def test_batches_leave_no_file_and_no_shared_memory(strategy: str, numbers: str) -> None:
    def convert(batch: pa.RecordBatch) -> dict[str, Any]:
        return {**to_tensors(batch), "image": torch.ones(600_000, dtype=torch.uint8)}

    loader = DataLoader(
        TFRecordBatches(numbers, 10, convert=convert), None, num_workers=2, persistent_workers=True
    )
    counts, batches = [], 0
    for _ in range(3):
        for batch in loader:
            assert len(batch["image"]) == 600_000
            batches += 1
        del batch
        counts.append(open_files())
    # Other threads of the process, such as those of a cluster, may open a file.
    assert counts[2] - counts[0] < batches // 3
