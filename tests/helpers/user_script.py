"""A script of a user, which the tests run and check with mypy and pyright."""

from typing import assert_type

import numpy as np
import pandas as pd
import pyarrow as pa
from dask import dataframe as dd

import dask_tfrecord

people = pd.DataFrame({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]})
ddf: dd.DataFrame = dd.from_pandas(people, npartitions=2)

# Writing returns what was committed, or a lazy scalar.
written = dask_tfrecord.to_tfrecord(ddf, "people", compression="GZIP", schema={"born": pa.int16()})
assert_type(written, dask_tfrecord.Commit)
appended = dask_tfrecord.to_tfrecord(ddf, "people", schema={"born": pa.int16()}, append=True)
assert_type(appended, dask_tfrecord.Commit)
assert_type(appended.rows, int)
assert_type(dask_tfrecord.to_tfrecord(ddf, "lazy", compute=False, write_index=False), dd.Scalar)

# Rows that are not a Dask collection are written without a graph.
assert_type(
    dask_tfrecord.to_tfrecord(people, "frame", compression="gzip", shuffle=True, seed=1), dask_tfrecord.Commit
)
table = pa.table({"name": ["Ada"], "born": [1815]})
assert dask_tfrecord.to_tfrecord(table.to_reader(), "stream", partition_on="name").rows == 1

# One name is a Series, a list of names is a DataFrame.
assert_type(dask_tfrecord.read_tfrecord("people"), dd.DataFrame)
assert_type(dask_tfrecord.read_tfrecord("people", columns="born"), dd.Series)
assert_type(dask_tfrecord.read_tfrecord("people", columns=["born"]), dd.DataFrame)
assert_type(dask_tfrecord.read_tfrecord(["people"], blocksize=np.int64(1 << 20)), dd.DataFrame)
assert_type(
    dask_tfrecord.read_tfrecord("people", schema="people", filters=[("born", ">", 1900)]), dd.DataFrame
)
indexed = dask_tfrecord.read_tfrecord("people", index=["name"], schema={"born": "int16"}, dtype_backend=None)
assert_type(indexed, dd.DataFrame)

# A dataset has facts, rows and operations.
dataset = dask_tfrecord.open_dataset("people")
assert_type(dataset, dask_tfrecord.Dataset)
assert_type(dataset.num_rows, int | None)
assert_type(dataset.metadata, dict[str, str])
assert_type(dataset.statistics, pd.DataFrame)
assert_type(dataset.to_dask(), dd.DataFrame)
assert_type(dataset.verify(), pd.DataFrame)
assert_type(dataset.history(), pd.DataFrame)
assert_type(dataset.cleanup(), list[str])
assert_type(dataset.compact(), dask_tfrecord.Commit)
assert dataset.take([1], "born").to_pydict() == {"born": [1912]}
assert dataset.take(np.array([0]), ["born"]).num_rows == 1
assert_type(dask_tfrecord.exists("people"), bool)

try:
    dataset.add_snapshot()
except dask_tfrecord.DestinationError as error:
    assert_type(error.path, str | None)
    assert_type(error.advice, str | None)

print(dataset)
