"""How many rows and stored bytes the result of a task stands for. Workers use this, too."""

from typing import Any, NamedTuple

from dask_tfrecord.dataset.verifying import FileReport
from dask_tfrecord.files.entry import FileEntry


class Measure(NamedTuple):
    """What tasks have done."""

    tasks: int
    rows: int
    bytes: int


def measure(result: Any) -> Measure | None:
    """Measure the result of one task; None for a task that reads or writes no rows."""
    found = [(one.records, one.bytes) for one in _flat(result) if isinstance(one, FileEntry)]
    found += [(one.sample.records, one.bytes) for one in _flat(result) if isinstance(one, FileReport)]
    if not found:
        return None
    return Measure(1, sum(rows for rows, _ in found), sum(size for _, size in found))


def _flat(result: Any) -> list[Any]:
    """The items of a list, or of a list of lists, of results."""
    if type(result) not in (list, tuple):
        return [result]
    if result and type(result[0]) in (list, tuple):
        return [item for items in result if type(items) in (list, tuple) for item in items]
    return list(result)
