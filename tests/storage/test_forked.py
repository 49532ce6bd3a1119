"""Filesystems that another process has opened.

Modules: storage.forked.
"""

import os
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dask_tfrecord import TFRecordError
from dask_tfrecord.storage.store import Store


class Connected(MemoryFileSystem):
    """A filesystem with a connection that only the process with the id ``_pid`` can use."""

    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._pid = os.getpid()


def test_a_filesystem_of_another_process_is_opened_again() -> None:
    fs = Connected()
    store = Store.of(fs, "/data")
    assert store.fs is fs
    fs._pid = -1
    assert store.fs is not fs
    assert store.fs is store.fs
    assert isinstance(store.fs, Connected)
    assert Store.of(fs, "/data").fs is not fs


def test_a_filesystem_that_cannot_be_opened_again_raises_an_error_with_the_remedy() -> None:
    fs = Connected(callback=lambda: None)
    fs._pid = -1
    with pytest.raises(TFRecordError, match=r"before the process was forked.*'spawn'"):
        _ = Store.of(fs, "/data").fs
