"""The file of a snapshot: a round trip, Parquet readers of other tools, and validation of every field.

Metadata files may be garbled, cut off, nested too deeply, of wrong types, or directories.

Modules: dataset.snapshot.model, dataset.snapshot.stored_files, dataset.snapshot.versions.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import operations
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dask_tfrecord
from dask_tfrecord import TFRecordError, Writer, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.entry_log import EntryLog
from dask_tfrecord.dataset.snapshot.head import kept_versions
from dask_tfrecord.dataset.snapshot.list_files import opened
from dask_tfrecord.dataset.snapshot.metadata import ListName, dump_columns, dump_metadata
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.stored_files import from_entries
from dask_tfrecord.dataset.snapshot.versions import assemble, encode
from dask_tfrecord.files.entry import Block, ColumnStatistics, FileEntry
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

RUN = "0123abcd" * 4
WARSAW = ZoneInfo("Europe/Warsaw")
SCHEMA = Schema.from_arrow(
    pa.schema(
        {
            "flag": pa.bool_(),
            "when": pa.timestamp("us", "Europe/Warsaw"),
            "lists": pa.large_list(pa.float16()),
            "category": pa.dictionary(pa.int32(), pa.string()),
        }
    )
)
SNAPSHOT = Snapshot(
    EntryLog(
        from_entries(
            [
                FileEntry(f"part-{'0123abcd' * 4}-00000-of-00002.tfrecord.gz", 1_000_000, 20, 2**32 - 1),
                FileEntry(f"country=a b/part-{'0123abcd' * 4}-00001-of-00002.tfrecord.gz", 0, 0, 0),
            ],
            SCHEMA,
            (),
        )
    ),
    schema=SCHEMA,
    compression="gzip",
    run="0123abcd" * 4,
    library="1.2.3",
)


ROOT = Store.at("/nowhere")
PATH = "/nowhere/_tfrecord/00000001.parquet"


def from_parquet(data: bytes, number: int = 1) -> Snapshot:
    """Parse the file of a version, and read its entries."""
    snapshot = Snapshot(**assemble(opened(ROOT, number, data), kept_versions))
    assert len(snapshot.file_list) == snapshot.log.totals.files
    return snapshot


def to_parquet(snapshot: Snapshot) -> bytes:
    return encode(ROOT, vars(snapshot), kept_versions)[0]


def stored() -> bytes:
    return to_parquet(SNAPSHOT)


def test_what_was_stored_comes_back() -> None:
    assert from_parquet(stored()) == SNAPSHOT
    assert from_parquet(altered(lambda metadata, columns: None)) == SNAPSHOT
    empty = Snapshot(EntryLog(from_entries((), SCHEMA, ())), SCHEMA, None, RUN, "1")
    assert from_parquet(to_parquet(empty)) == empty
    columns = ", ".join(SNAPSHOT.columns.names)
    assert repr(SNAPSHOT) == f"Snapshot(2 files, 20 records, 1,000,000 bytes, columns: {columns})"


def test_the_page_of_the_format_lists_the_keys_that_are_stored() -> None:
    page = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
    table = page.partition("### Metadata")[2].partition("### Schema")[0]
    described = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    filled = {
        "partial": True,
        "oldest": 1,
        "columnar": ("flag",),
        "mode": "append",
        "created": datetime.now(WARSAW),
    }
    fields = {**vars(SNAPSHOT), **filled, "columns_name": "x", "write_id": "job 1", "details": "1 rows"}
    metadata = dump_metadata(fields, [ListName(1, "0" * 8, 2)], 1, 1, [(RUN, None)])
    assert described == {*metadata, *dump_columns(fields)}


def test_an_append_stores_nothing_that_its_first_list_says_of_the_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(3)}, index=pd.Index(range(3), name="id"))
    for _ in range(2):
        to_tfrecord(frame, tmp_path, append=True, custom_metadata={"who": "me"}, columnar=["n"])
    paths = (tmp_path / "_tfrecord" / f"0000000{number}.parquet" for number in (1, 2))
    first, second = (json.loads(pq.read_metadata(path).metadata[b"dask_tfrecord"]) for path in paths)
    columns = {"schema", "partitioning", "order", "index", "custom_metadata", "columnar"}
    assert columns <= first.keys()
    assert second["lists"]
    assert not columns & second.keys()


def blocks(*found: tuple[int, int, int]) -> list[dict[str, int]]:
    return [Block(*one)._asdict() for one in found]


DEEP = b"[" * 200_000 + b"]" * 200_000


def a_partitioned_snapshot(key: pa.DataType, values: list[Any]) -> Snapshot:
    """A snapshot with one file for each partition value; some files have blocks and statistics."""
    partitioning = Schema.from_arrow(pa.schema({"key": key, "it's 2": pa.int8()})).fields
    flag = ColumnStatistics("flag", False, True, 3)
    lists = ColumnStatistics("lists", None, None, 0, 2, 5)
    category = ColumnStatistics("category", "a", "b", 1)
    extras = [
        {"blocks": (Block(0, 0, 0), Block(2**40, 2**50, 7)), "statistics": (flag, lists, category)},
        {"statistics": (ColumnStatistics("category", None, None, 2),), "stamp": '"a1b2-3"'},
        {},
    ]
    files = tuple(
        FileEntry(f"key={at}/part-{at}", 2**41, 20, 3, (value, None if at else 5), **extras[at % 3])
        for at, value in enumerate(values)
    )
    rows = from_entries(files, SCHEMA, partitioning)
    return Snapshot(EntryLog(rows), SCHEMA, None, RUN, "1", partitioning, 7, {"who": "me", "": "ü"})


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (pa.string(), ["a", "", None, "__HIVE_DEFAULT_PARTITION__", "/..%2F"]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", None, "b"]),
        (pa.int64(), [2**63 - 1, None, -(2**63)]),
        (pa.uint64(), [2**64 - 1, None]),
        (pa.bool_(), [True, False, None]),
        (pa.float64(), [0.1, None, float("inf")]),
        (pa.binary(), [b"\xff\x00", b"", None]),
        (pa.decimal128(5, 2), [Decimal("1.25"), None]),
        (pa.date32(), [date(1, 1, 1), None]),
        (pa.timestamp("ns"), [pd.Timestamp(2**60 + 1), None]),
        (pa.timestamp("us", "Europe/Warsaw"), [datetime(2026, 10, 25, 2, 30, tzinfo=WARSAW, fold=1), None]),
        (pa.time32("s"), [time(1, 2, 3), None]),
        (pa.duration("us"), [timedelta(microseconds=1), None]),
    ],
)
def test_partition_values_keep_their_type(key: pa.DataType, values: list[Any]) -> None:
    snapshot = a_partitioned_snapshot(key, values)
    found = from_parquet(to_parquet(snapshot), 7)
    assert found == snapshot
    files = sorted(found.files, key=lambda file: file.path)
    assert [type(file.values[0]) for file in files] == [type(value) for value in values]
    assert found.partition_on == ("key", "it's 2")
    assert repr(found).startswith(f"Snapshot({len(values)} files, {len(values)} partitions, ")


def test_pandas_and_people_read_it(tmp_path: Path) -> None:
    (tmp_path / "1.parquet").write_bytes(stored())
    frame = pd.read_parquet(tmp_path / "1.parquet")
    assert frame.columns.tolist() == ["path", "bytes", "records", "crc32c", "codec"]
    assert frame["crc32c"].tolist() == [2**32 - 1, 0]
    metadata = json.loads(pq.read_metadata(tmp_path / "1.parquet").metadata[b"dask_tfrecord"])
    assert (metadata["format_version"], metadata["compression"]) == (1, "gzip")
    columns = {column["name"]: column["type"] for column in metadata["schema"]["columns"]}
    assert columns["when"] == "timestamp[us, tz=Europe/Warsaw]"


def parquet_of(columns: dict[str, list[Any]], metadata: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns).replace_schema_metadata({b"dask_tfrecord": metadata}), sink)
    return oracle.with_footer_checksum(bytes(sink.getvalue()))


def altered(change: Callable[[dict[str, Any], dict[str, list[Any]]], object]) -> bytes:
    """Change the metadata or the columns in the file of a snapshot."""
    table = pq.read_table(pa.BufferReader(stored()))
    metadata, columns = json.loads(table.schema.metadata[b"dask_tfrecord"]), table.to_pydict()
    change(metadata, columns)
    return parquet_of(columns, json.dumps(metadata).encode())


OUTSIDE = ["/etc/passwd", "../other/a", "a/../../b", "a/..", "./a", "a//b", "a/", "", "..\\a", "a\0b"]
OUTSIDE += ["s3://bucket/a", "file:a", "C:/a", "simplecache::a", "a::b"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_leaves_the_dataset_is_refused(path: str) -> None:
    data = altered(lambda metadata, columns: columns["path"].__setitem__(0, path))
    with pytest.raises(TFRecordError, match=r"not a valid snapshot .* is not inside the dataset"):
        from_parquet(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata, columns: metadata.pop("schema"),
        lambda metadata, columns: metadata.update(run=1),
        lambda metadata, columns: metadata.update(compression="lz77"),
        lambda metadata, columns: metadata["schema"].update(arrow="x"),
        lambda metadata, columns: metadata["schema"].update(record_type="nothing"),
        lambda metadata, columns: columns.pop("path"),
        lambda metadata, columns: columns.update(records=["a", "b"]),
        lambda metadata, columns: columns.update(records=[1, None]),
        lambda metadata, columns: columns.update(bytes=[-1, 0]),
        lambda metadata, columns: columns.update(path=["a", "a"]),
        lambda metadata, columns: columns.update(blocks=[[{"offset": 1}], []]),
        lambda metadata, columns: columns.update(blocks=[blocks((0, 0, 0), (9, 9, 9), (8, 10, 10)), []]),
        lambda metadata, columns: columns.update(blocks=[blocks((0, 0, 0), (9, 9, 21)), []]),
        lambda metadata, columns: metadata.update(partitioning=metadata["schema"]),
        lambda metadata, columns: metadata.update(partitioning=[1]),
        lambda metadata, columns: metadata.update(custom_metadata={"a": 1}),
        *(
            lambda metadata, columns, merged=merged: metadata.update(merged=merged)
            for merged in ([1], ["0123"], [RUN], [[RUN, 1]], [[RUN]], RUN, 1)
        ),
        *(
            lambda metadata, columns, name=name, value=value: metadata.update({name: value})
            for name in ("files", "records", "bytes", "next_place", "removed", "oldest")
            for value in (-1, True, "1", 2**63, 1.0)
        ),
        *(
            lambda metadata, columns, name=name: metadata.pop(name)
            for name in ("files", "records", "bytes", "next_place", "run", "library", "compression")
        ),
        lambda metadata, columns: metadata.update(write_id=1),
        lambda metadata, columns: metadata.update(run="0123ABCD" * 4),
        lambda metadata, columns: columns.update(stamp=[["a"], None]),
        lambda metadata, columns: columns.update(codec=["snappy", None]),
        lambda metadata, columns: columns.update(statistics=[{"other": None}] * 2),
        lambda metadata, columns: columns.update(statistics=[{"flag": {"nulls": None, "min": 1}}] * 2),
    ],
)
def test_anything_else_than_a_snapshot_is_refused(change: Callable[..., object]) -> None:
    with pytest.raises(TFRecordError, match=rf"^{PATH}: not a valid snapshot .*use_snapshot=False"):
        from_parquet(altered(change))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"PAR1", stored()[:-1], stored()[10:]),
        *(
            parquet_of(pq.read_table(pa.BufferReader(stored())).to_pydict(), text)
            for text in (
                b"",
                b"{",
                b'{"a": NaN}',
                b"{}",
                b'{"run": "a", "run": "b"}',
                b"\xff\xfe",
                b"7",
                DEEP,
            )
        ),
    ],
)
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(TFRecordError, match="not a valid snapshot"):
        from_parquet(data)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"nulls": [0, 0], "min": [1, 2], "max": [5, 2]}, [(0, 1, 5), (0, 2, 2)]),
        ({"min": [1, 2], "max": [5, 2]}, [(0, 1, 5), (0, 2, 2)]),
        ({"min": [1, 2]}, [(0, 1, 1), (0, 2, 2)]),
        ({"nulls": [0, 3], "min": [1, None]}, [(0, 1, 1), (3, None, None)]),
        ({"nulls": [2, 3]}, [(2, None, None), (3, None, None)]),
    ],
)
def test_fields_of_statistics_that_follow_from_others_are_left_out(
    columns: dict[str, list[Any]], expected: list[tuple[Any, ...]]
) -> None:
    schema = Schema.from_arrow(pa.schema({"n": pa.int64()}))
    files = [
        FileEntry(f"{at}", 9, 5, 0, statistics=(ColumnStatistics("n", low, high, nulls),))
        for at, (nulls, low, high) in enumerate(expected)
    ]
    snapshot = replace(SNAPSHOT, log=EntryLog(from_entries(files, schema, ())), schema=schema)
    data = to_parquet(snapshot)
    assert from_parquet(data) == snapshot
    table = pq.read_table(pa.BufferReader(data))
    struct = pa.StructArray.from_arrays([*map(pa.array, columns.values())], names=[*columns])
    given = pa.StructArray.from_arrays([struct], names=["n"])
    table = table.drop_columns("statistics").append_column("statistics", given)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert from_parquet(oracle.with_footer_checksum(bytes(sink.getvalue()))) == snapshot


def test_a_flipped_bit_in_a_value_is_noticed() -> None:
    """A changed bound would make filters skip files that hold rows."""
    text = b"a value that compression leaves as it is"
    data = to_parquet(a_partitioned_snapshot(pa.string(), [text.decode()]))
    at = data.index(text)
    flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with pytest.raises(TFRecordError, match="not a valid snapshot"):
        from_parquet(flipped)


def test_a_flipped_bit_in_the_footer_is_noticed() -> None:
    """PyArrow aborts the process for some damaged footers, and a changed bound would hide rows."""
    data = to_parquet(SNAPSHOT)
    for at in range(oracle.footer_start(data) - 4, len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        with pytest.raises(TFRecordError, match="not a valid snapshot"):
            from_parquet(flipped)
    with pytest.raises(TFRecordError, match="checksum of its footer"):
        from_parquet(data[-oracle.footer_start(data) :])


def test_a_snapshot_of_a_later_version_asks_for_an_upgrade() -> None:
    data = altered(lambda metadata, columns: metadata.update(format_version=2))
    with pytest.raises(TFRecordError, match=rf"^{PATH}: the snapshot has format version 2.*newer"):
        from_parquet(data)


pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = pa.table({"n": [1, 2, 3]})
PATHS = [b'["\\ud800"]', b'["_tfrecord"]', b'["%s"]' % (b"x" * 999)]
CONTENTS: dict[str, list[bytes | None]] = {
    "replaced.json": [b"\xff\xfe", b'["part-', b"[[]]", *PATHS],
    "kept.json": [DEEP, b"", b'["/etc/x"]', *PATHS],
    "exports.json": [None, DEEP, b"7", *PATHS],
    "snapshot": [b"", None],
}


def put(path: Path, content: bytes | None) -> None:
    """Put a file, or a directory if there is no content, instead of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.mkdir() if content is None else path.write_bytes(content)


