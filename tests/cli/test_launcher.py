"""The command itself: light to import, with exit codes and errors of one line.

Modules: cli.failures, cli.dask_tfrecord_launcher.
"""

import importlib.metadata
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from conftest import Run

import dask_tfrecord
from dask_tfrecord.cli.failures import note_paths, one_line_errors, option
from dask_tfrecord.errors import Remedy
from dask_tfrecord_launcher import COMMANDS, main

SCRIPT = Path(sys.executable).parent / "dask-tfrecord"


def _python(code: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, **settings
    )


def test_importing_the_command_imports_neither_the_package_nor_what_it_needs() -> None:
    heavy = {"dask_tfrecord", "dask.dataframe", "pandas", "pyarrow", "numpy", "fsspec", "rich", "distributed"}
    code = f"import sys, dask_tfrecord_launcher; print(sorted({heavy!r} & set(sys.modules)))"
    assert _python(code).stdout == "[]\n"


def test_help_imports_neither_the_package_nor_what_it_needs() -> None:
    code = (
        "import sys; from dask_tfrecord_launcher import main\n"
        "try: main(['--help'])\n"
        "finally: print('dask_tfrecord' in sys.modules)"
    )
    output = _python(code).stdout
    assert output.endswith("False\n")
    assert all(f"  {name} " in output for name in COMMANDS)


def test_the_spellings_exist_if_the_package_is_imported_before_dask_dataframe() -> None:
    result = _python("import dask_tfrecord, dask.dataframe as dd; dd.read_tfrecord, dd.DataFrame.to_tfrecord")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_shows_the_first_line_of_each_help(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").partition("\n\n")[0].replace("\n", " ") == COMMANDS[name][1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []


def test_dask_has_the_command_too(people: Path) -> None:
    (entry,) = importlib.metadata.entry_points(group="dask_cli", name="tfrecord")
    group = click.Group("dask", commands={entry.name: entry.load()})
    result = CliRunner().invoke(group, ["tfrecord", "count", str(people)])
    assert result.stdout == "3\n"


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version").stdout.strip() == dask_tfrecord.__version__


def test_an_error_is_one_line_on_stderr(run: Run, tmp_path: Path) -> None:
    result = run("count", tmp_path / "nothing", code=1)
    assert result.stdout == ""
    assert result.stderr == f"Error: {tmp_path}/nothing: no such file or directory\n"


def test_an_option_shows_the_traceback(run: Run, tmp_path: Path) -> None:
    assert "Traceback" in run("--traceback", "count", tmp_path / "nothing", code=1).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["count"],
        ["count", "--nothing", "x"],
        ["nothing"],
        ["count", "x", "--where", "y +"],
        ["count", "x", "--memory-limit", "much"],
    ],
)
def test_wrong_usage_exits_with_2(run: Run, arguments: list[str]) -> None:
    run(*arguments, code=2)


def test_the_advice_names_options_instead_of_keywords(run: Run, people: Path) -> None:
    error = run("convert", people, people, code=1).stderr
    assert "pass --append to add to it, or --overwrite to remove it" in error


def test_the_advice_names_commands_instead_of_calls(run: Run, tmp_path: Path) -> None:
    ddf = dd.from_dict({"x": [1, 2], "k": ["a", "b"]}, npartitions=1)
    path = tmp_path / "a set"
    dask_tfrecord.to_tfrecord(ddf, path, partition_on="k")
    error = run("convert", path, path / "k=a", code=1).stderr
    assert f"run dask-tfrecord convert SRC '{path}' --partition-on k --append to add the rows" in error
    next(path.glob("k=a/*")).unlink()
    error = run("cat", path, code=1).stderr
    (command,) = re.findall(r"or run dask-tfrecord (.*) if it was removed on purpose", error)
    run(*shlex.split(command))
    assert run("cat", path).stdout == '{"x": 2, "k": "b"}\n'


