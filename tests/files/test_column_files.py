"""Column files hold exactly what decoding the records gives, and any doubt about them is noticed.

Modules: files.column_files, files.file_writer, dataset.rewrite.verify, dataset.rewrite.add_snapshot.
"""

import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path

import every_dtype
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from split_table import read_table

from dask_tfrecord.codec.codecs import Compression
from dask_tfrecord.files import column_files, file_writer
from dask_tfrecord.files.column_files import ColumnFileReader, StoredRows
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions, WriteOptions
from dask_tfrecord.files.file_writer import DirectoryGroup, GroupedRows, WrittenColumns, write_files
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

NAME = f"_tfrecord/columns/{'a' * 32}-00000.parquet"


def every_type(rows: int) -> pa.Table:
    """A table with all types, categories and structs, and a list of lists."""
    table = every_dtype.table()
    table = pa.concat_tables([table] * -(-rows // len(table))).slice(0, rows)
    words = pa.array([[None, "b", "a", "c"][at % 4] for at in range(rows)])
    table = table.append_column("words", words.dictionary_encode())
    pairs = [[None, {"a": at, "b": None}, {"a": None, "b": [str(at)]}][at % 3] for at in range(rows)]
    table = table.append_column(
        "pair", pa.array(pairs, pa.struct({"a": pa.int8(), "b": pa.list_(pa.string())}))
    )
    return table.append_column("nothing", pa.nulls(rows))


def write(
    root: Path,
    rows: pa.Table,
    compression: Compression | None = None,
    sizes: list[int] | None = None,
    max_rows: int | None = None,
) -> tuple[Schema, list[FileEntry]]:
    """Write the rows, as directories of these sizes, with a column file of all columns."""
    store, schema = Store.at(root), Schema.from_arrow(rows.schema)
    groups = [DirectoryGroup(f"d={at}", (), size) for at, size in enumerate(sizes or [len(rows)])]

    def place(directory: str, number: int) -> tuple[str, str]:
        return store.join(f"{directory}/part-{number}"), f"{directory}/part-{number}"

    entries = write_files(
        store,
        place,
        GroupedRows([(rows, None)], groups),
        schema,
        WriteOptions(compression, max_rows=max_rows, lossy="allow"),
        columns=WrittenColumns(schema.columns, store.join(NAME), NAME),
    )
    return schema, entries


def reader(root: Path, entry: FileEntry) -> ColumnFileReader:
    assert entry.columns is not None
    return ColumnFileReader(Store.at(root), entry.columns)


def read(found: ColumnFileReader, entry: FileEntry, schema: Schema) -> pa.Table | None:
    rows = StoredRows.of(found, entry)
    return None if rows is None else rows.read(schema, 0, entry.records)


def decoded(root: Path, entry: FileEntry, schema: Schema) -> pa.Table:
    file = FileInfo(str(root / entry.path), entry.bytes, "", entry.crc32c)
    return read_table(Store.at(root), Split(file), schema, ReadOptions())


def shown(table: pa.Table) -> str:
    """The types and the values as text, in which NaN equals NaN."""
    return f"{table.schema} {table.to_pydict()}"


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize(("sizes", "max_rows"), [(None, None), ([30, 0, 1, 49], 7)])
def test_rows_of_a_column_file_equal_decoded_records(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compression: Compression | None,
    sizes: list[int] | None,
    max_rows: int | None,
) -> None:
    monkeypatch.setattr(column_files, "_GROUP_ROWS", 9)
    monkeypatch.setattr(file_writer, "_CHUNK_ROWS", 13)
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 5_000)
    schema, entries = write(tmp_path, every_type(80), compression, sizes, max_rows)
    names = schema.names
    for entry in entries:
        found = StoredRows.of(reader(tmp_path, entry), entry)
        assert found is not None
        expected = decoded(tmp_path, entry, schema)
        bounds = [0, 1, 8, 9, 10, 30, entry.records]
        for start, stop in itertools.combinations_with_replacement(
            [at for at in bounds if at <= len(expected)], 2
        ):
            some = schema.select(names[start % 5 :: 3])
            table = found.read(some, start, stop)
            assert table is not None
            assert shown(table.combine_chunks()) == shown(
                expected.select(some.names).slice(start, stop - start).combine_chunks()
            )
        payloads = oracle.read_payloads(tmp_path / entry.path)
        ends = [0, *itertools.accumulate(len(one) + 16 for one in payloads)]
        # mypy: the offsets are an array, not None
        assert found.offsets(0, entry.records).tolist() == ends  # type: ignore[union-attr]
        middle = entry.records // 2
        assert found.offsets(middle, middle).tolist() == ends[middle:][:1]  # type: ignore[union-attr]


def test_columns_without_nulls_are_required(tmp_path: Path) -> None:
    """The null count of a column of categories does not count a null among the categories."""
    values = every_type(20).drop_columns(["pair", "words", "nothing"])
    rows = pa.table([column.drop_null().slice(0, 1) for column in values.columns], values.schema)
    hidden = pa.DictionaryArray.from_arrays([1], pa.array(["a", None]))
    rows = rows.append_column("hidden", hidden).append_column("some", pa.nulls(1, pa.int64()))
    schema, [entry] = write(tmp_path, rows)
    required = {item.name for item in pq.read_schema(tmp_path / NAME) if not item.nullable}
    assert {"bool", "int8", "float64", "zoned", "string", "tfrecord.offset"} < required
    assert required.isdisjoint({"hidden", "some"})
    found = read(reader(tmp_path, entry), entry, schema)
    assert found is not None
    assert shown(found) == shown(decoded(tmp_path, entry, schema))


@pytest.mark.parametrize("limit", ["_GROUP_BYTES", "_COLUMN_BYTES"])
def test_row_groups_end_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(column_files, limit, 4_000)
    texts = pa.table({"text": ["x" * 3_000, "", "y" * 9_000, *"abcdefgh"]})
    schema, [entry] = write(tmp_path, texts)
    metadata = pq.read_metadata(tmp_path / NAME)
    assert metadata.num_row_groups > 2
    assert shown(read(reader(tmp_path, entry), entry, schema)) == shown(texts)  # type: ignore[arg-type]  # a table


def test_a_column_file_is_what_the_page_of_the_format_says(tmp_path: Path) -> None:
    table = pa.table({"n": [1, None, 3], "text": ["a", "b", None]})
    _, [entry] = write(tmp_path, table, "gzip")
    stored = pq.read_table(tmp_path / NAME)
    payloads = oracle.read_payloads(tmp_path / entry.path)
    *starts, end = itertools.accumulate((len(one) + 16 for one in payloads), initial=0)
    assert stored.to_pydict() == {**table.to_pydict(), "tfrecord.offset": starts}
    data = (tmp_path / NAME).read_bytes()
    footer = data[-int.from_bytes(data[-8:-4], "little") - 8 :]
    assert entry.columns == (NAME, len(data), oracle.crc32c(footer), ("n", "text"))
    metadata = pq.read_metadata(tmp_path / NAME)
    checksums = b""
    for at in range(3):
        column = metadata.row_group(0).column(at)
        first = column.dictionary_page_offset or column.data_page_offset
        chunk = data[first : first + column.total_compressed_size]
        checksums += oracle.crc32c(chunk).to_bytes(4, "little")
    checksums += oracle.crc32c(checksums).to_bytes(4, "little")
    assert data[: -len(footer)].endswith(checksums)
    described = {"path": entry.path, "bytes": entry.bytes, "crc32c": entry.crc32c, "records": 3}
    described |= {"content": end, "row_groups": 1}
    assert json.loads(metadata.metadata[b"tfrecord"]) == {"files": [described]}
    assert {metadata.row_group(0).column(at).compression for at in range(3)} == {"UNCOMPRESSED"}


@pytest.mark.parametrize(
    ("stored", "type_", "is_read"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int32(), pa.string(), False),
        (pa.int32(), pa.list_(pa.int32()), False),
        (pa.int32(), pa.float32(), False),
        (pa.int64(), pa.int16(), True),
        (pa.int64(), pa.int8(), False),
    ],
    ids=str,
)
def test_only_the_same_feature_with_values_that_do_fit_is_read(
    tmp_path: Path, stored: pa.DataType, type_: pa.DataType, is_read: bool
) -> None:
    """Another type of the same feature is cast as decoded values are; other kinds and values are decoded."""
    _, [entry] = write(tmp_path, pa.table({"n": pa.array([1, 1000], stored)}))
    column_file = reader(tmp_path, entry)
    for _ in range(2):  # a value that does not fit is no damage of the column file
        found = read(column_file, entry, Schema.from_arrow(pa.schema({"n": type_})))
        assert (found and found["n"].to_pylist()) == ([1, 1000] if is_read else None)
    own = read(column_file, entry, Schema.from_arrow(pa.schema({"n": stored})))
    assert own is not None


