"""The arguments and options that several subcommands share."""

import functools
import json
from collections.abc import Callable
from typing import Any

import click
from dask.utils import parse_bytes

from dask_tfrecord.cli.compute import Computing
from dask_tfrecord.cli.failures import keep_secret, note_paths
from dask_tfrecord.files.storage.redaction import is_secret_name
from dask_tfrecord.schema.type_names import arrow_type


def _paths(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> str | list[str]:
    """Return one path as it is: a directory in a list is read without its snapshot."""
    note_paths(ctx, *value)
    return value[0] if len(value) == 1 else list(value)


def _path(ctx: click.Context, param: click.Parameter, value: str) -> str:
    note_paths(ctx, value)
    return value


def _storage_options(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, Any] | None:
    found = {name: _parsed(name, text) for name, text in map(_pair, value)}
    keep_secret(ctx, found)
    return found or None


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:  # the text may be a secret, so the message does not repeat it
        raise click.BadParameter("each must have the form KEY=VALUE")
    return name, value


def _parsed(name: str, text: str) -> Any:
    """Return the value of a storage option. JSON is parsed, but not in secrets, which may be digits."""
    if is_secret_name(name) and not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def split_names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str] | None:
    """Return the names of a repeatable option, each of which may hold several names with commas."""
    return [name for text in value for name in text.split(",")] or None


def _types(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, Any] | None:
    found = {}
    for name, text in map(_pair, value):
        try:
            found[name] = arrow_type(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}; use a name such as int64, float32 or list<string>") from None
    return found or None


paths = click.argument("path", nargs=-1, required=True, metavar="PATH...", callback=_paths)
path = click.argument("path", callback=_path)

storage_options = click.option(
    "--storage-options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_storage_options,
    help="Option of the filesystem, such as anon=true. Repeatable. Other programs can see the options of a "
    "command, so leave credentials in the environment or in the store's own configuration files.",
)
columns = click.option(
    "--columns",
    multiple=True,
    metavar="NAME[,NAME...]",
    callback=split_names,
    help="Columns to read, in this order. Repeat the option for names with a comma. Default: all.",
)
where = click.option(
    "--where",
    metavar="CONDITION",
    help="Rows to read, such as \"x > 3 and country == 'CH'\". Comparisons, `in [...]`, `is None`, `and`, "
    "`or`, `not` and parentheses, as in Python. Dates and times are text: \"day >= '2024-01-31'\". "
    "`column('a-b')` names a column that is not a Python name.",
)
types = click.option(
    "--type",
    "types",
    multiple=True,
    metavar="COLUMN=TYPE",
    callback=_types,
    help="Arrow type of a column, such as age=int8 or tags=list<string>. Default: inferred. Repeatable.",
)
version = click.option(
    "--version",
    type=click.IntRange(1),
    metavar="N",
    help="Version of the dataset to read, as `inspect` lists the versions. Default: the newest.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def computing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where Dask computes. The command gets them as ``computing``."""

    @functools.wraps(command)
    def run(**arguments: Any) -> Any:
        names = ("scheduler", "workers", "threads", "memory_limit")
        settings = {name: arguments.pop(name) for name in names}
        local = [name for name in names[1:] if settings[name] is not None]
        if settings["scheduler"] and local:
            option = local[0].replace("_", "-")
            raise click.UsageError(f"--{option} is for a local cluster, and --scheduler names another one")
        return command(computing=Computing(**settings), **arguments)

    for option in (_memory_limit, _threads, _workers, _scheduler):
        run = option(run)
    return run


def _memory_limit_text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the text as it is, because `distributed` also takes "auto" and fractions of the memory."""
    if value is not None and value != "auto":
        try:
            parse_bytes(value)
        except ValueError:
            raise click.BadParameter(f'{value!r} is not a size, such as "4 GB"') from None
    return value


_scheduler = click.option(
    "--scheduler", metavar="ADDRESS", help="Address of a Dask scheduler, such as tcp://host:8786."
)
_workers = click.option(
    "--workers",
    type=click.IntRange(1),
    help="Compute in a local cluster of so many processes. Default: in threads of the command.",
)
_threads = click.option(
    "--threads", type=click.IntRange(1), help="Number of threads, of each worker if there are any."
)
_memory_limit = click.option(
    "--memory-limit",
    metavar="BYTES",
    callback=_memory_limit_text,
    help='Compute in a local cluster whose workers have this memory each, such as "4 GB".',
)
