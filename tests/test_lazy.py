"""Attributes that are computed once, also in a process that is forked meanwhile.

Modules: lazy.
"""

import os
import signal
import threading

import pytest

from dask_tfrecord.lazy import cached_property


class Example:
    def __init__(self, *, slow: bool) -> None:
        self.slow = slow

    @cached_property
    def computed(self) -> list[int]:
        if self.slow:
            begun.set()
            may_end.wait()
        return [1]


begun, may_end = threading.Event(), threading.Event()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_forked_while_a_thread_computes_can_compute() -> None:
    thread = threading.Thread(target=lambda: Example(slow=True).computed)
    thread.start()
    begun.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that waits forever
        example = Example(slow=False)
        os._exit(0 if example.computed is example.computed == [1] else 1)
    status = os.waitpid(child, 0)[1]
    may_end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
