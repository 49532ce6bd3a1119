"""Define the methods of `Dataset` that change versions and files, and clean up."""

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import pyarrow.compute as pc

from dask_tfrecord.collection.opened_path import OpenedPath
from dask_tfrecord.collection.scheduler import compute_each
from dask_tfrecord.dataset.names import METADATA_DIRECTORY
from dask_tfrecord.dataset.rewrite import versions as rewrite_versions
from dask_tfrecord.dataset.rewrite.add_snapshot import add_snapshot
from dask_tfrecord.dataset.rewrite.compact import compact_files
from dask_tfrecord.dataset.rewrite.delete import delete_rows
from dask_tfrecord.dataset.snapshot.model import Commit, Snapshot
from dask_tfrecord.dataset.write.destination import refuse_inside_dataset
from dask_tfrecord.dataset.write.orphans import time_of_store
from dask_tfrecord.errors import DestinationError, TFRecordError
from dask_tfrecord.keywords import arguments
from dask_tfrecord.keywords.public_functions import public_function
from dask_tfrecord.keywords.requests import is_auto, keeps_versions, plan_columnar, read_request
from dask_tfrecord.storage.uploading import check_bucket

logger = logging.getLogger(__name__)


class Maintenance(OpenedPath):
    """Change the versions and files of a dataset. `Dataset` inherits these methods.

    After a method has committed a version, the `Dataset` reads the new version.
    """

    @public_function
    def compact(
        self,
        *,
        target_bytes: int | str | None = "128 MiB",
        filters: Sequence[Any] | pc.Expression | None = None,
        keep_versions: bool | None = None,
    ) -> Commit:
        """Replace the small files of a dataset by larger ones, with the same rows in the same order.

        The stored bytes are copied, without decompressing or decoding them, and the checksum of each file is
        verified. Only neighbours in the same directory, with the same partition values and codec, are joined.
        Files of at least half of ``target_bytes`` stay unchanged. Files of other tools are decompressed and
        recompressed if their stored bytes cannot be joined.

        Tasks on the active Dask scheduler write the new files in parallel. Rows that other writes append
        meanwhile are kept. Files that other writes replace are skipped, and the rest is committed.

        Parameters
        ----------
        target_bytes : int or str, default "128 MiB"
            The largest stored size of a new file, in bytes or as text with a unit. With None, there is no
            limit.
        filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression, optional
            Filters that select the files to compact, as in `read_tfrecord`. A file stays unchanged if
            partition values or statistics show that none of its rows pass. By default, all files are
            compacted.
        keep_versions : bool, optional
            If True, keep the earlier versions, so that they can still be read and restored. The replaced
            files move to the hidden directory ``_tfrecord/kept`` until `expire` removes them. If False,
            remove these files and the earlier versions. The default is ``dask-tfrecord.keep-versions`` in
            Dask's configuration, or True if that is not set.

        Returns
        -------
        Commit
            The newest version. ``details`` counts the replaced files (``replaced_files``), the new files
            (``written_files``), and the files that were skipped because other writes had replaced them
            (``skipped_files``).

        Raises
        ------
        FileNotFoundError
            If the directory has no snapshot. If another tool wrote the files, call `add_snapshot` first.
        FileChangedError
            If the content of a file differs from the snapshot.
        CorruptRecordError
            If a file of the dataset is damaged or missing.
        SchemaError
            If the filters cannot be applied to the columns.

        See Also
        --------
        Dataset.delete : Remove the rows that pass filters.
        Dataset.add_snapshot : Store a snapshot of files that another tool wrote.

        Examples
        --------
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"]}, npartitions=3)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> people = dask_tfrecord.open_dataset("people")
        >>> people.compact().details
        {'replaced_files': 3, 'written_files': 1, 'skipped_files': 0}
        >>> people.version, len(people.files)
        (2, 1)
        """
        size = arguments.byte_count("target_bytes", target_bytes) or sys.maxsize
        store = self._store("compact")
        root = store.public()
        keeps = keeps_versions(keep_versions, default=True)
        newest, counts = compact_files(store, size, filters, compute_each, keep_versions=keeps)
        done = "%s: version %d: compacted %d files to %d, skipped %d files"
        logger.info(done, root, newest.number, *counts.values())
        return self._committed(newest, **counts)

    @public_function
    def delete(
        self,
        filters: Sequence[Any] | pc.Expression,
        *,
        dry_run: bool = False,
        keep_versions: bool | None = None,
    ) -> Commit:
        """Delete exactly the rows of a dataset that pass filters.

        A single commit deletes all these rows. If the process is killed before the commit, the dataset stays
        unchanged.

        Files are not opened if partition values or statistics show that all or none of their rows pass. Of
        the others, those that lose rows are written again, and blocks that keep all rows are copied
        unchanged. Tasks on the active Dask scheduler read and write the files in parallel.

        Rows that other writes append meanwhile are kept, even if they pass the filters. If another write
        replaces files that were read, the new files are processed as well.

        A category that occurs only in deleted rows is removed from its column. To find out, the categorical
        columns of the dropped and rewritten files are read, and then those of other files, until each
        category of the deleted rows is found in a remaining row.

        Parameters
        ----------
        filters : list of tuple, list of list of tuple, or pyarrow.compute.Expression
            Filters that select the rows to delete: those that ``read_tfrecord(path, filters=filters)``
            returns. A row with a null in a compared column is kept, unless the filters select nulls. The
            snapshot does not store the filters.
        dry_run : bool, default False
            If True, change nothing, and return what the call would delete.
        keep_versions : bool, optional
            If True, keep the earlier versions, so that they can still be read and restored. The replaced
            files move to the hidden directory ``_tfrecord/kept`` until `expire` removes them. If False,
            remove these files and the earlier versions. The default is ``dask-tfrecord.keep-versions`` in
            Dask's configuration, or True if that is not set.

        Returns
        -------
        Commit
            The newest version. ``details`` counts the deleted rows (``deleted_rows``), the files without
            remaining rows (``dropped_files``), and the files that were written again (``rewritten_files``).
            ``replaced_bytes`` is the stored size of the dropped and rewritten files before the deletion. If
            no row passes the filters, nothing is committed.

        Raises
        ------
        FileNotFoundError
            If the directory has no snapshot. If another tool wrote the files, call `add_snapshot` first.
        FileChangedError
            If the content of a file differs from the snapshot.
        CorruptRecordError
            If a file of the dataset is damaged or missing.
        SchemaError
            If the filters cannot be applied to the columns.
        ConcurrentWriteError
            If other writes keep replacing files while `delete` runs.

        See Also
        --------
        Dataset.compact : Replace small files by larger files.
        Dataset.restore : Make an older version the newest version.

        Examples
        --------
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan", "Grace"], "born": [1815, 1912, 1906]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> people = dask_tfrecord.open_dataset("people")
        >>> people.delete([("born", "<", 1900)]).details["deleted_rows"]
        1
        >>> people.to_table()["name"].to_pylist()
        ['Alan', 'Grace']
        """
        dry_run = arguments.flag("dry_run", dry_run)
        store = self._store("delete")
        root = store.public()
        keeps = keeps_versions(keep_versions, default=True)
        newest, counts = delete_rows(store, filters, compute_each, dry_run=dry_run, keep_versions=keeps)
        action = "would delete" if dry_run else f"version {newest.number}: deleted"
        rows, dropped, rewritten, _ = counts.values()
        done = "%s: %s %d rows, dropped %d and rewrote %d files"
        logger.info(done, root, action, rows, dropped, rewritten)
        return self._committed(newest, **counts)

    @public_function
    def restore(self, version: int) -> Commit:
        """Make an older version of a dataset the newest version.

        The new version has the rows, the columns and the ``custom_metadata`` of the older one. No data file
        is read or written. All newer versions are kept, so another `restore` can undo this one.

        Parameters
        ----------
        version : int
            The version to restore, which `history` lists. If it is the newest, nothing is committed.

        Returns
        -------
        Commit
            The newest version. ``details`` contains the restored version (``restored_version``).

        Raises
        ------
        FileNotFoundError
            If the directory has no snapshot, or if the dataset does not have this version. The error then
            lists its versions.
        CorruptRecordError
            If a file that the newest version does not list is missing, or has a different size.
        FileChangedError
            If a different file now exists at the path of a file of the version, or if the version expires
            during the call.
        ConcurrentWriteError
            If another write changes the rows of the dataset at the same time.
        DestinationError
            If ``path`` lies inside another dataset.

        See Also
        --------
        Dataset.expire : Expire old versions.
        Dataset.history : List the versions of a dataset.

        Examples
        --------
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
        >>> first = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> second = dask_tfrecord.to_tfrecord(ddf, "people", append=True)
        >>> people = dask_tfrecord.open_dataset("people")
        >>> people.restore(1).rows
        2
        >>> people.history()[["version", "mode", "details", "rows"]]
           version     mode    details  rows
        0        1   create       <NA>     2
        1        2   append       <NA>     4
        2        3  restore  version 1     2
        """
        number = arguments.number("version", version)
        store = self._store("restore")
        newest = rewrite_versions.restore_version(store, number)
        logger.info("%s: version %d: restored version %d", store.public(), newest.number, number)
        return self._committed(newest, restored_version=number)

    @public_function
    def expire(
        self,
        *,
        versions: int | None = None,
        older_than: str | timedelta | None = None,
        grace: str | timedelta = "1 hour",
    ) -> Commit:
        """Expire old versions of a dataset, and remove the files that only expired versions need.

        A version expires unless it is one of the newest ``versions`` versions or is younger than
        ``older_than``. The newest version never expires. An expired version can no longer be opened or
        restored.

        Its files stay for the grace period, so that running reads can finish. The first call of `expire` or
        `cleanup` after this period removes them.

        On a full disk, `expire` first removes the files that earlier calls have left. With ``grace="0 s"``,
        it then also removes the files of the versions that expire, before it commits.

        Parameters
        ----------
        versions : int, optional
            How many versions to keep, not counting those that `expire` itself creates. By default, only the
            age decides.
        older_than : str or timedelta, optional
            The age at which a version expires, such as ``"7 days"``, by the clock of the store. By default,
            only the number of versions decides.
        grace : str or timedelta, default "1 hour"
            How long to keep the files of an expired version, for running reads. Pass more time than the
            longest read of the dataset takes.

        Returns
        -------
        Commit
            The newest version. ``details`` contains the versions that expired (``expired_versions``), the
            number of data files that were removed (``removed_files``), and their stored size
            (``removed_bytes``). If no version expires, nothing is committed.

        Raises
        ------
        FileNotFoundError
            If the directory has no snapshot.
        OSError
            If files cannot be removed, or if a full disk has no space for the new version and ``grace`` is
            not zero. Versions may have expired nevertheless. Call `expire` again to remove their files.
        TFRecordError
            If neither ``versions`` nor ``older_than`` is passed, or if a snapshot is damaged.
        DestinationError
            If ``path`` lies inside another dataset.

        See Also
        --------
        Dataset.restore : Make an older version the newest version.
        Dataset.cleanup : Remove the files of interrupted writes.

        Examples
        --------
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
        >>> for _ in range(4):
        ...     _ = dask_tfrecord.to_tfrecord(ddf, "people", append=True)
        >>> people = dask_tfrecord.open_dataset("people")
        >>> people.expire(versions=2).details["expired_versions"]
        [1, 2]
        >>> people.history()["version"].tolist()
        [3, 4, 5]
        """
        count = arguments.count("versions", versions)
        age = None if older_than is None else arguments.duration("older_than", older_than)
        wait = arguments.duration("grace", grace)
        if count is None and age is None:
            problem = "neither versions= nor older_than= says which versions expire"
            advice = 'pass versions=10 to keep the newest 10, or older_than="7 days" to remove older versions'
            raise TFRecordError(problem, advice)
        store = self._store("expire")
        newest, details = rewrite_versions.expire_versions(store, count, age, wait)
        expired, *removed = details.values()
        done = "%s: version %d: expired %d versions, removed %d files, %d bytes"
        logger.info(done, store.public(), newest.number, len(expired), *removed)
        return self._committed(newest, **details)

    @public_function
    def repair(self, *, dry_run: bool = False) -> Commit:
        """Remove files that no longer exist from the file list of a dataset.

        Reads raise if something other than this library, such as ``rm`` or a lifecycle rule of a store, has
        removed files of the dataset. `repair` lists the files once, and commits a version without the missing
        files and their rows. If no file is missing, nothing is committed.

        Files that exist are neither opened nor changed. The earlier versions are kept, and so are rows that
        other writes append meanwhile. If the missing files are put back, `restore` makes their rows part of
        the dataset again.

        Parameters
        ----------
        dry_run : bool, default False
            If True, change nothing, and return the files that are missing.

        Returns
        -------
        Commit
            The newest version. ``details["lost_files"]`` maps the path of each missing file to the number of
            lost rows.

        Raises
        ------
        FileNotFoundError
            If the directory has no snapshot.
        ConcurrentWriteError
            If another process removes the dataset while `repair` runs.

        See Also
        --------
        Dataset.delete : Delete the rows that pass filters.
        Dataset.restore : Make an older version the newest version.
        Dataset.verify : Report missing, damaged and changed files.

        Examples
        --------
        A partition directory is removed by hand:

        >>> import shutil
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan"], "field": ["logic", "codes"]}, npartitions=1)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people", partition_on="field")
        >>> shutil.rmtree("people/field=codes")
        >>> people = dask_tfrecord.open_dataset("people")
        >>> sum(people.repair().details["lost_files"].values())
        1
        >>> people.to_table()["name"].to_pylist()
        ['Ada']
        """
        dry_run = arguments.flag("dry_run", dry_run)
        store = self._store("repair")
        newest, lost = rewrite_versions.drop_missing_files(store, dry_run=dry_run)
        if lost:
            action = "repair would drop" if dry_run else f"version {newest.number}: repair dropped"
            files, rows = len(lost), sum(lost.values())
            root = store.public()
            logger.warning("%s: %s %d missing files with %d rows", root, action, files, rows)
        return self._committed(newest, lost_files=lost)

    @public_function
    def cleanup(
        self,
        *,
        older_than: str | timedelta = "1 day",
        dry_run: bool = False,
    ) -> list[str]:
        """Remove the files of interrupted writes, such as a write whose client process was killed.

        These are staged files, data files and column files that no snapshot lists. Files that a committed
        overwrite should have removed go as well, and files of versions that expired more than ``older_than``
        ago. On S3, incomplete multipart uploads are aborted. The files of other tools and of all other
        versions are kept.

        Parameters
        ----------
        older_than : str or timedelta, default "1 day"
            How old the newest file of a write must be, by the clock of the store, before its files are
            removed, because the write may still be running. Pass more time than the longest task of a running
            write, and the longest read of an expired version, take.
        dry_run : bool, default False
            If True, remove nothing, and return the files that would be removed.

        Returns
        -------
        list of str
            The removed files, as paths relative to the directory, apart from those that a committed overwrite
            should have removed. The list is empty if the directory does not exist.

        Raises
        ------
        DestinationError
            If the path is a file, or if it lies inside another dataset.

        See Also
        --------
        exists : Find out whether a directory contains data.

        Examples
        --------
        After a finished write, `cleanup` finds no file to remove:

        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> dask_tfrecord.open_dataset("people").cleanup(older_than="6 hours")
        []
        """
        store = self._directory("cleanup")
        check_bucket(store)
        if store.fs.isfile(store.root):
            raise DestinationError("is a file, not a directory", "pass the dataset's directory")
        dry_run = arguments.flag("dry_run", dry_run)
        refuse_inside_dataset(store, "cleanup")
        age = arguments.duration("older_than", older_than)
        try:
            now = time_of_store(store) if store.names(METADATA_DIRECTORY) else datetime.now(UTC)
        except PermissionError:
            if not dry_run:
                raise
            now = datetime.now(UTC)
        removed = rewrite_versions.clean_up(store, now - age, dry_run=dry_run)
        action = "would remove" if dry_run else "removed"
        logger.info("%s: cleanup %s %d files", store.public(), action, len(removed))
        return removed

    @public_function
    def add_snapshot(self, *, columnar: str | Sequence[str] | Literal[False] | None = "auto") -> Commit:
        """Read all files of a directory that another tool wrote, and store a snapshot of their content.

        The directory is then a dataset, as if `to_tfrecord` had written it. It opens without a read of any
        data file, and its number of rows is known. Reads skip files in which no row passes the filters, split
        large uncompressed files without searching for records, and load rows by index (`take`) without
        counting them first. The data files do not change.

        Call `add_snapshot` again after other tools have added, removed or rewritten files. It reads all files
        again, or if `to_tfrecord` has appended to the dataset, only the rewritten files of other tools; it
        then keeps the columns and types. A copy of a dataset needs no new snapshot, but if the copy changed
        the modification times of other tools' files, this call compares their checksums, so that later reads
        need not.

        By default, the small columns of large files are copied while they are read. Several tasks share an
        uncompressed file of more than 64 MiB, so it is read a second time if it may have small columns.

        Parameters
        ----------
        columnar : {"auto", "scalars", None, False} or list of str, default "auto"
            The columns that are also stored in Parquet files below ``_tfrecord/``, as in `to_tfrecord`. With
            "auto", the setting of the dataset stays the same: files that are read get their small columns, or
            with a list or "scalars" as the setting, missing, outdated and incomplete Parquet files are
            written. With a list or "scalars", all Parquet files are written again from the records, even if
            the snapshot is up to date. With None or False, none is written.

        Returns
        -------
        Commit
            The version that `add_snapshot` has stored.

        Raises
        ------
        FileNotFoundError
            If the directory contains no files to read.
        DestinationError
            If the path is not a directory, already has a snapshot that is up to date, or lies inside, or
            contains, another dataset.
        CorruptRecordError
            If a record is damaged, or if `to_tfrecord` has written some of the files, and a file is missing
            or has a different size. `verify` reports all damage, and `repair` drops missing files.
        SchemaError
            If a value in a record does not fit its column. `verify` reports all such values.

        See Also
        --------
        Dataset.verify : Report damaged files, and files that differ from the snapshot or the columns.
        Dataset.take : Load rows by index.

        Examples
        --------
        Store a snapshot of a directory that another tool wrote:

        >>> import shutil
        >>> import dask_tfrecord
        >>> from dask import dataframe as dd
        >>> ddf = dd.from_dict({"name": ["Ada", "Alan"]}, npartitions=2)
        >>> _ = dask_tfrecord.to_tfrecord(ddf, "people")
        >>> ignored = shutil.ignore_patterns("_*")
        >>> _ = shutil.copytree("people", "foreign", ignore=ignored, copy_function=shutil.copy)
        >>> foreign = dask_tfrecord.open_dataset("foreign")
        >>> foreign.num_rows is None
        True
        >>> foreign.add_snapshot().rows
        2
        >>> foreign.num_rows
        2
        """
        read = self._whole("add_snapshot", "schema", "hive", "record_type", "split")
        store = self._directory("add_snapshot")
        rare = {"infer": "all", "max_features": None}
        read |= {"use_snapshot": False, "blocksize": None, "read_options": rare}
        done = add_snapshot(
            self._path,
            store,
            read_request(**read),
            partial(plan_columnar, columnar),
            compute_each,
            sets_columnar=not is_auto(columnar),
        )
        return self._committed(done)

    def _committed(self, snapshot: Snapshot, **details: Any) -> Commit:
        """Return a `Commit` for a committed version, and let the next use of the `Dataset` open the newest
        version.
        """
        self._set(self._path, self._names, self._keywords)
        return Commit.of(snapshot, **details)
