"""Validate the arguments of the public functions, and take defaults from Dask's configuration.

The typed dicts, such as `RequestKeywords`, declare each keyword once, with its type and default. The
functions convert an argument to one standard type, and accept the spellings of other libraries if the meaning
is clear.
Every error names the keyword whose value is wrong. The file ``dask-tfrecord.yaml`` lists the configuration
keys ``dask-tfrecord.*`` with their meaning and built-in default.
"""

import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, SupportsIndex, TypeAlias, TypedDict, TypeVar

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from dask.utils import parse_bytes

from dask_tfrecord.codec import MAX_RECORD_BYTES, RecordType, limit_pool
from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.dataset.names import CONSTANT_NAME
from dask_tfrecord.dataset.read.columns import GivenHive, GivenSchema, Infer
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import Remedy, TFRecordError, did_you_mean
from dask_tfrecord.files.damage import OnCorrupt
from dask_tfrecord.files.file_options import MAX_FEATURES, Extra
from dask_tfrecord.keywords.public_functions import parameters_of
from dask_tfrecord.schema.fields import Lossy, Schema
from dask_tfrecord.schema.tfds import Labels
from dask_tfrecord.storage.block_cache import LEAST_BYTES, BlockCache
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.in_flight import limit_in_flight
from dask_tfrecord.storage.paths import PathLike, path_text
from dask_tfrecord.storage.redaction import without_credentials

Value = TypeVar("Value")
Keywords = TypeVar("Keywords")

_NAME = "dask-tfrecord"
_DEFAULTS = yaml.safe_load(Path(__file__).with_name("dask-tfrecord.yaml").read_text())

dask.config.update_defaults(_DEFAULTS)


def keyword_or_default(
    keyword: str, value: Any, check: Callable[[Any], Value], unset: str | None = "default"
) -> Value:
    """Validate the value of a keyword, or that in Dask's configuration if it equals ``unset``.

    The configuration key is ``dask-tfrecord.`` followed by the keyword, with "-" instead of "_". An error
    about a configured value names this key.
    """
    if not isinstance(value, str | None) or value != unset:
        return check(value)
    name = keyword.replace("_", "-")
    key, default = f"{_NAME}.{name}", _DEFAULTS[_NAME][name]
    configured = dask.config.get(key, default=default)
    try:
        return check(configured)
    except TFRecordError as error:
        raise error.replaced(
            problem=f"the value {configured!r} of {key!r} in Dask's configuration: {error.problem}",
            advice="change the configuration",
            remedies=[] if default == unset else [Remedy(keyword, default, "override the configuration")],
            function="",
        ) from None


def limit_memory_pool() -> None:
    """Let this process keep at most ``dask-tfrecord.memory-pool`` bytes of memory for later batches."""
    key = f"{_NAME}.memory-pool"
    configured = dask.config.get(key, default=None)
    if configured is None:
        return
    try:
        limit_pool(parse_bytes(configured))
    except (ValueError, TypeError, AttributeError):
        problem = f"the value {configured!r} of {key!r} in Dask's configuration is not a number of bytes"
        raise TFRecordError(problem, "write it as '256 MiB'") from None


def in_flight_bytes() -> int:
    """Return how many bytes this process may have in flight from and to remote stores."""
    key = f"{_NAME}.in-flight"
    configured = dask.config.get(key, default=_DEFAULTS[_NAME]["in-flight"])
    try:
        return max(0, int(parse_bytes(configured)))
    except (ValueError, TypeError, AttributeError):
        problem = f"the value {configured!r} of {key!r} in Dask's configuration is not a number of bytes"
        raise TFRecordError(problem, "write it as '64 MiB'") from None


limit_in_flight(in_flight_bytes)

