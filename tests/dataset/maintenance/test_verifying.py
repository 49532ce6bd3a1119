"""`verify`: a row for each file with its damage, its drift, and its agreement with the snapshot.

Modules: dataset.maintenance.full_scan, dataset.read.sample.
"""

from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from damaged_files import damaged_files
from hypothesis import given

from dask_tfrecord import CorruptRecordError, read_tfrecord, to_tfrecord, verify
from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.dataset.maintenance import full_scan
from dask_tfrecord.dataset.read import sample as map_files
from dask_tfrecord.files import window
from dask_tfrecord.files.storage.store import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore::dask_tfrecord.CorruptRecordWarning"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(params=[500, 1 << 26])
def _tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read parts of files, or whole files."""
    monkeypatch.setattr(map_files, "TASK_BYTES", request.param)
    monkeypatch.setattr(map_files, "BLOCK_BYTES", 100)


def rows(count: int, **more: tuple[str, list[Any]]) -> list[dict[str, Any]]:
    return [{"n": ("int64", [n]), "name": ("bytes", [b"row %d" % n]), **more} for n in range(count)]


def by_name(report: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The rows of the report, keyed by file name; a null is None."""
    records = report.astype(object).where(report.notna(), None).to_dict("records")
    return {row["path"].rpartition("/")[2]: row for row in records}


@pytest.mark.usefixtures("_tasks")
def test_damage_is_counted_and_the_first_of_it_reported(tmp_path: Path) -> None:
    content = oracle.features_file(rows(60))
    starts = [0, *accumulate(len(payload) + 16 for payload in oracle.frames(content))]
    damaged = {
        "a whole": [],
        "b payload": [starts[20] + 14, starts[50] - 1],
        "c length": [starts[40]],
        "d both": [starts[30] + 9, starts[31] + 20, starts[55] + 15],
    }
    for name, places in damaged.items():
        changed = bytearray(content)
        for at in places:
            changed[at] ^= 0x10
        (tmp_path / name).write_bytes(changed)
    (tmp_path / "e cut").write_bytes(content[: starts[59] + 5])
    (tmp_path / "f empty").write_bytes(b"")
    found = by_name(verify(tmp_path))

    def size(*records: int) -> int:
        return sum(starts[record + 1] - starts[record] for record in records)

    names = ("records", "damaged_bytes", "offset")
    assert {name: tuple(row[key] for key in names) for name, row in found.items()} == {
        "a whole": (60, 0, None),
        "b payload": (58, size(20, 49), starts[20]),
        "c length": (59, size(40), starts[40]),
        "d both": (57, size(30, 31, 55), starts[30]),
        "e cut": (59, 5, starts[59]),
        "f empty": (0, 0, None),
    }
    assert [row["damaged"] for name, row in found.items() if name != "d both"] == [0, 2, 1, 1, 0]
    assert found["a whole"]["reason"] is None
    assert "checksum of the record data" in found["b payload"]["reason"]
    assert "length" in found["c length"]["reason"]
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert [row["bytes"] for row in found.values()] == sizes
    assert {(row["drift"], row["agrees"], row["differs"]) for row in found.values()} == {("", None, None)}


@given(damaged_files())
def test_it_tells_what_skipping_would_read_and_never_raises(data: bytes) -> None:
    Store.at("memory://verified").fs.pipe_file("/verified/file", data)
    with dask.config.set(scheduler="sync"):
        report = verify("memory://verified", record_type="bytes")
        read = read_tfrecord("memory://verified", record_type="bytes", on_corrupt="skip")
        assert report["records"].tolist() == [len(read.compute())]
    assert report["bytes"].tolist() == [len(data)]
    kept = sum(len(payload) + 16 for payload in read["record"].compute())
    if detect(data[:HEADER_BYTES]) is None:
        assert report["damaged_bytes"].tolist() == [len(data) - kept]


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_damaged_stream_is_reported_and_its_sizes_are_those_of_the_whole_file(
    compression: Any, tmp_path: Path
) -> None:
    snapshot = to_tfrecord(pa.table({"n": range(5000)}), tmp_path, compression=compression)
    [file] = tmp_path.glob("part-*")
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 0x55
    file.write_bytes(stored)
    [row] = by_name(verify(tmp_path)).values()
    assert row["damaged"] >= 1
    assert row["records"] < 5000
    assert (row["bytes"], row["agrees"]) == (snapshot.bytes, False)
    assert f"crc32c: {oracle.crc32c(bytes(stored)):,} instead of" in row["differs"]


