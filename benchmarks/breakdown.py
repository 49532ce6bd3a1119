"""Measure how much CPU time each step of a read or a write takes.

For one run, the functions in which the steps happen are replaced by functions that also take the CPU time of
their thread. If a step runs inside another step, its time is not added to the other step. Time outside of all
steps belongs to Dask's graph and scheduler. Each call of a step costs about two microseconds more than
without the measurement.

Some steps run in C without the GIL. All other steps hold the GIL for most of their time, so their share of
the CPU time limits the number of threads that work at the same time.
"""

import functools
import pkgutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

# Map each step to its functions, by the names under which callers look up the functions.
Steps = Mapping[str, Sequence[str]]

REST = "Dask"  # what happens outside of all steps: the graph, and the scheduler

WRITE: Steps = {
    "conversion": (
        "dask_tfrecord.frames.pandas_to_arrow.to_table",
        "dask_tfrecord.schema.model.Schema.to_storage",
    ),
    "grouping": ("dask_tfrecord.dataset.write.run.group_by_directory",),
    "encode": ("dask_tfrecord.codec.Encoder.bind", "dask_tfrecord.codec.Encoder.encode_into"),
    "statistics": ("dask_tfrecord.codec.Encoder.statistics",),
    "statistics of a file": (
        "dask_tfrecord.files.writing.continue_statistics",
        "dask_tfrecord.files.writing.file_statistics",
    ),
    "compress": (
        "dask_tfrecord.codec.compressing.DeflateCompressor.add",
        "dask_tfrecord.codec.compressing.DeflateCompressor.compress",
    ),
    "checksum of the file": ("dask_tfrecord.files.block_writer.crc32c_of_records",),
    "write()": ("dask_tfrecord.files.block_writer.BlockWriter._write",),
    "rest of the tasks": ("dask_tfrecord.expr.writing.write_partition",),
    "commit": ("dask_tfrecord.expr.writing.commit_files",),
    "plan": ("dask_tfrecord.to_tfrecord",),
    REST: ("dask_tfrecord.writer._compute",),
}

READ: Steps = {
    "open": ("dask_tfrecord.read_tfrecord",),
    "checksum of the file": (
        "dask_tfrecord.files.window.crc32c_of_records",
        "dask_tfrecord.files.small_files.crc32c",
        "dask_tfrecord.files.storage.checksum.crc32c",
    ),
    "read()": ("dask_tfrecord.files.storage.open_file.FileReader.readinto",),
    "decompress": ("dask_tfrecord.codec.decompressing.StreamDecompressor.readinto",),
    "decode": ("dask_tfrecord.codec.Decoder.feed", "dask_tfrecord.codec.Decoder.take"),
    "logical types": ("dask_tfrecord.schema.model.Schema.from_storage",),
    "to pandas": ("dask_tfrecord.frames.arrow_to_pandas.to_pandas",),
    "rest of the tasks": ("dask_tfrecord.expr.reading.read_partition",),
}


# Steps that spend nearly all of their time without the GIL. `py-spy record --gil` on one thread found that
# the GIL was held for 4 to 14 percentage points less than the share of all other steps.
WITHOUT_GIL = frozenset(
    {
        "encode",
        "statistics",
        "compress",
        "checksum of the file",
        "write()",
        "read()",
        "decompress",
        "decode",
    }
)


class _Clock:
    """Collect the CPU seconds of each step, summed over all threads."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.local()  # `inner`: seconds of the steps inside the present call

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that the CPU time of each call is measured."""

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            outer = getattr(self._thread, "inner", 0.0)
            self._thread.inner = 0.0
            start = time.thread_time()
            try:
                return function(*arguments, **keywords)
            finally:
                took = time.thread_time() - start
                with self._lock:
                    self.seconds[step] += took - self._thread.inner
                self._thread.inner = outer + took

        return call


@contextmanager
def _measured(steps: Steps) -> Iterator[Counter[str]]:
    clock = _Clock()
    with ExitStack() as stack:
        for step, names in steps.items():
            for name in names:
                stack.enter_context(patch(name, clock.timed(step, pkgutil.resolve_name(name))))
        yield clock.seconds


def breakdown(work: Callable[[], object], steps: Steps) -> Counter[str]:
    """Run a piece of work, and return the CPU seconds of each step and of the time outside of all steps."""
    with _measured(steps) as seconds:
        start = time.process_time()
        work()
        total = time.process_time() - start
    seconds[REST] += total - seconds.total()
    return seconds


def show(spent: Sequence[Mapping[str, float]]) -> None:
    """Print the CPU seconds of a run, the shares of the steps, and the share of all steps with the GIL.

    The largest share comes first. Shares of less than 1 % are left out.

    ``spent`` has what `breakdown` returned for each run.
    """
    seconds = sum((Counter(one) for one in spent), Counter[str]())
    total = seconds.total()
    shares = [f"{step} {took / total:.0%}" for step, took in seconds.most_common() if took >= total / 100]
    print(f"  {total / len(spent):.3f} CPU s: {', '.join(shares)}")
    held = 1 - sum(seconds[step] for step in WITHOUT_GIL) / total
    print(f"  with the GIL: at most {held:.0%}, enough for {1 / max(held, 0.01):.1f} threads")