# The codec names that ``compression=`` accepts, including TensorFlow's spellings.
AnyCompression: TypeAlias = Compression | Literal["", "GZIP", "ZLIB"]
AnySchema: TypeAlias = GivenSchema | Literal["infer"]
ReadSchema: TypeAlias = AnySchema | PathLike
AnyRecordType: TypeAlias = RecordType | Literal["infer"]
DtypeBackend = Literal["pyarrow", "numpy", "numpy_nullable"]
Shuffle = Literal["buffer", "blocks"]
BatchMode = Literal["keep", "drop", "auto"]
LastBatch = Literal["keep", "drop"]
Uneven = Literal["keep", "drop", "pad"]
Until: TypeAlias = Literal["first", "all"] | int
# The default of ``shuffle_buffer``.
SHUFFLE_BUFFER = 65_536
# A path, or several sources with their weights.
PathOrMixture: TypeAlias = PathLike | Sequence[PathLike] | Mapping[Any, float] | Sequence[tuple[Any, float]]


class ReadOptionKeywords(TypedDict, total=False):
    """Declare the options in ``read_options=``, which few reads need."""

    infer: Annotated[Infer, "sample"]
    include_offset_column: Annotated[bool | str, False]
    max_corrupt: Annotated[int | float | None, None]
    quarantine_path: Annotated[PathLike | None, None]
    verify_crc: Annotated[bool, True]
    max_record_bytes: Annotated[SupportsIndex | str, MAX_RECORD_BYTES]
    max_features: Annotated[int | None, MAX_FEATURES]


class DetectedReadKeywords(TypedDict, total=False):
    """Declare the read keywords of functions that always detect the codec."""

    schema: Annotated[ReadSchema | None, None]
    hive: Annotated[GivenHive, True]
    use_snapshot: Annotated[bool, True]
    filters: Annotated[Sequence[Any] | pc.Expression | None, None]
    split: Annotated[str | Sequence[str] | None, None]
    labels: Annotated[Labels, "names"]
    version: Annotated[int | None, None]
    record_type: Annotated[AnyRecordType, "infer"]
    extra: Annotated[Extra, "raise"]
    on_corrupt: Annotated[OnCorrupt, "raise"]
    read_options: Annotated[ReadOptionKeywords | None, None]
    storage_options: Annotated[dict[str, Any] | None, None]
    filesystem: Annotated[Filesystem, None]


class ReadKeywords(DetectedReadKeywords, total=False):
    """Declare the keywords that control what is read from a path."""

    compression: Annotated[AnyCompression | Literal["infer"] | None, "infer"]


class OrderKeywords(TypedDict, total=False):
    """Declare the keywords that determine the order of the rows."""

    shuffle: Annotated[bool | Shuffle | None, None]
    seed: Annotated[int, 0]
    shuffle_buffer: Annotated[int, SHUFFLE_BUFFER]
    elastic: Annotated[int | None, None]


class ShuffleKeywords(OrderKeywords, total=False):
    """Declare the keywords that determine how batches of rows are shuffled and read ahead."""

    prefetch: Annotated[int | str | None, None]


class CacheKeywords(TypedDict, total=False):
    """Declare the keywords of the cache on a local disk that the feeds share."""

    cache: Annotated[PathLike | None, None]
    cache_bytes: Annotated[SupportsIndex | str | None, None]


class MixtureKeywords(TypedDict, total=False):
    """Declare the keyword that only batches of several sources have."""

    until: Annotated[Until | None, None]


class FeedKeywords(ShuffleKeywords, CacheKeywords, MixtureKeywords, total=False):
    """Declare the keywords for batches of rows that do not concern the read of the files."""


class TableKeywords(ReadKeywords, CacheKeywords, total=False):
    """Declare the keywords that a `RecordTable` shares with the datasets that contain one."""


class DetectedBatchKeywords(DetectedReadKeywords, FeedKeywords, total=False):
    """Declare the batch keywords of functions that always detect the codec."""


class LoaderKeywords(ReadKeywords, OrderKeywords, CacheKeywords, MixtureKeywords, total=False):
    """Declare the keywords for batches of rows, which all loaders share."""


class BatchKeywords(ReadKeywords, FeedKeywords, total=False):
    """Declare the keywords for batches of rows, which `iter_batches` and most loaders share."""


