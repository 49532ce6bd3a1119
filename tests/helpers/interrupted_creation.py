"""Creations of files that fail before they are complete."""

import pytest

from dask_tfrecord.storage.store import Store


def interrupt_creations(store: Store, size: int, error: type[BaseException]) -> None:
    """Create the file "old"; then fail after ``size`` bytes of its replacement, and of the file "new"."""
    with store.create(store.join("old")) as file:
        file.write(b"old")

    def fail(name: str) -> None:
        with store.create(store.join(name)) as file:
            file.write(bytes(size))
            raise error

    for name in ("old", "new"):
        with pytest.raises(error):
            fail(name)
    assert store.fs.cat_file(store.join("old")) == b"old"
