"""Create command-line options from the keywords, defaults and docstrings of public functions.

A subcommand receives the passed options as keyword arguments, and forwards them to a public function. The
condition of the option ``--where`` has Python syntax, but is never executed as Python code.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain, pairwise, product
from math import prod
from typing import Any, Literal, NamedTuple, get_args, get_origin

import click
from dask.utils import parse_bytes

import dask_tfrecord
from dask_tfrecord.cli.compute import note_setting
from dask_tfrecord.cli.failures import keep_secret, note_paths, option_name
from dask_tfrecord.keywords.public_functions import OPTIONS
from dask_tfrecord.schema.logical_types import arrow_type
from dask_tfrecord.storage.redaction import hide_secrets
from dask_tfrecord_launcher import COMMANDS, refuse_repeated, writing_output

Condition = tuple[str, str, Any]
Filters = list[list[Condition]]

_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_OPPOSITE = {"==": "!=", "<": ">=", ">": "<=", "in": "not in", "is": "is not"}
_OPPOSITE |= {opposite: operator for operator, opposite in _OPPOSITE.items()}
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}

# Maps patterns of SQL, pandas and shell syntax to advice on what to write instead.
_FOREIGN = {
    r"[^=!<>]=(?!=)": "write == to compare, as in x == 3",
    r"<>": "write != to compare, as in x != 3",
    r"&": "write `and` between conditions",
    r"\|": "write `or` between conditions",
    r"!(?!=)": "write `not` before a condition",
    r"(?i)\bis\s+(not\s+)?null\b|[=<>]\s*null\b": "write None, as in x is None or x is not None",
    r"(?i)\bbetween\b": "write a range, as in 3 <= x <= 5",
    r"(?i)\bi?like\b": 'there is no `like`; for texts that begin with a, write "a" <= x < "b"; for other '
    "patterns, query the dataset with DuckDB",
}

# The maximum number of alternative lists of conditions in a filter. Joining a condition of m alternatives and
# a condition of n alternatives with `and` gives m * n lists.
_MOST_ALTERNATIVES = 1000


class _Column(NamedTuple):
    """Mark a text as a column name, to distinguish the name from a string value."""

    name: str


# `click.Context.meta` holds the condition of the option --where as text under this key.
CONDITION = "dask_tfrecord.condition"


def _where(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> Filters | None:
    """Join the conditions of all options --where with `and`, and store the joined text for messages."""
    if not texts:
        return None
    for text in texts:
        parse(text)
    ctx.meta[CONDITION] = texts[0] if len(texts) == 1 else " and ".join(f"({text})" for text in texts)
    return parse(ctx.meta[CONDITION])


def parse(text: str) -> Filters:
    """Parse a condition: comparisons of columns with literals, joined with `and`, `or` and `not`.

    A row passes the returned filters if it meets all conditions of one or more inner lists. A column is
    written as a Python name or as ``column('any name')``. Raise click.UsageError if ``text`` is not a valid
    condition.
    """
    try:
        return _alternatives(ast.parse(text.strip(), mode="eval").body, False)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        advice = [advice for pattern, advice in _FOREIGN.items() if re.search(pattern, _without_texts(text))]
        raise click.UsageError(
            f"--where {text!r} is not a condition: {'; '.join(advice or [reason])}"
        ) from None


def _without_texts(condition: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"", "''", condition)


def names_in(filters: Filters | None) -> list[str]:
    return list(dict.fromkeys(name for group in filters or () for name, _, _ in group))


def _alternatives(node: ast.expr, negated: bool) -> Filters:
    match node:
        case ast.UnaryOp(op=ast.Not()):
            return _alternatives(node.operand, not negated)
        case ast.BoolOp():
            parts = [_alternatives(part, negated) for part in node.values]
            if isinstance(node.op, ast.Or) != negated:
                return [*chain(*parts)]
            if prod(map(len, parts)) > _MOST_ALTERNATIVES:
                raise ValueError("it combines too many alternatives")
            return [[*chain(*groups)] for groups in product(*parts)]
        case ast.Compare():
            sides = map(_operand, (node.left, *node.comparators))
            conditions = [
                _condition(left, _OPERATORS[type(operator)], right, negated)
                for operator, (left, right) in zip(node.ops, pairwise(sides), strict=True)
            ]
            return [[one] for one in conditions] if negated else [conditions]
    raise ValueError(f"{ast.unparse(node)!r} is not a comparison")


def _operand(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            return _Column(name)
        case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[]):
            return _Column(name)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)!r} is neither a column nor a value") from None


def _condition(left: Any, operator: str, right: Any, negated: bool) -> Condition:
    if not isinstance(left, _Column):
        if not isinstance(right, _Column) or operator not in _MIRRORED:
            raise ValueError("a comparison needs one column")
        left, operator, right = right, _MIRRORED[operator], left
    elif isinstance(right, _Column):
        raise ValueError(
            f"it compares the columns {left.name!r} and {right.name!r}; write text in quotation marks, as in "
            f'{left.name} {operator} "{right.name}"'
        )
    if right is None and operator in ("==", "!="):
        operator = "is" if operator == "==" else "is not"
    if operator in ("in", "not in") and not isinstance(right, list | tuple | set):
        raise ValueError(f"{operator!r} needs a list, such as {left.name} {operator} ['a', 'b']")
    if operator in ("is", "is not") and right is not None:
        raise ValueError(f"{operator!r} needs None")
    return left.name, _OPPOSITE[operator] if negated else operator, right


def _pair(text: str, form: str = "KEY=VALUE") -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:  # the text may be a secret, so the message does not repeat it
        raise click.BadParameter(f"each must have the form {form}")
    return name, value


def _storage_option(text: str) -> tuple[str, Any]:
    """Parse a storage option.

    Values are JSON. A secret stays a string, because JSON would convert an all-digit secret to a number.
    """
    name, value = _pair(text)
    is_secret = hide_secrets(value, {name: value}) != value
    if not is_secret or value.startswith(("{", "[")):
        with suppress(ValueError):
            return name, json.loads(value)
    return name, value


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise click.BadParameter(f"{name!r} is passed twice, but has one value; pass it once")
        found[name] = value
    return found


def _one_or_all(names: list[str]) -> str | list[str] | None:
    return (names if len(names) > 1 else names[0]) if names else None


def _columnar(names: list[str]) -> str | list[str] | Literal[False] | None:
    if names == ["never"]:
        return False
    return names[0] if names in (["auto"], ["scalars"]) else names or None


def _column_type(text: str) -> tuple[str, Any]:
    name, value = _pair(text, "COLUMN=TYPE")
    try:
        return name, arrow_type(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; use a name such as int64, float32 or list<string>") from None


def _limit(text: str) -> int | float:
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    raise click.BadParameter(f"{text!r} is neither a number of records nor a fraction")


def _size(text: str) -> str:
    try:
        parse_bytes(text)
    except ValueError:
        raise click.BadParameter(f'{text!r} is not a size, such as "64 MiB"') from None
    return text


def noted(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Store the paths of a command for error messages, and return them.

    A single path is not returned as a list, because a directory in a list is read without its snapshot.
    """
    paths = (value,) if isinstance(value, str) else value
    note_paths(ctx, *paths)
    return paths[0] if len(paths) == 1 else list(paths)


