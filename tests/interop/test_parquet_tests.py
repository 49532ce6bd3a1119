"""Dask's own Parquet tests with TFRecord in the place of Parquet. docs/testing.md lists those that fail.

Modules: api.read, api.write.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = "dask.dataframe.io.tests.test_parquet"


def listed() -> dict[str, str]:
    """The reason of each test in the table of the page."""
    page = (ROOT / "docs" / "testing.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (`test_.+) \|$", page, re.MULTILINE)
    return {name: reason for reason, names in rows for name in re.findall(r"`(test_\w+)`", names)}


def test_the_page_names_tests_of_dask() -> None:
    found = importlib.util.find_spec(MODULE)  # an import would need the marks of Dask's own settings
    assert found is not None
    assert found.origin is not None
    names = re.findall(r"^def (test_\w+)", Path(found.origin).read_text(), re.MULTILINE)
    assert listed().keys() <= {*names}
    assert len(listed()) > 50


@pytest.mark.skipif("DASK_TFRECORD_FAULTS" not in os.environ, reason="takes a minute, and runs every night")
def test_the_others_pass(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "parquet_shim", "-p", "no:cacheprovider", "-rfE"]
    command += ["--tb=no", "-W", "ignore", "--pyargs", MODULE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "helpers")}
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    failed = {*re.findall(r"^(?:FAILED|ERROR) \S*::(\w+)", found.stdout, re.MULTILINE)}
    assert failed == listed().keys(), found.stdout[-2000:]
