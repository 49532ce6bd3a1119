"""Cut the README's figures and its plots, for light and dark pages, out of the stored results."""

import html
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.report import (
    HERE,
    OURS,
    ROOT,
    claim,
    feeds,
    ratio_text,
    ratios,
    replace_region,
    row_ratio,
    stored,
)
from benchmarks.peers.report.summary import times

README = ROOT / "README.md"

FIGURES = """\
| rows per CPU second | relative to | at least |
|---|---|--:|
| read ten columns of numbers and text | TensorFlow's fastest parser | **{read} times** |
| infer their names and types | tfx-bsl | **{infer} times** |
| write them | Dask's `to_parquet` | **{write} times** |
| feed nine numbers to PyTorch | TensorFlow's fastest pipeline | **{feed} times** |
| fetch the 1 % of images whose label passes a filter | Parquet | **{fetch} times** |

It also loses. Parquet reads two of the ten columns {few} times as fast, unless column files hold them, and
needs {size} times less space. Lance fetches the 1 % of images {lance} times as fast. Hugging Face's
`datasets` returns rows {datasets} times as fast from a decoded copy, shuffled rows {shuffled} times.
Behind a slow link, WebDataset ends an epoch of images {webdataset} times as fast.

Figures of reads, writes and feeds are the worst of all rounds, the others medians. One kind of machine was
measured: {machine}.
"""

# GitHub's colours of text and of links, which are legible on its light and dark pages.
THEMES = {
    "light": {"text": "#1f2328", OURS: "#0969da", "parquet": "#8c959f", "tensorflow": "#d4731c"},
    "dark": {"text": "#e6edf3", OURS: "#4493f8", "parquet": "#848d97", "tensorflow": "#e0873d"},
}
TITLES = {OURS: "dask_tfrecord", "parquet": "Dask with Parquet", "tensorflow": "TensorFlow"}
JOBS = {"write": "Write", "read": "Read all columns", "read few columns": "Few columns"}
TABLES = {
    "tabular": ("10 columns of", "numbers and text"),
    "recsys": ("lists of ids,", "embeddings"),
    "wide": ("200 columns", "of floats"),
    "images": ("images of", "100 KB, labels"),
}

# Pixels. On a page that is 800 pixels wide, GitHub shows a picture of this width without making it smaller.
WIDTH, LEFT, FONT = 680, 130, 13
BAR, GROUP, TOP = 15, 62, 62
ROOM = 58  # right of the longest bar of a panel, for its number


def write(results: dict[str, Any], feed_results: dict[str, Any]) -> None:
    """Write the figures into the README, and draw both pictures."""
    replace_region(README, figures(results, feed_results))
    for theme in THEMES:
        (HERE / f"peers-{theme}.svg").write_text(picture(results, theme))


def figures(results: dict[str, Any], feed_results: dict[str, Any]) -> str:
    """Return the figures as Markdown: five at which this package is faster, and five at which others are.

    A figure of the suites `files` and `feeds` is the worst of all rounds.
    """

    def worst(job: str, peer: str) -> float:
        found = results["tables"]["tabular"][job]
        rounds = [*ratios(found, peer), *ratios(found, peer, "cold")]
        return min([*rounds, row_ratio(found, peer) or rounds[0]])

    loaders = feed_results["datasets"]["tabular"]["loaders"]
    columns = stored("columns")["tables"]
    fetch, space = (
        columns["images, 1,000 rows"]["filter that keeps 1 %"],
        columns["tabular, 200,000 rows"]["size, MB"],
    )
    epochs = stored("store")["tables"]["shuffled images, 30 ms"]
    ours, decoded = "TFRecord, column files", "torch, HF datasets"
    return FIGURES.format(
        read=ratio_text(worst("read", "tensorflow")),
        write=ratio_text(worst("write", "parquet")),
        infer=ratio_text(worst("infer columns and types", "tfx-bsl")),
        feed=ratio_text(min(feeds.ratios(loaders, feeds.OURS_TORCH))),
        fetch=ratio_text(1 / times(fetch, ours, "Parquet")),
        few=ratio_text(1 / worst("read few columns", "parquet")),
        size=ratio_text(times(space, ours, "Parquet")),
        lance=ratio_text(times(fetch, ours, "Lance")),
        datasets=ratio_text(1 / min(feeds.ratios(loaders, feeds.OURS_TORCH, (decoded,)))),
        shuffled=ratio_text(
            1 / min(feeds.ratios(loaders, f"{feeds.OURS_TORCH}, shuffled", (f"{decoded}, shuffled",)))
        ),
        webdataset=ratio_text(
            float(epochs["dask_tfrecord, no workers"]["epoch, s"])
            / float(epochs["WebDataset, 2 workers"]["epoch, s"])
        ),
        machine=results["machine"]["cpu"],
    )


