"""The names of the data files that this library writes."""

import re
from collections.abc import Sequence

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.paths import name_of

_PART_NAME = re.compile(
    r"part-(?P<run>[0-9a-f]{8})-(?P<index>\d{5,})-of-(?P<count>\d{5,})(-\d{5,})?(-[^/]+)?\.tfrecord(\.\w+)?"
)


# What users may add to names, so that they are names on every store and in every shell; with all else that is
# in the name of a file which is not whole yet they stay below the 255 bytes of most disks.
_LABEL = re.compile(r"\w[\w.=+@-]*")


_LABEL_BYTES = 100


def part_name(
    run: str, index: int, count: int, *, number: int | None = None, label: str = "", suffix: str = ""
) -> str:
    """The data file ``number`` of partition ``index`` of ``count``; without a number if it is the only one.

    Names sort in the order of the rows, up to 100,000 files of a partition. The label is what a user wants
    to see there too; all else must stay, for it tells the files of one write from those of others.
    """
    digits = max(5, len(str(count)))
    more = "" if number is None else f"-{number:05d}"
    more += f"-{label.removesuffix(suffix).removesuffix('.tfrecord')}" if label else ""
    return f"part-{run[:8]}-{index:0{digits}d}-of-{count:0{digits}d}{more}.tfrecord{suffix}"


def check_labels(labels: Sequence[object]) -> None:
    """Refuse labels that are no names, or not each a different one."""
    for label in labels:
        is_label = isinstance(label, str) and _LABEL.fullmatch(label) and len(label.encode()) <= _LABEL_BYTES
        if not is_label:
            raise TFRecordError(
                f"name_function= gives {label!r}",
                advice=f"let it return up to {_LABEL_BYTES} bytes of letters, digits and _.=+@- alone",
            )
    if len(set(labels)) < len(labels):
        raise TFRecordError("name_function= gives several partitions the same name")


def run_of(path: str) -> str | None:
    """The first 8 characters of the run that a data file's name holds; None if it is not one of ours."""
    part = _PART_NAME.fullmatch(name_of(path))
    return part["run"] if part else None


def is_part(path: str) -> bool:
    """Whether a path has the name of a data file that this library writes."""
    return run_of(path) is not None
