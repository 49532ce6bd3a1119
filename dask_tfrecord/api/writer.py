"""Implement `Writer`, which writes rows that arrive over time, without Dask.

A `Writer` converts rows to tables and decides when to commit. An `Appender` collects and commits
the tables.
"""

import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, get_args

import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.collection.frames.pandas_to_arrow import first_line
from dask_tfrecord.collection.frames.schema_plan import Existing, given_types
from dask_tfrecord.collection.frames.table_sources import Rows, Source, is_records, open_source, table_of
from dask_tfrecord.dataset.read.inferred_schema import PAYLOAD
from dask_tfrecord.dataset.shuffle.table_stream import Appender, check_values
from dask_tfrecord.dataset.snapshot.model import Commit, Snapshot
from dask_tfrecord.dataset.write import append_schema
from dask_tfrecord.dataset.write.destination import (
    check_destination,
    destination,
    refuse_linked_files,
    refuse_write_inside,
)
from dask_tfrecord.dataset.write.operations import Append
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.errors import Call, SchemaError, TFRecordError, counted, located
from dask_tfrecord.keywords import arguments, requests
from dask_tfrecord.keywords.arguments import AnyCompression, AnyRecordType, AnySchema, FileOptionKeywords
from dask_tfrecord.keywords.foreign_names import unknown_attribute
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.schema.conversion import holds_null, may_widen
from dask_tfrecord.schema.fields import Lossy, Schema
from dask_tfrecord.schema.names import check_names
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.paths import PathLike
from dask_tfrecord.storage.redaction import hide_secrets

logger = logging.getLogger(__name__)

_ONE_EACH = "make a Writer in each process; several may write to one dataset"


