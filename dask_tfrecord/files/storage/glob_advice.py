"""SuggestedGlobs that read the rest of some files where one of them is something else. Opens no file."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from dask_tfrecord.files.storage.listing import Listing
from dask_tfrecord.files.storage.paths import name_of, parent_of

# A directory, and globs of names below it, each with a bit for every name that was looked at and matches.
# They travel in each task, so there are few.
SuggestedGlobs: TypeAlias = tuple[str, tuple[tuple[str, int], ...]]
NO_GLOBS: SuggestedGlobs = ("", ())
_MOST = 12
_NAMES = 64

# SuggestedGlobs that are proposed together.
_TOGETHER = 6

_MAGIC = re.compile(r"[*?\[{]")

# How people call TFRecord files, and how they call what lies beside them.
_USUAL = re.compile(r"tfr", re.IGNORECASE)
_OTHER = re.compile(
    r"^(readme|license|changelog|checkpoint|makefile)|tfevents|\.(md|rst|txt|csv|tsv|jsonl?|ya?ml|toml|xml|html?|pdf"
    r"|pbtxt|pb|py|ipynb|sh|log|png|jpe?g|gif|zip|tar|pkl|pickle|np[yz]|parquet|h5|hdf5|spec|index|meta)(\.gz)?$",
    re.IGNORECASE,
)


def suggest_globs(listing: Listing) -> SuggestedGlobs:
    """SuggestedGlobs below one directory that match the names of listed files; none for a list of paths."""
    root = listing.store.root
    base = listing.base or (parent_of(root[: found.start()]) if (found := _MAGIC.search(root)) else "")
    if not base or _MAGIC.search(base):
        return NO_GLOBS
    every = dict.fromkeys(name_of(file.path) for file in listing.files)
    names = [name for name in every if not _OTHER.search(name)]
    names = names[:: -(-len(names) // _NAMES) or 1]
    patterns = dict.fromkeys(pattern for name in names for pattern in _patterns(name))
    masks = {one: sum(1 << at for at, name in enumerate(names) if fnmatchcase(name, one)) for one in patterns}
    best = sorted(masks, key=lambda one: (not _USUAL.search(one), -masks[one].bit_count(), -len(one)))
    public = listing.store.public(base).rstrip("/")
    return public, tuple((one, masks[one]) for one in best[:_MOST])


def exclusion_advice(globs: SuggestedGlobs, path: str) -> str:
    """The advice to leave a file out, with a glob that reads others if there is one."""
    name = name_of(path)
    root, patterns = globs
    chosen = _cover([(glob, mask) for glob, mask in patterns if not fnmatchcase(name, glob)])
    if not chosen:
        return "move the file elsewhere, or pass a glob or a list without it"
    together = chosen[0] if len(chosen) == 1 else f"{{{','.join(chosen)}}}"
    return f'leave the file out, for example with the glob "{root}/**/{together}"'


def _cover(usable: Sequence[tuple[str, int]]) -> list[str]:
    """A few globs that together match all names; only the first if people call TFRecord files like this."""
    found: list[str] = []
    seen = 0
    while usable and len(found) < _TOGETHER:
        glob, mask = usable[0] if not found else max(usable, key=lambda one: (one[1] & ~seen).bit_count())
        if not mask & ~seen:
            break
        found.append(glob)
        seen |= mask
        if _USUAL.search(glob):
            break
    return found


def _patterns(name: str) -> Iterable[str]:
    """SuggestedGlobs for names like this one: by its extensions, and by its beginning."""
    stem, *extensions = name.split(".")
    for extension in extensions:
        if word := re.match(r"[A-Za-z]\w*", extension):
            yield f"*.{word[0]}*"
    if begin := re.match(r"[A-Za-z]+", stem):
        yield f"{begin[0]}*"
    elif stem[:1].isdigit():
        yield "[0-9]*"