class EpochKeywords(ShuffleKeywords, CacheKeywords, total=False):
    """Declare the keywords that `Dataset.batches` shares with `iter_batches`."""

    batch_mode: Annotated[BatchMode, "keep"]
    epoch: Annotated[int, 0]
    shard: Annotated[tuple[int, int], (0, 1)]
    uneven: Annotated[Uneven, "keep"]
    start: Annotated[dict[str, Any] | Sequence[dict[str, Any]] | None, None]


class PartitionKeywords(TypedDict, total=False):
    """Declare the keywords that divide the rows of a read into partitions."""

    blocksize: Annotated[SupportsIndex | str | None, "default"]
    partition_by: Annotated[str | Sequence[str] | None, None]
    index: Annotated[str | Sequence[str] | Literal[False] | None, None]
    calculate_divisions: Annotated[bool | None, False]


class RequestKeywords(ReadKeywords, PartitionKeywords, total=False):
    """Declare the keywords that determine the rows and the partitions of a read."""

    include_path_column: Annotated[bool | str, False]


class CollectionKeywords(RequestKeywords, total=False):
    """Declare the keywords of `read_tfrecord` except ``columns``, which determines the return type."""

    categories: Sequence[str] | None
    dtype_backend: DtypeBackend | None


class FileOptionKeywords(TypedDict, total=False):
    """Declare the options that a `Writer` accepts in ``write_options=``."""

    compression_level: Annotated[int | None, None]
    max_rows_per_file: Annotated[int | None, None]
    max_bytes_per_file: Annotated[SupportsIndex | str | None, None]
    feature_lists: Annotated[str | Sequence[str] | None, None]


class WriteOptionKeywords(FileOptionKeywords, total=False):
    """Declare the options in ``write_options=``, which few calls of `to_tfrecord` need."""

    max_files_per_task: Annotated[int | None, 1024]
    npartitions: Annotated[int | None, None]
    split_by: Annotated[str | Sequence[str] | int | None, None]


class StreamKeywords(TypedDict, total=False):
    """Declare the keywords of `to_tfrecord` for rows that are not a Dask collection."""

    compression: Annotated[AnyCompression | Literal["default"] | None, "default"]
    record_type: Annotated[AnyRecordType, "infer"]
    schema: Annotated[AnySchema | None, None]
    lossy: Annotated[Lossy | Literal["default"], "default"]
    write_index: Annotated[bool | None, None]
    append: Annotated[bool, False]
    schema_change: Annotated[Literal["add"] | None, None]
    overwrite: Annotated[bool | Literal["partitions"], False]
    keep_versions: Annotated[bool | None, None]
    partition_on: Annotated[str | Sequence[str] | None, None]
    columnar: Annotated[str | Sequence[str] | Literal[False] | None, "auto"]
    split: Annotated[Mapping[str, float] | None, None]
    colocate: Annotated[bool, False]
    shuffle: Annotated[bool | None, False]
    seed: Annotated[int, 0]
    name_function: Annotated[Callable[[int], str] | None, None]
    custom_metadata: Annotated[Mapping[str, str] | None, None]
    write_id: Annotated[str | None, None]
    write_options: Annotated[WriteOptionKeywords | None, None]
    storage_options: Annotated[dict[str, Any] | None, None]
    filesystem: Annotated[Filesystem, None]


class WriteKeywords(StreamKeywords, total=False):
    """Declare the keywords of `to_tfrecord` except ``compute``, which determines the return type."""

    compute_kwargs: Annotated[dict[str, Any] | None, None]


class AllWriteKeywords(WriteKeywords, total=False):
    """Declare all keywords of `to_tfrecord`."""

    compute: Annotated[bool, True]


# Matches durations such as "1 day 12h", "01:30:00" and "1 day 01:30:00".
_DURATION = re.compile(r"(\d+(\.\d+)?\s*[A-Za-z]+[\s,]*)*(\d+:\d\d:\d\d(\.\d+)?)?", re.ASCII)
# pandas 3.1 deprecates the units "d", "w", "H" and "S" in favour of "D", "W", "h" and "s".
_DEPRECATED_CASE = re.compile(r"(?<![A-Za-z])[dwHS](?![A-Za-z])")


def _wrong(keyword: str, value: object, what: str, *actions: str | Remedy) -> TFRecordError:
    return TFRecordError(f"{keyword}={value!r} is not {what}", *actions)


