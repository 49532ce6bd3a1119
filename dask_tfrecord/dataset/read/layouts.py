"""Find the split of each file in directories that TensorFlow Datasets (TFDS) or TFX wrote.

TFDS describes the splits in ``dataset_info.json``, and the file names contain the name of the split. TFX
writes a directory for each split, such as ``Split-train``. The types of columns are not taken from TFDS or
TFX.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeAlias

import pyarrow as pa

from dask_tfrecord.errors import CorruptRecordError, Remedy, TFRecordError
from dask_tfrecord.files.storage.listing import TFDS_FILES, Listing
from dask_tfrecord.files.storage.paths import glob_start, name_of, parent_of, unquoted_path
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.lazy import cached_property

# The name of the partition column that holds the name of each file's split.
SPLIT = "split"

# The value of ``split=`` that stands for all splits, as in TFDS.
ALL = "all"

# The name of a split, the names of several splits, "all", or None if the caller does not choose a split.
WantedSplits: TypeAlias = str | tuple[str, ...] | None

_INFO = TFDS_FILES[0]

# The template of TFDS file names for a split whose description has no template.
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_DEFAULT_NAME = re.compile(r".+-(\w+)\.tfrecord-\d{5,}-of-\d{5,}")
_FIELD = re.compile(r"\{(\w+)\}")
_NUMBERS = {"SHARD_INDEX": r"\d{5,}", "NUM_SHARDS": r"\d{5,}", "SHARD_X_OF_Y": r"\d{5,}-of-\d{5,}"}

# Pattern of a path up to its last directory of a TFX split.
_TFX = re.compile(r"(.*/|)Split-([^/]+)/")

_THREADS = 16
_MOST_NAMES = 8


@dataclass(frozen=True)
class SplitDescription:
    """The description of a split in the ``dataset_info.json`` of TFDS.

    Attributes
    ----------
    name : str
        The name of the split.
    template : str
        The template of the names of the split's files, relative to the directory of the dataset.
    lengths : tuple of int
        The number of records of each file of the split, or an empty tuple if the numbers are unknown.
    fields : dict of str to str
        The values of those template fields that are the same for all files.
    """

    name: str
    template: str
    lengths: tuple[int, ...]
    fields: dict[str, str] = field(hash=False)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The regular expression that the names of the split's files match."""
        fixed = {key: re.escape(value) for key, value in self.fields.items()}
        return re.compile(_filled(self.template, {**_NUMBERS, **fixed}, re.escape))

    def names(self) -> list[str]:
        """Return the names of the split's non-empty files, or an empty list if the template has unknown
        fields.
        """
        known = {*self.fields, *_NUMBERS}
        if not known.issuperset(_FIELD.findall(self.template)):
            return []
        count = len(self.lengths)
        digits = max(5, len(str(count)))
        total = f"{count:0{digits}d}"
        found = []
        for number in (number for number, length in enumerate(self.lengths) if length):
            index = f"{number:0{digits}d}"
            shard = {"SHARD_INDEX": index, "NUM_SHARDS": total, "SHARD_X_OF_Y": f"{index}-of-{total}"}
            found.append(_filled(self.template, {**self.fields, **shard}))
        return found


def _filled(template: str, values: dict[str, str], escape: Callable[[str], str] = str) -> str:
    """Replace the fields of a file name template by values.

    A field without a value becomes a pattern for any text.
    """
    parts = _FIELD.split(template)
    return "".join(values.get(one, "[^/]*") if at % 2 else escape(one) for at, one in enumerate(parts))


def read_descriptions(store: Store, directory: str) -> tuple[SplitDescription, ...]:
    """Return the splits that the ``dataset_info.json`` of TFDS in a directory lists.

    The tuple of splits is empty if the file does not exist or lists no splits.

    Raises
    ------
    TFRecordError
        If the file ``dataset_info.json`` is not valid JSON.
    """
    path = f"{directory}/{_INFO}"
    try:
        info = json.loads(store.fs.cat_file(path))
    except FileNotFoundError:
        return ()
    except (ValueError, RecursionError) as error:
        raise TFRecordError(
            f"the description of a dataset is not valid JSON ({error})",
            path=store.public(path),
            advice="remove the file, or pass the data files as a glob",
        ) from None
    splits = info.get("splits") if isinstance(info, dict) else None
    # In a Hugging Face `dataset_info.json`, "splits" is a mapping instead of a list.
    known = [one for one in splits if isinstance(one, dict)] if isinstance(splits, list) else []
    found = []
    for one in [one for one in known if isinstance(one.get("name"), str)]:
        lengths = one.get("shardLengths")
        numbers = [str(length) for length in lengths] if isinstance(lengths, list) else []
        are_valid = all(number.isdecimal() and len(number) < 20 for number in numbers)
        template = str(one.get("filepathTemplate") or _DEFAULT_TEMPLATE)
        fields = {"DATASET": str(info.get("name")), "SPLIT": one["name"]}
        fields["FILEFORMAT"] = str(info.get("fileFormat") or "tfrecord")
        found.append(
            SplitDescription(one["name"], template, tuple(map(int, numbers)) if are_valid else (), fields)
        )
    return tuple(found)


