"""Globs that read the rest of some files where one of them is something else. Opens no file."""

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from dask_tfrecord.dataset.listing import Listing

# Names that are looked at, and globs that are kept.
_NAMES = 4096
_GLOBS = 8

_MAGIC = re.compile(r"[*?\[{]")

# How people call TFRecord files.
_USUAL = re.compile(r"tfr", re.IGNORECASE)


Globs: TypeAlias = Sequence[tuple[str, int]]


def globs_of(listing: Listing) -> tuple[tuple[str, int], ...]:
    """Globs that match many of the listed files by their names, and how many, the best first.

    There are none for a list of paths.
    """
    root = listing.store.root
    base = listing.base or (
        root[: found.start()].rpartition("/")[0] if (found := _MAGIC.search(root)) else ""
    )
    if not base or _MAGIC.search(base) or len(listing.files) < 2:
        return ()
    names = [file.path.rpartition("/")[2] for file in listing.files]
    sizes: Counter[str] = Counter()
    for file, name in list(zip(listing.files, names, strict=True))[:: -(-len(names) // _NAMES)]:
        sizes.update(dict.fromkeys(_globs(name), 1 + (file.size or 0)))
    usual = sorted(sizes, key=lambda glob: (not _USUAL.search(glob), -sizes[glob], -len(glob)))
    root = listing.store.public(base).rstrip("/")
    return tuple(
        (f"{root}/**/{glob}", sum(fnmatchcase(name, glob) for name in names)) for glob in usual[:_GLOBS]
    )


def without(globs: Globs, path: str) -> str:
    """The advice to leave a file out, with a glob that reads others if there is one."""
    name = path.rpartition("/")[2]
    found = next((one for one in globs if not fnmatchcase(name, one[0].rpartition("/")[2])), None)
    if found is None:
        return "move the file elsewhere, or pass a glob or a list without it"
    glob, count = found
    return f'leave the file out, for example with the glob "{glob}", which {count:,} files match'


def _globs(name: str) -> set[str]:
    """Globs for names like this one: by its beginning, and by its extensions."""
    found = set()
    stem, *extensions = name.split(".")
    if begin := re.match(r"[A-Za-z]+", stem):
        found.add(f"{begin[0]}*")
    elif stem[:1].isdigit():
        found.add("[0-9]*")
    for extension in extensions:
        if word := re.match(r"[A-Za-z]\w*", extension):
            found.add(f"*.{word[0]}*")
    if extensions and re.fullmatch(r"\w+", extensions[-1]):
        found.add(f"*.{extensions[-1]}")
    return found
