"""Implement `Schema.from_tfds`: the schema that a directory of TensorFlow Datasets describes."""

from typing import Any, get_args

from dask_tfrecord import arguments
from dask_tfrecord.errors import NotFoundError, SchemaError
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.public_functions import public_function
from dask_tfrecord.schema.field import Field
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.schema.tfds import FEATURES, Labels, described_columns


@public_function
def from_tfds(
    directory: PathLike,
    *,
    labels: Labels = "names",
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Schema:
    """Create the schema that a directory of TensorFlow Datasets (TFDS) describes in ``features.json``.

    Pass the schema as ``schema=`` to read records that TFDS wrote without the files that describe them.

    Parameters
    ----------
    directory : str or path-like
        The directory of one version of a dataset, such as ``"mnist/3.0.1"``.
    labels : {"names", "codes"}, default "names"
        Type of the columns of class labels, as in `read_tfrecord`.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        Filesystem of the directory. Pass either this or ``storage_options``.

    Returns
    -------
    Schema
        The columns of the records.

    Raises
    ------
    FileNotFoundError
        If the directory has no ``features.json`` that describes columns.
    SchemaError
        If ``features.json`` is not valid, or has a feature of an unknown class or dtype.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"], "born": [1815, 1912]}, npartitions=1)
    >>> snapshot = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> written = dask_tfrecord.export("people", "tfds")
    >>> dask_tfrecord.Schema.from_tfds("people")
    Schema of example records:
      column  type    feature
      name    string  bytes_list
      born    int64   int64_list
    """
    arguments.choice("labels", labels, get_args(Labels))
    store = Store.at(arguments.path(directory, "directory"), storage_options, filesystem)
    path = store.public(store.join(FEATURES))
    try:
        found = described_columns(lambda name: store.fs.cat_file(store.join(name)), labels)
    except SchemaError as error:
        raise error.located(path=path) from None
    if found is None:
        raise NotFoundError(f"{path}: no such file, or it describes no columns")
    if found.unknown:
        raise SchemaError(
            "the class or the dtype of the feature is unknown",
            path=path,
            feature=found.unknown[0],
            advice="read the directory without schema=, which infers the type of the column",
        )
    return Schema(tuple(Field.in_form(name, form) for name, form in found.forms.items()))
