"""Warn of files that are missing from a numbered set, such as ``train-00001-of-00002``.

Apache Beam, TensorFlow and TFX number the files of a write in this way. For the files of this library, which
have such numbers, too, the module `visibility` decides which files must exist.
"""

import re
from functools import lru_cache
from itertools import islice
from posixpath import commonpath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.utils import glob_translate

from dask_tfrecord.errors import warn_caller
from dask_tfrecord.files.part_names import is_part
from dask_tfrecord.files.storage.listing import Listing, column_paths, unquoted_column
from dask_tfrecord.files.storage.paths import expand_braces, parent_of, unquoted_path

# The text before the number, the number, the number of all members, the text after these numbers, and the
# suffix of a codec, which may differ between the members.
_MEMBER = re.compile(
    r"((?:.*\D)?)(\d{1,9})-of-(\d{1,9})((?:[^\d/][^/]*?)??)((?:\.(?:gz|gzip|zz|zlib|zst|zstd|lz4|bz2|xz))?)",
    re.DOTALL,
)

_SHOWN = 4

# The most missing members of a set that are compared with a glob, which takes a microsecond for each.
_MOST = 10_000


def warn_of_missing_members(listing: Listing, is_checked: pa.Array) -> None:
    """Warn if a directory or a glob lacks files of a numbered set.

    A file that a glob would not match is not missing, because the caller did not ask for the file. Files that
    the caller passed by their full names cause no warning.

    Parameters
    ----------
    listing : Listing
        The listing of the files.
    is_checked : pyarrow.Array
        For each file, False if the file is not read, or if a description already lists the files of its set.
    """
    globs = np.repeat(np.array([*listing.globs, None], object)[:-1], listing.counts)
    sets: dict[tuple[str, str, str], tuple[set[int], set[str], str, int]] = {}
    paths = unquoted_column(listing.files["path"])
    is_numbered = pc.and_(is_checked, pc.match_substring(paths, "-of-").combine_chunks())
    for path, glob in zip(
        column_paths(paths.filter(is_numbered)),
        globs[is_numbered.to_numpy(zero_copy_only=False)],
        strict=True,
    ):
        if (member := _MEMBER.fullmatch(path)) and not is_part(path):
            start, number, count, end, codec = member.groups()
            known = sets.setdefault((start, count, end), (set(), set(), end + codec, len(number)))
            known[0].add(int(number))
            known[1].update(() if glob is None else (glob,))
    missing: list[str] = []
    for (start, count, _), (present, asked, end, digits) in sets.items():
        first = int(max(present) == int(count) and 0 not in present)
        if not asked or max(present) >= first + int(count):
            continue
        absent = (number for number in range(first, first + int(count)) if number not in present)
        lacking = (f"{start}{number:0{digits}d}-of-{count}{end}" for number in absent)
        missing += [path for path in islice(lacking, _MOST) if any(_covers(glob, path) for glob in asked)]
    if missing:
        directory = commonpath(map(parent_of, missing[:_SHOWN]))
        shown = ", ".join(path[len(directory) :].lstrip("/") for path in missing[:_SHOWN])
        more = f" and at least {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
        warn_caller(
            f"{listing.store.public(directory)}: files of numbered sets are missing: {shown}{more}; their "
            "rows are not read; restore the files, or pass the files that exist as a list to read them "
            "without this warning"
        )


def _covers(glob: str, path: str) -> bool:
    """Return True if a glob matches a path or a directory above it. A directory is an empty glob."""
    while glob and path and not any(pattern.match(path) for pattern in _patterns(glob)):
        path = parent_of(path)
    return bool(path)


@lru_cache
def _patterns(glob: str) -> list[re.Pattern[str]]:
    return [re.compile(glob_translate(one)) for one in expand_braces(unquoted_path(glob))]
