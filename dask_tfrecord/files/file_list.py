"""Define file lists: the files of a directory, a read or a version, as a table with a row for each file.

Objects for single files, such as `FileInfo`, are created from rows only where files are opened or described.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec.codecs import Compression, known_codec
from dask_tfrecord.storage.paths import is_http, unquoted_path
from dask_tfrecord.storage.reader import stamp_of
from dask_tfrecord.storage.redaction import without_credentials


@dataclass(frozen=True)
class FileInfo:
    """The path of a file on its filesystem, and what the store and the snapshot report about it.

    ``stamp``, such as an ETag or a modification time, changes when the file is rewritten. ``stamp`` is empty
    if the store reports no value that changes when the file is rewritten. ``codec`` is "none" for an
    uncompressed file, and None if no snapshot records the codec.
    """

    path: str
    size: int | None
    stamp: str = ""
    crc32c: int | None = None
    codec: str | None = None

    @property
    def compression(self) -> Compression | None:
        """The codec that the snapshot records. If it records none, the codec that the suffix implies."""
        return known_codec(self.codec, self.path)

    def __repr__(self) -> str:
        path = self.path.partition("?")[0] if is_http(self.path) else self.path
        return f"FileInfo({without_credentials(path)!r}, {self.size}, {self.stamp!r})"


# The columns of every file list, in the order of the fields of `FileInfo`. The paths are binary, because file
# names need not be valid Unicode.
INFO_SCHEMA = pa.schema(
    {
        "path": pa.binary(),
        "bytes": pa.int64(),
        "stamp": pa.string(),
        "crc32c": pa.uint32(),
        "codec": pa.string(),
    }
)

# In the file list of a version, this column tells for each file which version last added a row for it.
VERSION = "version"

STATISTICS = "statistics"

_SHORT = 100


def value_name(column: str) -> str:
    """Return the name of the file-list column that contains the values of a partition column."""
    return f"partition.{column}"


def statistics_name(column: str) -> str:
    return f"{STATISTICS}.{column}"


def encoded_paths(paths: Iterable[str]) -> pa.Array:
    return pa.array([path.encode(errors="surrogateescape") for path in paths], pa.binary())


@dataclass(frozen=True, eq=False, repr=False)
class FileList:
    """A list of files, stored as a table with a row for each file.

    Attributes
    ----------
    rows : pyarrow.Table
        The table has the columns of `INFO_SCHEMA`. Some lists also have columns for ``records``, ``blocks``,
        `VERSION`, the values of partition columns (see `value_name`), the statistics of data columns (see
        `statistics_name`), and the column files. Paths are relative to ``root``.
    root : str
        The directory to which the paths are relative, with a slash at its end, or "" for full paths.
    """

    rows: pa.Table
    root: str = ""

    @classmethod
    def of(cls, files: Iterable[FileInfo]) -> "FileList":
        given = [(file.path, file.size, file.stamp, file.crc32c, file.codec) for file in files]
        paths, *others = zip(*given, strict=True) if given else [()] * len(INFO_SCHEMA)
        return cls(pa.table([encoded_paths(paths), *others], schema=INFO_SCHEMA))

    @classmethod
    def of_infos(cls, root: str, infos: Iterable[dict[str, Any]]) -> "FileList":
        """Create a list of the files that fsspec describes in ``infos``.

        The paths are relative to ``root``. Only an HTTP page may link to files outside the root. The path of
        a file outside the root is the full URL.
        """
        found = [*infos]
        if not (is_http(root) or all(info["name"].startswith(root) for info in found)):
            root = ""
        paths = encoded_paths(info["name"].removeprefix(root) for info in found)
        sizes = pa.array([info.get("size") for info in found], pa.int64())
        nulls = (pa.nulls(len(found), INFO_SCHEMA.field(name).type) for name in ("crc32c", "codec"))
        columns = [paths, sizes, pa.array(map(stamp_of, found), pa.string()), *nulls]
        return cls(pa.table(columns, schema=INFO_SCHEMA), root)

    @classmethod
    def joined(cls, lists: Sequence["FileList"]) -> "FileList":
        """Join lists with the same root. If a list lacks a column, it is null for the files of that list."""
        return cls(pa.concat_tables([one.rows for one in lists], promote_options="default"), lists[0].root)

    def __getstate__(self) -> dict[str, Any]:
        """Compress the rows for pickling, because Dask sends read plans to the scheduler of a cluster.

        Compression would make a short list longer.
        """
        compression = "zstd" if len(self) > _SHORT else None
        sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, self.rows.schema, options=options) as writer:
            writer.write_table(self.rows)
        return {"rows": bytes(sink.getvalue()), "root": self.root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, rows=pa.ipc.open_stream(state["rows"]).read_all())

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, column: str) -> bool:
        return column in self.rows.column_names

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        return self.rows[column]

    def filter(self, mask: Any) -> "FileList":
        return replace(self, rows=self.rows.filter(mask))

    def take(self, indices: Any) -> "FileList":
        return replace(self, rows=self.rows.take(indices))

    def slice(self, start: int, stop: int) -> "FileList":
        return replace(self, rows=self.rows.slice(start, stop - start))

    def select(self, columns: Iterable[str]) -> "FileList":
        return replace(self, rows=self.rows.select([*columns]))

    def with_columns(self, columns: Mapping[str, Any]) -> "FileList":
        """Return the list with ``columns`` added. An existing column with the same name is replaced."""
        known = dict(zip(self.rows.column_names, self.rows.columns, strict=True))
        return replace(self, rows=pa.table({**known, **columns}))

    @property
    def paths(self) -> list[str]:
        """The full path of each file."""
        paths = _decoded(self.rows["path"])
        if is_http(self.root):
            return [path if is_http(path) else self.root + path for path in paths]
        return [self.root + path for path in paths]

    @property
    def names(self) -> list[str]:
        """The paths relative to the root, without the percent-encoding of URLs, as in snapshots."""
        if not is_http(self.root):
            return _decoded(self.rows["path"])
        start = unquoted_path(self.root)
        return [unquoted_path(path).removeprefix(start) for path in self.paths]

    @property
    def infos(self) -> list[FileInfo]:
        others = (self.rows[name].to_pylist() for name in INFO_SCHEMA.names[1:])
        return list(map(FileInfo, self.paths, *others))

    @property
    def partition_columns(self) -> pa.Table:
        """The values of the partition columns, as a table with one row for each file."""
        start = value_name("")
        names = [name for name in self.rows.column_names if name.startswith(start)]
        return self.rows.select(names).rename_columns([name.removeprefix(start) for name in names])

    def with_values(self, values: Mapping[str, Any]) -> "FileList":
        """Return the list with its partition columns replaced by ``values``."""
        start = value_name("")
        kept = self.select(name for name in self.rows.column_names if not name.startswith(start))
        return kept.with_columns({value_name(name): column for name, column in values.items()})

    def has_no_nulls(self, column: str) -> bool:
        """Return True if the statistics of all files prove that a column has no nulls."""
        if not len(self):
            return True
        if statistics_name(column) not in self:
            return False
        statistics = self[statistics_name(column)].combine_chunks()
        return not statistics.null_count and pc.max(statistics.field("nulls")).as_py() == 0

    def positions(self, files: "FileList") -> pa.ChunkedArray:
        """Return the index in this list of each file in ``files``, with null for each file that this list
        lacks.

        Two rows describe the same file if their paths and their CRC-32Cs are equal.
        """
        found = pc.index_in(files["path"], self["path"])  # each path occurs at most once in a file list
        return pc.if_else(pc.equal(self["crc32c"].take(found), files["crc32c"]), found, None)

    def minus(self, files: "FileList") -> "FileList":
        """Return this list without the files that are also in ``files``."""
        return self.filter(files.positions(self).is_null())

    def distinct(self) -> "FileList":
        """Return the list with only the first row of each path."""
        codes = self.rows["path"].combine_chunks().dictionary_encode().indices.to_numpy()
        first = np.unique(codes, return_index=True)[1]
        return self if len(first) == len(self) else self.take(first)

    def without(self, paths: Collection[str]) -> "FileList":
        """Return the list without the files whose full paths are in ``paths``."""
        if not paths:
            return self
        left_out = encoded_paths(path.removeprefix(self.root) for path in paths)
        return self.filter(pc.invert(pc.is_in(self.rows["path"], left_out)))


def _decoded(paths: pa.ChunkedArray) -> list[str]:
    return [path.decode(errors="surrogateescape") for path in paths.to_pylist()]
