"""The commands about versions, `--version`, and the options of `convert` about versions and columns.

Modules: cli.maintenance, cli.options.
"""

import json
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Run

import dask_tfrecord
from dask_tfrecord import open_dataset, read_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

ALL = [1815, 1906, 1912]


def born(path: Path) -> list[int]:
    years: list[int] = sorted(read_tfrecord(path)["born"].compute().tolist())
    return years


@pytest.fixture
def versions(people: Path) -> Path:
    """A dataset of three rows, to which a fourth was appended, which has a null."""
    row = read_tfrecord(people).compute().iloc[:1].copy()
    row["born"] = pd.array([None], pd.ArrowDtype(pa.int64()))
    dask_tfrecord.to_tfrecord(dd.from_pandas(row, npartitions=1), people, append=True)
    return people


def test_inspect_and_schema_describe_the_version(run: Run, versions: Path) -> None:
    def described(*options: object) -> Any:
        return json.loads(run("describe", versions, "--json", *options).stdout)

    old, new = described("--version", 1), described()
    assert [(one["version"], one["rows"], one["files"]) for one in (old, new)] == [(1, 3, 2), (2, 4, 3)]
    assert [one["columns"][1]["nulls"] for one in (old, new)] == [0, 1]
    assert [one["version"] for one in new["versions"]] == [1, 2]
    assert old["versions"] == new["versions"]
    schemas = [run("schema", versions, "--as", "pbtxt", *more).stdout for more in (("--version", 1), ())]
    assert [text.count("min_fraction") for text in schemas] == [2, 1]


@pytest.mark.parametrize("command", ["describe", "head", "cat", "count", "schema"])
def test_an_unknown_version_raises_with_the_known(run: Run, versions: Path, command: str) -> None:
    assert "it has 1, 2" in run(command, versions, "--version", 7, code=1).stderr
    run(command, versions, "--version", 0, code=2)


def test_only_the_directory_of_a_dataset_has_versions(run: Run, versions: Path) -> None:
    files = list(versions.glob("part-*"))
    assert "has no snapshot" in run("count", files[0], "--version", 1, code=1).stderr
    assert "directory" in run("count", *files, "--version", 1, code=1).stderr


def test_history_lists_the_versions(run: Run, people: Path) -> None:
    dask_tfrecord.to_tfrecord(read_tfrecord(people), people, append=True)
    title, *rows = (line.split() for line in run("history", people).stdout.splitlines())
    assert title[:3] == ["version", "created", "mode"]
    assert [(row[0], row[3], row[5]) for row in rows] == [("1", "create", "3"), ("2", "append", "6")]
    assert [one["rows"] for one in json.loads(run("history", people, "--json").stdout)] == [3, 6]
    for _ in range(5):
        dask_tfrecord.to_tfrecord(read_tfrecord(people, version=1), people, append=True)
    shown = run("describe", people, "-n", 0).stdout.splitlines()[-6:]
    assert [line.split()[0] for line in shown[:5]] == ["3", "4", "5", "6", "7"]
    assert shown[-1] == "2 earlier versions, which history lists"


def test_compact_prints_the_files_before_and_after(run: Run, people: Path) -> None:
    size = Snapshot.open(people).bytes
    pairs = dict(line.split("  ", 1) for line in run("compact", people).stdout.splitlines())
    expected = {"version": 2, "replaced files": 2, "written files": 1, "skipped files": 0, "files": 1}
    assert {name: int(text) for name, text in pairs.items()} == expected | {"rows": 3, "bytes": size}
    again = json.loads(run("compact", people, "--target-bytes", "1 KiB", "--json").stdout)
    assert (again["version"], again["written_files"]) == (2, 0)


@pytest.mark.parametrize(
    ("options", "answer", "code", "left"),
    [
        (["--yes", "--dry-run"], None, 0, ALL),
        ([], "n\n", 1, ALL),
        ([], None, 2, ALL),
        ([], "y\n", 0, ALL[1:]),
        (["--yes"], None, 0, ALL[1:]),
    ],
)
def test_delete_asks_first(
    run: Run, people: Path, options: list[str], answer: str | None, code: int, left: list[int]
) -> None:
    result = run("delete", people, "--where", "born < 1900", *options, code=code, input=answer)
    asked = "Delete 1 of 3 rows where born < 1900? This drops 0 files and rewrites 1 file," in result.stderr
    assert asked == ("and keeps the versions before it" in result.stderr) == (not options)
    if code == 0:
        verb = "would be deleted" if "--dry-run" in options else "deleted"
        assert result.stdout.startswith(f"1 row {verb}: 0 files dropped and 1 file rewritten, of ")
    assert born(people) == left


