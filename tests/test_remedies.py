"""The remedies of an error are arguments that the called function or command accepts.

Modules: errors, cli.failures.
"""

import inspect
import pickle
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import operations
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from inferred import sequence_file
from oracle import Feature, Record
from other_writers import fill
from surfaces import READERS, Surface

import dask_tfrecord
from dask_tfrecord import TFRecordError, to_tfrecord
from dask_tfrecord.cli import failures
from dask_tfrecord.feed import stream
from dask_tfrecord_launcher import main

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


NUMBER = oracle.features_file([{"a": ("int64", [1])}])
TEXT = oracle.features_file([{"a": ("bytes", [b"x"])}])
OTHER = oracle.features_file([{"a": ("int64", [1]), "b": ("int64", [1, 2])}])
NO_EXAMPLE = oracle.frame(b"no message")


def _cut(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at:][1:]


def _written(root: Path, **options: Any) -> Path:
    frame = pd.DataFrame({"k": [1, 2], "a": pd.array([1, None], "Int64")})
    to_tfrecord(dd.from_pandas(frame, npartitions=2), root, **options)
    return root


def _changed(name: str, change: Callable[[bytes], bytes] | None) -> Callable[[Path], Path]:
    """Write a dataset, and replace a file of it, or remove the file."""

    def make(root: Path) -> Path:
        path = min(_written(root).glob(name), default=root / name)
        content = path.read_bytes() if path.exists() else b""
        path.unlink(missing_ok=True)
        if change is not None:
            path.write_bytes(change(content))
        return root

    return make


FILES: dict[str, dict[str, bytes] | Callable[[Path], object]] = {
    "damaged record": {"a": NUMBER + _cut(NUMBER, 14) + NUMBER},
    "damaged length": {"a": NUMBER + _cut(NUMBER, 9) + NUMBER},
    "damaged start": {"a": _cut(NUMBER, 9)},
    "text": {"a": NUMBER, "b.md": b"# Some text\n" * 9},
    "other message": {"a": NUMBER, "b": NO_EXAMPLE},
    "other message later": {"a": NUMBER + NO_EXAMPLE},
    "two kinds": {"a": NUMBER, "b": TEXT},
    "two maps": {
        "a": sequence_file(Record({"a": Feature("int64", [1])})),
        "b": sequence_file(Record({}, {"a": [Feature("int64", [1])]})),
    },
    "unsampled": {f"{n:02d}": OTHER if n == 17 else NUMBER for n in range(40)},
    "key and feature": {"a=1/a": NUMBER},
    "null": _written,
    "missing file": _changed("part-*", None),
    "resized file": _changed("part-*", lambda content: content * 2),
    "rewritten file": _changed("part-*", lambda content: _cut(content, len(content) - 6)),
    "unlisted file": _changed("other.tfrecord", lambda _: NUMBER),
    "broken snapshot": _changed("_tfrecord/00000001.parquet", lambda _: b"no snapshot"),
    "torn write": lambda root: shutil.rmtree(_changed("part-*", None)(root) / "_tfrecord"),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    for name, content in FILES.items():
        if isinstance(content, dict):
            fill(root / name, content)
        else:
            content(root / name)
    return root


@pytest.fixture(autouse=True)
def _sample_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_tfrecord.dataset.read.sample._MORE_BYTES", 0)


def _read_lazily(path: Path) -> dd.DataFrame:
    """Read without a sample, so that the records raise when they are computed."""
    return dask_tfrecord.read_tfrecord(path, schema=pa.schema({"a": pa.int64()}), record_type="example")


FILTERS = [("a", "==", 1)]
_ONE = dd.from_dict({"a": [1]}, npartitions=1)
_NAMES = ("add_snapshot", "verify", "cleanup", "compact", "repair")
SURFACES = READERS | {name: Surface(getattr(operations, name), getattr(operations, name)) for name in _NAMES}
SURFACES |= {
    name: Surface(function, call)
    for name, function, call in [
        (
            "iter_batches of a collection",
            dask_tfrecord.feed.iter_batches,
            lambda p, **k: list(dask_tfrecord.feed.iter_batches(_read_lazily(p), **k)),
        ),
        ("export", operations.export, lambda p, **k: dask_tfrecord.open_dataset(p).export("tfds", **k)),
        (
            "delete",
            operations.delete,
            lambda p, **k: dask_tfrecord.open_dataset(p).delete(**{"filters": FILTERS, **k}),
        ),
        ("restore", operations.restore, lambda p, **k: dask_tfrecord.open_dataset(p).restore(1, **k)),
        ("to_tfrecord", to_tfrecord, lambda p, **k: to_tfrecord(_read_lazily(p), p.with_name("again"), **k)),
        ("overwritten", to_tfrecord, lambda p, **k: to_tfrecord(_ONE, p, **k)),
    ]
}
CHANGES = {"add_snapshot", "cleanup", "export", "overwritten", "compact", "delete", "repair", "restore"}


def _raised(call: Callable[..., Any], path: Path, **keywords: Any) -> TFRecordError | None:
    try:
        call(path, **keywords)
    except TFRecordError as error:
        if isinstance(error, TypeError):  # an unknown keyword
            raise
        return error
    except FileNotFoundError:  # a surface that needs a snapshot
        return None
    return None


@pytest.mark.parametrize("surface", SURFACES)
def test_a_function_accepts_the_remedies_of_its_errors(surface: str, datasets: Path, tmp_path: Path) -> None:
    function, call = SURFACES[surface]
    accepted = {*inspect.signature(function).parameters}
    for name in FILES:
        copies = iter(range(9))

        def path(name: str = name, copies: Any = copies) -> Path:
            if surface not in (CHANGES | {"to_tfrecord", "write_feather"}):
                return datasets / name
            return Path(shutil.copytree(datasets / name, tmp_path / name / str(next(copies)) / "data"))

        error = _raised(call, path())
        if error is None or (error.called == "read_tfrecord" and function != dask_tfrecord.read_tfrecord):
            continue
        error = pickle.loads(pickle.dumps(error))
        advice = re.sub(r"dask_tfrecord\.\w+\(.*?\)", "", error.advice or "")
        named = {*re.findall(r"\b([a-z_]+)=", advice)}
        assert named <= accepted, (name, error)
        for remedy in error.remedies:
            assert remedy.keyword in accepted, (name, error)
            assert str(remedy) in str(error)
            _raised(call, path(), **{remedy.keyword: remedy.value})
        for remedy in error.other_remedies:
            assert not (error.remedies and remedy in error.remedies)
            assert f"; {error.function} takes " in str(error)


WRONG: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (dask_tfrecord.read_tfrecord, {"blocksize": "many"}),
    (dask_tfrecord.read_tfrecord, {"read_options": {"max_record_bytes": 1 << 40}}),
    (dask_tfrecord.read_tfrecord, {"include_path_column": 1}),
    (dask_tfrecord.read_tfrecord, {"columns": ["k", "a"], "index": "a"}),
    (dask_tfrecord.read_tfrecord, {"index": "l"}),
    (dask_tfrecord.read_tfrecord, {"categories": ["k", "l"]}),
    (dask_tfrecord.read_tfrecord, {"columns": ["a", "a"]}),
    (dask_tfrecord.read_tfrecord, {"calculate_divisions": True, "index": ["a", "k"]}),
    (dask_tfrecord.feed.iter_batches, {"shard": (2, 1)}),
    (dask_tfrecord.feed.iter_batches, {"columns": []}),
    (dask_tfrecord.feed.iter_batches, {"columns": ["a", "k", "a"]}),
    (operations.take, {"indices": [0], "columns": ["k", "k"]}),
]


