"""A script of a user, which the tests run and check with mypy and pyright."""

from typing import assert_type

import numpy as np
import pandas as pd
import pyarrow as pa
from dask import dataframe as dd

import dask_tfrecord
from dask_tfrecord import Block, ColumnStatistics, Field, FileEntry, Schema, Snapshot

people = pd.DataFrame({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]})
ddf: dd.DataFrame = dd.from_pandas(people, npartitions=2)

# Writing returns a snapshot, or a lazy scalar.
snapshot = dask_tfrecord.to_tfrecord(ddf, "people", compression="GZIP", schema={"born": pa.int16()})
assert_type(snapshot, Snapshot)
appended = dask_tfrecord.to_tfrecord(ddf, "people", schema={"born": pa.int16()}, append=True)
assert_type(appended, Snapshot)
assert_type(dask_tfrecord.to_tfrecord(ddf, "lazy", compute=False, write_index=False), dd.Scalar)

# Rows that are not a Dask collection are written without a graph.
assert_type(dask_tfrecord.to_tfrecord(people, "frame", compression="gzip", shuffle=1), Snapshot)
table = pa.table({"name": ["Ada"], "born": [1815]})
assert dask_tfrecord.to_tfrecord(table.to_reader(), "stream", partition_on="name").records == 1

# A snapshot's parts have public types.
assert_type(snapshot.files, tuple[FileEntry, ...])
assert_type(snapshot.schema, Schema)
assert_type(snapshot.schema.fields, tuple[Field, ...])
assert_type(snapshot.files[0].blocks, tuple[Block, ...])
assert_type(snapshot.files[0].statistics, tuple[ColumnStatistics, ...])
assert_type(snapshot.records, int)
assert_type(Snapshot.open("people"), Snapshot)

# One name is a Series, a list of names is a DataFrame.
assert_type(dask_tfrecord.read_tfrecord("people"), dd.DataFrame)
assert_type(dask_tfrecord.read_tfrecord("people", columns="born"), dd.Series)
assert_type(dask_tfrecord.read_tfrecord("people", columns=["born"]), dd.DataFrame)
assert_type(dask_tfrecord.read_tfrecord(["people"], blocksize=np.int64(1 << 20)), dd.DataFrame)
assert_type(
    dask_tfrecord.read_tfrecord("people", schema=snapshot, filters=[("born", ">", 1900)]), dd.DataFrame
)
assert_type(dask_tfrecord.take("people", [0, -1]), pd.DataFrame)
assert_type(dask_tfrecord.take("people", np.array([0]), ["born"]), pd.DataFrame)
assert dask_tfrecord.take("people", [1], "born").tolist() == [1912]
assert dask_tfrecord.take("people", [1], columns="born").tolist() == [1912]

indexed = dask_tfrecord.read_tfrecord("people", index=["name"], schema={"born": "int16"}, dtype_backend=None)
assert_type(indexed, dd.DataFrame)

# Housekeeping.
assert_type(dask_tfrecord.verify("people"), pd.DataFrame)
assert_type(dask_tfrecord.exists("people"), bool)
assert_type(dask_tfrecord.cleanup("people"), list[str])

try:
    dask_tfrecord.index("people")
except dask_tfrecord.DestinationError as error:
    assert_type(error.path, str | None)
    assert_type(error.advice, str | None)

print(snapshot)
