"""Implement the commands that list the versions of a dataset, or commit a version without writing new rows:
`history`, `repair`, `compact`, `delete`, `restore` and `expire`.
"""

import sys
from typing import Any

import click
import dask
import pyarrow as pa

import dask_tfrecord
from dask_tfrecord import Deleted, Snapshot
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.compute import computing
from dask_tfrecord.cli.show import print_versions


@options.command("history", options.PATH, *options.of(Snapshot.history), options.JSON)
def history_command(path: str, as_json: bool, **how: Any) -> None:
    """The option --version of other commands reads one of these versions."""
    history = pa.Table.from_pandas(Snapshot.history(path, **how), preserve_index=False).to_pylist()
    if as_json:
        output.print_json(history)
    else:
        print_versions(history)


@options.command("repair", options.PATH, *options.of(dask_tfrecord.repair), options.JSON)
def repair_command(path: str, as_json: bool, dry_run: bool = False, **how: Any) -> None:
    """If files were removed by other means than this library, reads raise until the files are put back, or
    until the command has committed a version without the files.
    """
    snapshot, lost = dask_tfrecord.repair(path, dry_run=dry_run, **how)
    action = "would be dropped" if dry_run else f"dropped in version {snapshot.number}"
    lines = [f"{file}: {rows:,} rows" for file, rows in lost.items()]
    total = f"{len(lost):,} missing files with {sum(lost.values()):,} rows {action}"
    lines.append(total if lost else "no files are missing")
    result = {"version": snapshot.number, "lost_files": lost, "lost_rows": sum(lost.values())}
    output.print_result({**result, "dry_run": dry_run}, lines, as_json)


@options.command(
    "compact", options.PATH, *options.of(dask_tfrecord.compact), options.JSON, *options.COMPUTING
)
def compact_command(path: str, as_json: bool, **how: Any) -> None:
    """The stored bytes of the files are copied and verified, but not decoded. The rows keep their order. With
    --where, only files that may hold such a row are replaced.
    """
    with computing("Compacting"):
        done = dask_tfrecord.compact(path, **how)
    totals = {
        "version": done.snapshot.number,
        "replaced_files": done.replaced,
        "written_files": done.written,
        "skipped_files": done.skipped,
        "files": len(done.snapshot.file_list),
        "rows": done.snapshot.records,
        "bytes": done.snapshot.bytes,
    }
    output.print_totals(totals, as_json)


@options.command(
    "delete",
    options.PATH,
    *options.of(dask_tfrecord.delete),
    click.Option(["--yes", "-y"], is_flag=True, help="Delete without asking."),
    options.JSON,
    *options.COMPUTING,
)
def delete_command(path: str, yes: bool, as_json: bool, dry_run: bool = False, **how: Any) -> None:
    """Exactly the rows that meet the condition are deleted. The command counts these rows, and asks before it
    deletes them.
    """

    def delete(*, dry_run: bool) -> Deleted:
        with computing("Counting" if dry_run else "Deleting"):
            return dask_tfrecord.delete(path, dry_run=dry_run, **how)

    done = delete(dry_run=dry_run or not yes)
    if done.rows and not (dry_run or yes):
        _confirm(done, how.get("keep_versions", dask.config.get("dask-tfrecord.keep-versions", False)))
        done = delete(dry_run=False)
    result = {
        "version": done.snapshot.number,
        "rows": done.rows,
        "dropped_files": done.dropped,
        "rewritten_files": done.rewritten,
        "bytes": done.bytes,
        "dry_run": dry_run,
    }
    files = f"{done.dropped:,} files dropped and {done.rewritten:,} files rewritten, of {done.bytes:,} bytes"
    line = f"{done.rows:,} rows {'would be deleted' if dry_run else 'deleted'}: {files}"
    output.print_result(result, [line if done.rows else "no row meets the condition"], as_json)


def _confirm(planned: Deleted, keeps_versions: bool) -> None:
    question = (
        f"Delete {planned.rows:,} of {planned.snapshot.records:,} rows? This drops {planned.dropped:,} files "
        f"and rewrites {planned.rewritten:,} files, of {planned.bytes:,} bytes, and "
        f"{'keeps' if keeps_versions else 'removes'} the versions before it"
    )
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("the command asks before it deletes rows; pass --yes to skip this") from None
    if not agreed:
        raise click.Abort


@options.command(
    "restore",
    options.PATH,
    click.Argument(["version"], type=click.IntRange(1)),
    *options.of(dask_tfrecord.restore, "storage_options"),
    options.JSON,
)
def restore_command(path: str, version: int, as_json: bool, **how: Any) -> None:
    """The command `history` lists the versions. No data file is read or written. The versions in between are
    kept, so another restore undoes this one.
    """
    snapshot = dask_tfrecord.restore(path, version, **how)
    totals = {
        "version": snapshot.number,
        "restored_version": version,
        "files": len(snapshot.file_list),
        "rows": snapshot.records,
        "bytes": snapshot.bytes,
    }
    output.print_totals(totals, as_json)


@options.command("expire", options.PATH, *options.of(dask_tfrecord.expire), options.JSON)
def expire_command(path: str, as_json: bool, **how: Any) -> None:
    """With --versions and --older-than, a version stays if either option keeps it. Expired versions can no
    longer be read. Their files are removed by the first call of expire or cleanup after the grace period.
    """
    if not {"versions", "older_than"} & how.keys():
        raise click.UsageError("pass --versions, --older-than or both to say which versions expire")
    done = dask_tfrecord.expire(path, **how)
    totals = {
        "version": done.snapshot.number,
        "expired_versions": [*done.versions] if as_json else len(done.versions),
        "removed_files": done.files,
        "removed_bytes": done.bytes,
    }
    output.print_totals(totals, as_json)
    grace = how.get("grace", "1 hour")
    if done.versions and any(digit in grace for digit in "123456789") and not as_json:
        note = f"the first expire or cleanup after {grace} removes the files that only these versions need"
        output.print_lines([note])
