"""The destination of `convert`, in any format: check it, describe what a write would do, and write."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import dask.dataframe as dd

import dask_tfrecord
from dask_tfrecord.cli.formats.names import Format
from dask_tfrecord.cli.formats.parts import PartsWrite, plan_parts, write_parts
from dask_tfrecord.cli.formats.sources import Source
from dask_tfrecord.dataset.snapshot.model import file_table, find_snapshot
from dask_tfrecord.dataset.write.run import Mode, WriteRun
from dask_tfrecord.errors import DestinationError
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.schema.model import Schema


@dataclass(frozen=True)
class Target:
    """Where and how rows are written: the arguments of `convert`."""

    path: str
    format: Format
    append: bool
    overwrite: bool
    overwrite_partitions: bool
    partition_on: list[str] | None
    colocate: bool
    compression: str | None
    shuffle: int | None
    npartitions: int | None
    lossy: str | None
    storage_options: dict[str, Any] | None

    @property
    def mode(self) -> Mode:
        """What happens to existing data."""
        modes: dict[Mode, bool] = {
            "append": self.append,
            "overwrite": self.overwrite,
            "partitions": self.overwrite_partitions,
        }
        chosen = [mode for mode, is_chosen in modes.items() if is_chosen]
        if len(chosen) > 1:
            raise click.UsageError("--append, --overwrite and --overwrite-partitions exclude one another")
        return chosen[0] if chosen else "create"


@dataclass(frozen=True)
class PlannedWrite:
    """A write that was checked, and has not begun.

    Attributes
    ----------
    run : callable
        Writes, and returns the number of files, of rows and of bytes.
    partitions : int
        The number of partitions that will be written.
    describe : callable
        Returns what the write would do.
    """

    run: Callable[[], tuple[int, int, int]]
    partitions: int
    describe: Callable[[], dict[str, Any]]


def plan_write(source: Source, target: Target) -> PlannedWrite:
    """Check the destination and plan the columns. Nothing is written."""
    partitions = target.npartitions or source.ddf.npartitions
    if target.format == "tfrecord":
        return PlannedWrite(
            lambda: _write_tfrecord(source, target),
            partitions,
            lambda: _describe(source, target, partitions, *_plan_tfrecord(source.ddf, target)),
        )
    _check_options(target)
    ddf = source.ddf
    if partitions != ddf.npartitions:
        ddf = ddf.clear_divisions().repartition(npartitions=partitions)
    plan = plan_parts(
        ddf,
        target.path,
        target.format,
        "append" if target.append else "overwrite" if target.mode == "overwrite" else "create",
        compression=target.compression,
        partition_on=target.partition_on or [],
        storage_options=target.storage_options,
    )
    _check_not_read(source, plan)
    replaced = [(file.path, file.size or 0) for file in plan.replaced]
    return PlannedWrite(
        lambda: _totals(write_parts(ddf, plan)),
        partitions,
        lambda: _describe(source, target, partitions, plan.schema, replaced),
    )


def _check_options(target: Target) -> None:
    for option in ("overwrite_partitions", "colocate", "shuffle"):
        if getattr(target, option) not in (None, False):
            name = option.replace("_", "-")
            raise click.UsageError(
                f"--{name} is for TFRecord, and DST is {target.format}; pass --to tfrecord"
            )


def _check_not_read(source: Source, plan: PartsWrite) -> None:
    if any(file.path in source.places for file in plan.replaced):
        root = plan.store.public(plan.store.root)
        raise DestinationError(
            "an overwrite would remove the files of SRC", path=root, advice="choose another directory"
        )


def _keywords(target: Target) -> dict[str, Any]:
    """The keywords of `to_tfrecord`. Dask's configuration has the defaults of the options."""
    overwrite = {"overwrite": True, "partitions": "partitions"}.get(target.mode, False)
    return {
        "append": target.append,
        "overwrite": overwrite,
        "partition_on": target.partition_on,
        "colocate": target.colocate,
        "compression": None if target.compression == "none" else target.compression or "default",
        "shuffle": target.shuffle,
        "npartitions": target.npartitions,
        "lossy": target.lossy or "default",
        "storage_options": target.storage_options,
    }


def _write_tfrecord(source: Source, target: Target) -> tuple[int, int, int]:
    snapshot = dask_tfrecord.to_tfrecord(source.ddf, target.path, **_keywords(target))
    return _totals(file_table(snapshot).of_run(snapshot.run))


def _plan_tfrecord(ddf: dd.DataFrame, target: Target) -> tuple[Schema, list[tuple[str, int]]]:
    """The columns of a write, and the files with their sizes that it would replace."""
    lazy = dask_tfrecord.to_tfrecord(ddf, target.path, compute=False, **_keywords(target))
    run: WriteRun = lazy.expr.operand("run")
    if run.mode != "overwrite":
        return run.columns, []
    snapshot = find_snapshot(run.store)
    listed = {file.path: file.bytes for file in snapshot.files} if snapshot is not None else {}
    unlisted = {path: run.store.fs.size(run.store.join(path)) or 0 for path in run.replaceable}
    return run.columns, sorted({**listed, **unlisted}.items())


def _totals(files: Any) -> tuple[int, int, int]:
    entries: list[FileEntry] = list(files)
    return len(entries), sum(file.records for file in entries), sum(file.bytes for file in entries)


def _describe(
    source: Source, target: Target, partitions: int, schema: Schema, replaced: list[tuple[str, int]]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "source": source.format,
        "source_files": source.files,
        "source_bytes": source.bytes,
        "target": target.format,
        "mode": target.mode,
        "partitions": partitions,
        "partition_on": list(target.partition_on or []),
        "schema": {item.name: str(item.type) for item in schema.fields},
        "replaced_files": len(replaced),
        "replaced_bytes": sum(size for _, size in replaced),
    }
    if target.mode == "partitions":
        found["replaced_files"] = "those in the directories that are written"
        del found["replaced_bytes"]
    return found
