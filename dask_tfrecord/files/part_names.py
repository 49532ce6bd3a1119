"""Make and recognise the names of the data files that this library writes."""

import re
from collections.abc import Sequence

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.paths import name_of

PART_NAME = re.compile(
    r"part-(?P<run>[0-9a-f]{32})-(?P<index>\d{5,})-of-(?P<count>\d{5,})(-\d{5,})?(-[^/]+)?"
    r"\.tfrecord(\.\w+)?"
)

# The allowed form of the label that a user adds to file names. A file name with such a label is valid on
# every store and in every shell. The length is limited so that even the longer name of an unfinished file
# stays below the 255 bytes that most disks allow.
_LABEL = re.compile(r"\w[\w.=+@-]*")
_LABEL_BYTES = 100


def part_name(
    run: str, index: int, count: int, *, number: int | None = None, label: str = "", suffix: str = ""
) -> str:
    """Return the name of the data file with these numbers.

    If no partition has more than 100,000 files, sorting the names gives the order of the rows.

    Parameters
    ----------
    run : str
        The id of the run, which distinguishes the files of different runs.
    index, count : int
        The number of the partition, counted from 0, and the total number of partitions.
    number : int, optional
        The number of the file among all files of its partition, in all directories, or None if the partition
        consists of one file.
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
            problem = f"name_function= returned {label!r}, which is not valid in a file name"
            raise TFRecordError(problem, f"return at most {_LABEL_BYTES} bytes of letters, digits and _.=+@-")
    if len(set(labels)) < len(labels):
        problem = "name_function= returned the same name for several partitions"
        raise TFRecordError(problem, "return a different name for each partition")


def run_of(path: str) -> str | None:
    """Return the run id in the name of a data file. Return None if the file name does not have the form that
    this library uses.
    """
    part = PART_NAME.fullmatch(name_of(path))
    return part["run"] if part else None


def is_part(path: str) -> bool:
    """Return True if a path has the form of the data file names that this library uses."""
    return run_of(path) is not None
