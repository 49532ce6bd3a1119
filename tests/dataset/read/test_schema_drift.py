"""Records whose features differ from the columns: the read raises, and names the arguments that read them.

Modules: dataset.read.inferred_schema, dataset.read.schema_sources.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from inferred import directory_of, file_of, infer, sequence_file, types
from oracle import Feature, Record

from dask_tfrecord import index, read_tfrecord
from dask_tfrecord.errors import SchemaError

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_feature_list_that_the_sample_did_not_hold_raises_and_says_how_to_read_it(tmp_path: Path) -> None:
    """The sample shows Examples, and an Example has no feature lists: the list would be lost silently."""
    files = [sequence_file(Record({"a": Feature("int64", [1])}))] * 40
    files[23] += sequence_file(Record({"a": Feature("int64", [2])}, {"steps": [Feature("int64", [3])]}))
    assert types(infer(tmp_path, *files)) == {"a": pa.int64()}
    with pytest.raises(
        SchemaError, match=r'schema=\{"steps": pa.list_\(pa.list_\(pa.int64\(\)\)\)\}'
    ) as caught:
        read_tfrecord(tmp_path).compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)
    assert caught.value.feature == "steps"
    given = {"steps": pa.list_(pa.list_(pa.int64()))}
    steps = read_tfrecord(tmp_path, schema=given)["steps"].compute().dropna()
    assert [[list(step) for step in record] for record in steps] == [[[3]]]
    assert len(read_tfrecord(tmp_path, extra="ignore").compute()) == 41
    assert len(read_tfrecord(tmp_path, record_type="example").compute()) == 41


BOTH = Record({"a": Feature("int64", [1]), "x": Feature("int64", [2])}, {"x": [Feature("int64", [3])]})


IN_CONTEXT = Record({"a": Feature("int64", [1]), "x": Feature("int64", [2])})


IN_LISTS = Record({"a": Feature("int64", [1])}, {"x": [Feature("int64", [3])]})


@pytest.mark.parametrize("usual", [IN_CONTEXT, IN_LISTS], ids=["context", "lists"])
@pytest.mark.parametrize("strange", [BOTH, None], ids=["both", "the other"])
def test_a_column_in_the_other_map_of_a_record_outside_the_sample_raises(
    tmp_path: Path, usual: Record, strange: Record | None
) -> None:
    """The context and the feature lists are two maps: a name known in one is unknown in the other."""
    other = IN_LISTS if usual is IN_CONTEXT else IN_CONTEXT
    files = [sequence_file(usual)] * 40
    files[23] += sequence_file(strange or other)
    directory_of(tmp_path, *files)
    here, there = (
        ("the feature lists", "the context") if usual is IN_CONTEXT else ("the context", "the feature lists")
    )
    with pytest.raises(
        SchemaError, match=f"record has the feature in {here}, the column reads it from {there}"
    ) as caught:
        read_tfrecord(tmp_path).compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)
    assert caught.value.feature == "x"
    # The two ways that the message offers: read one of the places, or choose the place by a type.
    kept = read_tfrecord(tmp_path, extra="ignore")["x"].compute()
    assert len(kept) == 41
    assert kept.isna().sum() == (strange is None)
    if strange is None:
        return
    with pytest.raises(
        SchemaError, match=r'both a feature of the context and a feature list.*extra="ignore"'
    ):
        read_tfrecord(tmp_path, infer="all")
    for type_, value, nulls in (
        (pa.int64(), 2, 0 if usual is IN_CONTEXT else 40),
        (pa.list_(pa.list_(pa.int64())), [[3]], 40 if usual is IN_CONTEXT else 0),
    ):
        chosen = read_tfrecord(tmp_path, infer="all", schema={"x": type_}, extra="ignore")["x"].compute()
        assert chosen.isna().sum() == nulls
        assert pa.array(chosen.dropna(), type_).to_pylist() == [value] * (41 - nulls)


def test_a_choice_of_one_of_two_maps_does_not_drop_the_other_in_silence(tmp_path: Path) -> None:
    path = directory_of(tmp_path, sequence_file(BOTH, IN_CONTEXT, IN_LISTS))
    for type_ in (pa.int64(), pa.list_(pa.list_(pa.int64()))):
        with pytest.raises(SchemaError, match="feature 'x': the record has the feature in"):
            read_tfrecord(path, schema={"x": type_}).compute()
    context, lists = (
        read_tfrecord(path, schema={"x": type_}, extra="ignore")["x"].compute()
        for type_ in (pa.int64(), pa.list_(pa.list_(pa.int64())))
    )
    assert context.isna().tolist() == [False, False, True]
    assert lists.isna().tolist() == [False, True, False]


@pytest.mark.parametrize("type_", [pa.int64(), pa.list_(pa.list_(pa.int64()))], ids=["context", "lists"])
def test_a_snapshot_of_one_of_two_maps_does_not_drop_the_other_in_silence(
    tmp_path: Path, type_: pa.DataType
) -> None:
    index(directory_of(tmp_path, sequence_file(BOTH)), schema={"x": type_})
    with pytest.raises(SchemaError, match="feature 'x': the record has the feature in"):
        read_tfrecord(tmp_path).compute()
    value = 2 if type_ == pa.int64() else [[3]]
    for options in ({"extra": "ignore"}, {"columns": ["x"]}, {"columns": ["a", "x"], "extra": "ignore"}):
        assert pa.array(read_tfrecord(tmp_path, **options)["x"].compute(), type_).to_pylist() == [value]


@pytest.mark.parametrize("name", ["path", "offset"])
def test_a_feature_called_as_the_offset_column_raises_outside_the_sample_too(
    tmp_path: Path, name: str
) -> None:
    files = [file_of({"a": ("int64", [1])})] * 40
    files[23] += file_of({"a": ("int64", [1]), name: ("int64", [7])})
    ddf = read_tfrecord(
        directory_of(tmp_path, *files),
        include_path_column=name == "path",
        include_offset_column=name == "offset",
    )
    with pytest.raises(SchemaError, match="has the name of another column; pass include_") as caught:
        ddf.compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)
