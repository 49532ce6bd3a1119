"""The small columns of large data files: those that an oracle of the rule chooses, whatever the batches.

The limits are small, so that files of a few KiB are large. The oracle counts in plain Python, row by row.

Modules: files.small_columns.
"""

import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import every_dtype
import numpy as np
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from split_table import read_table

from dask_tfrecord.codec import Column
from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.files import column_files, file_writer, small_columns
from dask_tfrecord.files.column_files import ColumnFileReader, StoredRows
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions, WriteOptions
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows, write_files
from dask_tfrecord.files.small_columns import SmallColumnFiles, SmallColumns
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

LEAST, PART, STEP, WAITING = 1_000, 10, 1_500, 300


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", LEAST)
    monkeypatch.setattr(small_columns, "_PART", PART)
    monkeypatch.setattr(small_columns, "_STEP_BYTES", STEP)
    monkeypatch.setattr(small_columns, "_WAITING_BYTES", WAITING)


def write(
    root: Path,
    rows: pa.Table,
    cuts: Iterable[int] = (),
    compression: Compression | None = None,
    max_rows: int | None = None,
    sizes: Sequence[int] = (),
    threads: int | None = None,
) -> tuple[Schema, list[FileEntry]]:
    """Write the rows, cut into batches, as directories of these sizes, with the column files of the rule."""
    store, schema = Store.at(root), Schema.from_arrow(rows.schema)
    bounds = [*sorted({0, *cuts, len(rows)})]
    pieces = [rows.slice(start, stop - start) for start, stop in itertools.pairwise(bounds)]
    features = [one for one in schema.columns if one.kind != "bytes" and not one.depth]
    entries = write_files(
        store,
        lambda _, at: (store.join(f"data-{at}"), f"data-{at}"),
        GroupedRows(
            [(piece, None) for piece in pieces], [DirectoryGroup("", (), one) for one in sizes or [len(rows)]]
        ),
        schema,
        WriteOptions(compression, max_rows=max_rows, lossy="allow"),
        columns=SmallColumnFiles(features, lambda at: (store.join(f"columns-{at}"), f"columns-{at}")),
        threads=threads,
    )
    return schema, entries


def smallest(sizes: dict[str, int], most: int) -> dict[str, int]:
    """The smallest columns that together take at most ``most`` bytes. Equal columns share their fate."""
    kept: dict[str, int] = {}
    for size in sorted({*sizes.values()}):
        equal = {name: one for name, one in sizes.items() if one == size}
        if sum(kept.values()) + sum(equal.values()) > most:
            break
        kept |= equal
    return {name: sizes[name] for name in sizes if name in kept}


