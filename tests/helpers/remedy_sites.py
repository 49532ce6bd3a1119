"""Find every remedy that a message of the package can give, and note which of them were executed."""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import dask_tfrecord
from dask_tfrecord import errors

PACKAGE = Path(dask_tfrecord.__file__).parent

# A name in an advice that is an argument, a method or a function.
NAMES = re.compile(r"(?<![\w<>=!.{])(\w+)=(?![=\s])|\b(\w+)\(")

# The beginning of a text that says what to do.
ADVICE = re.compile(
    r"(pass|call|use|give|write|read|leave|name|take|convert|rename|replace|store|round|set|query|cast|keep|"
    r"change|open|append|install|make|begin|prepare|restore|copy|add|drop|fill|choose|partition|compare)\s"
)


# Modules that only format the remedies and calls of other modules.
_FORMATTERS = ("errors.py", "cli/failures.py")


@dataclass(frozen=True)
class Site:
    """A place in the source of the package that makes a remedy, a call, or a text with code."""

    module: str
    first: int
    last: int
    kind: str
    text: str
    pattern: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.module}:{self.first}: {self.kind}: {self.text}"


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _template(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
    return None


@cache
def sites() -> dict[str, list[Site]]:
    """All sites, by the module that makes them."""
    found: dict[str, list[Site]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module in _FORMATTERS:
            continue
        tree = ast.parse(path.read_text())
        inner = {
            id(child) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for child in node.values
        }
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        is_query = module == "dataset/query/filters.py"  # its class `Call` is a part of an expression
        for node in ast.walk(tree):
            place = (module, getattr(node, "lineno", 0), getattr(node, "end_lineno", 0))
            makes = _name(node.func) if isinstance(node, ast.Call) else ""
            is_call = makes in ("Call", "add_snapshot_again") and not is_query
            if makes == "Remedy" or is_call:
                found.setdefault(module, []).append(Site(*place, makes, ast.unparse(node)))
            text = _template(node) if isinstance(node, ast.expr) else None
            if text is None or id(node) in inner | bare or " " not in text:
                continue
            advice = text.rpartition("; ")[2] if "; pass " in text else text
            if ADVICE.match(advice) and NAMES.search(advice):
                pattern = ".*".join(map(re.escape, text.split("{}")))
                found.setdefault(module, []).append(Site(*place, "text", text, pattern))
    return found


def key(one: Any) -> tuple[Any, ...]:
    """What tells remedies apart. The value may be completed later, for example with the name of a column."""
    return (type(one).__name__, one[0], one.effect)


class Record:
    """Which sites made the remedies and calls of a case."""

    def __init__(self) -> None:
        self.made: dict[Any, set[tuple[str, int]]] = {}

    def note(self, one: Any, frame: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents:
            place = (path.relative_to(PACKAGE).as_posix(), frame.f_lineno)
            self.made.setdefault(key(one), set()).add(place)

    def made_sites(self) -> set[Site]:
        """The sites that made any remedy or call of the cases so far."""
        places = {place for made in self.made.values() for place in made}
        return {
            site
            for module, found in sites().items()
            for site in found
            if any(name == module and site.first <= line <= site.last for name, line in places)
        }

    def sites_of(self, executed: list[Any]) -> set[Site]:
        """The sites that made the executed remedies and calls, and the constants equal to them."""
        places = {place for one in executed for place in self.made.get(key(one), ())}
        shown = {*map(key, executed)}
        return {
            site
            for module, found in sites().items()
            for site in found
            if any(name == module and site.first <= line <= site.last for name, line in places)
            or (site.kind == "Remedy" and shown & constants_at(module, site.first, site.last))
        } - {site for found in sites().values() for site in found if site.kind == "text"}


@cache
def constants_at(module: str, first: int, last: int) -> frozenset[Any]:
    """The remedies in constants of a module that the lines define."""
    name = "dask_tfrecord." + module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    tree = ast.parse((PACKAGE / module).read_text())
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.lineno <= first and last <= (node.end_lineno or 0):
            value = getattr(import_module(name), node.targets[0].id)  # type: ignore[attr-defined]
            found += [value] if isinstance(value, errors.Remedy) else list(value)
    return frozenset(map(key, found))


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    """Note where the package makes remedies and calls."""
    record = Record()
    for kind in (errors.Remedy, errors.Call):
        make = kind.__new__

        def noted(cls: Any, *args: Any, make: Any = make, **kwargs: Any) -> Any:
            one = make(cls, *args, **kwargs)
            frame = sys._getframe(1)
            record.note(one, frame)
            if frame.f_code.co_name == "add_snapshot_again":
                record.note(one, frame.f_back)
            return one

        monkeypatch.setattr(kind, "__new__", noted)
    yield record
