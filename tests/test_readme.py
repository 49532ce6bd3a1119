"""The README fits on a few screens, its commands stand alone, and its figures are what was measured.

Modules: reader, writer.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

# On GitHub, a page of 800 pixels shows this many characters of a block of code.
CODE_WIDTH = 78


def _commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_it_has_at_most_130_lines_of_at_most_110_characters() -> None:
    lines = README.splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if len(line) > 110] == []


def test_no_line_of_code_is_cut_on_a_page_of_800_pixels() -> None:
    blocks = re.findall(r"^```\w+\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert [line for block in blocks for line in block.splitlines() if len(line) > CODE_WIDTH] == []


def test_both_commands_stand_alone() -> None:
    """Each command runs a script that creates the environment, so either command can run first."""
    commands = _commands()
    assert len(commands) == 2
    scripts = [ROOT / command.removeprefix("sh ") for command in commands]
    assert all("python3 -m venv .venv\n.venv/bin/pip install" in script.read_text() for script in scripts)


def test_the_import_adds_the_spellings_that_the_readme_names() -> None:
    code = "import dask.dataframe as dd, dask_tfrecord; dd.read_tfrecord; dd.DataFrame.to_tfrecord"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_pages_and_plots_show_the_stored_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])  # the benchmarks are not installed
    from benchmarks.peers import report
    from benchmarks.peers.report import feeds, files, formats, readme

    results, loaders = report.stored("files"), report.stored("feeds")
    regions = {
        "README.md": readme.reasons(results, loaders),
        "docs/comparison.md": files.short_table(results),
        "docs/training.md": feeds.table(loaders),
    }
    for page, text in regions.items():
        assert report.BEGIN + text + report.END in (ROOT / page).read_text(), page
    made = {f"peers-{theme}.svg": readme.picture(results, theme) for theme in readme.THEMES}
    made["RESULTS.md"] = files.page(results)
    made |= {name: formats.page(suite, report.stored(suite)) for suite, (name, *_) in formats.PAGES.items()}
    for name, text in made.items():
        assert text == (ROOT / "benchmarks" / name).read_text(), name