def chosen(columns: dict[str, list[int]], offsets: Sequence[int], stored: int) -> set[str]:
    """The columns to store beside a data file. ``columns`` maps each name to the bytes of each value."""
    sizes, step = dict.fromkeys(columns, 0), STEP
    for row, offset in enumerate(offsets):
        if offset >= step:
            sizes = smallest(sizes, max(WAITING, offset // PART))
            step = offset - offset % STEP + STEP
        sizes = {name: size + columns[name][row] for name, size in sizes.items()}
    return {*smallest(sizes, stored // PART)} if stored >= LEAST and offsets else set()


def value_bytes(name: str, value: Any) -> int:
    """The bytes of a value of the columns of `random_rows`, which have names such as ``int 3``."""
    kind = "int" if name == "n" else name.partition(" ")[0]
    return {"int": 8, "float": 4, "text": 4}[kind] + (len((value or "").encode()) if kind == "text" else 0)


def bytes_of(table: pa.Table) -> dict[str, list[int]]:
    return {name: [value_bytes(name, one) for one in table[name].to_pylist()] for name in table.column_names}


def random_rows(rng: random.Random, count: int, scales: Sequence[int]) -> pa.Table:
    """A payload, and columns of numbers and text of which some have equal sizes, and some have nulls."""
    scale = rng.choice(scales)
    columns: dict[str, pa.Array] = {
        "payload": pa.array([rng.randbytes(rng.randint(0, scale)) for _ in range(count)])
    }
    for at in range(rng.randint(0, 5)):
        kind = rng.choice(["int", "float", "text"])
        nulls, longest = rng.choice([0, 0.2, 1]), rng.choice([0, 1, 6, 30])
        values = [
            rng.randint(-5, 5)
            if kind == "int"
            else 0.5
            if kind == "float"
            else "żx"[: rng.randint(0, 2)] * longest
            for _ in range(count)
        ]
        type_ = {
            "int": pa.int64(),
            "float": pa.float32(),
            "text": rng.choice([pa.string(), pa.large_string()]),
        }[kind]
        columns[f"{kind} {at}"] = pa.array([None if rng.random() < nulls else one for one in values], type_)
        if rng.random() < 0.3:  # a column of the same size
            columns[f"{kind} {at} again"] = columns[f"{kind} {at}"]
    return pa.table(columns)


def offsets_of(path: Path) -> list[int]:
    """Where the records of a file begin, and where the last one ends."""
    return [*itertools.accumulate((len(one) + 16 for one in oracle.read_payloads(path)), initial=0)]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("seed", range(20))
def test_the_rule_chooses_the_columns_of_the_plain_oracle(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng, count := rng.choice([1, 5, 30, 30, 60]), [50, 400, 800, 1_500])
    cuts = rng.sample(range(count + 1), rng.randint(0, min(4, count)))
    compression: Any = rng.choice([None, None, "gzip"])
    schema, entries = write(tmp_path, rows, cuts, compression, rng.choice([None, None, 20]))
    first = 0
    for at, entry in enumerate(entries):
        *starts, end = offsets_of(tmp_path / entry.path)
        part, first = rows.slice(first, entry.records), first + entry.records
        names = chosen(bytes_of(part.drop_columns("payload")), starts, entry.bytes)
        assert (entry.columns is None) == (not names)
        assert (tmp_path / f"columns-{at}").exists() == bool(names)
        if entry.columns is None:
            continue
        assert entry.columns.path == f"columns-{at}"
        reader = ColumnFileReader(Store.at(tmp_path), entry.columns)
        assert {one.name for one in reader.features} == names
        found = StoredRows.of(reader, entry)
        assert found is not None
        stored = found.read(schema.select([*names]), 0, entry.records)
        assert stored is not None
        assert stored.to_pydict() == part.select([*names]).to_pydict()
        offsets = found.offsets(0, entry.records)
        assert offsets is not None
        assert offsets.tolist() == [*starts, end]


STORE = Store.at("memory://small")


def small_columns_of(features: Sequence[Column]) -> SmallColumns:
    return SmallColumns(STORE, SmallColumnFiles(features, lambda at: (STORE.join(f"{at}"), f"{at}")))


def stored(rows: pa.Table, offsets: Sequence[int], size: int) -> list[str]:
    """The columns of ``rows`` that are stored beside a data file of ``size`` bytes."""
    features = Schema.from_arrow(rows.schema).columns
    small = small_columns_of(features)
    small.add(rows, np.array(offsets))
    file = small.end_file("data", size, 0, size)
    return [] if file is None else sorted(one.name for one in ColumnFileReader(STORE, file).features)


@pytest.mark.usefixtures("small_limits")
def test_columns_are_left_out_while_rows_arrive_as_the_oracle_says() -> None:
    """Records begin at multiples of 50 bytes. Some are longer than several steps."""
    rng = random.Random(1)
    for _ in range(300):
        count = rng.randint(1, 60)
        table = (
            random_rows(rng, count, [0])
            .drop_columns("payload")
            .append_column("n", pa.nulls(count, pa.int8()))
        )
        lengths = rng.choices(
            [50, 100, 1_500, 5_000], rng.choice([[9, 1, 0, 0], [5, 5, 1, 0], [0, 5, 1, 1]]), k=count
        )
        *offsets, end = itertools.accumulate(lengths, initial=0)
        expected = chosen(bytes_of(table), offsets, end)
        small = small_columns_of(Schema.from_arrow(table.schema).columns)
        cuts = rng.choices(range(count + 1), k=3)  # some parts have no rows
        for start, stop in itertools.pairwise(sorted([0, *cuts, count, count])):
            small.add(table.slice(start, stop - start), np.array(offsets[start:stop]))
        file = small.end_file("data", end, 0, end)
        found = set() if file is None else {one.name for one in ColumnFileReader(STORE, file).features}
        assert found == expected


MIB = 1 << 20


@pytest.mark.parametrize(("size", "expected"), [(8 * MIB - 1, []), (8 * MIB, ["n"]), (8 * MIB + 1, ["n"])])
def test_a_file_of_8_mib_is_large(size: int, expected: list[str]) -> None:
    assert stored(pa.table({"n": [1]}), [0], size) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"n": pa.array([1] * 12_500)}, ["n"]),  # 100,000 bytes
        ({"n": pa.array([1] * 12_501)}, []),
        ({"x": pa.array([1] * 25_000, pa.float32())}, ["x"]),
        ({"x": pa.array([1] * 25_001, pa.float32())}, []),
        ({"text": pa.array(["ż" * 49_994 + "abcd", None])}, ["text"]),  # 4 bytes more for each value
        ({"text": pa.array(["ż" * 49_994 + "abcde", ""])}, []),
        ({"text": pa.nulls(25_000, pa.string())}, ["text"]),
        ({"n": pa.nulls(12_501, pa.int64())}, []),
        ({"n": pa.array([1] * 8_333), "x": pa.array([1] * 8_334, pa.float32())[:8_333]}, ["n", "x"]),
        ({"n": pa.array([1] * 8_334), "x": pa.array([1] * 8_334, pa.float32())}, ["x"]),
        ({"m": pa.array([1] * 6_250), "n": pa.array([1] * 6_250)}, ["m", "n"]),
        ({"m": pa.array([1] * 6_251), "n": pa.array([1] * 6_251)}, []),  # equal sizes
        ({"m": pa.array([1] * 6_251), "n": pa.array([1] * 6_251), "x": pa.nulls(6_251, pa.string())}, ["x"]),
    ],
)
def test_one_percent_of_the_stored_bytes_is_small(rows: dict[str, pa.Array], expected: list[str]) -> None:
    table = pa.table(rows)
    assert stored(table, range(len(table)), 10_000_000 + 99) == expected


