"""Every example in a public docstring runs and prints what the docstring shows.

Modules: public_functions.
"""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import dask
import pytest

import dask_tfrecord
from dask_tfrecord import feed

PUBLIC = {name: getattr(dask_tfrecord, name) for name in dask_tfrecord.__all__}

EXAMPLES = [
    test
    for item in PUBLIC.values()
    for test in doctest.DocTestFinder(recurse=True).find(item, item.__qualname__)
    if test.examples
]

FEEDS = [module.name for module in pkgutil.walk_packages(feed.__path__, f"{feed.__name__}.")]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_prints_what_the_docstring_shows(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _run(example)


@pytest.mark.parametrize("name", FEEDS)
def test_examples_of_a_feed_print_what_their_docstrings_show(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{error.name} is not installed")
    for number, example in enumerate(doctest.DocTestFinder().find(module, name)):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        _run(example)


def _run(example: doctest.DocTest) -> None:
    report: list[str] = []
    example.globs = {}  # an example imports what it uses, so that it can be copied
    with dask.config.set(scheduler="threads"):
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
            example, out=report.append
        )
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("name", [name for name, item in PUBLIC.items() if inspect.isfunction(item)])
def test_every_public_function_has_an_example(name: str) -> None:
    assert name in {example.name for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_no_example_is_skipped(example: doctest.DocTest) -> None:
    assert not any(doctest.SKIP in line.options for line in example.examples)
