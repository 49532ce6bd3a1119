"""An epoch from a store with DataLoader workers takes no more requests than without workers.

Modules: feed.torch, feed.rows.sources.
"""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from servers import LinkedStore

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

import dask_tfrecord  # noqa: E402
from dask_tfrecord.feed.rows import epoch_order  # noqa: E402
from dask_tfrecord.feed.torch import TFRecordBatches, TFRecordTable  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create", "ignore:.*prototype stage.*"
)

ROWS, FILES = 600, 12


@pytest.fixture(scope="module", params=["own", "foreign"])
def place(request: pytest.FixtureRequest, linked: LinkedStore) -> str:
    """Twelve files of this library, or the same files under names of another tool."""
    made = linked.new_place()
    frame = pd.DataFrame({"id": range(ROWS), "x": np.zeros(ROWS, "f4")})
    dask_tfrecord.to_tfrecord(
        frame, made, write_options={"max_rows_per_file": 50}, storage_options=linked.direct
    )
    if request.param == "own":
        return made
    foreign = linked.new_place()
    for number, path in enumerate(sorted(linked.fs.glob(f"{made}/part-*"))):
        linked.fs.copy(path, f"{foreign}/{number:03}.tfrecord")
    return foreign


def requests_of_epoch(linked: LinkedStore, loader: Any) -> Counter[str]:
    with linked.link.recording() as traffic:
        assert sorted(number for batch in loader for number in batch["id"].tolist()) == list(range(ROWS))
    return traffic.methods


@pytest.fixture(autouse=True)
def one_file_in_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_order, "_SEQUENTIAL_BYTES", 1 << 11)
    monkeypatch.setattr(epoch_order, "_SHUFFLED_BYTES", 1 << 11)


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_send_the_requests_of_one_process(linked: LinkedStore, place: str, shuffle: bool) -> None:
    """Workers send no requests for sizes, and both read only the files of the window in the middle."""
    buffer = {"shuffle_buffer": 100} if shuffle else {}
    batches = TFRecordBatches(place, 25, shuffle=shuffle, storage_options=linked.options, **buffer)
    alone = requests_of_epoch(linked, DataLoader(batches, None))
    assert list(alone) == ["GET"]
    assert alone["GET"] >= FILES
    found = requests_of_epoch(linked, DataLoader(batches, None, num_workers=2))
    assert list(found) == ["GET"]
    assert found["GET"] <= alone["GET"] + (4 if shuffle else 0)
    assert batches.statistics.requests == found["GET"]


def test_a_worker_that_is_no_fork_sends_the_requests_of_one_process(linked: LinkedStore, place: str) -> None:
    batches = TFRecordBatches(place, 25, storage_options=linked.options)
    alone = requests_of_epoch(linked, DataLoader(batches, None))
    loader = DataLoader(batches, None, num_workers=1, multiprocessing_context="spawn")
    assert requests_of_epoch(linked, loader) == alone


def test_workers_of_a_table_request_each_block_once(linked: LinkedStore, place: str) -> None:
    table = TFRecordTable(place, storage_options=linked.options)
    loader = DataLoader(table, 25, collate_fn=table.collate, num_workers=2)
    found = requests_of_epoch(linked, loader)
    if linked.fs.glob(f"{place}/part-*"):  # a file of another tool is looked at again after a second
        assert list(found) == ["GET"]
    assert found["GET"] <= 2 * 2 * FILES
    assert table.statistics.requests == found["GET"]
    assert table.statistics.bytes_received > 0
