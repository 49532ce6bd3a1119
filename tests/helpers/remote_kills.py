"""A script that kills a write to a remote store at one of its requests, then, in a new run, at another.

Each line of its input is a JSON list: the mode of the write, a URL at which nothing exists, the storage
options, and the stride. The script kills at every request whose number is a multiple of the stride. For each
line it prints, as JSON, the number of requests and what was readable after each kill, after a cleanup and
after another write. The process that forks has opened no connection.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import count
from typing import Any

import adlfs  # noqa: F401  # imported before the forks, which use it
import dask
import dask.dataframe as dd
import pandas as pd
import paramiko
import s3fs
from azure.core.pipeline.transport import AioHttpTransport

import dask_tfrecord
from dask_tfrecord.files import small_columns
from dask_tfrecord.storage.store import Store

Options = dict[str, Any]


def rows(*numbers: int) -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": numbers, "key": [n % 3 for n in numbers]}), npartitions=2)


def write(mode: str, place: str, options: Options, *numbers: int) -> None:
    dask_tfrecord.to_tfrecord(
        rows(*numbers), place, storage_options=options, compute_kwargs={"retries": 0}, **{mode: True}
    )


def read(place: str, options: Options) -> list[int]:
    return sorted(dask_tfrecord.read_tfrecord(place, storage_options=options)["n"].compute().tolist())


def kill_at(number: int) -> Callable[[], int]:
    """Kill this process before its request of this number. Return a function that counts the requests."""
    requests = count()
    done = [0]

    def notice() -> None:
        done[0] = next(requests)
        if done[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            notice()
            return call(*args, **kwargs)  # or a coroutine of the call

        return method

    paramiko.SFTPClient._async_request = killing(paramiko.SFTPClient._async_request)
    AioHttpTransport.send = killing(AioHttpTransport.send)
    s3fs.S3FileSystem._call_s3 = killing(s3fs.S3FileSystem._call_s3)
    return lambda: done[0] + 1


def in_child(work: Callable[[], Any]) -> Any:
    """Do work in a fork of this process and return the result, or None if the fork was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        answer = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return None
    if status != 0:
        raise RuntimeError("the work failed; see above")
    return json.loads(answer)


def sweep(mode: str, top: str, options: Options, stride: int) -> dict[str, Any]:
    """What readers see after kills; the last is the write that was not killed."""
    found: dict[int, dict[str, Any]] = {}

    def visit(number: int) -> Any:
        place = f"{top}/{number}"

        def killed() -> int:
            write("append", place, options, 0, 1, 2)
            requests = kill_at(number)
            write(mode, place, options, 3, 5)
            return requests()

        def seen() -> dict[str, Any]:
            result: dict[str, Any] = {"killed": read(place, options)}
            dask_tfrecord.open_dataset(place, storage_options=options).cleanup(older_than="0s")
            result["cleaned"] = read(place, options)
            store = Store.at(place, options)
            result["files"] = len(store.fs.find(store.root))
            write(mode, place, options, 7)
            result["written"] = read(place, options)
            return result

        total = in_child(killed)
        found[number if total is None else total] = in_child(seen)
        return total

    total = visit(sys.maxsize)
    for number in range(0, total, stride):
        visit(number)
    return {"requests": total, "found": dict(sorted(found.items()))}


if __name__ == "__main__":
    small_columns.LEAST_FILE_BYTES = small_columns._PART = 1  # all columns of all files are small
    with dask.config.set(scheduler="sync"):
        for line in sys.stdin:
            print(json.dumps(sweep(*json.loads(line))), flush=True)
