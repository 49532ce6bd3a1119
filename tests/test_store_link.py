"""The link of the tests counts requests, trips and requests at once, and holds and spoils answers.

Modules: storage.store.
"""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pandas as pd
import pytest
from servers import LinkedStore, web_server
from store_link import store_link

from dask_tfrecord import read_tfrecord, to_tfrecord


def get(url: str, first: int = 0, last: int = 9) -> bytes:
    with urlopen(Request(url, headers={"Range": f"bytes={first}-{last}"})) as answer:
        return answer.read()


def test_link_counts_what_is_sent_at_once_and_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    with web_server(tmp_path) as server, store_link(server.url) as link, ThreadPoolExecutor(8) as pool:
        with link.recording(rounds=True) as traffic:
            for _ in range(2):
                list(pool.map(lambda start: get(f"{link.url}/file", start, start), range(8)))
            get(f"{link.url}/file", 20, 49)
        assert (traffic.trips, traffic.at_once, len(traffic)) == (3, 8, 17)
        assert traffic.methods == {"GET": 17}
        assert traffic.bytes_read == 16 + 30
        assert traffic[-1].range == (20, 50)


def test_link_answers_the_newest_request_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    with web_server(tmp_path) as server, store_link(server.url) as link, ThreadPoolExecutor(4) as pool:
        with link.recording(last_first=True) as traffic:
            list(pool.map(lambda start: get(f"{link.url}/file", start, start), range(4)))
        assert sorted(traffic, key=lambda request: request.ended or 0) == traffic[::-1]


def test_link_holds_chosen_answers_and_notes_clients_that_leave(tmp_path: Path) -> None:
    (tmp_path / "slow").write_bytes(b"slow")
    (tmp_path / "file").write_bytes(b"file")
    with (
        web_server(tmp_path) as server,
        store_link(server.url) as link,
        link.recording() as traffic,
        link.holding(lambda request: request.path == "slow"),
    ):
        assert get(f"{link.url}/file") == b"file"
        with socket.create_connection(("127.0.0.1", urlsplit(link.url).port)) as client:
            client.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
            link.wait_for(traffic, 2)
    assert [request.left for request in traffic] == [False, True]


def test_link_spoils_the_chosen_request_and_runs_a_function_before_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"file")
    with web_server(tmp_path) as server, store_link(server.url) as link:
        link.arm("busy", 1)
        assert get(f"{link.url}/file") == b"file"
        with pytest.raises(HTTPError, match="503"):
            get(f"{link.url}/file")
        assert link.disarm()
        link.arm(lambda: (tmp_path / "file").write_bytes(b"new"))
        assert get(f"{link.url}/file") == b"new"


def test_read_of_a_small_dataset_makes_one_trip_for_its_data(linked: LinkedStore) -> None:
    place = linked.new_place()
    to_tfrecord(pd.DataFrame({"n": range(1000)}), place, storage_options=linked.direct)
    ddf = read_tfrecord(place, storage_options=linked.options)
    with linked.link.recording(rounds=True) as traffic:
        assert len(ddf.compute()) == 1000
    assert (traffic.methods, traffic.trips) == ({"GET": 1}, 1)
    assert traffic.bytes_read == sum(
        linked.fs.info(path)["size"] for path in linked.fs.glob(f"{place}/part-*")
    )
