"""Two processes that create the same files at the same time, for stores that create files exclusively."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from dask_tfrecord.storage.store import Store

# The number of files.
ROUNDS = 40

_start: Any = None


def _use(barrier: Any) -> None:
    global _start
    _start = barrier


def _compete(place: str, options: dict[str, Any], name: str) -> list[int]:
    """Create all files at the same time as the other process. Return the numbers of the files created."""
    store = Store.at(place, options)
    created = []
    try:
        for number in range(ROUNDS):
            _start.wait()
            try:
                store.create_exclusively(store.join(f"{number}"), name.encode())
            except FileExistsError:
                continue
            created.append(number)
    except BaseException:
        _start.abort()
        raise
    return created


def check_race(place: str, options: dict[str, Any]) -> None:
    """Check that one of two processes creates each file, and that the file has the process's content."""
    spawning = get_context("spawn")
    with ProcessPoolExecutor(2, spawning, _use, (spawning.Barrier(2),)) as pool:
        futures = {name: pool.submit(_compete, place, options, name) for name in "ab"}
        created = {name: future.result() for name, future in futures.items()}
    assert sorted(created["a"] + created["b"]) == list(range(ROUNDS))
    store = Store.at(place, options)
    for name, numbers in created.items():
        assert {store.fs.cat_file(store.join(f"{number}")) for number in numbers} <= {name.encode()}
    assert len(store.fs.find(store.root)) == ROUNDS
