"""Implement `open_dataset`, which opens a dataset, or the files of other tools, as a `Dataset`."""

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.api import read as api_read
from dask_tfrecord.api.description import Facts
from dask_tfrecord.api.maintenance import Maintenance
from dask_tfrecord.collection import numbered_rows
from dask_tfrecord.collection.numbered_rows import NumberedRows
from dask_tfrecord.dataset.export import Format, export
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.dataset.query.predicates import And
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.snapshot.versions import versions
from dask_tfrecord.dataset.snapshot.visibility import visible_files
from dask_tfrecord.errors import NotFoundError, TFRecordError, UnsupportedOperationError, literal
from dask_tfrecord.feed.arrow_dataset import PIECE_BYTES, ArrowDataset, SharedPlan, Source
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.files.record_file import rows_without_columns
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import DtypeBackend, EpochKeywords, PartitionKeywords, ReadKeywords
from dask_tfrecord.keywords.foreign_names import Delegate, unknown_attribute
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.keywords.requests import read_request
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.paths import PathLike
from dask_tfrecord.storage.store import Store
from dask_tfrecord.storage.uploading import unfinished_uploads

if TYPE_CHECKING:
    import dask.dataframe as dd

# Table formats that `export` refuses, because Dask DataFrames have methods that write them.
_TABLES = ("csv", "parquet", "json")


