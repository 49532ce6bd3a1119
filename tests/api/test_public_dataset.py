"""A `Dataset` pins what it has opened, shows the version that it commits, and is what a page or example uses.

Modules: api.dataset, api.description, api.explain, feed.
"""

import inspect
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_tfrecord
from dask_tfrecord import Dataset, NotFoundError, SchemaError, TFRecordError, open_dataset, read_tfrecord
from dask_tfrecord.api.description import Facts
from dask_tfrecord.api.maintenance import Maintenance

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parents[2]


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "odd": [n % 2 == 1 for n in numbers]})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    dask_tfrecord.to_tfrecord(rows(1, 2, 3), tmp_path / "d", partition_on="odd", custom_metadata={"by": "me"})
    return tmp_path / "d"


@pytest.fixture
def foreign(root: Path) -> Path:
    """The same files without a snapshot."""
    shutil.rmtree(root / "_tfrecord")
    return root


def test_the_facts_are_those_of_the_snapshot_and_of_the_filters(root: Path) -> None:
    dataset = open_dataset(root)
    assert (dataset.version, dataset.num_rows, dataset.metadata) == (1, 3, {"by": "me"})
    assert dataset.files[["rows", "odd"]].to_dict("list") == {"rows": [1, 2], "odd": [False, True]}
    assert dataset.nbytes == sum(path.stat().st_size for path in root.rglob("part-*"))
    assert dataset.partitioning.schema == pa.schema({"odd": pa.bool_()})
    assert dataset.statistics.loc["n", ["nulls", "min", "max"]].tolist() == [0, 1, 3]
    assert repr(dataset).endswith(f"version 1: 3 rows, 2 files, {dataset.nbytes} bytes, columns: n, odd)")
    assert f"<td>{dataset.nbytes}</td>" in dataset._repr_html_()
    few = open_dataset(root, filters=[("odd", "==", True)])
    assert (few.num_rows, len(few.files), few.statistics.loc["n", "max"]) == (2, 1, 3)
    some = dataset.filter(pc.field("n") > 2)
    assert (some.num_rows, some.count_rows(), some.statistics.loc["n", "max"]) == (None, 1, pd.NA)
    assert "rows not counted" in repr(some)


def test_column_files_are_counted_once_and_shown_if_there_are_any(root: Path) -> None:
    assert open_dataset(root).column_files.to_dict("list") == {"path": [], "bytes": []}
    assert "column bytes" not in open_dataset(root)._repr_html_()
    dask_tfrecord.to_tfrecord(rows(4, 5), root, append=True, partition_on="odd", columnar=["n"])
    dataset = open_dataset(root)
    assert (len(dataset.files), len(dataset.column_files)) == (4, 1)
    [beside] = (root / "_tfrecord" / "columns").iterdir()
    size = beside.stat().st_size
    assert dataset.column_files.to_dict("records") == [{"path": str(beside), "bytes": size}]
    assert f"<th>column bytes</th><td>{size:,}, in 1 file</td>" in dataset._repr_html_()


def test_notebooks_show_tables_of_what_the_methods_return(root: Path) -> None:
    commit = open_dataset(root).compact()
    assert f"<th>version</th><td>{commit.version}</td>" in commit._repr_html_()
    assert f"<th>written files</th><td>{commit.details['written_files']}</td>" in commit._repr_html_()
    explanation = dask_tfrecord.explain(dask_tfrecord.read_tfrecord(root, filters=[("odd", "==", True)]))
    shown = explanation._repr_html_()
    assert all(
        f"<td>{word}</td>" in shown for report in explanation.left_out for word in ("left out", report.rule)
    )
    assert f"<p>{explanation.totals['data_bytes']} of " in shown


def test_an_explanation_of_a_dataset_without_column_files_counts_in_plain_english(root: Path) -> None:
    shown = str(dask_tfrecord.explain(dask_tfrecord.read_tfrecord(root, filters=[("odd", "==", True)])))
    assert "the file has no column file" in shown
    assert "(1 file) " in shown


