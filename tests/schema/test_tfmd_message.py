"""A schema of TensorFlow Metadata in protobuf's text format: `schema.tfmd_message` and `schema.tfmd`.

Modules: schema.tfmd_message, schema.tensorflow_schemas.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool

from dask_tfrecord import Schema, SchemaError
from dask_tfrecord.schema import tfmd_message
from dask_tfrecord.schema.tensorflow_schemas import metadata_schema

# Every spelling of the format, and fields and messages that no column needs.
SPELLINGS = r"""
feature: { name: "a" 'b' "\303\251\x41\u00e9\U0001F600\n\"" type: INT, deprecated: f; } # text " {
feature < name: "c"; type: 2; presence: < min_fraction: 1.0f min_count: 0x1F > shape { } >
feature { name: 'it''s' type: FLOAT value_count { min: 010 max: 8 } float_domain { min: -inf max: 1e+3 } }
feature { name: "v" type: BYTES domain: "d" in_environment: ["x", "y"] not_in_environment: [] }
string_domain: [{ name: "d" value: "1" value: ["2"] }, < name: "e" >]
annotation { tag: "q" extra_metadata { [type.googleapis.com/other.Message] { size: 1 } } }
"""


def test_every_spelling_of_the_format_is_parsed() -> None:
    found = metadata_schema(SPELLINGS)
    assert dict(zip(found.names, found.arrow.types, strict=True)) == {
        'abéAé😀\n"': pa.list_(pa.int64()),
        "c": pa.int64(),
        "its": pa.list_(pa.float32(), 8),
        "v": pa.list_(pa.string()),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\nfeature {", "line 2"),
        ('feature {\n  name: "x" type: NOTHING }', "line 2.*NOTHING"),
        ('feature {\n  name: "x"\n  type: INT value_count { min: x } }', "line 3.*integer"),
        ('feature { name: "x }', "line 1"),
        (r'feature { name: "\377" type: INT }', "line 1.*utf-8"),
        ("feature { type: INT }", "has no name"),
        ("feature { " * 100_000, "line|deep"),
        ('feature { name: "x" name: "y" type: INT }', "multiple"),
    ],
)
def test_an_invalid_text_raises_with_the_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "schema.pbtxt"
    path.write_text(text)
    with pytest.raises(SchemaError, match=problem) as caught:
        Schema.from_tfmd(path)
    assert caught.value.path == str(path)


def test_no_message_is_registered_for_other_libraries() -> None:
    metadata_schema(SPELLINGS)
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName("dask_tfrecord/tfmd.proto")


def test_a_missing_protobuf_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tfmd_message._schema_class.cache_clear()
    for name in ("google.protobuf", "google"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'dask-tfrecord\[tfmd\]'"):
        metadata_schema(SPELLINGS)