def path(value: Any, keyword: str = "path") -> PathLike:
    path_text(value, "" if keyword == "path" else keyword, f'pass a directory, such as {keyword}="train"')
    given: PathLike = value
    return given


def choice(keyword: str, value: Any, known: Sequence[object]) -> Any:
    """Return the value of a keyword. Raise if it is not one of ``known``."""
    if not isinstance(value, str | bool | None) or value not in known:
        raise _unknown(keyword, value, known)
    return value


def _unknown(keyword: str, value: object, known: Sequence[object]) -> TFRecordError:
    listed = ", ".join(map(repr, known))
    return TFRecordError(f"unknown {keyword} {value!r}", f"pass one of {listed}", keyword=keyword)


def flag(keyword: str, value: Any) -> bool:
    """Convert a Python or NumPy bool to bool. Raise for any other value."""
    if not isinstance(value, bool | np.bool_):
        raise _wrong(keyword, value, "True or False")
    return bool(value)


def mappings(**values: Any) -> None:
    """Raise if the value of a keyword is neither None nor a mapping with string keys."""
    for keyword, value in values.items():
        if not isinstance(value, Mapping | None) or not all(isinstance(key, str) for key in value or ()):
            # The message does not show the values, because storage_options may contain credentials.
            problem = f"{keyword}= is not a dict with string keys (got {type(value).__name__})"
            raise TFRecordError(problem, keyword=keyword)


def with_defaults(declared: type[Keywords], given: Any) -> Keywords:
    """Add the defaults of the keywords that the typed dict ``declared`` declares."""
    keywords: Any = {**{name: one.default for name, one in parameters_of(declared).items()}, **given}
    filled: Keywords = keywords
    return filled


def options(keyword: str, given: Any, declared: type[Keywords]) -> Keywords:
    """Validate a dict of options, such as ``read_options=``, and add the defaults of ``declared``."""
    mappings(**{keyword: given})
    names = [*parameters_of(declared)]
    for name in given or ():
        if name not in names:
            advice = did_you_mean(name, names) or f"its options are {', '.join(names)}"
            raise TFRecordError(f"{keyword}= has no option {name!r}", advice, keyword=keyword)
    return with_defaults(declared, given or {})


def compression(value: Any, *others: str) -> Any:
    """Return the name of a codec, or None for no codec. Accept TensorFlow's names "GZIP", "ZLIB" and ""."""
    known: tuple[Compression | str | None, ...] = (*others, None, *CODECS)
    codec = (value.lower() or None) if isinstance(value, str) else value
    if not isinstance(codec, str | None) or codec not in known:
        raise _unknown("compression", value, known)
    return codec


def names(keyword: str, value: Any) -> list[str]:
    """Convert one column name, or several, to a list."""
    if isinstance(value, str):
        return [value]
    # NumPy arrays, Arrow arrays and pandas indexes have `tolist`.
    listed = value.tolist() if hasattr(value, "tolist") else value
    if (
        not isinstance(listed, Sequence)
        or isinstance(listed, str | bytes)
        or not all(isinstance(item, str) for item in listed)
    ):
        problem = f"{keyword}={value!r} is not a list of column names"
        raise TFRecordError(problem, f'pass a name, or a list such as {keyword}=["age"]')
    return list(map(str, listed))


def schema(value: Any) -> Any:
    """Return the value of ``schema=``, or None for "infer". Raise if the value is not a schema."""
    if isinstance(value, str) and value == "infer":
        return None
    if not isinstance(value, Mapping | pa.Schema | Schema | Snapshot | None):
        raise _wrong(
            "schema", value, "a schema", 'pass the types of columns, such as schema={"age": pa.int64()}'
        )
    return value


def arrow_schema(value: Any) -> Any:
    """Validate ``schema=``, and convert a Schema or a Snapshot to a `pyarrow.Schema`."""
    given = schema(value)
    if isinstance(given, Snapshot):
        given = given.columns
    return given.arrow if isinstance(given, Schema) else given


