"""Define the options for reading and writing files. The options are sent to workers within tasks."""

from dataclasses import dataclass, field
from typing import Literal

from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.codec.columns import RecordType
from dask_tfrecord.files.damage import RAISE, DamagePolicy
from dask_tfrecord.schema.model import Lossy

# The codec of the files to read. "infer" detects the codec of each file by its first bytes.
ReadCompression = Compression | Literal["infer"] | None

# What a reader does with a feature that is not in the schema.
Extra = Literal["raise", "ignore"]


@dataclass(frozen=True)
class SchemaEvidence:
    """Record which columns were inferred from what, so that later errors can give advice.

    Attributes
    ----------
    given_kinds : dict of str to tuple of str
        Maps each column whose type the caller gave to the kinds that its feature has in the sampled records.
    untyped : frozenset of str
        The names of the columns that have no value in any sampled record.
    all_records : bool
        True if the sample contains all records of the dataset.
    """

    given_kinds: dict[str, tuple[str, ...]] = field(hash=False)
    untyped: frozenset[str]
    all_records: bool


@dataclass(frozen=True)
class ReadOptions:
    """The options for reading files that do not depend on the columns.

    ``compression``, ``verify_crc``, ``max_record_bytes`` and ``extra`` have the same meaning as the
    parameters of `read_tfrecord`.

    Attributes
    ----------
    damage : DamagePolicy
        States whether damaged records raise, are skipped or are quarantined.
    path_column, offset_column : str, optional
        Name of the column with the file of each record, and name of the column with the byte offset of each
        record. If a name is None, that column is omitted.
    is_type_inferred : bool
        True if the records are read as Examples because no sampled record had a feature list.
    evidence : SchemaEvidence, optional
        What the schema was inferred from. None if no schema was inferred.
    """

    compression: ReadCompression = "infer"
    verify_crc: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    extra: Extra = "raise"
    damage: DamagePolicy = RAISE
    path_column: str | None = None
    offset_column: str | None = None
    is_type_inferred: bool = False
    evidence: SchemaEvidence | None = None

    @property
    def origin_columns(self) -> tuple[str, ...]:
        """The names of the path column and the offset column, each only if it is requested."""
        return tuple(filter(None, (self.path_column, self.offset_column)))

    def decoded_type(self, record_type: RecordType) -> RecordType:
        """Return the type as which the records of a dataset with this record type are decoded.

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
        The codec. If None, files are written uncompressed.
    level : int, optional
        The codec's compression level. If None, this library's default level for the codec is used.
    lossy : "warn", "allow" or "raise"
        What to do with values that a 32-bit float cannot hold exactly. "raise" raises an error. "warn" and
        "allow" round such values.
    max_rows : int, optional
        The most rows in a file. If None, the number of rows is not limited.
    max_bytes : int, optional
        The most bytes in a file, before compression. Only a file with a single longer record exceeds the
        limit. If None, the number of bytes is not limited.
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
