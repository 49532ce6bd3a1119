"""Define the decorator of the public functions, which sets their signatures and adapts their errors."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import ParamSpec, TypeVar, get_args

from dask_tfrecord.errors import calling
from dask_tfrecord.files.storage.redaction import redact_errors
from dask_tfrecord.foreign_keywords import KEYWORDS, unknown_keywords

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# The keywords that several functions share, each with its default. The functions `read_request` and
# `plan_batches` declare these keywords.
SHARED_PARAMETERS: dict[str, Parameter] = {}


def public_function(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a public function or constructor: set its signature, and adapt the errors that it raises.

    The signature shows each keyword of a typed dict such as `ReadKeywords`. An unknown keyword raises
    KeywordError, which suggests the right keyword. Other errors show the remedies that the function accepts,
    and hide the secrets in the arguments. Errors that the tasks of a Dask collection raise keep the remedies
    of the function that created the collection.
    """
    shown = _expanded(signature(function))
    known = [name for name in shown.parameters if name != "self"]
    title = function.__qualname__.removesuffix(".__init__")
    redacted = redact_errors(function)
    if title in KEYWORDS:
        KEYWORDS[title] = known

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        unknown = {name: value for name, value in kwargs.items() if name not in known}
        if unknown:
            raise unknown_keywords(title, known, unknown)
        computes = any(hasattr(type(value), "__dask_graph__") for value in (*args, *kwargs.values()))
        with calling(call):
            return (function if computes else redacted)(*args, **kwargs)

    call.__signature__ = shown  # type: ignore[attr-defined]  # `inspect.signature` reads the attribute (PEP 362), but mypy knows no such attribute of functions
    return call


def _expanded(given: Signature) -> Signature:
    """Replace ``**keywords`` of a typed dict in a signature by the keywords of the typed dict, with their
    defaults.
    """
    found: list[Parameter] = []
    for parameter in given.parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            (keywords,) = get_args(parameter.annotation)
            found += [SHARED_PARAMETERS[name] for name in keywords.__annotations__]
        else:
            found.append(parameter)
    return given.replace(parameters=found)
