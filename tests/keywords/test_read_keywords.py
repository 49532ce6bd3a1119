"""Every function that reads a path takes the same keywords, and reads the rows of `read_tfrecord`.

Modules: keywords.arguments, keywords.requests, collection.opened_path.
"""

import inspect
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dask.dataframe as dd
import fsspec
import operations
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from small_frames import flip
from surfaces import READERS

import dask_tfrecord
from dask_tfrecord import TFRecordError, to_tfrecord
from dask_tfrecord.cli import convert, failures, maintenance, serve, show
from dask_tfrecord.errors import Remedy
from dask_tfrecord.keywords.arguments import (
    CollectionKeywords,
    EpochKeywords,
    ReadKeywords,
    ReadOptionKeywords,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

NAMES = ["day", "id", "x"]
FILTER = [("id", ">", 2), ("x", "<", 8.0)]


def _write(root: Path, rows: range = range(12), **options: Any) -> None:
    data = {"day": [n % 3 for n in rows], "id": list(rows), "x": [float(n) for n in rows]}
    frame = pd.DataFrame(data).astype({"x": "float32"})
    to_tfrecord(dd.from_pandas(frame, npartitions=3), root, **options)


def _appended(root: Path) -> None:
    _write(root)
    _write(root, range(12, 17), append=True)


def _damaged(root: Path) -> None:
    """Damage one payload of each of two files, one of them in a way that only the checksum shows."""
    _write(root)
    for part, at in zip(sorted(root.glob("part-*")), (-5, -1), strict=False):
        flip(part, at)
    shutil.rmtree(root / "_tfrecord")


def _without_snapshot(root: Path) -> None:
    """Write files of which one, which is not sampled, has a further feature."""
    root.mkdir()
    for number in range(40):
        features = {name: ("int64", [number]) for name in NAMES}
        more = {"more": ("int64", [1])} if number == 17 else {}
        (root / f"{number:02d}").write_bytes(oracle.features_file([features | more]))


DATASETS: dict[str, Callable[[Path], None]] = {
    "plain": _write,
    "gzip": lambda root: _write(root, compression="gzip"),
    "directories": lambda root: _write(root, partition_on=["day"]),
    "versions": _appended,
    "damaged": _damaged,
    "others": _without_snapshot,
    "splits": lambda root: _write(root, split={"train": 0.5, "test": 0.5}, write_options={"split_by": "id"}),
}


class Case(NamedTuple):
    """Keywords with an effect on the rows of a dataset."""

    dataset: str
    read: dict[str, Any]


# Together, these cases have every keyword that has an effect on the rows. Every surface reads them.
EVERYWHERE = [
    Case("plain", {"filters": [("id", ">", 100)]}),
    Case("versions", {"version": 1, "filters": FILTER}),
    Case("splits", {"split": ["test"], "filters": FILTER}),
    Case("directories", {"filters": [("day", "=", 1), ("id", ">", 3)], "columns": ["id"]}),
    Case("directories", {"hive": {"day": pa.int16()}, "use_snapshot": False}),
    Case("damaged", {"on_corrupt": "skip", "read_options": {"max_corrupt": 0}}),
    Case(
        "damaged",
        {"on_corrupt": "quarantine", "read_options": {"quarantine_path": "lost"}, "columns": ["id"]},
    ),
    Case("damaged", {"read_options": {"verify_crc": False}, "columns": ["id"]}),
    Case("others", {"extra": "ignore"}),
    Case("others", {"read_options": {"infer": "all"}, "schema": {"more": None}}),
    Case("plain", {"read_options": {"max_record_bytes": 10}}),
    Case("others", {"extra": "ignore", "read_options": {"max_features": 2}}),
    Case("gzip", {"compression": None}),
    Case("plain", {"record_type": "sequence_example"}),
]

# The surfaces that read the other cases. Each of them has a reader of rows of its own, which the other
# surfaces share.
FULL = ("RecordTable", "iter_batches", "open_dataset")
CASES = [
    *EVERYWHERE,
    Case("gzip", {"filters": FILTER, "columns": ["x"]}),
    Case("gzip", {"filters": pc.field("id") > 6, "schema": {"id": pa.int32()}}),
    Case("directories", {"filters": [("day", "in", [0, 2])]}),
    Case("directories", {"hive": False, "use_snapshot": False}),
    Case("versions", {"version": 7}),
    Case("splits", {"split": "train"}),
    Case("damaged", {}),
    Case("damaged", {"on_corrupt": "skip", "filters": FILTER}),
    Case("others", {}),
    Case("others", {"schema": {"x": pa.float32(), "more": pa.int64()}, "columns": ["x", "id"]}),
    Case("plain", {"schema": {"x": None}}),
    Case("plain", {"read_options": {"max_features": 100}}),
    Case("plain", {"compression": None}),
    Case("plain", {"storage_options": {"auto_mkdir": False}}),
    Case("plain", {"filesystem": fsspec.filesystem("file")}),
]
# The other surfaces that have rows. The length of a collection and its rows come from one class.
OTHER = [name for name in READERS if name not in (*FULL, "compute", "feature_spec")]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    for name, write in DATASETS.items():
        write(root / name)
    return root


@pytest.fixture(autouse=True)
def _sample_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_tfrecord.dataset.read.sample._MORE_BYTES", 0)
    monkeypatch.chdir(tmp_path)


def _outcome(surface: str, path: Path, read: dict[str, Any]) -> Any:
    """The columns and their rows, or None for an error of this package."""
    try:
        found = READERS[surface].read(path, **read)
    except (TFRecordError, FileNotFoundError):
        return None
    return {name: sorted(values) for name, values in found.items() if values}


def test_cases_have_every_read_keyword() -> None:
    without_effect = {"storage_options", "filesystem", "labels"}  # `labels` adds no column to these datasets
    tried = {"columns", *ReadKeywords.__annotations__} - without_effect
    assert {name for case in EVERYWHERE for name in case.read} == tried


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("surface", "case"),
    [
        pytest.param(surface, case, id=" ".join([surface, case.dataset, *case.read]))
        for surface in (*FULL, *OTHER)
        for case in (CASES if surface in FULL else EVERYWHERE)
        # The keyword of `write_feather` is the compression of the Feather file.
        if surface != "write_feather" or "compression" not in case.read
    ],
)
def test_the_rows_are_those_of_read_tfrecord(surface: str, case: Case, datasets: Path) -> None:
    path, read = datasets / case.dataset, case.read
    expected = _outcome("compute", path, read)
    found = _outcome(surface, path, read)
    if expected == {} and surface in ("iter_batches of shards", "write_feather"):
        assert found is None  # no rows cannot be shared, and TensorFlow I/O cannot read such a file
    else:
        assert found == expected


