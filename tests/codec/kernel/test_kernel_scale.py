"""The kernel with many records, large values and threads, and batches that outlive their decoder.

Modules: codec.
"""

import gc
import itertools
import mmap
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from encoded import encoded_views
from guard import exact
from judge import seen_by
from memory import growth
from oracle import Feature, Record

from dask_tfrecord.codec import Column, Damage, Decoder, Encoder, Inference, RecordType, scan

ROWS = 800  # more than one of the kernel's blocks, in records and in bytes

COLUMNS = [
    Column("id", "int64", 0),
    Column("price", "float", 0),
    Column("name", "string", 0),
    Column("blob", "bytes", 0),
    Column("ints", "int64", 1),
    Column("floats", "float", 1),
    Column("tags", "string", 1),
]
STEPS = [Column("tokens", "string", 2), Column("grid", "int64", 2)]


def _text(random_: random.Random, length: int) -> bytes:
    return "".join(random_.choices("abcé🙂", k=length)).encode()


def _value(column: Column, random_: random.Random) -> Any:
    """A value as the oracle represents it; one in a hundred is much larger than the rest."""
    length = random_.choice([0, 1, 2, 7, 20]) if random_.randrange(100) else 2_000
    if column.depth:
        inner = column._replace(depth=column.depth - 1)
        return [_value(inner, random_) for _ in range(min(length, 400 if column.depth == 1 else 7))]
    if column.kind == "int64":
        return random_.getrandbits(random_.randrange(1, 65)) - 2**63 if random_.randrange(4) else length
    if column.kind == "float":
        return oracle.float_bits(random_.uniform(-1e6, 1e6))
    return _text(random_, length) if column.kind == "string" else random_.randbytes(length)


def _records(columns: list[Column], rows: int, seed: int) -> list[Record]:
    """Rows that are mostly alike, as in real files; some rows lack features."""
    random_ = random.Random(seed)
    records = []
    for _ in range(rows):
        present = [c for c in columns if random_.randrange(10)]
        wire = {c.name: "bytes" if c.kind == "string" else c.kind for c in present}
        values = {c: _value(c, random_) for c in present}
        features = {
            c.name: Feature(wire[c.name], v if c.depth else [v]) for c, v in values.items() if c.depth < 2
        }
        lists = {
            c.name: [Feature(wire[c.name], step) for step in v] for c, v in values.items() if c.depth == 2
        }
        records.append(Record(features, lists))
    return records


def _file(records: list[Record], record_type: RecordType) -> bytes:
    return oracle.records_file([oracle.serialize(record, record_type) for record in records])


def _assert_holds(batches: list[pa.RecordBatch], columns: list[Column], records: list[Record]) -> None:
    table = pa.Table.from_batches(batches)
    assert table.num_rows == len(records)
    for column in columns:
        found = [oracle.canonical(value) for value in table[column.name].to_pylist()]
        assert found == oracle.column_values(records, column.name, column.depth), column.name


@pytest.fixture(scope="module", params=["example", "sequence_example"])
def many(request: pytest.FixtureRequest) -> tuple[RecordType, list[Column], list[Record], bytes]:
    record_type: RecordType = request.param
    columns = COLUMNS + (STEPS if record_type == "sequence_example" else [])
    records = _records(columns, ROWS, seed=7)
    return record_type, columns, records, _file(records, record_type)


@pytest.fixture(scope="module")
def whole(many: Any) -> pa.RecordBatch:
    """The batch that holds all records."""
    record_type, columns, records, file = many
    batch = Decoder(columns, record_type).decode(file, final=True).batch
    _assert_holds([batch], columns, records)
    return batch


def _feed(decoder: Decoder, file: bytes, window: int, more: int) -> tuple[int, int, Damage | None]:
    """Feed a file in windows as a reader does: the records, the bytes used, and the damage that ended it."""
    records, position, size = 0, 0, window
    while position < len(file):
        final = position + size >= len(file)
        fed = decoder.feed(exact(file[position : position + size]), final=final, more=more)
        damage = fed.damage
        if damage:
            damage = damage._replace(record=records + damage.record, offset=position + damage.offset)
        records, position = records + fed.records, position + fed.consumed
        if damage:
            return records, position, damage
        size = window if fed.consumed else 2 * size
    return records, position, None


@pytest.mark.parametrize(
    ("window", "more"),
    [(1 << 12, 0), (1 << 12, 1 << 16), (1 << 16, 1 << 24), (1 << 18, 0), (1 << 18, 1 << 63)],
)
def test_windows_that_are_fed_become_one_batch(
    many: Any, whole: pa.RecordBatch, window: int, more: int
) -> None:
    """How many bytes are announced changes only the memory that is reserved."""
    record_type, columns, _, file = many
    decoder = Decoder(columns, record_type)
    for _ in range(2):  # the second batch begins with what the decoder has learned
        assert _feed(decoder, file, window, more) == (ROWS, len(file), None)
        batch = decoder.take()
        batch.validate(full=True)
        assert batch.equals(whole)
    assert decoder.take().num_rows == 0


