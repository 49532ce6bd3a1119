"""The suite of stores on the local disk.

Modules: storage.store, dataset.write.transaction.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from abstract import StoreSuite
from failing_changes import CHANGES
from faults import FaultError, Faults

_OPERATIONS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.listdir",
    "os.scandir",
}
_active: list[tuple[str, Faults]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook, which Python calls before each system operation. It cannot be removed."""
    for root, faults in _active:
        if event in _OPERATIONS and root in str(arguments[0]):
            with faults.nested():
                if faults.due():
                    raise FaultError("on purpose")


sys.addaudithook(_audit)


class TestLocalStore(StoreSuite):
    changes = tuple(CHANGES)

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        self.root = str(tmp_path)
        return f"{tmp_path}/place"

    @contextmanager
    def faults(self, faults: Faults) -> Iterator[None]:
        _active.append((self.root, faults))
        try:
            yield
        finally:
            _active.clear()
