"""The cost of each kind of query: opened files, read bytes and decoded columns.

`data/costs.md` is the table. To write it anew after a change: ``python tests/collection/expr/test_costs.py``.

Modules: collection.expr.read_expression, storage.location.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import read_tfrecord, to_tfrecord
from dask_tfrecord.codec import Decoder
from dask_tfrecord.files import record_file
from dask_tfrecord.storage.reader import FileReader
from dask_tfrecord.storage.store import Store

TABLE = Path(__file__).parents[2] / "data" / "costs.md"

ROWS = 36
COLUMNS = ["n", "share", "word", "raw"]

# Each query, an expression of ``ddf``, or of ``read``, which takes keywords of `read_tfrecord`.
QUERIES = [
    "ddf",
    "ddf.n.sum()",
    'ddf[["n", "word"]]',
    "ddf.assign(m=ddf.n * 2).m",
    "ddf.country.value_counts()",
    "len(ddf)",
    "len(ddf.n)",
    "len(ddf.assign(m=ddf.n * 2))",
    "ddf.shape[0]",
    "len(ddf.partitions[1:3])",
    "ddf.index",
    "ddf.head(2)",
    "ddf.tail(2)",
    "ddf.share.head(2)",
    "ddf.partitions[2:4]",
    "ddf.get_partition(0).n.max()",
    'ddf.n.astype("int64").describe()',
    'read(filters=[("country", "==", "PL")])',
    'read(filters=[("n", "<", 9)])',
    'read(filters=[("n", "==", 13)], columns=["word"])',
    'len(read(filters=[("country", "==", "PL")]))',
    'ddf[ddf.country == "PL"]',
    'ddf[ddf.country == "PL"].n.sum()',
    'ddf[ddf.country.isin(["PL", "US"])].n.sum()',
    'ddf[(ddf.country == "PL") | (ddf.n < 9)].n.sum()',
    'ddf[(ddf.country == "PL") & (ddf.n < 9)].share.sum()',
    'ddf[~(ddf.country == "PL")].n.sum()',
    "ddf[ddf.n * 1 > 9].share",
    "ddf[ddf.n > 99].n.sum()",
    'len(ddf[ddf.country == "PL"])',
    "len(ddf[ddf.n < 9])",
    'compute(ddf[ddf.country == "PL"].n.sum(), ddf[ddf.country == "US"].share.max())',
    'compute(ddf[ddf.country == "PL"].n.sum(), ddf.n.max())',
]


def write(root: Path) -> None:
    """Write three countries in four partitions: twelve files of one size, with three rows each."""
    numbers = np.arange(ROWS)
    columns = {
        "n": numbers,
        "share": pd.array(numbers / 4, pd.ArrowDtype(pa.float32())),
        "word": pd.array([f"w{n:02}" for n in numbers], pd.ArrowDtype(pa.string())),
        "raw": pd.array([bytes([n] * 100) for n in numbers], pd.ArrowDtype(pa.binary())),
        "country": ["FR", "PL", "US"] * (ROWS // 3),
    }
    to_tfrecord(dd.from_pandas(pd.DataFrame(columns), npartitions=4), root, partition_on=["country"])


class Cost:
    """The opened files, a file that is read twice also twice, the read bytes and the decoded columns."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clear()
        cost, open_file, read = self, Store.open, FileReader._read

        @contextmanager
        def opening(store: Store, path: str, *args: Any, **options: Any) -> Iterator[Any]:
            cost.opened.append(path)
            with open_file(store, path, *args, **options) as source:
                yield source

        def reading(source: FileReader, view: memoryview, wanted: int | None) -> int:
            count = read(source, view, wanted)
            cost.bytes += count
            return count

        class Decoding(Decoder):
            def __init__(self, columns: Any, *args: Any, **options: Any) -> None:
                cost.decoded |= {column.name for column in columns}
                super().__init__(columns, *args, **options)

        patch.setattr(Store, "open", opening)
        patch.setattr(FileReader, "_read", reading)
        patch.setattr(record_file, "Decoder", Decoding)

    def clear(self) -> None:
        self.opened: list[str] = []
        self.bytes = 0
        self.decoded: set[str] = set()


def cost_of(query: str, root: Path, *, use_snapshot: bool, patch: pytest.MonkeyPatch) -> str:
    """The cost of a query, as three cells of the table."""
    total = sum(path.stat().st_size for path in root.glob("*/part-*"))

    def read(**arguments: Any) -> Any:
        ddf = read_tfrecord(root, blocksize=None, use_snapshot=use_snapshot, **arguments)
        # The sample that a schema is inferred from is not part of the query.
        cost.clear()
        return ddf

    with dask.config.set(scheduler="sync"), patch.context() as inner:
        cost = Cost(inner)
        found = eval(query, {"ddf": read(), "read": read, "compute": dask.compute})
        if dask.is_dask_collection(found):
            found.compute()
    assert len(cost.opened) == len({*cost.opened}), query
    names = [name for name in COLUMNS if name in cost.decoded]
    return f"{len(cost.opened)} | {100 * cost.bytes // total} % | {', '.join(names) or '-'}"


def table(root: Path, patch: pytest.MonkeyPatch) -> str:
    """The costs of all queries, as Markdown."""
    cells = "files | bytes | decoded"
    lines = [f"| query | {cells} | {cells}, without a snapshot |", "|---" * 7 + "|"]
    for query in QUERIES:
        costs = [cost_of(query, root, use_snapshot=known, patch=patch) for known in (True, False)]
        lines.append(f"| `{query.replace('|', '&#124;')}` | {' | '.join(costs)} |")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("costs") / "data"
    write(root)
    return root


@pytest.mark.filterwarnings(
    "ignore:Passing more than 2 positional:DeprecationWarning"
)  # older Dask's describe
def test_every_query_costs_what_the_table_says(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = table(root, monkeypatch)
    assert found.splitlines() == TABLE.read_text().splitlines()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        write(Path(folder) / "data")
        TABLE.write_text(table(Path(folder) / "data", patch))