def test_options_that_need_partition_columns_name_the_option(run: Run, tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(dd.from_dict({"x": [1, 2]}, npartitions=1), tmp_path / "a")
    for flag in ("--overwrite-partitions", "--colocate"):
        error = run("convert", tmp_path / "a", tmp_path / "b", flag, code=1).stderr
        assert "requires partition columns; pass --partition-on x to" in error


def test_secrets_are_hidden(run: Run) -> None:
    options = ["key=AKIAIOSFODNN7EXAMPLE", "secret=wJalrXUtnFEMI/bPxRfiCY", "nothing=wJalrXUtnFEMI/bPxRfiCY"]
    pairs = [part for option in options for part in ("--storage-options", option)]
    result = run("--traceback", "count", "memory://AKIAIOSFODNN7EXAMPLE/x", *pairs, code=1)
    assert "AKIA" not in result.output
    assert "wJalr" not in result.output
    result = run("count", "nothing://user:hunter2secret@host/x", code=1)
    assert "hunter2secret" not in result.output


def test_a_storage_option_without_a_value_is_not_repeated_in_the_error(run: Run) -> None:
    error = run("count", "x", "--storage-options", "hunter2secret", code=2).stderr
    assert "hunter2secret" not in error
    assert "KEY=VALUE" in error


def test_without_rich_the_error_says_what_to_install(people: Path) -> None:
    code = "import sys; sys.modules['rich'] = None; from dask_tfrecord_launcher import main; main()"
    command = [sys.executable, "-c", code, "count", str(people)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    advice = "pip install 'dask-tfrecord[cli]'"
    assert result.stderr == f"Error: the command line needs the package rich: {advice}\n"


def test_a_closed_pipe_ends_the_command_quietly(tmp_path: Path) -> None:
    ddf = dd.from_dict({"x": list(range(200_000))}, npartitions=1)
    dask_tfrecord.to_tfrecord(ddf, tmp_path / "many")
    command = f"'{SCRIPT}' cat many | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == '{"x": 0}\n141\n'
    assert result.stderr == ""


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("where", [[], ["--workers", "1"]], ids=["threads", "cluster"])
def test_an_interrupt_ends_with_130_and_leaves_no_files(tmp_path: Path, where: list[str]) -> None:
    """A terminal sends Ctrl-C to all processes of the command."""
    rows = pa.table({"x": [os.urandom(1_000_000)] * 12})  # xz takes seconds
    pq.write_table(rows, tmp_path / "random.parquet", row_group_size=1)
    out = tmp_path / "out"
    command = [SCRIPT, "convert", tmp_path / "random.parquet", out, "--compression", "xz"]
    with subprocess.Popen(
        [*command, *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while process.poll() is None and not (out / "_tfrecord" / "staging").exists():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, output) == (130, "")
    assert errors.endswith("Interrupted.\n")
    assert "Traceback" not in errors
    assert not dask_tfrecord.exists(out)


def test_warnings_are_lines_on_stderr(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n0.1\n")
    result = run("convert", tmp_path / "a.csv", tmp_path / "out")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Warning: TFRecord has 32-bit floats only, so the values of 'x' are rounded")


def test_the_group_runs_inside_another_one() -> None:
    """The exit codes are the same below Dask's own group."""
    outer = click.Group("dask", commands={"tfrecord": main})
    result = CliRunner().invoke(outer, ["tfrecord", "count", "/nothing/here"])
    assert result.exit_code == 1
    assert result.stderr == "Error: /nothing/here: no such file or directory\n"


def message_of(error: Exception) -> str:
    """What a command prints that fails with this error."""
    group = click.Group("group")

    @group.command()
    @click.pass_context
    def fail(ctx: click.Context) -> None:
        with one_line_errors(ctx):
            note_paths(ctx, "s3://bucket/people")
            raise error

    return CliRunner().invoke(group, ["fail"]).stderr


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        (Remedy("schema", {"x": pa.float32()}), "--type x=float32"),
        (
            Remedy("schema", {"a b": pa.list_(pa.int64()), "y": pa.string()}),
            "--type 'a b=list<int64>' --type y=string",
        ),
        (Remedy("overwrite", "partitions"), "--overwrite-partitions"),
        (Remedy("version", None), "no --version"),
        (Remedy("partition_on", ["day", "a b"]), "--partition-on 'day,a b'"),
        (Remedy("use_snapshot", False), "--no-snapshot"),
        (Remedy("on_corrupt", "skip"), "--on-corrupt skip"),
    ],
)
def test_a_remedy_is_an_option_for_the_shell(remedy: Remedy, expected: str) -> None:
    assert option(remedy) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            PermissionError(13, "Permission denied", "/data/x"),
            "/data/x: Permission denied; check the owner and the permissions, or run it as another user",
        ),
        (
            PermissionError("Forbidden"),
            "s3://bucket/people: Forbidden; check the credentials and what they allow",
        ),
        (OSError(28, "No space left on device", "/data/x"), "/data/x: No space left on device"),
        (OSError("the store is gone"), "the store is gone"),
    ],
)
def test_errors_of_a_store_name_the_path(error: OSError, expected: str) -> None:
    assert message_of(error) == f"Error: {expected}\n"


def test_the_advice_about_a_type_can_be_followed(run: Run, tmp_path: Path) -> None:
    for name, values in {"a": [1, 2], "b": [[1, 2], [3]]}.items():
        frame = pa.table({"x": values}).to_pandas(types_mapper=pd.ArrowDtype)
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / name)
    (one,), (other,) = ((tmp_path / name).glob("part-*") for name in "ab")
    error = run("cat", one, other, "--type", "x=int64", code=1).stderr
    (advice,) = re.findall(r"--type (\S+)", error.replace("'", ""))
    assert run("cat", one, other, "--type", advice).stdout.count("\n") == 4
