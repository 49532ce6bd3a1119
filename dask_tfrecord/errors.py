"""Define the exceptions and warnings of this library.

An error states what is wrong, where, and what to do. The code that detects a problem sets the fields of the
error that it knows, such as the record number. The callers of that code add the missing fields, such as the
path, with :meth:`TFRecordError.located`. An error that a worker raises reaches the client with all of its
fields.

If passing an argument solves the problem, the error holds this argument as a :class:`Remedy`. An error that
leaves a public function (see `calling`) or a command shows the remedies that this function or command
accepts, and says which function accepts the other remedies.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from itertools import chain
from typing import Any, NamedTuple, Self

import pyarrow as pa

_PLACE = ("problem", "path", "record", "offset", "feature", "advice")
_REMEDIES = ("calls", "remedies", "other_remedies", "function", "called", "keyword", "reason")
_FIELDS = (*_PLACE, *_REMEDIES)

COLLECTION = "compute"


class Remedy(NamedTuple):
    """An argument that avoids an error.

    Parameters
    ----------
    keyword : str
        The name of the keyword to pass, such as ``"on_corrupt"``.
    value : object
        The value to pass, such as ``"skip"``.
    effect : str
        What passing the argument does, as an infinitive, such as ``"read all other records"``. An empty
        string means that this remedy and the next remedy must be passed together.
    """

    keyword: str
    value: Any
    effect: str = ""

    def __str__(self) -> str:
        """Return the argument as Python code, such as ``on_corrupt="skip"``."""
        return f"{self.keyword}={literal(self.value)}"


class Call(NamedTuple):
    """A call of another public function that avoids an error.

    Parameters
    ----------
    function : str
        The name of the function to call, such as ``"index"``.
    path : str
        The path to pass to this function.
    keywords : dict
        The keywords to pass to this function.
    effect : str
        The text that follows the call in the message, such as ``"to add the rows"``.
    """

    function: str
    path: str
    keywords: Mapping[str, Any]
    effect: str = ""

    def __str__(self) -> str:
        """Return the advice to make this call, with the call as Python code."""
        owner = "ddf" if self.function == "to_tfrecord" else "dask_tfrecord"
        arguments = [repr(self.path), *(str(Remedy(*item)) for item in self.keywords.items())]
        return f"call {owner}.{self.function}({', '.join(arguments)})"


class TFRecordError(ValueError):
    """Base class of the exceptions of this library, except for `NotFoundError`.

    The fields of an error are read-only: :meth:`located` and :meth:`replaced` return changed copies.

    Parameters
    ----------
    problem : str
        The text that says what is wrong.
    path : str, optional
        The file or directory that the error is about, without credentials.
    record : int, optional
        Number of the record in its file, counted from 0. In an error of a write, this is the number of the
        row in its partition.
    offset : int, optional
        The position at which the damage starts, in bytes from the start of the (decompressed) file.
    feature : str, optional
        Name of the feature or column that the error is about.
    advice : str, optional
        The text that says what the user can do, apart from passing an argument.
    calls : sequence of Call
        Calls of other functions that avoid the error.
    remedies : sequence of Remedy
        The arguments that avoid the error, each with a keyword, a value and an effect. The function that
        raised the error accepts each of these arguments.
    other_remedies : sequence of Remedy
        Other arguments that avoid the error, which the function that raised the error does not accept.
    function : str, default "read_tfrecord"
        The public function that accepts all remedies. An empty string means that only the called function
        accepts the remedies.
    called : str, optional
        The name of the public function that raised the error, or None if a task raised the error.
    keyword : str, optional
        The keyword that the problem is about, if the text of the problem mentions a keyword.
    reason : str, optional
        The kind of damage, as a constant text that code may compare.

    Examples
    --------
    >>> from dask_tfrecord import SchemaError
    >>> error = SchemaError("holds 3 values, the column is a scalar", record=17, feature="age")
    >>> print(error.located(path="train/part-0.tfrecord"))
    train/part-0.tfrecord, record 17: feature 'age': holds 3 values, the column is a scalar

    The remedies of an error are arguments to pass:

    >>> from dask_tfrecord.errors import CorruptRecordError, Remedy
    >>> error = CorruptRecordError("is damaged", remedies=[Remedy("on_corrupt", "skip", "read the others")])
    >>> print(error)
    is damaged; pass on_corrupt="skip" to read_tfrecord to read the others
    >>> {remedy.keyword: remedy.value for remedy in error.remedies}
    {'on_corrupt': 'skip'}
    """

    problem: str
    path: str | None
    record: int | None
    offset: int | None
    feature: str | None
    advice: str | None
    calls: tuple[Call, ...]
    remedies: tuple[Remedy, ...]
    other_remedies: tuple[Remedy, ...]
    function: str
    called: str | None
    keyword: str | None
    reason: str | None

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        record: int | None = None,
        offset: int | None = None,
        feature: str | None = None,
        advice: str | None = None,
        calls: Sequence[Call] = (),
        remedies: Sequence[Remedy] = (),
        other_remedies: Sequence[Remedy] = (),
        function: str = "read_tfrecord",
        called: str | None = None,
        keyword: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(problem)
        calls, remedies, other_remedies = tuple(calls), tuple(remedies), tuple(other_remedies)
        given = locals()
        self.__dict__.update((name, given[name]) for name in _FIELDS)

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_not_a_field(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._check_not_a_field(name)
        super().__delattr__(name)

    def _check_not_a_field(self, name: str) -> None:
        """Raise if the name of an attribute is a field of the error.

        Other attributes, such as ``__notes__``, are set by Python itself.
        """
        if name in _FIELDS:
            raise AttributeError(f"{name!r} of an error is read-only; use replaced({name}=...) for a copy")

    def __str__(self) -> str:
        return self.rendered()

    # This method is not called `message`, because PyTorch passes the errors of its workers to a parameter of
    # that name.
    def rendered(self, argument: Callable[[Remedy], str] = str, call: Callable[[Call], str] = str) -> str:
        """Return the error message, in which remedies and calls are formatted by the given functions."""
        where = []
        if self.path is not None:
            where.append(self.path)
        if self.record is not None:
            where.append(f"record {self.record:,}")
        place = ", ".join(where)
        if self.offset is not None:
            place = f"{place} (byte {self.offset:,})" if place else f"byte {self.offset:,}"
        feature = f"feature {self.feature!r}: " if self.feature is not None else ""
        actions = [self.advice] if self.advice else []
        actions += [f"{call(one)} {one.effect}".rstrip() for one in self.calls]
        if self.remedies:
            # Tasks raise errors in compute() and not in read_tfrecord(), so the message names the function
            # read_tfrecord.
            to = " to read_tfrecord" if self.called is None and self.function == "read_tfrecord" else ""
            actions.append(f"pass {_sentence(self.remedies, argument, to)}")
        parts = [f"{place}: {feature}{self.problem}" if place else f"{feature}{self.problem}"]
        parts += [", or ".join(actions)] if actions else []
        if self.other_remedies and self.function:
            parts.append(f"{self.function} takes {_sentence(self.other_remedies)}")
        return "; ".join(parts)

    def __repr__(self) -> str:
        """Return the class and the message of the error, because the logs of workers show the repr."""
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.fields()), ()

    def fields(self) -> dict[str, Any]:
        """Return a dict with the name and the value of each field of the error."""
        return {name: getattr(self, name) for name in _FIELDS}

    def replaced(self, **changes: Any) -> Self:
        """Return a copy of the error in which the given fields have the given values."""
        return type(self)(**{**self.fields(), **changes})

    def located(self, **place: Any) -> Self:
        """Return a copy of the error in which the given values replace only fields that are None."""
        return self.replaced(**{name: value for name, value in place.items() if getattr(self, name) is None})

    def called_as(self, name: str, accepts: Callable[[Remedy], bool]) -> Self:
        """Set the name of the public function or command that raises this error, and return the error.

        Parameters
        ----------
        name : str
            The name of the function or command.
        accepts : callable
            Function that returns True for a remedy that the function or command accepts.
        """
        groups = [*_groups(self.remedies), *_groups(self.other_remedies)]
        own = [group for group in groups if all(map(accepts, group))]
        others = [group for group in groups if group not in own]
        self.__dict__.update(called=name, remedies=tuple(chain(*own)), other_remedies=tuple(chain(*others)))
        return self


class NotFoundError(FileNotFoundError):
    """Signal that a path has no data files or no snapshot.

    Parameters
    ----------
    problem : str
        The text that says what is missing, and where.
    advice : str, optional
        The text that says what the user can do, apart from a call.
    calls : sequence of Call
        Calls of functions that avoid the error.

    Examples
    --------
    >>> import dask_tfrecord
    >>> try:
    ...     dask_tfrecord.Snapshot.open("nothing")
    ... except dask_tfrecord.NotFoundError as error:
    ...     print([call.function for call in error.calls])
    ['index']
    """

    def __init__(self, problem: str, advice: str | None = None, calls: Sequence[Call] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice
        self.calls = tuple(calls)

    def __str__(self) -> str:
        return self.rendered()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.advice, self.calls)

    def rendered(self, call: Callable[[Call], str] = str) -> str:
        """Return the error message. ``call`` formats each call."""
        actions = [self.advice] if self.advice else []
        actions += [f"{call(one)} {one.effect}".rstrip() for one in self.calls]
        return "; ".join([self.problem, ", or ".join(actions)]) if actions else self.problem


@contextmanager
def calling(function: Callable[..., Any]) -> Iterator[None]:
    """Make errors show only the remedies that a public function or a constructor accepts.

    Use `calling` in a ``with`` statement, or as the decorator of a method.
    """
    try:
        yield
    except TFRecordError as error:
        name = function.__qualname__.removesuffix(".__init__")
        keywords = signature(function).parameters
        # A keyword of to_tfrecord has another meaning than the keyword of the same name in functions that
        # read.
        accepts = not error.function or (error.function == "to_tfrecord") == (name == "to_tfrecord")
        if error.called != COLLECTION:
            error.called_as(name, lambda remedy: accepts and remedy.keyword in keywords)
        raise


@contextmanager
def computing() -> Iterator[None]:
    """Mark errors of computing a Dask collection: the running function accepts none of the remedies of
    these errors.
    """
    try:
        yield
    except TFRecordError as error:
        error.called_as(COLLECTION, lambda _: False)
        raise


def _groups(remedies: Sequence[Remedy]) -> list[list[Remedy]]:
    """Group remedies so that each group holds the remedies that must be passed together."""
    groups: list[list[Remedy]] = [[]]
    for remedy in remedies:
        groups[-1].append(remedy)
        if remedy.effect:
            groups.append([])
    return [group for group in groups if group]


def _sentence(remedies: Sequence[Remedy], argument: Callable[[Remedy], str] = str, to: str = "") -> str:
    """Format remedies as the text ``x=1 to do this, or y=2 and z=3 to do that``.

    The text ``to`` follows the first arguments.
    """
    texts = []
    for group in _groups(remedies):
        effect = f" to {group[-1].effect}" if group[-1].effect else ""
        texts.append(f"{' and '.join(map(argument, group))}{to}{effect}")
        to = ""
    return ", or ".join(texts)


def literal(value: Any) -> str:
    """Return the value of a remedy as Python source code."""
    if isinstance(value, pa.DataType):
        return _type_literal(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def _type_literal(type_: pa.DataType) -> str:
    if isinstance(type_, pa.FixedShapeTensorType):
        return f"pa.fixed_shape_tensor({literal(type_.value_type)}, {list(type_.shape)})"
    if pa.types.is_list(type_):
        return f"pa.list_({literal(type_.value_type)})"
    if pa.types.is_large_list(type_):
        return f"pa.large_list({literal(type_.value_type)})"
    if pa.types.is_fixed_size_list(type_):
        return f"pa.list_({literal(type_.value_type)}, {type_.list_size})"
    if pa.types.is_fixed_size_binary(type_):
        return f"pa.binary({type_.byte_width})"
    if pa.types.is_dictionary(type_):
        ordered = ", ordered=True" if type_.ordered else ""
        return f"pa.dictionary({literal(type_.index_type)}, {literal(type_.value_type)}{ordered})"
    if pa.types.is_struct(type_):
        return f"pa.struct({literal({item.name: item.type for item in type_})})"
    if pa.types.is_date(type_):
        return f"pa.date{type_.bit_width}()"
    name, _, arguments = str(type_).removesuffix("]").partition("[")
    name = {"float": "float32", "double": "float64", "halffloat": "float16", "bool": "bool_"}.get(name, name)
    values = [literal(text.removeprefix("tz=")) for text in arguments.split(", ")] if arguments else []
    return f"pa.{name}" if name.endswith(")") else f"pa.{name}({', '.join(values)})"


class CorruptRecordError(TFRecordError):
    """Signal that a TFRecord file is damaged, or that a record is not a valid message."""


class FileChangedError(CorruptRecordError):
    """Signal that a file of a dataset was changed or removed after it was listed.

    If the file was removed, the error is also a `FileNotFoundError`.
    """


class FileRemovedError(FileChangedError, FileNotFoundError):
    """Signal that a file or a version of a dataset was removed after it was listed.

    Programs catch `FileChangedError`.
    """


class CorruptRecordWarning(UserWarning):
    """Warn that a read skipped damaged data, as ``on_corrupt`` allows."""


class RemedyWarning(UserWarning):
    """Warn of a problem, and name the arguments that avoid the warning.

    Parameters
    ----------
    problem : str
        The text that says what may be wrong.
    remedies : sequence of Remedy
        Arguments that avoid the warning. Each of these arguments is sufficient.
    """

    def __init__(self, problem: str, remedies: Sequence[Remedy]) -> None:
        super().__init__(problem, remedies)
        self.problem = problem
        self.remedies = tuple(remedies)

    def __str__(self) -> str:
        return self.rendered()

    def rendered(self, argument: Callable[[Remedy], str] = str) -> str:
        """Return the text of the warning, in which the function ``argument`` formats each remedy."""
        return f"{self.problem}; pass {_sentence(self.remedies, argument)}" if self.remedies else self.problem


def warn_caller(warning: UserWarning | str) -> None:
    """Issue a warning whose location is the line of the user's program that called this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


def check_instance(name: str, value: object, *types: type) -> None:
    """Raise TFRecordError if the value of an argument has none of the types."""
    # A NumPy array without dimensions has the method of an iterable, but raises.
    is_scalar = Iterable in types and getattr(value, "ndim", None) == 0
    if is_scalar or not isinstance(value, types):
        known = " or ".join(one.__name__ for one in types)
        # The message does not show the value, which may hold credentials.
        raise TFRecordError(f"{name}= is not a {known} (got {type(value).__name__})")


class SchemaError(TFRecordError):
    """Signal that values do not fit the type of their column, or that TFRecord cannot hold a type."""


class KeywordError(TFRecordError, TypeError):
    """Signal that a caller passed a keyword that the function does not have."""


class DestinationError(TFRecordError):
    """Signal that a destination cannot be written, for example because it already holds data."""


class ConcurrentWriteError(DestinationError):
    """Signal that another write committed to the destination after this write was planned."""
