"""Define the decorator for public functions, which sets their signatures and completes their errors.

The file ``foreign-keywords.yaml`` maps keywords of other tools to keywords of this library.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args

import yaml

from dask_tfrecord.errors import KEYWORDS, OPEN, READ, KeywordError, NotFoundError, TFRecordError, drop_frames
from dask_tfrecord.storage.redaction import hide_secrets, redact_errors

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# The options that the keywords `read_options` and `write_options` accept, each with its default.
OPTIONS: dict[str, Mapping[str, Parameter]] = {}

# The options that ``write_options=`` of a `Writer` accepts.
WRITER_OPTIONS: list[str] = []

# The function name in errors that are raised while a Dask collection is computed.
_COLLECTION = "compute"

_WRITES = ("to_tfrecord", "Writer")

# `Dataset` inherits public methods from the classes in `_PARTS`. `_READING` lists the only methods of
# `Facts` and `Maintenance` that use the read keywords of `open_dataset`.
_PARTS = ("ArrowDataset.", "Facts.", "Maintenance.")
_READING = ("Maintenance.add_snapshot", "Facts.verify")


def _title(function: Callable[..., Any]) -> str:
    """Return the name by which users know a public function or method."""
    name = function.__qualname__.removesuffix(".__init__")
    return f"Dataset.{name.partition('.')[2]}" if name.startswith(_PARTS) else name


def _reader(function: Callable[..., Any]) -> str:
    """Return the function whose read keywords apply: `open_dataset` or `read_tfrecord`."""
    name = function.__qualname__
    is_opened = name.startswith(("Dataset.", "ArrowDataset.")) or name in _READING
    return OPEN if is_opened else READ


def public_function(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a public function or constructor: set its signature, and adapt the errors that it raises.

    The signature lists each keyword of a typed dict such as `ReadKeywords`. An unknown keyword raises
    KeywordError, which suggests the right one. Other errors show the remedies that the function accepts, name
    another function for the rest, and hide the secrets in the arguments. An error that names neither a file
    nor a keyword gets the path argument of the call. Errors of the tasks of a Dask collection suggest
    keywords of the function that created it.
    """
    shown = _expanded(signature(function))
    known = [name for name in shown.parameters if name != "self"]
    title = _title(function)
    redacted = redact_errors(function)
    if title in KEYWORDS:
        KEYWORDS[title] = known

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        unknown = {name: value for name, value in kwargs.items() if name not in known}
        if unknown:
            raise unknown_keywords(title, known, unknown)
        computes = any(hasattr(type(value), "__dask_graph__") for value in (*args, *kwargs.values()))
        try:
            with calling(call, args, kwargs):
                return (function if computes else redacted)(*args, **kwargs)
        except (TFRecordError, NotFoundError) as error:
            drop_frames(error)
            raise

    call.__signature__ = shown  # type: ignore[attr-defined]  # `inspect.signature` reads the attribute (PEP 362), but mypy knows no such attribute of functions
    return call


