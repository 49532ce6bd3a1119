"""Implement `Schema.from_tfds` and `Schema.from_tfmd`: schemas that files of other libraries describe."""

from typing import Any, get_args

from dask_tfrecord import arguments
from dask_tfrecord.dataset.read.schema_sources import tfds_schema, tfmd_schema
from dask_tfrecord.files.storage.filesystem import Filesystem
from dask_tfrecord.files.storage.listing import PathLike
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.public_functions import public_function
from dask_tfrecord.schema import tensorflow_schemas
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.tfds import Labels


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
    return tfds_schema(store, labels)


@public_function
def from_tfmd(
    file: Any,
    *,
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Schema:
    """Create the schema that a ``schema.pbtxt`` of TensorFlow Metadata describes, as TFX writes it.

    `types <../types.html>`_ has the column of each kind of feature. Pass the schema, or the path of the file,
    as ``schema=`` to read records with these columns.

    Parameters
    ----------
    file : str, path-like or Schema message of TensorFlow Metadata
        The path of the file, or the message itself.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        Filesystem of the file. Pass either this or ``storage_options``.

    Returns
    -------
    Schema
        The columns of the records, without features that are deprecated.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    SchemaError
        If the file is not valid, or if no column can express a feature.
    ImportError
        If protobuf, the extra ``tfmd``, is not installed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dask_tfrecord import Schema
    >>> text = 'feature { name: "tip" type: INT bool_domain {} value_count { min: 1 max: 1 } }'
    >>> _ = Path("schema.pbtxt").write_text(text)
    >>> Schema.from_tfmd("schema.pbtxt")
    Schema of example records:
      column  type  feature
      tip     bool  int64_list
    """
    if tensorflow_schemas.is_message(file):
        return tensorflow_schemas.metadata_schema(str(file))
    store = Store.at(arguments.path(file, "file"), storage_options, filesystem)
    return tfmd_schema(store, store.root)
