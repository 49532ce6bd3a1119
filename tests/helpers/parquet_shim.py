"""A plugin of pytest that runs Dask's own Parquet tests with TFRecord in the place of Parquet.

Keywords that are about Parquet files or its engine are left out. A file of its own is the data file of a
dataset, without its snapshot.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
from dask.dataframe.dask_expr._collection import DataFrame, FrameBase

import dask_tfrecord

_OF_PARQUET = {
    *(
        "aggregate_files",
        "arrow_to_pandas",
        "engine",
        "force_metadata",
        "gather_statistics",
        "ignore_divisions",
    ),
    *("ignore_metadata_file", "infer_divisions", "metadata_task_size", "parquet_file_extension"),
    *("read_metadata_file", "row_group_size", "split_files", "split_row_groups", "write_metadata_file"),
}
_DEFAULTS = {
    "columns": None,
    "filters": None,
    "categories": None,
    "index": None,
    "calculate_divisions": False,
}


def read(path: Any, blocksize: Any = "default", **keywords: Any) -> Any:
    given = {name: value for name, value in keywords.items() if name not in _OF_PARQUET}
    given = {name: value for name, value in given.items() if value is not _DEFAULTS.get(name, _OF_PARQUET)}
    return dask_tfrecord.read_tfrecord(path, blocksize="default" if blocksize is None else blocksize, **given)


def write(ddf: Any, path: Any, compression: Any = None, **keywords: Any) -> Any:
    given = {name: value for name, value in keywords.items() if name not in _OF_PARQUET}
    if given.get("schema") == "infer":
        del given["schema"]
    if isinstance(compression, str):
        given["compression"] = {"snappy": None, "brotli": None, "infer": None}.get(
            compression.lower(), compression.lower()
        )
    return dask_tfrecord.to_tfrecord(ddf, path, lossy="allow", **{"write_index": True, **given})


def write_pandas(
    frame: pd.DataFrame,
    path: Any,
    engine: Any = None,
    index: Any = None,
    partition_cols: Any = None,
    **_: Any,
) -> None:
    how: dict[str, Any] = {"lossy": "allow", "write_index": index in (None, True)}
    if "." not in Path(str(path)).name or Path(path).is_dir():
        dask_tfrecord.to_tfrecord(frame, str(path), partition_on=partition_cols, **how)
        return
    with tempfile.TemporaryDirectory() as folder:
        dask_tfrecord.to_tfrecord(frame, f"{folder}/data", **how)
        [file] = Path(folder, "data").glob("part-*")
        shutil.copy(file, str(path))


def read_pandas(path: Any, **keywords: Any) -> Any:
    given = {name: keywords[name] for name in ("columns", "filters", "dtype_backend") if name in keywords}
    return read(str(path), **given).compute()


dd.read_parquet = read
dd.to_parquet = write
for kind in (DataFrame, FrameBase):
    kind.to_parquet = write
pd.DataFrame.to_parquet = write_pandas
pd.read_parquet = read_pandas