def test_delete_joins_its_conditions_and_shows_them_before_it_deletes(run: Run, people: Path) -> None:
    where = ("--where", "born < 1910 or name is None", "--where", "born > 1850 # \x1b[2J")
    assert (
        "is not a condition" in run("delete", people, *where, "--yes", code=2).stderr
    )  # an open parenthesis
    where = ("--where", "born < 1910 or name is None", "--where", "born > 1850")
    asked = run("delete", people, *where, code=1, input="n\n").stderr
    assert asked.startswith("Delete 1 of 3 rows where (born < 1910 or name is None) and (born > 1850)? ")
    run("delete", people, *where, "--yes")
    assert born(people) == [1815, 1912]


def test_delete_asks_nothing_if_no_row_matches(run: Run, people: Path) -> None:
    assert run("delete", people, "--where", "born < 1800").stdout == "no row meets the condition\n"
    printed = json.loads(run("delete", people, "--where", "born < 1800", "--json").stdout)
    assert (printed["version"], printed["deleted_rows"], printed["dry_run"]) == (1, 0, False)
    assert "no column is named 'boern'" in run("delete", people, "--where", "boern < 1800", code=1).stderr
    for command, option in (("delete", "--where"), ("export", "--format")):
        assert f"Error: Missing option '{option}'." in run(command, people, code=2).stderr


def test_an_error_about_a_missing_file_names_the_command_that_commits_it(run: Run, people: Path) -> None:
    file = sorted(people.glob("part-*"))[0]
    file.unlink()
    error = run("count", people, "--where", "born > 0", code=1).stderr
    assert f"put the file back, or run dask-tfrecord repair {people} if it was removed on purpose" in error
    planned = run("repair", people, "--dry-run").stdout.splitlines()
    assert planned == [f"{file.name}: 2 rows", "1 missing file with 2 rows would be dropped"]
    assert run("repair", people).stdout.splitlines()[1] == "1 missing file with 2 rows dropped in version 2"
    assert run("repair", people).stdout == "no files are missing\n"
    assert json.loads(run("repair", people, "--json").stdout)["lost_files"] == {}
    assert born(people) == [1906]


def test_restore_and_expire(run: Run, people: Path) -> None:
    run("delete", people, "--where", "born < 1900", "--yes", "--keep-versions")
    pairs = [line.split("  ")[0] for line in run("restore", people, 1).stdout.splitlines()]
    assert pairs == ["version", "restored version", "files", "rows", "bytes"]
    assert born(people) == ALL
    details = [line.split()[7:] for line in run("history", people).stdout.splitlines()[1:-1]]
    assert details == [[], ["1", "rows"], ["version", "1"]]
    assert "cleanup after 1 day removes" in run("expire", people, "--versions", 2, "--grace", "1 day").stdout
    done = json.loads(run("expire", people, "--versions", 1, "--grace", "0 s", "--json").stdout)
    assert (done["expired_versions"], done["removed_files"]) == ([2], 1)
    assert "version 1" in run("restore", people, 1, code=1).stderr
    run("restore", people, code=2)
    assert "pass --versions, --older-than or both" in run("expire", people, code=2).stderr
    assert "--older-than" in run("expire", people, "--older-than", "soon", code=1).stderr
    run("delete", people, "--where", "born == 1906", "--yes", "--no-keep-versions")
    assert len(open_dataset(people).history()) == 1


def test_convert_adds_columns_and_keeps_versions(run: Run, people: Path) -> None:
    wide = people.parent / "wide.jsonl"
    wide.write_text('{"name": "Edsger", "born": 1930, "tags": ["d"], "country": "NL"}\n')
    run("convert", wide, people, "--append", code=1)
    run("convert", wide, people, "--append", "--schema-change", "add")
    assert read_tfrecord(people)["country"].compute().tolist()[-1] == "NL"
    run("convert", wide, people, "--overwrite", "--keep-versions")
    assert open_dataset(people).history()["version"].tolist() == [1, 2, 3]
    run("convert", people, people.parent / "other.parquet", "--keep-versions", code=2)
