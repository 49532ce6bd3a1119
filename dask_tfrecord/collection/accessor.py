"""Add the method `DataFrame.to_tfrecord` and the function `dask.dataframe.read_tfrecord` to Dask."""

import dask.dataframe as dd

from dask_tfrecord.collection.reader import read_tfrecord
from dask_tfrecord.collection.writer import to_tfrecord
from dask_tfrecord.errors import warn_caller


def install() -> None:
    """Add both functions to Dask. Keep an attribute of the same name that Dask already has, and warn."""
    for owner, function in ((dd.DataFrame, to_tfrecord), (dd, read_tfrecord)):
        name = function.__name__
        present = getattr(owner, name, function)
        if present is not function:
            warn_caller(f"{owner.__name__}.{name} exists already and stays; use dask_tfrecord.{name}")
        else:
            setattr(owner, name, function)