READS: dict[str, Callable[[Dataset], list[Any]]] = {
    "to_table": lambda one: one.to_table()["n"].to_pylist(),
    "to_dask": lambda one: one.to_dask()["n"].compute().tolist(),
    "batches": lambda one: [n for batch in one.batches(2) for n in batch["n"].to_pylist()],
    "take": lambda one: one.take(range(one.count_rows()))["n"].to_pylist(),
    "feed": lambda one: dask_tfrecord.feed.RecordTable(one)[:]["n"].to_pylist(),
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("kind", ["dataset", "glob"])
def test_all_reads_see_what_was_opened(root: Path, how: str, kind: str) -> None:
    opened = open_dataset(root if kind == "dataset" else f"{root}/*/*.tfrecord")
    filtered = opened.filter(pc.field("n") != 3)
    copied = pickle.loads(pickle.dumps(opened))
    dask_tfrecord.to_tfrecord(rows(5), root, partition_on="odd", append=True)
    for one, expected in ((opened, [1, 2, 3]), (copied, [1, 2, 3]), (filtered, [1, 2])):
        assert sorted(READS[how](one)) == expected
    assert sorted(READS[how](filtered.filter(pc.field("n") > 1))) == [2]
    assert sorted(READS[how](open_dataset(root))) == [1, 2, 3, 5]


def test_batches_are_resumed_with_the_version_of_their_state_unless_another_was_chosen(root: Path) -> None:
    batches = open_dataset(root).batches(2)
    next(batches)
    dask_tfrecord.to_tfrecord(rows(5), root, partition_on="odd", append=True)
    [rest] = open_dataset(root).batches(2, start=batches.state)
    assert rest["n"].to_pylist() == next(batches)["n"].to_pylist()
    with pytest.raises(TFRecordError, match="state"):
        open_dataset(root, version=2).batches(2, start=batches.state)


def test_to_dask_gives_the_frame_of_read_tfrecord(root: Path) -> None:
    for how in ({}, {"index": "n"}, {"partition_by": "odd"}, {"dtype_backend": "pyarrow"}):
        expected = read_tfrecord(root, **how).compute()  # type: ignore[arg-type]
        found = open_dataset(root).to_dask(**how).compute()  # type: ignore[arg-type]
        pd.testing.assert_frame_equal(found, expected)


def test_the_object_shows_the_version_that_it_has_committed(root: Path) -> None:
    dataset = open_dataset(root)
    assert dataset.delete([("n", "==", 1)], keep_versions=True).version == dataset.version == 2
    assert (dataset.num_rows, sorted(dataset.to_table()["n"].to_pylist())) == (2, [2, 3])
    assert dataset.restore(1).rows == dataset.num_rows == 3
    assert dataset.history()["mode"].tolist() == ["create", "delete", "restore"]


@pytest.mark.parametrize("given", [{"columns": ["n"]}, {"filters": [("n", ">", 1)]}, {"version": 1}])
def test_an_operation_on_all_rows_refuses_an_object_of_some(root: Path, given: dict[str, Any]) -> None:
    with pytest.raises(TFRecordError, match=rf"call open_dataset without {next(iter(given))}="):
        open_dataset(root, **given).compact()
    with pytest.raises(TFRecordError, match="needs the directory of one dataset"):
        open_dataset([root]).compact()
    assert open_dataset(root, **dict.fromkeys(given)).verify()["agrees"].all()


def test_a_damaged_dataset_is_opened_for_what_mends_it(root: Path) -> None:
    shutil.rmtree(root / "odd=true")
    dataset = open_dataset(root)
    assert "the file is missing" in repr(dataset)
    with pytest.raises(TFRecordError, match="the file is missing"):
        dataset.to_table()
    assert dataset.verify()["agrees"].tolist().count(False) == 1
    assert sum(dataset.repair().details["lost_files"].values()) == 2
    assert dataset.num_rows == 1


def test_what_cannot_be_mended_raises_at_once(root: Path) -> None:
    for path, given, problem in [
        (root, {"columns": ["m"]}, "no column is named 'm'"),
        (root, {"filters": [("m", ">", 1)]}, "no column is named 'm'"),
        (root, {"version": 7}, "no version 7"),
        (root / "nothing", {}, "no such file"),
        (f"{root}/*.nothing", {}, "no"),
    ]:
        with pytest.raises((SchemaError, NotFoundError), match=problem):
            open_dataset(path, **given)


def test_files_of_other_tools_get_a_snapshot(foreign: Path) -> None:
    dataset = open_dataset(foreign, schema={"n": pa.int8()}, hive={"odd": pa.string()})
    assert (dataset.version, dataset.num_rows, dataset.count_rows()) == (None, None, 3)
    assert dataset.metadata == {}
    assert dataset.add_snapshot().rows == 3
    assert read_tfrecord(foreign).dtypes.astype(str).tolist() == ["int8[pyarrow]", "string[pyarrow]"]


def test_the_codecs_and_records_of_foreign_files_are_found(tmp_path: Path) -> None:
    content = oracle.features_file([{"x": ("int64", [1])}])
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(oracle.compress(content, "gzip"))
    dataset = open_dataset(tmp_path)
    assert (dataset.codecs, dataset.record_type) == (["none", "gzip"], "example")


def _pages() -> str:
    paths = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]
    return "\n".join(path.read_text() for path in paths if path.name != "api.md")


def test_the_public_names_are_few_documented_and_used() -> None:
    assert len(dask_tfrecord.__all__) <= 30
    pages = _pages()
    public = {name: getattr(dask_tfrecord, name) for name in dask_tfrecord.__all__}
    names = {
        name for name, one in public.items() if not (inspect.isclass(one) and issubclass(one, Exception))
    }
    names |= {name for name in (*vars(Dataset), *vars(Facts), *vars(Maintenance)) if name[0] != "_"}
    assert {name for name in names if not re.search(rf"\b{name}\b", pages)} == set()
    assert [name for name, one in public.items() if not inspect.getdoc(one)] == []
    assert {name for name in dask_tfrecord.__all__ if name in dir(inspect)} == set()


@pytest.mark.parametrize("name", dask_tfrecord.__all__)
def test_a_function_has_at_most_23_keywords(name: str) -> None:
    """What few calls need is an option in `read_options` or `write_options`."""
    public = getattr(dask_tfrecord, name)
    if inspect.isfunction(public):
        parameters = inspect.signature(public).parameters.values()
        assert sum(one.default is not inspect.Parameter.empty for one in parameters) <= 23