def _of_another_file(path: Path) -> bytes:
    other = path.parent.parent.parent / "other"
    write(other, pa.table({"n": [1, 2, 4], "text": ["marker-a", "marker-b", "marker-d"]}))
    return (other / NAME).read_bytes()


SPOILED: dict[str, Callable[[Path], bytes | None]] = {
    "missing": lambda path: path.unlink(),
    "truncated": lambda path: path.read_bytes()[:-100],
    "with another footer": lambda path: path.read_bytes().replace(b'"records": 3', b'"records": 2'),
    "with other values": lambda path: path.read_bytes().replace(b"marker-b", b"marker-c"),
    "of another file": _of_another_file,
    "empty": lambda path: b"",
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_damaged_column_file_is_not_used_and_this_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.INFO, "dask_tfrecord")
    rows = pa.table({"n": [1, 2, 3], "text": ["marker-a", "marker-b", "marker-c"]})
    schema, [entry] = write(tmp_path, rows)
    content = SPOILED[name](tmp_path / NAME)
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    found = reader(tmp_path, entry)
    assert read(found, entry, schema) is None
    assert read(found, entry, schema.select(["n"])) is None
    rows = StoredRows.of(found, entry)
    assert rows is None or rows.offsets(0, 3) is None
    [record] = caplog.records
    assert NAME in record.getMessage()