def test_column_files_are_the_same_for_all_batches_of_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages and dictionaries of Parquet end at other values if the rows arrive in other pieces."""
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 0)
    monkeypatch.setattr(small_columns, "_PART", 1)
    rows = pa.table(
        {
            "text": [f"{at * 7919 % 1_000_003} of many words" for at in range(60_000)],
            "category": pa.array([["a", "b", None][at % 3] for at in range(60_000)]).dictionary_encode(),
            "late": pa.array([None] * 50_000 + [*range(10_000)]),
        }
    )
    wide = rows.set_column(0, "text", rows["text"].cast(pa.large_string()))
    found = set()
    for step, threads in ((1 << 20, 1), (1 << 30, 4)):
        monkeypatch.setattr(small_columns, "_STEP_BYTES", step)
        for number, (table, cuts) in enumerate(
            [(rows, []), (rows, [1, 20_001, 50_003]), (wide, range(0, 60_000, 777))]
        ):
            root = tmp_path / f"{step} {number}"
            _, [entry] = write(root, table, cuts, threads=threads)
            assert entry.columns == ("columns-0", *entry.columns[1:])
            found.add((root / "columns-0").read_bytes())
    assert len(found) == 1


def test_a_validity_bitmap_without_nulls_does_not_change_a_column_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the bitmap, the column takes more bytes than a row group may have."""
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 0)
    monkeypatch.setattr(small_columns, "_PART", 1)
    monkeypatch.setattr(column_files, "_COLUMN_BYTES", 20_000)
    words = pa.array([None, *["four"] * 2_490]).slice(1)
    assert words.null_count == 0
    assert words.nbytes > 20_000 > pa.concat_arrays([words]).nbytes
    found = set()
    for start in (0, 5, 2_000):
        small = small_columns_of([Column("word", "string", 0)])
        for part, first in ((words[:start], 0), (words[start:], start)):
            small.add(pa.table({"word": part}), np.arange(len(part)) + first)
        assert small.end_file("data", 1 << 30, 0, 1 << 30) is not None
        found.add(STORE.fs.cat_file(STORE.join("0")))
    assert len(found) == 1


