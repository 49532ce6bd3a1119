"""The exceptions and the warning of this library.

An error states what is wrong, where, and what to do. The code that detects the problem gives the parts of the
place that it knows. Its callers add the others with :meth:`TFRecordError.located`. An error that a worker
raises reaches the client with all of its fields.
"""

from functools import partial
from typing import Any, Self

_FIELDS = ("problem", "path", "record", "offset", "feature", "advice")


class TFRecordError(ValueError):
    """Base class of this library's exceptions.

    The fields of an error are read-only. :meth:`located` and :meth:`replaced` return changed copies.

    Parameters
    ----------
    problem : str
        What is wrong.
    path : str, optional
        The file or directory, without credentials.
    record : int, optional
        Number of the record in the file, from 0. In errors of a write: number of the row in the partition.
    offset : int, optional
        Where the damage starts, in bytes from the start of the (decompressed) file.
    feature : str, optional
        Name of the feature or column.
    advice : str, optional
        What to do, usually the keyword that solves the problem.

    Examples
    --------
    >>> from dask_tfrecord import SchemaError
    >>> error = SchemaError("holds 3 values, the column is a scalar", record=17, feature="age")
    >>> print(error.located(path="train/part-0.tfrecord"))
    train/part-0.tfrecord, record 17: feature 'age': holds 3 values, the column is a scalar
    """

    problem: str
    path: str | None
    record: int | None
    offset: int | None
    feature: str | None
    advice: str | None

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
        self.__dict__.update(
            problem=problem, path=path, record=record, offset=offset, feature=feature, advice=advice
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_not_a_field(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._check_not_a_field(name)
        super().__delattr__(name)

    def _check_not_a_field(self, name: str) -> None:
        """Protect the fields; Python itself sets other attributes, such as ``__notes__``."""
        if name in _FIELDS:
            raise AttributeError(f"{name!r} of an error is read-only; use replaced({name}=...) for a copy")

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
        """Return the class and the message, because the logs of workers show the repr of an error."""
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.fields()), ()

    def fields(self) -> dict[str, Any]:
        """Return the values of all fields, by the names of the parameters."""
        return {name: getattr(self, name) for name in _FIELDS}

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with other values for the given fields."""
        return type(self)(**{**self.fields(), **changes})

    def located(self, **place: Any) -> Self:
        """Return a copy in which the given values fill the fields that are None."""
        return self.replaced(**{name: value for name, value in place.items() if getattr(self, name) is None})


class CorruptRecordError(TFRecordError):
    """The bytes are not an undamaged TFRecord file, or a record is not a valid message."""


class FileChangedError(CorruptRecordError):
    """The file changed after it was listed."""


class CorruptRecordWarning(UserWarning):
    """The reader skipped damaged data, as its options allow."""


class SchemaError(TFRecordError):
    """Values do not fit the type of their column, or TFRecord cannot hold the type."""


class DestinationError(TFRecordError):
    """The destination cannot be written as requested, for example because it already holds data."""


class ConcurrentWriteError(DestinationError):
    """Another write committed to the destination after this write was planned."""
