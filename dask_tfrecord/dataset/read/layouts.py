"""Interpret directories that other tools wrote: find the split (such as "train") of each file.

TensorFlow Datasets (TFDS) describes the splits in ``dataset_info.json``. Each TFDS file name contains that of
the split. TFX writes a directory for each split, such as ``Split-train``.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, pairwise
from posixpath import commonpath
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_tfrecord.dataset.listing import TFDS_FILES, Listing
from dask_tfrecord.errors import (
    CorruptRecordError,
    Remedy,
    RemedyWarning,
    TFRecordError,
    short_list,
    warn_caller,
)
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.tfds import INFO
from dask_tfrecord.storage.paths import glob_start, name_of, parent_of, unquoted_path
from dask_tfrecord.storage.store import Store

# The template of TFDS file names for a split whose description contains no template.
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_FORMAT = "tfrecord"
_FIELD = re.compile(r"\{(\w+)\}")
_NUMBERS = {"SHARD_INDEX": r"\d{5,}", "NUM_SHARDS": r"\d{5,}", "SHARD_X_OF_Y": r"\d{5,}-of-\d{5,}"}


@dataclass(frozen=True)
class SplitDescription:
    """The description of a split in the TFDS file ``dataset_info.json``.

    ``template`` is the template of the file names, relative to the directory of the dataset. ``fields`` maps
    template fields to the values that all files of the split share. ``lengths`` contains the record count of
    each file, or is empty if they are unknown.
    """

    name: str
    template: str
    lengths: tuple[int, ...]
    fields: dict[str, str] = field(hash=False)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        fixed = {key: re.escape(value) for key, value in self.fields.items()}
        return re.compile(_filled(self.template, {**_NUMBERS, **fixed}, re.escape))

    @cached_property
    def shards(self) -> dict[str, int]:
        """Map each file of the split to its record count, or return {} if the template has unknown fields."""
        known = {*self.fields, *_NUMBERS}
        if not known.issuperset(_FIELD.findall(self.template)):
            return {}
        count = len(self.lengths)
        digits = max(5, len(str(count)))
        total = f"{count:0{digits}d}"
        found = {}
        for number, length in enumerate(self.lengths):
            index = f"{number:0{digits}d}"
            shard = {"SHARD_INDEX": index, "NUM_SHARDS": total, "SHARD_X_OF_Y": f"{index}-of-{total}"}
            found[_filled(self.template, {**self.fields, **shard})] = length
        return found


def _filled(template: str, values: dict[str, str], escape: Callable[[str], str] = str) -> str:
    """Fill in a file name template. A template field without a value becomes a pattern that matches any text
    without a slash.
    """
    parts = _FIELD.split(template)
    return "".join(values.get(one, "[^/]*") if at % 2 else escape(one) for at, one in enumerate(parts))


def read_info(store: Store, directory: str) -> dict[str, Any]:
    """Return the content of ``dataset_info.json`` in a directory, or an empty dict if the file does not
    exist.

    Raise TFRecordError if the file is not valid JSON, or if the file format of the dataset is not
    TFRecord.
    """
    path = f"{directory}/{INFO}"
    try:
        info = json.loads(store.read_file(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        problem = f"the description of a dataset is not valid JSON ({error})"
        advice = "correct the file, or pass the data files as a glob"
        raise TFRecordError(problem, advice, path=store.public(path)) from None
    if not isinstance(info, dict):
        return {}
    if info.get("fileFormat") not in (None, "", _FORMAT):
        problem = f"the files of the dataset have the format {info['fileFormat']!r} instead of {_FORMAT!r}"
        advice = f'prepare the dataset with tfds.builder(..., file_format="{_FORMAT}")'
        raise TFRecordError(problem, advice, path=store.public(directory))
    return info


def supervised_keys(info: Any) -> tuple[str, ...]:
    """Return the names of the features that ``dataset_info.json`` declares as the input and the label of a
    model.
    """
    if not isinstance(info, dict):
        return ()
    key = info.get("featureKey")
    found = [key] if isinstance(key, str) else []
    children = [info[name] for name in ("tuple", "dict", "input", "output") if name in info]
    for child in [*children, *(info.get("items") or ())]:
        found += [child] if isinstance(child, str) else supervised_keys(child)
    return tuple(found)


def read_descriptions(store: Store, directory: str) -> tuple[SplitDescription, ...]:
    """Return the splits that the TFDS file ``dataset_info.json`` in a directory lists, if there are any.

    Raise the errors of `read_info`, and TFRecordError if two splits have the same name.
    """
    info = read_info(store, directory)
    splits = info.get("splits")
    # In a Hugging Face `dataset_info.json`, "splits" is a mapping instead of a list.
    listed = splits if isinstance(splits, list) else []
    known = [one for one in listed if isinstance(one, dict) and isinstance(one.get("name"), str)]
    names = [one["name"] for one in known]
    if repeated := [name for name in names if names.count(name) > 1]:
        problem = f"the description of the dataset has two splits with the name {repeated[0]!r}"
        advice = "correct the file, or pass the data files as a glob"
        raise TFRecordError(problem, advice, path=store.public(f"{directory}/{INFO}"))
    found = []
    for one in known:
        lengths = one.get("shardLengths")
        numbers = [str(length) for length in lengths] if isinstance(lengths, list) else []
        are_valid = all(number.isdecimal() and len(number) < 20 for number in numbers)
        template = str(one.get("filepathTemplate") or _DEFAULT_TEMPLATE)
        fields = {"DATASET": str(info.get("name")), "SPLIT": one["name"], "FILEFORMAT": _FORMAT}
        counts = tuple(map(int, numbers)) if are_valid else ()
        found.append(SplitDescription(one["name"], template, counts, fields))
    return tuple(found)


# The name of the partition column that contains the name of each file's split.
SPLIT = "split"

# The value of ``split=`` that selects all splits, as in TFDS.
ALL = "all"

# The name of a split, several names, "all", or None if the caller does not choose.
WantedSplits: TypeAlias = str | tuple[str, ...] | None

# Matches names of TFDS files whose split has no description.
_DEFAULT_NAME = re.compile(r".+-(\w+)\.tfrecord-\d{5,}-of-\d{5,}")

# Matches a path up to the last directory that is named like a TFX split.
_TFX = re.compile(r"(.*/|)Split-([^/]+)/")

# Matches a path up to the last directory with the name of a split that many tools use.
_NAMED = re.compile(r"(?:.*/|)(train|test|eval|val|valid|validation|dev)/")

_MOST_NAMES = 8


@dataclass(frozen=True)
class FoundSplits:
    """The split of each listed file.

    For each file, ``names`` contains the name of the split, ``roots`` the directory of the dataset, and
    ``records`` the record count in the dataset's description. Each split, directory and record count may be
    None. ``missing`` maps each incomplete split to the first file that a description lists but that does not
    exist. ``descriptions`` maps each directory that TFDS describes to the splits of the directory. If
    ``is_guessed`` is True, only plain directory names, such as "train", tell which files are a split.
    """

    listing: Listing
    names: list[str | None]
    roots: list[str | None]
    records: list[int | None]
    missing: dict[str, str]
    descriptions: dict[str, tuple[SplitDescription, ...]]
    is_guessed: bool = False

    @property
    def is_whole_dataset(self) -> bool:
        """True if the caller passed one directory that contains the dataset with all splits."""
        base = unquoted_path(self.listing.base).rstrip("/")
        roots = {root for root in self.roots if root is not None}
        return bool(base) and all(f"{root}/".startswith(f"{base}/") for root in roots)

    @property
    def description(self) -> str | None:
        """The directory whose description applies to all files, if any."""
        roots = {*self.roots}
        root = roots.pop() if len(roots) == 1 else None
        return root if root in self.descriptions and self.is_whole_dataset else None

    def check_one_dataset(self) -> None:
        """Raise TFRecordError if one of the paths leads to several datasets, versions or configurations."""
        for group in self._groups:
            roots = sorted({root for root in self.roots[group] if root is not None})
            if len(roots) > 1:
                public = self.listing.store.public
                listed = short_list([repr(public(root)) for root in roots], _MOST_NAMES)
                problem = f"the path holds {len(roots)} datasets, versions or configurations: {listed}"
                advice = "pass one of these directories, or a list of them to read them together"
                raise TFRecordError(problem, advice, path=public(self.listing.store.root))

    def without_neighbours(self, *, warn: bool) -> npt.NDArray[np.bool_]:
        """Return a mask that excludes the files not listed in the description of a complete TFDS dataset."""
        is_listed = np.array(
            [
                name is not None or not self.is_whole_dataset or not self.descriptions.get(root or "")
                for name, root in zip(self.names, self.roots, strict=True)
            ],
            bool,
        )
        pairs = zip(self.listing.files.paths, is_listed, strict=True)
        others = [path for path, is_one in pairs if not is_one]
        if warn and others:
            named = ", ".join(map(name_of, others[:_MOST_NAMES]))
            root = self.listing.store.public()
            warn_caller(
                f"{root}: these {len(others)} files are not read: {named}; {INFO} does not list them; "
                "to read them, pass them as a glob"
            )
        return is_listed

    def check_one_split(self) -> None:
        """Raise TFRecordError if one of the paths leads to the files of several splits. Only warn if the
        splits are guessed from the names of directories.
        """
        mixed = [one for one in (Counter(self.names[group]) for group in self._groups) if len(one) > 1]
        if not mixed:
            return
        counts = mixed[0]
        if not self.is_guessed:
            raise self._mixture(counts)
        known = ", ".join(repr(f"{name}/") for name in sorted(filter(None, counts)))
        outside = ", and files outside of them" if counts[None] else ""
        problem = f"{self.listing.store.public()}: the rows of the directories {known}{outside} are mixed"
        one = "train" if "train" in counts else min(filter(None, counts))
        remedies = [
            Remedy(SPLIT, one, "read one of the directories"),
            Remedy(SPLIT, ALL, f"read all rows with a column {SPLIT!r}"),
        ]
        warn_caller(RemedyWarning(problem, remedies))

    def check_complete(self, chosen: Iterable[str | None]) -> None:
        """Raise CorruptRecordError if files of a chosen split are missing."""
        for name in chosen:
            if name in self.missing:
                glob = self._glob(name)
                problem = f"the file is missing, but {INFO} lists it as a file of the split {name!r}"
                advice = "restore the file" + (f', or read the files that exist as "{glob}"' if glob else "")
                others = sorted({one for one in self.names if one is not None} - self.missing.keys())
                one = others[0] if len(others) == 1 else others
                remedies = [Remedy(SPLIT, one, "read only the splits without missing files")] * bool(others)
                path = self.listing.store.public(self.missing[name])
                raise CorruptRecordError(problem, advice, path=path, remedies=remedies)

    @property
    def _groups(self) -> list[slice]:
        """One slice of the listing for each path that the caller passed."""
        return [slice(*edges) for edges in pairwise(accumulate(self.listing.counts, initial=0))]

    def _mixture(self, counts: Counter[str | None]) -> TFRecordError:
        known = sorted(name for name in counts if name is not None)
        listed = ", ".join(f"{name!r} (files: {counts[name]:,})" for name in known[:_MOST_NAMES])
        outside = f", and files of no split ({counts[None]:,})" if counts[None] else ""
        one = "train" if "train" in counts else known[0]
        glob = self._glob(one)
        return TFRecordError(
            f"the path holds the splits {listed}{outside}, which belong apart",
            f'pass the files of one split, such as "{glob}"' if glob else None,
            Remedy(SPLIT, one, "read one split"),
            Remedy(SPLIT, ALL, f"read all of them, with a column {SPLIT!r}"),
            path=self.listing.store.public(),
        )

    def _glob(self, name: str) -> str | None:
        """Return a glob that matches only the files of one split, or None if none is found."""
        paths = self.listing.files.paths
        own = {path for path, split in zip(paths, self.names, strict=True) if split == name}
        if not own:
            return None
        start = os.path.commonprefix([*own])  # noqa: RUF071  # `commonpath` ends at a slash, but the prefix of a glob may end within a file name
        if glob_start(start) < len(start):
            return None
        if any(path.startswith(start) for path in paths if path not in own):
            return None
        return self.listing.store.public(start) + "*" * (len(own) > 1)


def find_splits(listing: Listing) -> FoundSplits | None:
    """Find the splits of listed files. If no directory has the layout of TFDS or TFX, or the name of a split,
    return None.
    """
    store, paths = listing.store, list(map(unquoted_path, listing.files.paths))
    described = listing.described | _described_by_names(store, listing, paths)
    if not described and not any("/Split-" in path for path in paths):
        return _splits_of_names(listing, paths)
    descriptions = {unquoted_path(one): read_descriptions(store, one) for one in sorted(described)}
    splits = [_split_of(path, descriptions) for path in paths]
    shards = {
        f"{directory}/{name}": length
        for directory, of_directory in descriptions.items()
        for split in of_directory
        for name, length in split.shards.items()
    }
    present = set(paths)
    missing = {
        split.name: f"{directory}/{name}"
        for directory, of_directory in descriptions.items()
        if directory in set(map(unquoted_path, listing.described))
        for split in of_directory
        for name, length in reversed(split.shards.items())
        if length and f"{directory}/{name}" not in present
    }
    names, roots = [name for name, _ in splits], [root for _, root in splits]
    records = [shards.get(path) for path in paths]
    found = FoundSplits(listing, names, roots, records, missing, descriptions)
    return found if any(roots) or missing else _splits_of_names(listing, paths)


def _splits_of_names(listing: Listing, paths: Sequence[str]) -> FoundSplits | None:
    """Take directories such as ``train`` for splits. Return None if there is no such directory.

    The search starts below the directory that the caller passed, or below the common directory of the files.
    """
    names: list[str | None] = []
    for start, stop in pairwise(accumulate(listing.counts, initial=0)):
        group = paths[start:stop]
        base = unquoted_path(listing.base).rstrip("/") or (commonpath(map(parent_of, group)) if group else "")
        matches = (_NAMED.match(path[len(base) :]) for path in group)
        names += [match and match[1] for match in matches]
    nothing: list[Any] = [None] * len(names)
    found = FoundSplits(listing, names, nothing, nothing, {}, {}, is_guessed=True)
    return found if any(names) else None


def _split_of(
    path: str, descriptions: dict[str, tuple[SplitDescription, ...]]
) -> tuple[str | None, str | None]:
    """Return the split of a file, and the directory of its dataset. Either may be None."""
    directory = parent_of(path)
    while directory and directory not in descriptions:
        directory = parent_of(directory)
    if directory:
        name = path[len(directory) + 1 :]
        for split in descriptions[directory]:
            if split.pattern.fullmatch(name):
                return split.name, directory
        if not descriptions[directory] and (match := _DEFAULT_NAME.fullmatch(name)):
            return match[1], directory
    if match := _TFX.match(path):
        return match[2], match[1].rstrip("/")
    return None, directory or None


def _described_by_names(store: Store, listing: Listing, paths: Sequence[str]) -> frozenset[str]:
    """Return the directories that have a TFDS description and whose file names suggest several splits or
    versions.

    Look for them only if the caller passed globs or lists of files. The listing of a directory includes the
    description files.
    """
    if listing.base:
        return frozenset()
    splits: dict[str, set[str]] = {}
    for path in paths:
        if ".tfrecord-" not in path or path in listing.spelled_out or parent_of(path) in listing.described:
            continue
        if match := _DEFAULT_NAME.fullmatch(name_of(path)):
            splits.setdefault(parent_of(path), set()).add(match[1])
    # Check several directories even if all files belong to one split, because the directories may be versions
    # of a dataset.
    suspicious = [one for one in splits if len(splits[one]) > 1 or len(splits) > 1]
    return described_directories(store, suspicious)


def described_directories(store: Store, directories: Iterable[str]) -> frozenset[str]:
    """Return the directories that contain a description file of TFDS."""

    def is_described(directory: str) -> bool:
        return any(store.has_file(f"{directory}/{name}") for name in TFDS_FILES)

    wanted = sorted(directories)
    return frozenset(compress(wanted, store.for_each(is_described, wanted)))


def _unknown_split(
    listing: Listing, wanted: str | tuple[str, ...], available: Sequence[str]
) -> TFRecordError:
    """Return the exception for an unknown split. If ``wanted`` contains a slice or a sum of splits, explain
    that these are not supported.
    """
    given = (wanted,) if isinstance(wanted, str) else wanted
    names = tuple(
        dict.fromkeys(re.sub(r"\[.*", "", one).strip() for text in given for one in text.split("+"))
    )
    if not available:
        problem = f"split={wanted!r}: the files are not divided into splits"
        everything = Remedy(SPLIT, None, "read all rows")
        return TFRecordError(problem, everything, path=listing.store.public(), keyword=SPLIT)
    listed = ", ".join(map(repr, available[:_MOST_NAMES]))
    problem = f"split={wanted!r}: the path does not have this split; its splits are: {listed}"
    if names == given:
        return TFRecordError(problem, path=listing.store.public())
    is_known = {*names}.issubset(available)
    whole = Remedy(SPLIT, names if len(names) > 1 else names[0], "read all rows of each split")
    return TFRecordError(
        f'{problem}; slices such as "train[:10%]" and sums such as "train+test" are not supported',
        remedies=[whole] if is_known else [],
        path=listing.store.public(),
        keyword=SPLIT,
    )


class ChosenFiles(NamedTuple):
    """The files to read: ``mask`` selects files from the listing, and all other fields describe the chosen
    files.

    ``names`` contains the split of each chosen file, or is None if the result has no split column. If TFDS
    describes the files, ``records`` contains the described record count of each chosen file. The
    ``features.json`` in the directory ``description`` describes the columns.
    """

    mask: pa.Array
    names: pa.Array | None = None
    records: pa.Array | None = None
    description: str | None = None


def choose_files(
    listing: Listing, known: pa.Array | None, wanted: WantedSplits, *, expects_all: bool = True
) -> ChosenFiles:
    """Choose the files of the requested splits.

    ``known`` contains the value of the partition column ``split`` for each file. If it is None, the layout of
    the directories determines the splits. For a directory with a complete dataset, ``wanted=None`` means
    "all". For other paths, it raises if the layout has several splits, and only warns if plain directory
    names such as "train" are the only sign of them. Warn about files in a TFDS directory that are not read
    because the description does not list them.

    Raise TFRecordError if one path leads to several datasets, or if ``wanted`` names an unknown split. Raise
    TFRecordError if ``wanted`` is None and one path leads to several splits. Raise CorruptRecordError if the
    dataset's description lists a file of a chosen split that does not exist. If ``expects_all`` is True, the
    choice of all splits includes those without any file.
    """
    splits = find_splits(listing)
    is_read = np.ones(len(listing.files), bool)
    names: list[str | None] = [None] * len(listing.files)
    if splits is not None:
        splits.check_one_dataset()
        is_read = splits.without_neighbours(warn=wanted in (None, ALL))
    if known is not None:
        names = known.cast(pa.string()).to_pylist()
    elif splits is not None:
        names = splits.names
        is_mixed = any(name is None for name, is_one in zip(names, is_read, strict=True) if is_one)
        if wanted is None and splits.is_whole_dataset and not is_mixed and not splits.is_guessed:
            wanted = ALL
        elif wanted is None:
            splits.check_one_split()
    chosen = {name for name, is_one in zip(names, is_read, strict=True) if is_one}
    lost = splits.missing.keys() if splits is not None and expects_all else set()
    available = sorted({name for name in chosen if name is not None} | lost)
    if wanted is None or (wanted == ALL and available):
        chosen |= lost
    else:
        chosen = {wanted} if isinstance(wanted, str) else {*wanted}
        if not chosen.issubset(available):
            raise _unknown_split(listing, wanted, available)
    mask = pa.array(is_read & np.array([name in chosen for name in names], bool))
    is_one = wanted is None or (isinstance(wanted, str) and wanted != ALL)
    of_files = None if is_one else pa.array(names, pa.string()).filter(mask)
    if splits is None:
        return ChosenFiles(mask, of_files)
    splits.check_complete(name for name in (*names, *splits.missing) if name in chosen)
    return ChosenFiles(mask, of_files, pa.array(splits.records, pa.int64()).filter(mask), splits.description)
