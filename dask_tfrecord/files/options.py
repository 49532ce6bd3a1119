"""How files are read, as one value that travels in tasks."""

from dataclasses import dataclass, field
from typing import Literal

from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.files.damage import RAISE, DamagePolicy

# How a file that is read may be compressed; "infer" goes by its first bytes.
ReadCompression = Compression | Literal["infer"] | None

# What becomes of features that the schema does not have.
Extra = Literal["raise", "ignore"]


@dataclass(frozen=True)
class Guess:
    """What the types of columns were guessed from.

    Attributes
    ----------
    given : dict of str to tuple of str
        The columns whose types were not guessed, and the kinds that the records show of them.
    open : frozenset of str
        The columns of which the records show no kind.
    everything : bool
        Whether all records were looked at.
    """

    given: dict[str, tuple[str, ...]] = field(hash=False)
    open: frozenset[str]
    everything: bool


@dataclass(frozen=True)
class ReadOptions:
    """How files are read, whatever they hold; `read_tfrecord` says what each means.

    ``path_column`` and ``offset_column`` are the names of columns that tell where records come from.
    ``guessed`` says that the records were taken for examples because none of a sample had a feature list.
    ``guess`` is what the columns were inferred from, and None if they were not. ``globs`` are proposed where
    one of the files is something else (see `suggest_globs`).
    """

    compression: ReadCompression = "infer"
    verify_crc: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    extra: Extra = "raise"
    damage: DamagePolicy = RAISE
    path_column: str | None = None
    offset_column: str | None = None
    guessed: bool = False
    guess: Guess | None = None
    globs: tuple[str, tuple[tuple[str, int], ...]] = ("", ())

    @property
    def origin(self) -> tuple[str, ...]:
        """The columns that are in no record."""
        return tuple(filter(None, (self.path_column, self.offset_column)))
