"""List columns in feature lists: the option ``feature_lists``, and columns that were read from feature lists.

Modules: schema.feature_maps, schema.form_transport, keywords.requests, dataset.write.append_schema,
collection.expr.lineage, collection.frames.schema_plan.
"""

import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import (
    Field,
    Schema,
    SchemaError,
    TFRecordError,
    Writer,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.schema.stored_form import StoredForm

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = [[3, 1], [], None, [2]]
WORDS = [["a"], ["b", "é"], [], None]
DAYS = pd.to_datetime(["2026-01-01", "2026-01-02"]).date.tolist()
ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "tokens": pa.array(TOKENS, pa.list_(pa.int16())),
        "words": pa.array(WORDS, pa.large_list(pa.string())),
        "days": pa.array([DAYS, None, DAYS, None], pa.list_(pa.date32(), 2)),
    }
)
LISTS = ["tokens", "words", "days"]
OPTIONS: Any = {"feature_lists": LISTS}


def stored(root: Path) -> list[dict[str, Any]]:
    """The feature lists of all records, read by another implementation: one list of values for each step."""
    found = []
    for path in sorted(root.glob("*.tfrecord")):
        for payload in oracle.read_payloads(path):
            lists = oracle.parse(payload, "sequence_example").lists
            found.append({name: [step.values for step in steps] for name, steps in lists.items()})
    return found


def frame() -> pd.DataFrame:
    return ROWS.to_pandas(types_mapper=pd.ArrowDtype)


@pytest.mark.parametrize("writes", ["arrow", "pandas", "dask", "writer"])
def test_each_value_of_a_list_is_a_step(tmp_path: Path, writes: str) -> None:
    if writes == "writer":
        with Writer(tmp_path, write_options=OPTIONS) as writer:
            writer.write(ROWS)
    else:
        rows = {"arrow": ROWS, "pandas": frame(), "dask": dd.from_pandas(frame(), npartitions=2)}[writes]
        to_tfrecord(rows, tmp_path, write_options=OPTIONS)
    dataset = open_dataset(tmp_path)
    assert dataset.record_type == "sequence_example"
    assert dataset.to_table().equals(ROWS)
    found = stored(tmp_path)
    assert [row.get("tokens") for row in found] == [
        None if row is None else [[one] for one in row] for row in TOKENS
    ]
    assert found[1]["words"] == [[b"b"], ["é".encode()]]
    assert dataset.verify()["drift"].tolist() == [""] * len(dataset.files)