COLUMNS = {
    "numbers": pa.array([1, None, 3] * 3),
    "floats": pa.array([0.5, None, 2.0] * 3, pa.float32()),
    "texts": pa.array(["a", None, "bb"] * 3),
    "bytes": pa.array([b"a", None, b"bb"] * 3),
    "lists of numbers": pa.array([[], None, [1, 2]] * 3),
    "lists of floats": pa.array([[at] * (at % 4) for at in range(300)], pa.list_(pa.float32())),
    "lists of texts": pa.array([[], None, ["a", "b"]] * 3),
    "lists of bytes": pa.array([[], None, [b"a", b"b"]] * 3),
}


@pytest.mark.parametrize(("name", "is_kept"), [("texts", True), *((name, False) for name in COLUMNS)])
def test_any_flipped_bit_gives_the_same_values_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_kept: bool
) -> None:
    """A bit may lie where no read looks, such as in the first bytes. A small file is kept as a whole."""
    rows = pa.table({"x": COLUMNS[name]})
    schema, [entry] = write(tmp_path, rows)
    data = (tmp_path / NAME).read_bytes()
    if not is_kept:
        monkeypatch.setattr(column_files, "_TAIL_BYTES", 8)
    store = Store.at("memory://flips")
    path = store.join(NAME)
    for byte in range(len(data)):
        spoilt = bytearray(data)
        spoilt[byte] ^= 1 << byte % 8
        store.fs.pipe_file(path, bytes(spoilt))
        found = read(ColumnFileReader(store, entry.columns), entry, schema)
        assert found is None or shown(found) == shown(rows), byte


def test_a_column_file_of_an_earlier_content_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dask_tfrecord")
    schema, [entry] = write(tmp_path, pa.table({"n": [1, 2, 3]}))
    found = reader(tmp_path, entry)
    assert found.rows_of(entry.path, entry.bytes, entry.crc32c ^ 1, 3) is None
    assert found.rows_of(entry.path, entry.bytes + 1, entry.crc32c, 3) is None
    assert found.rows_of("other", entry.bytes, entry.crc32c, 3) is None
    assert len(caplog.records) == 1
    assert read(found, entry, schema) is not None


def test_a_write_that_fails_leaves_no_column_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n"):
        write(tmp_path, pa.table({"n": pa.array([1, 2**63], pa.uint64())}))
    assert not [*(tmp_path / NAME).parent.iterdir()]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({f"c{at}": [at, None] for at in range(2_000)}),
        pa.table({"l.list.element": pa.array([0.5, 1.5], pa.float32()), "l": [[1, 2], []]}),
    ],
    ids=["many columns", "the path of a list"],
)
def test_columns_are_found_among_many_and_by_any_name(tmp_path: Path, rows: pa.Table) -> None:
    schema, [entry] = write(tmp_path, rows)
    for names in (rows.column_names, [rows.column_names[-1], rows.column_names[0]]):
        found = read(reader(tmp_path, entry), entry, schema.select(names))
        assert found is not None
        assert found.equals(rows.select(names))
