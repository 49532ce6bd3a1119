"""Files of given features, and the schema that is inferred from them."""

from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
from oracle import Record

from dask_tfrecord.dataset.read.columns import ReadRequest
from dask_tfrecord.dataset.read.discovery import open_path
from dask_tfrecord.schema.fields import Schema


def directory_of(tmp_path: Path, *files: bytes) -> Path:
    """Write files of this content into the directory, and return the directory."""
    for number, content in enumerate(files):
        (tmp_path / f"{number}.tfrecord").write_bytes(content)
    return tmp_path


def infer(tmp_path: Path, *files: bytes, **options: Any) -> Schema:
    """Write files of this content, and return the schema that is inferred from the files."""
    return open_path(directory_of(tmp_path, *files), ReadRequest(**options)).schema


def types(schema: Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema.fields}


def file_of(*records: dict[str, tuple[str | None, list[Any]]]) -> bytes:
    """Return a file of Examples: for each feature of a record its kind and its values."""
    return oracle.features_file(records)


def sequence_file(*records: Record) -> bytes:
    return oracle.records_file([oracle.serialize(record, "sequence_example") for record in records])
