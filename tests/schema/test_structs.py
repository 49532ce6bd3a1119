"""Struct columns: a feature for each field, and the struct again when it is read.

Modules: schema.storage_values.
"""

import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from encoded import encoded_views
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord import Schema, SchemaError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.codec import Decoder, Encoder
from dask_tfrecord.dataset.snapshot.model import Snapshot

pytestmark = pytest.mark.usefixtures("one_thread")

# -- Any struct, as the kernel stores it ---------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
FLOATS = st.floats(width=32, allow_nan=False)
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.float32(), FLOATS),
    (pa.float64(), FLOATS),
    (pa.string(), TEXT),
    (pa.large_binary(), st.binary(max_size=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.dictionary(pa.int32(), pa.string()), TEXT),
    (pa.null(), st.none()),
    (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=3)),
    (pa.large_list(pa.string()), st.lists(TEXT, max_size=3)),
    (pa.list_(pa.float32(), 2), st.lists(FLOATS, min_size=2, max_size=2)),
    (pa.list_(pa.list_(pa.bool_())), st.lists(st.lists(st.booleans(), max_size=2), max_size=2)),
]
NAMES = st.sampled_from(["x", "y", "é", "", "x/y", "y/x"])

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _struct(fields: list[tuple[str, Typed]]) -> Typed:
    type_ = pa.struct([(name, field) for name, (field, _) in fields])
    return type_, st.fixed_dictionaries({name: st.none() | values for name, (_, values) in fields})


def structs(fields: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    named = st.lists(st.tuples(NAMES, fields), max_size=4, unique_by=lambda field: field[0])
    return named.map(_struct)


TYPED = structs(st.recursive(st.sampled_from(LEAVES), structs, max_leaves=6))


def names_of(name: str, type_: pa.DataType) -> list[str]:
    """The names of all features that may store a column."""
    if not pa.types.is_struct(type_):
        return [name]
    return [name, *(one for item in type_ for one in names_of(f"{name}/{item.name}", item.type))]


def features_of(name: str, type_: pa.DataType, value: Any) -> list[str]:
    """The names of the features that store a value."""
    if value is None or not pa.types.is_struct(type_):
        return [] if value is None else [name]
    fields = ((f"{name}/{item.name}", item.type, value[item.name]) for item in type_)
    return [one for field in fields for one in features_of(*field)] or [name]


@given(st.data(), TYPED)
def test_every_struct_comes_back(data: st.DataObject, typed: Typed) -> None:
    type_, values = typed
    arrow = pa.schema({"a": type_, "n": pa.int64()})
    names = names_of("a", type_)
    if len(set(names)) < len(names):
        with pytest.raises(SchemaError, match="two columns or fields"):
            Schema.from_arrow(arrow, "sequence_example")
        return
    schema = Schema.from_arrow(arrow, "sequence_example")
    assert Schema.from_json(schema.to_json()) == schema
    rows = data.draw(st.lists(st.none() | values, max_size=5))
    array = pa.concat_arrays([pa.nulls(1, type_), pa.array(rows, type_)])[1:]  # an array with an offset
    batch = pa.record_batch([array, pa.array(range(len(rows)), pa.int64())], schema=arrow)
    encoder = Encoder(schema.columns, schema.record_type)
    file = b"".join(map(bytes, encoded_views(encoder, schema.to_storage(batch, lossy="raise"))))
    for payload, row in zip(oracle.frames(file), rows, strict=True):
        record = oracle.parse(payload, "sequence_example")
        found = sorted([*record.features, *record.lists])
        assert found == sorted(["n", *features_of("a", type_, row)])
    decoded = schema.from_storage(Decoder(schema.columns, schema.record_type).decode(file, final=True).batch)
    decoded.validate(full=True)
    assert decoded.schema == arrow
    assert decoded["a"].to_pylist() == array.to_pylist()


# -- Datasets ------------------------------------------------------------------------------------------------

INNER = pa.struct({"p": pa.float32(), "q": pa.dictionary(pa.int32(), pa.string())})
TYPE = pa.struct([pa.field("x", pa.int64()), ("y", pa.list_(pa.string())), ("z", INNER)])
NOTHING: dict[str, Any] = {"x": None, "y": None, "z": None}
VALUES: list[Any] = [
    {"x": 1, "y": ["a"], "z": {"p": 1.5, "q": "u"}},
    None,
    NOTHING,
    NOTHING | {"y": []},
    NOTHING | {"z": {"p": None, "q": None}},
    {"x": 3, "y": None, "z": {"p": 2.0, "q": "v"}},
]


def collection(values: Any = VALUES, type_: pa.DataType = TYPE, **others: Any) -> dd.DataFrame:
    table = pa.table({"n": range(len(values)), "a": pa.array(values, type_), **others})
    return dd.from_pandas(table.to_pandas(types_mapper=pd.ArrowDtype), npartitions=2)


def rows_of(ddf: dd.DataFrame, column: str = "a") -> list[Any]:
    """The values of a column, in the order of "n"."""
    found = pa.Table.from_pandas(ddf.compute(), preserve_index=False)
    assert column != "a" or found["a"].type == TYPE
    rows: list[Any] = found.sort_by("n")[column].to_pylist()
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip"},
        {"record_type": "sequence_example"},
        {"partition_on": "n"},
        {"partition_on": "k", "colocate": True},
        {"shuffle": True, "seed": 1},
        {"split": {"train": 0.5, "test": 0.5}},
        {"write_options": {"max_rows_per_file": 1}},
        {"schema": {"a": TYPE}},
    ],
    ids=str,
)
def test_a_dataset_keeps_its_structs(tmp_path: Path, options: dict[str, Any]) -> None:
    to_tfrecord(collection(k=list("aabbcc")), tmp_path, **options)
    ddf = read_tfrecord(tmp_path)
    assert ddf.dtypes["a"] == pd.ArrowDtype(TYPE)
    assert rows_of(ddf) == VALUES
    assert rows_of(read_tfrecord(tmp_path, dtype_backend="numpy")) == VALUES


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("structs")
    to_tfrecord(collection(), root)
    return root