class Dataset(Facts, Maintenance, ArrowDataset):
    """Read a dataset, describe its files and columns, and manage its versions.

    `open_dataset` returns this object. All its reads see the version that was opened, or without a snapshot,
    the files that were found. After one of its methods has committed a version, they see it. A `Dataset` can
    be pickled, and threads may share it.

    The class extends `pyarrow.dataset.Dataset`, whose methods `to_table`, `to_batches`, `head`, `take`,
    `count_rows`, `scanner`, `filter` and `get_fragments` work here as well. Methods that Arrow implements in
    C++, such as `join` and `sort_by`, raise; call them on the result of `to_table`.

    DuckDB finds a `Dataset` by the name of its Python variable, and DataFusion registers it with
    ``register_dataset``. Other engines can read all rows as an Arrow stream (``__arrow_c_stream__``). The
    loaders in `dask_tfrecord.feed` accept a `Dataset` instead of a path.
    """

    def __init__(
        self, path: Any, columns: Any, keywords: ReadKeywords, given: ReadPlan | None = None
    ) -> None:
        self._set_parent()
        self._set(path, columns, keywords, given)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._path, self._names, self._keywords, self._found)

    # Type checkers must report unknown attributes, and operations that only raise.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):
                object.__getattribute__(self, name)  # raises the AttributeError of the property again
            found = vars(self).get("_found")
            if found is not None and name in found.schema.names:
                delegates = [Delegate(SimpleNamespace(**{name: None}), "dataset.to_dask()")]
            else:
                delegates = _DELEGATES
            raise unknown_attribute("dataset", "a Dataset", name, dir(self), delegates)

        def __dir__(self) -> list[str]:
            return _public_names()

        def __bool__(self) -> bool:
            return True

        def __len__(self) -> NoReturn:
            advice = "use dataset.count_rows(), or len(dataset.schema.names) for the number of columns"
            raise UnsupportedOperationError("a Dataset has no len()", advice)

        # A loop over a `Dataset` calls `__getitem__(0)`. With `__iter__`, pandas would take it for a list.
        def __getitem__(self, key: Any) -> NoReturn:
            problem = f"a Dataset cannot be indexed or iterated (index {key!r})"
            raise UnsupportedOperationError(problem, f"use {_item(key)}")

    @cached_property
    def _source(self) -> Source:
        plan = self.plan(blocksize=PIECE_BYTES)
        return Source(plan, range(plan.npartitions), SharedPlan())

    @public_function
    def filter(self, expression: pc.Expression) -> "Dataset":
        """Return a dataset of the rows for which a pyarrow expression is true.

        Parameters
        ----------
        expression : pyarrow.compute.Expression
            The condition that the rows must meet, such as ``pc.field("born") > 1900``.

        Returns
        -------
        Dataset

        Raises
        ------
        SchemaError
            If Arrow cannot apply the expression to the columns.

        Examples
        --------
        >>> import dask.dataframe as dd
        >>> import dask_tfrecord
        >>> import pyarrow.compute as pc
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> dask_tfrecord.open_dataset("people").filter(pc.field("born") > 1900).count_rows()
        2
        """
        schema = self._opened().schema
        given = self._keywords.get("filters")
        predicate = self._predicate(expression)
        if given is not None:
            predicate = And(parse_filters(given, schema), predicate)
        keywords: Any = {**self._keywords, "filters": predicate}
        return Dataset(self._path, self._names, keywords, self._opened())

    @public_function
    def to_dask(
        self,
        *,
        categories: Sequence[str] | None = None,
        dtype_backend: DtypeBackend | None = None,
        **division: Unpack[PartitionKeywords],
    ) -> "dd.DataFrame":
        """Return the rows as a Dask DataFrame, like `read_tfrecord`.

        Parameters
        ----------
        categories, dtype_backend, blocksize, partition_by, index, calculate_divisions
            These parameters have the same meaning as in `read_tfrecord`.

        Returns
        -------
        dask.dataframe.DataFrame

        Examples
        --------
        >>> import dask.dataframe as dd
        >>> import dask_tfrecord
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> len(dask_tfrecord.open_dataset("people").to_dask(blocksize=None))
        3
        """
        read = {**self._keywords, **division}
        return api_read.collection_of(self.plan(**division), self._names, read, categories, dtype_backend)

    @public_function
    def take(
        self,
        indices: Sequence[int] | npt.ArrayLike,
        columns: str | Sequence[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
    ) -> pa.Table:
        """Read rows by index.

        Only the blocks that contain the requested rows are read (about 1 MiB each in files that `to_tfrecord`
        wrote), but compressed files of other tools are read completely. If many blocks are needed, Dask tasks
        read them in parallel. If few records of a block are needed, only these are decoded, and damage in the
        rest of the block is not noticed. Without a snapshot, the rows of all files are counted first.

        Parameters
        ----------
        indices : sequence of int or bool
            The indices of the rows, counted from 0 in the row order of `read_tfrecord`. They may be in any
            order, and may repeat. As in NumPy, negative indices count from the end, and a boolean mask, with
            an element for each row, selects the rows at which it is True. Only rows that pass the filters of
            the dataset count.
        columns : str, list of str or dict of str to pyarrow.compute.Expression, optional
            The columns of the result, in this order. By default, all columns are read.
        filter : pyarrow.compute.Expression, optional
            A condition. Only rows that meet it count.

        Returns
        -------
        pyarrow.Table
            One row for each element of ``indices``, in the same order.

        Raises
        ------
        IndexError
            If an index is out of bounds, or if a mask does not have one element for each row.
        TFRecordError
            If ``indices`` contains neither integers nor a boolean mask, or is a single integer.
        FileChangedError
            If a file has changed since the dataset was opened.

        Examples
        --------
        >>> import dask.dataframe as dd
        >>> import dask_tfrecord
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> dask_tfrecord.open_dataset("people").take([-1, 0]).to_pylist()
        [{'name': 'Grace', 'born': 1906}, {'name': 'Ada', 'born': 1815}]
        """
        if filter is not None:
            return self.filter(filter).take(indices, columns)
        if isinstance(columns, dict):
            return self.scanner(columns).take(indices)
        plan, schema = self.planned(columns, numbered_rows.BLOCK_BYTES, {})
        rows = NumberedRows(plan, schema)
        numbers = rows.numbers(indices)
        return rows.read(numbers) if schema.fields else rows_without_columns(numbers.size)

    @public_function
    def batches(self, batch_size: int = 1024, **keywords: Unpack[EpochKeywords]) -> Batches:
        """Iterate over the rows as Arrow batches, with shuffling, sharding and resuming for training.

        Parameters
        ----------
        batch_size, shuffle, seed, shuffle_buffer, prefetch, batch_mode, epoch, shard, uneven, elastic, start
            These parameters have the same meaning as in `feed.iter_batches`.
        cache, cache_bytes
            A directory on a local disk that keeps blocks of remote files, and its limit, as in
            `feed.iter_batches`.

        Returns
        -------
        Batches
            An iterator of `pyarrow.RecordBatch`. After each batch, `Batches.state` describes the remaining
            rows, so that the iteration can be resumed.

        Examples
        --------
        >>> import dask.dataframe as dd
        >>> import dask_tfrecord
        >>> ddf = dd.from_dict({"x": list(range(5))}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "numbers")
        >>> for batch in dask_tfrecord.open_dataset("numbers").batches(2):
        ...     print(batch["x"].to_pylist())
        [0, 1]
        [2, 3]
        [4]
        """
        return iter_batches(self, batch_size, **keywords)

    @public_function
    def export(self, format: Format) -> list[str]:
        """Write files beside the data files, so that another library can read the dataset.

        Call `export` again after an append, because the exported files do not describe the appended rows. An
        overwrite removes them.

        Reads that use the snapshot ignore the exported files. For reads without it, an exported
        ``features.json`` and ``dataset_info.json`` determine which columns and files are read, and how many
        records each file must contain.

        Parameters
        ----------
        format : "idx", "tfds" or "tfmd"
            "idx" writes ``_idx/<data file>.idx`` for each data file, with the offset and the size of each
            record, for NVIDIA DALI and the ``tfrecord`` package.

            "tfds" writes ``features.json`` and ``dataset_info.json``, for ``builder_from_directory`` of
            TensorFlow Datasets (TFDS). Each directory such as ``split=train/`` becomes a split. TFDS reads
            dates and times as integers. Columns that were read from a TFDS directory keep their feature
            classes and class names.

            "tfmd" writes ``schema.pbtxt``, a TensorFlow Metadata schema, for TFX.

        Returns
        -------
        list of str
            The paths of the written files. For "idx", the index files are listed in the order of `files`.

        Raises
        ------
        FileNotFoundError
            If the dataset has no snapshot.
        CorruptRecordError
            If a file of the dataset is missing.
        DestinationError
            If the path lies inside another dataset.
        SchemaError
            If the format cannot represent a column, for example a column with nulls in "tfds".
        TFRecordError
            If the format cannot represent the data files, for example compressed files in "idx" and "tfds".

        Examples
        --------
        >>> from pathlib import Path
        >>> import dask.dataframe as dd
        >>> import dask_tfrecord
        >>> ddf = dd.from_dict({"x": [1, 2, 3]}, npartitions=1)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "numbers")
        >>> (index,) = dask_tfrecord.open_dataset("numbers").export("idx")
        >>> Path(index).read_text().splitlines()
        ['0 30', '30 30', '60 30']
        """
        if isinstance(format, str) and format in _TABLES:
            problem = f"export() writes what describes the dataset, not its rows as {format}"
            raise TFRecordError(problem, f"call to_{format} of the result of read_tfrecord")
        arguments.choice("format", format, get_args(Format))
        return export(self._store("export"), format)


# The objects whose attributes users look for on a `Dataset`.
_DELEGATES = (
    Delegate("dask.dataframe:DataFrame", "dataset.to_dask()"),
    Delegate(pa.Table, "dataset.to_table()"),
)

# Attributes of `Dataset` that `dir` does not list: they raise, or only this package uses them.
_NOT_LISTED = frozenset(
    {"chosen_version", "columns_of", "plan", "planned", "filesystem", "format", "from_paths"}
)
_NOT_LISTED |= {"partition_expression", "join", "join_asof", "replace_schema", "sort_by"}


def _public_names() -> list[str]:
    return sorted(name for name in dir(Dataset) if not name.startswith("_") and name not in _NOT_LISTED)


def _item(key: Any) -> str:
    """Return the expression that reads what a user expects from ``dataset[key]``."""
    if isinstance(key, pc.Expression):
        return "dataset.filter(expression)"
    if isinstance(key, str) or (isinstance(key, list) and key and all(isinstance(one, str) for one in key)):
        return f"dataset.to_dask()[{literal(key)}]"
    if isinstance(key, slice):
        first, last = key.start or 0, "dataset.count_rows()" if key.stop is None else key.stop
        step = "" if key.step is None else f", {key.step}"
        return f"dataset.take(range({first}, {last}{step}))"
    is_index = isinstance(key, int | np.integer) and not isinstance(key, bool)
    rows = f"dataset.take([{int(key)}])" if is_index else "dataset.take(indices)"
    return f"{rows}, or dataset.batches() to iterate over all rows"


@public_function
def open_dataset(
    path: PathLike | Sequence[PathLike],
    columns: str | Sequence[str] | None = None,
    **read: Unpack[ReadKeywords],
) -> Dataset:
    """Open a dataset, or the files of other tools, reading at most a sample of the records.

    The columns and statistics of a dataset come from its snapshot.

    Parameters
    ----------
    path : str, path-like or list of these
        A directory, a glob, a file, or a list of these, as in `read_tfrecord`. The methods that change a
        dataset require the path of one directory.
    columns : str or list of str, optional
        The columns to read, in this order. By default, all columns are read.
    **read
        Keywords of `read_tfrecord` that control what is read, such as ``schema``, ``filters``, ``split`` and
        ``version``.

    Returns
    -------
    Dataset
        The dataset. Methods that read rows raise if files of the dataset are damaged or missing, but
        `verify`, `history`, `repair`, `restore` and `cleanup` still work.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path, or if the dataset does not have the requested ``version``.
    SchemaError
        If ``columns`` or ``filters`` name an unknown column, or cannot be applied to the columns of the
        files.

    See Also
    --------
    read_tfrecord : Read TFRecord files into a Dask DataFrame.
    exists : Find out whether a path contains data.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> import pyarrow.compute as pc
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan", None], "born": [1815, 1912, 1906]}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> people = dask_tfrecord.open_dataset("people")
    >>> people.num_rows, len(people.files), people.version
    (3, 2, 1)
    >>> people.statistics[["type", "nulls", "min", "max"]]
              type  nulls   min   max
    column
    name    string      1   Ada  Alan
    born     int64      0  1815  1912
    >>> people.to_table(columns=["name"], filter=pc.field("born") > 1910).to_pydict()
    {'name': ['Alan']}
    """
    read_request(columns, **read)  # called only to validate the arguments
    dataset = Dataset(path, columns, read)
    try:
        dataset.columns_of(dataset.plan(blocksize=None))
    except (TFRecordError, NotFoundError) as error:
        if not _can_be_mended(path, columns, read, error):
            raise
    return dataset


def _can_be_mended(path: Any, columns: Any, read: ReadKeywords, error: TFRecordError | NotFoundError) -> bool:
    """Return True if the path may be opened despite an error, so that methods such as `repair` can fix or
    report the cause.
    """
    if any(value is not None for value in (columns, *map(read.get, ("filters", "version")))):
        return False
    if isinstance(error, TFRecordError):
        return True
    if not isinstance(path, str | os.PathLike):
        return False
    store = Store.at(path, read.get("storage_options"), read.get("filesystem"))
    try:
        return bool(store.fs.isdir(store.root) or unfinished_uploads(store))
    except FileNotFoundError:  # the bucket does not exist
        return False


@public_function
def exists(
    path: PathLike, *, storage_options: dict[str, Any] | None = None, filesystem: Filesystem = None
) -> bool:
    """Return True if a path contains data, so that `to_tfrecord` would refuse to write there by default.

    Parameters
    ----------
    path : str or path-like
        The directory or file to check.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Returns
    -------
    bool
        True if the path is a file, a dataset (even without rows), or a directory with visible files of any
        kind. False if the path does not exist, or if the directory contains only files of an uncommitted
        write.

    See Also
    --------
    Dataset.cleanup : Remove the files of interrupted writes.

    Examples
    --------
    >>> import dask_tfrecord
    >>> from dask import dataframe as dd
    >>> dask_tfrecord.exists("people")
    False
    >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
    >>> dask_tfrecord.exists("people")
    True
    """
    store = Store.at(path, storage_options, filesystem)
    return bool(versions(store) or visible_files(store) or store.fs.isfile(store.root))