@pytest.mark.tensorflow
def test_tensorflow_parses_them_as_sequences(tmp_path: Path) -> None:
    tf: Any = pytest.importorskip("tensorflow")
    to_tfrecord(ROWS, tmp_path, write_options={"feature_lists": "tokens"})
    [path] = tmp_path.glob("*.tfrecord")
    sequence = {"tokens": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    for payload, tokens in zip(oracle.read_payloads(path), TOKENS, strict=True):
        _, parsed = tf.io.parse_single_sequence_example(payload, {}, sequence)
        assert parsed["tokens"].numpy().tolist() == (tokens or [])
    assert open_dataset(tmp_path / path.name, schema=sequence).to_table()["tokens"].to_pylist() == TOKENS


def test_rows_that_are_added_or_rewritten_keep_the_feature_lists(tmp_path: Path) -> None:
    root = tmp_path / "data"
    to_tfrecord(ROWS, root, write_options=OPTIONS)
    to_tfrecord(dd.from_pandas(frame(), npartitions=1), root, append=True, record_type="sequence_example")
    with Writer(root) as writer:
        writer.write(ROWS)
    dataset = open_dataset(root)
    dataset.compact()
    open_dataset(root).delete([("id", "==", 4)])
    assert open_dataset(root).to_table().equals(pa.concat_tables([ROWS.slice(0, 3)] * 3).combine_chunks())
    assert [row.get("tokens") for row in stored(root)] == [[[3], [1]], [], None] * 3
    ddf = read_tfrecord(root)
    to_tfrecord(ddf[ddf["id"] > 1], tmp_path / "copy")  # columns are written as they were read
    assert [row.get("tokens") for row in stored(tmp_path / "copy")] == [[], None] * 3


def test_steps_of_several_values_are_written_as_they_were_read(tmp_path: Path) -> None:
    """As a FixedLenSequenceFeature with a shape reads them."""
    pairs = pa.array([[[0.5, 1], [2, 3]], [], None], pa.list_(pa.list_(pa.float32(), 2)))
    rows = pa.table({"pair": pairs, "id": [1, 2, 3]})
    to_tfrecord(rows, tmp_path / "data", record_type="sequence_example")
    form = StoredForm(pa.float32(), (2,), (None,), is_optional=True)
    schema = Schema((Field.in_form("pair", form), Field("id", pa.int64())))
    read = open_dataset(f"{tmp_path}/data/*.tfrecord", schema=schema).to_table()
    assert read.equals(rows)
    to_tfrecord(read_tfrecord(f"{tmp_path}/data/*.tfrecord", schema=schema), tmp_path / "copy")
    assert open_dataset(tmp_path / "copy").to_table()["pair"].to_pylist() == pairs.to_pylist()
    assert stored(tmp_path / "copy") == stored(tmp_path / "data")


@pytest.mark.parametrize(
    ("options", "record_type", "error", "problem"),
    [
        (
            {"feature_lists": ["id"]},
            "infer",
            SchemaError,
            "'id': the option feature_lists .* int64 and no list",
        ),
        ({"feature_lists": ["other"]}, "infer", SchemaError, "no column is named 'other'"),
        (OPTIONS, "example", TFRecordError, "needs sequence examples"),
    ],
)
def test_a_column_that_is_no_list_is_refused(
    tmp_path: Path, options: Any, record_type: Any, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        to_tfrecord(ROWS, tmp_path / "x", write_options=options, record_type=record_type)
    with (
        pytest.raises(error, match=problem),
        Writer(tmp_path / "y", write_options=options, record_type=record_type) as writer,
    ):
        writer.write(ROWS)
    to_tfrecord(ROWS, tmp_path / "z", record_type="sequence_example")
    with pytest.raises(SchemaError, match="the dataset stores it in the context"):
        to_tfrecord(ROWS, tmp_path / "z", append=True, write_options={"feature_lists": LISTS})


READ: dict[str, Any] = {
    "pandas": lambda root: read_tfrecord(root).compute(),
    "numpy": lambda root: read_tfrecord(root, dtype_backend="numpy_nullable").compute(),
    "filtered": lambda root: (lambda found: found[found["id"] > 0])(read_tfrecord(root).compute()),
    "arrow": lambda root: open_dataset(root).to_table(),
    "arrow of pandas": lambda root: pa.Table.from_pandas(read_tfrecord(root).compute()),
    "persisted": lambda root: read_tfrecord(root).persist(),
    "of pandas": lambda root: dd.from_pandas(read_tfrecord(root).compute(), npartitions=1),
}


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_lists_that_were_read_from_feature_lists_go_back_to_them(tmp_path: Path, read: Any) -> None:
    to_tfrecord(ROWS.select(["id", "tokens"]), tmp_path / "old", write_options={"feature_lists": ["tokens"]})
    rows = read(tmp_path / "old")
    to_tfrecord(rows, tmp_path / "new")
    assert stored(tmp_path / "new") == stored(tmp_path / "old") != [{}] * len(TOKENS)
    assert read_tfrecord(tmp_path / "new").compute()["tokens"].isna().tolist() == [False, False, True, False]
    to_tfrecord(rows, tmp_path / "flat", record_type="example")
    assert stored(tmp_path / "flat") == [{}] * len(TOKENS)


def test_a_column_that_is_a_list_no_longer_needs_no_sequence_examples(tmp_path: Path) -> None:
    to_tfrecord(ROWS.select(["id", "tokens"]), tmp_path / "old", write_options={"feature_lists": ["tokens"]})
    changed = read_tfrecord(tmp_path / "old").compute().assign(tokens=[1, 2, 3, 4])
    to_tfrecord(changed, tmp_path / "new")
    assert stored(tmp_path / "new") == [{}] * len(TOKENS)
    assert read_tfrecord(tmp_path / "new").compute()["tokens"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("columns", "record_type"),
    [(["id"], "example"), (["id", "tokens"], "infer"), (["id", "tokens"], "example")],
)
def test_appended_examples_never_hide_feature_lists_of_other_tools(
    tmp_path: Path, columns: list[str], record_type: Any
) -> None:
    root = tmp_path / "x"
    to_tfrecord(ROWS.select(["id", "tokens"]), root, write_options={"feature_lists": ["tokens"]})
    shutil.rmtree(root / "_tfrecord")  # as another tool leaves them
    open_dataset(root).add_snapshot()
    before = open_dataset(root).to_table()
    with pytest.raises(SchemaError, match=r'holds .sequence_example.* pass record_type="sequence_example"'):
        to_tfrecord(ROWS.select(columns), root, append=True, record_type=record_type)
    assert open_dataset(root).to_table().equals(before)
    nested = before.slice(0, 1)
    to_tfrecord(nested, root, append=True, record_type="sequence_example")
    assert open_dataset(root).to_table()["tokens"].to_pylist() == [*before["tokens"].to_pylist(), [[3], [1]]]
