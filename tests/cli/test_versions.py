"""The commands about versions, and the options of `convert` about versions and columns.

Modules: cli.versions.
"""

import json
from pathlib import Path

import pytest
from conftest import Run

import dask_tfrecord
from dask_tfrecord import Snapshot, read_tfrecord


def born(path: Path) -> list[int]:
    years: list[int] = sorted(read_tfrecord(path)["born"].compute().tolist())
    return years


def test_history_lists_the_versions(run: Run, people: Path) -> None:
    dask_tfrecord.to_tfrecord(read_tfrecord(people), people, append=True)
    title, *rows = (line.split() for line in run("history", people).stdout.splitlines())
    assert title[:3] == ["version", "created", "mode"]
    assert [(row[0], row[3], row[5]) for row in rows] == [("1", "create", "3"), ("2", "append", "6")]
    listed = json.loads(run("history", people, "--json").stdout)
    assert [one["records"] for one in listed] == [3, 6]
    for _ in range(5):
        dask_tfrecord.to_tfrecord(read_tfrecord(people, version=1), people, append=True)
    shown = run("inspect", people, "-n", 0).stdout.splitlines()[-6:]
    assert [line.split()[0] for line in shown] == ["3", "4", "5", "6", "7", "2"]
    assert shown[-1] == "2 earlier versions, which history lists"


def test_compact_prints_the_files_before_and_after(run: Run, people: Path) -> None:
    size = Snapshot.open(people).bytes
    pairs = dict(line.split("  ", 1) for line in run("compact", people).stdout.splitlines())
    assert {name: text.strip() for name, text in pairs.items()} == {
        "version": "2",
        "replaced files": "2",
        "written files": "1",
        "skipped files": "0",
        "files": "1",
        "rows": "3",
        "bytes": str(size),
    }
    again = json.loads(run("compact", people, "--target-bytes", "1 KiB", "--json").stdout)
    assert (again["version"], again["written_files"]) == (2, 0)


@pytest.mark.parametrize(
    ("options", "answer", "code", "left"),
    [
        (["--dry-run"], None, 0, [1815, 1906, 1912]),
        (["--yes", "--dry-run"], None, 0, [1815, 1906, 1912]),
        ([], "n\n", 1, [1815, 1906, 1912]),
        ([], None, 2, [1815, 1906, 1912]),
        ([], "y\n", 0, [1906, 1912]),
        (["--yes"], None, 0, [1906, 1912]),
    ],
)
def test_delete_asks_first(
    run: Run, people: Path, options: list[str], answer: str | None, code: int, left: list[int]
) -> None:
    result = run("delete", people, "--where", "born < 1900", *options, code=code, input=answer)
    asked = "Delete 1 of 3 rows? This drops 0 files and rewrites 1 files" in result.stderr
    assert asked == ("and removes the versions before it" in result.stderr) == (not options)
    if code == 0:
        verb = "would be deleted" if "--dry-run" in options else "deleted"
        assert result.stdout.startswith(f"1 rows {verb}: 0 files dropped and 1 files rewritten, of ")
    assert born(people) == left


def test_delete_asks_nothing_if_no_row_matches(run: Run, people: Path) -> None:
    assert run("delete", people, "--where", "born < 1800").stdout == "no row meets the condition\n"
    printed = json.loads(run("delete", people, "--where", "born < 1800", "--json").stdout)
    assert (printed["version"], printed["rows"], printed["dry_run"]) == (1, 0, False)
    assert "no column is named 'boern'" in run("delete", people, "--where", "boern < 1800", code=1).stderr


@pytest.mark.parametrize(("command", "option"), [("delete", "--where"), ("export", "--format")])
def test_an_option_that_a_command_needs_is_named(run: Run, people: Path, command: str, option: str) -> None:
    assert f"Error: Missing option '{option}'." in run(command, people, code=2).stderr


@pytest.mark.parametrize(("option", "versions"), [("--keep-versions", [1, 2]), ("--no-keep-versions", [2])])
def test_earlier_versions_are_kept_if_asked_for(
    run: Run, people: Path, option: str, versions: list[int]
) -> None:
    run("delete", people, "--where", "born < 1900", "--yes", option)
    assert Snapshot.history(people)["version"].tolist() == versions


def test_an_error_about_a_missing_file_names_the_command_that_commits_the_loss(
    run: Run, people: Path
) -> None:
    file = sorted(people.glob("part-*"))[0]
    file.unlink()
    error = run("count", people, "--where", "born > 0", code=1).stderr
    assert f"put the file back, or run dask-tfrecord repair {people} if it was removed on purpose" in error
    planned = run("repair", people, "--dry-run").stdout.splitlines()
    assert planned == [f"{file.name}: 2 rows", "1 missing files with 2 rows would be dropped"]
    assert run("repair", people).stdout.splitlines()[1] == "1 missing files with 2 rows dropped in version 2"
    assert run("repair", people).stdout == "no files are missing\n"
    assert json.loads(run("repair", people, "--json").stdout)["lost_files"] == {}
    assert born(people) == [1906]


def test_restore_and_expire(run: Run, people: Path) -> None:
    run("delete", people, "--where", "born < 1900", "--yes", "--keep-versions")
    pairs = [line.split("  ")[0] for line in run("restore", people, 1).stdout.splitlines()]
    assert pairs == ["version", "restored version", "files", "rows", "bytes"]
    assert born(people) == [1815, 1906, 1912]
    details = [line.split()[7:] for line in run("history", people).stdout.splitlines()[1:]]
    assert details == [[], ["1", "rows"], ["version", "1"]]
    assert "cleanup after 1 day removes" in run("expire", people, "--versions", 2, "--grace", "1 day").stdout
    done = json.loads(run("expire", people, "--versions", 1, "--grace", "0 s", "--json").stdout)
    assert (done["expired_versions"], done["removed_files"]) == ([2], 1)
    assert "version 1" in run("restore", people, 1, code=1).stderr
    run("restore", people, code=2)
    assert "pass --versions, --older-than or both" in run("expire", people, code=2).stderr
    assert "--older-than" in run("expire", people, "--older-than", "soon", code=1).stderr


def test_convert_adds_columns_and_keeps_versions(run: Run, people: Path) -> None:
    wide = people.parent / "wide.jsonl"
    wide.write_text('{"name": "Edsger", "born": 1930, "tags": ["d"], "country": "NL"}\n')
    run("convert", wide, people, "--append", code=1)
    run("convert", wide, people, "--append", "--schema-change", "add")
    assert read_tfrecord(people)["country"].compute().tolist()[-1] == "NL"
    run("convert", wide, people, "--overwrite", "--keep-versions")
    assert Snapshot.history(people)["version"].tolist() == [1, 2, 3]
    run("convert", people, people.parent / "other.parquet", "--keep-versions", code=2)
