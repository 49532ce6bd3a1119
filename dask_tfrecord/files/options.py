"""The options for reading and for writing files, as values that travel in tasks."""

from dataclasses import dataclass, field
from typing import Literal

from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.files.damage import RAISE, DamagePolicy
from dask_tfrecord.schema.model import Lossy

# How a file that is read may be compressed; "infer" goes by its first bytes.
ReadCompression = Compression | Literal["infer"] | None

# What becomes of features that the schema does not have.
Extra = Literal["raise", "ignore"]


@dataclass(frozen=True)
class SchemaEvidence:
    """What the inference of the columns was based on, for the advice in later errors.

    Attributes
    ----------
    given_kinds : dict of str to tuple of str
        The columns whose types were given, and the kinds that the sampled records have of them.
    untyped : frozenset of str
        The columns of which no sampled record has a value.
    all_records : bool
        True if the sample has all records.
    """

    given_kinds: dict[str, tuple[str, ...]] = field(hash=False)
    untyped: frozenset[str]
    all_records: bool


@dataclass(frozen=True)
class ReadOptions:
    """How files are read, whatever they hold; `read_tfrecord` says what each means.

    ``path_column`` and ``offset_column`` are the names of columns that tell where records come from.
    ``is_type_inferred`` is True if the record type was inferred: records outside the sample may then have
    feature lists. ``evidence`` is what the columns were inferred from, and None if they were not. ``globs``
    are proposed where one of the files is something else (see `suggest_globs`).
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
    globs: tuple[str, tuple[tuple[str, int], ...]] = ("", ())

    @property
    def origin(self) -> tuple[str, ...]:
        """The columns that are in no record."""
        return tuple(filter(None, (self.path_column, self.offset_column)))


@dataclass(frozen=True)
class WriteOptions:
    """How files are written, whatever their columns; see `to_tfrecord`.

    Attributes
    ----------
    compression : "gzip", "zlib", "zstd", "lz4", "bz2", "xz", optional
        The codec. None writes plain files.
    level : int, optional
        The codec's compression level. None uses the default level of this library.
    lossy : "warn", "allow" or "raise"
        "raise" refuses values that a 32-bit float cannot hold exactly. The others round them.
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


# Plain files, and floats rounded.
DEFAULTS = WriteOptions()