def rates(results: dict[str, Any], table: str, job: str) -> dict[str, float]:
    """Return the rows per CPU second of each tool of the plot, relative to Dask's Parquet functions.

    The bar of this package is its claim relative to Parquet. The bar of TensorFlow is the bar of this
    package, divided by the claim relative to TensorFlow.
    """
    found = results["tables"].get(table, {}).get(job, {"peers": {}})
    ours = claim(found, "parquet")
    if ours is None:
        return {}
    bars = {OURS: ours, "parquet": 1.0}
    if theirs := claim(found, "tensorflow"):
        bars["tensorflow"] = ours / theirs
    return bars


def picture(results: dict[str, Any], theme: str) -> str:
    """Return an SVG picture without a background: a panel for each job, with three bars for each table."""
    colours = THEMES[theme]
    bars = {(job, table): rates(results, table, job) for job in JOBS for table in TABLES}
    longest = {job: max(rate for table in TABLES for rate in bars[job, table].values()) for job in JOBS}
    scale = (WIDTH - LEFT - ROOM * len(JOBS)) / sum(longest.values())
    height = TOP + GROUP * len(TABLES)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    font = f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        "<title>Rows per CPU second, relative to Dask's Parquet functions</title>",
        f'<g {font} fill="{colours["text"]}">',
        *_legend(colours),
    ]
    for row, words in enumerate(TABLES.values()):
        middle = TOP + GROUP * row + 1.5 * BAR
        lines += [
            _text(LEFT - 12, middle + shift, word, ' text-anchor="end"')
            for shift, word in zip((-3, 12), words, strict=True)
        ]
    left: float = LEFT
    for job, title in JOBS.items():
        lines.append(_text(left, TOP - 12, title, ' font-weight="600"'))
        lines.append(f'<path d="M{left:.1f} {TOP - 4}V{height - 12}" stroke="{colours["parquet"]}"/>')
        for row, table in enumerate(TABLES):
            lines += _group(bars[job, table], left, TOP + GROUP * row, scale, colours)
        left += longest[job] * scale + ROOM
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _legend(colours: dict[str, str]) -> Iterator[str]:
    left = LEFT
    for tool, title in TITLES.items():
        yield f'<rect x="{left}" y="7" width="12" height="12" fill="{colours[tool]}"/>'
        yield _text(left + 18, 17.5, title)
        left += 18 + round(len(title) * FONT * 0.52) + 20


def _group(
    bars: dict[str, float], left: float, top: float, scale: float, colours: dict[str, str]
) -> Iterator[str]:
    for place, (tool, rate) in enumerate(bars.items()):
        y, length = top + BAR * place, max(1.0, rate * scale)
        shape = f'x="{left:.1f}" y="{y}" width="{length:.1f}" height="{BAR - 2}"'
        yield f'<rect {shape} fill="{colours[tool]}"/>'
        weight = ' font-weight="600"' if tool == OURS else ""
        yield _text(left + length + 5, y + BAR - 3.5, f"{rate:.{1 + (rate < 1)}f}", weight)


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{html.escape(text, quote=False)}</text>'