@pytest.mark.usefixtures("_tasks")
def test_drift_from_the_inferred_schema_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is inferred from the first file only."""
    drifts: dict[str, tuple[list[Any], str]] = {
        "a": (rows(40), ""),
        "b kind": (
            [*rows(30), {"n": ("bytes", [b"x"])}],
            "'n' holds bytes in record 30, the column is int64",
        ),
        "c unseen": (rows(20, more=("int64", [1, 2])), "'more' (int64) is not in the schema"),
        "d list": ([*rows(20), {"n": ("int64", [1, 2, 3])}], "'n' holds up to 3 values, the column is int64"),
        "e text": (
            [*rows(20), {"name": ("bytes", [b"\xff"])}],
            "'name' is not all UTF-8, the column is string",
        ),
        "f lacks": ([{"n": ("int64", [5])}] * 20, ""),
    }
    for name, (records, _) in drifts.items():
        (tmp_path / name).write_bytes(oracle.features_file(records))
    take = full_scan.take_sample
    monkeypatch.setattr(
        full_scan, "take_sample", lambda store, files, **options: take(store, files[:1], **options)
    )
    found = by_name(verify(tmp_path))
    assert {name: row["drift"] for name, row in found.items()} == {
        n: drift for n, (_, drift) in drifts.items()
    }


def test_two_kinds_in_the_sample_are_drift_and_do_not_raise(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(oracle.features_file([{"n": ("int64", [1])}]))
    (tmp_path / "b").write_bytes(oracle.features_file([{"n": ("bytes", [b"1"])}]))
    found = by_name(verify(tmp_path))
    assert (found["a"]["drift"], bool(found["b"]["drift"])) == ("", True)


@pytest.mark.parametrize(
    ("first", "record_type"),
    [(b"no message", "infer"), (b"no message", "bytes"), (b"\x68\x01", "infer"), (b"", "infer")],
)
def test_it_takes_the_records_for_what_the_reader_takes_them(
    tmp_path: Path, first: bytes, record_type: Any
) -> None:
    (tmp_path / "a").write_bytes(oracle.frame(first) * 2)
    (tmp_path / "b").write_bytes(oracle.features_file(rows(3)))
    found = by_name(verify(tmp_path, record_type=record_type))
    damaged = {name for name, row in found.items() if row["damaged"]}
    count = 0
    with suppress(CorruptRecordError):
        count = len(read_tfrecord(tmp_path, record_type=record_type).compute())
    whole = sum(row["records"] for row in found.values())
    assert (damaged, whole) == ((set(), count) if count else ({"a"}, 3))


@pytest.mark.usefixtures("_tasks")
@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_a_dataset_agrees_with_its_snapshot_until_something_changes(compression: Any, tmp_path: Path) -> None:
    table = pa.table({"n": range(400), "key": list("abcd") * 100})
    to_tfrecord(table, tmp_path, partition_on="key", compression=compression)
    report = verify(tmp_path)
    assert report["agrees"].tolist() == [True] * 4
    assert report["differs"].tolist() == report["drift"].tolist() == [""] * 4
    assert report["records"].tolist() == [100] * 4
    a, b, c = (min((tmp_path / f"key={key}").glob("part-*")) for key in "abc")
    a.unlink()
    whole = oracle.features_file([{"n": ("int64", [n])} for n in range(7)])
    b.write_bytes(oracle.compress(whole, compression))
    foreign = c.with_name("foreign")
    foreign.write_bytes(c.read_bytes())
    found = verify(tmp_path).set_index("path")
    assert "missing" in found.loc[str(a), "reason"]
    assert not found.loc[str(a), "agrees"]
    assert found.loc[str(b), "records"] == 7
    assert "records: 7 instead of 100" in found.loc[str(b), "differs"]
    assert found.loc[str(c), "agrees"]
    assert "does not list" in found.loc[str(foreign), "differs"]
    assert len(found) == 5


def test_a_file_named_twice_is_reported_twice_and_messages_that_cannot_be_parsed_are_damage(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(oracle.features_file(rows(3)) + oracle.frame(b"\x0a\xff\xff"))
    report = verify([tmp_path / "file"] * 2)
    assert report[["records", "damaged", "damaged_bytes"]].to_numpy().tolist() == [[3, 1, 19]] * 2
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "nothing")


def test_memory_is_that_of_a_window(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(oracle.frame(b"x" * 1000) * 12_000)
    with patch.object(window, "_allocate", side_effect=window._allocate) as allocate:
        assert verify(tmp_path, record_type="bytes")["records"].tolist() == [12_000]
    assert 0 < max(call.args[0] for call in allocate.call_args_list) <= 1 << 22


def test_files_that_others_damaged_are_distinguished_from_whole_ones(data: Path) -> None:
    report = verify(data / "bad", record_type="bytes")
    assert len(report) > 100
    for path, records, damaged in zip(report["path"], report["records"], report["damaged"], strict=True):
        try:
            payloads = oracle.read_payloads(Path(path))
        except oracle.DamagedError:
            assert damaged, path
        else:
            assert (records, damaged) == (len(payloads), 0), path
