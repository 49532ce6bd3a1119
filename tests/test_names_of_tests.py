"""The test of a module is found by the module's name, and the test of a keyword by the keyword.

Modules: arguments, collection.writer, collection.reader.
"""

import ast
import inspect
import re
from pathlib import Path

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


# The test files of the package. The soak tests no module.
PATHS = sorted(path for path in TESTS.rglob("test_*.py") if path.parent.name != "soak")
TREES = {path: ast.parse(path.read_text()) for path in PATHS}


# The names of all tests, as pytest -k sees them.
NAMES = [
    f"{path.name} {node.name}"
    for path, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test")
]


def test_each_test_file_names_its_modules_and_each_module_has_a_test_file() -> None:
    modules, without_code = set(), set()
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        body = ast.parse(path.read_text()).body
        (modules if any(not isinstance(node, ast.Expr) for node in body) else without_code).add(name)
    modules.discard("")  # the package, which has the public names
    named = set()
    for path, tree in TREES.items():
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
    assert [keyword for keyword in sorted(keywords) if keyword not in " ".join(NAMES)] == []


def test_names_of_tests_have_the_words_of_the_glossary() -> None:
    wrong = [name for name in NAMES if {*re.split(r"[_ .]", name)} & OTHER_WORDS.keys()]
    assert wrong == [], OTHER_WORDS
