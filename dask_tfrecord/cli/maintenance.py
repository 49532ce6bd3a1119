"""Implement the commands that list, check, verify or remove versions and files of a dataset, and the commands
that commit a version without adding rows or describe a dataset to another library.
"""

import json
import sys
import time
from typing import Any

import click
import dask

import dask_tfrecord
from dask_tfrecord import Commit, Dataset
from dask_tfrecord.cli import options, output
from dask_tfrecord.cli.compute import computing
from dask_tfrecord.cli.failures import DAMAGED, printable
from dask_tfrecord.cli.show import print_versions, versions_of
from dask_tfrecord.errors import counted

_SPLIT = (
    "Pass it if a directory of TensorFlow Datasets or TFX also contains files of no split. The column split "
    "of these files is null."
)


_PROBLEMS = ("missing", "resized", "unlisted", "unfinished")


@options.command("check", options.PATH, *options.STORE, options.JSON, examples=["rides"])
def check_command(path: str, as_json: bool, **how: Any) -> None:
    """The command lists the files once and opens none of them. The exit code is 3 if a file is missing,
    resized or not listed by the snapshot, and otherwise 0. Files of unfinished writes are printed, but do not
    change the exit code, because the writes may still be running.
    """
    report = options.opened(path, how).check()
    files = json.loads(report.to_json(orient="records"))
    totals = {name: sum(file["problem"] == name for file in files) for name in _PROBLEMS}
    lines = [f"{file['path']}: {_difference(file)}" for file in files]
    found = ", ".join(f"{count:,} {name}" for name, count in totals.items() if count)
    lines.append(
        f"files with problems: {found}" if found else "the directory holds the files of the snapshot"
    )
    output.print_result({**totals, "problems": files}, lines, as_json)
    differs = sum(totals.values()) > totals["unfinished"]
    click.get_current_context().exit(DAMAGED if differs else 0)


def _difference(file: dict[str, Any]) -> str:
    problem, size, recorded = (file[name] for name in ("problem", "bytes", "listed_bytes"))
    return {
        "missing": f"the file is missing, with {counted(file['rows'] or 0, 'row')}",
        "resized": f"the file has {size or 0:,} bytes, but {recorded or 0:,} in the snapshot",
        "unlisted": "the snapshot does not list the file",
        "unfinished": "the file belongs to a write that has not finished",
    }[problem]


@options.command(
    "verify",
    options.PATHS,
    *options.of(dask_tfrecord.read_tfrecord, "record_type", "storage_options"),
    options.JSON,
    *options.COMPUTING,
    examples=["rides", "'old/*.tfrecord' --json"],
)
def verify_command(path: Any, as_json: bool, **how: Any) -> None:
    """Besides damage, the report lists files that differ from the snapshot, and features that do not fit
    their columns. The exit code is 3 if the report lists a problem, and 0 if all files are intact.
    """
    start = time.perf_counter()
    with computing("Verifying"):
        report = dask_tfrecord.open_dataset(path, **how).verify()
    files = json.loads(report.to_json(orient="records"))
    wrong = [file for file in files if file["damaged"] or file["drift"] or file["agrees"] is False]
    totals = {
        "files": len(files),
        "rows": sum(file["rows"] for file in files),
        "bytes": sum(file["bytes"] for file in files),
        "files_with_problems": len(wrong),
    }
    lines = [f"{file['path']}: {'; '.join(_problems(file))}" for file in wrong]
    lines.append(_summary(totals, time.perf_counter() - start))
    output.print_result({**totals, "problems": wrong}, lines, as_json)
    click.get_current_context().exit(DAMAGED if wrong else 0)


def _problems(file: dict[str, Any]) -> list[str]:
    found = []
    if file["damaged"]:
        found.append(
            f"{file['damaged']:,} damaged, {file['rows']:,} intact records; the first damage is at byte "
            f"{file['offset']:,}: {file['reason']}"
        )
    if file["drift"]:
        found.append(file["drift"])
    if file["agrees"] is False:
        found.append(f"differs from the snapshot: {file['differs']}")
    return found


