"""Columns of SequenceExamples: schemas of any kind read the feature lists that TensorFlow would parse.

Modules: schema.feature_maps, schema.tensorflow_schemas, dataset.read.inferred_schema, dataset.read.columns,
feed.feature_specs.
"""

import json
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from click.testing import CliRunner
from oracle import Feature, Record
from other_writers import advised, fill

from dask_tfrecord import Schema, SchemaError, open_dataset, read_tfrecord
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.schema.fields import Field
from dask_tfrecord_launcher import main

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT: list[dict[str, list[Any]]] = [{"id": [7], "tags": [1, 2]}, {"id": [8]}]
LISTS: list[dict[str, list[list[Any]]]] = [
    {
        "label": [[0], [1], [0]],
        "word": [[b"a"], [b"b"], [b"c"]],
        "pair": [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]],
        "ragged": [[1], [2, 3], []],
    },
    {"label": [[5]], "word": [[b""]], "pair": [[6.0, 7.0]], "ragged": []},
]
KINDS = {int: "int64", float: "float", bytes: "bytes"}


def feature(values: list[Any]) -> Feature:
    kind = next((KINDS[type(one)] for one in values), "int64")
    return Feature(kind, [oracle.float_bits(one) for one in values] if kind == "float" else values)


def payloads(lists: list[dict[str, list[list[Any]]]] = LISTS) -> list[bytes]:
    return [
        oracle.serialize(
            Record(
                {name: feature(values) for name, values in context.items()},
                {name: [feature(step) for step in steps] for name, steps in of_row.items()},
            ),
            "sequence_example",
        )
        for context, of_row in zip(CONTEXT, lists, strict=True)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "data", {"a.tfrecord": oracle.records_file(payloads())})


def table(path: Any, **keywords: Any) -> pa.Table:
    return open_dataset(path, **keywords).to_table()


def values(name: str) -> list[Any]:
    return [row[name] for row in LISTS]


def flat(name: str) -> list[Any]:
    return [[step[0] for step in row[name]] for row in LISTS]


LIST, LISTS_OF = pa.list_(pa.int64()), pa.list_(pa.list_(pa.int64()))
PBTXT = 'feature { name: "ragged" type: INT } feature { name: "id" type: INT shape { } }'
TFDS: dict[str, Any] = {
    "type": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "content": {
        "features": {
            "label": {
                "pythonClassName": "tensorflow_datasets.core.features.sequence_feature.Sequence",
                "sequence": {
                    "feature": {
                        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
                        "tensor": {"shape": {}, "dtype": "int64", "encoding": "none"},
                    },
                    "length": "-1",
                },
            }
        }
    },
}


def schemas(directory: Path) -> dict[str, tuple[Any, dict[str, list[Any]]]]:
    """Schemas without TensorFlow, and the values that they read."""
    (directory / "schema.pbtxt").write_text(PBTXT)
    (directory / "features.json").write_text(json.dumps({"featuresDict": TFDS["content"]}))
    return {
        "types": ({"label": LIST}, {"label": flat("label"), "ragged": values("ragged")}),
        "nested types": ({"label": LISTS_OF}, {"label": values("label")}),
        "names of types": ({"label": "list<int8>"}, {"label": flat("label")}),
        "arrow": (pa.schema({"label": LIST, "id": pa.int8()}), {"label": flat("label"), "id": [7, 8]}),
        "large list": (pa.schema({"word": pa.large_list(pa.string())}), {"word": [["a", "b", "c"], [""]]}),
        "pairs": (pa.schema({"pair": pa.list_(pa.list_(pa.float32(), 2))}), {"pair": values("pair")}),
        "example schema": (Schema.from_arrow(pa.schema({"label": LIST})), {"label": flat("label")}),
        "sequence schema": (
            Schema((Field("tags", LIST, is_feature_list=True), Field("label", LISTS_OF)), "sequence_example"),
            {"tags": [[1, 2], None], "label": values("label")},
        ),
        "schema.pbtxt": (directory / "schema.pbtxt", {"ragged": values("ragged"), "id": [7, 8]}),
        "from_tfmd": (Schema.from_tfmd(directory / "schema.pbtxt"), {"ragged": values("ragged")}),
        "features.json": (directory / "features.json", {"label": flat("label")}),
    }


NAMES = [
    *("types", "nested types", "names of types", "arrow", "large list", "pairs", "example schema"),
    *("sequence schema", "schema.pbtxt", "from_tfmd", "features.json"),
]


