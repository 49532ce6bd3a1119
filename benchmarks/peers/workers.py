"""Measure in separate processes, because frameworks keep threads and memory.

This module needs only psutil besides the standard library, because processes of other environments import it.
"""

import gc
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]


class Worker:
    """Start a process that answers lines of JSON, with more environment variables than this process."""

    def __init__(self, python: str | Path, arguments: list[str], environment: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # the process writes to the file until it ends, so this method may not close it
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )

    def ask(self, question: Any, limit: float | None = None) -> dict[str, Any]:
        """Return the answer to a question, which is anything that JSON can hold.

        The process is ended after ``limit`` seconds. Raises a RuntimeError with the last line of the error
        messages of the process if the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(limit, self._end) if limit else None
        if timer:
            timer.start()
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            is_late = timer is not None and timer.finished.is_set()
            if timer:
                timer.cancel()
        if not line:
            self._end()
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"no answer in {limit} s" if is_late else last_error(self._errors.read()))
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def has_ended(self) -> bool:
        """True if the process can no longer answer."""
        return self._process.poll() is not None

    def _end(self) -> None:
        with suppress(psutil.NoSuchProcess):
            for process in _family(psutil.Process(self._process.pid)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._end()
            self._process.wait()
        self._errors.close()


def last_error(text: str) -> str:
    """Return the last line of a traceback, without paths."""
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return " ".join("..." if "/" in word else word for word in (lines or ["no answer"])[-1].split())[:200]


def serve(answer: Callable[[Any], dict[str, Any]]) -> None:
    """Answer each line of JSON on standard input with a line of JSON on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a package prints is no answer
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


# -- Measuring -----------------------------------------------------------------------------------------------


def measured(work: Callable[[], int]) -> dict[str, float]:
    """Measure rows, seconds and peak bytes of a piece of work and its child processes.

    The seconds are those of a clock, of the CPU, and of the CPU in the kernel of the system. The peak is the
    sum of the peaks of the processes, and contains libraries and inputs. It is 0 on systems other than Linux.
    """
    for process in _family(psutil.Process()):
        forget_peak(process.pid)
    start, (user, system) = time.perf_counter(), cpu_seconds()
    rows = work()
    wall, (user_after, system_after) = time.perf_counter() - start, cpu_seconds()
    system = system_after - system
    cpu = user_after - user + system
    peak = sum(peak_bytes(process.pid) for process in _family(psutil.Process()))
    return {"rows": rows, "wall": wall, "cpu": cpu, "system": system, "memory": peak}


def turns(works: dict[Any, Callable[[], object]], rounds: int) -> dict[Any, float]:
    """Return the median CPU seconds of each function. They take turns, after a round that does not count."""
    took: dict[Any, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            gc.collect()
            time.sleep(0.1)  # threads of another library wait actively for a moment after its work
            start = time.process_time()
            work()
            took[name].append(time.process_time() - start)
    return {name: median(times[1:]) for name, times in took.items()}


def cpu_seconds() -> tuple[float, float]:
    """Return the user and the system seconds of this process and of its running and ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    user, system = sum(one.ru_utime for one in used), sum(one.ru_stime for one in used)
    for process in _family(psutil.Process())[1:]:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = process.cpu_times()
            user += times.user + times.children_user
            system += times.system + times.children_system
    return user, system


def peak_bytes(pid: int | str = "self") -> int:
    """Return the peak memory of a process since `forget_peak`, in bytes."""
    with suppress(OSError, IndexError):  # the process has ended, or the system is not Linux
        return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    return 0


def forget_peak(pid: int | str = "self") -> None:
    """Reset the peak memory of a process to its current memory."""
    with suppress(OSError):  # the process has ended, or the system is not Linux
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _family(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


@contextmanager
def others() -> Iterator[list[float]]:
    """Collect CPU seconds in a list. On exit, replace them by the CPU share of all other processes."""
    start, busy, used = time.perf_counter(), psutil.cpu_times(), []
    yield used
    now = psutil.cpu_times()
    total = sum(getattr(now, kind) - getattr(busy, kind) for kind in ("user", "system", "nice"))
    available = (time.perf_counter() - start) * (os.cpu_count() or 1)
    used[:] = [round(max(0.0, total - sum(used)) / available, 2)]


# -- What the figures depend on ------------------------------------------------------------------------------


def versions(packages: Iterable[str]) -> str:
    """Return the versions of the distributions that are installed here."""
    found = []
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


def machine() -> dict[str, str]:
    """Return the date, the processor and the system."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    cpu = models[0].partition(":")[2].strip() if models else platform.machine()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "system": f"{platform.system()}, Python {platform.python_version()}",
    }
