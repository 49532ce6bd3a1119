"""What goes wrong with TFRecord data, said so that the user can mend it.

Every error knows where it happened as far as the raising code could know; the callers above it add
the rest with :meth:`TFRecordError.located`. All of them survive the way from a worker to the client.
"""

from functools import partial
from typing import Any, Self


class TFRecordError(ValueError):
    """Base class of this library's exceptions.

    Parameters
    ----------
    problem : str
        What is wrong, in words.
    path : str, optional
        File or directory, without credentials.
    record : int, optional
        Number of the record in the file (when writing: of the row in the partition), from 0.
    offset : int, optional
        Bytes from the start of the (decompressed) file to the start of the damage.
    feature : str, optional
        Name of the feature or column.
    advice : str, optional
        What to do about it, usually the keyword that mends it.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        record: int | None = None,
        offset: int | None = None,
        feature: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.record = record
        self.offset = offset
        self.feature = feature
        self.advice = advice

    def __str__(self) -> str:
        where = []
        if self.path is not None:
            where.append(self.path)
        if self.record is not None:
            where.append(f"record {self.record:,}")
        place = ", ".join(where)
        if self.offset is not None:
            place = f"{place} (byte {self.offset:,})" if place else f"byte {self.offset:,}"
        feature = f"feature {self.feature!r}: " if self.feature is not None else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{place}: {feature}{self.problem}{advice}" if place else f"{feature}{self.problem}{advice}"

    def __repr__(self) -> str:
        """As the message, with the class: logs of workers show an error by its repr."""
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.problem, **self.place()), ()

    def place(self) -> dict[str, Any]:
        """Where the error happened and what to do about it, by the names of the parameters."""
        names = ("path", "record", "offset", "feature", "advice")
        return {name: getattr(self, name) for name in names}

    def located(self, **place: Any) -> Self:
        """The same error with the parts of its place that were not known before."""
        known = {name: value for name, value in self.place().items() if value is not None}
        return type(self)(self.problem, **{**place, **known})


class CorruptRecordError(TFRecordError):
    """Bytes that are not a whole, undamaged TFRecord file or not a valid message."""


class FileChangedError(CorruptRecordError):
    """A file that is another one than the one that was listed."""


class CorruptRecordWarning(UserWarning):
    """Damage that was passed over because the reader was told to."""


class SchemaError(TFRecordError):
    """Values that do not fit a column's type, or a type that TFRecord cannot hold."""


class DestinationError(TFRecordError):
    """A place that cannot be written to as asked, such as one that already holds data."""


class ConcurrentWriteError(DestinationError):
    """Another write committed to the same place since this one, which does not append, was planned."""
