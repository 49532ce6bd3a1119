"""Define the public functions and classes, except those of `dask_tfrecord.feed`."""

from dask_tfrecord.errors import warn_caller


def add_to_dask() -> None:
    """Add `DataFrame.to_tfrecord` and `dask.dataframe.read_tfrecord` to Dask.

    If Dask already has a different attribute of the same name, keep Dask's attribute, and warn.
    """
    import dask.dataframe as dd  # takes long, and not all modules of this package need it

    from dask_tfrecord.api.read import read_tfrecord
    from dask_tfrecord.api.write import to_tfrecord

    for owner, function in ((dd.DataFrame, to_tfrecord), (dd, read_tfrecord)):
        name = function.__name__
        present = getattr(owner, name, function)
        if present is not function:
            warn_caller(f"{owner.__name__}.{name} exists already and stays; use dask_tfrecord.{name}")
        else:
            setattr(owner, name, function)
