"""Dask's own Parquet tests with TFRecord in the place of Parquet. parquet_tests.yaml lists those that fail.

Modules: api.read, api.write.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MODULE = "dask.dataframe.io.tests.test_parquet"


def listed() -> set[str]:
    reasons = yaml.safe_load((Path(__file__).parent / "parquet_tests.yaml").read_text())
    return {name for reason in reasons for name in reason["tests"]}


def test_the_list_names_tests_of_dask() -> None:
    found = importlib.util.find_spec(MODULE)  # an import would need the marks of Dask's own settings
    assert found is not None
    assert found.origin is not None
    names = re.findall(r"^def (test_\w+)", Path(found.origin).read_text(), re.MULTILINE)
    assert listed() <= {*names}
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
    assert failed == listed(), found.stdout[-2000:]
