"""Find files that are missing from a numbered set, such as ``train-00001-of-00002`` beside
``train-00000-of-00002``.

Apache Beam, TensorFlow and TFX number the files of a write in this way. For the files of this library, which
have such numbers, too, the module `visibility` decides which files must exist.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from posixpath import commonpath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.utils import glob_translate

from dask_tfrecord.errors import warn_caller
from dask_tfrecord.files.storage.listing import Listing, unquoted_column
from dask_tfrecord.files.storage.paths import expand_braces, parent_of, unquoted_path

# The parts of the path of a member: the text before the number, the number, the number of all members, the
# text after these numbers, and the suffix of a codec, which may differ between the members.
_MEMBER = (
    r"(?s)^(?P<start>(?:.*[^\d])?)(?P<index>\d+)-of-(?P<count>\d+)(?P<end>(?:[^\d/][^/]*?)??)"
    r"(?P<codec>(?:\.(?:gz|gzip|zz|zlib|zst|zstd|lz4|bz2|xz))?)$"
)

# A number with more digits is no number of files.
_MOST_DIGITS = 9

# The end of the text before the number in the names of this library's files.
_OUR_PART = r"part-(?:[0-9a-f]{8}|[0-9a-f]{32})-$"

_SHOWN = 4

# The most names that are compared with a glob, which takes about a microsecond for each name.
_MOST_NAMES = 20_000


@dataclass(frozen=True)
class _Set:
    """A set that lacks members.

    Attributes
    ----------
    start, count, end : str
        The parts of the path of a member: the text before the number, the number of all members, and the text
        after it.
    present : list of int
        The numbers of the members that exist.
    first : int
        The lowest number of the set, which is 0 or 1.
    digits : int
        The number of digits of the shortest number.
    sources : list of int
        The positions of the paths of the caller that stand for the members that exist.
    """

    start: str
    count: str
    end: str
    present: list[int]
    first: int
    digits: int
    sources: list[int]

    @property
    def lacking(self) -> int:
        """The number of missing members."""
        return int(self.count) - len(self.present)

    def missing(self) -> Iterator[str]:
        """Yield the paths of the missing members."""
        present = {*self.present}
        for number in range(self.first, self.first + int(self.count)):
            if number not in present:
                yield f"{self.start}{number:0{self.digits}d}-of-{self.count}{self.end}"


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

    Warns
    -----
    UserWarning
        If files of a numbered set are missing.
    """
    count, names = 0, list[str]()
    budget = _MOST_NAMES
    for one in _incomplete_sets(listing, is_checked):
        globs = [listing.globs[at] for at in one.sources]
        if all(glob is None for glob in globs):
            continue
        if any(glob == "" or _covers(glob, parent_of(one.start)) for glob in globs if glob is not None):
            count += one.lacking
            names += islice(one.missing(), max(0, _SHOWN - len(names)))
            continue
        tested = list(islice(one.missing(), budget))
        budget -= len(tested)
        found = [path for path in tested if any(_matches(glob, path) for glob in globs if glob)]
        count += len(found)
        names += found[: max(0, _SHOWN - len(names))]
    if not count:
        return
    directory = commonpath(map(parent_of, names))
    shown = ", ".join(path[len(directory) :].lstrip("/") for path in names)
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    more += "" if budget else ", and probably others"
    warn_caller(
        f"{listing.store.public(directory)}: files of numbered sets are missing ({count:,}): "
        f"{shown}{more}; their rows are not read; restore the files, or pass the files that exist as a list "
        "to read them without this warning"
    )


def _incomplete_sets(listing: Listing, is_checked: pa.Array) -> list[_Set]:
    """Return the sets that lack members."""
    if not any(glob is not None for glob in listing.globs):
        return []
    paths = unquoted_column(listing.files["path"]).combine_chunks()
    parts = pc.extract_regex(paths, _MEMBER)
    is_member = pc.and_(parts.is_valid(), is_checked)
    parts = parts.filter(is_member)
    sources = np.repeat(np.arange(len(listing.counts)), listing.counts)
    table = pa.table(
        {
            **{name: parts.field(name) for name in ("start", "index", "count", "end")},
            "suffix": pc.binary_join_element_wise(parts.field("end"), parts.field("codec"), b""),
            "digits": pc.binary_length(parts.field("index")),
            "source": pa.array(sources, pa.int64()).filter(is_member),
        }
    )
    is_short = pc.less_equal(
        pc.max_element_wise(table["digits"], pc.binary_length(table["count"])), _MOST_DIGITS
    )
    is_ours = pc.match_substring_regex(table["start"], _OUR_PART)
    table = table.filter(pc.and_(is_short, pc.invert(is_ours)))
    table = table.set_column(table.column_names.index("index"), "index", _numbers(table["index"]))
    groups = table.group_by(["start", "count", "end"]).aggregate(
        [
            *[("index", "distinct"), ("index", "min"), ("index", "max")],
            *[("digits", "min"), ("suffix", "min"), ("source", "distinct")],
        ]
    )
    totals, greatest = _numbers(groups["count"]).to_numpy(), groups["index_max"].to_numpy()
    starts_at_one = (greatest == totals) & (groups["index_min"].to_numpy() > 0)
    present = pc.list_value_length(groups["index_distinct"]).to_numpy()
    lacks = (present < totals) & ((greatest < totals) | starts_at_one)
    groups = groups.append_column("first", pa.array(starts_at_one.astype(np.int64)))
    names = ["start", "count", "suffix_min", "index_distinct", "first", "digits_min", "source_distinct"]
    found = groups.filter(pa.array(lacks)).select(names).sort_by("start").to_pylist()
    return [_Set(*map(_text, row.values())) for row in found]


def _numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return texts.cast(pa.string()).cast(pa.int64())


def _text(value: Any) -> Any:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _covers(glob: str, directory: str) -> bool:
    """Return True if a glob matches a directory, or a directory above it, and so all files in the
    directory.
    """
    while directory:
        if _matches(glob, directory):
            return True
        directory = parent_of(directory)
    return False


def _matches(glob: str, path: str) -> bool:
    return any(pattern.match(path) for pattern in _patterns(glob))


@lru_cache
def _patterns(glob: str) -> list[re.Pattern[str]]:
    return [re.compile(glob_translate(one)) for one in expand_braces(unquoted_path(glob))]
