"""Define the types of the keywords that several functions for reads and writes share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, TypedDict

import pyarrow.compute as pc

from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.codec.columns import RecordType
from dask_tfrecord.dataset.read.request import Infer
from dask_tfrecord.dataset.read.requested_columns import GivenHive, GivenSchema
from dask_tfrecord.files.damage import OnCorrupt
from dask_tfrecord.files.options import Extra
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.schema.field import Lossy
from dask_tfrecord.schema.tfds import Labels

# All names of codecs that are accepted, including TensorFlow's spellings.
AnyCompression: TypeAlias = Compression | Literal["", "GZIP", "ZLIB"]
AnySchema: TypeAlias = GivenSchema | Literal["infer"]
ReadSchema: TypeAlias = AnySchema | PathLike
AnyRecordType: TypeAlias = RecordType | Literal["infer"]
DtypeBackend = Literal["pyarrow", "numpy"]


class DetectedReadKeywords(TypedDict, total=False):
    """Types of the keywords that say which rows of a path are read, for functions that always detect the
    codec.
    """

    schema: ReadSchema | None
    hive: GivenHive
    use_snapshot: bool
    infer: Infer
    filters: Sequence[Any] | pc.Expression | None
    split: str | Sequence[str] | None
    labels: Labels
    version: int | None
    record_type: AnyRecordType
    extra: Extra
    on_corrupt: OnCorrupt
    max_corrupt: int | float | None
    quarantine_path: PathLike | None
    verify_crc: bool
    max_record_bytes: SupportsIndex | str
    max_features: int | None
    storage_options: dict[str, Any] | None
    filesystem: Filesystem


class ReadKeywords(DetectedReadKeywords, total=False):
    """Types of the keywords that say which rows of a path are read.

    All functions that read a path share these keywords.
    """

    compression: AnyCompression | Literal["infer"] | None


class DetectedBatchKeywords(DetectedReadKeywords, total=False):
    """Types of the keywords for batches of rows, for functions that always detect the codec."""

    shuffle: int | Literal["blocks"] | None
    shuffle_buffer: int
    seed: int
    prefetch: int


class BatchKeywords(DetectedBatchKeywords, ReadKeywords, total=False):
    """Types of the keywords for batches of rows. `iter_batches` and the loaders share these keywords."""


class RequestKeywords(ReadKeywords, total=False):
    """Types of the keywords of a read, including those that say how the rows are divided into partitions."""

    blocksize: SupportsIndex | str | None
    partition_by: str | Sequence[str] | None
    include_path_column: bool | str
    include_offset_column: bool | str
    index: str | Sequence[str] | Literal[False] | None
    calculate_divisions: bool


class CollectionKeywords(RequestKeywords, total=False):
    """Types of the keywords of `read_tfrecord` except ``columns``, which determines the return type."""

    categories: Sequence[str] | None
    dtype_backend: DtypeBackend | None


class StreamKeywords(TypedDict, total=False):
    """Types of the keywords of `to_tfrecord` for rows that are not a Dask collection."""

    compression: AnyCompression | Literal["default"] | None
    compression_level: int | None
    record_type: AnyRecordType
    schema: AnySchema | None
    lossy: Lossy | Literal["default"]
    write_index: bool | None
    append: bool
    schema_change: Literal["add"] | None
    overwrite: bool | Literal["partitions"]
    keep_versions: bool | None
    partition_on: str | Sequence[str] | None
    columnar: str | Sequence[str] | None
    split: Mapping[str, float] | None
    split_by: str | Sequence[str] | int | None
    colocate: bool
    shuffle: int | None
    max_rows_per_file: int | None
    max_bytes_per_file: int | None
    max_files_per_task: int | None
    name_function: Callable[[int], str] | None
    custom_metadata: Mapping[str, str] | None
    storage_options: dict[str, Any] | None
    filesystem: Filesystem


class WriteKeywords(StreamKeywords, total=False):
    """Types of the keywords of `to_tfrecord` except ``compute``, which determines the return type."""

    npartitions: int | None
    compute_kwargs: dict[str, Any] | None
    retries: int | None
