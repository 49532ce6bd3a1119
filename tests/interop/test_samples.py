"""Files of other writers: a read returns exactly their rows.

Modules: api.read, files.record_file.
"""

import base64
import gzip
import json
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import oracle
import pandas as pd
import pyarrow as pa
import pytest
from oracle import Feature, Record

import dask_tfrecord
from dask_tfrecord.errors import CorruptRecordError, SchemaError

DATA = Path(__file__).parents[1] / "data"
WRITERS = sorted(path.name for path in (DATA / "writers").iterdir() if ".json" not in path.suffixes)
SPARK = sorted(path.name.split(".")[0] for path in (DATA / "spark").glob("*.decoded.json"))


pytestmark = pytest.mark.usefixtures("one_thread")


def load(path: Path) -> Any:
    """A JSON document that may be gzipped."""
    if path.exists():
        return json.loads(path.read_bytes())
    return json.loads(gzip.decompress(path.with_name(path.name + ".gz").read_bytes()))


def _feature(stored: dict[str, Any]) -> Feature:
    """A feature as the JSON documents of the writers or of Spark have it."""
    if stored.get("kind", stored) is None:
        return Feature()
    [(kind, values)] = stored.items() if "kind" not in stored else [(stored["kind"], None)]
    if kind == "bytes_list":
        return Feature("bytes", [base64.b64decode(value) for value in values or stored.get("values_b64", [])])
    if kind == "float_list":
        bits = [oracle.float_bits(float(value)) for value in values or []]
        return Feature("float", bits if values is not None else stored["bits"])
    return Feature("int64", values if values is not None else stored["values"])


def _record(stored: dict[str, Any], sequence: bool) -> Record:
    if not sequence:
        return Record({name: _feature(f) for name, f in stored.items()})
    return Record(
        {name: _feature(f) for name, f in stored["context"].items()},
        {name: [_feature(step) for step in steps] for name, steps in stored["feature_lists"].items()},
    )


def writers_records(name: str) -> tuple[str, list[Any]]:
    """The record type of a file, and its rows as Records or payloads."""
    stored = load(DATA / "writers" / f"{name}.json")
    if stored["message"] == "none":
        return "bytes", [base64.b64decode(row["raw_b64"]) for row in stored["rows"]]
    sequence = stored["message"] == "SequenceExample"
    rows = [_record(row, sequence) for row in stored["rows"]]
    return ("sequence_example" if sequence else "example"), rows


def expected_type(records: list[Record], name: str, nested: bool) -> tuple[str, int]:
    """The common kind and depth of the features of a name: a scalar if no record has two values."""
    if nested:
        features = [step for r in records for step in r.lists.get(name, [])]
    else:
        features = [r.features[name] for r in records if name in r.features]
    kinds = {feature.kind for feature in features} - {None}
    assert len(kinds) < 2
    depth = 2 if nested else int(any(len(feature.values) > 1 for feature in features))
    if kinds != {"bytes"}:
        return (kinds.pop() if kinds else "null"), depth
    texts = [value for feature in features for value in feature.values]
    return ("string" if all(map(oracle.is_text, texts)) else "bytes"), depth


def arrow_type(kind: str, depth: int) -> pa.DataType:
    """The type that is inferred for a kind; an empty feature list may have any type."""
    leaf = {"int64": pa.int64(), "float": pa.float32(), "string": pa.string(), "bytes": pa.binary()}
    type_ = leaf.get(kind, pa.binary() if depth == 2 else pa.null())
    for _ in range(depth):
        type_ = pa.list_(type_)
    return type_


def values_of(frame: pd.DataFrame, name: str) -> list[Any]:
    """The values of a column as the oracle represents them, floats as bits."""
    array = pa.chunked_array(pa.array(frame[name])).combine_chunks()
    return [oracle.canonical(value) for value in array.to_pylist()]


def assert_holds(frame: pd.DataFrame, records: list[Record]) -> None:
    """Check that the frame has exactly the columns, types and values of the records."""
    names = {(name, False) for r in records for name in r.features}
    names |= {(name, True) for r in records for name in r.lists}
    assert set(frame.columns) == {name for name, _ in names}
    assert len(frame) == len(records)
    for name, nested in names:
        kind, depth = expected_type(records, name, nested)
        assert frame[name].dtype == pd.ArrowDtype(arrow_type(kind, depth)), name
        assert values_of(frame, name) == oracle.column_values(records, name, depth), name


MIXED_KINDS = {"tf_sequence.tfrecord": "mixed"}


@pytest.mark.parametrize("name", WRITERS)
def test_other_writers_file_reads_to_exactly_its_rows_and_payloads(name: str) -> None:
    path = DATA / "writers" / name
    true_type, rows = writers_records(name)
    payloads = dask_tfrecord.read_tfrecord(str(path), record_type="bytes").compute()["record"].tolist()
    assert payloads == oracle.read_payloads(path)
    assert (payloads if true_type == "bytes" else [oracle.parse(p, true_type) for p in payloads]) == rows
    if name not in MIXED_KINDS and true_type != "bytes":
        assert_holds(dask_tfrecord.read_tfrecord(str(path)).compute(), rows)


