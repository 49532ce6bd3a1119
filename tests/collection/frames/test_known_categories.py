"""Dask knows the categories of a column as long as no value can have another one.

Modules: schema.fields, collection.frames.schema_plan, collection.frames.arrow_to_pandas.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord import FileChangedError, Writer, open_dataset, read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")


def frame(values: list[str | None], categories: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"c": pd.Categorical(values, categories=categories), "n": range(len(values))})


def two(rows: pd.DataFrame) -> dd.DataFrame:
    return dd.from_pandas(rows, npartitions=2)


def known(root: Path) -> list[str] | None:
    """The categories in the meta, which are those of each partition; None if the meta has none."""
    ddf = read_tfrecord(root, blocksize=None)
    if not ddf["c"].cat.known:
        return None
    categories = ddf["c"].cat.categories.tolist()
    assert all(part.compute()["c"].cat.categories.tolist() == categories for part in ddf.partitions)
    return list(categories)


def values(root: Path) -> list[str]:
    return sorted(read_tfrecord(root)["c"].compute().dropna())


def with_writer(root: Path, *texts: str) -> None:
    with Writer(root) as writer:
        writer.write([{"c": text, "n": 0} for text in texts])


ROWS = frame(["x", "y", "x"], ["x", "y", "z"])
OTHERS = frame(["q", "x"], ["q", "x"])
NULLS = pd.DataFrame({"c": pd.array([None], dtype=pd.ArrowDtype(pa.null())), "n": 0})
CHANGES: dict[str, tuple[Callable[[Path], Any], list[str] | None]] = {
    "an append of the same": (lambda root: to_tfrecord(two(ROWS), root, append=True), ["x", "y", "z"]),
    "an append of fewer": (lambda root: to_tfrecord(frame(["z"], ["z"]), root, append=True), ["x", "y", "z"]),
    "an append of others": (lambda root: to_tfrecord(two(OTHERS), root, append=True), None),
    "an append of nulls": (lambda root: to_tfrecord(NULLS, root, append=True), ["x", "y", "z"]),
    "an append of unknown ones": (
        lambda root: to_tfrecord(two(ROWS.astype({"c": "str"})).astype({"c": "category"}), root, append=True),
        None,
    ),
    "known rows of a writer": (lambda root: with_writer(root, "y"), ["x", "y", "z"]),
    "other rows of a writer": (lambda root: with_writer(root, "y", "w"), None),
    "a delete": (lambda root: open_dataset(root).delete([("c", "==", "y")]), ["x"]),
    "a compaction": (lambda root: open_dataset(root).compact(), ["x", "y", "z"]),
    "an overwrite": (lambda root: to_tfrecord(OTHERS, root, overwrite=True), ["q", "x"]),
    "a stream": (
        lambda root: to_tfrecord(pa.table({"c": pa.array(["a"]).dictionary_encode()}), root, overwrite=True),
        None,
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [two, lambda frame: frame], ids=["dask", "pandas"])
def test_categories_are_known_until_a_value_may_have_another_one(
    tmp_path: Path, rows: Callable[[pd.DataFrame], Any], change: str
) -> None:
    to_tfrecord(rows(ROWS), tmp_path)
    assert known(tmp_path) == ["x", "y", "z"]
    make, expected = CHANGES[change]
    make(tmp_path)
    found = known(tmp_path)
    assert found == expected or (change == "a delete" and found == ["x", "z"])


def test_a_meta_that_lacks_categories_of_the_partitions_is_not_believed(tmp_path: Path) -> None:
    texts = two(pd.DataFrame({"c": ["x", "y", "z"], "n": range(3)}))
    wrong = texts.map_partitions(lambda part: part.astype({"c": "category"}))
    assert wrong["c"].cat.known
    to_tfrecord(wrong, tmp_path)
    assert known(tmp_path) is None
    assert values(tmp_path) == ["x", "y", "z"]


def test_a_partition_column_may_get_categories_in_other_directories(tmp_path: Path) -> None:
    for name in ("x", "y"):
        to_tfrecord(frame([name], [name]), tmp_path, partition_on="c", append=name == "y")
    assert values(tmp_path) == ["x", "y"]
    assert not read_tfrecord(tmp_path)["c"].cat.known


def test_a_file_that_was_changed_by_hand_does_not_add_categories(tmp_path: Path) -> None:
    for name in ("x", "w"):
        to_tfrecord(frame([name], [name]), tmp_path / name)
    [ours], [other] = ((tmp_path / name).glob("part-*") for name in ("x", "w"))
    shutil.copy(other, ours)
    with pytest.raises(FileChangedError):
        read_tfrecord(tmp_path / "x").compute()


texts = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3)
steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "dask", "unknown", "writer", "compact", "delete", "restore"]), texts
    ),
    max_size=5,
)


@given(first=texts, taken=steps)
def test_any_changes_leave_the_categories_known_or_unknown_but_never_wrong(
    first: list[str], taken: list[tuple[str, list[str]]]
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "d"
        to_tfrecord(frame(list(first), sorted({*first})), root)
        rows = [sorted(first)]
        for change, new in taken:
            more, left = frame(list(new), sorted({*new})), rows[-1]
            match change:
                case "append":
                    to_tfrecord(more, root, append=True)
                case "dask":
                    to_tfrecord(two(more), root, append=True)
                case "unknown":
                    to_tfrecord(two(more.astype({"c": "str"})).astype({"c": "category"}), root, append=True)
                case "writer":
                    with_writer(root, *new)
                case "compact":
                    new = []
                    open_dataset(root).compact()
                case "delete":
                    left, new = [text for text in left if text != new[0]], []
                    open_dataset(root).delete([("c", "==", more["c"][0])])
                case "restore":
                    left, new = rows[0], []
                    open_dataset(root).restore(1)
            rows.append(sorted([*left, *new]))
            found = known(root)
            assert values(root) == rows[-1]
            assert found is None or {*found} >= {*rows[-1]}
