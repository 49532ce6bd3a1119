"""Read the ``dataset_info.json`` of TensorFlow Datasets (TFDS): the splits of a dataset and their files."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.tfds import INFO

# The template of TFDS file names for a split whose description has no template.
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_FORMAT = "tfrecord"
_FIELD = re.compile(r"\{(\w+)\}")
_NUMBERS = {"SHARD_INDEX": r"\d{5,}", "NUM_SHARDS": r"\d{5,}", "SHARD_X_OF_Y": r"\d{5,}-of-\d{5,}"}


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

    @cached_property
    def shards(self) -> dict[str, int]:
        """The number of records of each file of the split.

        The dict is empty if the template of the names has unknown fields.
        """
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
    """Replace the fields of a file name template by values.

    A field without a value becomes a pattern for any text.
    """
    parts = _FIELD.split(template)
    return "".join(values.get(one, "[^/]*") if at % 2 else escape(one) for at, one in enumerate(parts))


def read_info(store: Store, directory: str) -> dict[str, Any]:
    """Return the content of the ``dataset_info.json`` in a directory.

    The dict is empty if the file does not exist.

    Raises
    ------
    TFRecordError
        If the file ``dataset_info.json`` is not valid JSON, or if the dataset has another file format than
        TFRecord.
    """
    path = f"{directory}/{INFO}"
    try:
        info = json.loads(store.fs.cat_file(path))
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
    """Return the features that ``dataset_info.json`` calls the input and the label of a model."""
    if not isinstance(info, dict):
        return ()
    key = info.get("featureKey")
    found = [key] if isinstance(key, str) else []
    children = [info[name] for name in ("tuple", "dict", "input", "output") if name in info]
    for child in [*children, *(info.get("items") or ())]:
        found += [child] if isinstance(child, str) else supervised_keys(child)
    return tuple(found)


def read_descriptions(store: Store, directory: str) -> tuple[SplitDescription, ...]:
    """Return the splits that the ``dataset_info.json`` of TFDS in a directory lists; see `read_info`.

    The tuple is empty if the file does not exist or lists no splits.

    Raises
    ------
    TFRecordError
        If the description lists two splits with one name.
    """
    info = read_info(store, directory)
    splits = info.get("splits")
    # In a Hugging Face `dataset_info.json`, "splits" is a mapping instead of a list.
    known = [one for one in splits if isinstance(one, dict)] if isinstance(splits, list) else []
    names = [one["name"] for one in known if isinstance(one.get("name"), str)]
    if repeated := [name for name in names if names.count(name) > 1]:
        problem = f"the description of the dataset has two splits with the name {repeated[0]!r}"
        advice = "correct the file, or pass the data files as a glob"
        raise TFRecordError(problem, advice, path=store.public(f"{directory}/{INFO}"))
    found = []
    for one in [one for one in known if isinstance(one.get("name"), str)]:
        lengths = one.get("shardLengths")
        numbers = [str(length) for length in lengths] if isinstance(lengths, list) else []
        are_valid = all(number.isdecimal() and len(number) < 20 for number in numbers)
        template = str(one.get("filepathTemplate") or _DEFAULT_TEMPLATE)
        fields = {"DATASET": str(info.get("name")), "SPLIT": one["name"]}
        fields["FILEFORMAT"] = _FORMAT
        found.append(
            SplitDescription(one["name"], template, tuple(map(int, numbers)) if are_valid else (), fields)
        )
    return tuple(found)