def _secret(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    keep_secret(ctx, value)
    return value


_NAMES: dict[str, Any] = {
    "multiple": True,
    "type": lambda text: text.split(","),
    "metavar": "NAME[,NAME...]",
    "callback": lambda _, __, value: [*chain(*value)] or None,
}
_PAIRS: dict[str, Any] = {"multiple": True, "callback": lambda _, __, value: _without_repeats(value) or None}
_COUNT: dict[str, Any] = {"type": click.IntRange(1)}
_BYTES: dict[str, Any] = {"type": _size, "metavar": "BYTES"}

# Maps each keyword to the option settings that do not follow from the keyword's default and annotation.
_SETTINGS: dict[str, dict[str, Any]] = {
    "columns": {
        **_NAMES,
        "help": "Columns to read, in this order. Repeat the option for names with a comma. Default: all.",
    },
    "partition_on": _NAMES,
    "columnar": {
        **_NAMES,
        "metavar": "auto|scalars|never|NAME[,NAME...]",
        "callback": lambda _, __, value: _columnar([*chain(*value)]),
        "help": "Columns that are also stored in Parquet files below _tfrecord/, so that reads of these "
        "columns need not decode the records. scalars: all columns of numbers, dates, times and text. auto: "
        "in large files, those of the scalars that are small, or what the dataset was written with. never: "
        "none.",
    },
    "schema": {
        **_PAIRS,
        "type": _column_type,
        "metavar": "COLUMN=TYPE",
        "help": "Arrow type of a column, such as age=int8 or tags=list<string>. Repeatable.",
    },
    "storage_options": {
        "multiple": True,
        "type": _storage_option,
        "metavar": "KEY=VALUE",
        "callback": lambda ctx, _, value: _secret(ctx, _, _without_repeats(value)) or None,
        "help": "Option of the filesystem, such as anon=true. Repeatable. Other programs can see the options "
        "of a command, so leave credentials in the environment or in the store's own configuration files.",
    },
    "filters": {
        "multiple": True,
        "callback": _where,
        "metavar": "CONDITION",
        "help": "Condition that selects rows, such as \"x > 3 and country == 'CH'\". Comparisons, "
        "`in [...]`, `is None`, `and`, `or`, `not` and parentheses, as in Python. Dates and times are text: "
        "\"day >= '2024-01-31'\". `column('a-b')` names a column that is not a Python name. If the option is "
        "repeated, rows must meet all conditions.",
    },
    "hive": {"help": "Do not create columns from directories such as day=1."},
    "use_snapshot": {"help": "Read all files of a directory, as if another tool had written them."},
    "verify_crc": {"help": "Do not verify the checksums of the payloads of records."},
    "split": {
        **_NAMES,
        "callback": lambda _, __, value: _one_or_all([*chain(*value)]),
        "help": "Splits to read, such as train, or all. Several splits, or all, add a column split.",
    },
    "infer": {
        "help": "Infer the columns from a sample of the records, or from all, which reads all files twice."
    },
    "extra": {
        "help": "Raise for a feature that has no column because no sampled record has it, or ignore it."
    },
    "include_offset_column": {
        "help": "Add a column offset: where each record begins in its decompressed file."
    },
    "lossy": {
        "help": "Warn once of values that TFRecord's 32-bit floats round, allow them, or raise. Default: "
        "dask-tfrecord.lossy of Dask's configuration, or else warn."
    },
    "write_id": {
        "help": "Name of the write, such as the day of a nightly job. If one of the last 1,000 commits has "
        "the same name, nothing is written."
    },
    "overwrite": {"help": "Replace the data in DST. The old data stays until the new data is complete."},
    "version": {
        **_COUNT,
        "metavar": "N",
        "help": "Version of the dataset, as `history` lists the versions. Default: the newest.",
    },
    "keep_versions": {
        "help": "Keep the earlier versions, so that --version still reads them, or remove them with the "
        "replaced files. Default: dask-tfrecord.keep-versions of Dask's configuration, or else compact and "
        "delete keep them, and --overwrite removes them."
    },
    "dry_run": {"help": "Print what the command would do, and change nothing."},
    "quarantine_path": {"metavar": "PATH", "callback": _secret},
    "max_corrupt": {
        "type": _limit,
        "metavar": "LIMIT",
        "help": "Raise if a partition loses more than this number, or fraction, of its records to damage.",
    },
    "max_record_bytes": _BYTES,
    "max_features": _COUNT,
    "shuffle": {"help": "Put the rows in random order."},
    "seed": {"type": click.IntRange(0), "metavar": "SEED"},
    "batch_size": _COUNT,
    "npartitions": _COUNT,
    "older_than": {"metavar": "DURATION"},
    "grace": {"metavar": "DURATION"},
    "versions": {**_COUNT, "metavar": "N"},
    "target_bytes": {**_BYTES, "help": 'Largest stored size of a new file, such as "256 MiB".'},
    "format": {
        "help": "idx: the offsets of the records, for NVIDIA DALI. tfds: for TensorFlow Datasets. tfmd: "
        "schema.pbtxt, for TFX."
    },
}


# Maps each section of ``--help`` to the names of its options. The first section contains all options that no
# other section lists.
_SECTIONS = {
    "Options": (),
    "Rows and columns": (*("columns", "filters", "split", "version", "include_offset_column"),),
    "Types": (
        *("schema", "schema_of", "record_type", "labels", "hive", "use_snapshot"),
        *("infer", "extra", "max_features"),
    ),
    "Damage": ("on_corrupt", "max_corrupt", "quarantine_path", "verify_crc", "max_record_bytes"),
    "Files that are written": (
        *("append", "schema_change", "overwrite", "overwrite_partitions", "keep_versions"),
        *("partition_on", "colocate", "shuffle", "seed", "npartitions", "lossy", "columnar"),
    ),
    "Computation": ("scheduler", "workers", "threads"),
}
_SECTION_OF = {name: section for section, names in _SECTIONS.items() for name in names}

# Only ``--help-all`` shows these options, and those of the sections "Damage" and "Computation".
_RARE = frozenset(
    (
        *("hive", "use_snapshot", "labels", "record_type", "extra", "infer", "max_features", "schema_of"),
        *("include_offset_column", "columnar", "colocate", "seed", "schema_change", "keep_versions"),
        *("write_id", "grace", *_SECTIONS["Damage"], *_SECTIONS["Computation"]),
    )
)
_ALL_OPTIONS = "dask_tfrecord.all_options"


# Maps option names of other tools, and names that users guess, to options of `dask-tfrecord`. An error
# suggests the first option that the command has.
_OTHER_NAMES = {
    **dict.fromkeys(("limit", "n", "lines", "num-rows"), ("rows", "versions")),
    **dict.fromkeys(("filter", "filters", "query", "condition", "predicate"), ("where",)),
    **dict.fromkeys(("select", "fields", "cols"), ("columns",)),
    **dict.fromkeys(("keep", "keep-last", "retain", "last"), ("versions", "keep-versions")),
    **dict.fromkeys(("before", "age", "retention"), ("older-than",)),
    **dict.fromkeys(("force", "no-input", "assume-yes"), ("yes", "overwrite")),
    **dict.fromkeys(("partitions", "shards", "num-shards"), ("npartitions",)),
    **dict.fromkeys(("jobs", "nworkers", "n-workers", "num-workers", "processes"), ("workers",)),
    **dict.fromkeys(("port", "host", "address", "listen"), ("to", "scheduler")),
    **dict.fromkeys(("size", "file-size", "target-size"), ("target-bytes",)),
    **dict.fromkeys(("simulate", "no-act", "plan"), ("dry-run", "explain")),
    **dict.fromkeys(("dtype", "dtypes", "types"), ("type",)),
    **dict.fromkeys(("ignore-errors", "skip-errors", "skip-corrupt"), ("on-corrupt",)),
    "codec": ("compression",),
    "format": ("to", "as"),
    "partition-by": ("partition-on",),
}


def _show_all_options(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL_OPTIONS] = True
        click.echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_options,
    help="Show this message with all options, also the rare ones, and exit.",
)


