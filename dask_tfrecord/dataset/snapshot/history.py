"""List the versions of a dataset, with what each version did and the totals of its files."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pandas as pd
import pyarrow as pa

from dask_tfrecord.dataset.snapshot.footers import read_metadata
from dask_tfrecord.dataset.snapshot.metadata import TOTALS, parse_time, summary, totals
from dask_tfrecord.dataset.snapshot.versions import read_version
from dask_tfrecord.files.storage.store import Store

_HISTORY = pa.schema(
    {
        "version": pa.int64(),
        "created": pa.timestamp("s", "UTC"),
        "mode": pa.string(),
        "details": pa.string(),
        "files": pa.int64(),
        "records": pa.int64(),
        "bytes": pa.int64(),
        "run": pa.string(),
        "library": pa.string(),
    }
)


def history(store: Store, numbers: Sequence[int]) -> pd.DataFrame:
    """Return the table of versions that `Snapshot.history` describes. Versions that do not exist are left
    out.
    """
    stored = read_metadata(store, numbers)
    rows: list[tuple[Any, ...]] = []
    for number in numbers:
        described = _described(stored[number]) if number in stored else None
        with suppress(FileNotFoundError):  # an overwrite has removed this version in the meantime
            rows.append((number, *(described or _read(store, number))))
    columns = zip(*rows, strict=True) if rows else [()] * len(_HISTORY)
    table = pa.table(dict(zip(_HISTORY.names, columns, strict=True)), schema=_HISTORY)
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _described(metadata: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return the columns of a version except its number. If the metadata lacks one of them, return None."""
    texts = [metadata.get(name) for name in ("mode", "run", "library")]
    known = summary(metadata)
    if not all(name in known for name in TOTALS) or not all(isinstance(text, str) for text in texts):
        return None
    mode, *others = texts
    counts = (known[name] for name in TOTALS)
    return parse_time(metadata.get("created")), mode or None, known["details"] or None, *counts, *others


def _read(store: Store, number: int) -> tuple[Any, ...]:
    """Return the columns of a version except its number, by reading the list of its files."""
    fields = read_version(store, number)
    told = (fields[name] or None for name in ("created", "mode", "details"))
    return *told, *totals(fields["file_list"]).values(), fields["run"], fields["library"]
