"""The peak memory of a new process; run scripts with :func:`growth`."""

import io
import multiprocessing
import os
import sys
import traceback
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# The server imports the library once, and each of its processes begins with that. Peaks are not inherited.
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()
_CONTEXT: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
if _FORKS:
    _CONTEXT.set_forkserver_preload(["pyarrow.compute", "dask_tfrecord"])


def peak_kib() -> int:
    """The peak resident memory of this process. On Linux, ru_maxrss also counts the memory of the parent."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def growth(script: str, folder: Path, *arguments: str) -> int:
    """The number of KiB that a script prints, run in its own process; it may import this module."""
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(script, folder, arguments, sender))
    process.start()
    sender.close()
    printed, error = receiver.recv()
    process.join()
    assert not error, error
    return int(printed)


def _run(script: str, folder: Path, arguments: tuple[str, ...], sender: Connection) -> None:
    os.chdir(folder)
    sys.argv[:] = ["-c", *arguments]
    printed, error = io.StringIO(), ""
    try:
        with redirect_stdout(printed):
            exec(script, {"__name__": "__script__"})
    except BaseException:
        error = traceback.format_exc()
    sender.send((printed.getvalue(), error))