class Writer:
    """Write rows that arrive over time to a dataset, without Dask.

    Each commit appends the rows since the last one. Readers see all rows of a commit or none of them.

    A `Writer` is a context manager. It commits the remaining rows when the ``with`` block ends. If the block
    raises, it drops the rows since the last commit, and a note on the exception gives the numbers of
    committed and dropped rows. If the process is killed, the dataset stays as the last commit left it.

    Several writers, in one process or in several, may write to the same dataset. If threads share a `Writer`,
    their calls run one after the other. A forked process must make its own.

    Parameters
    ----------
    path : str or path-like
        The directory of the dataset. Rows are appended, as with ``to_tfrecord(append=True)``; if the
        directory contains no data, the first commit creates a dataset.
    schema : mapping of str to pyarrow.DataType, pyarrow.Schema or Schema, optional
        The types of some or all columns, as in `to_tfrecord`. In a new dataset, the types of all other
        columns are inferred from the first rows. The columns of an existing dataset must have these types.
    partition_on : str or list of str, optional
        The partition columns, as in `to_tfrecord`. By default, an existing dataset keeps its own, and a new
        dataset has none.
    columnar : {"auto", "scalars", None, False} or list of str, default "auto"
        The columns that are also stored in Parquet files, as in `to_tfrecord`. With "auto", each commit uses
        the setting of the version that the `Writer` last read or committed.
    compression : {"default", None, "gzip", "zlib", "zstd", "lz4", "bz2", "xz"}
        The codec of the new files, as in `to_tfrecord`.
    record_type : {"infer", "example", "sequence_example", "bytes"}, default "infer"
        The type of the message in each record of a new dataset. "infer" selects "bytes" if the rows are bytes
        objects, and otherwise "example".
    lossy : {"default", "warn", "allow", "raise"}
        What to do if values are rounded to 32-bit floats, as in `to_tfrecord`.
    commit_every : int, str or timedelta, optional
        The limit at which `write` commits: a number of rows (``10_000``), their size in memory
        (``"64 MiB"``), or the time since the last commit (``"2 s"``). By default, only `commit` and the end
        of the ``with`` block commit. The time is checked only by `write`; ``write([])`` checks it without
        adding rows.
    schema_change : "add", optional
        With "add", ``schema`` may add columns to an existing dataset and widen types, as in `to_tfrecord`,
        and other writes may do so while the `Writer` is open. Columns that the rows lack become null. By
        default, the columns must not change.
    write_options : dict, optional
        The options of `to_tfrecord` for files: ``compression_level``, ``max_rows_per_file``,
        ``max_bytes_per_file`` (128 MiB by default) and, for a new dataset, ``feature_lists``. Rows wait in
        memory until they fill a file, or have 128 MiB.
    storage_options : dict, optional
        Options for the filesystem, such as credentials.
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The filesystem of the path. Only one of ``filesystem`` and ``storage_options`` may be passed.

    Attributes
    ----------
    version : int or None
        The newest version of the dataset that this `Writer` has read or committed, or None if there is none.
    metadata : dict of str to str
        The ``custom_metadata`` of ``version``. If each commit stores a position here, a restarted program can
        continue from it.

    Raises
    ------
    DestinationError
        If the path is a file, or lies inside another dataset.
    SchemaError
        If the arguments contradict the columns, types or partition columns of the existing dataset.
    TFRecordError
        If an argument is invalid.

    See Also
    --------
    to_tfrecord : Write a collection, a table or a stream at once.

    Examples
    --------
    >>> import dask_tfrecord
    >>> with dask_tfrecord.Writer("events", schema={"user": "int64", "action": "string"}) as writer:
    ...     writer.write([{"user": 7, "action": "open"}, {"user": 9}])
    ...     done = writer.commit(custom_metadata={"source.offset": "2"})
    ...     writer.write([{"user": 7, "action": "close"}])
    >>> dask_tfrecord.read_tfrecord("events").compute()
       user action
    0     7   open
    1     9   <NA>
    2     7  close
    >>> dask_tfrecord.open_dataset("events").metadata
    {'source.offset': '2'}
    """

    _is_closed = True  # an object whose `__init__` has failed counts as closed

    @public_function
    def __init__(
        self,
        path: PathLike,
        schema: AnySchema | None = None,
        *,
        partition_on: str | Sequence[str] | None = None,
        columnar: str | Sequence[str] | Literal[False] | None = "auto",
        compression: AnyCompression | Literal["default"] | None = "default",
        record_type: AnyRecordType = "infer",
        lossy: Lossy | Literal["default"] = "default",
        commit_every: requests.CommitEvery = None,
        schema_change: Literal["add"] | None = None,
        write_options: FileOptionKeywords | None = None,
        storage_options: dict[str, Any] | None = None,
        filesystem: Filesystem = None,
    ) -> None:
        arguments.path(path)
        arguments.mappings(storage_options=storage_options)
        arguments.choice("record_type", record_type, ("infer", *get_args(RecordType)))
        rare = arguments.options("write_options", write_options, FileOptionKeywords)
        if "max_bytes_per_file" not in (write_options or {}):
            rare["max_bytes_per_file"] = 1 << 27
        self._rare = rare
        self._options = requests.write_options(compression, lossy, self._rare)
        self._keys = None if partition_on is None else arguments.names("partition_on", partition_on)
        self._record_type = requests.written_type(record_type, self._rare)
        self._limit = requests.commit_every_limit(commit_every)
        self._adds_columns = requests.schema_change_mode(schema_change, "append")
        schema = arguments.arrow_schema(schema)
        # Besides the types, an Arrow schema says in which form columns are stored.
        self._schema = schema if isinstance(schema, pa.Schema) else None
        self._given = given_types(schema)
        self._columnar = columnar

        self._store = destination(path, storage_options, filesystem)
        self._appender = Appender(self._store, Append(self._adds_columns, not requests.is_auto(columnar)))
        if not self._appender.head.number:
            refuse_write_inside(self._store, "append")
        check_destination(self._store, "append", self._snapshot)
        requests.warn_of_compression(self._options.compression)
        if self._snapshot is not None:
            refuse_linked_files(self._store, self._snapshot.file_list)
            fixed = {} if self._adds_columns else self._given
            append_schema.check_given_columns(self._snapshot, fixed, self._keys, self._record_type)
            self._appender.plan = self._planned(self._snapshot)
        self._rounded: set[str] = set()  # The columns for which a rounding warning was issued.
        # The time of the last commit, measured by a clock that never goes back.
        self._start = monotonic()
        self._has_failed = False  # True if the last call of `write` added rows and then raised an error.
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._is_closed = False

    if not TYPE_CHECKING:  # type checkers must not accept unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_attribute("writer", "a Writer", name, dir(self))

        def __dir__(self) -> list[str]:
            return sorted(name for name in dir(Writer) if not name.startswith("_"))

    @property
    def version(self) -> int | None:
        """The newest version of the dataset that this `Writer` has read or committed, if any."""
        return None if self._snapshot is None else self._snapshot.number

    @property
    def metadata(self) -> dict[str, str]:
        """The ``custom_metadata`` of `version`, or an empty dict if `version` is None."""
        return {} if self._snapshot is None else dict(self._snapshot.custom_metadata)

    @property
    def _snapshot(self) -> Snapshot | None:
        return self._appender.snapshot

    @property
    def uncommitted_rows(self) -> int:
        """The number of rows that were written since the last commit."""
        return self._appender.rows

    @public_function
    def write(self, rows: Rows, *, custom_metadata: Mapping[str, str] | None = None) -> None:
        """Add rows, and commit all rows since the last commit if the limit ``commit_every`` is reached.

        Parameters
        ----------
        rows : pandas.DataFrame, object that exports Arrow data, list of dict, or list of bytes
            The rows, which must fit into memory. They must have the columns of the dataset, in any order.
            Their values are converted to its types if this changes no value. A column that a dict lacks
            becomes null. Each bytes object is a complete record. A single dict or bytes object is one row,
            and an empty list none.
        custom_metadata : mapping of str to str, optional
            Metadata to commit together with the rows, such as the position up to which their source has been
            read.

        Raises
        ------
        SchemaError
            If the columns of the rows differ from those of the dataset, or if a value does not fit its
            column. No row is added then. If the call commits, it may also raise the errors of `commit`.
        OSError
            If the rows cannot be stored, for example because the disk is full. All rows of the call then wait
            in memory. Call `commit` to store them; until it succeeds, `write` raises, so that no row is added
            twice.
        TFRecordError
            If the `Writer` is closed, if reading the rows fails, or if rows of an earlier call could not be
            stored. No row is added then.
        """
        with self._used():
            metadata = arguments.metadata(custom_metadata)
            if self._has_failed:
                problem = f"storing the rows of an earlier call failed; {self.uncommitted_rows:,} rows wait"
                advice = "call commit() until it succeeds, and do not write these rows again"
                raise TFRecordError(problem, advice)
            try:
                plan, tables = self._tables(rows)
            except TFRecordError as error:
                raise error.replaced(function="Writer") from error.__cause__
            except OSError as error:
                problem = f"the existing data cannot be read, and no row was taken: {first_line(error)}"
                raise TFRecordError(problem) from error
            if plan is not None:
                self._appender.widen(plan)
            self._has_failed = True
            self._appender.add(tables, metadata)
            with self._closed_by_final_errors():
                self._appender.stage_full_files()
            if self._is_due():
                self._commit()
            self._has_failed = False

    @public_function
    def commit(
        self, *, custom_metadata: Mapping[str, str] | None = None, write_id: str | None = None
    ) -> Commit | None:
        """Commit the rows since the last commit. After the commit, readers see all of the committed rows.

        Parameters
        ----------
        custom_metadata : mapping of str to str, optional
            Metadata to store in the snapshot, such as the position in a source up to which all rows are
            committed. Metadata keys of earlier commits are kept, unless they are passed again.
        write_id : str, optional
            An id of the rows since the last commit, as in `to_tfrecord`. If one of the last 1,000 commits has
            the same id, the rows are dropped, because that commit has added them. With ``commit_every``,
            ``write_id`` raises, because `write` may have committed some of the rows.

        Returns
        -------
        Commit or None
            The new version, or the newest known version if there are neither rows nor metadata to commit. If
            an earlier commit has the id ``write_id``, the version of that commit. The result is None if the
            dataset does not exist yet.

        Raises
        ------
        SchemaError
            If another write has changed the columns of the dataset. A SchemaError in `commit` closes the
            `Writer`.
        OSError
            If the rows cannot be stored, for example because the disk is full. After an OSError, call
            `commit` again: no row is lost or added twice. With ``write_id``, `write` raises until `commit`
            succeeds.
        TFRecordError
            If the `Writer` is closed, if the columns are unknown because no rows were written, or if
            ``write_id`` is invalid.

        Examples
        --------
        A program that is killed and run again adds the rows of each day once:

        >>> import dask_tfrecord
        >>> for day in ["2026-05-01", "2026-05-02", "2026-05-02"]:
        ...     with dask_tfrecord.Writer("days", schema={"day": "string"}) as writer:
        ...         writer.write([{"day": day}])
        ...         done = writer.commit(write_id=day)
        >>> done.version, done.rows
        (2, 2)
        """
        with self._used():
            appender = self._appender
            metadata = arguments.metadata(custom_metadata)
            if (write_id := arguments.write_id(write_id)) is not None:
                self._check_write_id(write_id)
                appender.write_id = write_id
                self._has_failed = True  # rows of later calls must not get this id
            appender.metadata |= metadata
            done = self._commit()
            return None if done is None else Commit.of(done)

    @public_function
    def close(self) -> None:
        """Commit the rows since the last commit, and close the `Writer`.

        If the commit fails, the uncommitted rows are dropped.
        """
        if self._is_closed:
            return
        self._check_process()
        with self._lock:
            if self._is_closed:
                return
            try:
                self._commit()
            except BaseException as error:  # drop the rows even after a KeyboardInterrupt
                self._drop(error)
                raise
            self._is_closed = True

    def __enter__(self) -> Self:
        with self._used():
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._process == os.getpid():  # a child leaves the rows to its parent
            with self._lock:
                self._drop(error)

    def __reduce__(self) -> NoReturn:
        raise TFRecordError("a Writer cannot be copied or sent to another process", _ONE_EACH)

    def __del__(self) -> None:
        if not self._is_closed and self._process == os.getpid() and self.uncommitted_rows:
            text = f"{self!r} was not closed, so its rows are lost; use a with block"
            warnings.warn(text, ResourceWarning, stacklevel=1, source=self)

    def __repr__(self) -> str:
        version = "new" if self.version is None else f"version {self.version}"
        return f"Writer({self._root!r}, {version}, {counted(self.uncommitted_rows, 'row')} not committed)"

    # -- Rows ------------------------------------------------------------------------------------------------

    @property
    def _root(self) -> str:
        return self._store.public()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Let one thread at a time use the `Writer`. Raise TFRecordError if the `Writer` cannot be used."""
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise TFRecordError("the Writer is closed", "make another Writer")
            yield

    def _check_process(self) -> None:
        """Raise TFRecordError in a forked process, whose copy of the lock may stay locked forever."""
        if self._process != os.getpid():
            raise TFRecordError("the Writer belongs to the process that made it, not to its forks", _ONE_EACH)

    def _tables(self, rows: Any) -> tuple[WriteRun | None, list[pa.Table]]:
        """Convert rows to tables with the columns of the dataset. The first rows also determine the plan."""
        plan, record_type = self._appender.plan, self._record_type
        rows = [rows] if isinstance(rows, Mapping | bytes) else rows
        if isinstance(rows, str | os.PathLike):
            problem = f"write() takes rows, not {type(rows).__name__}"
            raise TFRecordError(problem, 'pass a table, or a list of dicts such as [{"n": 1}]')
        if isinstance(rows, list | tuple):
            if not rows:
                return plan, []
            if is_records([*rows]):
                record_type = record_type or "bytes"
            rows = self._table_of([*rows])
        if hasattr(type(rows), "__dask_graph__"):
            call = Call("to_tfrecord", self._root, {"append": True}, "to write it")
            raise TFRecordError("a Dask collection is not written without Dask", call)
        source = open_source(rows)
        levels = source.levels(None)
        if plan is None:
            plan = self._planned_for(source, record_type)
        elif any(map(may_widen, plan.schema.arrow.types)):
            existing = Existing.of(plan.columns, adds_columns=False)
            columns = source.plan(
                self._given, plan.schema.record_type, [*plan.partition_on], levels, existing
            )
            plan = replace(plan, schema=append_schema.with_wider_types(plan.schema, columns))
        columns = plan.columns
        found = [*source.columns, *(column for column, _ in levels)]
        with located(path=self._root):
            check_names(found, may_be_empty=True)
            fixed = {*plan.partition_on, *(column for column, _ in plan.index)}
            filled = [name for name in columns.names if name not in fixed] if self._adds_columns else None
            new = self._new_types(source, columns.names)
            append_schema.check_row_names(found, columns.names, new, filled)
        title = f"{self._root}, {source.kind}"
        present = columns.select(name for name in columns.names if name in {*found})
        is_append = self._appender.plan is not None
        fitted = {*present.names} - {*self._given} if is_append else set()
        with append_schema.fixed_columns(columns, is_append):
            tables = list(source.tables(present, self._options.lossy, None, levels, title, fitted))
        if len(present.names) < len(columns.names):
            tables = [_with_nulls(table, columns.arrow) for table in tables]
        check_values(plan, tables, title)
        if self._options.lossy == "warn":
            rounded = source.rounded(plan.schema, levels)
            requests.warn_of_rounding([name for name in rounded if name not in self._rounded])
            self._rounded.update(rounded)
        return plan, tables

    def _new_types(self, source: Source, known: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the types of the columns of rows that the dataset does not have."""
        new = [name for name in source.columns if name not in known]
        if not new:
            return {}
        with suppress(TFRecordError):  # the type of a column may be unknown
            planned = source.plan(self._given, None, [], source.levels(None))
            return {name: planned.select([name]).arrow.types[0] for name in new}
        return {}

    def _table_of(self, rows: list[Any]) -> pa.Table:
        """Convert a list of dicts, or of whole records, to a table."""
        plan, keys = self._appender.plan, self._keys or []
        if not is_records(rows):
            fields = [] if plan is None else plan.columns.fields
            types = self._given | {one.name: one.type for one in fields if not holds_null(one.type)}
            return table_of(rows, types, f"{self._root}, rows")
        record_type = (self._record_type or "bytes") if plan is None else plan.schema.record_type
        if record_type != "bytes":
            problem = f"bytes are whole records, but the dataset holds {record_type!r} records"
            advice = "pass dicts, whose values are the values of columns, or write to another path"
            raise SchemaError(problem, f'{advice}, with Writer(path, record_type="bytes")')
        names = [*self._given, PAYLOAD.name] if plan is None else plan.schema.names
        name = next(name for name in names if name not in keys)
        return pa.table({name: pa.array(rows, pa.binary())})

    def _planned(self, snapshot: Snapshot) -> WriteRun:
        schema, order, index = snapshot.schema, snapshot.columns.names, snapshot.index or ()
        known = {*snapshot.partition_on, *(item.name for item in schema.fields if item.form is not None)}
        given = [item for item in self._given.items() if item[0] not in known]
        if self._adds_columns and given:
            columns = Schema.from_arrow(pa.schema(given), schema.record_type)
            schema = append_schema.merged_schema(
                snapshot, columns, snapshot.partitioning, index, adds_columns=True
            )
            order += [name for name in schema.names if name not in order]
        return self._run(schema, snapshot, partitioning=snapshot.partitioning, order=(*order,), index=index)

    def _planned_for(self, source: Source, record_type: RecordType | None) -> WriteRun:
        """Plan how to append rows to a directory without a snapshot. The first rows determine the columns."""
        keys, levels = self._keys or [], source.levels(None)
        given = self._given if self._schema is None else self._schema
        planned = source.plan(given, record_type, keys, levels)
        planned = requests.with_feature_lists(planned, self._rare)
        records = planned.select(name for name in planned.names if name not in keys)
        partitioning = planned.select(keys).fields
        return self._run(records, None, partitioning=partitioning, order=(*planned.names,), index=levels)

    def _run(self, schema: Schema, found: Snapshot | None, **how: Any) -> WriteRun:
        keys = [item.name for item in how["partitioning"]]
        how["columnar"] = requests.plan_columnar(self._columnar, schema, keys, found)
        return WriteRun(self._store, schema, options=self._options, **how)

    # -- Commits ---------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        appender = self._appender
        if self._limit is None or not (appender.rows or appender.metadata):
            return False
        kind, limit = self._limit
        if kind == "seconds":
            return monotonic() - self._start >= limit
        return (appender.rows if kind == "rows" else appender.bytes) >= limit

    def _check_write_id(self, write_id: str) -> None:
        if self._limit is not None:
            problem = "write() may already have committed some of the rows, because of commit_every="
            raise TFRecordError(problem, "make a Writer without commit_every= to pass write_id=")
        if self._appender.write_id not in (None, write_id):
            problem = f"the commit with write_id={self._appender.write_id!r} has failed, and its rows wait"
            raise TFRecordError(problem, "call commit() until it succeeds")

    def _commit(self) -> Snapshot | None:
        appender = self._appender
        if appender.metadata and appender.plan is None:
            appender.plan = self._planned_without_rows()
        with self._closed_by_final_errors():
            done = appender.commit()
        self._has_failed = False
        self._start = monotonic()
        return done

    @contextmanager
    def _closed_by_final_errors(self) -> Iterator[None]:
        """Close the `Writer` after an error that another attempt would raise again."""
        try:
            yield
        except TFRecordError as error:
            self._drop(error)
            raise

    def _planned_without_rows(self) -> WriteRun:
        if not self._given:
            problem = "a new dataset cannot be made of metadata alone, because its columns are unknown"
            raise TFRecordError(problem, "write rows first, or pass schema= with the types of all columns")
        no_rows = pa.schema([*self._given.items()]).empty_table()
        return self._planned_for(open_source(no_rows), self._record_type)

    def _drop(self, error: BaseException) -> None:
        """Drop the uncommitted rows, close the `Writer`, and add a note with the row counts to the error."""
        if self._is_closed:
            return
        self._is_closed = True
        appender = self._appender
        appender.drop()
        note = (
            f"Writer of {self._root}: committed {counted(appender.committed_rows, 'row')} in "
            f"{counted(appender.commits, 'commit')}, dropped {counted(appender.rows, 'row')}; the dataset "
        )
        found = self._snapshot
        note += f"has version {found.number}, {found.custom_metadata}" if found else "does not exist yet"
        logger.info("%s: %s", note, hide_secrets(repr(error), self._store))
        error.add_note(note)


def _with_nulls(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Add the columns that a table lacks, with nulls."""
    columns = [
        table[item.name] if item.name in table.column_names else pa.nulls(len(table), item.type)
        for item in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
