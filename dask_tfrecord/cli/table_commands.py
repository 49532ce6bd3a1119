"""Implement the commands that list the versions of a dataset, or commit a version without writing new rows:
`history`, `repair`, `compact`, `delete`, `restore` and `expire`.
"""

import sys
from typing import Any

import click
import dask
import pyarrow as pa

import dask_tfrecord
from dask_tfrecord import Commit, Dataset
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.compute import computing
from dask_tfrecord.cli.show import print_versions


@options.command("history", options.PATH, *options.STORE, options.JSON)
def history_command(path: str, as_json: bool, **how: Any) -> None:
    """The option --version of other commands reads one of these versions."""
    dataset = dask_tfrecord.open_dataset(path, **how)
    versions = pa.Table.from_pandas(dataset.history(), preserve_index=False).to_pylist()
    if as_json:
        output.print_json(versions)
        return
    print_versions(versions)
    if dataset.kept_bytes:
        output.print_lines([f"{dataset.kept_bytes:,} bytes are kept for earlier versions, until expire"])


@options.command("repair", options.PATH, *options.of(Dataset.repair), *options.STORE, options.JSON)
def repair_command(path: str, as_json: bool, dry_run: bool = False, **how: Any) -> None:
    """If files were removed by other means than this library, reads raise until the files are put back, or
    until the command has committed a version without the files.
    """
    done = dask_tfrecord.open_dataset(path, **how).repair(dry_run=dry_run)
    lost = done.details["lost_files"]
    action = "would be dropped" if dry_run else f"dropped in version {done.version}"
    lines = [f"{file}: {rows:,} rows" for file, rows in lost.items()]
    total = f"{len(lost):,} missing files with {sum(lost.values()):,} rows {action}"
    lines.append(total if lost else "no files are missing")
    result = {"version": done.version, "lost_files": lost, "lost_rows": sum(lost.values())}
    output.print_result({**result, "dry_run": dry_run}, lines, as_json)


@options.command(
    "compact",
    options.PATH,
    *options.of(Dataset.compact),
    *options.STORE,
    options.JSON,
    *options.COMPUTING,
)
def compact_command(path: str, as_json: bool, **how: Any) -> None:
    """The stored bytes of the files are copied and verified, but not decoded. The rows keep their order. With
    --where, only files that may hold such a row are replaced.
    """
    with computing("Compacting"):
        done = options.opened(path, how).compact(**how)
    totals = {"version": done.version, **done.details, "files": done.files, "rows": done.rows}
    totals["bytes"] = done.bytes
    output.print_totals(totals, as_json)


@options.command(
    "delete",
    options.PATH,
    *options.of(Dataset.delete),
    *options.STORE,
    click.Option(["--yes", "-y"], is_flag=True, help="Delete without asking."),
    options.JSON,
    *options.COMPUTING,
)
def delete_command(path: str, yes: bool, as_json: bool, dry_run: bool = False, **how: Any) -> None:
    """Exactly the rows that meet the condition are deleted. The command counts these rows, and asks before it
    deletes them.
    """
    dataset = options.opened(path, how)

    def delete(*, dry_run: bool) -> Commit:
        with computing("Counting" if dry_run else "Deleting"):
            return dataset.delete(dry_run=dry_run, **how)

    done = delete(dry_run=dry_run or not yes)
    if done.details["deleted_rows"] and not (dry_run or yes):
        keeps = how.get("keep_versions", dask.config.get("dask-tfrecord.keep-versions", None))
        _confirm(done, keeps is not False)  # the default of `delete` is True
        done = delete(dry_run=False)
    result = {"version": done.version, "rows": done.rows, **done.details, "dry_run": dry_run}
    deleted, dropped, rewritten, size = done.details.values()
    files = f"{dropped:,} files dropped and {rewritten:,} files rewritten, of {size:,} bytes"
    line = f"{deleted:,} rows {'would be deleted' if dry_run else 'deleted'}: {files}"
    output.print_result(result, [line if deleted else "no row meets the condition"], as_json)


def _confirm(planned: Commit, keeps_versions: bool) -> None:
    deleted, dropped, rewritten, size = planned.details.values()
    question = (
        f"Delete {deleted:,} of {planned.rows:,} rows? This drops {dropped:,} files "
        f"and rewrites {rewritten:,} files, of {size:,} bytes, and "
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
    *options.STORE,
    options.JSON,
)
def restore_command(path: str, version: int, as_json: bool, **how: Any) -> None:
    """The command `history` lists the versions. No data file is read or written. The versions in between are
    kept, so another restore undoes this one.
    """
    done = dask_tfrecord.open_dataset(path, **how).restore(version)
    totals = {"version": done.version, **done.details, "files": done.files, "rows": done.rows}
    totals["bytes"] = done.bytes
    output.print_totals(totals, as_json)


@options.command("expire", options.PATH, *options.of(Dataset.expire), *options.STORE, options.JSON)
def expire_command(path: str, as_json: bool, **how: Any) -> None:
    """With --versions and --older-than, a version stays if either option keeps it. Expired versions can no
    longer be read. Their files are removed by the first call of expire or cleanup after the grace period.
    """
    if not {"versions", "older_than"} & how.keys():
        raise click.UsageError("pass --versions, --older-than or both to say which versions expire")
    done = options.opened(path, how).expire(**how)
    expired = done.details["expired_versions"]
    totals = {"version": done.version, **done.details}
    output.print_totals(totals if as_json else {**totals, "expired_versions": len(expired)}, as_json)
    grace = how.get("grace", "1 hour")
    if expired and any(digit in grace for digit in "123456789") and not as_json:
        note = f"the first expire or cleanup after {grace} removes the files that only these versions need"
        output.print_lines([note])
