"""A user's script runs and passes mypy and pyright, which read the annotations of the package.

Modules: api.read, api.write, errors.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from strides import IS_QUICK

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "helpers" / "user_script.py"


WRONG = """import dask_tfrecord, pandas
frame: str = dask_tfrecord.open_dataset('a').verify()
dask_tfrecord.to_tfrecord(dask_tfrecord.read_tfrecord('a', columns='x'), 'b')
dask_tfrecord.read_tfrecord('a', nothing=1)
dask_tfrecord.to_tfrecord(pandas.DataFrame(), 'a', compute=False)
dask_tfrecord.to_tfrecord([{'n': 1}], 'a')
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the script, in which the type checkers find the package as if it were installed."""
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nstrict = True\nmypy_path = {ROOT}\nfollow_imports = silent\n"
        # pyarrow has no annotations, and most functions of Dask have none
        "allow_untyped_calls = True\n[mypy-pyarrow.*]\nignore_missing_imports = True\n"
    )
    settings = {"extraPaths": [str(ROOT)], "include": ["user_script.py"], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    return tmp_path


def test_script_runs(folder: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "user_script.py"], cwd=folder, check=True)


@pytest.mark.tensorflow
def test_the_examples_pass_pyright(tmp_path: Path) -> None:
    """An editor shows its errors. The continuous integration runs mypy on the examples."""
    for name in ("pyright", "keras", "torch"):
        pytest.importorskip(name)
    examples = ROOT / "examples"
    settings = {
        "extraPaths": [str(ROOT), str(examples)],
        "include": [str(examples)],
        "typeCheckingMode": "standard",
        "reportPrivateImportUsage": False,  # Dask's own names, such as `dask.compute`
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


# mypy takes 20 seconds, because it has no cache of the packages that the script imports.
ONLY_AT_LENGTH = pytest.mark.skipif(
    IS_QUICK, reason="mypy checks the script where many random examples are wanted"
)


@pytest.mark.parametrize("checker", [pytest.param("mypy", marks=ONLY_AT_LENGTH), "pyright"])
def test_the_script_passes_a_checker_that_finds_wrong_types(folder: Path, checker: str) -> None:
    """The checker sees this library's types, not Any. One run checks both files, because a run takes long."""
    pytest.importorskip(checker)  # not installed with the oldest Dask
    (folder / "wrong.py").write_text(WRONG)
    options = ["--pythonpath", sys.executable] if checker == "pyright" else []
    command = [sys.executable, "-m", checker, *options, "wrong.py", "user_script.py"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    errors = set(re.findall(r"(\w+)\.py:(\d+)\S* (?:- )?error", found.stdout))
    # Dask's Series has __getattr__, so for mypy it has every method, also that of an Arrow stream.
    lines = (2, 4, 5, 6) if checker == "mypy" else (2, 3, 4, 5, 6)
    assert errors == {("wrong", str(line)) for line in lines}, found.stdout
