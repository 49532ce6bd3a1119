"""Define the options for reading and writing files. Tasks carry these options to the workers."""

from dataclasses import dataclass, field
from typing import Literal

from dask_tfrecord.codec import MAX_RECORD_BYTES, RecordType
from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.files.damage import RAISE, DamagePolicy
from dask_tfrecord.schema.fields import Lossy

# The codec of the files that are read. "infer" means that the codec of each file is detected from its first
# bytes.
ReadCompression = Compression | Literal["infer"] | None

# The treatment of a feature that is not in the schema: an error, or no effect.
Extra = Literal["raise", "ignore"]


@dataclass(frozen=True)
class SchemaEvidence:
    """State how a schema was inferred, so that later errors about its columns can give advice.

    Attributes
    ----------
    given_kinds : dict of str to tuple of str
        Map from each column whose type the caller gave to the kinds that its feature has in the sampled
        records.
    untyped : frozenset of str
        The names of the columns that have no value in any sampled record.
    all_records : bool
        True if the sample contains all records of the dataset.
    """

    given_kinds: dict[str, tuple[str, ...]] = field(hash=False)
    untyped: frozenset[str]
    all_records: bool


# By default, columns are inferred from records with at most this number of features.
MAX_FEATURES = 10_000


@dataclass(frozen=True)
class ReadOptions:
    """The options for reading files that do not depend on the columns.

    ``compression``, ``verify_crc``, ``max_record_bytes``, ``max_features`` and ``extra`` have the same
    meaning as in `read_tfrecord`. If ``max_features`` is None, the number of features is not limited.

    Attributes
    ----------
    damage : DamagePolicy
        The treatment of damaged records: raise an error, skip the records, or quarantine the records.
    path_column, offset_column : str, optional
        Name of the column that holds the file of each record, and name of the column that holds its byte
        offset. If a name is None, the result has no such column.
    is_type_inferred : bool
        True if the records are read as Examples because no sampled record had a feature list.
    evidence : SchemaEvidence, optional
        The sample from which the schema was inferred, or None if no schema was inferred.
    """

    compression: ReadCompression = "infer"
    verify_crc: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    max_features: int | None = None
    extra: Extra = "raise"
    damage: DamagePolicy = RAISE
    path_column: str | None = None
    offset_column: str | None = None
    is_type_inferred: bool = False
    evidence: SchemaEvidence | None = None

    @property
    def origin_columns(self) -> tuple[str, ...]:
        """The names of the requested columns among the path column and the offset column."""
        return tuple(filter(None, (self.path_column, self.offset_column)))

    def decoded_type(self, record_type: RecordType) -> RecordType:
        """Return the record type with which the kernel decodes the records of a dataset of this record type.

        If the type "example" was inferred from a sample, the records are decoded as SequenceExamples, because
        an Example is also a SequenceExample without feature lists. A feature list in a later record is then
        treated as an unknown feature and not as damage.
        """
        inferred = self.is_type_inferred and record_type == "example"
        return "sequence_example" if inferred else record_type


@dataclass(frozen=True)
class WriteOptions:
    """The options of `to_tfrecord` for writing files that do not depend on the columns.

    Attributes
    ----------
    compression : "gzip", "zlib", "zstd", "lz4", "bz2", "xz", optional
        The codec of the written files. If None, files are written uncompressed.
    level : int, optional
        The compression level of the codec. If None, this library's default level for the codec is used.
    lossy : "warn", "allow" or "raise"
        The treatment of values that a 32-bit float cannot hold exactly. "raise" raises an error for such a
        value. "warn" and "allow" round such values.
    max_rows : int, optional
        The largest number of rows in a file. If None, the number of rows in a file is not limited.
    max_bytes : int, optional
        The largest size of a file in bytes, before compression. Only a file that consists of a single longer
        record exceeds this size. If None, the size of a file is not limited.
    """

    compression: Compression | None = None
    level: int | None = None
    lossy: Lossy = "warn"
    max_rows: int | None = None
    max_bytes: int | None = None

    @property
    def splits_files(self) -> bool:
        """True if a limit may split the rows of a partition directory into several files."""
        return self.max_rows is not None or self.max_bytes is not None
