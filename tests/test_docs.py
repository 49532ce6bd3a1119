"""The code of pages and docstrings runs and prints what is shown; links have targets; figures are measured.

Modules: api.read, api.write, keywords.public_functions.
"""

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
import dask
import pytest
from command_server import quick_command
from servers import s3_server

import dask_tfrecord
from dask_tfrecord import feed
from dask_tfrecord.api.description import Facts
from dask_tfrecord.api.maintenance import Maintenance

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOT_PAGES = [ROOT / name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")]


# A block of Python after the comment "<!-- not run: REASON -->" is not run. A block of text that follows a
# block of Python is the output of that block.
_BLOCK = re.compile(
    r"(?P<skip><!-- not run: .+? -->\n+)?^```python\n(?P<code>.*?)^```$(?:\n+```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


# Packages that are large, or that have no wheel for every platform. A block that imports one of them runs
# only where it is installed. The blocks that use what it defines import the package, too.
_FRAMEWORKS = {
    "tensorflow": re.compile(r"import (tensorflow|keras)|feed\.(tensorflow|keras)"),
    "torch": re.compile(r"(import|from) torch\b|feed\.torch"),
    "torchdata": re.compile(r"(import|from) torchdata"),
    "grain": re.compile(r"import grain"),
    "jax": re.compile(r"import jax"),
}


def _code(page: Path) -> list[tuple[str, str | None]]:
    """Return the blocks of Python of a page, each with its output or None."""
    found = [match for match in _BLOCK.finditer(page.read_text()) if not match["skip"]]
    return [(match["code"], match["output"]) for match in found]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """The environment of a user with credentials for an S3 server, on which ``s3://bucket`` exists."""
    with s3_server() as options:
        keys = {"aws_access_key_id": options["key"], "aws_secret_access_key": options["secret"]}
        region = options["client_kwargs"]["region_name"]
        client: Any = boto3.client("s3", endpoint_url=options["endpoint_url"], region_name=region, **keys)
        client.create_bucket(Bucket="bucket")
        server = {"AWS_ENDPOINT_URL": options["endpoint_url"], "AWS_DEFAULT_REGION": region}
        yield {**os.environ, **server, **{name.upper(): value for name, value in keys.items()}}


@pytest.fixture(scope="module")
def page_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A script that runs the blocks of a page, and starts quickly."""
    script = tmp_path_factory.mktemp("pages") / "run"
    with quick_command(script, "page", "dask_tfrecord", "dask.dataframe", "distributed"):
        yield script


@pytest.mark.parametrize("page", [page for page in PAGES if _code(page)], ids=_name)
def test_code_runs_as_printed(
    page: Path, environment: dict[str, str], page_runner: Path, tmp_path: Path
) -> None:
    missing = [imports for name, imports in _FRAMEWORKS.items() if find_spec(name) is None]
    blocks = [block for block in _code(page) if not any(imports.search(block[0]) for imports in missing)]
    if not blocks:
        pytest.skip("no package of this page is installed")
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    code = "\0".join(code for code, _ in blocks)
    result = subprocess.run([page_runner], input=code, check=False, **options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\0") == len(blocks)
    printed = re.sub(r" +$", "", result.stdout, flags=re.MULTILINE).split("\0")
    for (_, shown), output in zip(blocks, printed, strict=False):
        assert shown is None or shown == output


def test_the_page_about_ddp_shows_the_program_that_is_tested() -> None:
    _, program = (ROOT / "examples" / "train_ddp.py").read_text().split('"""\n\n', 1)
    assert f"```python\n{program}```" in (ROOT / "docs" / "training" / "ddp.md").read_text()


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES], ids=_name)
def test_links_between_files_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    targets = [link.partition("#")[0] for link in links if "://" not in link]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_the_samples_are_files_of_other_writers() -> None:
    with zipfile.ZipFile(ROOT / "dask_tfrecord" / "samples.zip") as samples:
        assert samples.namelist()
        for name in samples.namelist():
            assert samples.read(name) == (ROOT / "tests" / "data" / name).read_bytes()