class _Command(click.Command):
    """A subcommand whose help shows the options in sections, and then examples."""

    examples: Sequence[str] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            with writing_output():  # --help prints while it is parsed
                refuse_repeated(self, ctx, args)
                return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(self._advice(error.option_name), ctx) from None

    def _advice(self, wrong: str) -> str:
        """Say that the command has no option ``wrong``, and suggest similar options."""
        problem, name = f"{self.name} has no option {wrong}", wrong.lstrip("-")
        for param in self.params:
            if isinstance(param, click.Argument) and param.name == name:
                return f"{problem}; pass {name.upper()} without the option name, as in {self.name} PATH 1"
        options = (param for param in self.params if isinstance(param, click.Option))
        known = [text.lstrip("-") for option in options for text in (*option.opts, *option.secondary_opts)]
        found = [other for other in _OTHER_NAMES.get(name, ()) if other in known][:1]
        found = found or [other for other in known if other.startswith(name) and len(name) > 1]
        if found := found or get_close_matches(name, known, cutoff=0.65):
            return f"{problem}; did you mean {' or '.join(f'--{other}' for other in found)}?"
        return f"{problem}; dask-tfrecord {self.name} --help lists its options"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in _SECTIONS}
        for param in self.get_params(ctx):
            is_shown = param.name not in _RARE or _ALL_OPTIONS in ctx.meta
            if isinstance(param, click.Option) and is_shown and (row := param.get_help_record(ctx)):
                rows[_SECTION_OF.get(param.name or "", "Options")].append(row)
        for section, listed in rows.items():
            if listed:
                with formatter.section(section):
                    formatter.write_dl(listed)
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  dask-tfrecord {self.name} {example}\n")


