"""Every example in a public docstring runs as it is printed."""

import doctest
import inspect
from pathlib import Path

import dask
import pytest

import dask_tfrecord

PUBLIC = {name: getattr(dask_tfrecord, name) for name in dask_tfrecord.__all__}

EXAMPLES = [
    test
    for item in PUBLIC.values()
    for test in doctest.DocTestFinder(recurse=True).find(item, item.__qualname__)
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_prints_what_the_docstring_shows(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
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