def test_every_directory_of_the_package_is_on_the_map_and_each_name_there_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "dask_tfrecord"
    modules = {path.relative_to(package) for path in package.rglob("*.[ph]*") if "fuzz" not in path.parts}
    modules = {path for path in modules if path.suffix in (".py", ".hpp")}
    names = {f"{path.parent.as_posix()}/" for path in modules if path.parent != Path(".")}
    names |= {path.name for path in modules if path.parent == Path(".") and path.name != "__init__.py"}
    assert {name for name in names if f"`{name}`" not in page} == set()
    assert [path for path in modules if len((package / path).read_text().splitlines()) > 700] == []
    pages = page + (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|pyi|hpp|cpp|md|yaml)|(?:[\w.-]+/)+)`", pages)
    assert [name for name in shown if not any((root / name).exists() for root in (ROOT, package))] == []


def test_every_public_name_is_on_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    described = re.findall(r"^   (\w+)$", page, re.MULTILINE)
    assert sorted(described) == sorted(dask_tfrecord.__all__)


def test_the_readme_takes_three_minutes_on_a_few_screens_of_800_pixels() -> None:
    assert len(README.split()) <= 900
    lines = README.splitlines()
    assert len(lines) <= 145
    assert [line for line in lines if len(line) > 110] == []
    blocks = re.findall(r"^```\w+\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert [line for block in blocks for line in block.splitlines() if len(line) > 78] == []


def test_both_commands_of_the_readme_stand_alone() -> None:
    """Each command runs a script that creates the environment, so either command can run first."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 2
    scripts = [ROOT / command.removeprefix("sh ") for command in commands]
    assert all("python3 -m venv .venv\n.venv/bin/pip install" in script.read_text() for script in scripts)


def test_the_page_shows_the_oldest_versions_that_the_package_allows() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    for package in (
        "dask",
        "pandas",
        "pyarrow",
        "fsspec",
        "s3fs",
        "gcsfs",
        "adlfs",
        "paramiko",
        "isal",
        "protobuf",
        "rich",
    ):
        [oldest] = {*re.findall(rf'"{package}(?:\[\w+\])?>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())}
        assert re.search(
            rf"^\| {package}[^|]* \| {re.escape(oldest)} \|", page, re.MULTILINE | re.IGNORECASE
        ), package


def test_the_pages_and_plots_show_the_stored_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)  # the benchmarks are not installed
    from benchmarks.peers import report
    from benchmarks.peers.report import feeds, files, formats, readme, summary

    results, loaders = report.stored("files"), report.stored("feeds")
    regions = {
        "README.md": readme.figures(results, loaders),
        "docs/comparison.md": files.short_table(results),
        "benchmarks/loaders.md": feeds.table(loaders),
    }
    for page, text in regions.items():
        assert report.BEGIN + text + report.END in (ROOT / page).read_text(), page
    made = {f"peers-{theme}.svg": readme.picture(results, theme) for theme in readme.THEMES}
    made |= {"RESULTS.md": summary.page(), "files.md": files.page(results)}
    made |= {name: formats.page(suite, report.stored(suite)) for suite, (name, *_) in formats.PAGES.items()}
    for name, text in made.items():
        assert text == (ROOT / "benchmarks" / name).read_text(), name


PUBLIC = {name: getattr(dask_tfrecord, name) for name in dask_tfrecord.__all__}
_FOUND = [
    test
    for item in (*PUBLIC.values(), Facts, Maintenance)
    for test in doctest.DocTestFinder(recurse=True).find(item, item.__qualname__)
]
EXAMPLES = [test for test in _FOUND if test.examples]
FEEDS = [module.name for module in pkgutil.walk_packages(feed.__path__, f"{feed.__name__}.")]


def _run(example: doctest.DocTest) -> None:
    report: list[str] = []
    example.globs = {}  # an example imports what it uses, so that it can be copied
    with dask.config.set(scheduler="threads"):
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        result = runner.run(example, out=report.append)
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_prints_as_shown(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(doctest.SKIP in line.options for line in example.examples)
    monkeypatch.chdir(tmp_path)
    _run(example)


@pytest.mark.parametrize("name", FEEDS)
def test_examples_of_a_feed_print_as_shown(
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


def test_every_public_function_has_an_example() -> None:
    functions = {name for name, item in PUBLIC.items() if inspect.isfunction(item)}
    assert functions - {example.name for example in EXAMPLES} == set()