def test_fields_are_columns_of_a_read(stored: Path) -> None:
    assert read_tfrecord(stored, columns="a/x").compute().tolist() == [1, *[pd.NA] * 4, 3]
    ddf = read_tfrecord(stored, columns=["n", "a", "a/x", "a/z", "a/z/p"])
    assert rows_of(ddf) == VALUES
    assert rows_of(ddf, "a/z") == [value and value["z"] for value in VALUES]
    assert rows_of(ddf[["a/z/p", "n"]], "a/z/p") == [1.5, None, None, None, None, 2.0]
    assert rows_of(ddf[ddf["a/x"] > 1]) == VALUES[5:]
    taken = open_dataset(stored).take([2, 0], columns=["n", "a"]).to_pandas(types_mapper=pd.ArrowDtype)
    assert rows_of(dd.from_pandas(taken, 1)) == [VALUES[0], NOTHING]
    assert read_tfrecord(stored, schema={"a": None}).compute().columns.tolist() == ["n"]
    for keyword in ("index", "categories"):
        with pytest.raises(SchemaError, match=f"{keyword}= needs a column"):
            read_tfrecord(stored, **{keyword: ["a/x"]})


def test_filters_use_the_statistics_of_fields(stored: Path) -> None:
    columns = open_dataset(stored).statistics
    shown = {
        name: (str(one["type"]), *one[["nulls", "min", "min_length"]]) for name, one in columns.iterrows()
    }
    assert shown["a"] == (str(TYPE), pd.NA, pd.NA, pd.NA)
    assert shown["a/x"] == ("int64", 4, 1, pd.NA)
    assert shown["a/y"] == ("list<item: string>", 4, pd.NA, 0)
    snapshot = Snapshot.open(stored)
    assert "a       struct" in str(snapshot.columns)
    least = [{one.name: (one.min, one.nulls) for one in file.statistics} for file in snapshot.files]
    assert [(one["a/x"], one["a/z/q"]) for one in least] == [((1, 2), ("u", 2)), ((3, 2), ("v", 2))]
    assert "a" not in least[0]
    ddf = read_tfrecord(stored, filters=[("a/x", ">", 1)])
    assert (ddf.npartitions, rows_of(ddf)) == (1, VALUES[5:])
    assert rows_of(read_tfrecord(stored, filters=[("a", "is", None)])) == [None]
    with pytest.raises(SchemaError, match="cannot be compared"):
        read_tfrecord(stored, filters=[("a", "==", {"x": 1})])
    for filters, expected in [
        ([("a/z/p", "is", None)], VALUES[1:5]),
        ([("a/x", "==", 1), ("a", "is not", None)], VALUES[:1]),
    ]:
        assert rows_of(read_tfrecord(stored, filters=filters)) == expected


