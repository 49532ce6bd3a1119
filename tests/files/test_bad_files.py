"""Damaged, hostile and odd files: an error with its place, or all rows of protobuf; no silent loss.

Modules: files.record_file, files.damage, codec.
"""

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from damaged_files import header, kept_records
from memory import growth
from oracle import Record

import dask_tfrecord
from dask_tfrecord.errors import CorruptRecordError, SchemaError

BAD = Path(__file__).parents[1] / "data" / "bad"
CASES = {case["file"]: case for case in json.loads((BAD / "bad.json").read_text())}
GOOD = BAD / "good_3.tfrecord"

# Messages that google.protobuf parses and we reject. Unknown fields in a map entry: protobuf's Python runtime
# drops the entry, its C++ runtime keeps the entry. A message with unknown fields in place of features: it is
# a message of another type.
KNOWN_PROTOBUF_DIVERGENCES = {
    "protobad_features_feature_wrong_wire_type_varint.tfrecord",
    "protobad_map_key_wrong_wire_type_varint.tfrecord",
    "protoodd_unknown_len_field_in_map_entry_last.tfrecord",
}

# Files that TensorFlow reads differently: "tf" is the result of TensorFlow; we agree with the oracle.
KNOWN_TENSORFLOW_DIVERGENCES = {
    "absurd_length_2e40.tfrecord": "the process dies",
    "gzip_empty_member_first.tfrecord.gz": "stops at an empty member",
    "gzip_empty_member_middle.tfrecord.gz": "stops at an empty member",
    "gzip_plain_inside_name.tfrecord.gz": "is told the compression and does not look",
    "gzip_read_as_plain.tfrecord": "is told the compression and does not look",
    "gzip_trailer_straddles_256k.tfrecord.gz": "stops after the first member",
    "gzip_trailing_nul.tfrecord.gz": "takes padding for damage",
    "gzip_trunc_005_of_88.tfrecord.gz": "takes a cut stream for a clean end",
    "gzip_trunc_009_of_88.tfrecord.gz": "takes a cut stream for a clean end",
    "gzip_trunc_010_of_88.tfrecord.gz": "takes a cut stream for a clean end",
    "gzip_trunc_084_of_88.tfrecord.gz": "does not miss the checksum",
    "gzip_zlib_inside_name.tfrecord.gz": "is told the compression and does not look",
    "length_big_endian.tfrecord": "the process dies",
    "trailing_8_nul.tfrecord": "takes a cut header for a clean end",
    "trunc_last_at_07.tfrecord": "takes a cut header for a clean end",
    "trunc_last_at_08.tfrecord": "takes a cut header for a clean end",
    "trunc_last_at_11.tfrecord": "takes a cut header for a clean end",
    "trunc_only_at_01.tfrecord": "takes a cut header for a clean end",
    "trunc_only_at_08.tfrecord": "takes a cut header for a clean end",
    "zlib_concat.tfrecord.zz": "reads only the first stream",
}


pytestmark = pytest.mark.usefixtures("one_thread")


def stored_payloads(name: str) -> tuple[list[bytes], bool]:
    """The payloads before the first damaged frame, and True if no frame is damaged."""
    try:
        return oracle.read_payloads(BAD / name), True
    except oracle.DamagedError as damage:
        return damage.records, False


def _is_no_example(payload: bytes) -> bool:
    """Return True if we reject a message that protobuf parses as an Example."""
    return oracle.drops_map_entries(payload) or oracle.is_of_another_type(payload)


def judged(name: str, record_type: str = "example") -> tuple[list[Record], bool]:
    """The records before the first damaged frame or message, and True if there is no damage."""
    payloads, whole = stored_payloads(name)
    records: list[Record] = []
    for payload in payloads:
        try:
            records.append(oracle.parse(payload, record_type))
        except oracle.DecodeError:
            return records, False
        if _is_no_example(payload):
            return records[:-1], False
    return records, whole


def kinds_of(records: list[Record]) -> dict[str, set[str]]:
    """The set of kinds of each feature of the records."""
    kinds: dict[str, set[str]] = {}
    for record in records:
        for name, feature in record.features.items():
            kinds.setdefault(name, set()).update({feature.kind} - {None})
    return kinds


