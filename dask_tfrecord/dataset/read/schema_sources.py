"""Read schemas of other libraries: TensorFlow Datasets (TFDS), TFX, TensorFlow Metadata and feature specs."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dask_tfrecord.dataset.read.columns import GivenSchema
from dask_tfrecord.dataset.snapshot.head import Head, open_version
from dask_tfrecord.errors import NotFoundError, SchemaError, located
from dask_tfrecord.schema import tensorflow_schemas
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.tfds import FEATURES, Labels, described_columns
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.paths import PathLike, is_http, name_of, parent_of
from dask_tfrecord.storage.redaction import without_credentials
from dask_tfrecord.storage.store import Store

# The suffixes of files in protobuf's text format and in the binary format.
_TEXT_SUFFIXES = (".pbtxt", ".textproto", ".textpb", ".txtpb", ".prototxt")
_BINARY_SUFFIXES = (".pb", ".binpb", ".binarypb")


def known_schema(
    source: Any,
    *,
    labels: Labels = "names",
    storage_options: dict[str, Any] | None = None,
    filesystem: Filesystem = None,
) -> Any:
    """Convert a schema of another library to a `Schema`. Return any other value of ``schema=`` unchanged.

    The following values are converted: a path, a ``Schema`` message of TensorFlow Metadata, and a mapping
    from names to TensorFlow feature specs. The path may be that of a ``schema.pbtxt``, of a
    ``features.json``, or of a directory that contains such a file. If the path is that of a directory with a
    snapshot, return the `Snapshot`. Raise FileNotFoundError if the path does not exist. Raise SchemaError if
    the schema is not valid, or if it contains a feature that no column can represent.
    """
    if isinstance(source, str | os.PathLike) and source not in ("", "infer"):
        return _of_path(source, labels, storage_options, filesystem)
    if tensorflow_schemas.is_message(source):
        return tensorflow_schemas.metadata_schema(str(source))
    if isinstance(source, Mapping) and any(map(tensorflow_schemas.is_spec, source.values())):
        return tensorflow_schemas.feature_spec_schema(source)
    return source


def _of_path(
    path: PathLike, labels: Labels, storage_options: dict[str, Any] | None, filesystem: Filesystem
) -> GivenSchema:
    text = os.fspath(path)
    is_local = "://" not in text or text.startswith("file://")
    store = Store.at(path, None if is_local else storage_options, filesystem)
    root = store.root.rstrip("/")
    name = name_of(urlsplit(root).path if is_http(root) else root)
    if name.endswith(".json"):
        directory = Store.of(store.fs, parent_of(root))
        return tfds_schema(directory, labels, name_of(root))
    if name.endswith((*_TEXT_SUFFIXES, *_BINARY_SUFFIXES)):
        return tfmd_schema(store, root)
    snapshot = Head.read(store).snapshot
    if snapshot is not None:
        return snapshot
    if store.has_file(store.join(FEATURES)):
        return tfds_schema(store, labels)
    if store.has_file(store.join(tensorflow_schemas.SCHEMA_FILE)):
        return tfmd_schema(store, store.join(tensorflow_schemas.SCHEMA_FILE))
    if store.fs.isdir(store.root):
        return open_version(store, None)  # this call raises an error, because the directory has no snapshot
    raise SchemaError(
        f"schema={without_credentials(os.fspath(path))!r} is not a schema",
        'pass the types of columns, such as schema={"age": pa.int64()}, or the path of a '
        f"{tensorflow_schemas.SCHEMA_FILE}, of a {FEATURES}, or of a directory with such a file or with a "
        "snapshot",
    )


def tfds_schema(directory: Store, labels: Labels, features: str = FEATURES) -> Schema:
    """Return the columns that the TFDS file ``features`` in a directory describes."""

    def read(name: str) -> bytes:
        return directory.read_file(directory.join(features if name == FEATURES else name))

    path = directory.public(directory.join(features))
    with located(path=path):
        described = described_columns(read, labels)
    if described is None and directory.has_file(directory.join(features)):
        advice = f"pass the {FEATURES} of TFDS, or the types of columns"
        raise SchemaError("the file describes no features", advice, path=path)
    if described is None:
        raise NotFoundError(f"{path}: no such file")
    if described.unknown:
        problem = "the class or the dtype of the feature is unknown"
        advice = "read the directory without schema=, which infers the type of the column"
        raise SchemaError(problem, advice, path=path, feature=described.unknown[0])
    return Schema(tuple(Field.in_form(name, form) for name, form in described.forms.items()))


def tfmd_schema(store: Store, path: str) -> Schema:
    """Return the columns that a schema file of TensorFlow Metadata describes."""
    public = store.public(path)
    if path.endswith(_BINARY_SUFFIXES):
        raise SchemaError(
            "the file has a binary message, which this library does not read",
            "pass the schema.pbtxt that TFX writes, or the message that "
            "tensorflow_metadata.proto.v0.schema_pb2.Schema.FromString returns for the content of the file",
            path=public,
        )
    try:
        text = store.read_file(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"{public}: no such file") from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"the file is not text: {error}", path=public) from None
    except ValueError as error:
        raise SchemaError(f"the schema {error}", "pass a schema.pbtxt", path=public) from None
    with located(path=public):
        return tensorflow_schemas.metadata_schema(text)