def _summary(totals: dict[str, int], seconds: float) -> str:
    files, rows, size, wrong = totals.values()
    verdict = f"{wrong:,} of {files:,} files have problems" if wrong else f"all {files:,} files are intact"
    if files == 1:
        verdict = "the file has problems" if wrong else "the file is intact"
    rates = f"{rows / seconds:,.0f} rows/s, {size / seconds / 1e6:,.1f} MB/s"
    return f"{verdict}, {counted(rows, 'row')}, {size:,} bytes in {seconds:.1f} s ({rates})"


def _totals(done: Commit) -> dict[str, Any]:
    return {
        "version": done.version,
        **done.details,
        "files": done.files,
        "rows": done.rows,
        "bytes": done.bytes,
    }


@options.command(
    "add-snapshot",
    options.PATH,
    *options.of(dask_tfrecord.read_tfrecord, "schema", "hive", "record_type"),
    click.Option(["--split"], type=click.Choice(["all"]), help=_SPLIT),
    *options.of(Dataset.add_snapshot),
    *options.STORE,
    options.JSON,
    *options.COMPUTING,
    examples=["old", "old --type hour=int8 --type 'tags=list<string>'"],
)
def add_snapshot_command(path: str, as_json: bool, **how: Any) -> None:
    """The command reads all files of the directory. After the command, reads of the directory need no
    inference, and skip files in which no row can pass the filters. The command does not change the data
    files. Run the command again whenever files were added, removed or rewritten.
    """
    storage_options = how.get("storage_options")
    with computing("Indexing"):
        done = options.opened(path, how, "schema", "hive", "record_type", "split").add_snapshot(**how)
    dataset = dask_tfrecord.open_dataset(path, storage_options=storage_options)
    if as_json:
        types = {item.name: str(item.type) for item in dataset.schema}
        output.print_json({**_totals(done), "columns": types})
    else:
        output.print_totals(_totals(done))
        output.print_lines([""])
        rows = [(name, row["type"], row["feature"]) for name, row in dataset.statistics.iterrows()]
        output.print_table(["column", "type", "feature"], rows, cut="type")


@options.command(
    "cleanup",
    options.PATH,
    *options.of(Dataset.cleanup),
    *options.STORE,
    options.JSON,
    examples=['rides --older-than "12 hours" --dry-run'],
)
def cleanup_command(path: str, as_json: bool, dry_run: bool = False, **how: Any) -> None:
    """If the client of a write is killed, files of the interrupted write remain. Files that a snapshot lists,
    and files that other tools wrote, are kept.
    """
    removed = options.opened(path, how).cleanup(dry_run=dry_run, **how)
    lines = [*removed, f"{counted(len(removed), 'file')} {'would be removed' if dry_run else 'removed'}"]
    output.print_result({"removed": removed, "dry_run": dry_run}, lines, as_json)


@options.command("history", options.PATH, *options.STORE, options.JSON, examples=["rides"])
def history_command(path: str, as_json: bool, **how: Any) -> None:
    """Other commands can read any listed version with the option --version."""
    dataset = dask_tfrecord.open_dataset(path, **how)
    versions = versions_of(dataset)
    if as_json:
        output.print_json(versions)
        return
    print_versions(versions)
    if dataset.kept_bytes:
        output.print_lines([f"{dataset.kept_bytes:,} bytes are kept for earlier versions, until expire"])


