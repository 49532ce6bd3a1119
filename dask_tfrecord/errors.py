"""Define the exceptions and warnings of this library.

A message says what is wrong, where, and what to do. The code that detects a problem sets the fields that it
knows, such as ``record``. Its callers add others, such as the path, with `located`, and the public function
adds its name and path. An error of a worker reaches the client with all fields.

A :class:`Remedy` is an argument that would solve the problem. The message shows the remedies that the called
function or command accepts, and for any other, a function that accepts it. Remedies that several errors share
are defined at the end of this module.
"""

import json
import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

import pyarrow as pa

logger = logging.getLogger(__name__)

READ = "read_tfrecord"
OPEN = "open_dataset"

# Maps each function that an error may mention to its keywords, which `public_function` fills in.
KEYWORDS: dict[str, Collection[str]] = {
    READ: (),
    OPEN: (),
    "to_tfrecord": (),
    "Writer": (),
    "Dataset.to_dask": (),
    "Dataset.batches": (),
}


class Remedy(NamedTuple):
    """Describe an argument that avoids an error.

    Parameters
    ----------
    keyword : str
        The name of the keyword to pass, such as ``"on_corrupt"``.
    value : object
        The value to pass, such as ``"skip"``.
    effect : str
        What passing the argument does, as an infinitive, such as ``"read all other records"``. If it is
        empty, this remedy and the next must be passed together.
    """

    keyword: str
    value: Any
    effect: str = ""

    def __str__(self) -> str:
        """Return the argument as Python code, such as ``on_corrupt="skip"``."""
        return f"{self.keyword}={literal(self.value)}"


class Call(NamedTuple):
    """Describe a call of `to_tfrecord`, or of a `Dataset` method, that avoids an error.

    Parameters
    ----------
    function : str
        The name of the function or method to call, such as ``"add_snapshot"``.
    path : str
        The path of the dataset.
    keywords : dict
        The keywords to pass to `to_tfrecord`, or, for a method, to `open_dataset`.
    effect : str
        The text that follows the call in the message, such as ``"to add the rows"``.
    columns : dict, optional
        The columns to assign to the DataFrame before the call of `to_tfrecord`, each with its value.
    """

    function: str
    path: str
    keywords: Mapping[str, Any]
    effect: str = ""
    columns: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        """Return the advice to make this call, such as ``call ddf.to_tfrecord('train')``."""
        arguments = ", ".join([repr(self.path), *(str(Remedy(*item)) for item in self.keywords.items())])
        if self.function != "to_tfrecord":
            return f"call dask_tfrecord.open_dataset({arguments}).{self.function}()"
        assigned = ", ".join(str(Remedy(*item)) for item in (self.columns or {}).items())
        return f"call ddf{f'.assign({assigned})' if assigned else ''}.to_tfrecord({arguments})"