@contextmanager
def calling(
    function: Callable[..., Any] | None, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Iterator[None]:
    """Separate, in the errors of a call, the remedies that the called function accepts from the others.

    Use it in a ``with`` statement, or as the decorator of a method. ``function`` is None while a Dask
    collection is computed, which accepts no remedy. ``args`` and ``kwargs`` are the arguments of the call, if
    known. An error that names neither a path nor a keyword gets the path among them.
    """
    try:
        yield
    except TFRecordError as error:
        if function is None:
            error.called_as(_COLLECTION, lambda _: False)
        elif error.called != _COLLECTION:
            name = _title(function)
            keywords = signature(function).parameters
            owner = name.partition(".")[0]
            is_write = owner in _WRITES
            if error.function is None:
                is_ours = is_write and any(one.keyword in KEYWORDS[owner] for one in error.remedies)
                error.function = owner if is_ours else _reader(function)
            # Some keywords have the same name but different meanings in reads and in writes.
            fits = error.function == "" or (error.function in _WRITES) == is_write
            error.called_as(name, lambda remedy: fits and remedy.keyword in keywords)
            keyword = error.problem.partition("=")[0]
            if error.keyword is None and any(keyword in names for names in (keywords, *OPTIONS.values())):
                error.keyword = keyword
            if error.path is None and error.keyword is None:
                error.path = _path_in(signature(function), args, kwargs or {})
        raise


def _path_in(given: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the path among the arguments of a call, without secrets, or None if there is none."""
    arguments = given.bind_partial(*args, **kwargs).arguments
    owner = arguments.get("self")  # the argument `self` is a `Writer` or a `Dataset`
    path = arguments.get("path", arguments.get("source", getattr(owner, "_root", None)))
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str):
        return None
    return hide_secrets(text if "://" in text else os.path.abspath(text), args, kwargs)


def _expanded(given: Signature) -> Signature:
    """Replace ``**keywords`` in a signature by the keywords that its typed dict declares."""
    found: list[Parameter] = []
    for parameter in given.parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            (keywords,) = get_args(parameter.annotation)
            found += parameters_of(keywords).values()
        else:
            found.append(parameter)
    return given.replace(parameters=found)


def parameters_of(declared: Any) -> dict[str, Parameter]:
    """Return a parameter, with its default, for each keyword that a typed dict declares."""
    return {
        name: Parameter(
            name, Parameter.KEYWORD_ONLY, default=hint.__metadata__[0], annotation=hint.__origin__
        )
        for name, hint in declared.__annotations__.items()
    }


# -- Unknown keywords ----------------------------------------------------------------------------------------

_SIMPLE = (str, int, float)
_LONGEST = 60

# How similar a misspelt keyword must be to the keyword that an error suggests.
_SIMILARITY = 0.75

# Maps functions to the kind of function by which foreign-keywords.yaml distinguishes advice.
_KINDS = {
    READ: "frame",
    "Dataset.to_dask": "frame",
    OPEN: "dataset",
    "iter_batches": "batches",
    "Dataset.batches": "batches",
    "to_tfrecord": "write",
    "Writer": "writer",
}

# Maps a function to others that may accept a keyword instead, and to the advice to call them.
_OTHERS = {
    READ: {"Dataset.batches": "call dask_tfrecord.open_dataset(path).batches({})"},
    OPEN: {
        "Dataset.to_dask": "call .to_dask({}) of the result",
        "Dataset.batches": "call .batches({}) of the result",
    },
    "Dataset": {OPEN: "pass {} to open_dataset"},
}


@dataclass(frozen=True)
class ForeignKeyword:
    """Store one row of foreign-keywords.yaml: keywords of other tools that have the same meaning."""

    names: str
    tools: str
    ours: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""


@cache
def foreign_keywords() -> tuple[ForeignKeyword, ...]:
    """Read the rows of foreign-keywords.yaml. The file is read only when an error needs its content."""
    rows = yaml.safe_load(Path(__file__).with_name("foreign-keywords.yaml").read_text())
    return tuple(ForeignKeyword(**row) for row in rows)


def unknown_keywords(function: str, known: Collection[str], given: Mapping[str, Any]) -> KeywordError:
    """Return the error for ``given``, the keywords that the function does not accept."""
    names = ", ".join(map(repr, given))
    word = "an unexpected keyword argument" if len(given) == 1 else "unexpected keyword arguments"
    advice = {name: _advice(function, known, name, value) for name, value in given.items()}
    if shard := _shard(known, given):
        advice = {name: shard if _row(name).calls.get("batches") else text for name, text in advice.items()}
    is_same = len({*advice.values()}) == 1
    parts = [*advice.values()][:1] if is_same else [f"{name}=: {text}" for name, text in advice.items()]
    return KeywordError(f"{function}() got {word} {names}", "; ".join(parts))


def _spelling(name: str) -> str:
    return name.replace("_", "").lower()


def _row(name: str) -> ForeignKeyword:
    """Return the row of another tool's keyword, or an empty one if there is none."""
    rows = (row for row in foreign_keywords() if _spelling(name) in map(_spelling, row.names.split()))
    return next(rows, ForeignKeyword("", ""))


def _shard(known: Collection[str], given: Mapping[str, Any]) -> str | None:
    """Return the advice that joins the index of a shard and the number of shards, if both were passed."""
    rows = [(_row(name).ours, _shown(value)) for name, value in given.items()]
    index = [value for ours, value in rows if ours.startswith("rank={}")]
    count = [value for ours, value in rows if ours.startswith("rank=0")]
    if not index or not count:
        return None
    if "shard" in known:
        return f"pass shard=({index[0]}, {count[0]})"
    return f"pass rank={index[0]}, world_size={count[0]}" if "world_size" in known else None


def _advice(function: str, known: Collection[str], name: str, value: Any) -> str:
    row = _row(name)
    # A member of an enumeration, such as Ray's SaveMode, stores the text in the attribute `value`.
    special = row.values.get(str(getattr(value, "value", value)).lower(), "")
    candidates = [ours for ours in (special, *row.ours.split(" | ")) if _is_keyword(ours)]
    if special and special not in candidates and any(_keyword(ours) in known for ours in candidates):
        return special
    shown = [_filled(ours, value) for ours in candidates]
    for ours in shown:
        if _accepts(function, known, ours):
            return f"pass {ours}"
    own = f"{name}={_shown(value)}"
    for holder in OPTIONS.keys() & set(known):
        for ours in (own, *shown):
            if _keyword(ours) in _options(function, holder):
                return f'pass {holder}={{"{_keyword(ours)}": {_shown(value)}}}'
    for keyword in known:
        if _spelling(keyword) == _spelling(name):
            return f"pass {keyword}="
    text = row.calls.get(function, row.calls.get(_KINDS.get(function, ""), row.otherwise))
    if text:
        return _filled(text, value)
    return _of_another_function(function, [own, *shown]) or _similar(function, known, name, value)


def _of_another_function(function: str, candidates: Sequence[str]) -> str:
    """Return the advice to call another function, which accepts one of the keywords ``candidates``."""
    for other, how in _OTHERS.get(function.partition(".")[0], {}).items():
        for ours in candidates:
            if _accepts(other, KEYWORDS[other], ours):
                return how.format(ours)
    for other, keywords in KEYWORDS.items():
        for ours in candidates:
            if _accepts(other, keywords, ours):
                return f"{other} takes {ours}"
    return ""


def _similar(function: str, known: Collection[str], name: str, value: Any) -> str:
    others = {one: other for other, keywords in reversed(KEYWORDS.items()) for one in keywords}
    near = get_close_matches(name, {*known, *others}, 1, _SIMILARITY)
    if near and near[0] not in known:
        return _advice(function, known, near[0], value)
    return f"pass {near[0]}=" if near else f"help({function}) lists the keywords"


def _accepts(function: str, known: Collection[str], ours: str) -> bool:
    """Return True if a function accepts all keywords and options in a text such as ``a=1, b={"c": 2}``."""
    if option := re.match(r'(\w+)={"(\w+)"', ours):
        holder, name = option.groups()
        return holder in known and (holder not in OPTIONS or name in _options(function, holder))
    return all(keyword in known for keyword in re.findall(r"(?:^|, )(\w+)=", ours))


def _is_keyword(ours: str) -> bool:
    return _keyword(ours).isidentifier() and "=" in ours


def _options(function: str, holder: str) -> Collection[str]:
    """Return the options that the keyword ``holder`` of a function accepts."""
    return WRITER_OPTIONS if function == "Writer" else OPTIONS[holder]


def _keyword(ours: str) -> str:
    return ours.partition("=")[0]


def _filled(text: str, value: Any) -> str:
    """Insert the value of a keyword into a text of foreign-keywords.yaml."""
    return text.replace("{}", _shown(value)).replace("{text}", _shown(value).strip('"'))


def _shown(value: Any) -> str:
    """Return a value as Python code, or "..." if it is long or may contain a secret."""
    items = value if isinstance(value, list | tuple) else [value]
    shown = repr(value).replace("'", '"')
    return shown if all(isinstance(item, _SIMPLE) for item in items) and len(shown) <= _LONGEST else "..."
