"""A shuffle that keeps encoded records returns what a shuffle of decoded rows returns, row by row.

Modules: feed.rows.sources.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, FileChangedError, TFRecordError
from dask_tfrecord.codec import scan
from dask_tfrecord.feed.batches import Batches, iter_batches
from dask_tfrecord.feed.rows import epoch_order, sequence_reader, sources
from dask_tfrecord.feed.rows.epoch_order import Plan, plan_batches
from dask_tfrecord.files import file_writer
from dask_tfrecord.files.record_file import RecordFile

ROWS = 700

# The keywords of the write.
DATASETS: dict[str, dict[str, Any]] = {
    "example": {},
    "gzip": {"compression": "gzip"},
    "gzip sequence_example": {"compression": "gzip", "record_type": "sequence_example"},
    "partitioned": {"partition_on": ["key"]},
    "many small files": {"compression": "zlib", "write_options": {"max_rows_per_file": 9}},
    "bytes": {"record_type": "bytes"},
}

# Keywords of the read, and what is true of the rows that the read returns.
READS: list[tuple[dict[str, Any], Callable[[int], bool]]] = [
    ({}, lambda row: True),
    ({"columns": ["text", "id", "large", "list"]}, lambda row: True),
    ({"columns": ["id"]}, lambda row: True),
    ({"filters": [("key", "==", "k1")]}, lambda row: row % 3 == 1),
    ({"filters": [("id", "<", 300), ("key", "!=", "k0")]}, lambda row: row < 300 and row % 3 != 0),
    ({"on_corrupt": "skip"}, lambda row: True),
    ({"read_options": {"verify_crc": False}}, lambda row: True),
]


def table() -> pa.Table:
    """Return rows of many types, some of which are larger than what a block of the kernel copies."""
    numbers = range(ROWS)
    lists = [None if i % 7 == 0 else [i / 4] * (i % 4) for i in numbers]
    return pa.table(
        {
            "id": numbers,
            "key": [f"k{i % 3}" for i in numbers],
            "text": [None if i % 5 == 0 else "é" * (i % 40) for i in numbers],
            "large": [bytes([i % 256]) * (40_000 if i % 100 == 7 else i % 50) for i in numbers],
            "list": pa.array(lists, pa.list_(pa.float32())),
            "day": pa.array([i if i % 3 else None for i in numbers], pa.date32()),
            "category": pa.array([f"c{i % 4}" for i in numbers]).dictionary_encode(),
            "fixed": pa.array([[i, -i, 0] for i in numbers], pa.list_(pa.int16(), 3)),
        }
    )


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_writer, "BLOCK_BYTES", 1 << 11)
        patch.setattr(epoch_order, "_SHUFFLED_BYTES", 1 << 12)
        patch.setattr(sequence_reader, "_TABLE_BYTES", 1 << 12)
        patch.setattr(sources, "_PART_BYTES", 1 << 16)
        yield


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    paths = {}
    for name, options in DATASETS.items():
        rows = table()
        if options.get("record_type") == "bytes":
            rows = pa.table({"record": [bytes([i % 256]) * (i % 60) + str(i).encode() for i in range(ROWS)]})
        frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
        paths[name] = str(tmp_path_factory.mktemp("data") / "data")
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=3, sort=False), paths[name], **options)
    return paths


def decoded(plan: Plan) -> Plan:
    """Return a plan whose shuffle keeps decoded rows."""
    source = type(plan.source).__new__(type(plan.source))
    vars(source).update(vars(plan.source), keeps_records=False)
    return replace(plan, source=source)


@given(
    name=st.sampled_from(list(DATASETS)),
    read=st.sampled_from(READS),
    batch_size=st.integers(1, 300),
    seed=st.integers(0, 3),
    buffer=st.sampled_from([1, 60, 65_536]),
    share=st.sampled_from([((0, 1), (0, 1)), ((1, 3), (0, 2)), ((2, 3), (1, 2)), ((0, 1), (1, 2))]),
    mode=st.sampled_from(["keep", "drop", "auto"]),
    stop=st.integers(0, 40),
    is_direct=st.booleans(),
)
def test_encoded_and_decoded_rows_are_shuffled_alike(
    datasets: dict[str, str],
    name: str,
    read: tuple[dict[str, Any], Callable[[int], bool]],
    batch_size: int,
    seed: int,
    buffer: int,
    share: tuple[tuple[int, int], tuple[int, int]],
    mode: Any,
    stop: int,
    is_direct: bool,
) -> None:
    keywords, passes = read
    if name == "bytes":
        keywords = {key: value for key, value in keywords.items() if key not in ("columns", "filters")}
    keywords = {"shuffle": True, "seed": seed, "shuffle_buffer": buffer, "prefetch": seed % 2, **keywords}
    plan = plan_batches(datasets[name], batch_size, surface=iter_batches, batch_mode=mode, **keywords)
    other = decoded(plan)
    with pytest.MonkeyPatch.context() as patch:
        if not is_direct:
            patch.setattr(RecordFile, "read_stored", lambda *_: None)
        batches, expected = Batches(plan, seed, *share), Batches(other, seed, *share)
        found = []
        for batch in batches:
            assert batch.to_pylist() == next(expected).to_pylist()
            batch.validate(full=True)
            assert batches.state == expected.state
            found.append((batch, json.loads(json.dumps(batches.state))))
        assert next(expected, None) is None
        if stop < len(found):
            rest = Batches(plan, seed, *share, found[stop][1])
            assert [batch.to_pylist() for batch in rest] == [one.to_pylist() for one, _ in found[stop + 1 :]]
    if name != "bytes" and share == ((0, 1), (0, 1)) and mode != "drop":
        wanted = [row for row in range(ROWS) if passes(row)]
        rows = [row for batch, _ in found for row in batch["id"].to_pylist()]
        assert sorted(rows) == wanted
        assert rows != wanted or buffer == 1 or len(wanted) < 2


def test_records_stay_encoded_if_the_large_columns_are_read(datasets: dict[str, str]) -> None:
    def keeps(name: str, **read: Any) -> bool:
        return plan_batches(
            datasets[name], 1, surface=iter_batches, shuffle=True, seed=1, **read
        ).source.keeps_records

    assert all(map(keeps, DATASETS))
    assert keeps("example", columns=["large", "list", "fixed", "id"])
    assert keeps("partitioned", filters=[("key", "==", "k1")])  # only directories are left out
    assert not keeps("example", columns=["id", "text"])
    assert not keeps("example", filters=[("key", "==", "k1")])
    assert not keeps("example", on_corrupt="skip")
    assert not keeps("example", include_path_column=True)


def test_a_window_of_encoded_records_ends_by_its_bytes(
    datasets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_order, "WINDOW_BYTES", 50_000)
    kept = []

    class Recorded(sources.RecordWindow):
        def __init__(self, source: Any, pieces: list[sources.EncodedRows], *others: Any) -> None:
            super().__init__(source, pieces, *others)
            kept.append([piece.nbytes for piece in pieces])

    monkeypatch.setattr(sources, "RecordWindow", Recorded)
    batches = iter_batches(datasets["example"], 64, shuffle=True, seed=1)
    found, states = [], []
    for batch in batches:
        found.append(batch)
        states.append(batches.state)
    assert sorted(row for batch in found for row in batch["id"].to_pylist()) == list(range(ROWS))
    assert len(kept) > 3
    assert all(sum(sizes[:-1]) < 50_000 for sizes in kept)
    for at, state in enumerate(states):
        assert (
            list(iter_batches(datasets["example"], 64, shuffle=True, seed=1, start=state)) == found[at + 1 :]
        )


@pytest.mark.parametrize("position", [0, 8, 14])
def test_damage_raises_the_error_of_a_plain_read(tmp_path: Path, position: int) -> None:
    dask_tfrecord.to_tfrecord(pa.table({"x": list(range(500)), "y": [b"y" * 100] * 500}), tmp_path)
    [part] = tmp_path.glob("part-*")
    status, content = part.stat(), bytearray(part.read_bytes())
    content[scan(content, final=True, offsets=True).offsets[300].as_py() + position] ^= 1
    part.write_bytes(content)
    os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CorruptRecordError) as plain:
        list(iter_batches(tmp_path, 10, columns=["x", "y"]))
    batches = iter_batches(tmp_path, 10, shuffle=True, seed=3, columns=["x", "y"])
    for _ in range(2):
        with pytest.raises(CorruptRecordError) as shuffled:
            list(batches)
        assert str(shuffled.value) == str(plain.value)


def test_a_record_that_does_not_fit_the_schema_raises_the_error_of_a_plain_read(tmp_path: Path) -> None:
    path = tmp_path / "data"
    dask_tfrecord.to_tfrecord(pa.table({"x": [*range(99), 1000]}), path)
    for types in ({"x": pa.int8()}, {"x": pa.string()}):
        errors = []
        for shuffle in (False, True):
            with pytest.raises(TFRecordError) as raised:
                list(iter_batches(path, 10, schema=types, shuffle=shuffle, use_snapshot=False))
            errors.append(str(raised.value))
        assert errors[0] == errors[1]


def test_a_file_that_changes_during_the_iteration_raises(tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(pa.table({"x": list(range(3000))}), tmp_path)
    [part] = tmp_path.glob("part-*")
    batches = iter_batches(tmp_path, 10, shuffle=True, seed=1, shuffle_buffer=10, prefetch=0)
    next(batches)
    os.truncate(part, part.stat().st_size // 2)
    with pytest.raises((FileChangedError, CorruptRecordError)):
        list(batches)
