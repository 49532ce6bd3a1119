"""A compaction or a deletion that loses files to another write and dies: `cleanup` removes its new files.

Modules: dataset.maintenance.rewrites.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from small_frames import by_key, keyed

import dask_tfrecord
from dask_tfrecord import Snapshot, to_tfrecord
from dask_tfrecord.dataset.maintenance import rewrites
from dask_tfrecord.files.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def delete(place: str) -> None:
    dask_tfrecord.delete(place, [("n", "in", [1, 3])])


def unlisted(place: str) -> set[str]:
    store = Store.at(place)
    present = {store.relative(path) for path in store.fs.find(store.root)}
    return {path for path in present if "part-" in path} - {file.path for file in Snapshot.open(place).files}


def dies(operation: Callable[[str], Any], place: str, replaced: str, instant: int) -> bool:
    """Do an operation that dies before a removal of files, or after the last removal.

    Another write replaces partitions before the commit of the operation.
    """
    others = iter([keyed(**{key: [9] for key in replaced})])
    removals = count()

    def late(commit: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            for other in others:
                to_tfrecord(other, place, partition_on="key", overwrite="partitions")
                for name in ("remove", "remove_tree"):
                    patch.setattr(Store, name, dying(getattr(Store, name)))
            return commit(*args)

        return wrapped

    def dying(remove: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*args: Any) -> None:
            if next(removals) == instant:
                raise KeyboardInterrupt
            remove(*args)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for module in (rewrites, rewrites):
            patch.setattr(module, "commit", late(module.commit))
        try:
            operation(place)
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.parametrize("replaced", ["a", "ab"])
@pytest.mark.parametrize("operation", [dask_tfrecord.compact, delete])
def test_new_files_whose_sources_another_write_replaced_are_removed(
    place: str, operation: Callable[[str], Any], replaced: str
) -> None:
    for instant in range(20):
        directory = f"{place}/{instant}"
        for append in (False, True):
            to_tfrecord(keyed(a=[1, 2], b=[3, 4]), directory, partition_on="key", append=append)
        died = dies(operation, directory, replaced, instant)
        dask_tfrecord.cleanup(directory, older_than="0s")
        assert unlisted(directory) == set(), f"died before removal {instant}"
        rows = by_key(directory)
        assert all(rows[key] == [9] for key in replaced)
        if not died:
            return
    raise AssertionError("the operation does not end")