@pytest.mark.parametrize(("function", "keywords"), WRONG)
def test_the_remedies_of_a_wrong_argument_are_accepted(
    function: Callable[..., Any], keywords: dict[str, Any], tmp_path: Path
) -> None:
    to_tfrecord(pa.table({"k": [1, 2], "a": [2, 3], "l": [[1, 2], [3]]}), tmp_path)
    with pytest.raises(TFRecordError) as raised:
        function(tmp_path, **keywords)
    assert raised.value.remedies
    function(tmp_path, **keywords | {remedy.keyword: remedy.value for remedy in raised.value.remedies})


def test_a_wrong_default_in_the_configuration_has_a_remedy(datasets: Path) -> None:
    with dask.config.set({"dask-tfrecord.blocksize": "many"}):
        with pytest.raises(TFRecordError, match="change the configuration, or pass blocksize=") as raised:
            dask_tfrecord.read_tfrecord(datasets / "null")
        [remedy] = raised.value.remedies
        dask_tfrecord.read_tfrecord(datasets / "null", **{remedy.keyword: remedy.value})


COMMANDS = dict.fromkeys(
    ["describe", "head", "cat", "count", "schema", "verify", "add-snapshot", "cleanup"], ""
)
COMMANDS |= dict.fromkeys(["compact", "repair", "history"], "")
COMMANDS |= {"convert": "{out}", "export": "--format tfds", "delete": "--where 'a == 1' --yes"}
COMMANDS |= {"restore": "1", "expire": "--versions 1", "serve": "--to unix://{out}.sock --passes 1"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_accepts_the_remedies_of_its_errors_as_options(
    command: str, datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    describe = failures.describe

    def noted(error: BaseException, paths: Any = ()) -> str:
        errors.append(error)
        return describe(error, paths)

    monkeypatch.setattr(failures, "describe", noted)
    monkeypatch.setattr(stream.StreamServer, "wait", lambda *_: None)
    for name in FILES:

        def run(*options: str, name: str = name) -> Any:
            shutil.rmtree(tmp_path, ignore_errors=True)
            source = shutil.copytree(datasets / name, tmp_path / "data")
            arguments = shlex.split(COMMANDS[command].format(out=tmp_path / "out"))
            return CliRunner().invoke(main, [command, str(source), *arguments, *options])

        errors.clear()
        result = run()
        assert result.exit_code != 2, result.output
        found = errors[0] if errors else None
        if not isinstance(found, TFRecordError):
            continue
        for remedy in found.remedies:
            option = failures.option(remedy)
            assert option in " ".join(result.stderr.split())
            assert run(*shlex.split(option.partition("no --")[0])).exit_code != 2, option
        for remedy in found.other_remedies:
            assert failures.option(remedy) not in result.stderr
