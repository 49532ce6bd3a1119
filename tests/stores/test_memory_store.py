"""The suite of stores on fsspec's filesystem in memory, which can rename.

Modules: storage.store.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from abstract import RemoteSuite
from failing_changes import CHANGES
from faults import Faults, faulty_methods
from fsspec.implementations.memory import MemoryFileSystem
from strides import every

_OPERATIONS = [
    "_open",
    "cat_file",
    "cp_file",
    "exists",
    "find",
    "info",
    "ls",
    "makedirs",
    "pipe_file",
    "rm",
    "rm_file",
    "rmdir",
]


class TestMemoryStore(RemoteSuite):
    # It renames files as the local disk does, and unlike there, answers can be lost.
    changes = tuple(CHANGES)
    stride = every(91)

    @pytest.fixture
    def place(self) -> str:
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]
        return "memory://bucket/place"

    @contextmanager
    def faults(self, faults: Faults) -> Iterator[None]:
        with faulty_methods(MemoryFileSystem, _OPERATIONS, faults):
            yield
