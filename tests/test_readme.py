"""The README fits on a few screens, and its two commands stand alone."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_it_has_at_most_120_lines_of_at_most_100_characters() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    # A command is one line: users copy it, and .ci/run runs it.
    assert [line for line in lines if len(line) > 100 and line not in _commands()] == []


def test_both_commands_stand_alone() -> None:
    """Each command creates its environment, so either command can run first."""
    commands = _commands()
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install") for command in commands)


@pytest.mark.tensorflow
def test_the_picture_shows_what_the_quickstart_prints() -> None:
    """Sizes, times and versions are not compared, because they differ between runs."""
    script = ROOT / "docs" / "pictures" / "draw.py"
    spec = importlib.util.spec_from_file_location("draw", script)
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)

    def words(lines: list[str]) -> list[str]:
        return re.findall(r"[a-z_]{3,}", "\n".join(lines))

    shown = re.findall(r"<text[^>]*>(.*)</text>", draw.PICTURE.read_text())
    assert words(shown) == words(draw.record())


def test_the_import_adds_the_spellings_that_the_readme_names() -> None:
    code = "import dask.dataframe as dd, dask_tfrecord; dd.read_tfrecord; dd.DataFrame.to_tfrecord"
    subprocess.run([sys.executable, "-c", code], check=True)
