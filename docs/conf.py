"""The documentation as a site: ``sphinx-build -W --keep-going -c docs . build/site``.

The source directory is the root of the repository, so links between Markdown files work on the site as in the
repository. ``docs/index.md`` is the front page, and shows parts of README.md.
"""

import importlib.metadata
from pathlib import Path
from typing import Any

project = "dask_tfrecord"
copyright = ""
release = importlib.metadata.version("dask-tfrecord")

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "docs/index"
include_patterns = [
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/*.md",
    "docs/*.md",
    "docs/feeds/*.md",
    "docs/tutorials/*.md",
]
html_theme = "furo"
html_title = "dask_tfrecord"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 3  # a link to a heading that does not exist is a warning, and a warning is an error
autodoc_typehints = "none"  # numpydoc shows the types that the docstrings give
numpydoc_show_class_members = False


def forward_to_front_page(app: Any, error: Exception | None) -> None:
    """Write the page that a server shows for the root of the site."""
    if error is None and app.builder.name == "html":
        page = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        Path(app.outdir, "index.html").write_text(page)


def setup(app: Any) -> None:
    """Register the function above."""
    app.connect("build-finished", forward_to_front_page)
