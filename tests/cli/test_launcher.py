"""The command itself: light to import, with exit codes and errors of one line.

Modules: cli.failures, cli.dask_tfrecord_launcher.
"""

import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import dask.dataframe as dd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from conftest import Run

import dask_tfrecord
from dask_tfrecord.cli.failures import note_paths, one_line_errors, option
from dask_tfrecord.errors import Remedy
from dask_tfrecord_launcher import COMMANDS, main

SCRIPT = Path(sys.executable).parent / "dask-tfrecord"


def _python(code: str, *, arguments: Sequence[str] = (), **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


COMPLETE = {"_DASK_TFRECORD_COMPLETE": "bash_complete", "COMP_WORDS": "dask-tfrecord ", "COMP_CWORD": "1"}


@pytest.mark.parametrize(("environment", "shown"), [({}, "  {} "), (COMPLETE, "plain,{}\n")])
def test_help_and_completion_import_neither_the_package_nor_what_it_needs(
    environment: dict[str, str], shown: str
) -> None:
    heavy = {"dask_tfrecord", "dask.dataframe", "pandas", "pyarrow", "numpy", "fsspec", "rich", "distributed"}
    code = (
        "import sys; from dask_tfrecord_launcher import main\n"
        "try: main(['--help'], prog_name='dask-tfrecord')\n"
        f"finally: print(sorted({heavy!r} & set(sys.modules)))"
    )
    output = _python(code, env={**os.environ, **environment}).stdout
    assert output.endswith("[]\n")
    assert [name for name in COMMANDS if shown.format(name) not in output] == []


# The child process runs two commands, and its parent imports the launcher and the package, as a worker does.
_COMMANDS_AND_IMPORT = """
import os, sys
from dask_tfrecord_launcher import main
if os.fork() == 0:
    for command in ("count", "describe"):
        main([command, sys.argv[1]], standalone_mode=False)
    print(sorted({"dask.dataframe", "distributed", "scipy"} & set(sys.modules)), flush=True)
    os._exit(0)
os.wait()
import dask_tfrecord, dask.dataframe as dd
print(dd.read_tfrecord is dask_tfrecord.read_tfrecord, dd.DataFrame.to_tfrecord is dask_tfrecord.to_tfrecord)
"""


def test_only_a_command_leaves_dask_dataframe_out_of_the_import(people: Path) -> None:
    lines = _python(_COMMANDS_AND_IMPORT, arguments=[str(people)]).stdout.splitlines()
    assert (lines[0], lines[-2:]) == ("3", ["[]", "True True"])


@pytest.mark.parametrize(
    ("line", "incomplete", "expected"),
    [
        ("", "he", ["head"]),
        ("nothing", "", [*COMMANDS]),
        ("head", "--on", ["--on-corrupt"]),
        ("head a -n 1 -n 2 --on-corrupt", "sk", ["skip"]),
        ("head --help-all", "--js", ["--json"]),
        ("convert a", "rid", ["rid"]),
    ],
)
def test_a_shell_completes_commands_options_choices_and_paths(
    line: str, incomplete: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = ShellComplete(main, {}, "dask-tfrecord", "").get_completions(line.split(), incomplete)
    assert [item.value for item in found] == expected
    assert {item.type for item in found} <= {"file" if incomplete == "rid" else "plain"}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_shows_the_first_line_of_each_help(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").partition("\n\n")[0].replace("\n", " ") == COMMANDS[name][1]
    options = [one for one in command.params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []
    assert [one.help for one in options if re.search(r"\b(True|False)\b|\w=\"", one.help or "")] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_a_help_are_valid_and_use_only_options_that_it_shows(run: Run, name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    shown, examples = run(name, "--help").stdout.split("Examples:\n")
    lines = [shlex.split(line) for line in examples.splitlines()]
    assert lines
    for program, subcommand, *arguments in lines:
        assert (program, subcommand) == ("dask-tfrecord", name)
        command.make_context(name, arguments)
        assert [text for text in arguments if text.startswith("-") and text not in shown] == []


def test_the_help_leaves_out_rare_options_and_says_how_to_see_them(run: Run) -> None:
    usual, every = run("head", "--help").stdout, run("head", "--help-all").stdout
    assert ("--help-all" in usual, "Damage:" in usual, "Damage:" in every) == (True, False, True)
    assert {*re.findall(r"^  (--[\w-]+)", usual, re.M)} < {*re.findall(r"^  (--[\w-]+)", every, re.M)}
    assert "--help-all" not in run("restore", "--help").stdout


def test_an_error_is_one_line_on_stderr_also_below_dasks_own_group(run: Run, people: Path) -> None:
    missing = people.parent / "nothing"
    result = run("count", missing, code=1)
    assert (result.stdout, result.stderr) == ("", f"Error: {missing}: no such file or directory\n")
    assert "Traceback" in run("--traceback", "count", missing, code=1).stderr
    assert run("--version").stdout.strip() == dask_tfrecord.__version__
    (entry,) = importlib.metadata.entry_points(group="dask_cli", name="tfrecord")
    group = click.Group("dask", commands={entry.name: entry.load()})
    assert CliRunner().invoke(group, ["tfrecord", "count", str(people)]).stdout == "3\n"
    below = CliRunner().invoke(group, ["tfrecord", "count", str(missing)])
    assert (below.exit_code, below.stderr) == (1, result.stderr)


@pytest.mark.parametrize(
    "arguments",
    ["count", "count --nothing x", "nothing", "count x --where 1+", "count x --workers 0"],
)
def test_wrong_usage_exits_with_2(run: Run, arguments: str) -> None:
    run(*arguments.split(), code=2)


def test_advice_names_options_and_commands_instead_of_keywords_and_calls(run: Run, tmp_path: Path) -> None:
    ddf = dd.from_dict({"x": [1, 2], "k": ["a", "b"]}, npartitions=1)
    path = tmp_path / "a set"
    dask_tfrecord.to_tfrecord(ddf, path, partition_on="k")
    error = run("convert", path, path, code=1).stderr
    assert "pass --append to add to it, or --overwrite to remove it" in error
    error = run("convert", path, path / "k=a", code=1).stderr
    assert f"run dask-tfrecord convert SRC '{path}' --partition-on k --append to add the rows" in error
    next(path.glob("k=a/*")).unlink()
    error = run("cat", path, code=1).stderr
    (command,) = re.findall(r"or run dask-tfrecord (.*) if it was removed on purpose", error)
    run(*shlex.split(command))
    assert run("cat", path).stdout == '{"x": 2, "k": "b"}\n'


def test_secrets_are_hidden(run: Run) -> None:
    options = ["key=AKIAIOSFODNN7EXAMPLE", "secret=wJalrXUtnFEMI/bPxRfiCY", "nothing=wJalrXUtnFEMI/bPxRfiCY"]
    pairs = [part for option in options for part in ("--storage-options", option)]
    output = run("--traceback", "count", "memory://AKIAIOSFODNN7EXAMPLE/x", *pairs, code=1).output
    output += run("count", "nothing://user:hunter2secret@host/x", code=1).output
    error = run("count", "x", "--storage-options", "hunter2secret", code=2).stderr
    assert "KEY=VALUE" in error
    assert [secret for secret in ("AKIA", "wJalr", "hunter2secret") if secret in output + error] == []


def test_without_rich_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['rich'] = None; from dask_tfrecord_launcher import main\n"
    result = _python(code + "main(['count', 'x'])")
    advice = "pip install 'dask-tfrecord[cli]'"
    assert result.returncode == 1
    assert result.stderr == f"Error: the command line needs the package rich: {advice}\n"


def test_a_closed_pipe_ends_the_command_quietly(tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(pa.table({"x": range(200_000)}), tmp_path / "many")
    command = f"'{SCRIPT}' cat many | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ('{"x": 0}\n141\n', "")


# Run commands in forks of one process. A stream is closed (None), a pipe that nobody reads, or a file.
_FORKS = """
import json, os, sys
from dask_tfrecord_launcher import main
import dask_tfrecord.cli.convert, dask_tfrecord.cli.maintenance, dask_tfrecord.cli.show
codes = []
for streams, arguments in json.loads(sys.argv[1]):
    if (pid := os.fork()) == 0:
        for name, target in streams.items():
            number = ["stdin", "stdout", "stderr"].index(name)
            if target is None:
                os.close(number)
                setattr(sys, name, None)
                setattr(sys, f"__{name}__", None)
            else:
                if target == "pipe":
                    read, found = os.pipe()
                    os.close(read)
                else:
                    found = os.open(target, os.O_WRONLY)
                os.dup2(found, number)
                os.close(found)
        sys.exit(main(arguments))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(codes)
"""


def _codes(directory: Path, cases: list[tuple[dict[str, str | None], str]]) -> tuple[list[int], str]:
    given = json.dumps([(streams, shlex.split(arguments)) for streams, arguments in cases])
    result = _python(_FORKS, cwd=directory, arguments=[given])
    assert [text for text in ("Traceback", "Exception ignored", "Errno") if text in result.stderr] == []
    return json.loads(result.stdout.splitlines()[-1]), result.stderr


CLOSED = {"stdin": None, "stdout": None, "stderr": None}


def test_a_closed_or_full_stream_changes_only_the_exit_code_as_the_page_promises(people: Path) -> None:
    cases: list[tuple[dict[str, str | None], str, int]] = [
        ({"stderr": None}, "verify people", 0),
        (CLOSED, "count nothing", 1),
        ({"stderr": "/dev/full"}, "count nothing", 1),
        ({"stderr": "pipe"}, "count people --nothing", 2),
        ({"stdout": "/dev/full"}, "--help", 1),
        ({"stdout": "pipe"}, "--version", 141),
        ({"stdout": "pipe", "stderr": "pipe"}, "convert --help", 141),
        ({"stdout": "pipe"}, "cat people --json", 141),
        ({"stdout": None}, "delete people --where 'born == 1815' --yes", 0),
        (CLOSED, "convert people people --append --where 'born == 1912'", 0),
        ({"stdout": "/dev/full"}, "compact people", 1),
        ({"stdout": "pipe"}, "delete people --where 'name is None' --yes", 141),
        (CLOSED, "delete people --where 'born == 1912'", 2),  # nobody can answer the question
    ]
    codes, stderr = _codes(people.parent, [(streams, command) for streams, command, _ in cases])
    assert codes == [code for *_, code in cases]
    assert stderr.count("Error: the output: No space left on device") == 2
    assert stderr.count("; the command has done its work, and only this report is lost\n") == 1
    assert dask_tfrecord.read_tfrecord(people)["born"].compute().tolist() == [1912, 1912]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("where", [[], ["--workers", "1"]], ids=["threads", "cluster"])
def test_an_interrupt_ends_with_130_and_leaves_no_files(tmp_path: Path, where: list[str]) -> None:
    """A terminal sends Ctrl-C to all processes of the command."""
    rows = pa.table({"x": [os.urandom(1_000_000)] * 12})  # xz takes seconds
    pq.write_table(rows, tmp_path / "random.parquet", row_group_size=1)
    out = tmp_path / "out"
    command = [SCRIPT, "convert", tmp_path / "random.parquet", out, "--compression", "xz", *where]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        while process.poll() is None and not (out / "_tfrecord" / "staging").exists():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, output) == (130, "")
    assert errors.endswith("Interrupted.\n")
    assert "Traceback" not in errors
    assert not dask_tfrecord.exists(out)


def message_of(error: Exception) -> str:
    """What a command prints that fails with this error."""

    @click.command()
    @click.pass_context
    def fail(ctx: click.Context) -> None:
        with one_line_errors(ctx):
            note_paths(ctx, "s3://bucket/people")
            raise error

    return CliRunner().invoke(click.Group("group", commands={"fail": fail}), ["fail"]).stderr


LISTS = {"a b": pa.list_(pa.int64()), "y": pa.string()}


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        (Remedy("schema", LISTS), "--type 'a b=list<int64>' --type y=string"),
        (Remedy("overwrite", "partitions"), "--overwrite-partitions"),
        (Remedy("version", None), "no --version"),
        (Remedy("partition_on", ["day", "a b"]), "--partition-on 'day,a b'"),
        (Remedy("use_snapshot", False), "--no-snapshot"),
        (Remedy("use_snapshot", True), "no --no-snapshot"),
        (Remedy("on_corrupt", "skip"), "--on-corrupt skip"),
    ],
)
def test_a_remedy_is_an_option_for_the_shell(remedy: Remedy, expected: str) -> None:
    assert option(remedy) == expected


DENIED = "check the owner and the permissions, or run it as another user"
FORBIDDEN = "s3://bucket/people: Forbidden; check the credentials and what they allow"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(13, "Permission denied", "/data/x"), f"/data/x: Permission denied; {DENIED}"),
        (PermissionError("Forbidden"), FORBIDDEN),
        (OSError(28, "No space left on device", "/data/x"), "/data/x: No space left on device"),
        (OSError("the store is gone"), "the store is gone"),
    ],
)
def test_errors_of_a_store_name_the_path(error: OSError, expected: str) -> None:
    assert message_of(error) == f"Error: {expected}\n"


def test_the_advice_about_a_type_can_be_followed(run: Run, tmp_path: Path) -> None:
    for name, values in {"a": [1, 2], "b": [[1, 2], [3]]}.items():
        dask_tfrecord.to_tfrecord(pa.table({"x": values}), tmp_path / name)
    files = sorted(tmp_path.glob("[ab]/part-*"))
    error = run("cat", *files, "--type", "x=int64", code=1).stderr
    (advice,) = re.findall(r"--type (\S+)", error.replace("'", ""))
    assert run("cat", *files, "--type", advice).stdout.count("\n") == 4
