"""Arrow Flight: every type, every shard and epoch, and errors that reach the client.

Modules: feed.flight.
"""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dask_tfrecord import TFRecordError, to_tfrecord

flight = pytest.importorskip("pyarrow.flight", reason="this build of pyarrow has no Flight")

from dask_tfrecord.feed.flight import serve  # noqa: E402  # needs pyarrow.flight

ROWS = 1003
PATH = flight.FlightDescriptor.for_path("dataset")


def read(server: Any, descriptor: Any = PATH) -> list[pa.Table]:
    with flight.connect(server.location) as client:
        info = client.get_flight_info(descriptor)
        return [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]


def ids(tables: list[pa.Table]) -> list[int]:
    return [number for table in tables for number in table["id"].to_pylist()]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_client_gets_all_rows_with_their_nulls(written: Path, shards: int, tmp_path: Path) -> None:
    location = f"grpc+unix://{tmp_path}/flight" if shards == 1 else "grpc://127.0.0.1:0"
    with serve(written, location, shards=shards, batch_size=100) as server:
        tables = read(server)
        with flight.connect(server.location) as client:
            (listed,) = client.list_flights()
            assert listed.total_records == ROWS
            assert client.get_schema(PATH).schema == tables[0].schema
        if shards == 3:
            message = "cannot be opened: Address already in use.*choose another port"
            with pytest.raises(TFRecordError, match=message):
                serve(written, server.location)
    assert len(tables) == shards
    assert ids(tables) == list(range(ROWS))
    assert pa.concat_tables(tables)["x"].to_pylist()[:6] == [[0], None, None, None, None, [5]]


def test_epochs_are_chosen_by_the_client(written: Path) -> None:
    with serve(written, shards=2, shuffle=True, seed=1) as server:
        first, again = read(server), read(server)
        second = read(server, flight.FlightDescriptor.for_command(b'{"epoch": 1}'))
    assert ids(first) == ids(again) != ids(second)
    assert sorted(ids(second)) == list(range(ROWS))


@pytest.mark.parametrize(
    "ticket", [b"{}", b"rows", b'{"shard": 2, "epoch": 0}', b'{"shard": 0, "epoch": -1}']
)
def test_a_wrong_ticket_is_refused(written: Path, ticket: bytes) -> None:
    with (
        serve(written, shards=2) as server,
        flight.connect(server.location) as client,
        pytest.raises(pa.ArrowException, match=r"not understood|no shard 2"),
    ):
        client.do_get(flight.Ticket(ticket)).read_all()


def test_a_location_that_cannot_be_opened_is_named(written: Path) -> None:
    with pytest.raises(TFRecordError, match="'nowhere' cannot be opened"):
        serve(written, "nowhere")
    with pytest.raises(TFRecordError, match="shards"):
        serve(written, shards=ROWS + 1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flight") / "dataset"
    gaps = pa.array([None if i % 5 else [i] for i in range(ROWS)], pa.list_(pa.int32()))
    to_tfrecord(pa.table({"id": range(ROWS), "x": gaps}), path, write_options={"max_rows_per_file": 400})
    return path


def test_a_dataset_that_was_overwritten_makes_the_client_raise(written: Path, tmp_path: Path) -> None:
    path = shutil.copytree(written, tmp_path / "dataset")
    with serve(path) as server, flight.connect(server.location) as client:
        info = client.get_flight_info(PATH)
        to_tfrecord(pa.table({"id": [1]}), path, overwrite=True)
        # The class depends on whether the read fails before or while the stream runs.
        with pytest.raises((OSError, pa.ArrowException), match="removed after it was listed"):
            client.do_get(info.endpoints[0].ticket).read_all()
