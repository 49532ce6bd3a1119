"""Globs for error messages: they match the TFRecord files of a directory, not the others. Opens no file."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from dask_tfrecord.files.storage.listing import Listing
from dask_tfrecord.files.storage.paths import glob_start, name_of, parent_of

# A directory, and globs for names below it, each with a bit mask of the inspected names that it matches.
# The globs travel in every task, so their number is limited.
SuggestedGlobs: TypeAlias = tuple[str, tuple[tuple[str, int], ...]]
NO_GLOBS: SuggestedGlobs = ("", ())
_MAX_GLOBS = 12
_MAX_NAMES = 64

# The most globs that one message proposes.
_MAX_TOGETHER = 6

# Names that are usual for TFRecord files, and names that are usual for the files beside them.
_TFRECORD_NAME = re.compile(r"tfr", re.IGNORECASE)
_OTHER_NAME = re.compile(
    r"^(readme|license|changelog|checkpoint|makefile)|tfevents|\.(md|rst|txt|csv|tsv|jsonl?|ya?ml|toml|xml|html?|pdf"
    r"|pbtxt|pb|py|ipynb|sh|log|png|jpe?g|gif|zip|tar|pkl|pickle|np[yz]|parquet|h5|hdf5|spec|index|meta)(\.gz)?$",
    re.IGNORECASE,
)


def suggest_globs(listing: Listing) -> SuggestedGlobs:
    """Return globs that match the names of listed files below one directory; none for a list of paths."""
    root = listing.store.root
    start = glob_start(root)
    base = listing.base or (parent_of(root[:start]) if start < len(root) else "")
    if not base or glob_start(base) < len(base):
        return NO_GLOBS
    every = dict.fromkeys(name_of(file.path) for file in listing.files)
    names = [name for name in every if not _OTHER_NAME.search(name)]
    names = names[:: -(-len(names) // _MAX_NAMES) or 1]
    patterns = dict.fromkeys(pattern for name in names for pattern in _patterns(name))
    masks = {one: sum(1 << at for at, name in enumerate(names) if fnmatchcase(name, one)) for one in patterns}
    best = sorted(masks, key=lambda one: (not _TFRECORD_NAME.search(one), -masks[one].bit_count(), -len(one)))
    public = listing.store.public(base).rstrip("/")
    return public, tuple((one, masks[one]) for one in best[:_MAX_GLOBS])


def exclusion_advice(globs: SuggestedGlobs, path: str) -> str:
    """Return the advice to leave a file out, with a glob that matches the other files if there is one."""
    name = name_of(path)
    root, patterns = globs
    chosen = _cover([(glob, mask) for glob, mask in patterns if not fnmatchcase(name, glob)])
    if not chosen:
        return "move the file elsewhere, or pass a glob or a list without it"
    together = chosen[0] if len(chosen) == 1 else f"{{{','.join(chosen)}}}"
    return f'leave the file out, for example with the glob "{root}/**/{together}"'


def _cover(usable: Sequence[tuple[str, int]]) -> list[str]:
    """Choose a few globs that together match all names; stop at one that is usual for TFRecord files."""
    found: list[str] = []
    seen = 0
    while usable and len(found) < _MAX_TOGETHER:
        glob, mask = usable[0] if not found else max(usable, key=lambda one: (one[1] & ~seen).bit_count())
        if not mask & ~seen:
            break
        found.append(glob)
        seen |= mask
        if _TFRECORD_NAME.search(glob):
            break
    return found


def _patterns(name: str) -> Iterable[str]:
    """Return globs for names that share an extension or the beginning with this name."""
    stem, *extensions = name.split(".")
    for extension in extensions:
        if word := re.match(r"[A-Za-z]\w*", extension):
            yield f"*.{word[0]}*"
    if begin := re.match(r"[A-Za-z]+", stem):
        yield f"{begin[0]}*"
    elif stem[:1].isdigit():
        yield "[0-9]*"
