"""Names of other tools on a Dataset, on the package, its feeds and a Writer get the expression that does it.

Modules: keywords.foreign_names, api.dataset, api.writer.
"""

import copy
import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from advice import call_in

import dask_tfrecord
from dask_tfrecord import TFRecordError, Writer, open_dataset, to_tfrecord

ROWS = pd.DataFrame({"id": [1, 2, 3], "text": ["a", "b", "c"]})
TABLE: dict[str, list[dict[str, str]]] = yaml.safe_load(
    Path(dask_tfrecord.__file__).with_name("keywords").joinpath("foreign-names.yaml").read_text()
)
LOADERS = ("torch", "tensorflow", "keras", "polars")


@pytest.fixture
def path(tmp_path: Path) -> str:
    to_tfrecord(ROWS, tmp_path / "rows")
    return str(tmp_path / "rows")


def owners(path: str) -> dict[str, Any]:
    return {
        "dataset": open_dataset(path),
        "package": dask_tfrecord,
        "feed": dask_tfrecord.feed,
        "writer": Writer(path),
    }


def variables(path: str) -> dict[str, Any]:
    return {
        "dask": dask,
        "dask_tfrecord": dask_tfrecord,
        "dataset": open_dataset(path),
        "writer": Writer(path),
        "path": path + "-copy",
        "ddf": dd.from_pandas(ROWS, npartitions=1),
        "rows": ROWS,
        "function": lambda rows: rows,
        "columns": ["id"],
        "old": "id",
        "new": "key",
        "expression": pc.field("id") > 1,
        "filters": [("id", "==", 9)],
        "version": 1,
        "batch_size": 2,
        "n": 1,
        "indices": [0],
    }


def advice_on(owner: Any, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert isinstance(caught.value, TFRecordError), name
    return str(pickle.loads(pickle.dumps(caught.value))).partition("; ")[2]


CASES = [
    pytest.param(kind, row, id=f"{kind}-{row['names'].split()[0]}")
    for kind, rows in TABLE.items()
    for row in rows
]


@pytest.mark.parametrize(("kind", "row"), CASES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_expression_for_a_name_of_another_tool_works_as_written(
    kind: str, row: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, names = owners(path)[kind], variables(path)
    if "(path" in row["use"] and "to_tfrecord(" not in row["use"] and "Writer(" not in row["use"]:
        names["path"] = path
    for loader in LOADERS:
        if f"feed.{loader}" in row["use"]:
            pytest.importorskip(loader)
            importlib.import_module(f"dask_tfrecord.feed.{loader}")
    if row["use"].startswith("import "):  # an import binds the name
        monkeypatch.delattr(dask_tfrecord.feed, row["names"], raising=False)
    if "polars." in row["use"]:
        names["polars"] = pytest.importorskip("polars")
    known = {name for name in row["names"].split() if name in dir(type(owner)) or name in vars(owner)}
    missing = [name for name in row["names"].split() if name not in known]
    assert missing
    assert {advice_on(owner, name).removeprefix("use ") for name in missing} == {row["use"]}
    if row["use"].startswith("import "):
        exec(row["use"].removesuffix(" first"), names)
    elif not row["use"].startswith("leave"):
        result = eval(row["use"], names)
        if not isinstance(result, pa.Table | pd.DataFrame | np.ndarray) and inspect.isgenerator(result):
            assert next(result) == {"id": 1, "text": "a"}
    names["writer"].close()


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("groupby", "use dataset.to_dask().groupby"),
        ("to_parquet", "use dataset.to_dask().to_parquet"),
        ("drop_null", "use dataset.to_table().drop_null"),
        ("text", "use dataset.to_dask().text"),
        ("colums", "use dataset.schema.names"),
        ("num_row", "did you mean 'num_rows'?"),
        ("frobnicate", "there are add_snapshot, batches, "),
    ],
)
def test_other_names_of_a_dataset_lead_to_dask_or_a_similar_name(path: str, name: str, use: str) -> None:
    advice = advice_on(open_dataset(path), name)
    assert advice.startswith(use)
    if use.startswith("use "):
        eval(advice.removeprefix("use "), variables(path))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (0, [1]),
        (-1, [3]),
        (np.int64(1), [2]),
        ("id", [1, 2, 3]),
        (["id"], [1, 2, 3]),
        (slice(None, 2), [1, 2]),
        (slice(1, None), [2, 3]),
        (slice(0, 3, 2), [1, 3]),
        ([0, 2], None),
        (pc.field("id") > 1, None),
    ],
    ids=str,
)
def test_an_index_of_a_dataset_gets_the_call_that_reads_it(path: str, key: Any, expected: Any) -> None:
    dataset = open_dataset(path)
    with pytest.raises(TypeError, match=r"cannot be indexed or iterated.*; use ") as caught:
        dataset[key]
    result = eval(call_in(str(caught.value).partition("; use ")[2]), variables(path))
    if isinstance(result, dd.DataFrame | dd.Series):
        result = pa.table({"id": result.compute().to_numpy().ravel()})
    if expected is not None:
        assert result["id"].to_pylist() == expected


