"""Every public function and constructor answers a value of a wrong type with an error of this package.

Modules: arguments, public_functions.
"""

import importlib
import inspect
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_tfrecord
from dask_tfrecord import (
    NotFoundError,
    RecordTable,
    Schema,
    Snapshot,
    TFRecordDataset,
    TFRecordError,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.feed.numpy_columns import numpy_columns

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE = pa.table({"a": [1, 2]})
ODD: list[Any] = [object(), 5, 1.5, True, "abc", b"x", [1], {1: 2}, None, [None], [], ""]
ODD += [np.int64(3), np.array("q"), np.array([1, 2]), "http://", [[]], TABLE.to_pandas()]

# The values that the package returns. Users do not construct them.
RESULTS = {
    *("Block", "ColumnDescription", "ColumnStatistics", "Compacted", "Deleted", "Expired", "Explanation"),
    *("FileEntry", "Repaired", "Snapshot", "Call", "Remedy", "FeatherFile", "Pass", "FeatureSpec"),
}
# The required arguments that are not a path of a dataset, and not None.
REQUIRED: dict[str, Callable[[], Any]] = {
    "batch": lambda: TABLE,
    "table": lambda: TABLE,
    "ddf": lambda: TABLE,
    "filters": lambda: [("a", "==", 9)],
    "indices": lambda: [0],
    "format": lambda: "idx",
    "given": lambda: "int64",
    "text": lambda: "x",
    "fields": lambda: (),
    "name": lambda: "x",
    "type": pa.int64,
    "schema": lambda: TABLE.schema,
    "batch_size": lambda: 2,
    "version": lambda: 1,
}
FEEDS = ["flight", "keras", "polars", "stream", "tensorflow", "torch"]


def public(module: Any) -> dict[str, Any]:
    """The functions and classes of a module that users call."""
    local = [name for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in local if not name.startswith("_")])
    found = {name: getattr(module, name) for name in names if name not in RESULTS}
    return {
        name: one
        for name, one in found.items()
        if callable(one) and not (inspect.isclass(one) and issubclass(one, Exception))
    }


METHODS = {
    "Schema.from_arrow": Schema.from_arrow,
    "Schema.from_tfds": Schema.from_tfds,
    "Schema.from_tfmd": Schema.from_tfmd,
    "Schema.select": Schema(()).select,
    "Snapshot.history": Snapshot.history,
    "Snapshot.open": Snapshot.open,
    "numpy_columns": numpy_columns,
}
FUNCTIONS = public(dask_tfrecord) | METHODS


def refuses_wrong_types(function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some of the values are the name of a file
    place = tmp_path / "data"
    to_tfrecord(TABLE, place)
    parameters = inspect.signature(function).parameters.values()
    parameters = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    needed = [one.name for one in parameters if one.default is one.empty]
    given = {name: REQUIRED[name]() for name in needed if name in REQUIRED}
    given |= dict.fromkeys([name for name in needed if name in ("path", "source")], place)
    if function is dask_tfrecord.explain:
        given["ddf"] = read_tfrecord(place)
    if function in (to_tfrecord, dask_tfrecord.Writer):
        given["path"] = tmp_path / "out"
    given |= dict.fromkeys([name for name in needed if name not in given])
    refuses_odd_values(function, [one.name for one in parameters], given)


def refuses_odd_values(function: Any, names: list[str], given: dict[str, Any]) -> None:
    for name in names:
        for value in ODD:
            try:
                result = function(**given | {name: value})
                if isinstance(result, Generator):
                    next(result, None)
            except (TFRecordError, NotFoundError):
                continue
            except IndexError:  # as of arrays
                assert name in ("indices", "order")
                continue
            for method in ("shutdown", "close"):
                if callable(end := getattr(type(result), method, None)):
                    end(result)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_wrong_types_are_refused_with_an_error_of_the_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses_wrong_types(FUNCTIONS[name], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        (lambda path: RecordTable(path).batch, {"indices": [0]}),
        (lambda path: RecordTable(path).matching, {"filters": [("a", "==", 1)]}),
        (lambda path: RecordTable(path).block_order, {"seed": 0, "epoch": 0, "shard": (0, 1)}),
        (lambda path: RecordTable(path).shuffle_statistics, {"order": [0, 1], "batch_size": 1}),
        (lambda path: TFRecordDataset(path).filter, {"expression": pc.field("a") > 1}),
        (lambda path: TFRecordDataset(path).scanner, {"columns": ["a"], "filter": None, "batch_size": 1}),
        (lambda path: dask_tfrecord.inspect(path).iter_tables, {"files": [0]}),
    ],
    ids=["batch", "matching", "block_order", "statistics", "filter", "scanner", "iter_tables"],
)
def test_methods_refuse_wrong_types_with_an_error_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Callable[[Path], Any], given: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    to_tfrecord(TABLE, tmp_path / "d")
    refuses_odd_values(method(tmp_path / "d"), list(given), given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", FEEDS)
def test_feeds_refuse_wrong_types_with_an_error_of_the_package(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module) if module in ("keras", "polars", "tensorflow", "torch") else None
    for number, function in enumerate(
        public(importlib.import_module(f"dask_tfrecord.feed.{module}")).values()
    ):
        directory = tmp_path / f"{number}"
        directory.mkdir()
        refuses_wrong_types(function, directory, monkeypatch)


def test_constructors_name_the_argument_of_a_wrong_type() -> None:
    for call, message in [
        (lambda: Schema({"x": "int64"}), "fields= is not a tuple .got dict"),  # type: ignore[arg-type]
        (lambda: dask_tfrecord.Field("x", "int64"), "type= is not a DataType .got str"),
        (lambda: dask_tfrecord.Batches("t"), "plan= is not a Plan .got str"),  # type: ignore[arg-type]
        (lambda: dask_tfrecord.Description("t", None), "dataset= is not a ReadPlan"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(TFRecordError, match=message):
            call()
