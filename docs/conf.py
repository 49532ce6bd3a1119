"""The documentation as a site: ``sphinx-build -W --keep-going -c docs . build/site``.

The source directory is the root of the repository, so README.md is the front page, and links between Markdown
files work on the site as they work in the repository.
"""

import importlib.metadata
from typing import Any

project = "dask_tfrecord"
copyright = ""
release = importlib.metadata.version("dask-tfrecord")

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "README"
include_patterns = [
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/feeds/*.md",
]
html_theme = "furo"
html_title = "dask_tfrecord"
html_show_copyright = False

myst_heading_anchors = 3  # a link to a heading that does not exist is a warning, and a warning is an error
autodoc_typehints = "none"  # numpydoc shows the types that the docstrings give
numpydoc_show_class_members = False

# The pages in the order of the site's menu.
MENU = """

```{toctree}
:hidden:
:caption: Guides

docs/reading
docs/writing
docs/stores
docs/cluster
docs/planning
docs/cli
docs/training
docs/feeds/streams
docs/feeds/exports
docs/migrating
```

```{toctree}
:hidden:
:caption: Reference

docs/api
docs/types
docs/guarantees
SECURITY
docs/glossary
```

```{toctree}
:hidden:
:caption: Developers

docs/format
docs/architecture
docs/kernel
CONTRIBUTING
CHANGELOG
```
"""


def add_menu(app: Any, name: str, source: list[str]) -> None:
    """Add the table of contents to the front page. The repository's view of README.md does not show it."""
    if name == root_doc:
        source[0] += MENU


def setup(app: Any) -> None:
    """Register the function above."""
    app.connect("source-read", add_menu)
