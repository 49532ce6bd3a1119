"""Define `Schema.from_tfds` and `Schema.from_tfmd`, which read the schema files of other libraries."""

from typing import Any, get_args

from dask_tfrecord.dataset.read.schema_sources import tfds_schema, tfmd_schema
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.schema import tensorflow_schemas
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.schema.tfds import Labels
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.paths import PathLike
from dask_tfrecord.storage.store import Store


@public_function
def from_tfds(
    directory: PathLike,
    *,
    labels: Labels = "names",
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Schema:
    """Create the schema that a directory of TensorFlow Datasets (TFDS) describes in ``features.json``.

    To read TFDS records from a directory without ``features.json``, pass the returned schema to
    `read_tfrecord` as ``schema=``.

    Parameters
    ----------
    directory : str or path-like
        The directory of one version of a dataset, such as ``"mnist/3.0.1"``.
    labels : {"names", "codes"}, default "names"
        The type of class label columns, as in `read_tfrecord`.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the directory. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    Schema
        The columns of the records.

    Raises
    ------
    FileNotFoundError
        If the directory has no ``features.json`` that describes columns.
    SchemaError
        If ``features.json`` is not valid, or describes a feature of an unknown class or dtype.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"], "born": [1815, 1912]}, npartitions=1)
    >>> snapshot = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> written = dask_tfrecord.open_dataset("people").export("tfds")
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
    file: Any, *, storage_options: dict[str, Any] | None = None, filesystem: Filesystem = None
) -> Schema:
    """Create the schema that a TensorFlow Metadata file describes, such as the ``schema.pbtxt`` of TFX.

    The page `types <../types.html>`_ lists which column each kind of feature becomes. To read records with
    the described columns, pass the returned schema, or the path of the file, to `read_tfrecord` as
    ``schema=``.

    Parameters
    ----------
    file : str, path-like or Schema message of TensorFlow Metadata
        The path of the file, or a ``tensorflow.metadata.v0.Schema`` message.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the file. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    Schema
        The columns of the records, without features that are deprecated.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    SchemaError
        If the file is not valid, or if no column can represent a feature.
    ImportError
        If protobuf is not installed. The extra ``tfmd`` installs protobuf.

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
