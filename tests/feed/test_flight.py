"""Arrow Flight: every type, every shard and epoch, and errors that reach the client.

Modules: feed.flight.
"""

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import TFRecordError

flight = pytest.importorskip("pyarrow.flight", reason="this build of pyarrow has no Flight")

from dask_tfrecord.feed.flight import serve  # noqa: E402  # needs pyarrow.flight

ROWS = 1003
PATH = flight.FlightDescriptor.for_path("dataset")


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    path = str(tmp_path / "dataset")
    gaps = pd.array([None if i % 5 else [i] for i in range(ROWS)], pd.ArrowDtype(pa.list_(pa.int32())))
    frame = pd.DataFrame({"id": np.arange(ROWS), "x": gaps})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=3), path)
    return path


def read(server: Any, descriptor: Any = PATH) -> list[pa.Table]:
    """The rows of each endpoint."""
    with flight.connect(server.location) as client:
        info = client.get_flight_info(descriptor)
        return [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]


def ids(tables: list[pa.Table]) -> list[int]:
    return [number for table in tables for number in table["id"].to_pylist()]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_client_gets_all_rows_with_their_nulls(dataset: str, shards: int) -> None:
    with serve(dataset, shards=shards, batch_size=100) as server:
        tables = read(server)
        with flight.connect(server.location) as client:
            (listed,) = client.list_flights()
            assert listed.total_records == ROWS
            assert client.get_schema(PATH).schema == tables[0].schema
    assert len(tables) == shards
    assert ids(tables) == list(range(ROWS))
    assert pa.concat_tables(tables)["x"].to_pylist()[:6] == [[0], None, None, None, None, [5]]


def test_epochs_are_chosen_by_the_client(dataset: str) -> None:
    with serve(dataset, shards=2, shuffle=1) as server:
        first, again = read(server), read(server)
        second = read(server, flight.FlightDescriptor.for_command(b'{"epoch": 1}'))
    assert ids(first) == ids(again) != ids(second)
    assert sorted(ids(second)) == list(range(ROWS))


@pytest.mark.parametrize(
    "ticket", [b"{}", b"rows", b'{"shard": 2, "epoch": 0}', b'{"shard": 0, "epoch": -1}']
)
def test_a_wrong_ticket_is_refused(dataset: str, ticket: bytes) -> None:
    with (
        serve(dataset, shards=2) as server,
        flight.connect(server.location) as client,
        pytest.raises(pa.ArrowException, match=r"not understood|no shard 2"),
    ):
        client.do_get(flight.Ticket(ticket)).read_all()


def test_a_failing_producer_makes_the_client_raise() -> None:
    def fail(part: pd.DataFrame) -> pd.DataFrame:
        if part["id"].max() > 900:
            raise RuntimeError("the worker was lost")
        return part

    ddf = dd.from_pandas(pd.DataFrame({"id": np.arange(ROWS)}), npartitions=3)
    ddf = ddf.map_partitions(fail, meta=ddf._meta)
    with serve(ddf, prefetch=0) as server, pytest.raises(Exception, match="the worker was lost"):
        read(server)


def test_a_dataset_that_was_overwritten_is_refused(dataset: str) -> None:
    with serve(dataset) as server, flight.connect(server.location) as client:
        info = client.get_flight_info(PATH)
        dask_tfrecord.to_tfrecord(dd.from_dict({"id": [1]}, npartitions=1), dataset, overwrite=True)
        # The class depends on whether the read fails before or while the stream runs.
        with pytest.raises((OSError, pa.ArrowException), match="removed after the dataset was listed"):
            client.do_get(info.endpoints[0].ticket).read_all()


def test_a_location_that_cannot_be_opened_is_named(dataset: str) -> None:
    with pytest.raises(TFRecordError, match="'nowhere' cannot be opened"):
        serve(dataset, "nowhere")
    with pytest.raises(TFRecordError, match="shards"):
        serve(dataset, shards=ROWS + 1)


def test_a_used_port_is_called_used(dataset: str) -> None:
    with (
        serve(dataset) as server,
        pytest.raises(TFRecordError, match=r"cannot be opened: Address already in use.*choose another port"),
    ):
        serve(dataset, server.location)


def test_a_unix_socket_is_a_location(dataset: str, tmp_path: Path) -> None:
    with serve(dataset, f"grpc+unix://{tmp_path}/flight") as server:
        assert ids(read(server)) == list(range(ROWS))
