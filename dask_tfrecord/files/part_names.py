"""Make and recognise the names of the data files that this library writes."""

import re
from collections.abc import Sequence

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.paths import name_of

PART_NAME = re.compile(
    r"part-(?P<run>[0-9a-f]{32}|[0-9a-f]{8})-(?P<index>\d{5,})-of-(?P<count>\d{5,})(-\d{5,})?(-[^/]+)?"
    r"\.tfrecord(\.\w+)?"
)

# The form and the maximum size of a user's label. A file name with such a label is valid on every store and
# in every shell. Even the longer name of an unfinished file stays below the 255 bytes that most disks allow.
_LABEL = re.compile(r"\w[\w.=+@-]*")
_LABEL_BYTES = 100


def part_name(
    run: str, index: int, count: int, *, number: int | None = None, label: str = "", suffix: str = ""
) -> str:
    """Return the name of a data file.

    If no partition has more than 100,000 files, the sorted names are in the order of the rows.

    Parameters
    ----------
    run : str
        The id of the run, which distinguishes the files of different runs.
    index, count : int
        The number of the partition, counted from 0, and the number of partitions.
    number : int, optional
        The number of the file within the partition. None if the partition has only this file.
    label : str, optional
        Text that the user adds to the file name.
    suffix : str, optional
        The codec's file suffix, such as ``.gz``.
    """
    digits = max(5, len(str(count)))
    more = "" if number is None else f"-{number:05d}"
    more += f"-{label.removesuffix(suffix).removesuffix('.tfrecord')}" if label else ""
    return f"part-{run}-{index:0{digits}d}-of-{count:0{digits}d}{more}.tfrecord{suffix}"


def check_labels(labels: Sequence[object]) -> None:
    """Raise TFRecordError if a label of ``name_function=`` is invalid in a file name, or is not unique."""
    for label in labels:
        is_label = isinstance(label, str) and _LABEL.fullmatch(label) and len(label.encode()) <= _LABEL_BYTES
        if not is_label:
            raise TFRecordError(
                f"name_function= returned {label!r}, which is not valid in a file name",
                advice=f"return at most {_LABEL_BYTES} bytes of letters, digits and _.=+@-",
            )
    if len(set(labels)) < len(labels):
        raise TFRecordError(
            "name_function= returned the same name for several partitions",
            advice="return a different name for each partition",
        )


def run_of(path: str) -> str | None:
    """Return the run id in a data file's name. Return None if this library did not make the name.

    Names from older versions of this library hold only the first 8 digits of the id.
    """
    part = PART_NAME.fullmatch(name_of(path))
    return part["run"] if part else None


def is_part(path: str) -> bool:
    """Return True if a path has the name of a data file that this library writes."""
    return run_of(path) is not None
