"""Run examples/quickstart.py and draw what it prints as the picture ``quickstart.svg``.

    python docs/pictures/draw.py

The picture is a plain SVG file: text on a dark background, without scripts and without web fonts.
"""

import html
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PICTURE = HERE / "quickstart.svg"
COMMAND = "python examples/quickstart.py flights"

CHARACTER, LINE, MARGIN = 7.2, 18, 18  # pixels, for a monospaced font of 12 pixels
BACKGROUND, TEXT, PROMPT = "#1b1f24", "#d7dde4", "#7ee0a3"


def record() -> list[str]:
    """Run the quickstart in a temporary directory, and return the lines above its closing advice."""
    script = HERE.parent.parent / "examples" / "quickstart.py"
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(script), "flights"]
        result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    output, _, _ = result.stdout.partition("\nTry next:")
    return [f"$ {COMMAND}", *output.rstrip().splitlines()]


def draw(lines: list[str]) -> str:
    """Draw lines of a terminal as SVG. The first line is the command."""
    width = round(2 * MARGIN + CHARACTER * max(map(len, lines)))
    height = 2 * MARGIN + LINE * len(lines)
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12"'
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
        "<title>The output of examples/quickstart.py</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        f'<g {font} fill="{TEXT}">',
    ]
    for number, line in enumerate(lines):
        if not line:
            continue
        color = "" if number else f' fill="{PROMPT}"'
        length = f'textLength="{CHARACTER * len(line):.1f}"'
        place = f'x="{MARGIN}" y="{MARGIN + LINE * (number + 0.75):.1f}"'
        text = html.escape(line, quote=False).replace(" ", "\N{NO-BREAK SPACE}")  # SVG joins plain spaces
        rows.append(f"<text {place} {length}{color}>{text}</text>")
    return "\n".join([*rows, "</g>", "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(record()))
    print(f"drew {PICTURE}")
