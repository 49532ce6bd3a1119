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

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
root_doc = "docs/index"
include_patterns = [
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/*.md",
    "docs/*.md",
    "docs/cookbook/*.md",
    "docs/feeds/*.md",
    "docs/reference/*.rst",
    "docs/training/*.md",
    "docs/tutorials/*.md",
]
html_theme = "furo"
html_title = "dask_tfrecord"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 3  # a link to a heading that does not exist is a warning, and a warning is an error
autodoc_typehints = "none"  # numpydoc shows the types that the docstrings give
default_role = "py:obj"  # `open_dataset` in a docstring is a link
numpydoc_show_class_members = False
autosummary_generate_overwrite = True  # the folder docs/reference has no files of the repository
templates_path = ["docs/_templates"]


def forward_to_front_page(app: Any, error: Exception | None) -> None:
    """Write the page that a server shows for the root of the site."""
    if error is None and app.builder.name == "html":
        page = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        Path(app.outdir, "index.html").write_text(page)


# Members of public classes that only the package uses.
INTERNAL = {
    *("chosen_version", "columns_of", "plan", "planned", "of"),
    *("columns", "leaves", "from_json", "from_storage", "is_stored", "no_rows", "to_json", "to_storage"),
    *("family", "is_required", "lossy", "check_categories", "in_form", "load", "of_struct", "store"),
    *("to_features", "with_field_types", "without_class_names"),
}


def is_left_out(app: Any, what: str, name: str, item: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what other packages define, and fields, which the docstring of a class lists."""
    if name in INTERNAL:
        return True
    function = getattr(item, "fget", None) or getattr(item, "func", None) or item
    is_ours = str(getattr(function, "__module__", "")).startswith("dask_tfrecord")
    return None if is_ours and getattr(function, "__doc__", None) else True


def without_arguments(app: Any, what: str, name: str, *_: Any) -> tuple[str, None] | None:
    """Leave out the arguments of the class that only `open_dataset` calls."""
    return ("", None) if name == "dask_tfrecord.Dataset" else None


def setup(app: Any) -> None:
    """Register the functions above."""
    app.connect("autodoc-process-signature", without_arguments)
    app.connect("autodoc-skip-member", is_left_out)
    app.connect("build-finished", forward_to_front_page)
