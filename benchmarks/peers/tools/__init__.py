"""Define the jobs of the suite `files`, in one module for each peer.

The interpreter of the peer's environment imports the module of the peer and this module, which needs pyarrow.
``WAYS`` of a module gives, for each way to use the peer, a function for each kind of job that the peer can
do. The function prepares the job, and returns the pass that is measured. ``USED`` says how the module uses
the peer and where the peer's documentation shows this use. The report prints ``USED``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

# One pass over the rows of a job. The pass may write into the given directory, which does not exist yet, and
# returns the number of rows.
Pass = Callable[[str], int]


class Work(NamedTuple):
    """Describe a job on one table. ``root`` has the rows to write, in ``source.arrow``, and the files."""

    root: str
    files: str  # the directory, in `root`, with the TFRecord files to read
    codec: str | None  # "gzip", "zstd", None, or "default": what the tool does if nobody names a codec
    level: int | None  # None is the default level of the tool
    # The kind ("int", "float", "byte") and the number of values of each feature: 0 for a scalar, -1 for lists
    # of different lengths.
    features: dict[str, list[Any]]
    columns: list[str]  # to read
    rows: int
    batch_size: int

    def paths(self) -> list[str]:
        """Return the paths of the TFRecord files to read."""
        return sorted(map(str, Path(self.root, self.files).glob("part-*")))

    def source(self) -> pa.Table:
        """The rows to write."""
        with pa.memory_map(f"{self.root}/source.arrow") as file:
            return pa.ipc.open_file(file).read_all()

    def row_bytes(self) -> float:
        """Return the mean size of a row to write."""
        return self.source().nbytes / self.rows

    def python_rows(self) -> list[dict[str, Any]]:
        """Return the rows to write as dictionaries, with bytes in place of text."""
        table = self.source()
        for name, (kind, _) in self.features.items():
            if kind == "byte":
                table = table.set_column(table.column_names.index(name), name, table[name].cast("binary"))
        return table.to_pylist()


class Used(NamedTuple):
    """Say how a peer is used, with the page of the peer's documentation that shows this use."""

    how: str
    source: str


# The functions of a peer: for each way to use the peer, the kinds of jobs that it can do.
Ways = dict[str, dict[str, Callable[[Work], Pass]]]
