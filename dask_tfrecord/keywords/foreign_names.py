"""Tell users of other tools which call of this library has the meaning of a name that they tried.

The file ``foreign-names.yaml`` maps names of other tools to expressions.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import yaml

from dask_tfrecord.errors import UnknownAttributeError, did_you_mean

# How similar a misspelt name must be to the name of another tool.
_SIMILARITY = 0.85

# The Python function that asks a package for a name of a statement such as ``from package import name``.
_IMPORTS = "_handle_fromlist"


class Delegate(NamedTuple):
    """Describe an object that has attributes that another object lacks, such as the result of `to_dask`.

    Parameters
    ----------
    owner : object or str
        The class or module with the attributes, or its name, such as "package.module:Class". The module of
        a name is imported only when an error needs it.
    use : str
        The expression that returns the object with the attributes.
    """

    owner: Any
    use: str


def unknown_attribute(
    kind: str, what: str, name: str, known: Collection[str], delegates: Collection[Delegate] = ()
) -> AttributeError:
    """Return the error for an attribute that an object of a kind in foreign-names.yaml does not have.

    Names that begin with an underscore get Python's own message, because protocols try them.
    """
    problem = f"{what} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(problem)
    uses, spelling = _uses(kind), _spelling(name)
    use = uses.get(spelling)
    for delegate in delegates if use is None else ():
        owner = delegate.owner
        if hasattr(resolve_name(owner) if isinstance(owner, str) else owner, name):
            use = f"{delegate.use}.{name}"
            break
    if use is None:
        near = get_close_matches(spelling, [*known, *uses], 1, _SIMILARITY)
        use = next((uses[one] for one in near if one not in known), None)
    advice = use if use is None or use.startswith(("leave ", "import ")) else f"use {use}"
    return UnknownAttributeError(problem, advice or did_you_mean(name, known) or _listed(known))


def module_attributes(
    kind: str,
    module: str,
    public: Collection[str],
    delegates: Collection[Delegate] = (),
    on_demand: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a module.

    ``public`` lists the names of the module. ``on_demand`` maps names that are imported at their first use to
    the modules that define them.

    In ``from module import name``, Python ignores the message of an AttributeError, so a name with advice
    raises ImportError. Other names must raise AttributeError, after which Python looks for a module of this
    name.
    """

    def getattr_(name: str) -> Any:
        if on_demand and name in on_demand:
            found = resolve_name(f"{on_demand[name]}:{name}")
            setattr(sys.modules[module], name, found)
            return found
        error = unknown_attribute(kind, f"the module {module!r}", name, public, delegates)
        caller = sys._getframe(1).f_code
        use = _uses(kind).get(_spelling(name), "import")
        if caller.co_name == _IMPORTS and not use.startswith("import"):
            raise ImportError(str(error), name=module)
        raise error

    return getattr_, lambda: sorted(public)


@cache
def _uses(kind: str) -> dict[str, str]:
    """Read the expressions for the names of one kind. The file is read only when an error needs it."""
    tables = yaml.safe_load(Path(__file__).with_name("foreign-names.yaml").read_text())
    return {_spelling(name): row["use"] for row in tables[kind] for name in row["names"].split()}


def _spelling(name: str) -> str:
    return name.replace("_", "").lower()


def _listed(known: Collection[str]) -> str:
    return f"there are {', '.join(sorted(known))}"
