"""Renew the state of a forked process: locks that no thread will release, and filesystems, because the
connections of the parent do not work.
"""

import os
import pickle
from collections.abc import Callable
from threading import RLock
from typing import Any

from fsspec import AbstractFileSystem

from dask_tfrecord.errors import TFRecordError


def in_forked_processes(renew: Callable[[], None]) -> Callable[[], None]:
    """Call a function at the start of each forked process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
    return renew


def fork_safe_locks(count: int) -> list[Any]:
    """Return locks that a forked process renews, because no thread there would release them."""
    locks = [RLock() for _ in range(count)]

    @in_forked_processes
    def renew() -> None:
        locks[:] = [RLock() for _ in locks]

    return locks


def _is_of_another_process(fs: Any) -> bool:
    """Return True for filesystems that use threads or one connection, if another process has opened them.

    Such filesystems, and the filesystems inside caches, have the attribute ``_pid``.
    """
    own = object.__getattribute__(fs, "__dict__")  # a cache would return the attributes of its source
    if "_pid" in own:
        return bool(own["_pid"] != os.getpid())
    inner = own.get("fs")
    return isinstance(inner, AbstractFileSystem) and _is_of_another_process(inner)


def _opened_again(fs: AbstractFileSystem) -> AbstractFileSystem:
    try:
        opened: AbstractFileSystem = pickle.loads(pickle.dumps(fs))
    except Exception as error:  # the arguments of a filesystem may be objects of any class
        problem = "the filesystem was opened before the process was forked, and cannot be opened again"
        advice = "open it in the new process, or start the process with the method 'spawn'"
        raise TFRecordError(f"{problem} ({type(error).__name__})", advice) from error
    return opened


class OfThisProcess:
    """An attribute that contains a filesystem. In a forked process, the filesystem is opened again."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        fs = instance.__dict__[self._name]
        if fs is not None and _is_of_another_process(fs):
            fs = instance.__dict__[self._name] = _opened_again(fs)
        return fs

    def __set__(self, instance: Any, fs: AbstractFileSystem | None) -> None:
        instance.__dict__[self._name] = fs
