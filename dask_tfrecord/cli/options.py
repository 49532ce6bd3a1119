"""Define the arguments and options that several subcommands share."""

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click
from dask.utils import parse_bytes

import dask_tfrecord
from dask_tfrecord.cli.failures import keep_secret, note_paths
from dask_tfrecord.cli.progress import Computing
from dask_tfrecord.cli.where_option import Filters, parse


def _paths(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> str | list[str]:
    """Return a single path outside a list, because a directory in a list is read without its snapshot."""
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
    is_secret = dask_tfrecord.hide_secrets(text, {name: text}) != text
    if is_secret and not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def split_names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str] | None:
    """Return the names in a repeatable option. Each value may hold several names, separated by commas."""
    return [name for text in value for name in text.split(",")] or None


def _types(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, Any] | None:
    found = {}
    for name, text in map(_pair, value):
        try:
            found[name] = dask_tfrecord.arrow_type(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}; use a name such as int64, float32 or list<string>") from None
    return found or None


def _secret_path(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    keep_secret(ctx, value)
    return value


def _splits(ctx: click.Context, param: click.Parameter, value: str | None) -> str | list[str] | None:
    return value.split(",") if value and "," in value else value


def _condition(ctx: click.Context, param: click.Parameter, value: str | None) -> Filters | None:
    return None if value is None else parse(value)


def _limit(ctx: click.Context, param: click.Parameter, value: str | None) -> int | float | None:
    for number in (int, float):
        with suppress(ValueError):
            return None if value is None else number(value)
    raise click.BadParameter(f"{value!r} is neither a number of records nor a fraction")


def size(word: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return the callback of an option that takes a number of bytes or a word."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value not in (None, word):
            try:
                parse_bytes(value)
            except ValueError:
                raise click.BadParameter(f'{value!r} is not a size, such as "64 MiB"') from None
        return value

    return check


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
    callback=_condition,
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
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")

_infer = click.option(
    "--infer",
    type=click.Choice(["sample", "all"]),
    default="sample",
    show_default=True,
    help="Records that show the columns of files without a snapshot.",
)
_schema_of = click.option(
    "--schema",
    "schema_of",
    metavar="PATH",
    callback=_secret_path,
    help="Directory of a dataset whose snapshot gives all columns and types. Not with --type.",
)
_split = click.option(
    "--split",
    metavar="NAME[,NAME...]",
    callback=_splits,
    help="Splits to read of a directory of TensorFlow Datasets or TFX, or of directories split=NAME. all: "
    "every split. Several splits have a column `split`.",
)
_version = click.option(
    "--version",
    type=click.IntRange(1),
    metavar="N",
    help="Version of the dataset to read, as `inspect` lists the versions. Default: the newest.",
)
_no_snapshot = click.option(
    "--no-snapshot", is_flag=True, help="Read all files of a directory, as if another tool had written them."
)
_on_corrupt = click.option(
    "--on-corrupt",
    type=click.Choice(["raise", "skip", "quarantine"]),
    default="raise",
    show_default=True,
    help="What to do with damaged records. skip reads all others, and warns. quarantine also stores the lost "
    "bytes.",
)
_quarantine = click.option(
    "--quarantine",
    metavar="PATH",
    callback=_secret_path,
    help="Directory for the lost bytes, with --on-corrupt quarantine.",
)
_max_corrupt = click.option(
    "--max-corrupt",
    metavar="LIMIT",
    callback=_limit,
    help="Damage that a partition may lose before it is an error: a number of records, or a fraction such as "
    "0.01. Default: no limit.",
)


# The keywords of `read_tfrecord` that `options.reading` always passes.
READ_DEFAULTS = {"infer": "sample", "use_snapshot": True, "on_corrupt": "raise"}


def _read_keywords(
    *,
    types: dict[str, Any] | None,
    schema_of: str | None,
    no_snapshot: bool,
    quarantine: str | None,
    **others: Any,
) -> dict[str, Any]:
    """Convert command-line options to keywords of `read_tfrecord` and `inspect`."""
    if types and schema_of:
        raise click.UsageError("--type and --schema exclude one another")
    schema: Any = types
    if schema_of is not None:
        schema = dask_tfrecord.Snapshot.open(
            schema_of, storage_options=storage_of(schema_of, others["storage_options"])
        )
    keywords = {**others, "schema": schema, "use_snapshot": not no_snapshot, "quarantine_path": quarantine}
    return {name: value for name, value in keywords.items() if value is not None}


def check_exclusive(values: dict[str, Any], *names: str) -> None:
    """Raise UsageError if several of the options are given."""
    given = [f"--{name.replace('_', '-')}" for name in names if values[name]]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude one another")


def storage_of(path: str, storage_options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the storage options for a path, or None for a local path."""
    return storage_options if "://" in path and not path.startswith("file://") else None


_scheduler = click.option(
    "--scheduler", metavar="ADDRESS", help="Address of a Dask scheduler, such as tcp://host:8786."
)
_workers = click.option(
    "--workers",
    type=click.IntRange(1),
    help="Compute in a local cluster with this number of processes. Default: in threads of the command.",
)
_threads = click.option(
    "--threads", type=click.IntRange(1), help="Number of threads, of each worker if there are any."
)
_memory_limit = click.option(
    "--memory-limit",
    metavar="BYTES",
    callback=size("auto"),
    help='Compute in a local cluster whose workers have this memory each, such as "4 GB".',
)


def _computing(**settings: Any) -> Computing:
    local = [name for name in ("workers", "threads", "memory_limit") if settings[name] is not None]
    if settings["scheduler"] and local:
        option = local[0].replace("_", "-")
        raise click.UsageError(f"--{option} is for a local cluster, and --scheduler names another one")
    return Computing(**settings)


def _gathered(
    name: str, make: Callable[..., Any], *options: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options. The command gets one argument, which a function makes of them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(**arguments: Any) -> Any:
            values = {option: arguments.pop(option) for option in names}
            return command(**arguments, **{name: make(**values)})

        before = {param.name for param in getattr(run, "__click_params__", ())}
        for option in reversed(options):
            option(run)
        names = [param.name for param in run.__click_params__ if param.name not in before]  # type: ignore[attr-defined]  # click keeps a command's options in this attribute of the function
        return run

    return decorate


# The options that say what is read, as the keywords of `read_tfrecord`, and where Dask computes.
reading = _gathered(
    "read",
    _read_keywords,
    types,
    _schema_of,
    _infer,
    _split,
    _version,
    _no_snapshot,
    _on_corrupt,
    _quarantine,
    _max_corrupt,
    storage_options,
)
computing = _gathered("computing", _computing, _scheduler, _workers, _threads, _memory_limit)