def metadata(value: Any) -> dict[str, str]:
    """Return ``custom_metadata=`` as a dict. Raise if a key or a value is not a string."""
    pairs = value.items() if isinstance(value, Mapping) else ()
    is_text = all(isinstance(text, str) for pair in pairs for text in pair)
    if not isinstance(value, Mapping | None) or not is_text:
        problem = f"custom_metadata={value!r} must map strings to strings"
        raise TFRecordError(problem, "pass a dict, and encode other values, for example with json.dumps")
    return dict(value or {})


# The longest `write_id`. The snapshots keep the ids of many commits.
_MOST_CHARACTERS = 256


def write_id(value: Any) -> str | None:
    """Validate ``write_id=``, and return the value."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong("write_id", value, "a string", 'pass a text, such as "2026-05-01"')
    if not value or len(value) > _MOST_CHARACTERS or any("\ud800" <= sign <= "\udfff" for sign in value):
        problem = f"write_id has {len(value):,} characters"
        if 0 < len(value) <= _MOST_CHARACTERS:
            problem = f"write_id={value!r} cannot be encoded as UTF-8"
        advice = f"pass a name of the rows with 1 to {_MOST_CHARACTERS} characters, such as the day of a job"
        raise TFRecordError(problem, advice)
    return value


def count(keyword: str, value: Any, least: int = 1) -> int | None:
    """Convert a Python or NumPy integer to int, and None to None. Raise if the value is below ``least``."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)
    is_count = is_integer and value >= least
    if value is not None and not is_count:
        kind = "positive" if least else "non-negative"
        raise _wrong(keyword, value, f"a {kind} integer")
    return None if value is None else int(value)


def number(keyword: str, value: Any, least: int = 1) -> int:
    """Convert a Python or NumPy integer to int. Raise if the value is None or below ``least``."""
    found = count(keyword, value, least)
    if found is None:
        raise _wrong(keyword, None, "an integer", f"pass for example {keyword}={least}")
    return found


def seed_of(shuffle: Any, seed: Any, kinds: Sequence[str] = ()) -> int | None:
    """Return the seed of a shuffle, or None if there is none.

    ``kinds`` lists the values that ``shuffle=`` accepts besides None, False and True.
    """
    if isinstance(shuffle, int | np.integer) and not isinstance(shuffle, bool):
        given = max(int(shuffle), 0)
        rows = [Remedy("shuffle", "buffer"), Remedy("shuffle_buffer", given or 1, "shuffle this many rows")]
        raise TFRecordError(
            f"shuffle={shuffle!r} is a number, which could be a seed or the size of a buffer",
            Remedy("shuffle", True),
            Remedy("seed", given, "shuffle with this seed"),
            *(rows if "buffer" in kinds else ()),
            keyword="shuffle",
        )
    choice("shuffle", shuffle, (None, False, True, *kinds))
    checked = number("seed", seed, 0)
    if seed and not shuffle:
        problem = f"seed={seed!r} has no effect with shuffle={shuffle!r}"
        raise TFRecordError(problem, Remedy("shuffle", True, "shuffle the rows"))
    return checked if shuffle else None


def function(keyword: str, value: Any) -> None:
    """Raise if the value of a keyword is neither None nor callable."""
    if value is not None and not callable(value):
        raise _wrong(keyword, value, "callable")


# Units that errors suggest. `byte_count` and `duration` also accept other spellings.
SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
DURATION_UNITS = ("ns", "us", "ms", "s", "seconds", "min", "minutes", "hours", "days", "W")


def byte_count(keyword: str, value: Any) -> int | None:
    """Convert an integer, or a text such as "64 MB", to a positive byte count. Return None for None."""
    if value is None:
        return None
    size = 0
    if not isinstance(value, bool | np.timedelta64):  # np.timedelta64 is a subclass of np.signedinteger
        with suppress(AttributeError, OverflowError, TypeError, ValueError):
            size = int(parse_bytes(value or "0")) if isinstance(value, str | float) else operator.index(value)
    if not 1 <= size < 1 << 63:
        meant, unknown = meant_unit(value, SIZE_UNITS)
        what = f'a size such as "128 MiB"{unknown}'
        raise _wrong(keyword, value, what, Remedy(keyword, meant or "128 MiB", "set a size"))
    return size


