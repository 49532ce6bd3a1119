"""Schemas: their columns, the types and names that they refuse, their JSON form and how they print.

Modules: schema.fields, schema.names, schema.logical_types.
"""

import datetime as dt
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from storage_table import SCALARS, batch_of, schema_of

from dask_tfrecord.codec import Column, Kind, RecordType
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema.fields import Field, Schema

UNSUPPORTED = [
    (pa.map_(pa.string(), pa.int64()), "two list columns"),
    (pa.dense_union([pa.field("a", pa.int64())]), "leave the column out"),
    (pa.month_day_nano_interval(), "three columns"),
    (pa.list_(pa.null()), "name the type of its values"),
    (pa.list_(pa.struct([("a", pa.int64())])), "each of its fields a list column"),
    (pa.decimal128(5, -2), r'pass schema=\{"x": pa.decimal128\(7, 0\)\} to'),
    (pa.decimal128(38, -2), r'pass schema=\{"x": pa.float64\(\)\} to'),
    (pa.binary(0), r'pass schema=\{"x": pa.binary\(\)\} to'),
    (pa.list_(pa.int64(), 0), r'pass schema=\{"x": pa.list_\(pa.int64\(\)\)\} to'),
    (pa.fixed_shape_tensor(pa.float32(), [2, 0]), r'pass schema=\{"x": pa.list_\(pa.float32\(\)\)\} to'),
    (pa.dictionary(pa.int32(), pa.list_(pa.int64())), r'pass schema=\{"x": pa.list_\(pa.int64\(\)\)\} to'),
    (pa.run_end_encoded(pa.int32(), pa.int64()), r'pass schema=\{"x": "int64"\} to'),
    (pa.list_(pa.bool8()), r'pass schema=\{"x": pa.list_\(pa.bool_\(\)\)\} to'),
]


class TestColumns:
    @pytest.mark.parametrize(("type_", "kind"), SCALARS, ids=str)
    def test_kind_and_depth(self, type_: pa.DataType, kind: Kind) -> None:
        assert schema_of(type_).columns == (Column("x", kind, 0),)
        assert schema_of(pa.large_list(type_)).columns == (Column("x", kind, 1),)
        assert schema_of(pa.list_(pa.list_(type_, 3))).columns == (Column("x", kind, 2),)

    def test_a_category_is_its_values_and_a_tensor_a_list(self) -> None:
        assert schema_of(pa.dictionary(pa.int8(), pa.string())).columns == (Column("x", "string", 0),)
        tensor = pa.fixed_shape_tensor(pa.float32(), (2, 3))
        assert schema_of(tensor, "example").columns == (Column("x", "float", 1),)

    def test_select_keeps_the_order_that_is_asked_for_and_the_rows(self) -> None:
        schema = Schema.from_arrow(pa.schema([("a", pa.int8()), ("b", pa.string()), ("c", pa.bool_())]))
        assert schema.select(["c", "a"]).arrow == pa.schema([("c", pa.bool_()), ("a", pa.int8())])
        decoded = batch_of(pa.array([1, 2])).select([])
        assert schema.select([]).from_storage(decoded).num_rows == 2
        with pytest.raises(SchemaError, match=r"'y'.*'a'"):
            schema.select(["y"])

    def test_lossy_columns(self) -> None:
        types = {
            "a": pa.float64(),
            "b": pa.float32(),
            "c": pa.list_(pa.decimal128(5, 2)),
            "d": pa.dictionary(pa.int32(), pa.float64()),
            "e": pa.fixed_shape_tensor(pa.float64(), (2,)),
        }
        schema = Schema.from_arrow(pa.schema(list(types.items())))
        assert [item.name for item in schema.fields if item.lossy] == ["a", "c", "d", "e"]


