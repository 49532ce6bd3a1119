"""Deleted values: after `delete`, `expire` and `cleanup`, no byte of the dataset holds one.

Modules: dataset.maintenance.rewrites.
"""

import base64
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_tfrecord import SchemaError, Snapshot, cleanup, delete, expire, export, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.maintenance import rewrites

pytestmark = pytest.mark.usefixtures("one_thread")

SECRET = "SECRETuser42"
USERS = ["aa", SECRET, "zz"] * 4


def decoded(data: bytes) -> Iterator[bytes]:
    """Yield bytes, and what is decompressed or decoded from them: Parquet values and footers, and base64."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    if data[:4] == b"PAR1":
        table = pq.read_table(pa.BufferReader(data))
        metadata = pq.read_metadata(pa.BufferReader(data))
        yield repr((table.to_pydict(), table.schema, metadata.metadata)).encode()
        for text in (metadata.metadata or {}).values():
            yield text
            for found in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", text):
                yield base64.b64decode(found + b"=" * (-len(found) % 4))


def places_of(text: str, root: Path) -> list[str]:
    """Return the files under a directory of which the name or a byte holds a text."""
    paths = [path for path in root.rglob("*") if path.is_file()]
    return [
        str(path.relative_to(root))
        for path in paths
        if text in str(path.relative_to(root))
        or any(text.encode() in part for part in decoded(path.read_bytes()))
    ]


def categorical(ordered: bool = False) -> pd.DataFrame:
    user = pd.Categorical(USERS, categories=["zz", SECRET, "aa"], ordered=ordered)
    return pd.DataFrame({"user": user, "k": [n % 2 for n in range(12)], "n": range(12)})


DICTIONARY = pa.table({"user": pa.array(USERS).dictionary_encode(), "k": [0, 1] * 6, "n": range(12)})
NESTED = pa.table(
    {
        "user": pa.array(USERS),
        "tags": pa.ListArray.from_arrays(range(13), pa.array(USERS).dictionary_encode()),
        "of": pa.StructArray.from_arrays([pa.array(USERS).dictionary_encode()], ["user"]),
        "k": [0, 1] * 6,
        "n": range(12),
    }
)
FRAMES: dict[str, Any] = {
    "categorical": categorical(),
    "ordered": categorical(ordered=True),
    "Dask": dd.from_pandas(categorical(), npartitions=3),
    "Dask, unknown": dd.from_pandas(categorical(), npartitions=3).assign(
        user=lambda ddf: ddf["user"].cat.as_unknown()
    ),
    "dictionary": DICTIONARY,
    "nested": NESTED,
    "strings": NESTED.select(["user", "k", "n"]),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partitioned by another column, column files": {"partition_on": "k", "columnar": ["user", "n"]},
    "partitioned by the column, column files": {"partition_on": "user", "columnar": ["n"]},
    "gzip": {"compression": "gzip"},
}


@pytest.mark.parametrize(
    ("frame", "layout"),
    [*((name, "plain") for name in FRAMES), *(("categorical", name) for name in LAYOUTS if name != "plain")],
)
@pytest.mark.parametrize("filters", [[("n", "in", [1, 4, 7, 10])], [("user", "==", SECRET)]])
@pytest.mark.parametrize("keep_versions", [False, True])
def test_no_byte_holds_a_deleted_value(
    tmp_path: Path, frame: str, layout: str, filters: Any, keep_versions: bool
) -> None:
    rows, how = FRAMES[frame], LAYOUTS[layout]
    to_tfrecord(rows, tmp_path, custom_metadata={"source": "a test"}, **how)
    export(tmp_path, "tfmd")
    assert places_of(SECRET, tmp_path)
    assert delete(tmp_path, filters, keep_versions=keep_versions).rows == 4
    expire(tmp_path, versions=1, grace="0s")
    cleanup(tmp_path, older_than="0s")
    assert places_of(SECRET, tmp_path) == []
    left = read_tfrecord(tmp_path).compute()
    assert sorted(left["user"].astype(str)) == ["aa"] * 4 + ["zz"] * 4


def test_an_append_does_not_bring_back_the_categories_of_its_frame(tmp_path: Path) -> None:
    to_tfrecord(categorical(), tmp_path)
    delete(tmp_path, [("user", "==", SECRET)])
    to_tfrecord(categorical().query("user != @SECRET"), tmp_path, append=True)
    assert places_of(SECRET, tmp_path) == []


@pytest.mark.parametrize("partition_on", [None, "user"])
def test_a_delete_keeps_categories_that_other_rows_have_or_no_row_ever_had(
    tmp_path: Path, partition_on: str | None
) -> None:
    frame = categorical()
    frame["user"] = frame["user"].cat.add_categories(["never"])
    to_tfrecord(dd.from_pandas(frame, npartitions=3), tmp_path, partition_on=partition_on)
    delete(tmp_path, [("n", "==", 1)])
    field = Snapshot.open(tmp_path).columns.select(["user"]).fields[0]
    assert field.categories.to_pylist() == ["zz", SECRET, "aa", "never"]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_category_that_an_append_brings_during_a_delete_can_be_read(
    tmp_path: Path, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_tfrecord(categorical(ordered), tmp_path)
    commit = rewrites.commit

    def after_append(*args: Any) -> Snapshot:
        to_tfrecord(categorical(ordered).iloc[1:2], tmp_path, append=True)
        return commit(*args)

    monkeypatch.setattr(rewrites, "commit", after_append)
    delete(tmp_path, [("user", "==", SECRET)])
    assert sorted(read_tfrecord(tmp_path)["user"].compute().astype(str)).count(SECRET) == 1


def test_an_ordered_column_refuses_the_category_that_was_deleted(tmp_path: Path) -> None:
    to_tfrecord(categorical(ordered=True), tmp_path)
    delete(tmp_path, [("user", "==", SECRET)])
    with pytest.raises(SchemaError, match="the ordered categories differ"):
        to_tfrecord(categorical(ordered=True), tmp_path, append=True)


def test_the_history_counts_deleted_rows_and_does_not_show_the_filters(tmp_path: Path) -> None:
    to_tfrecord(categorical(), tmp_path)
    delete(tmp_path, [("user", "==", SECRET)], keep_versions=True)
    assert Snapshot.history(tmp_path)["details"].iloc[-1] == "4 rows"


def test_a_partition_with_a_damaged_file_can_be_deleted(tmp_path: Path) -> None:
    snapshot = to_tfrecord(categorical(), tmp_path, partition_on="k")
    damaged = tmp_path / snapshot.files[0].path
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert delete(tmp_path, [("k", "==", 0)]).dropped == 1
    assert len(read_tfrecord(tmp_path)) == 6