def list_schema(records: list[Record]) -> pa.Schema:
    """A schema with a list column for each feature, of the feature's first kind."""
    leaf = {"int64": pa.int64(), "float": pa.float32(), "bytes": pa.binary()}
    fields = {}
    for name, kinds in kinds_of(records).items():
        if name and kinds:
            fields[name] = pa.list_(leaf[sorted(kinds)[0]])
    return pa.schema(fields or {"a": pa.list_(pa.int64())})


def rows_of(frame: Any) -> dict[str, list[Any]]:
    """The rows of a frame as the oracle represents values."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return {name: [oracle.canonical(v) for v in table[name].to_pylist()] for name in table.column_names}


def read(name: str, **options: Any) -> dict[str, list[Any]]:
    return rows_of(dask_tfrecord.read_tfrecord(str(BAD / name), **options).compute())


def assert_tells_where(error: CorruptRecordError | SchemaError, name: str) -> None:
    assert error.path is not None
    assert error.path.endswith(name)
    assert error.record is not None
    assert error.offset is not None
    assert error.problem
    assert f"record {error.record:,} (byte {error.offset:,})" in str(error)


def test_every_bad_file_has_its_case_and_every_divergence_is_known() -> None:
    """The lists are compared with the results of TensorFlow 2.21, so that they stay complete and minimal."""
    assert {path.name for path in BAD.iterdir()} == {*CASES, "bad.json"}
    dropped, different = set(), set()
    for name, case in CASES.items():
        payloads, whole = stored_payloads(name)
        if any(not _refused(payload) and _is_no_example(payload) for payload in payloads):
            dropped.add(name)
        if len(payloads) != case["tf_records"] or whole != (case["tf_error"] is None):
            different.add(name)
    assert dropped == KNOWN_PROTOBUF_DIVERGENCES
    assert different == KNOWN_TENSORFLOW_DIVERGENCES.keys()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "python_protobuf" in case])
def test_the_oracle_agrees_with_what_was_recorded(name: str) -> None:
    """The oracle reads the same rows as protobuf read when the files were made."""
    payloads, _ = stored_payloads(name)
    recorded = CASES[name]["python_protobuf"]
    assert len(payloads) >= len(recorded)
    for payload, reported in zip(payloads, recorded, strict=False):
        assert _refused(payload) == isinstance(reported, str)
        if not isinstance(reported, str):
            features = oracle.parse(payload).features.items()
            assert {feature: _as_recorded(value) for feature, value in features} == reported


def _as_recorded(feature: oracle.Feature) -> list[Any]:
    if feature.kind == "float":
        return ["float_list", [str(oracle.float_of(bits)) for bits in feature.values]]
    if feature.kind == "bytes":
        return ["bytes_list", [value.decode("latin1") for value in feature.values]]
    return [feature.kind and "int64_list", feature.values]


def _refused(payload: bytes) -> bool:
    try:
        oracle.parse(payload)
    except oracle.DecodeError:
        return True
    return False


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_bad_file_raises_with_record_and_offset_or_gives_protobufs_rows(name: str) -> None:
    payloads, is_framed = stored_payloads(name)
    if is_framed:
        assert read(name, record_type="bytes") == {"record": payloads}
    else:
        with pytest.raises(CorruptRecordError) as caught:
            read(name, record_type="bytes")
        assert_tells_where(caught.value, name)
        assert caught.value.record == len(payloads)
    records, whole = judged(name)
    schema = list_schema(records)
    conflict = any(len(kinds) > 1 for kinds in kinds_of(records).values())
    if whole and not conflict:
        found = read(name, schema=schema, record_type="example")
        assert found == {c: oracle.column_values(records, c, depth=1) for c in schema.names}
        return
    with pytest.raises(SchemaError if conflict else CorruptRecordError) as refused:
        read(name, schema=schema, record_type="example")
    assert_tells_where(refused.value, name)
    if not conflict:
        assert refused.value.record == len(records)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_bad_file_without_any_hint_never_gives_less_in_silence(name: str) -> None:
    """The read has no arguments: the schema and the record type are inferred."""
    records, whole = judged(name)
    try:
        found = read(name)
    except (CorruptRecordError, SchemaError) as error:
        assert not whole or any(len(kinds) > 1 for kinds in kinds_of(records).values())
        assert_tells_where(error, name)
        return
    if "record" in found:
        assert not whole
        assert (found["record"], True) == stored_payloads(name)
        return
    assert whole
    sequences, _ = judged(name, "sequence_example")
    lists = {feature for record in sequences for feature in record.lists}
    assert set(found) == lists | {feature for record in records for feature in record.features}
    for column, values in found.items():
        depth = 2 if column in lists else int(any(isinstance(value, list) for value in values))
        assert values == oracle.column_values(sequences, column, depth)


MEASURE = """
import gc, sys
import pyarrow as pa
import dask_tfrecord
from memory import peak_kib

