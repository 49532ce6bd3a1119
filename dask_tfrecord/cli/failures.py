"""Print each error and warning of a subcommand as one line on stderr, without secrets, and set exit codes.

Characters that would control a terminal are escaped, because messages may contain untrusted text.
"""

import json
import re
import shlex
import sys
import traceback
import warnings
from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import pyarrow as pa

from dask_tfrecord import NotFoundError, RemedyWarning, TFRecordError
from dask_tfrecord.errors import Call, Remedy
from dask_tfrecord.storage.redaction import hide_secrets

# Matches characters that control a terminal or change the order of text: C0 and C1 controls, line separators,
# and directional and invisible formatting. The surrogates in the pattern represent bytes of names that are
# not UTF-8.
UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    r"\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    r"""Return a text as one line, with escapes such as ``\x1b`` for characters that control a terminal."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped_json(text: str) -> str:
    """Escape the characters in JSON text that would control a terminal. Line breaks are kept."""
    return UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)


DAMAGED = 3  # The exit code of a command that succeeded but found damage.

_SECRETS = "dask_tfrecord.secrets"
_PATHS = "dask_tfrecord.paths"

# Dask begins the message of each error in its readers with this text.
_BACKEND = re.compile(r"An error occurred while calling the .* backend\.\s+Original Message: ")

# Maps each optional package that an option needs to the requirement for `pip install`.
_OPTIONAL = {
    "distributed": "'dask-tfrecord[distributed]'",
    "matplotlib": "matplotlib",
    "tensorflow": "tensorflow",
}

# Maps a keyword to the name of its option, if the two names differ.
_OPTION_NAMES = {"filters": "where", "quarantine_path": "quarantine", "schema": "type"}

# These keywords are True by default, and have an option that makes them False.
_TRUE = ("hive", "use_snapshot", "verify_crc")


def keep_secret(ctx: click.Context, *places: Any) -> None:
    """Hide the secrets of paths and storage options in everything that this run prints on stderr."""
    ctx.meta[_SECRETS] = (*ctx.meta.get(_SECRETS, ()), *places)


def note_paths(ctx: click.Context, *paths: str) -> None:
    """Hide the secrets in the paths of this run. A PermissionError that names no file shows these paths."""
    keep_secret(ctx, paths)
    ctx.meta[_PATHS] = (*ctx.meta.get(_PATHS, ()), *paths)


@contextmanager
def one_line_errors(ctx: click.Context) -> Iterator[None]:
    """Print each warning and the error of the ``with`` block as one line on stderr, and exit after an error.

    Interrupts and click's usage errors are raised unchanged.
    """
    printed: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        if isinstance(message, RemedyWarning):
            accepted = [remedy for remedy in message.remedies if _accepts(ctx, remedy)]
            text = RemedyWarning(message.problem, accepted).rendered(option)
        if text not in printed:
            printed.add(text)
            click.echo(f"Warning: {_one_line(ctx, text)}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", UserWarning)
        try:
            yield
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # every error of a store, a codec or the package is shown as one line
            if ctx.meta.get("dask_tfrecord.traceback"):
                lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
                for line in lines:
                    click.echo(printable(hide_secrets(line, *ctx.meta.get(_SECRETS, ()))), err=True)
            if isinstance(error, TFRecordError) and ctx.invoked_subcommand is not None:
                # Show only the remedies that the subcommand accepts as options.
                error = error.called_as(ctx.invoked_subcommand, lambda remedy: _accepts(ctx, remedy))
            text = describe(error, ctx.meta.get(_PATHS, ()))
            raise click.ClickException(_one_line(ctx, text)) from None


def describe(error: BaseException, paths: Sequence[str] = ()) -> str:
    """Return the message of an error, with the name of its class if it would be unclear alone.

    If a PermissionError names no file, the message begins with ``paths``.
    """
    text = _BACKEND.sub("", str(error))
    if isinstance(error, NotFoundError):
        return error.rendered(command)
    if isinstance(error, ModuleNotFoundError) and error.name in _OPTIONAL:
        return f"the option needs the package {error.name}: pip install {_OPTIONAL[error.name]}"
    if isinstance(error, TFRecordError):
        if error.keyword:
            error = error.replaced(problem=_with_options(error.problem, error.keyword))
        return error.rendered(option, command)
    if not isinstance(error, OSError) or not (text or isinstance(error, PermissionError)):
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    if error.errno is not None and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    if isinstance(error, PermissionError) and error.filename is None:
        return f"{', '.join(paths)}: {text or 'access denied'}; check the credentials and what they allow"
    if isinstance(error, PermissionError) and "://" not in str(error.filename):
        return f"{text}; check the owner and the permissions, or run it as another user"
    return text


def _with_options(problem: str, keyword: str) -> str:
    """In an error text, replace ``keyword=`` and any list of names after it by the command-line option."""

    def as_option(found: re.Match[str]) -> str:
        names = literal_eval(found[1]) if found[1] else ""
        return option(Remedy(keyword, names)) if names else f"--{option_name(keyword)} "

    return re.sub(rf"\b{keyword}=(\['[^\]]*'\])?", as_option, problem)


def _accepts(ctx: click.Context, remedy: Remedy) -> bool:
    """Return True if the subcommand has an option for a remedy's keyword that accepts the remedy's value."""
    group, command = ctx.command, ctx.invoked_subcommand
    found = group.get_command(ctx, command) if isinstance(group, click.Group) and command else None
    params = {text: one for one in found.params for text in (*one.opts, *one.secondary_opts)} if found else {}
    name, *values = option(remedy).removeprefix("no ").split(" ", 1)
    if name not in params or (remedy.keyword == "schema" and None in remedy.value.values()):
        return False
    kind = params[name].type
    return not isinstance(kind, click.Choice) or {*values} <= {*kind.choices}


def option_name(keyword: str, value: Any = True) -> str:
    name = _OPTION_NAMES.get(keyword, keyword)
    return (f"no-{name.removeprefix('use_')}" if value is False else name).replace("_", "-")


def option(remedy: Remedy) -> str:
    name, value, *_ = remedy
    text = f"--{option_name(name, value)}"
    if value is None:
        return f"{text} none" if name == "compression" else f"no {text}"
    if value is True and name in _TRUE:
        return f"no --{option_name(name, False)}"
    if name in ("read_options", "write_options"):
        return " ".join(option(Remedy(*item)) for item in value.items())
    if name == "schema":
        return " ".join(
            f"{text} {shlex.quote(f'{column}={_type_name(type_)}')}" for column, type_ in value.items()
        )
    if name == "storage_options":
        return " ".join(f"{text} {key}={json.dumps(item)}" for key, item in value.items())
    if (name, value) == ("overwrite", "partitions"):
        return "--overwrite-partitions"
    if isinstance(value, bool):
        return text
    return f"{text} {shlex.quote(','.join(value) if isinstance(value, list) else str(value))}"


def command(call: Call) -> str:
    name = {"to_tfrecord": "convert SRC"}.get(call.function, call.function.replace("_", "-"))
    options = [option(Remedy(*item)) for item in call.keywords.items()]
    return " ".join(["run dask-tfrecord", name, shlex.quote(call.path), *options])


def _type_name(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return f"list<{_type_name(type_.value_type)}>"
    return {"float": "float32", "double": "float64", "halffloat": "float16"}.get(str(type_), str(type_))


def _one_line(ctx: click.Context, text: str) -> str:
    return printable(" ".join(hide_secrets(text, *ctx.meta.get(_SECRETS, ())).split()))
