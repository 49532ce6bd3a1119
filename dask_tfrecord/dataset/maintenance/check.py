"""Report how the files of a dataset differ from its newest version, without opening the data files."""

from typing import Any

import pandas as pd
import pyarrow as pa

from dask_tfrecord.dataset.snapshot.check import ComparedFiles, find_newest_files
from dask_tfrecord.dataset.snapshot.model import open_version
from dask_tfrecord.dataset.snapshot.names import STAGING
from dask_tfrecord.files.storage.file_list import FileList
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.storage.uploads import unfinished_uploads

_REPORT = pa.schema(
    {
        "path": pa.string(),
        "problem": pa.string(),
        "bytes": pa.int64(),
        "listed_bytes": pa.int64(),
        "rows": pa.int64(),
    }
)


def check(store: Store) -> pd.DataFrame:
    """Return the table that `Dataset.check` documents."""
    found = find_newest_files(store, open_version(store, None))
    uploads = [upload.path for upload in unfinished_uploads(store)]
    staged = [*found.unfinished.paths, *store.files(STAGING), *uploads]
    sizes = dict(zip(found.unfinished.paths, found.unfinished["bytes"].to_pylist(), strict=True))
    rows = [
        *_problems(store, "missing", found, found.is_missing),
        *_problems(store, "resized", found, found.is_resized),
        *(
            (store.public(path), "unlisted", size, None, None)
            for path, size in zip(found.unlisted.paths, found.unlisted["bytes"].to_pylist(), strict=True)
        ),
        *((store.public(path), "unfinished", sizes.get(path), None, None) for path in sorted({*staged})),
    ]
    columns = zip(*rows, strict=True) if rows else [()] * len(_REPORT)
    table = pa.table(dict(zip(_REPORT.names, columns, strict=True)), schema=_REPORT)
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _problems(
    store: Store, problem: str, found: ComparedFiles, mask: pa.ChunkedArray
) -> list[tuple[Any, ...]]:
    """Return a row of the report for each file of the snapshot for which ``mask`` is True."""
    listed: FileList = found.listed.filter(mask)
    columns = found.files.filter(mask)["bytes"], listed["bytes"], listed["records"]
    numbers = zip(*(column.to_pylist() for column in columns), strict=True)
    paths = (store.public(store.join(name)) for name in listed.names)
    return [(path, problem, *sizes) for path, sizes in zip(paths, numbers, strict=True)]