@pytest.mark.parametrize("record", [0, 1, 511, 512, 513, 700, ROWS - 1])
def test_damage_keeps_all_rows_before_it_and_is_counted_from_the_data_that_was_fed(
    many: Any, whole: pa.RecordBatch, record: int
) -> None:
    """The bytes are in the checksum of the length, and in the payload, whose checksum may be unverified."""
    record_type, columns, _, file = many
    start = scan(file, final=True, offsets=True).offsets.to_pylist()[record]
    windows = ((1 << 12, 1 << 18), (1 << 18, 1 << 12))
    for (at, byte), verify_crc in itertools.product(enumerate((8, 12, 13, 20)), (True, False)):
        window = windows[at % 2][verify_crc]
        damaged = bytearray(file)
        damaged[start + byte] ^= 0x85
        options: Any = {"verify_crc": verify_crc, "known": []}
        once = Decoder(columns, record_type, **options).decode(bytes(damaged), final=True)
        if verify_crc or byte == 8:
            assert once.damage is not None, byte
            assert (once.damage.record, once.damage.offset) == (record, start), byte
            assert once.batch.equals(whole.slice(0, record)), byte
        decoder = Decoder(columns, record_type, **options)
        fed = _feed(decoder, bytes(damaged), window, 1 << 24)
        assert fed == (once.records, once.consumed, once.damage), (byte, window)
        batch = decoder.take()
        batch.validate(full=True)
        assert batch.equals(once.batch), (byte, window)


def test_a_batch_that_is_full_must_be_taken_first(many: Any, whole: pa.RecordBatch) -> None:
    record_type, columns, _, file = many
    decoder = Decoder(columns, record_type)
    decoder.feed(file, final=True)
    with mmap.mmap(-1, 2**31) as large, pytest.raises(ValueError, match="the batch is full"):
        decoder.feed(large, final=True)
    assert decoder.take().equals(whole)


def test_many_records_are_written_as_protobuf_reads_them(many: Any, whole: pa.RecordBatch) -> None:
    record_type, columns, records, _ = many
    small, middle, large = (
        b"".join(bytes(view) for view in encoded_views(Encoder(columns, record_type), whole, buffer_bytes))
        for buffer_bytes in (1 << 12, 1 << 16, 1 << 20)
    )
    assert small == middle == large
    assert [oracle.parse(payload, record_type) for payload in oracle.frames(small)] == records


def test_inference_and_scan_agree_about_many_records(many: Any) -> None:
    record_type, _, records, file = many
    inference = Inference(record_type)
    assert inference.feed(file, final=True) == (ROWS, len(file), None)
    assert seen_by(inference) == oracle.inferred(records)
    assert scan(file, final=True).records == ROWS


@pytest.mark.parametrize("size", [127, 128, 16_383, 16_384, 1 << 20, (1 << 21) - 1, 1 << 21, 9_000_000])
def test_a_large_value_survives_both_ways(size: int) -> None:
    value = random.Random(size).randbytes(size)
    columns = [Column("before", "int64", 0), Column("blob", "bytes", 0), Column("after", "string", 1)]
    batch = pa.record_batch(
        {"before": pa.array([1]), "blob": pa.array([value], pa.binary()), "after": pa.array([["x", "é"]])}
    )
    file = b"".join(bytes(view) for view in encoded_views(Encoder(columns, "example"), batch, 64))
    features = oracle.parse(file[12:-4]).features
    assert features == {
        "before": Feature("int64", [1]),
        "blob": Feature("bytes", [value]),
        "after": Feature("bytes", [b"x", "é".encode()]),
    }
    assert Decoder(columns, "example").decode(file, final=True).batch.equals(batch)


def test_a_batch_outlives_its_decoder_and_is_not_overwritten_by_later_ones() -> None:
    """The kernel reuses the memory of a batch only after all references to the batch are gone."""
    files = [_records(COLUMNS, 200, seed) for seed in range(12)]
    decoder = Decoder(COLUMNS, "example")
    kept = []
    for number, records in enumerate(files):
        batch = decoder.decode(bytearray(_file(records, "example")), final=True).batch
        if number % 3:
            kept.append((batch.slice(0), records))
        else:
            kept.append((batch.select(["tags", "id"]), records))
        del batch
        gc.collect(0)
    del decoder
    for batch, records in kept:
        names = batch.schema.names
        _assert_holds([batch], [column for column in COLUMNS if column.name in names], records)


@pytest.mark.parametrize("is_shared", [False, True])
def test_threads_get_the_rows_of_a_file(is_shared: bool) -> None:
    """A decoder that another thread uses may also refuse the call."""
    records = _records(COLUMNS, 500, seed=3)
    file = _file(records, "example")
    shared = Decoder(COLUMNS, "example")
    expected = shared.decode(file, final=True).batch
    _assert_holds([expected], COLUMNS, records)

    def work(_: int) -> bool:
        try:
            decoder = shared if is_shared else Decoder(COLUMNS, "example")
            batch = decoder.decode(file, final=True).batch
        except RuntimeError:
            return is_shared
        again = b"".join(bytes(view) for view in encoded_views(Encoder(COLUMNS, "example"), batch))
        found = Decoder(COLUMNS, "example").decode(again, final=True).batch
        return bool(batch.equals(expected) and found.equals(expected))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(64)))


KEEP = """
import sys
from pathlib import Path
from dask_tfrecord.codec import Decoder
from dask_tfrecord.codec import Column
from memory import peak_kib

file = Path(sys.argv[1]).read_bytes()
decoder = Decoder([Column("x", "int64", 0)], "example")
before = peak_kib()
kept = [decoder.decode(file, final=True).batch for _ in range(500)]
print(peak_kib() - before)
assert all(batch.column(0).to_pylist() == [1] for batch in kept)
"""


def test_small_batches_take_little_memory(tmp_path: Path) -> None:
    """A dataset may be many small files, with a partition for each that stays in memory."""
    path = tmp_path / "one.tfrecord"
    path.write_bytes(oracle.features_file([{"x": ("int64", [1])}]))
    assert growth(KEEP, tmp_path, str(path)) < 32 * 1024