def of(function: Callable[..., Any], *names: str) -> list[click.Option]:
    """Return click options for the named keywords of a public function, by default for all keywords."""
    parameters = _parameters(function)
    keywords = names or keywords_of(function)
    texts = _help_texts(function)
    options = [_option(parameters[name], texts.get(name, "")) for name in keywords]
    if "schema" in keywords:
        text = (
            "What gives all columns and types: a schema.pbtxt, a features.json, or a directory with one of "
            "these files or with a snapshot. Not with --type."
        )
        options.append(click.Option(["--schema", "schema_of"], metavar="PATH", callback=_secret, help=text))
    return options


def keywords_of(function: Callable[..., Any]) -> list[str]:
    return [name for name in [*_parameters(function)][1:] if name not in ("filesystem", *OPTIONS)]


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a function's parameters, and the options inside parameters such as ``read_options``."""
    parameters = dict(inspect.signature(function).parameters)
    for holder in OPTIONS.keys() & parameters:
        parameters |= OPTIONS[holder]
    return parameters


def _option(parameter: inspect.Parameter, text: str) -> click.Option:
    name, default = parameter.name, parameter.default
    settings: dict[str, Any] = {"help": text, "default": None, **_SETTINGS.get(name, {})}
    if isinstance(default, bool):
        settings |= {"is_flag": True, "callback": lambda _, __, given: (not default) if given else None}
    elif parameter.annotation == bool | None:
        text = f"--{option_name(name)}/--no-{option_name(name)}"
        return click.Option([text, name], **settings)
    elif choices := _choices(parameter.annotation):
        settings |= {"type": click.Choice(choices), "metavar": None}
    if default is inspect.Parameter.empty:
        del settings["default"]  # with a default, click would not require the option
        settings["required"] = True
    elif default not in (None, "default") and not isinstance(default, bool):
        settings["help"] += f" Default: {default}."
    return click.Option([f"--{option_name(name, default is not True)}", name], **settings)


