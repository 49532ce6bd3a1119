"""The options for reading and for writing files, as values that travel in tasks."""

from dataclasses import dataclass, field
from typing import Literal

from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.codec.columns import RecordType
from dask_tfrecord.files.damage import RAISE, DamagePolicy
from dask_tfrecord.schema.model import Lossy

# The codec of the files to read. "infer" detects it by the first bytes of each file.
ReadCompression = Compression | Literal["infer"] | None

# How readers treat a feature that is not in the schema.
Extra = Literal["raise", "ignore"]


@dataclass(frozen=True)
class SchemaEvidence:
    """What the inference of the columns was based on, for the advice in later errors.

    Attributes
    ----------
    given_kinds : dict of str to tuple of str
        The columns whose types were given, and the kinds that the sampled records have of them.
    untyped : frozenset of str
        The columns that have no value in any sampled record.
    all_records : bool
        True if the sample has all records.
    """

    given_kinds: dict[str, tuple[str, ...]] = field(hash=False)
    untyped: frozenset[str]
    all_records: bool


@dataclass(frozen=True)
class ReadOptions:
    """How files are read, independent of their columns.

    ``compression``, ``verify_crc``, ``max_record_bytes`` and ``extra`` are those of `read_tfrecord`.

    Attributes
    ----------
    damage : DamagePolicy
        What happens to damage.
    path_column, offset_column : str, optional
        Names of the columns with the file and the byte offset of each record. None leaves them out.
    is_type_inferred : bool
        True if the records are read as Examples because no record of a sample had a feature list.
    evidence : SchemaEvidence, optional
        What the schema was inferred from. None if it was not inferred.
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
        """The names of the path column and the offset column, if the options request them."""
        return tuple(filter(None, (self.path_column, self.offset_column)))

    def decoded_type(self, record_type: RecordType) -> RecordType:
        """Return the type as which records of a dataset of this type are decoded.

        An Example is a SequenceExample without feature lists. If the type was inferred from a sample, a
        feature list that shows up later is an unknown feature, and not damage.
        """
        inferred = self.is_type_inferred and record_type == "example"
        return "sequence_example" if inferred else record_type


@dataclass(frozen=True)
class WriteOptions:
    """How files are written, whatever their columns; see `to_tfrecord`.

    Attributes
    ----------
    compression : "gzip", "zlib", "zstd", "lz4", "bz2", "xz", optional
        The codec. None writes uncompressed files.
    level : int, optional
        The codec's compression level. None uses the default level of this library.
    lossy : "warn", "allow" or "raise"
        "raise" raises for values that a 32-bit float cannot hold exactly. "warn" and "allow" round such
        values.
    max_rows : int, optional
        The most rows in a file.
    max_bytes : int, optional
        The most bytes in a file before compression. A single record may exceed it.
    """

    compression: Compression | None = None
    level: int | None = None
    lossy: Lossy = "warn"
    max_rows: int | None = None
    max_bytes: int | None = None

    @property
    def splits_files(self) -> bool:
        """True if a limit may split the rows of one partition directory into several files."""
        return self.max_rows is not None or self.max_bytes is not None