class TFRecordError(ValueError):
    """Base class of the exceptions of this library, except for `NotFoundError`.

    `located` and :meth:`replaced` add or change fields in a copy of the error.

    Parameters
    ----------
    problem : str
        The text that says what is wrong.
    *actions : str, Call, Remedy or None
        What the user can do. A str becomes ``advice``, a `Call` is added to ``calls``, a `Remedy` is added to
        ``remedies``, and None is ignored.
    path : str, optional
        The file or directory that the error is about, without credentials. By default, the public function
        that the user called sets its own path argument, except in an error about a keyword.
    record : int, optional
        Index of the record in its file, counted from 0. For an error during a write, the index of the row in
        its partition.
    offset : int, optional
        The position at which the damage starts, in bytes from the start of the (decompressed) file.
    feature : str, optional
        Name of the feature or column that the error is about.
    advice : str, optional
        The text that says what the user can do, apart from passing an argument or calling a function.
    calls : sequence of Call
        Function calls that would avoid the error.
    remedies : sequence of Remedy
        The arguments that avoid the error, each with a keyword, a value and an effect. If a public function
        raises the error, only those that it accepts remain.
    function : str, optional
        The public function that the message names for remedies that the called function does not accept. By
        default, it names a suitable one, such as `read_tfrecord` or `open_dataset`. If ``function`` is an
        empty string, the message leaves these remedies out.
    keyword : str, optional
        The keyword that the problem is about. By default, the public function that the user called reads the
        keyword from a ``problem`` that begins with a keyword and ``=``.
    reason : str, optional
        The kind of damage, as a constant text that code may compare.

    Attributes
    ----------
    other_remedies : tuple of Remedy
        Arguments that would avoid the error, but that the called function does not accept.
    called : str, optional
        The name of the public function that raised the error, or None if a task raised the error.

    Examples
    --------
    >>> from dask_tfrecord import SchemaError
    >>> error = SchemaError("holds 3 values, the column is a scalar", record=17, feature="age")
    >>> print(error.replaced(path="train/part-0.tfrecord"))
    train/part-0.tfrecord, record 17: feature 'age': holds 3 values, the column is a scalar

    The remedies of an error are arguments to pass:

    >>> from dask_tfrecord.errors import CorruptRecordError, Remedy
    >>> error = CorruptRecordError("is damaged", remedies=[Remedy("on_corrupt", "skip", "read the others")])
    >>> print(error)
    is damaged; pass on_corrupt="skip" to read_tfrecord to read the others
    >>> {remedy.keyword: remedy.value for remedy in error.remedies}
    {'on_corrupt': 'skip'}
    """

    def __init__(
        self,
        problem: str,
        *actions: str | Call | Remedy | None,
        path: str | None = None,
        record: int | None = None,
        offset: int | None = None,
        feature: str | None = None,
        advice: str | None = None,
        calls: Sequence[Call] = (),
        remedies: Sequence[Remedy] = (),
        function: str | None = None,
        keyword: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem, self.path, self.feature = problem, path, feature
        self.record, self.offset = record, offset
        self.advice = next((one for one in actions if isinstance(one, str)), advice)
        self.calls = (*(one for one in actions if isinstance(one, Call)), *calls)
        self.remedies = (*(one for one in actions if isinstance(one, Remedy)), *remedies)
        self.other_remedies: tuple[Remedy, ...] = ()
        self.function, self.keyword, self.reason = function, keyword, reason
        self.called: str | None = None

    def __str__(self) -> str:
        return self.rendered()

    # Do not name this method `message`: to the constructor of an exception class with this attribute, PyTorch
    # passes the text of a worker's error as the parameter `message`.
    def rendered(self, argument: Callable[[Remedy], str] = str, call: Callable[[Call], str] = str) -> str:
        """Return the error message. ``argument`` formats each remedy, and ``call`` formats each call."""
        where = [self.path] if self.path is not None else []
        where += [f"record {self.record:,}"] if self.record is not None else []
        place = ", ".join(where)
        if self.offset is not None:
            place = f"{place} (byte {self.offset:,})" if place else f"byte {self.offset:,}"
        feature = f"feature {self.feature!r}: " if self.feature is not None else ""
        actions = _actions(self, call)
        if self.remedies:
            # `compute()`, which raises the errors of tasks, does not accept the suggested arguments.
            to = " to read_tfrecord" if self.called is None and self.function in (None, READ) else ""
            actions.append(f"pass {_sentence(self.remedies, argument, to)}")
        parts = [f"{place}: {feature}{self.problem}" if place else f"{feature}{self.problem}"]
        parts += [", or ".join(actions)] if actions else []
        if self.other_remedies:
            parts.append(f"{self.function or READ} takes {_sentence(self.other_remedies)}")
        return "; ".join(parts)

    def __repr__(self) -> str:
        """Return the class and the message of the error, because the logs of workers show the repr."""
        return f"{type(self).__name__}({str(self)!r})"

    def fields(self) -> dict[str, Any]:
        """Return a dict with the name and the value of each field of the error."""
        return dict(vars(self))

    def replaced(self, **changes: Any) -> Self:
        """Return a copy of the error with new values for some fields."""
        return _with_fields(type(self), self.fields() | changes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_fields, (type(self), self.fields())

    def called_as(self, name: str, accepts: Callable[[Remedy], bool]) -> Self:
        """Set the name of the public function or command that raises this error, and return it.

        ``accepts`` returns True for a remedy that the named function or command accepts. Remedies that only
        ``self.function`` accepts become `other_remedies`. Remedies that neither function accepts are dropped.
        """
        groups = [*_groups(self.remedies), *_groups(self.other_remedies)]
        own = [group for group in groups if all(map(accepts, group))]
        known = () if self.function == "" else KEYWORDS.get(self.function or READ, ())
        others = [
            group for group in groups if group not in own and all(one.keyword in known for one in group)
        ]
        self.called, self.remedies, self.other_remedies = name, tuple(chain(*own)), tuple(chain(*others))
        return self


_Error = TypeVar("_Error", bound=TFRecordError)


def _with_fields(kind: type[_Error], fields: Mapping[str, Any]) -> _Error:
    error = kind(fields["problem"])
    vars(error).update(fields)
    return error


@contextmanager
def located(*, first: int | None = None, **fields: Any) -> Iterator[None]:
    """Add fields, such as the path, to each TFRecordError that the ``with`` block raises.

    Only fields that are None in the error are set. A value may be a function, which is called only if an
    error is raised. ``first`` is the index of the first record that the ``with`` block processes. It is added
    to the record that an error names, and ``fields`` then also replace values that are already set.
    """
    try:
        yield
    except TFRecordError as error:
        known = {name: value() if callable(value) else value for name, value in fields.items()}
        changes = {name: value for name, value in known.items() if getattr(error, name) is None}
        if first is not None and error.record is not None:
            changes = known | {"record": first + error.record}
        raise error.replaced(**changes) from error.__cause__


class NotFoundError(FileNotFoundError):
    """Signal that a path has no data files or no snapshot.

    Parameters
    ----------
    problem : str
        The text that says what is missing, and where.
    advice : str, optional
        The text that says what the user can do, apart from calling a function.
    calls : sequence of Call
        Function calls that would avoid the error.

    Examples
    --------
    >>> import dask_tfrecord
    >>> try:
    ...     dask_tfrecord.open_dataset("nothing")
    ... except dask_tfrecord.NotFoundError as error:
    ...     print(error.problem.rpartition(": ")[2])
    no such file or directory
    """

    def __init__(self, problem: str, advice: str | None = None, calls: Sequence[Call] = ()) -> None:
        super().__init__(problem)
        self.problem, self.advice, self.calls = problem, advice, tuple(calls)

    def __str__(self) -> str:
        return self.rendered()

    def rendered(self, call: Callable[[Call], str] = str) -> str:
        """Return the error message. ``call`` formats each call."""
        return (
            "; ".join([self.problem, ", or ".join(actions)])
            if (actions := _actions(self, call))
            else self.problem
        )


def _actions(error: TFRecordError | NotFoundError, call: Callable[[Call], str]) -> list[str]:
    advice = [error.advice] if error.advice else []
    return [*advice, *(f"{call(one)} {one.effect}".rstrip() for one in error.calls)]


def _groups(remedies: Sequence[Remedy]) -> list[list[Remedy]]:
    """Group the remedies that must be passed together."""
    groups: list[list[Remedy]] = [[]]
    for remedy in remedies:
        groups[-1].append(remedy)
        if remedy.effect:
            groups.append([])
    return [group for group in groups if group]


def _sentence(remedies: Sequence[Remedy], argument: Callable[[Remedy], str] = str, to: str = "") -> str:
    """Return text such as ``x=1 to do this, or y=2 and z=3 to do that``. Insert ``to`` after ``x=1``."""
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
        items = ((key, str(item) if str(item) in TYPE_NAMES else item) for key, item in value.items())
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


# Callers may pass these names instead of types, because each means the same type in Arrow, NumPy and pandas.
TYPE_NAMES = {"string", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}


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
    """Signal that a file or a version of a dataset was removed. Catch `FileChangedError` instead."""


class CorruptRecordWarning(UserWarning):
    """Warn that a read skipped damaged data, as ``on_corrupt`` allows."""


class RemedyWarning(UserWarning):
    """Warn of a problem, and name the arguments that avoid the warning.

    Parameters
    ----------
    problem : str
        The text that says what may be wrong.
    remedies : sequence of Remedy
        Arguments that avoid the warning. One of them is sufficient.
    """

    def __init__(self, problem: str, remedies: Sequence[Remedy]) -> None:
        super().__init__(problem, remedies)
        self.problem = problem
        self.remedies = tuple(remedies)

    def __str__(self) -> str:
        return self.rendered()

    def rendered(self, argument: Callable[[Remedy], str] = str) -> str:
        """Return the text of the warning. ``argument`` formats each remedy."""
        return f"{self.problem}; pass {_sentence(self.remedies, argument)}" if self.remedies else self.problem


def drop_frames(error: Exception) -> None:
    """Remove the current traceback from an error of this package, because users need only the message.

    If the logger ``dask_tfrecord`` has the level DEBUG, the traceback stays.
    """
    if isinstance(error, TFRecordError | NotFoundError) and not logger.isEnabledFor(logging.DEBUG):
        error.__traceback__ = None


_shown: set[str] = set()


def warn_caller(warning: UserWarning | str) -> None:
    """Issue a warning whose location is the line of the user's program that called this package.

    Each process issues the same text only once, because a job may repeat a write many times. A filter such as
    "always" or "error" that the program sets for the whole warning category takes precedence. Python's own
    record of issued warnings is not enough, because any change of a filter clears it.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    kind = UserWarning if isinstance(warning, str) else type(warning)
    is_filtered = any(
        issubclass(kind, category) and message is module is None
        for _, message, category, module, _ in warnings.filters
    )
    if is_filtered or str(warning) not in _shown:
        _shown.add(str(warning))
        warnings.warn(warning, stacklevel=level)


def check_instance(name: str, value: object, *types: type) -> None:
    """Raise TFRecordError if the value of an argument is not an instance of one of the types."""
    # A zero-dimensional NumPy array has `__iter__`, but calling it raises an error.
    is_scalar = Iterable in types and getattr(value, "ndim", None) == 0
    if is_scalar or not isinstance(value, types):
        known = " or ".join(one.__name__ for one in types)
        # The message does not show the value, which may contain credentials.
        raise TFRecordError(f"{name}= is not a {known} (got {type(value).__name__})")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a question that suggests the known names most similar to ``name``, or "" if none is similar."""
    near = get_close_matches(name, known, 3) or [one for one in known if len(name) > 2 and name in one][:3]
    return f"did you mean {', '.join(map(repr, near))}?" if near else ""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 file" or "2,000 files"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def short_list(names: Sequence[str], most: int = 12) -> str:
    """Join names with commas. If there are more than ``most`` names, count the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


class SchemaError(TFRecordError):
    """Signal that values do not fit the type of their column, or that TFRecord cannot store a type."""


class KeywordError(TFRecordError, TypeError):
    """Signal that a caller passed a keyword that the function does not accept."""


class UnknownAttributeError(TFRecordError, AttributeError):
    """Signal that an object has no attribute with a name that users of other tools try."""


class UnsupportedOperationError(TFRecordError, TypeError):
    """Signal that an object does not support a Python operation, such as `len`."""


class DestinationError(TFRecordError):
    """Signal that a destination cannot be written, for example because it already contains data."""


class ConcurrentWriteError(DestinationError):
    """Signal that another write committed to the destination after this write was planned."""


# Each of these remedies is suggested by several errors.
DROP_INDEX = Remedy("write_index", False, "drop the index")
IGNORE_DIRECTORIES = Remedy("hive", False, "ignore the names of the directories")
IGNORE_FEATURES = Remedy("extra", "ignore", "leave out features that have no column")
SKIP_DAMAGE = Remedy("on_corrupt", "skip", "skip it and read all other records")
WITHOUT_SNAPSHOT = Remedy("use_snapshot", False, "read the files without the snapshot")


def add_snapshot_again(
    root: str, effect: str = 'again; if it says "up to date", nothing is left to do'
) -> Call:
    """Return the advice to call `add_snapshot` again."""
    return Call("add_snapshot", root, {}, effect)