class TestRefusals:
    @pytest.mark.parametrize(("type_", "advice"), UNSUPPORTED, ids=str)
    def test_a_type_without_a_feature_names_column_and_way_out(self, type_: pa.DataType, advice: str) -> None:
        with pytest.raises(SchemaError, match=f"feature 'x': TFRecord has no feature .*{advice}"):
            schema_of(type_)

    @pytest.mark.parametrize("record_type", ["example", "sequence_example"])
    def test_lists_that_are_nested_too_deep_say_what_to_do(self, record_type: RecordType) -> None:
        with pytest.raises(SchemaError, match="flatten the lists"):
            schema_of(pa.list_(pa.list_(pa.list_(pa.int64()))), record_type)
        with pytest.raises(SchemaError, match='pass record_type="sequence_example"'):
            schema_of(pa.list_(pa.list_(pa.int64())), "example")

    @pytest.mark.parametrize(
        ("names", "problem"),
        [([], "no columns"), ([""], "empty name"), (["x", "y", "x"], "several columns are named 'x'")],
    )
    def test_names(self, names: list[str], problem: str) -> None:
        with pytest.raises(SchemaError, match=problem):
            Schema.from_arrow(pa.schema([(name, pa.int64()) for name in names]))

    @pytest.mark.parametrize("types", [[pa.int64()], [pa.binary(), pa.binary()], [pa.list_(pa.binary())]])
    def test_bytes_records_are_one_binary_column(self, types: list[pa.DataType]) -> None:
        fields = [(f"c{i}", type_) for i, type_ in enumerate(types)]
        with pytest.raises(SchemaError, match="exactly one binary or string column"):
            Schema.from_arrow(pa.schema(fields), "bytes")

    def test_unknown_record_type_lists_the_known(self) -> None:
        record_type: Any = "Example"
        with pytest.raises(SchemaError, match=r"'Example'.*'example', 'sequence_example', 'bytes'"):
            Schema.from_arrow(pa.schema([("x", pa.int64())]), record_type)

    def test_values_and_columns_of_another_schema(self) -> None:
        with pytest.raises(SchemaError, match="feature 'x': the values are int32, the column is int64"):
            schema_of(pa.int64()).to_storage(batch_of(pa.array([1], pa.int32())), lossy="allow")
        with pytest.raises(SchemaError, match="'x' instead of 'y'"):
            Schema((Field("y", pa.int64()),)).to_storage(batch_of(pa.array([1])), lossy="allow")


class TestJson:
    @pytest.mark.parametrize(
        "type_",
        [
            *(row[0] for row in SCALARS),
            pa.null(),
            pa.dictionary(pa.int32(), pa.timestamp("s")),
            pa.list_(pa.field("element", pa.decimal256(60, 3), nullable=False), 4),
            pa.fixed_shape_tensor(pa.uint8(), (2, 3), permutation=[1, 0]),
        ],
        ids=str,
    )
    def test_every_type_survives(self, type_: pa.DataType) -> None:
        schema = schema_of(type_)
        assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema

    def test_it_is_readable_by_people(self) -> None:
        text = schema_of(pa.list_(pa.timestamp("us", "UTC")), "example").to_json()
        column = {"name": "x", "type": "list<item: timestamp[us, tz=UTC]>", "kind": "int64", "depth": 1}
        assert text["columns"] == [column]
        assert text["record_type"] == "example"

    @pytest.mark.parametrize("values", [["low", "high"], [dt.date(2020, 1, 1)], [b"\xff", b""]])
    def test_known_categories_survive(self, values: list[Any]) -> None:
        known = pa.array(values)
        schema = schema_of(pa.dictionary(pa.int32(), known.type, ordered=True), x=known)
        assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
        copy = pickle.loads(pickle.dumps(schema))
        assert (copy, hash(copy)) == (schema, hash(schema))

    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"arrow": "no base64"},
            {"arrow": "AAAA"},
            {"arrow": None},
            {"record_type": "pickle"},
            {"known_categories": ["x"]},
            {"known_categories": ["nope"]},
            {"known_categories": None},
        ],
        ids=str,
    )
    def test_anything_else_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(SchemaError, match="the stored schema is not readable"):
            Schema.from_json({**schema_of(pa.int64()).to_json(), **change} if change else {})


def test_schemas_and_fields_print_each_column_with_its_type_and_feature() -> None:
    types = {"<b>": pa.int8(), "s": pa.list_(pa.list_(pa.string()))}
    schema = Schema.from_arrow(pa.schema(types), "sequence_example")
    assert repr(schema).splitlines() == [
        "Schema of sequence_example records:",
        "  column  type                            feature",
        "  <b>     int8                            int64_list",
        "  s       list<item: list<item: string>>  feature list of bytes_list",
    ]
    text = schema._repr_html_()
    assert text.startswith("<table>")
    assert "<td>&lt;b&gt;</td><td>int8</td><td>int64_list</td>" in text
    field = Field("c", pa.dictionary(pa.int32(), pa.string()), pa.array(["x", "y"]))
    assert repr(field).endswith("categories=['x', 'y'])")


def test_a_batch_that_the_kernel_encodes_as_it_is_is_not_copied() -> None:
    arrays = [pa.array([1, None]), pa.array([["a"], None]), pa.array([0.5, -0.0], pa.float32())]
    batch = pa.record_batch(arrays, ["id", "tags", "x"])
    schema = Schema.from_arrow(batch.schema)
    assert schema.to_storage(batch, lossy="raise") is batch
    others = [pa.array([[1], [None]]), pa.array([1.5]), pa.array([1], pa.int8()), pa.nulls(1)]
    for array in (*others, pa.array(["a"]).dictionary_encode()):
        batch = pa.record_batch({"id": pa.array([1] * len(array)), "x": array})
        assert not Schema.from_arrow(batch.schema).is_stored(batch), array.type
    assert not schema_of(pa.string()).is_stored(batch_of(pa.array([1])))