@pytest.mark.parametrize("record_type", ["infer", "sequence_example"])
@pytest.mark.parametrize("name", NAMES)
def test_a_schema_reads_the_feature_lists(tmp_path: Path, path: Path, name: str, record_type: Any) -> None:
    schema, expected = schemas(tmp_path)[name]
    found = table(path, schema=schema, record_type=record_type)
    assert {column: found[column].to_pylist() for column in expected} == expected
    open_dataset(path, schema=schema, record_type=record_type).add_snapshot()
    assert table(path).equals(found)
    assert table(path, schema=schema).select(found.column_names).equals(found)
    [drift] = open_dataset(path).verify()["drift"]
    assert not any(f"{column!r}" in drift for column in expected)


def test_every_reader_reads_a_feature_list_as_a_flat_list(tmp_path: Path, path: Path) -> None:
    schema = {"label": LIST}
    assert read_tfrecord(path, schema=schema).compute()["label"].tolist() == flat("label")
    assert read_tfrecord(path, schema=schema, columns="label").compute().tolist() == flat("label")
    kept = read_tfrecord(path, schema=schema, filters=[("id", ">", 7)], columns=["label"]).compute()
    assert kept["label"].tolist() == [[5]]
    dataset = open_dataset(path, schema=schema)
    assert dataset.take([1])["label"].to_pylist() == [[5]]
    assert dataset.scanner(columns=["label"]).to_table()["label"].to_pylist() == flat("label")
    batches = [*iter_batches(path, 1, schema=schema, columns=["label"])]
    assert [one["label"].to_pylist()[0] for one in batches] == flat("label")
    assert RecordTable(path, schema=schema)[0:2]["label"].to_pylist() == flat("label")
    printed = CliRunner().invoke(main, ["schema", str(path), "--type", "label=list<int64>"]).output
    assert "label: list<item: int64>" in printed, printed


@pytest.mark.tensorflow
def test_a_spec_reads_what_tensorflow_parses(path: Path) -> None:
    tf: Any = pytest.importorskip("tensorflow")
    from dask_tfrecord.feed.tensorflow import feature_spec, tensorflow_dataset

    io = tf.io
    context = {"id": io.FixedLenFeature([], tf.int64), "tags": io.VarLenFeature(tf.int64)}
    specs = [
        {
            "label": io.FixedLenSequenceFeature([], tf.int64),
            "word": io.FixedLenSequenceFeature([], tf.string),
            "pair": io.FixedLenSequenceFeature([2], tf.float32),
            "ragged": io.RaggedFeature(tf.int64),
        },
        {name: io.VarLenFeature(tf.int64) for name in ("label", "ragged")},
    ]
    for sequence in specs:
        wanted: dict[str, list[Any]] = {}
        for payload in payloads():
            for name, tensor in io.parse_single_sequence_example(payload, context, sequence)[1].items():
                if isinstance(tensor, tf.SparseTensor):
                    tensor = tf.RaggedTensor.from_sparse(tensor)
                of_row = tensor.to_list() if hasattr(tensor, "to_list") else tensor.numpy().tolist()
                wanted.setdefault(name, []).append(of_row)
        found = table(path, schema=context | sequence)
        got = {name: found[name].to_pylist() for name in wanted}
        assert got == wanted
        assert found["id"].to_pylist() == [7, 8]
    [batch] = tensorflow_dataset(path, 2, schema=context | {"label": specs[0]["label"]})
    assert batch["label"].to_list() == flat("label")
    parsed = feature_spec(path, "label", schema={"label": LIST}).parse(payloads())["label"]
    assert parsed.to_list() == flat("label")


@pytest.mark.tensorflow
def test_a_spec_reads_the_context_as_parse_example(path: Path, tmp_path: Path) -> None:
    tf: Any = pytest.importorskip("tensorflow")
    specs = {"id": tf.io.FixedLenFeature([], tf.int64), "tags": tf.io.VarLenFeature(tf.int64)}
    parsed = tf.io.parse_example(payloads(), specs)
    found = table(path, schema=specs)
    assert found["id"].to_pylist() == parsed["id"].numpy().tolist()
    assert [row or [] for row in found["tags"].to_pylist()] == tf.RaggedTensor.from_sparse(
        parsed["tags"]
    ).to_list()
    plain = oracle.features_file([{"label": ("int64", [1, 2])}, {"label": ("int64", [])}])
    fill(tmp_path / "plain", {"a.tfrecord": plain})
    sequence = {"label": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    assert table(tmp_path / "plain", schema=sequence)["label"].to_pylist() == [[1, 2], []]
    with pytest.raises(SchemaError, match="'label': is a feature list, not int64"):
        table(path, schema={"label": tf.io.FixedLenFeature([], tf.int64, default_value=0)})


MISFITS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "a scalar for a feature list": ("label", pa.int64(), values("label")),
    "a list of lists for the context": ("tags", LISTS_OF, [[1, 2], None]),
    "one value a step": ("ragged", LIST, values("ragged")),
}


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("case", MISFITS)
def test_a_type_that_cannot_read_the_feature_raises_and_the_remedy_works(
    path: Path, case: str, indexed: bool
) -> None:
    name, type_, expected = MISFITS[case]
    if indexed:
        open_dataset(path).add_snapshot()
    for schema in ({name: type_}, pa.schema({name: type_})):
        with pytest.raises(SchemaError) as caught:
            table(path, schema=schema)
        assert caught.value.feature == name
        assert table(path, schema=advised(caught.value)["schema"])[name].to_pylist() == expected


