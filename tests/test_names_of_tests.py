"""Rules of the tests: their names lead to modules and keywords, and no test harms another or hangs.

Modules: keywords.arguments, api.write, api.read.
"""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dask_tfrecord

TESTS = Path(__file__).parent
PACKAGE = Path(dask_tfrecord.__file__).parent

# Words that the glossary does not have, with those to write instead.
OTHER_WORDS = {"told": "named, reported", "stretch": "split, range", "surface": "function"}
OTHER_WORDS |= {
    "place": "path, root, offset",
    "places": "paths",
    "stretches": "splits",
    "surfaces": "functions",
}


@cache
def parsed() -> dict[Path, ast.Module]:
    """All files of the tests."""
    return {path: ast.parse(path.read_text()) for path in sorted(TESTS.rglob("*.py"))}


def files_of_tests() -> dict[Path, ast.Module]:
    """The test files of the package. The soak tests no module."""
    return {
        path: tree
        for path, tree in parsed().items()
        if path.name.startswith("test_") and path.parent.name != "soak"
    }


@cache
def names_of_tests() -> list[str]:
    """The names of all tests, as pytest -k sees them."""
    return [
        f"{path.name} {node.name}"
        for path, tree in files_of_tests().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test")
    ]


def test_each_test_file_names_its_modules_and_each_module_has_a_test_file() -> None:
    modules, without_code = set(), set()
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        is_empty = path.name == "__init__.py" and all(
            isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body
        )
        (without_code if is_empty else modules).add(name)
    modules.discard("")  # the package, which has the public names
    named = set()
    for path, tree in files_of_tests().items():
        line = re.search(r"^Modules: ([\w., \n]+)\.$", ast.get_docstring(tree) or "", re.MULTILINE)
        assert line, f"{path}: end the docstring with a line such as 'Modules: writer, files.file_writer.'"
        names = {*re.split(r",\s+", line[1])}
        assert names <= modules, f"{path}: name modules that exist"
        named |= names
    assert modules - named == set(), "name these modules in the docstring of a test file"


def test_a_search_for_a_keyword_of_a_public_function_finds_a_test() -> None:
    keywords = {
        name
        for function in (dask_tfrecord.read_tfrecord, dask_tfrecord.to_tfrecord)
        for name in list(inspect.signature(function).parameters)[1:]
    }
    assert [keyword for keyword in sorted(keywords) if keyword not in " ".join(names_of_tests())] == []


def test_names_of_tests_have_the_words_of_the_glossary() -> None:
    wrong = [name for name in names_of_tests() if {*re.split(r"[_ .]", name)} & OTHER_WORDS.keys()]
    assert wrong == [], OTHER_WORDS


# The functions that change an attribute of their first argument.
CHANGING = {"setattr", "delattr", "patch", "object", "multiple"}


def _imports(tree: ast.Module) -> dict[str, str]:
    """Map each name that a file imports to the full name of the imported object."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.asname or one.name.partition(".")[0]: one.name for one in node.names if one.asname}
            found |= {(top := one.name.partition(".")[0]): top for one in node.names if not one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _changed_owners(tree: ast.Module) -> Iterator[str]:
    """The full names of the objects whose attributes a file changes. Local variables are left out."""
    imports = _imports(tree)

    def full_name(node: ast.expr) -> str:
        name, _, rest = ast.unparse(node).partition(".")
        return f"{imports[name]}.{rest}".rstrip(".") if name in imports and "(" not in rest else ""

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            yield from (full_name(one.value) for one in node.targets if isinstance(one, ast.Attribute))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            yield full_name(node.target.value)
        elif isinstance(node, ast.Call) and (function := _last_name(node.func)) in CHANGING:
            keyword = [one.value for one in node.keywords if one.arg == "target"]
            for target in [*node.args[:1], *keyword]:
                if not (isinstance(target, ast.Constant) and isinstance(target.value, str)):
                    yield full_name(target)
                else:  # "module.name", but patch.multiple("module", name=...)
                    yield target.value if function == "multiple" else target.value.rpartition(".")[0]


def _is_standard(name: str) -> bool:
    """Return whether a full name is that of a module or class of the standard library.

    A module of the package that imports ``time`` has the attribute ``time``, which is the same module.
    """
    top, *rest = name.split(".")
    if top in sys.stdlib_module_names:
        return True
    if not name.startswith("dask_tfrecord."):
        return any(one in sys.stdlib_module_names for one in rest)
    found: Any = dask_tfrecord
    for part in rest:
        try:
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
        except (AttributeError, ImportError):
            return False
    made_in = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None)
    return str(made_in).partition(".")[0] in sys.stdlib_module_names


def test_no_test_changes_the_standard_library_for_its_process() -> None:
    """Servers and clusters of other tests run in this process. Replace a name in the module under test."""
    found = {path: [*filter(_is_standard, _changed_owners(tree))] for path, tree in parsed().items()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "change",
    [
        'monkeypatch.setattr(time, "monotonic", None)',
        'monkeypatch.setattr("time.time", None)',
        'monkeypatch.setattr(target=t, name="time", value=None)',
        'monkeypatch.setattr(writer.threading, "RLock", None)',
        'monkeypatch.setattr("dask_tfrecord.storage.store.os.replace", None)',
        'monkeypatch.setattr(scheduler.WeakKeyDictionary, "get", None)',
        'monkeypatch.delattr(Thread, "join")',
        'patch.object(threading.Thread, "join")',
        'mock.patch("os.replace")',
        'patch.multiple("os", replace=None)',
        'setattr(dt.datetime, "now", None)',
        "time.time = None",
        "del time.time",
        "s3fs.core.asyncio.sleep = None",
    ],
)
def test_a_change_of_the_standard_library_is_found(change: str) -> None:
    imports = """
import datetime as dt, s3fs, threading, time, time as t
from threading import Thread
from dask_tfrecord.api import writer
from dask_tfrecord.collection import scheduler
"""
    assert any(map(_is_standard, _changed_owners(ast.parse(imports + change))))


@pytest.mark.parametrize(
    "change",
    [
        'monkeypatch.setattr(writer, "monotonic", None)',
        'monkeypatch.setattr("dask_tfrecord.api.maintenance.datetime", None)',
        'patch.object(scheduler, "check_cluster")',
    ],
)
def test_a_name_of_the_package_may_be_replaced(change: str) -> None:
    imports = "from dask_tfrecord.api import writer\nfrom dask_tfrecord.collection import scheduler\n"
    assert not any(map(_is_standard, _changed_owners(ast.parse(imports + change))))


HANGING = """
import threading

def wait_for_ever():
    threading.Event().wait()

def test_hangs():
    thread = threading.Thread(target=wait_for_ever, daemon=True)
    thread.start()
    thread.join()
"""


def test_a_test_that_hangs_fails_and_prints_the_stacks_of_all_threads(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGING)
    (tmp_path / "pytest.ini").touch()
    paths = os.pathsep.join(map(str, (TESTS, TESTS / "helpers")))
    environment = {"PYTHONPATH": paths, "DASK_TFRECORD_TEST_SECONDS": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, **environment}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Timeout (0:00:01)!" in ended.stderr
    assert "in wait_for_ever" in ended.stderr
    assert "in test_hangs" in ended.stderr