def test_waiting_columns_keep_no_large_buffers_in_memory() -> None:
    """The columns of a batch that comes from a message share one buffer. The story is left out."""
    rows = pa.record_batch({"story": ["x" * 4_000] * 256, "word": ["ab"] * 256})
    small = small_columns_of(Schema.from_arrow(rows.schema).columns)
    before, most = pa.total_allocated_bytes(), 0
    for start in range(0, 1 << 30, 1 << 24):
        batch = pa.ipc.read_record_batch(rows.serialize(), rows.schema)
        small.add(batch, start + np.arange(256) * (1 << 16))
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 8 * MIB
    file = small.end_file("data", 1 << 30, 0, 1 << 30)
    assert file is not None
    assert [one.name for one in ColumnFileReader(STORE, file).features] == ["word"]


def test_small_columns_of_all_types_and_directories_have_the_values_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 1)
    monkeypatch.setattr(small_columns, "_PART", 1)
    monkeypatch.setattr(small_columns, "_STEP_BYTES", 3_000)
    monkeypatch.setattr(file_writer, "_CHUNK_ROWS", 13)
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 5_000)
    rows = pa.concat_tables([every_dtype.table()] * 7).slice(0, 80)
    words = pa.array([[None, "b", "a", "c"][at % 4] for at in range(80)])
    rows = rows.append_column("words", words.dictionary_encode())
    schema, entries = write(tmp_path, rows, [5, 40], max_rows=7, sizes=[30, 0, 1, 49])
    assert [entry.records for entry in entries] == [7, 7, 7, 7, 2, 0, 1, *[7] * 7]
    first = 0
    for entry in entries:
        part, first = rows.slice(first, entry.records), first + entry.records
        assert (entry.columns is None) == (entry.records == 0)
        if entry.columns is None:
            continue
        reader = ColumnFileReader(Store.at(tmp_path), entry.columns)
        names = [item.name for item in schema.fields if {*item.features} <= reader.features]
        assert {"bool", "float32", "date32", "string", "words"} <= {*names}
        found = StoredRows.of(reader, entry)
        assert found is not None
        stored = found.read(schema.select(names), 0, entry.records)
        assert stored is not None
        split = Split(FileInfo(str(tmp_path / entry.path), entry.bytes, "", entry.crc32c))
        decoded = read_table(Store.at(tmp_path), split, schema.select(names), ReadOptions())
        assert str(stored.to_pydict()) == str(decoded.to_pydict())
        required = {item.name for item in pq.read_schema(tmp_path / entry.columns.path) if not item.nullable}
        assert required - {"tfrecord.offset"} == {
            one.name for one in reader.features if not part[one.name].null_count
        }


def test_a_file_without_rows_or_scalar_columns_has_no_column_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_columns, "LEAST_FILE_BYTES", 0)
    monkeypatch.setattr(small_columns, "_PART", 1)
    for at, rows in enumerate(
        (pa.table({"n": pa.array([], pa.int64())}), pa.table({"image": [b"abc"], "list": [[1]]}))
    ):
        _, [entry] = write(tmp_path / str(at), rows)
        assert entry.columns is None
        assert [path.name for path in (tmp_path / str(at)).iterdir()] == ["data-0"]


def test_may_store_is_false_only_if_no_column_can_be_small() -> None:
    number, text = Column("n", "int64", 0), Column("text", "string", 0)
    for features, records, size, expected in [
        ((), 1, 8 * MIB, False),
        ((number,), 1, 8 * MIB - 1, False),
        ((number,), 1, 8 * MIB, True),
        ((number,), 12_500, 10_000_000, True),
        ((number,), 12_501, 10_000_000, False),
        ((number, text), 25_000, 10_000_000, True),
        ((number, text), 25_001, 10_000_000, False),
    ]:
        assert SmallColumnFiles(features, lambda at: ("", "")).may_store(records, size) is expected


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()], ids=str)
def test_the_size_of_a_slice_of_text_is_that_of_its_rows(type_: pa.DataType) -> None:
    texts = ["x" * count for count in range(50)]
    rows = pa.record_batch([pa.array(texts, type_)], ["text"]).slice(30, 5)
    [size] = small_columns._stored_bytes([Column("text", "string", 0)], rows)
    assert size == sum(len(text) + 4 for text in texts[30:35])