@dataclass(frozen=True)
class FoundSplits:
    """The splits to which listed files belong.

    Attributes
    ----------
    listing : Listing
        The listing of the files.
    names : list of str or None
        The split of each file, or None if a file belongs to no split.
    roots : list of str or None
        The directory of the dataset to which each file belongs, or None if a file belongs to no dataset.
    missing : dict of str to str
        Map from the name of a split to the first missing file that the description of the split lists.
    """

    listing: Listing
    names: list[str | None]
    roots: list[str | None]
    missing: dict[str, str]

    def check_one_dataset(self) -> None:
        """Raise TFRecordError if one of the paths leads to several datasets, versions or configurations."""
        for group in self._groups:
            roots = sorted({root for root in self.roots[group] if root is not None})
            if len(roots) > 1:
                public = self.listing.store.public
                listed = ", ".join(repr(public(root)) for root in roots[:_MOST_NAMES])
                more = f" and {len(roots) - _MOST_NAMES} more" if len(roots) > _MOST_NAMES else ""
                raise TFRecordError(
                    f"the path holds {len(roots)} datasets, versions or configurations: {listed}{more}",
                    path=public(self.listing.store.root),
                    advice="pass one of these directories, or a list of them to read them together",
                )

    def check_one_split(self) -> None:
        """Raise TFRecordError if one of the paths leads to the files of several splits."""
        for group in self._groups:
            counts = Counter(self.names[group])
            if len(counts) > 1:
                raise self._mixture(counts)

    def check_complete(self, chosen: Iterable[str | None]) -> None:
        """Raise CorruptRecordError if files of a chosen split are missing."""
        for name in chosen:
            if name in self.missing:
                glob = self._glob(name)
                raise CorruptRecordError(
                    f"the file is missing, but {_INFO} lists it as a file of the split {name!r}",
                    path=self.listing.store.public(self.missing[name]),
                    advice=f'restore the file, or read the files that exist as "{glob}"' if glob else None,
                )

    @property
    def _groups(self) -> list[slice]:
        """For each path that the caller passed, the slice of the files that the path stands for."""
        return [slice(*edges) for edges in pairwise(accumulate(self.listing.counts, initial=0))]

    def _mixture(self, counts: Counter[str | None]) -> TFRecordError:
        known = sorted(name for name in counts if name is not None)
        listed = ", ".join(f"{name!r} (files: {counts[name]:,})" for name in known[:_MOST_NAMES])
        outside = f", and files of no split ({counts[None]:,})" if counts[None] else ""
        one = "train" if "train" in counts else known[0]
        glob = self._glob(one)
        return TFRecordError(
            f"the path holds the splits {listed}{outside}, which belong apart",
            path=self.listing.store.public(self.listing.store.root),
            advice=f'pass the files of one split, such as "{glob}"' if glob else None,
            remedies=[
                Remedy(SPLIT, one, "read one split"),
                Remedy(SPLIT, ALL, f"read all of them, with a column {SPLIT!r}"),
            ],
        )

    def _glob(self, name: str) -> str | None:
        """Return a glob that matches only the files of one split, or None if no such glob is found."""
        paths = self.listing.paths
        own = {path for path, split in zip(paths, self.names, strict=True) if split == name}
        if not own:
            return None
        start = os.path.commonprefix([*own])  # noqa: RUF071  # the prefix of a glob may end within a name, so whole path components are not meant
        if glob_start(start) < len(start):
            return None
        if any(path.startswith(start) for path in paths if path not in own):
            return None
        return self.listing.store.public(start) + "*" * (len(own) > 1)


