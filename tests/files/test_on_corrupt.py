"""The keyword `on_corrupt=` of `read_tfrecord`: warnings, limits and the quarantine.

Modules: files.damage, files.record_file.
"""

import asyncio
import gzip
import random
from functools import partial
from pathlib import Path
from typing import Any

import dask
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from damaged_files import framed_number
from distributed import Client
from memory import growth

from dask_tfrecord import (
    CorruptRecordError,
    CorruptRecordWarning,
    FileChangedError,
    SchemaError,
    TFRecordError,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.files import record_file

TYPES = pa.schema({"n": pa.int64()})

pytestmark = pytest.mark.usefixtures("one_thread")


def test_wrong_values_and_changed_files_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(oracle.features_file([{"n": ("int64", [1])}, {"n": ("int64", [1, 2])}]))
    ddf = read(path, on_corrupt="skip")
    with pytest.raises(SchemaError, match="feature 'n'"):
        ddf.compute()
    path.write_bytes(framed_number(1))
    with pytest.raises(FileChangedError, match=r"data\.tfrecord.*when it was listed"):
        ddf.compute()


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two files of five records; two records of the second file are damaged."""
    folder = tmp_path / "two"
    folder.mkdir()
    good = b"".join(map(framed_number, range(5)))
    bad = bytearray(b"".join(map(framed_number, range(5, 10))))
    bad[len(framed_number(5)) + 20] ^= 1
    bad[len(bad) - 1] ^= 1
    (folder / "0.tfrecord").write_bytes(good)
    (folder / "1.tfrecord").write_bytes(bad)
    return folder


def read(path: Path, **options: Any) -> Any:
    return read_tfrecord(path, **{"schema": TYPES, "record_type": "example", "blocksize": None, **options})


def test_damage_that_opening_finds_names_verify(two: Path) -> None:
    for attempt in (lambda: open_dataset(two).schema, lambda: read_tfrecord(two)):
        with pytest.raises(CorruptRecordError) as caught:
            attempt()
        assert caught.value.path == f"{two}/1.tfrecord"
        assert f"call dask_tfrecord.open_dataset({str(two)!r}).verify() to report all damage" in str(
            caught.value
        )
    assert open_dataset(two).verify()["damaged"].tolist() == [0, 2]


def test_a_warning_for_each_file_tells_how_much_was_lost_and_where(two: Path) -> None:
    with pytest.warns(CorruptRecordWarning) as caught:
        found = read(two, on_corrupt="skip")["n"].compute().tolist()
    assert found == [0, 1, 2, 3, 4, 5, 7, 8]
    first, end = len(framed_number(5)), len(framed_number(5)) + len(framed_number(6))
    last = sum(len(framed_number(n)) for n in range(5, 9))
    [message] = [str(warning.message) for warning in caught]
    lost = end - first + len(framed_number(9))
    assert message == (
        f"{two}/1.tfrecord: skipped 2 damaged records or ranges, {lost:,} bytes: "
        f"bytes {first} to {end}, {last} to {last + len(framed_number(9))}"
    )


def test_a_warning_stays_short_where_much_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(b"".join(framed_number(n) + b"?" for n in range(1000)))
    with pytest.warns(CorruptRecordWarning, match="skipped 1,000 .*, 1,000 bytes: .* and 990 more") as caught:
        assert len(read(path, on_corrupt="skip").compute()) == 1000
    assert len(str(caught[0].message)) < 500


@pytest.mark.filterwarnings("ignore::dask_tfrecord.CorruptRecordWarning")
@pytest.mark.parametrize("names", [[], ["n"], ["path"], ["offset"], ["n", "offset", "path"]])
def test_the_rows_are_the_same_whatever_columns_are_read(two: Path, names: list[str]) -> None:
    """Records of bytes need be no messages."""
    options = {"include_path_column": True, "read_options": {"include_offset_column": True}}
    ddf = read(two, on_corrupt="skip", **options)
    assert len(ddf[names].compute()) == len(ddf) == 8
    (two / "0.tfrecord").write_bytes(oracle.records_file([b"\xff", b"", b"abc"]))
    for on_corrupt, rows in (("raise", 3), ("skip", 6)):
        path = two if on_corrupt == "skip" else two / "0.tfrecord"
        ddf = read_tfrecord(path, record_type="bytes", on_corrupt=on_corrupt, **options)
        assert len(ddf[["record" if name == "n" else name for name in names]].compute()) == len(ddf) == rows


def test_a_snapshots_counts_are_not_believed_where_damage_is_passed_over(tmp_path: Path) -> None:
    to_tfrecord(dask.dataframe.from_pandas(pd.DataFrame({"n": range(10)}), npartitions=2), tmp_path / "own")
    part = sorted((tmp_path / "own").glob("part-*"))[1]
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    ddf = read_tfrecord(tmp_path / "own", on_corrupt="skip")
    with pytest.warns(CorruptRecordWarning):
        assert len(ddf) == 9


@pytest.mark.parametrize(
    ("most", "allowed"), [(2, True), (1, False), (0, False), (0.41, True), (0.39, False)]
)
def test_more_damage_than_max_corrupt_raises(two: Path, most: float, allowed: bool) -> None:
    """The limit applies to a partition, here of five records."""
    ddf = read(two, on_corrupt="skip", read_options={"max_corrupt": most})
    if allowed:
        with pytest.warns(CorruptRecordWarning):
            assert len(ddf.compute()) == 8
    else:
        with pytest.raises(
            CorruptRecordError, match=r"1\.tfrecord.* are damaged; pass read_options=.\"max_corrupt\": None"
        ):
            ddf.compute()


def test_quarantine_path_holds_the_bytes_and_a_retry_replaces_them(two: Path, tmp_path: Path) -> None:
    """Without damage, and after a read that fails, there is no log."""
    folder = tmp_path / "log"

    def logged(path: Path, **options: Any) -> Any:
        return read(path, on_corrupt="quarantine", read_options={"quarantine_path": folder, **options})

    assert len(logged(two / "0.tfrecord").compute()) == 5
    assert not folder.exists()
    with pytest.raises(CorruptRecordError):
        logged(two, max_corrupt=1).compute()
    assert not [*folder.glob("*")]
    for _ in range(2):
        with pytest.warns(CorruptRecordWarning):
            logged(two).compute()
    log = pd.read_parquet(folder)
    content = (two / "1.tfrecord").read_bytes()
    spans = [(offset, offset + length) for offset, length in zip(log["offset"], log["length"], strict=True)]
    assert [content[start:end] for start, end in spans] == log["bytes"].tolist()
    assert log["reason"].tolist() == ["checksum of the record data does not match"] * 2
    assert log["file"].tolist() == [str(two / "1.tfrecord")] * 2
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_corrupt": "ignore"}, "unknown on_corrupt 'ignore'.*'skip'"),
        ({"on_corrupt": "quarantine"}, 'pass read_options=."quarantine_path"'),
        ({"read_options": {"quarantine_path": "/tmp/x"}}, 'pass on_corrupt="quarantine"'),
        (
            {"on_corrupt": "quarantine", "read_options": {"quarantine_path": Path()}},
            "inside the dataset that is read.*_quarantine",
        ),
        (
            {"on_corrupt": "quarantine", "read_options": {"quarantine_path": Path("log")}},
            "inside the dataset that is read",
        ),
        ({"read_options": {"max_corrupt": 3}}, 'pass on_corrupt="skip"'),
        ({"on_corrupt": "skip", "read_options": {"max_corrupt": -1}}, "max_corrupt=-1 is not a valid limit"),
        (
            {"on_corrupt": "skip", "read_options": {"max_corrupt": 1.5}},
            "max_corrupt=1.5 is not a valid limit",
        ),
        (
            {"on_corrupt": "skip", "read_options": {"max_corrupt": True}},
            "max_corrupt=True is not a valid limit",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(two: Path, options: dict[str, Any], message: str) -> None:
    """Such as a quarantine_path= among the files that are read."""
    if isinstance(name := options.get("read_options", {}).get("quarantine_path"), Path):
        options = {**options, "read_options": {"quarantine_path": two / name}}
    with pytest.raises(TFRecordError, match=message):
        read(two, **options)
    read(two, on_corrupt="quarantine", read_options={"quarantine_path": two / "_quarantine"})


def test_warnings_reach_the_client_of_a_cluster(two: Path, client: Client) -> None:
    with pytest.warns(CorruptRecordWarning, match=r"1\.tfrecord: skipped 2 damaged"):
        client.sync(_compute, client, read(two, on_corrupt="skip")["n"].sum())


async def _compute(client: Client, lazy: Any) -> None:
    """Wait for the result, and for the events that were sent before it."""
    assert await client.compute(lazy) == 30
    await asyncio.sleep(0.5)


MEASURE = """
import sys, warnings
from memory import peak_kib
import pyarrow as pa
from dask_tfrecord import read_tfrecord

record_type, keeps = sys.argv[1:3]
warnings.simplefilter("ignore")
def read(path):
    keep = {"on_corrupt": "quarantine", "read_options": {"quarantine_path": "log"}}
    options = keep if keeps else {"on_corrupt": "skip"}
    schema = pa.schema({"record": pa.binary()} if record_type == "bytes" else {"n": pa.int64()})
    ddf = read_tfrecord(path, schema=schema, record_type=record_type, blocksize=None, **options)
    return len(ddf.compute(scheduler="sync"))

few = read("few")
normal = peak_kib()
assert read("many") == few
print(peak_kib() - normal)
"""


@pytest.mark.parametrize("values", [[1000], [1, 2]], ids=["too large", "two values"])
@pytest.mark.parametrize(("window", "blocksize"), [(100, None), (1 << 22, 400)])
def test_an_error_after_skipped_damage_names_its_record(
    tmp_path: Path, values: list[int], window: int, blocksize: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each damaged range counts as one record."""
    monkeypatch.setattr(record_file, "WINDOW_BYTES", window)
    wrong = oracle.features_file([{"n": ("int64", values)}])
    good, flipped = framed_number(1), framed_number(5)[:-1] + b"?"
    frames = [good, b"range", *[good, flipped] * 10, good, b"range" * 60, flipped, good, flipped, wrong, good]
    (tmp_path / "data").write_bytes(b"".join(frames))
    record = frames.index(wrong)
    narrow = pa.schema({"n": pa.int8()})
    ddf = read(tmp_path / "data", schema=narrow, blocksize=blocksize, on_corrupt="skip")
    with pytest.raises(SchemaError, match="feature 'n'") as caught:
        ddf.compute()
    assert caught.value.record == record
    if len(values) == 2:
        assert caught.value.offset == len(b"".join(frames[:record]))


@pytest.mark.parametrize(("compression", "quarantine"), [(None, ""), (None, "yes"), ("gzip", "yes")], ids=str)
def test_a_huge_damaged_range_takes_little_memory(
    tmp_path: Path, compression: str | None, quarantine: str
) -> None:
    block = random.Random(2).randbytes(1_000_000)
    for name, blocks in {"few": 10, "many": 150}.items():
        write = partial(gzip.open, compresslevel=0) if compression else open
        with write(tmp_path / name, "wb") as file:
            file.writelines([framed_number(1), *[block] * blocks, framed_number(2)])
    assert growth(MEASURE, tmp_path, "example", quarantine) < 32 * 1024


@pytest.mark.parametrize("record_type", ["example", "sequence_example", "bytes"])
def test_many_damaged_records_take_little_memory(tmp_path: Path, record_type: str) -> None:
    """No batch ends at damage, and nothing is kept for each damaged record."""
    good, bad = framed_number(1), framed_number(1)[:-1] + b"?"
    for name, damaged in {"few": 1, "many": 100_000}.items():
        frames = (good + bad) * damaged + good * (300_000 - damaged)
        (tmp_path / name).write_bytes(frames)
    assert growth(MEASURE, tmp_path, record_type, "") < 32 * 1024


@pytest.mark.parametrize(
    ("record", "at", "limit", "advice"),
    [
        (0, 0, "1 MiB", "check that it is a TFRecord file"),
        (0, 12, "1 MiB", 'on_corrupt="skip"'),
        (1, 0, "1 MiB", 'on_corrupt="skip"'),
        (1, 12, "1 MiB", 'on_corrupt="skip"'),
        (1, 0, 5, 'read_options={"max_record_bytes": '),
    ],
)
def test_damage_comes_with_the_keyword_that_mends_it(
    tmp_path: Path, record: int, at: int, limit: Any, advice: str
) -> None:
    one = framed_number(1)
    content = bytearray(2 * one)
    content[record * len(one) + at] ^= limit != 5
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CorruptRecordError) as caught:
        read(tmp_path, read_options={"max_record_bytes": limit}).compute()
    assert advice in str(caught.value)