@pytest.mark.parametrize("surface", READERS)
def test_the_signature_shows_all_read_keywords_with_their_defaults(surface: str) -> None:
    given = inspect.signature(READERS[surface].function).parameters
    shared = inspect.signature(dask_tfrecord.read_tfrecord).parameters
    keywords = {*ReadKeywords.__annotations__} - ({"compression"} if surface == "write_feather" else set())
    assert {name for name in keywords if given[name].default != shared[name].default} == set()
    collection_only = {*CollectionKeywords.__annotations__} - {*ReadKeywords.__annotations__}
    assert surface in ("compute", "len") or not collection_only & given.keys()


def test_batches_of_a_dataset_have_the_defaults_of_iter_batches() -> None:
    ours = inspect.signature(dask_tfrecord.Dataset.batches).parameters
    theirs = inspect.signature(dask_tfrecord.feed.iter_batches).parameters
    shared = {"batch_size", *EpochKeywords.__annotations__}
    assert {name: ours[name].default for name in shared} == {name: theirs[name].default for name in shared}


READING = {
    "head": (show.head_command, ["-n", "1000"]),
    "cat": (show.cat_command, []),
    "describe": (show.describe_command, ["-n", "1000", "--json"]),
    "count": (show.count_command, []),
    "convert": (convert.convert_command, ["out.jsonl"]),
}
OTHERS = [show.schema_command, serve.serve_command]
NO_OPTION = [  # cases with a value that the command line cannot express
    lambda read: isinstance(read.get("filters"), pc.Expression),
    lambda read: isinstance(read.get("hive"), dict),
    lambda read: None in (*read.get("schema", {}).values(), read.get("compression", "infer")),
    lambda read: isinstance(read.get("split"), list),
    lambda read: read.keys() & {"filesystem"},
]


def _arguments(read: dict[str, Any]) -> list[str]:
    """The options for keywords, as advice in errors names them."""
    read = dict(read)
    where = " and ".join(
        f"{name} {'==' if how == '=' else how} {value!r}" for name, how, value in read.pop("filters", [])
    )
    options = [failures.option(Remedy(*item)) for item in read.items()]
    return [*(["--where", where] if where else []), *shlex.split(" ".join(options))]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=" ".join([case.dataset, *case.read]))
        for case in CASES
        if not any(test(case.read) for test in NO_OPTION)
    ],
)
def test_commands_read_the_rows_of_read_tfrecord(case: Case, datasets: Path) -> None:
    path = datasets / case.dataset
    expected = _outcome("compute", path, case.read)
    for name, (command, target) in READING.items():
        result = CliRunner().invoke(command, [str(path), *target, *_arguments(case.read)])
        if expected is None and name == "count":  # which reads no records if a snapshot counts them
            continue
        assert (result.exit_code != 0) == (expected is None), (name, result.output)
        if expected is None:
            continue
        text = result.stdout
        if name == "count":
            assert int(text) == max(map(len, expected.values()), default=0)
            continue
        if name == "convert":
            text = "".join(file.read_text() for file in sorted(Path("out.jsonl").iterdir()))
        # Dask writes a partition without rows as an empty line.
        lines = [json.loads(line) for line in text.splitlines() if line] if name != "describe" else []
        rows = lines or (json.loads(text)["first_rows"] if name == "describe" else [])
        found = {column: sorted(row[column] for row in rows) for column in (rows[0] if rows else ())}
        assert found == expected, name


def test_commands_have_an_option_for_every_keyword_of_their_functions() -> None:
    keywords = {*ReadKeywords.__annotations__, *ReadOptionKeywords.__annotations__, "columns"}
    keywords -= {"filesystem", "read_options", "compression"}  # objects, and the codec, which is detected
    for command in (*(command for command, _ in READING.values()), *OTHERS):
        assert keywords <= {option.name for option in command.params}, command.name
    for name in ("verify", "add_snapshot", "cleanup", "export"):
        options = {option.name for option in getattr(maintenance, f"{name}_command").params}
        parameters = inspect.signature(getattr(operations, name)).parameters
        assert {*parameters} - {"filesystem"} <= options