def block_cache(cache: Any, cache_bytes: Any) -> BlockCache | None:
    """Convert ``cache=`` and ``cache_bytes=``. Return None if there is no cache."""
    limit = byte_count("cache_bytes", cache_bytes)
    if cache is None:
        if limit is not None:
            remedy = Remedy("cache_bytes", None, "read without a cache")
            raise TFRecordError(f"cache_bytes={cache_bytes!r} has no effect without cache=", remedy)
        return None
    advice = 'pass a directory on a disk of this machine, such as cache="/tmp/cache"'
    text = path_text(cache, "cache", advice)
    if "://" in text:
        problem = f"cache={without_credentials(text)!r} is a URL"
        raise TFRecordError(problem, advice, Remedy("cache", None, "read without a cache"))
    if limit is not None and limit < LEAST_BYTES:
        problem = f"cache_bytes={cache_bytes!r} is less than 1 MiB"
        raise TFRecordError(problem, Remedy("cache_bytes", None, "use three quarters of the free disk"))
    return BlockCache(os.path.abspath(os.path.expanduser(text)), limit, CONSTANT_NAME)


def duration(keyword: str, value: Any) -> timedelta:
    """Convert a timedelta, or a string such as "12 hours", to a non-negative timedelta.

    A number without a unit raises, even "0", because pandas would interpret it as nanoseconds.
    """
    is_text = isinstance(value, str) and _DURATION.fullmatch(value.strip())
    if is_text or isinstance(value, timedelta):
        given = _DEPRECATED_CASE.sub(lambda unit: unit[0].swapcase(), value) if is_text else value
        with suppress(ValueError):  # pandas raises ValueError for an unknown unit
            found = pd.Timedelta(given)
            if found >= timedelta(0):  # the comparison is False for NaT, which pandas returns for ""
                return found.to_pytimedelta()
    number: Any = value if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        number = value
    examples = '"7d" or "12 hours"' if number is None else f'"{number} days" or "{number} hours"'
    meant, unknown = meant_unit(value, DURATION_UNITS)
    if meant:
        examples = f'"{meant}"'
    what = f"a duration with a unit{unknown}"
    raise _wrong(keyword, value, what, f"pass a number and its unit, such as {examples}")


def meant_unit(value: Any, units: Sequence[str]) -> tuple[str, str]:
    """Return a number with the known unit most similar to its own, and a text that says that this is unknown.

    Both are empty unless the value is a text with a number and an unknown unit.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", value.strip()) if isinstance(value, str) else None
    if found is None or found[2] in units:
        return "", ""
    number, unit = found.groups()
    near = "W" if unit.lower().startswith("week") and "W" in units else ""
    near = near or next(iter(get_close_matches(unit, units, 1, 0.7)), "")
    return near and f"{number} {near}", f": {unit!r} is none of the units {', '.join(units)}"


def record_limit(value: Any) -> int:
    """Return ``max_record_bytes=`` in bytes, or raise if it exceeds protobuf's limit of 2 GiB - 1 byte."""
    size = byte_count("max_record_bytes", value)
    if size is None or size > MAX_RECORD_BYTES:
        raise _wrong(
            "max_record_bytes",
            value,
            f"a limit between 1 and {MAX_RECORD_BYTES:,} bytes",
            Remedy(
                "read_options", {"max_record_bytes": MAX_RECORD_BYTES}, "set no lower limit than protobuf has"
            ),
        )
    return size


def origin_column(value: Any, default: str) -> str | None:
    """Return the name of the column that ``include_path_column=`` or ``include_offset_column=`` adds."""
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, bool):
        keyword, effect = f"include_{default}_column", f"add the column {default!r}"
        is_option = keyword in ReadOptionKeywords.__annotations__
        remedy = (
            Remedy("read_options", {keyword: True}, effect) if is_option else Remedy(keyword, True, effect)
        )
        raise TFRecordError(
            f"{keyword}={value!r} is neither a bool nor a column name", remedy, keyword=keyword
        )
    return default if value else None
