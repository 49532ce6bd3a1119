"""`inspect --plot`: the picture has a panel for each column, and something is drawn in each.

Modules: cli.show.
"""

import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the tests on the oldest Dask run without matplotlib")

from matplotlib import image

# The bars of all panels.
COLOUR = (0x3B, 0x6E, 0xA5)

# The panels of the dataset `people`, four on a line.
PANELS = ["bytes of a file", "name (1 nulls)", "born", "tags: list lengths", "tags: values"]


def test_the_png_shows_bars_in_each_panel_and_nothing_else(run: Any, people: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    run("inspect", people, "--plot", path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert 1000 < width < 2000
    assert 400 < height < 1000
    pixels = (image.imread(path)[:, :, :3] * 255).round().astype(int)
    is_bar = (pixels == COLOUR).all(axis=2)
    top = 40  # the title of the picture
    cells = [
        is_bar[top:][line * (height - top) // 2 : (line + 1) * (height - top) // 2, at * width // 4 :][
            :, : width // 4
        ]
        for line in range(2)
        for at in range(4)
    ]
    assert [cell.any() for cell in cells] == [True] * 5 + [False] * 3


def test_the_titles_name_the_columns(run: Any, people: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    run("inspect", people, "--plot", path)
    text = path.read_text()  # letters are drawn as curves, behind a comment with the text
    assert [panel for panel in PANELS if f"<!-- {panel} -->" not in text] == []
    assert "<!-- people: a sample of 3 rows -->" in text


def test_a_picture_of_an_unknown_format_is_an_error_of_usage(run: Any, people: Path, tmp_path: Path) -> None:
    assert "png" in run("inspect", people, "--plot", tmp_path / "out.txt", code=2).stderr
    assert not (tmp_path / "out.txt").exists()
