"""Small collections to write, and the rows and files of the written datasets."""

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa

from dask_tfrecord import open_dataset, read_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.storage.store import Store


def collection(*values: int, npartitions: int = 2, **columns: Any) -> dd.DataFrame:
    frame = pd.DataFrame({"n": values, **columns})
    return dd.from_pandas(frame, npartitions=npartitions)


def countries(rows: int = 12, npartitions: int = 3) -> dd.DataFrame:
    """Rows with a number, two columns to partition on, and lists."""
    strings = pd.ArrowDtype(pa.string())
    frame = pd.DataFrame(
        {
            "n": range(rows),
            "country": pd.array([["PL", "US", None, ""][n % 4] for n in range(rows)], strings),
            "year": pd.array([2025 + n % 2 for n in range(rows)], pd.ArrowDtype(pa.int16())),
            "tags": pd.array([["t"] * (n % 3) for n in range(rows)], pd.ArrowDtype(pa.list_(pa.string()))),
        }
    )
    return dd.from_pandas(frame, npartitions=npartitions)


def part_names(snapshot: Snapshot) -> list[str]:
    """The paths of the data files, without the id of the run."""
    return [
        f"{head}part-{tail[33:]}" for head, _, tail in (f.path.partition("part-") for f in snapshot.files)
    ]


def keyed(**values: list[int]) -> dd.DataFrame:
    rows = [(key, n) for key, found in values.items() for n in found]
    return dd.from_pandas(pd.DataFrame(rows, columns=["key", "n"]), npartitions=1)


def failing(ddf: dd.DataFrame) -> dd.DataFrame:
    def fail(part: pd.DataFrame) -> pd.DataFrame:
        raise RuntimeError("on purpose")

    return ddf.map_partitions(fail, meta=ddf._meta)


def values(place: str | Path, column: str = "n", **options: Any) -> list[Any]:
    return read_tfrecord(place, **options)[column].compute().tolist()


def by_key(place: str | Path) -> dict[str, list[int]]:
    frame = read_tfrecord(place).compute()
    return {str(key): sorted(rows["n"].tolist()) for key, rows in frame.groupby("key", observed=True)}


def put(place: str | Path, name: str, n: int, /, **features: tuple[str | None, list[Any]]) -> None:
    """Add a data file of one record, as another writer would."""
    store = Store.at(place)
    path = store.join(name)
    store.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    store.fs.pipe_file(path, oracle.features_file([{"n": ("int64", [n]), **features}]))


def files_of(place: str | Path) -> set[str]:
    """The paths of all files below the root."""
    store = Store.at(place)
    return {store.relative(path) for path in store.fs.find(store.root)}


def is_intact(place: str | Path) -> bool:
    """Whether every file agrees with the snapshot, and no record is damaged."""
    report = open_dataset(place).verify()
    return bool(report["agrees"].all()) and not report["damaged"].any()


def content(root: Path) -> list[str]:
    """The sorted paths of all files below the root, without the data files."""
    return sorted(name for name in files_of(root) if "part-" not in name)


def flip(path: Path, at: int, bit: int = 1) -> None:
    """Change a bit of a file."""
    stored = bytearray(path.read_bytes())
    stored[at] ^= bit
    path.write_bytes(stored)