def write(root: Path) -> None:
    with Writer(root) as writer:
        writer.write(ROWS)


OPERATIONS: dict[str, Callable[[Path], Any]] = {
    "read": lambda root: read_tfrecord(root).compute(),
    "read without the snapshot": lambda root: read_tfrecord(root, use_snapshot=False).compute(),
    "history": operations.history,
    "append": lambda root: to_tfrecord(ROWS, root, append=True),
    "Writer": write,
    "overwrite": lambda root: to_tfrecord(ROWS, root, overwrite=True),
    "compact": operations.compact,
    "delete": lambda root: dask_tfrecord.open_dataset(root).delete([("n", "==", 1)]),
    "restore": lambda root: dask_tfrecord.open_dataset(root).restore(1),
    "expire": lambda root: dask_tfrecord.open_dataset(root).expire(versions=1, grace="0s"),
    "cleanup": lambda root: open_dataset(root).cleanup(older_than="0s"),
    "index": lambda root: dask_tfrecord.open_dataset(root).add_snapshot(columnar="scalars"),
    "verify": operations.verify,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dataset") / "d"
    to_tfrecord(ROWS, root)
    to_tfrecord(ROWS, root, append=True)
    return root


@pytest.fixture
def dataset(written: Path, tmp_path: Path) -> Path:
    """A copy of a dataset of two versions."""
    return shutil.copytree(written, tmp_path / "d")


# A directory with the name of a snapshot cannot be removed.
@pytest.mark.filterwarnings("ignore:.*the data is written, but not all files")
@pytest.mark.parametrize(
    ("operation", "name", "content"),
    [
        (operation, name, contents[at % len(contents)])
        for name, contents in CONTENTS.items()
        for at, operation in enumerate(OPERATIONS)
    ],
    ids=lambda one: repr(one)[:15],
)
def test_a_garbled_file_is_ignored_or_named_with_advice(
    dataset: Path, operation: str, name: str, content: bytes | None
) -> None:
    data = {path.name: path.read_bytes() for path in dataset.glob("*.tfrecord")}
    metadata = dataset / "_tfrecord"
    paths = {"exports.json": metadata / name, "snapshot": metadata / "00000003.parquet"}
    path = paths.get(name, metadata / "staging" / Snapshot.open(dataset).run / name)
    put(path, content)
    try:
        OPERATIONS[operation](dataset)
    except TFRecordError as raised:
        error = raised
    else:
        return
    assert path.name in (error.path or "")
    assert error.advice or " takes use_snapshot=False" in str(error) or error.remedies
    assert data.items() <= {file.name: file.read_bytes() for file in dataset.glob("*.tfrecord")}.items()


@pytest.mark.parametrize("name", ["staging", "kept", "columns"])
def test_a_file_instead_of_a_directory_is_named_before_anything_is_written(dataset: Path, name: str) -> None:
    path = dataset / "_tfrecord" / name
    shutil.rmtree(path, ignore_errors=True)
    path.touch()
    for operation in OPERATIONS.keys() - {"read", "read without the snapshot", "history", "verify"}:
        with pytest.raises(TFRecordError, match=f"_tfrecord/{name}: a file has the name of a directory"):
            OPERATIONS[operation](dataset)
    assert len(read_tfrecord(dataset)) == 6
