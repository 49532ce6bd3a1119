"""The code in the documentation runs and prints what the pages show, and its links have targets.

Modules: reader, writer.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from servers import s3_server

import dask_tfrecord

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOT_PAGES = [ROOT / name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")]

# A block of Python after the comment "<!-- not run: REASON -->" is not run. A block of text that follows a
# block of Python is the output of that block.
_BLOCK = re.compile(
    r"(?P<skip><!-- not run: .+? -->\n+)?^```python\n(?P<code>.*?)^```$(?:\n+```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")

# Runs the blocks of one page in one namespace, and prints a null character after the output of each block. A
# warning that a user would see is an error.
_RUNNER = """
import sys, warnings
warnings.simplefilter("error", UserWarning)
namespace = {"__name__": "__main__"}
for number, block in enumerate(sys.stdin.read().split("\\0"), 1):
    exec(compile(block, f"block {number}", "exec"), namespace)
    print(end="\\0", flush=True)
"""


def _code(page: Path) -> list[tuple[str, str | None]]:
    """Return the blocks of Python of a page, each with its output or None."""
    found = [match for match in _BLOCK.finditer(page.read_text()) if not match["skip"]]
    return [(match["code"], match["output"]) for match in found]


PAGES_WITH_CODE = [page for page in PAGES if _code(page)]


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


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.name)
def test_code_runs_as_printed(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    blocks = _code(page)
    if importlib.util.find_spec("tensorflow") is None:
        needs = re.compile(r"import tensorflow|feed\.(tensorflow|keras)")
        blocks = [(code, shown) for code, shown in blocks if not needs.search(code)]
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # some examples read the files of other writers
    command = [sys.executable, "-c", _RUNNER]
    result = subprocess.run(
        command,
        input="\0".join(code for code, _ in blocks),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip("\0")
    printed = [_without_trailing_spaces(output) for output in result.stdout.split("\0")]
    for (_, shown), output in zip(blocks, printed, strict=False):
        assert shown is None or shown == output


def _without_trailing_spaces(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES], ids=lambda page: page.name)
def test_links_between_files_lead_to_files(page: Path) -> None:
    targets = [link.partition("#")[0] for link in _LINK.findall(page.read_text()) if "://" not in link]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert not missing


def test_every_directory_of_the_package_is_on_the_map() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "dask_tfrecord"
    modules = {path.relative_to(package) for path in package.rglob("*.[ph]*") if "fuzz" not in path.parts}
    modules = {path for path in modules if path.suffix in (".py", ".hpp")}
    names = {f"{path.parent.as_posix()}/" for path in modules if path.parent != Path(".")}
    names |= {path.name for path in modules if path.parent == Path(".") and path.name != "__init__.py"}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_map_names_no_file_that_does_not_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    names = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|pyi|hpp|cpp|md)|(?:[\w.-]+/)+)`", page)
    roots = (ROOT, ROOT / "dask_tfrecord")
    assert [name for name in names if not any((root / name).exists() for root in roots)] == []


def test_every_public_name_is_on_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    described = re.findall(r"^\.\. auto\w+:: (\w+)$", page, re.MULTILINE)
    assert sorted(described) == sorted(dask_tfrecord.__all__)
