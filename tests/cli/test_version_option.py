"""`--version N` reads an older version of a dataset, as `read_tfrecord(version=)` does.

Modules: cli.options.
"""

import json
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Run

import dask_tfrecord


@pytest.fixture
def versions(people: Path) -> Path:
    """A dataset of three rows, to which a fourth was appended: its columns are null."""
    ddf = dask_tfrecord.read_tfrecord(people)
    row = ddf.compute().iloc[:1].copy()
    row["born"] = pd.array([None], pd.ArrowDtype(pa.int64()))
    dask_tfrecord.to_tfrecord(dd.from_pandas(row, npartitions=1), people, append=True)
    return people


def test_rows_are_those_of_the_version(run: Run, versions: Path) -> None:
    for command in ("cat", "head"):
        assert run(command, versions, "--version", 1).stdout.count("\n") == 3
        assert run(command, versions, "--version", 2).stdout == run(command, versions).stdout
        assert run(command, versions).stdout.count("\n") == 4
    assert run("count", versions, "--version", 1).stdout == "3\n"
    assert run("count", versions).stdout == "4\n"


def test_inspect_describes_the_version_and_lists_all(run: Run, versions: Path) -> None:
    old = json.loads(run("inspect", versions, "--version", 1, "--json").stdout)
    new = json.loads(run("inspect", versions, "--json").stdout)
    assert [(one["version"], one["rows"], one["files"]) for one in (old, new)] == [(1, 3, 2), (2, 4, 3)]
    assert [one["columns"][1]["nulls"] for one in (old, new)] == [0, 1]
    assert old["versions"] == new["versions"]
    assert [one["version"] for one in new["versions"]] == [1, 2]
    assert "version  1\n" in run("inspect", versions, "--version", 1).stdout


def test_schema_describes_the_version(run: Run, versions: Path) -> None:
    old = run("schema", versions, "--as", "pbtxt", "--version", 1).stdout
    new = run("schema", versions, "--as", "pbtxt").stdout
    assert (old.count("min_fraction"), new.count("min_fraction")) == (2, 1)
    assert run("schema", versions, "--version", 1).stdout == run("schema", versions).stdout


def test_convert_reads_the_version(run: Run, versions: Path, tmp_path: Path) -> None:
    plan = json.loads(
        run("convert", versions, tmp_path / "old", "--version", 1, "--dry-run", "--json").stdout
    )
    assert plan["source_files"] == 2
    assert (
        json.loads(run("convert", versions, tmp_path / "old", "--version", 1, "--json").stdout)["rows"] == 3
    )
    run("convert", versions, tmp_path / "old.jsonl", "--version", 1)
    assert sum(file.read_text().count("\n") for file in (tmp_path / "old.jsonl").iterdir()) == 3


@pytest.mark.parametrize("command", ["inspect", "head", "cat", "count", "schema"])
def test_a_version_that_does_not_exist_raises_with_those_that_do(
    run: Run, versions: Path, command: str
) -> None:
    assert "it has 1, 2" in run(command, versions, "--version", 7, code=1).stderr
    run(command, versions, "--version", 0, code=2)


def test_only_the_directory_of_a_dataset_has_versions(run: Run, versions: Path, tmp_path: Path) -> None:
    files = list(versions.glob("part-*"))
    assert "has no snapshot" in run("count", files[0], "--version", 1, code=1).stderr
    assert "directory" in run("count", *files, "--version", 1, code=1).stderr
    (tmp_path / "a.csv").write_text("x\n1\n")
    run("convert", tmp_path / "a.csv", tmp_path / "out", "--version", 1, code=2)