def test_the_length_and_a_loop_of_a_dataset_get_the_calls_that_do_it(path: str) -> None:
    dataset = open_dataset(path)
    with pytest.raises(TypeError, match="no len") as caught:
        len(dataset)
    first, _, second = str(caught.value).partition("; use ")[2].partition(", or ")
    assert eval(first, {"dataset": dataset}) == 3
    assert eval(call_in(second), {"dataset": dataset}) == 2
    with pytest.raises(TypeError, match=r"or dataset\.batches\(\) to iterate over all rows"):
        for _ in dataset:
            pass


def test_probes_of_protocols_find_what_they_found_before(path: str) -> None:
    dataset = open_dataset(path)
    assert bool(dataset)
    assert not hasattr(dataset, "no_such_name")
    assert getattr(dataset, "no_such_name", 5) == 5
    for probed in (
        "__array__",
        "__dask_graph__",
        "_ipython_display_",
        "_repr_png_",
        "__dataframe__",
        "__iter__",
    ):
        assert not hasattr(dataset, probed)
        with pytest.raises(AttributeError) as caught:
            getattr(dataset, probed)
        assert not isinstance(caught.value, TFRecordError)
    copies = (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset)))
    assert all(one.count_rows() == 3 for one in copies)
    assert np.asarray(dataset).shape == ()
    assert pd.Series(dataset).tolist() == pd.Series([dataset]).tolist() == [dataset]
    assert not dask.is_dask_collection(dataset)
    assert dask.compute(dataset)[0] is dataset
    assert dask.delayed(lambda one: one.count_rows())(dataset).compute(scheduler="sync") == 3
    assert pa.table(dataset).num_rows == 3


def test_a_property_that_fails_keeps_its_own_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise AttributeError("inside of the property")

    monkeypatch.setattr(dask_tfrecord.Dataset, "nbytes", property(broken))
    with pytest.raises(AttributeError, match="inside of the property"):
        _ = open_dataset(path).nbytes


def test_dir_shows_public_names_only(path: str) -> None:
    dataset = open_dataset(path)
    for owner in (dataset, Writer(path), dask_tfrecord, dask_tfrecord.feed):
        assert not [name for name in dir(owner) if name.startswith("_") or not hasattr(owner, name)]
    assert {*dir(dask_tfrecord)} == {*dask_tfrecord.__all__, "feed"}
    assert {*dir(dask_tfrecord.feed)} == {*dask_tfrecord.feed.__all__}
    assert {"to_table", "num_rows", "compact"} <= {*dir(dataset)}
    assert not {"plan", "join", "from_paths"} & {*dir(dataset)}


def test_a_from_import_of_a_foreign_name_shows_the_expression() -> None:
    with pytest.raises(ImportError, match=r"use dask_tfrecord\.feed\.iter_batches\(path\)"):
        from dask_tfrecord import iter_batches  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'frobnicate'"):
        from dask_tfrecord import frobnicate  # noqa: F401
    with pytest.raises(AttributeError, match=r"use dask_tfrecord\.open_dataset\(path\)\.compact"):
        _ = dask_tfrecord.compact


def test_modules_are_still_imported_by_name(tmp_path: Path) -> None:
    program = (
        "from dask_tfrecord.feed import stream; from dask_tfrecord import cli, schema; print(stream.serve)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert "function serve" in done.stdout, done.stderr