def test_a_feature_in_both_maps_needs_a_choice(tmp_path: Path) -> None:
    content = [
        oracle.serialize(
            Record({"x": Feature("int64", [1])}, {"x": [Feature("int64", [2])]}), "sequence_example"
        )
    ]
    fill(
        tmp_path,
        {"a.tfrecord": oracle.records_file(content), "schema.pbtxt": PBTXT.replace("ragged", "x").encode()},
    )
    with pytest.raises(SchemaError, match="both a feature of the context and a feature list"):
        table(tmp_path, schema=tmp_path / "schema.pbtxt")


def late(tmp_path: Path) -> Path:
    """Files of which the sample sees "x" in the context only, and one with "x" in the feature lists."""
    usual = oracle.records_file([oracle.serialize(Record({"x": Feature("int64", [1])}), "sequence_example")])
    other = oracle.serialize(Record({}, {"x": [Feature("int64", [2])]}), "sequence_example")
    files = {f"{number:02}.tfrecord": usual for number in range(20)}
    for number in range(1, 19):  # one after the other is outside the sample
        path = fill(
            tmp_path / str(number), files | {f"{number:02}.tfrecord": usual + oracle.records_file([other])}
        )
        try:
            read_tfrecord(path)
        except SchemaError:
            continue
        return path
    raise AssertionError("the sample has every file")


def test_a_feature_that_moves_to_the_other_map_outside_the_sample_raises(tmp_path: Path) -> None:
    path = late(tmp_path)
    types = {"x": LIST}
    for keywords in (
        {},
        {"columns": ["x"]},
        {"schema": pa.schema(types)},
        {"schema": types, "columns": ["x"]},
    ):
        with pytest.raises(
            SchemaError, match="'x': the record has the feature in the feature lists"
        ) as caught:
            table(path, **keywords)
        assert caught.value.record == 1
    found = table(path, schema=pa.schema(types), extra="ignore")["x"].to_pylist()
    assert (found.count([1]), found.count(None)) == (20, 1)
    with pytest.raises(SchemaError):
        open_dataset(path, schema=pa.schema(types)).add_snapshot()


def test_record_type_example_refuses_to_drop_feature_lists(path: Path) -> None:
    with pytest.raises(
        SchemaError, match='feature list, which record_type="example" does not read'
    ) as caught:
        read_tfrecord(path, record_type="example")
    assert set(table(path, **{one.keyword: one.value for one in caught.value.remedies[:1]}).column_names) > {
        "id",
        "label",
    }
    assert table(path, record_type="example", extra="ignore").column_names == ["id", "tags"]
    assert table(path, record_type="example", columns=["id"]).column_names == ["id"]
    with pytest.raises(SchemaError, match="'label': is a feature list"):
        table(path, record_type="example", schema=pa.schema({"label": LIST}))


STEPS = """feature { name: "id" type: INT presence { min_fraction: 1 } shape { dim { size: 1 } } }
feature { name: "##SEQUENCE##" type: STRUCT struct_domain {
  feature { name: "ragged" type: INT value_count { min: 1 } }
  feature { name: "word" type: BYTES natural_language_domain { } }
  feature { name: "pair" type: FLOAT lifecycle_stage: DEPRECATED } } }
tensor_representation_group { value { tensor_representation { key: "ragged" value {
  ragged_tensor { feature_path { step: "##SEQUENCE##" step: "ragged" } } } } } }
"""


def test_the_schema_that_tfx_makes_of_sequence_examples_is_read(path: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.pbtxt").write_text(STEPS)
    found = table(path, schema=tmp_path / "schema.pbtxt")
    assert found.column_names == ["id", "ragged", "word"]
    assert found["ragged"].to_pylist() == values("ragged")
    assert found["word"].to_pylist() == [[["a"], ["b"], ["c"]], [[""]]]
    assert Schema.from_tfmd(tmp_path / "schema.pbtxt").record_type == "sequence_example"
    (tmp_path / "schema.pbtxt").write_text(STEPS + 'feature { name: "word" type: INT }')
    with pytest.raises(SchemaError, match="'word': a feature of the context and a feature list have this"):
        Schema.from_tfmd(tmp_path / "schema.pbtxt")
