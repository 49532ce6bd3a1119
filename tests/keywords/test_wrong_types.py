"""Every public function and constructor answers a value of a wrong type with an error of this package.

Modules: keywords.arguments, keywords.public_functions.
"""

import importlib
import inspect
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import operations
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_tfrecord
from dask_tfrecord import NotFoundError, Schema, TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.feed import RecordTable
from dask_tfrecord.feed.numpy_columns import numpy_columns

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE = pa.table({"a": [1, 2]})
ODD: list[Any] = [object(), 5, -1, 1.5, True, "abc", b"x", [1], ["zz"], {1: 2}, {"a"}, None, [None], [], ""]
ODD += [np.int64(3), np.array("q"), np.array([1, 2]), "http://", [[]], TABLE.to_pandas()]
# More values for the functions with most keywords, whose errors name the keyword.
MORE_ODD: list[Any] = [{"a": 5}, float("nan"), pd.Index(["a", "b"]), lambda x: x, ()]
UNNAMED = {"path", "partition_on", "columns"}

# The values that the package returns. Users do not construct them.
RESULTS = {
    *("Commit", "Dataset", "Explanation", "FeatherFile", "Pass", "FeatureSpec"),
}
# The required arguments that are not a path of a dataset, and not None.
REQUIRED = {"ddf": TABLE, "table": TABLE, "batch": TABLE, "filters": [("a", "==", 9)], "indices": [0]}
REQUIRED |= {"format": "idx", "given": "int64", "text": "x", "fields": (), "name": "x", "type": pa.int64()}
REQUIRED |= {"schema": TABLE.schema, "batch_size": 2, "version": 1}


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
    "numpy_columns": numpy_columns,
}
METHODS |= {
    name: getattr(operations, name)
    for name in (
        "add_snapshot",
        "cleanup",
        "compact",
        "delete",
        "expire",
        "export",
        "repair",
        "restore",
        "take",
    )
}
FUNCTIONS = public(dask_tfrecord) | METHODS


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a dataset, in which some of the values are the name of a file."""
    monkeypatch.chdir(tmp_path)
    to_tfrecord(TABLE, tmp_path / "data")
    return tmp_path


def refuses_wrong_types(function: Any, directory: Path) -> None:
    parameters = inspect.signature(function).parameters.values()
    parameters = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    needed = [one.name for one in parameters if one.default is one.empty]
    given = {name: REQUIRED.get(name) for name in needed}
    given |= dict.fromkeys([name for name in needed if name in ("path", "source")], directory / "data")
    if function is dask_tfrecord.explain:
        given["ddf"] = read_tfrecord(directory / "data")
    if function in (to_tfrecord, dask_tfrecord.Writer):
        given["path"] = directory / "out"
    refuses_odd_values(function, [one.name for one in parameters], given)


def refuses_odd_values(function: Any, names: list[str], given: dict[str, Any]) -> None:
    is_main = function in (read_tfrecord, to_tfrecord)
    for name in names:
        for at, value in enumerate([*ODD, *MORE_ODD] if is_main else ODD):
            problem, result = name, None
            if function is to_tfrecord:
                given["path"] = Path("written", name, str(at))
            try:
                result = function(**given | {name: value})
                if isinstance(result, Generator):
                    next(result, None)
            except (TFRecordError, NotFoundError) as error:
                problem = str(error)
            except IndexError:  # as of arrays
                problem = "indices" if name in ("indices", "order") else ""
            is_named = name in problem or name in {*given, *UNNAMED} or "http" in problem
            assert problem if not is_main else is_named, (name, value)
            for method in ("shutdown", "close"):
                if callable(end := getattr(type(result), method, None)):
                    end(result)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_wrong_types_are_refused_with_an_error_of_the_package(name: str, directory: Path) -> None:
    refuses_wrong_types(FUNCTIONS[name], directory)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        pytest.param(*one, id=next(iter(one[1])))
        for one in [
            (lambda path: RecordTable(path).batch, {"indices": [0]}),
            (lambda path: RecordTable(path).matching, {"filters": [("a", "==", 1)]}),
            (lambda path: RecordTable(path).block_order, {"seed": 0, "epoch": 0, "shard": (0, 1)}),
            (lambda path: open_dataset(path).filter, {"expression": pc.field("a") > 1}),
            (lambda path: open_dataset(path).scanner, {"columns": ["a"], "filter": None, "batch_size": 1}),
            (lambda path: open_dataset(path).batches, {"batch_size": 1, "shard": (0, 1)}),
        ]
    ],
)
def test_methods_refuse_wrong_types_with_an_error_of_the_package(
    directory: Path, method: Callable[[Path], Any], given: dict[str, Any]
) -> None:
    refuses_odd_values(method(directory / "data"), list(given), given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", ["flight", "keras", "polars", "stream", "tensorflow", "torch"])
def test_feeds_refuse_wrong_types_with_an_error_of_the_package(module: str, directory: Path) -> None:
    pytest.importorskip(module) if module not in ("flight", "stream") else None
    for function in public(importlib.import_module(f"dask_tfrecord.feed.{module}")).values():
        refuses_wrong_types(function, directory)


def test_constructors_name_the_argument_of_a_wrong_type() -> None:
    for call, message in [
        (lambda: Schema({"x": "int64"}), "fields= is not a tuple .got dict"),  # type: ignore[arg-type]
        (lambda: dask_tfrecord.Field("x", "int64"), "type= is not a DataType .got str"),
        (lambda: dask_tfrecord.feed.Batches("t"), "plan= is not a Plan .got str"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(TFRecordError, match=message):
            call()
