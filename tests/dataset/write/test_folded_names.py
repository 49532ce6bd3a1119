"""Partition values whose directory names are the same name for the filesystem, in case or Unicode form.

Modules: dataset.write.transaction, dataset.partitioning.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from folding_names import FoldingNames

from dask_tfrecord import (
    DestinationError,
    Snapshot,
    Writer,
    cleanup,
    delete,
    read_tfrecord,
    restore,
    to_tfrecord,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS = [("A", "a"), ("é", "e\u0301"), ("ß", "SS")]


@pytest.fixture
def folding() -> Iterator[FoldingNames]:
    yield FoldingNames()
    FoldingNames.store.clear()
    FoldingNames.pseudo_dirs[:] = [""]


def rows(*values: str) -> pa.Table:
    return pa.table({"n": range(len(values)), "key": values})


def write(folding: FoldingNames, table: pa.Table, **kwargs: Any) -> Snapshot:
    return to_tfrecord(table, "/set", filesystem=folding, partition_on="key", **kwargs)


def read(folding: FoldingNames, **kwargs: Any) -> list[dict[str, Any]]:
    found = read_tfrecord("/set", filesystem=folding, **kwargs).compute()
    return sorted(found.astype({"key": str}).to_dict("records"), key=lambda row: row["n"])


@pytest.mark.parametrize("values", PAIRS)
def test_two_values_that_share_a_directory_are_refused_before_anything_changes(
    folding: FoldingNames, values: tuple[str, str]
) -> None:
    with pytest.raises(DestinationError, match="does not distinguish") as caught:
        write(folding, rows(*values))
    for value in values:
        assert ascii(f"key={value}") in str(caught.value)
    assert not [path for path in folding.store if "part-" in path]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_another_form_of_a_stored_value_is_refused_and_the_dataset_stays(
    folding: FoldingNames, first: str, second: str
) -> None:
    write(folding, rows(first))
    before = {path: file.getvalue() for path, file in folding.store.items()}
    for mode in ({"append": True}, {"overwrite": True}, {"overwrite": "partitions"}):
        with pytest.raises(DestinationError, match="does not distinguish"):
            write(folding, rows(second), **mode)
    with (
        pytest.raises(DestinationError, match="does not distinguish"),
        Writer("/set", filesystem=folding) as writer,
    ):
        writer.write(rows(second))
    assert {path: file.getvalue() for path, file in folding.store.items()} == before
    write(folding, rows(first), append=True)
    assert read(folding) == read(folding, use_snapshot=False) == [{"n": 0, "key": first}] * 2


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_another_form_of_a_value_of_an_older_version_is_refused(
    folding: FoldingNames, first: str, second: str
) -> None:
    """The files of both values would otherwise be in one directory of kept files, or after a restore."""
    write(folding, rows(first, "other"))
    delete("/set", [("key", "==", first)], keep_versions=True, filesystem=folding)
    with pytest.raises(DestinationError, match="of an older version"):
        write(folding, rows(second), append=True)
    restore("/set", 1, filesystem=folding)
    assert cleanup("/set", older_than="0 s", filesystem=folding) == []
    expected = [{"n": 0, "key": first}, {"n": 1, "key": "other"}]
    assert read(folding) == read(folding, version=1) == expected


def test_a_level_of_another_case_is_refused(folding: FoldingNames) -> None:
    table = pa.table({"n": [0, 1], "a": ["x", "x"], "b": ["y", "Y"]})
    with pytest.raises(DestinationError, match=r"the directory 'b=[yY]' from 'b=[yY]'"):
        to_tfrecord(table, "/set", filesystem=folding, partition_on=["a", "b"])


@pytest.mark.parametrize(
    "kwargs", [{}, {"max_rows_per_file": 1}, {"shuffle": 1}, {"colocate": True}, {"columnar": "n"}]
)
def test_no_two_files_of_a_run_have_the_same_name(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    snapshot = to_tfrecord(rows(*"AaBbAaBb"), tmp_path, partition_on="key", **kwargs)
    names = [file.path.rpartition("/")[2].casefold() for file in snapshot.files]
    assert len({*names}) == len(names) >= 4
    assert len(read_tfrecord(tmp_path).compute()) == 8
