"""Open a path for a single read, as in `read_tfrecord`, or for all reads of a `Dataset`."""

import os
from collections.abc import Sequence
from typing import Any

from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.listing import as_paths, with_trailing_slash
from dask_tfrecord.dataset.read import discovery
from dask_tfrecord.dataset.read import plan as read_plan
from dask_tfrecord.dataset.read.columns import ReadRequest
from dask_tfrecord.dataset.read.plan import ReadPlan
from dask_tfrecord.dataset.write.destination import destination, refuse_inside_dataset, refuse_other_files
from dask_tfrecord.errors import SKIP_DAMAGE, Call, CorruptRecordError, FileRemovedError, TFRecordError
from dask_tfrecord.files.damage import check_quarantine_path
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.arguments import ReadKeywords
from dask_tfrecord.keywords.requests import existing_names, read_request
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.redaction import without_credentials
from dask_tfrecord.storage.store import Store

# The keywords that configure access to a store, and do not change which rows are read.
_STORE_KEYWORDS = frozenset({"storage_options", "filesystem"})


class OpenedPath:
    """Store a path and its read keywords. All reads use the files that the first read has found."""

    _path: Any
    _names: list[str] | None
    _keywords: ReadKeywords
    _found: ReadPlan | None

    def __init__(self, path: Any, columns: Any, keywords: ReadKeywords) -> None:
        self._set(path, columns, keywords)

    def _set(self, path: Any, columns: Any, keywords: ReadKeywords, given: ReadPlan | None = None) -> None:
        names = None if columns is None else arguments.names("columns", columns)
        # One assignment replaces all attributes, and with them the values that were cached for another
        # version of the dataset. Another thread sees either all old values or all new values.
        self.__dict__ = {"_path": path, "_names": names, "_keywords": keywords, "_found": given}

    @property
    def _root(self) -> Any:
        """The path of the dataset. Error messages name this path unless it is a list."""
        return self._path

    @property
    def chosen_version(self) -> int | None:
        """The version that the caller passed, or None for the newest version."""
        return self._keywords.get("version")

    def _opened(self, request: ReadRequest | None = None) -> ReadPlan:
        """Return the unfiltered plan in which each file is one partition."""
        state = vars(self)  # a commit of another thread may replace the dict
        if state["_found"] is None:
            request = request or read_request(self._names, **self._keywords)
            path = self._path if isinstance(self._path, str | os.PathLike) else as_paths(self._path)
            try:
                opened = discovery.find(path, request, compute_each)
            except CorruptRecordError as error:
                raise _with_verify(error, self._path) from None
            quarantine = request.options.damage.quarantine
            if quarantine is not None:
                check_quarantine_path(quarantine, opened.store)
                refuse_other_files(quarantine)
            state["_found"] = opened
        plan: ReadPlan = state["_found"]
        return plan

    def plan(self, **how: Any) -> ReadPlan:
        """Plan a read of the opened path. ``how`` contains keywords that divide the rows into partitions."""
        request = read_request(self._names, **{**self._keywords, **how})
        is_new = vars(self)["_found"] is None
        try:
            plan = read_plan.plan(self._opened(request), request, compute_each)
        except FileRemovedError:
            if not is_new:
                raise
            vars(self)["_found"] = None  # an overwrite has removed the version that was just opened
            plan = read_plan.plan(self._opened(request), request, compute_each)
        return plan.with_origin_columns()

    def columns_of(self, plan: ReadPlan, columns: str | Sequence[str] | None = None) -> Schema:
        """Return the schema of ``columns`` in the given order. By default, use the columns that were
        requested when the path was opened.
        """
        if (names := self._names if columns is None else columns) is None:
            return plan.schema
        return plan.schema.select(existing_names(plan.schema, "columns", names))

    def planned(
        self, columns: str | Sequence[str] | None, blocksize: int | None, read: ReadKeywords
    ) -> tuple[ReadPlan, Schema]:
        """Return the plan and the columns of a read, as `open_columns` does."""
        if any(value is not None for value in read.values()):
            keywords: ReadKeywords = {**self._keywords, **read}
            return open_columns(self._path, self._names if columns is None else columns, blocksize, keywords)
        plan = self.plan(blocksize=blocksize)
        return plan, self.columns_of(plan, columns)

    def _whole(self, function: str, *accepted: str) -> dict[str, Any]:
        """Return the keywords with which the path was opened, for a method that processes all rows of the
        newest version.

        Raise if a keyword restricts or changes the rows, unless ``accepted`` contains it.
        """
        keywords = {name: value for name, value in self._keywords.items() if value is not None}
        for name in (*(["columns"] if self._names is not None else []), *keywords):
            if name not in (*_STORE_KEYWORDS, *accepted):
                problem = f"{function}() treats all rows of the newest version, but {name}= was passed"
                raise TFRecordError(problem, f"call open_dataset without {name}=", function="")
        return keywords

    def _store(self, function: str) -> Store:
        """Open the directory of the dataset for a method that processes all rows of the newest version."""
        self._whole(function)
        store = self._directory(function)
        refuse_inside_dataset(store, function)
        return store

    def _directory(self, function: str, *, writes: bool = True) -> Store:
        """Open the one directory that a method needs. If ``writes`` is False, the method only reads."""
        if not isinstance(self._path, str | os.PathLike):
            problem = f"{function}() needs the directory of one dataset, not a list of paths"
            raise TFRecordError(problem, "open the directory alone")
        options = (self._keywords.get("storage_options"), self._keywords.get("filesystem"))
        opened = destination(self._path, *options) if writes else Store.at(self._path, *options)
        return with_trailing_slash(opened)


def _with_verify(error: CorruptRecordError, path: Any) -> CorruptRecordError:
    """If a record is damaged, suggest `verify` in the error, because there may be more damage."""
    if SKIP_DAMAGE not in error.remedies or not isinstance(path, str | os.PathLike):
        return error
    call = Call("verify", without_credentials(os.fspath(path)), {}, "to report all damage")
    return error.replaced(calls=(*error.calls, call))


def open_columns(
    path: Any, columns: str | Sequence[str] | None, blocksize: int | None, read: ReadKeywords
) -> tuple[ReadPlan, Schema]:
    """Open a path or a `Dataset`. Return the read plan, and the requested columns in the requested order.

    If ``blocksize`` is None, each file is one partition.
    """
    if isinstance(path, OpenedPath):
        return path.planned(columns, blocksize, read)
    return OpenedPath(path, columns, read).planned(None, blocksize, {})
