"""Uses of the package inside a task of a cluster. Each function returns the number of its rows."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

import arrow_clients
import pyarrow as pa
from pyarrow.flight import FlightDescriptor, connect

import dask_tfrecord
from dask_tfrecord.feed import RecordTable, flight, iter_batches, stream


def _rows(batches: Any) -> int:
    return sum(batch.num_rows for batch in batches)


def _collection(path: str) -> Any:
    return dask_tfrecord.read_tfrecord(path, blocksize=1)


def batches(path: str) -> int:
    return _rows(iter_batches(_collection(path), 7))


def batches_with_shuffle(path: str) -> int:
    return _rows(iter_batches(_collection(path), 7, shuffle=True, prefetch=4))


def batches_of_persisted_rows(path: str) -> int:
    return _rows(iter_batches(_collection(path).persist(), 7))


def batches_in_another_thread(path: str) -> int:
    found: list[int] = []
    iterator = iter_batches(_collection(path), 7)
    thread = threading.Thread(target=lambda: found.append(_rows(iterator)))
    thread.start()
    thread.join()
    return found[0]


def batches_of_joined_rows(path: str) -> int:
    ddf = _collection(path)
    return _rows(iter_batches(ddf.merge(ddf, on="n"), 7))


def arrow_stream(path: str) -> int:
    return pa.table(iter_batches(_collection(path), 7)).num_rows


def stream_server(path: str) -> int:
    with stream.serve(_collection(path), batch_size=7) as server:
        return _rows(arrow_clients.batches(server.endpoints[0]))


def feather_file(path: str) -> int:
    return stream.write_feather(_collection(path), f"{path}-{uuid.uuid4().hex}.feather").rows


def flight_server(path: str) -> int:
    with flight.serve(_collection(path)) as server, connect(server.location) as client:
        info = client.get_flight_info(FlightDescriptor.for_path("rows"))
        return int(client.do_get(info.endpoints[0].ticket).read_all().num_rows)


def compute(path: str) -> int:
    return len(_collection(path).compute())


def write(path: str) -> int:
    return dask_tfrecord.to_tfrecord(_collection(path), f"{path}-{uuid.uuid4().hex}", shuffle=True).rows


def dataset(path: str) -> int:
    """Call methods that compute with Dask."""
    copy = f"{path}-{uuid.uuid4().hex}"
    dask_tfrecord.to_tfrecord(_collection(path), copy)
    found = dask_tfrecord.open_dataset(copy)
    assert bool(found.verify()["agrees"].all())
    found.delete([("n", "==", 0)])
    found.compact()
    dask_tfrecord.to_tfrecord(_collection(path).query("n == 0"), copy, append=True)
    return _rows(dask_tfrecord.open_dataset(copy, filters=[("n", ">=", 0)]).batches(7, shuffle=True))


def table(path: str) -> int:
    found = RecordTable(path, filters=[("n", "!=", -1), ("text", "!=", "x")])
    return int(found.batch(found.matching([("text", "!=", "y")])).num_rows)


USES: dict[str, Callable[[str], int]] = {
    use.__name__: use
    for use in (
        batches,
        batches_with_shuffle,
        batches_of_persisted_rows,
        batches_in_another_thread,
        batches_of_joined_rows,
        arrow_stream,
        stream_server,
        feather_file,
        flight_server,
        compute,
        write,
        dataset,
        table,
    )
}