def _choices(annotation: Any) -> list[str]:
    kinds = [annotation] if get_origin(annotation) is Literal else get_args(annotation)
    kinds = [kind for kind in kinds if kind not in (bool, type(None))]
    if any(get_origin(kind) is not Literal for kind in kinds):
        return []
    texts = chain(*map(get_args, kinds))
    return [text for text in texts if text.islower() and text != "default"]


def _help_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the first sentences of each parameter's description in a function's numpydoc docstring."""
    text = inspect.getdoc(function) or ""
    found = re.findall(r"^( {4}|)(?:``)?(\w+)(?:``)? : (.*)\n((?:\1    .*\n)+)", text, re.MULTILINE)
    return {name: _help_text(text, whole=kind.startswith("{")) for _, name, kind, text in found}


def _help_text(text: str, whole: bool) -> str:
    """Return a paragraph, or only its first two sentences, with keywords replaced by options."""
    text = re.sub(r"^If (``\w+`` is )?True, ", "", " ".join(text.split()))
    sentences = re.split(r"(?<=\.)\s+(?=[A-Z\"`])", text)
    text = " ".join(sentences if whole else sentences[:2])
    text = re.sub(r"`Dataset\.(\w+)`", lambda found: found[1].replace("_", "-"), text)
    text = re.sub(
        r'``([a-z]+_\w+|filters|\w+(?==True))(?:="?(\w+)"?)?``',
        lambda found: f"--{option_name(found[1])} {(found[2] or '').removeprefix('True')}".rstrip(),
        text,
    )
    return text[:1].upper() + text[1:].replace("`", "")


# Shells complete the paths of files for this type. The type refuses no path.
LOCAL = click.Path(readable=False)


def opened(path: Any, how: dict[str, Any], *names: str) -> dask_tfrecord.Dataset:
    """Remove the storage options and the keywords ``names`` from ``how``, and open a dataset with them."""
    given = {name: how.pop(name) for name in ("storage_options", *names) if name in how}
    return dask_tfrecord.open_dataset(path, **given)


def several(name: str, metavar: str) -> click.Argument:
    return click.Argument([name], nargs=-1, required=True, metavar=metavar, callback=noted, type=LOCAL)


PATHS = several("path", "PATH...")
PATH = click.Argument(["path"], callback=noted, type=LOCAL)
# Codecs are detected, so no command has an option for the input's codec.
_READ_KEYWORDS = [name for name in keywords_of(dask_tfrecord.open_dataset) if name != "compression"]
READ = of(dask_tfrecord.read_tfrecord, *_READ_KEYWORDS)
STORE = of(dask_tfrecord.read_tfrecord, "storage_options")


def _setting(name: str, **settings: Any) -> click.Option:
    return click.Option([f"--{name}"], expose_value=False, callback=note_setting, **settings)


COMPUTING = [
    _setting("scheduler", metavar="ADDRESS", help="Address of a Dask scheduler, such as tcp://host:8786."),
    _setting(
        "workers",
        **_COUNT,
        help="Compute in a local cluster with this number of processes. Default: in threads of the command.",
    ),
    _setting("threads", **_COUNT, help="Number of threads, of each worker if there are any."),
]
JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, for scripts.")


def command(
    name: str, *params: click.Parameter, examples: Sequence[str]
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that turns a function into a subcommand.

    The function receives the passed options as keyword arguments. ``examples`` are the arguments of commands
    that the help shows.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        def run(**values: Any) -> Any:
            given = {name: value for name, value in values.items() if value is not None}
            if "schema_of" in given:
                if "schema" in given:
                    raise click.UsageError("--type and --schema exclude one another")
                given["schema"] = given.pop("schema_of")
            for holder, held in OPTIONS.items():
                if chosen := {name: given.pop(name) for name in held if name in given}:
                    given[holder] = chosen
            return function(**given)

        text = f"{COMMANDS[name][1]}\n\n{inspect.getdoc(function) or ''}"
        shown = [*params, _HELP_ALL] if any(param.name in _RARE for param in params) else [*params]
        found = _Command(name, params=shown, callback=run, help=text)
        found.examples = examples
        return found

    return decorate


def storage_of(path: str, storage_options: dict[str, Any] | None) -> dict[str, Any] | None:
    return storage_options if "://" in path and not path.startswith("file://") else None