def test_appends_need_the_same_struct(tmp_path: Path) -> None:
    for _ in range(2):
        to_tfrecord(collection(), tmp_path / "a", append=True)
    assert rows_of(read_tfrecord(tmp_path / "a")) == [value for value in VALUES for _ in range(2)]
    other = collection([{"x": 1}] * 2, pa.struct({"x": pa.int64()}))
    with pytest.raises(SchemaError, match="the column is struct<x: int64>, in the dataset it is struct<x"):
        to_tfrecord(other, tmp_path / "a", append=True)
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "one.tfrecord").write_bytes(oracle.features_file([{"n": ("int64", [1]), "a": ("int64", [1])}]))
    open_dataset(flat).add_snapshot()
    with pytest.raises(SchemaError, match="the column is struct<x: int64>, in the dataset it is int64"):
        to_tfrecord(other, flat, append=True)


def test_files_without_a_snapshot_need_the_type(stored: Path, tmp_path: Path) -> None:
    files = str(stored / "*.tfrecord")
    assert sorted(read_tfrecord(files).columns) == ["a", "a/x", "a/y", "a/z", "a/z/p", "a/z/q", "n"]
    for options in ({"schema": {"a": TYPE}}, {"schema": {"a": TYPE}, "read_options": {"infer": "all"}}):
        assert rows_of(read_tfrecord(files, **options)) == VALUES
    assert rows_of(read_tfrecord(files, schema=pa.schema({"n": pa.int64(), "a": TYPE}))) == VALUES
    wrong = pa.struct({"x": pa.string(), "y": pa.list_(pa.string()), "z": INNER})
    with pytest.raises(SchemaError) as caught:
        read_tfrecord(files, schema={"a": wrong}).compute()
    (remedy,) = caught.value.remedies
    assert rows_of(read_tfrecord(files, **{remedy.keyword: remedy.value})) == VALUES
    for path in stored.glob("*.tfrecord"):
        shutil.copy(path, tmp_path)
    open_dataset(tmp_path, schema={"a": TYPE}).add_snapshot()
    assert rows_of(read_tfrecord(tmp_path)) == VALUES
    assert rows_of(read_tfrecord(tmp_path, filters=[("a/x", "==", 3)])) == VALUES[5:]


def test_objects_and_casts_of_structs_are_exact(tmp_path: Path) -> None:
    narrow = pa.struct({"x": pa.int8(), "f": pa.float32()})
    ddf = collection([{"x": 1, "f": 0.5}, None], pa.struct({"x": pa.int64(), "f": pa.float64()}))
    with pytest.warns(UserWarning, match="the values of 'a' are rounded"):
        to_tfrecord(ddf, tmp_path / "cast", schema={"a": narrow})
    assert read_tfrecord(tmp_path / "cast")["a"].compute().tolist() == [{"x": 1, "f": 0.5}, pd.NA]
    for value, type_, problem in (
        (128, pa.struct({"x": pa.int8()}), "feature 'a': .*128 not in range"),
        (1, pa.struct({"y": pa.int64()}), r"a struct of \['x'\] does not fit struct<y: int64>"),
    ):
        ddf = collection([None, {"x": value}], pa.struct({"x": pa.int64()}))
        with pytest.raises(SchemaError, match=problem):
            to_tfrecord(ddf, tmp_path / "no", schema={"a": type_})


