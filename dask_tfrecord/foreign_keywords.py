"""Map keywords of other tools to keywords of this library, and create the error for an unknown keyword."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dask_tfrecord.errors import KEYWORDS, KeywordError

_SIMPLE = (str, int, float)
_LONGEST = 60


@dataclass(frozen=True)
class ForeignKeyword:
    """One row of foreign-keywords.yaml: keywords of other tools that have the same meaning."""

    names: str
    tools: str
    ours: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""


@cache
def foreign_keywords() -> tuple[ForeignKeyword, ...]:
    """Read the rows of foreign-keywords.yaml. The file is read only when an error needs its content."""
    rows = yaml.safe_load(Path(__file__).with_name("foreign-keywords.yaml").read_text())
    return tuple(ForeignKeyword(**row) for row in rows)


def unknown_keywords(function: str, known: Collection[str], given: Mapping[str, Any]) -> KeywordError:
    """Return the error for a call that passes keywords that the function does not have.

    Parameters
    ----------
    function : str
        Name of the function that was called.
    known : collection of str
        The keywords that the function has.
    given : mapping of str to value
        The unknown keywords and the values that were passed for them.
    """
    names = ", ".join(map(repr, given))
    word = "an unexpected keyword argument" if len(given) == 1 else "unexpected keyword arguments"
    advice = {name: _advice(function, known, name, value) for name, value in given.items()}
    parts = advice.values() if len(given) == 1 else [f"{name}=: {text}" for name, text in advice.items()]
    return KeywordError(f"{function}() got {word} {names}", "; ".join(parts))


def _spelling(name: str) -> str:
    return name.replace("_", "").lower()


def _advice(function: str, known: Collection[str], name: str, value: Any) -> str:
    spelling = _spelling(name)
    rows = (row for row in foreign_keywords() if spelling in map(_spelling, row.names.split()))
    row = next(rows, ForeignKeyword("", ""))
    # A member of an enumeration, such as Ray's SaveMode, holds the text in the attribute `value`.
    ours = row.values.get(str(getattr(value, "value", value)).lower(), "")
    if ours and "=" not in ours:
        return ours
    candidates = [ours, *row.ours.split(" | ")]
    for ours in candidates:
        if _keyword(ours) in known:
            return f"pass {ours.replace('{}', _shown(value))}"
    for keyword in known:
        if _spelling(keyword) == spelling:
            return f"pass {keyword}="
    if row.otherwise:
        return row.otherwise
    for other, keywords in KEYWORDS.items():
        for keyword in (name, *map(_keyword, candidates)):
            if keyword in keywords:
                return f"{keyword}= is a keyword of {other}"
    near = get_close_matches(name, known, 1)
    return f"pass {near[0]}=" if near else f"help({function}) lists the keywords"


def _keyword(ours: str) -> str:
    return ours.partition("=")[0]


def _shown(value: Any) -> str:
    """Return a value as Python code, or "..." if the value is long or may hold a secret."""
    items = value if isinstance(value, list | tuple) else [value]
    shown = repr(value).replace("'", '"')
    return shown if all(isinstance(item, _SIMPLE) for item in items) and len(shown) <= _LONGEST else "..."
