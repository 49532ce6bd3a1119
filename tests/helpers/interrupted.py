"""Interrupt a call of the feeds between two lines of Python, as Ctrl-C does."""

import sys
from collections.abc import Callable
from linecache import getline
from types import FrameType
from typing import Any

# The modules whose lines are interrupted.
FILES = (
    "batches.py",
    "sequence_reader.py",
    "mixtures.py",
    "resume_position.py",
    "errors.py",
    "contextlib.py",
)


def interrupt(call: Callable[[], Any], line: int) -> str | None:
    """Raise KeyboardInterrupt at a line that a call runs, counted from 0. Return the line, or None if the
    call runs fewer lines.
    """
    left, where = line, None

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, where
        name, number = frame.f_code.co_filename, frame.f_lineno
        if not name.endswith(FILES):
            return None
        # After the last two lines, which release the lock, the batch is returned.
        is_last = getline(name, number).strip() in ("with self._lock:", "return element")
        if event == "line" and not is_last:
            left -= 1
            if left < 0 and where is None:
                where = f"{name}:{number}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return where