@options.command(
    "repair",
    options.PATH,
    *options.of(Dataset.repair),
    *options.STORE,
    options.JSON,
    examples=["rides --dry-run", "rides"],
)
def repair_command(path: str, as_json: bool, dry_run: bool = False, **how: Any) -> None:
    """If files were removed by means other than this library, reads raise an error. Put the files back, or
    run the command to commit a version without the files.
    """
    done = dask_tfrecord.open_dataset(path, **how).repair(dry_run=dry_run)
    lost = done.details["lost_files"]
    action = "would be dropped" if dry_run else f"dropped in version {done.version}"
    lines = [f"{file}: {counted(rows, 'row')}" for file, rows in lost.items()]
    total = f"{counted(len(lost), 'missing file')} with {counted(sum(lost.values()), 'row')} {action}"
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
    examples=["rides", 'rides --target-bytes "256 MiB" --where "day >= \'2024-01-31\'"'],
)
def compact_command(path: str, as_json: bool, **how: Any) -> None:
    """The stored bytes of the files are copied and verified, but not decoded. The rows keep their order. With
    --where, only files that may contain a matching row are replaced.
    """
    with computing("Compacting"):
        done = options.opened(path, how).compact(**how)
    output.print_totals(_totals(done), as_json)


@options.command(
    "delete",
    options.PATH,
    *options.of(Dataset.delete),
    *options.STORE,
    click.Option(["--yes", "-y"], is_flag=True, help="Delete without asking."),
    options.JSON,
    *options.COMPUTING,
    examples=['rides --where "fare < 0" --dry-run', "rides --where \"day < '2024-01-31'\" --yes"],
)
def delete_command(path: str, yes: bool, as_json: bool, dry_run: bool = False, **how: Any) -> None:
    """The command deletes exactly the rows that meet the condition. The command counts the matching rows, and
    asks for confirmation before it deletes them.
    """
    dataset = options.opened(path, how)

    def delete(*, dry_run: bool) -> Commit:
        with computing("Counting" if dry_run else "Deleting"):
            return dataset.delete(dry_run=dry_run, **how)

    done = delete(dry_run=dry_run or not yes)
    if done.details["deleted_rows"] and not (dry_run or yes):
        keeps = how.get("keep_versions", dask.config.get("dask-tfrecord.keep-versions", None))
        _confirm(done, keeps is not False)  # by default, `delete` keeps the old versions
        done = delete(dry_run=False)
    result = {"version": done.version, "rows": done.rows, **done.details, "dry_run": dry_run}
    deleted, dropped, rewritten, size = done.details.values()
    files = f"{counted(dropped, 'file')} dropped and {counted(rewritten, 'file')} rewritten"
    action = "would be deleted" if dry_run else "deleted"
    line = f"{counted(deleted, 'row')} {action}: {files}, of {size:,} bytes"
    output.print_result(result, [line if deleted else "no row meets the condition"], as_json)


def _confirm(planned: Commit, keeps_versions: bool) -> None:
    condition = printable(click.get_current_context().meta[options.CONDITION])
    deleted, dropped, rewritten, size = planned.details.values()
    question = (
        f"Delete {deleted:,} of {counted(planned.rows, 'row')} where {condition}? This drops "
        f"{counted(dropped, 'file')} and rewrites {counted(rewritten, 'file')}, of {size:,} bytes, and "
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
    examples=["rides 3"],
)
def restore_command(path: str, version: int, as_json: bool, **how: Any) -> None:
    """The command `history` lists the versions. No data file is read or written. All versions after the
    restored version are kept, so a second restore can undo the first.
    """
    done = dask_tfrecord.open_dataset(path, **how).restore(version)
    output.print_totals(_totals(done), as_json)


@options.command(
    "expire",
    options.PATH,
    *options.of(Dataset.expire),
    *options.STORE,
    options.JSON,
    examples=["rides --versions 10", 'rides --older-than "30 days"'],
)
def expire_command(path: str, as_json: bool, **how: Any) -> None:
    """If both --versions and --older-than are passed, a version is kept if either option keeps it. Expired
    versions can no longer be read. The files of expired versions are removed by the first expire or cleanup
    after the grace period.
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


@options.command(
    "export",
    options.PATH,
    *options.of(Dataset.export, "format"),
    *options.STORE,
    options.JSON,
    examples=["images --format tfds"],
)
def export_command(path: str, as_json: bool, **how: Any) -> None:
    files = options.opened(path, how).export(**how)
    output.print_result({"files": files}, files, as_json)
