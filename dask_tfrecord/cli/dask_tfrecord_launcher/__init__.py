"""Define the command `dask-tfrecord`, which is also available as `dask tfrecord`. The module of a subcommand
is imported only when it is used.

Dask imports this module each time its own command line starts, for example when it starts a worker.
`pyproject.toml` installs this folder as a separate package, because importing any module of the package
`dask_tfrecord` would import pandas, pyarrow and `dask.dataframe`.
"""

import importlib
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from typing import Any

import click
from click.shell_completion import CompletionItem

# Maps each subcommand to a module and to the first line of the subcommand's help text. The help text of
# `dask-tfrecord` lists the subcommands in this order.
COMMANDS = {
    "describe": ("show", "Describe a dataset: files, rows, codec, columns, version and first rows."),
    "head": ("show", "Print the first rows."),
    "cat": ("show", "Print all rows."),
    "count": ("show", "Print the number of rows."),
    "schema": ("show", "Print the columns and their types."),
    "history": ("maintenance", "List the versions, and what each of them did."),
    "check": ("maintenance", "List the files, and report missing, resized and unlisted ones."),
    "verify": ("maintenance", "Read all files, and report damage and differences."),
    "add-snapshot": ("maintenance", "Store a snapshot of files that another tool wrote."),
    "repair": ("maintenance", "Drop files that were removed by other means, and list them."),
    "compact": ("maintenance", "Replace small files by larger files."),
    "delete": ("maintenance", "Delete rows."),
    "restore": ("maintenance", "Make an older version the newest version."),
    "expire": ("maintenance", "Expire old versions, and remove the files that only they need."),
    "cleanup": ("maintenance", "Remove the files of interrupted writes."),
    "convert": ("convert", "Convert between TFRecord, Parquet, CSV and JSON lines."),
    "export": ("maintenance", "Describe a dataset to another library, by files beside the data."),
    "serve": ("serve", "Serve the rows to other processes as Arrow streams."),
}

# These subcommands print a report after they have changed files.
CHANGING = frozenset(
    ("add-snapshot", "cleanup", "compact", "convert", "delete", "expire", "export", "repair", "restore")
)

# Maps command names of other tools to the subcommands that an error message suggests.
_OTHER_NAMES = {
    **dict.fromkeys(("info", "inspect", "ls", "show", "stats"), "describe"),
    **dict.fromkeys(("index", "register"), "add-snapshot"),
    **dict.fromkeys(("merge", "optimize"), "compact"),
    **dict.fromkeys(("log", "versions"), "history"),
    **dict.fromkeys(("clean", "gc"), "cleanup"),
    "rollback": "restore",
    "vacuum": "expire",
    "validate": "verify",
}

# True in a process that runs a command. The package `dask_tfrecord` then adds no functions to Dask when it is
# imported, because this would import `dask.dataframe`, which many commands do not need.
runs_command = False

# The exit codes that a shell reports for a program ended by SIGINT or SIGPIPE.
_INTERRUPTED = 130
_BROKEN_PIPE = 141


class LazyGroup(click.Group):
    """A command group that imports a subcommand only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(f"dask_tfrecord.cli.{COMMANDS[cmd_name][0]}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "rich":
                raise
            advice = "pip install 'dask-tfrecord[cli]'"
            raise click.ClickException(f"the command line needs the package rich: {advice}") from None
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = (CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items())
        found = [item for item in items if item.value.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(name, COMMANDS)
            found = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else near or list(COMMANDS)
            start = "did you mean" if len(found) < len(COMMANDS) else "there are"
            ctx.fail(f"no command is named {name!r}; {start} {', '.join(found)}{'?' * (start[0] == 'd')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        global runs_command
        runs_command = True
        _prepare_streams()
        if not args:  # without arguments, click prints the help text of the command
            return super().parse_args(ctx, args)
        with _printable_errors(), writing_output():  # --help and --version print while they are parsed
            refuse_repeated(self, ctx, args)
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            # Import late, because importing `failures` loads the whole package.
            from dask_tfrecord.cli.failures import one_line_errors

            with _printable_errors(), one_line_errors(ctx):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(_INTERRUPTED)


def refuse_repeated(command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """Raise UsageError if an option with one value is passed twice. click would use only the last value.

    If an option such as --help is passed, which replaces the command, nothing is refused. A shell that
    completes a command line is refused nothing either.
    """
    if ctx.resilient_parsing:
        return
    _, _, given = command.make_parser(ctx).parse_args([*args])
    counts = Counter(param for param in given if isinstance(param, click.Option))
    if any(param.is_eager for param in counts):
        return
    for param, count in counts.items():
        if count > 1 and not param.multiple:
            names = " or ".join([*param.opts, *param.secondary_opts])
            times = "twice" if count == 2 else f"{count} times"
            raise click.UsageError(f"{names} is passed {times}, but has one value; pass it once", ctx)


class _StderrWithoutErrors:
    """Wrap stderr, and ignore failed writes, because the exit code still tells how the command ended."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _prepare_streams() -> None:
    """Connect closed standard streams to the null device, and ignore failed writes to stderr.

    If a standard stream stayed closed, the next opened file, for example a data file, would get its
    descriptor, and libraries would write their messages to it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)  # so that workers have the stream, too
            stream = open(null, mode, closefd=False)  # noqa: SIM115  # the stream stays open until Python ends
            setattr(sys, name, stream)
    if not isinstance(sys.stderr, _StderrWithoutErrors):
        sys.stderr = _StderrWithoutErrors(sys.stderr)


@contextmanager
def writing_output(consequence: str = "") -> Iterator[None]:
    """Translate a failed write to stdout: exit quietly if the reader of the pipe has ended, or raise a
    ClickException, for example if the disk is full. The error message ends with ``consequence``.
    """
    try:
        yield
    except OSError as error:
        with suppress(OSError, ValueError):  # a test may replace stdout by a stream without a descriptor
            # Python flushes stdout when it ends, and would print another error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise click.exceptions.Exit(_BROKEN_PIPE) from None
        raise click.ClickException(f"the output: {error.strerror or error}{consequence}") from None


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Escape characters in click's error messages that would control the terminal."""
    try:
        yield
    except click.ClickException as error:
        # Import late, because importing `failures` loads the whole package.
        from dask_tfrecord.cli.failures import printable

        text = printable(" ".join(error.format_message().split()))
        if isinstance(error, click.UsageError):
            raise click.UsageError(text, error.ctx) from None
        raise click.ClickException(text) from None


@click.group(
    "tfrecord",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 damage found, 130 interrupted.",
)
@click.version_option(package_name="dask-tfrecord", message="%(version)s")
@click.option("--traceback", is_flag=True, help="Print the whole traceback of an error.")
@click.pass_context
def main(ctx: click.Context, traceback: bool) -> None:
    """Look at, check and convert TFRecord datasets.

    PATH is a directory, a file or a glob on any filesystem that fsspec supports, such as s3://bucket/train.
    """
    ctx.meta["dask_tfrecord.traceback"] = traceback
    if traceback:
        logger = logging.getLogger("dask_tfrecord")
        ctx.call_on_close(partial(logger.setLevel, logger.level))
        logger.setLevel(logging.DEBUG)  # at the level DEBUG, errors keep their traceback
