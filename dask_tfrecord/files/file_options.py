"""Define the options for reading and writing files. Dask tasks carry the options to the workers."""

from dataclasses import dataclass, field
from typing import Literal

from dask_tfrecord.codec import MAX_RECORD_BYTES, RecordType
from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.files.damage import RAISE, DamagePolicy
from dask_tfrecord.schema.fields import Lossy

# The codec of the files to read. With "infer", the reader detects the codec of each file from the file's
# first bytes.
ReadCompression = Compression | Literal["infer"] | None

# What to do with a feature that is not in the schema: raise an error, or ignore it.
Extra = Literal["raise", "ignore"]

# With "other names", as with a complete schema, a feature that is not in the schema is ignored, unless it has
# the name of a column: the feature list "x" if a column reads "x" from the context, or the reverse.
ReadExtra = Extra | Literal["other names"]


@dataclass(frozen=True)
class SchemaEvidence:
    """Describe how a schema was inferred, so that errors about its columns can give advice.

    ``given_kinds`` maps each column whose type the caller gave to the kinds that its feature has in the
    sample. ``untyped`` contains the columns without a value in the sample. ``all_records`` is True if the
    sample is the whole dataset.
    """

    given_kinds: dict[str, tuple[str, ...]] = field(hash=False)
    untyped: frozenset[str]
    all_records: bool


# By default, columns are inferred only if the records have at most this many different features in total.
MAX_FEATURES = 10_000


@dataclass(frozen=True)
class ReadOptions:
    """The options of `read_tfrecord` that control how files are read, independently of the columns.

    If ``max_features`` is None, the number of features is not limited. ``path_column`` and ``offset_column``
    name the columns for the file and the offset of each record; None means that the column is not requested.
    ``is_type_inferred`` is True if the records are read as Examples because no sampled record had a feature
    list. ``integers`` names the columns that read integers as floats, because ``schema=`` asks for floats.
    """

    compression: ReadCompression = "infer"
    verify_crc: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    max_features: int | None = None
    extra: ReadExtra = "raise"
    damage: DamagePolicy = RAISE
    path_column: str | None = None
    offset_column: str | None = None
    is_type_inferred: bool = False
    integers: frozenset[str] = frozenset()
    evidence: SchemaEvidence | None = None

    @property
    def origin_columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.path_column, self.offset_column)))

    @property
    def expects_one_map(self) -> bool:
        """True if a feature with the name of a column must be in the map that the column reads.

        A snapshot may describe records that have such a feature in both maps, because somebody chose one.
        """
        return self.extra == "other names" or (self.extra == "raise" and self.is_type_inferred)

    def decoded_type(self, record_type: RecordType) -> RecordType:
        """Return the record type with which the kernel decodes the records.

        If the type "example" was inferred from a sample, the records are decoded as SequenceExamples. Every
        Example is also a valid SequenceExample without feature lists. A feature list in a record outside the
        sample counts as an unknown feature, not as damage.
        """
        inferred = self.is_type_inferred and record_type == "example"
        return "sequence_example" if inferred else record_type


@dataclass(frozen=True)
class WriteOptions:
    """The options of `to_tfrecord` that control how files are written, independently of the columns.

    ``max_rows`` and ``max_bytes`` limit the rows and the bytes of each file. ``max_bytes`` counts bytes
    before compression. A file exceeds ``max_bytes`` only if its single record is longer than ``max_bytes``.
    If ``level`` is None, the codec uses its default level.
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