LIST_OF_STRUCTS = pa.list_(pa.struct({"c": pa.int8()}))
# The type, a value, the feature in the error, and the advice
REFUSED: list[tuple[pa.DataType, Any, str, str]] = [
    (LIST_OF_STRUCTS, [], "a", "make each of its fields a list column, .* or serialize"),
    (pa.struct({"b": LIST_OF_STRUCTS}), None, "a/b", "make each of its fields a list"),
    (pa.struct({"b": pa.map_(pa.string(), pa.int8())}), None, "a/b", "make its keys and its values two list"),
    (pa.struct({"b": pa.list_(pa.list_(pa.int8()))}), None, "a/b", 'pass record_type="sequence_example"'),
    (
        pa.struct({"b": pa.decimal128(5, -2)}),
        None,
        "a/b",
        r'schema=\{"a": pa.struct\(\{"b": pa.decimal128\(7',
    ),
    (pa.struct([("b", pa.int8()), ("b", pa.int8())]), None, "a/b", "rename one of the columns or fields"),
    (pa.struct({"b": pa.list_(pa.int8())}), {"b": [1, None]}, "a/b", "fill or drop the nulls inside"),
    (pa.struct({"b": pa.float64()}), {"b": 0.1}, "a/b", 'pass lossy="allow"'),
    (pa.struct({"b": pa.uint64()}), {"b": 2**63}, "a/b", "store the column as text"),
]


@pytest.mark.parametrize(("type_", "value", "feature", "advice"), REFUSED, ids=lambda one: str(one)[:30])
def test_what_no_feature_holds_is_refused_with_a_way_out(
    tmp_path: Path, type_: pa.DataType, value: Any, feature: str, advice: str
) -> None:
    with pytest.raises(SchemaError, match=advice) as caught:
        to_tfrecord(collection([value], type_), tmp_path, lossy="raise")
    assert caught.value.feature == feature


@pytest.mark.parametrize("partition_on", [None, "a/x"])
def test_a_column_with_the_name_of_a_feature_is_refused(tmp_path: Path, partition_on: Any) -> None:
    ddf = collection(**{"a/x": range(len(VALUES))})
    with pytest.raises(SchemaError, match="feature 'a/x': two columns or fields"):
        to_tfrecord(ddf, tmp_path, partition_on=partition_on)
    with pytest.raises(SchemaError, match="cannot be directory names"):
        to_tfrecord(collection(), tmp_path, partition_on="a")
    to_tfrecord(collection(**{"a/w": range(len(VALUES))}), tmp_path, partition_on=partition_on and "a/w")
    assert rows_of(read_tfrecord(tmp_path)) == VALUES


@pytest.mark.tensorflow
def test_tensorflow_parses_the_fields(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    feeds = pytest.importorskip("dask_tfrecord.feed.tensorflow")
    to_tfrecord(collection(), tmp_path)
    spec = feeds.feature_spec(tmp_path, fill_nulls={"a/x": -1})
    assert [*spec.context] == ["n", "a/x", "a/y", "a/z/p", "a/z/q"]
    records = [*tf.data.TFRecordDataset(sorted(map(str, tmp_path.glob("*.tfrecord"))))]
    parsed = tf.io.parse_example(tf.stack(records), spec.context)
    assert parsed["a/x"].numpy().tolist() == [1, -1, -1, -1, -1, 3]
    assert parsed["a/y"].to_list() == [[b"a"], [], [], [], [], []]
    (batch,) = feeds.tensorflow_dataset(tmp_path, 6, columns=["a/x", "a/z/q"], fill_nulls={"a/x": -1})
    assert batch["a/x"].numpy().tolist() == [1, -1, -1, -1, -1, 3]
    assert batch["a/z/q"].numpy().tolist() == [b"u", b"", b"", b"", b"", b"v"]
    with pytest.raises(SchemaError, match="name its fields there, such as 'a/x'"):
        feeds.tensorflow_dataset(tmp_path, 6)