def find_splits(listing: Listing) -> FoundSplits | None:
    """Find the splits of listed files. If no directory has the layout of TFDS or TFX, return None.

    Raises
    ------
    TFRecordError
        If the description of a dataset is not valid JSON.
    """
    store, paths = listing.store, list(map(unquoted_path, listing.paths))
    described = listing.described | _described_by_names(store, listing, paths)
    if not described and not any("/Split-" in path for path in paths):
        return None
    descriptions = {unquoted_path(one): read_descriptions(store, one) for one in sorted(described)}
    splits = [_split_of(path, descriptions) for path in paths]
    present = set(paths)
    missing = {
        split.name: f"{directory}/{name}"
        for directory, of_directory in descriptions.items()
        if directory in set(map(unquoted_path, listing.described))
        for split in of_directory
        for name in reversed(split.names())
        if f"{directory}/{name}" not in present
    }
    names, roots = [name for name, _ in splits], [root for _, root in splits]
    return FoundSplits(listing, names, roots, missing) if any(roots) else None


def _split_of(
    path: str, descriptions: dict[str, tuple[SplitDescription, ...]]
) -> tuple[str | None, str | None]:
    """Return the split of a file, and the directory of the file's dataset. Each of the two may be None."""
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
    """Return the directories that TFDS describes among the directories whose file names hold several splits.

    This search is needed for globs and lists of files, which do not list the description files. The listing
    of a directory already includes the description files.
    """
    if listing.base:
        return frozenset()
    splits: dict[str, set[str]] = {}
    for path in paths:
        if ".tfrecord-" not in path or path in listing.spelled_out or parent_of(path) in listing.described:
            continue
        if match := _DEFAULT_NAME.fullmatch(name_of(path)):
            splits.setdefault(parent_of(path), set()).add(match[1])
    # Files of one split from several versions of a dataset are also a mixture.
    suspicious = [one for one in splits if len(splits[one]) > 1 or len(splits) > 1]
    return described_directories(store, suspicious)


def described_directories(store: Store, directories: Iterable[str]) -> frozenset[str]:
    """Return the directories that hold a file in which TFDS describes a dataset, such as
    ``dataset_info.json``.
    """

    def is_described(directory: str) -> bool:
        return any(store.fs.exists(f"{directory}/{name}") for name in TFDS_FILES)

    wanted = sorted(directories)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(is_described, wanted))
    return frozenset(one for one, is_found in zip(wanted, found, strict=True) if is_found)


def choose_files(
    listing: Listing, known: pa.Array | None, wanted: WantedSplits
) -> tuple[pa.Array, pa.Array | None]:
    """Choose the files of the wanted splits.

    Parameters
    ----------
    listing : Listing
        The listing of the files.
    known : pyarrow.Array, optional
        The value of the partition column ``split`` for each file. If None, the splits are found from the
        layout of the directories.
    wanted : str or tuple of str, optional
        The name of a split, the names of several splits, or "all". If None, all files are chosen, and an
        error is raised if the layout shows several splits.

    Returns
    -------
    mask : pyarrow.Array
        A mask with an element for each file, which is True if the file is chosen.
    names : pyarrow.Array or None
        The split of each chosen file, or None if ``wanted`` is None or names one split.

    Raises
    ------
    TFRecordError
        If one path leads to several datasets, if ``wanted`` is None and one path leads to several splits, or
        if ``wanted`` names an unknown split.
    CorruptRecordError
        If a file of a chosen split is missing, although the description of the dataset lists the file.
    """
    found = find_splits(listing)
    if found is not None:
        found.check_one_dataset()
    names: list[str | None] = [None] * len(listing.files)
    if known is not None:
        names = known.cast(pa.string()).to_pylist()
    elif found is not None:
        names = found.names
        if wanted is None:
            found.check_one_split()
    chosen = {*names}
    available = sorted(name for name in chosen if name is not None)
    if wanted is not None and not (wanted == ALL and available):
        chosen = {wanted} if isinstance(wanted, str) else {*wanted}
        if not chosen.issubset(available):
            listed = ", ".join(map(repr, available[:_MOST_NAMES])) or "none"
            raise TFRecordError(
                f"split={wanted!r}: the path does not have this split; its splits are: {listed}",
                path=listing.store.public(listing.store.root),
            )
    if found is not None:
        found.check_complete(name for name in names if name in chosen)
    mask = pa.array([name in chosen for name in names], pa.bool_())
    is_one = wanted is None or (isinstance(wanted, str) and wanted != ALL)
    return mask, None if is_one else pa.array(names, pa.string()).filter(mask)