def read(path):
    limit = {"read_options": {"max_record_bytes": "1 MiB"}} if path.endswith("bomb.gz") else {}
    for options in ({"schema": pa.schema({"a": pa.int64()}), "record_type": "example"}, {}):
        try:
            dask_tfrecord.read_tfrecord(path, **options, **limit).compute(scheduler="sync")
        except dask_tfrecord.CorruptRecordError:
            gc.collect()  # the error's traceback holds on to what was read
        else:
            assert path == sys.argv[1], path

for path in sys.argv[1:2] * 3:
    read(path)
normal = peak_kib()
for path in sys.argv[2:]:
    read(path)
print(peak_kib() - normal)
"""


def test_absurd_lengths_and_a_decompression_bomb_take_no_memory(tmp_path: Path) -> None:
    """The peak memory exceeds the peak of a good file by at most 16 MiB."""
    paths = [*sorted(BAD.glob("absurd_length_*")), BAD / "length_big_endian.tfrecord"]
    for path in paths[::3]:
        packed = tmp_path / f"{path.name}.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        paths.append(packed)
    largest = tmp_path / "largest_allowed.tfrecord"
    largest.write_bytes(header(2**31 - 1) + bytes(100))
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(header(2**28) + bytes(2**28), 1))
    assert bomb.stat().st_size < 2**28 // 100
    assert growth(MEASURE, tmp_path, str(GOOD), *map(str, [*paths, largest, bomb])) < 16 * 1024


def undamaged(name: str) -> list[bytes]:
    """The payloads that a read with on_corrupt="skip" returns, found by a search at every byte."""
    content, _ = oracle.read_stored(BAD / name)
    return [content[start + 12 : stop - 4] for start, stop in kept_records(content)[0]]


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_bad_file_passed_over_gives_all_payloads_that_are_intact(name: str) -> None:
    """The read warns if and only if something is lost."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read(name, record_type="bytes", on_corrupt="skip") == {"record": undamaged(name)}
    whole = stored_payloads(name)[1]
    assert [warning.category for warning in caught] == ([] if whole else [dask_tfrecord.CorruptRecordWarning])
    assert all(name in str(warning.message) for warning in caught)


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::dask_tfrecord.CorruptRecordWarning")
@pytest.mark.parametrize("name", CASES)
def test_bad_file_passed_over_gives_protobufs_rows_of_all_messages(name: str) -> None:
    """Also if the damage is in none of the columns that are read."""
    messages = [payload for payload in undamaged(name) if not _refused(payload)]
    records = [oracle.parse(payload) for payload in messages if not _is_no_example(payload)]
    schema = list_schema(records)
    if any(len(kinds) > 1 for kinds in kinds_of(records).values()):
        with pytest.raises(SchemaError):
            read(name, schema=schema, record_type="example", on_corrupt="skip")
        return
    found = read(name, schema=schema, record_type="example", on_corrupt="skip")
    assert found == {c: oracle.column_values(records, c, depth=1) for c in schema.names}
    if name.startswith("proto"):
        absent = pa.schema([(column, pa.list_(pa.int64())) for column in ("none", "nor this")])
        options = {
            "schema": absent,
            "record_type": "example",
            "read_options": {"include_offset_column": True},
        }
        ddf = dask_tfrecord.read_tfrecord(BAD / name, on_corrupt="skip", **options)
        counts = [len(ddf), *(len(ddf[columns].compute()) for columns in (["none"], ["offset"]))]
        assert [*counts, len(ddf.compute())] == [len(records)] * 4