@pytest.mark.parametrize(("name", "feature"), MIXED_KINDS.items())
def test_a_feature_of_two_kinds_is_named_and_the_others_can_be_read(name: str, feature: str) -> None:
    path = str(DATA / "writers" / name)
    with pytest.raises(SchemaError) as caught:
        dask_tfrecord.read_tfrecord(path).compute()
    assert caught.value.feature == feature
    _, records = writers_records(name)
    others = {(n, False) for r in records for n in r.features} | {(n, True) for r in records for n in r.lists}
    others -= {(feature, True)}
    types = {n: arrow_type(*expected_type(records, n, nested)) for n, nested in others}
    options = {"schema": pa.schema(types), "record_type": "sequence_example"}
    frame = dask_tfrecord.read_tfrecord(path, **options).compute()
    without = [{n: v for n, v in r.lists.items() if n != feature} for r in records]
    assert_holds(frame, [Record(r.features, lists) for r, lists in zip(records, without, strict=True)])


def sparks_rows(name: str) -> dict[str, list[Any]]:
    """The rows of each file of a dataset in the order of file names, as Records or payloads."""
    stored = load(DATA / "spark" / f"{name}.decoded.json")
    sequence = name == "sequence_example"
    return {
        part: [
            base64.b64decode(row["b64"]) if name == "byte_array" else _record(row, sequence)
            for row in stored[part]
        ]
        for part in sorted(stored)
    }


@pytest.mark.parametrize("name", SPARK)
def test_sparks_file_reads_to_exactly_its_rows(name: str) -> None:
    option = load(DATA / "spark" / f"{name}.source.json")["options"].get("recordType", "Example")
    record_type = {"Example": "example", "SequenceExample": "sequence_example", "ByteArray": "bytes"}[option]
    for part, rows in sparks_rows(name).items():
        path = str(DATA / "spark" / name / part)
        frame = dask_tfrecord.read_tfrecord(path, record_type=record_type, hive=False).compute()
        _assert_rows(frame, rows)


@pytest.mark.parametrize("infer", ["sample", "all"])
@pytest.mark.parametrize("name", SPARK)
def test_sparks_directory_reads_in_one_call(name: str, infer: Any) -> None:
    """All rows in the order of the files' names, with what the directories are called; nothing of _SUCCESS
    and the hidden checksum files.
    """
    frame = dask_tfrecord.read_tfrecord(str(DATA / "spark" / name), read_options={"infer": infer}).compute()
    rows = sparks_rows(name)
    for key, values in keys_of(rows).items():
        assert frame.pop(key).tolist() == values
    _assert_rows(frame, [row for part in rows.values() for row in part])


def _assert_rows(frame: pd.DataFrame, rows: list[Any]) -> None:
    if rows and isinstance(rows[0], bytes):
        assert frame["record"].tolist() == rows
    else:
        assert_holds(frame, rows)


def keys_of(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The value of each partition column in each row, decoded by the standard library."""
    found: dict[str, list[Any]] = {}
    for part, records in rows.items():
        for level in part.split("/")[:-1]:
            key, _, value = level.partition("=")
            value = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
            found.setdefault(key, []).extend([value] * len(records))
    for values in found.values():
        if all(value is None or value.isdigit() for value in values):
            values[:] = [pd.NA if value is None else int(value) for value in values]
        else:
            values[:] = [pd.NA if value is None else value for value in values]
    return found


def test_sparks_partition_values_are_those_that_were_written() -> None:
    stored = load(DATA / "spark" / "partitioned.source.json")
    frame = dask_tfrecord.read_tfrecord(str(DATA / "spark" / "partitioned")).compute()
    rows = [{key: row[key] for key in ("id", "country", "day", "x", "tags")} for row in stored["rows"]]
    found = pa.Table.from_pandas(frame[list(rows[0])], preserve_index=False).to_pylist()
    assert sorted(found, key=itemgetter("id")) == sorted(rows, key=itemgetter("id"))


def test_all_files_of_other_writers_are_found_in_one_directory() -> None:
    pattern = str(DATA / "writers" / "*.tfrecord{,.gz,.zz}")
    payloads = dask_tfrecord.read_tfrecord(pattern, record_type="bytes")["record"].compute().tolist()
    assert payloads == [
        payload for name in WRITERS for payload in oracle.read_payloads(DATA / "writers" / name)
    ]


def test_a_compression_that_tensorflow_does_not_know_is_refused_and_not_misread() -> None:
    with pytest.raises(CorruptRecordError, match="lz4"):
        dask_tfrecord.read_tfrecord(str(DATA / "spark" / "example_lz4")).compute()
