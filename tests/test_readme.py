"""The README's code runs as it is printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def _run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout to code that reads its test data, with the first block run."""
    path = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "tests" / "data" / "spark", path / "tests" / "data" / "spark")
    out = _run([sys.executable, "-W", "error::UserWarning", "-c", _blocks("python")[0]], path)
    assert "Ada" in out
    return path


@pytest.mark.parametrize("number", range(1, len(_blocks("python")) - 1))
def test_python_example_runs_as_printed(folder: Path, number: int) -> None:
    block = _blocks("python")[number]
    assert _run([sys.executable, "-W", "error::UserWarning", "-c", block], folder)


@pytest.mark.tensorflow
def test_tensorflow_example_runs_as_printed(folder: Path) -> None:
    out = _run([sys.executable, "-c", _blocks("python")[-1]], folder)
    assert out.split("\n")[-3:] == ["[b'Ada' b'Alan'] [1815 1912]", "[b''] [1906]", ""]


def test_one_liners_run_as_printed_and_in_their_order(folder: Path) -> None:
    lines = [line for block in _blocks("sh") for line in block.splitlines() if " -c " in line]
    assert len(lines) == 3
    for line in lines:
        command = line.replace(".venv/bin/python", f'"{sys.executable}" -W error::UserWarning', 1)
        assert _run(["bash", "-c", command], folder)


def test_both_commands_stand_alone() -> None:
    """Each makes its environment itself, so that either can be the first."""
    commands = [line for block in _blocks("sh") for line in block.splitlines() if " -c " not in line]
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install") for command in commands)
