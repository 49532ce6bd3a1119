"""Path and offset columns, features without a column, and limits of reads.

Modules: files.record_file.
"""

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from memory import growth
from servers import web_server

from dask_tfrecord import (
    CorruptRecordError,
    CorruptRecordWarning,
    SchemaError,
    TFRecordError,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.files import file_writer

pytestmark = pytest.mark.usefixtures("one_thread")


def frames(first: int, count: int) -> list[bytes]:
    numbers = range(first, first + count)
    return [oracle.features_file([{"n": ("int64", [n]), "x": ("bytes", [bytes(n)])}]) for n in numbers]


@pytest.fixture(params=[None, "gzip"])
def two(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Seven and five records in two files."""
    folder = tmp_path / "two"
    folder.mkdir()
    for name, first, count in (("a", 0, 7), ("b", 7, 5)):
        content = b"".join(frames(first, count))
        (folder / name).write_bytes(oracle.compress(content, request.param))
    return folder


def starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:at]) for at in range(len(sizes))]


def origins(folder: Path) -> list[tuple[int, str, int]]:
    """For each record the number that it holds, its file and its offset."""
    found = []
    for name, first, count in (("a", 0, 7), ("b", 7, 5)):
        offsets = starts([len(frame) for frame in frames(first, count)])
        found += [(first + at, str(folder / name), offset) for at, offset in enumerate(offsets)]
    return found


# --- origin --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocksize", [None, "128 MiB"])
def test_each_record_has_its_file_and_its_offset(two: Path, blocksize: str | None) -> None:
    ddf = read_tfrecord(two, blocksize=blocksize, include_path_column=True, include_offset_column=True)
    assert sorted(ddf.columns[:2]) == ["n", "x"]
    assert list(ddf.columns[2:]) == ["path", "offset"]
    frame = ddf.compute()
    assert list(zip(frame["n"], frame["path"], frame["offset"], strict=True)) == origins(two)
    assert isinstance(ddf.dtypes["path"], pd.CategoricalDtype)
    assert ddf.dtypes["offset"] == frame.dtypes["offset"] == pd.ArrowDtype(pa.int64())
    for partition in ddf.partitions:
        assert set(partition.compute()["path"].cat.categories) <= {str(two / "a"), str(two / "b")}


def test_the_columns_may_have_other_names(two: Path) -> None:
    ddf = read_tfrecord(two, include_path_column="file", include_offset_column="at")
    frame = ddf.compute()
    assert list(zip(frame["n"], frame["file"], frame["at"], strict=True)) == origins(two)


@pytest.mark.parametrize("names", [["path"], ["offset"], ["offset", "path"], ["path", "n"], ["n"], []])
def test_include_path_column_and_include_offset_column_read_only_what_they_name(
    two: Path, names: list[str]
) -> None:
    ddf = read_tfrecord(two, include_path_column=True, include_offset_column=True)
    expected = pd.DataFrame(origins(two), columns=["n", "path", "offset"])
    chosen = ddf[names].compute().reset_index(drop=True)
    assert list(chosen.columns) == names
    assert len(chosen) == 12
    for name in names:
        assert chosen[name].tolist() == expected[name].tolist()
    assert read_tfrecord(two, columns=["n"], include_path_column=True).compute().columns.tolist() == ["n"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"include_path_column": "n"}, "n"),
        ({"include_offset_column": "x"}, "x"),
        ({"include_path_column": "z", "include_offset_column": "z"}, "z"),
    ],
)
def test_names_that_there_are_already_are_refused(two: Path, options: dict[str, Any], name: str) -> None:
    with pytest.raises(SchemaError, match=f"feature '{name}'.*include_path_column="):
        read_tfrecord(two, **options)


def test_names_of_partition_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "path=1").mkdir()
    (tmp_path / "path=1" / "a").write_bytes(frames(0, 1)[0])
    with pytest.raises(SchemaError, match="feature 'path'"):
        read_tfrecord(tmp_path, include_path_column=True)


@pytest.mark.parametrize("wrong", [3, "", None])
def test_neither_a_name_nor_a_choice_is_refused(two: Path, wrong: Any) -> None:
    with pytest.raises(TFRecordError, match=r"include_path_column=.*neither"):
        read_tfrecord(two, include_path_column=wrong)


@pytest.mark.filterwarnings("ignore:.*TensorFlow")
@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_offsets_of_splits_are_those_in_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 5_000)
    ddf = dd.from_pandas(pd.DataFrame({"n": range(3_000)}), npartitions=1)
    to_tfrecord(ddf, tmp_path / "own", compression=compression)
    options = {"include_path_column": True, "include_offset_column": True}
    whole = read_tfrecord(tmp_path / "own", blocksize=None, **options).compute()
    content = oracle.features_file([{"n": ("int64", [n])} for n in range(3_000)])
    sizes = [len(oracle.features_file([{"n": ("int64", [n])}])) for n in range(3_000)]
    assert len(content) == sum(sizes)
    assert whole["offset"].tolist() == starts(sizes)
    ddf = read_tfrecord(tmp_path / "own", blocksize=4_000, **options)
    assert ddf.npartitions > 1
    pd.testing.assert_frame_equal(ddf.compute().reset_index(drop=True), whole.reset_index(drop=True))


def test_offsets_behind_damage_are_right(tmp_path: Path) -> None:
    parts = [b"garbage", *frames(1, 2), b"more garbage" * 9, *frames(3, 2)]
    damaged = bytearray(parts[2])
    damaged[-1] ^= 1
    parts[2] = bytes(damaged)
    (tmp_path / "a").write_bytes(b"".join(parts))
    ddf = read_tfrecord(
        tmp_path / "a",
        compression=None,
        on_corrupt="skip",
        include_offset_column=True,
        schema={"n": pa.int64()},
        record_type="example",
    )
    with pytest.warns(CorruptRecordWarning):
        found = ddf.compute()
    offsets = starts([len(part) for part in parts])
    expected = [(1, offsets[1]), (3, offsets[4]), (4, offsets[5])]
    assert list(zip(found["n"], found["offset"], strict=True)) == expected


def test_a_path_shows_no_secret(two: Path) -> None:
    with web_server(two) as server:
        url = f"{server.url}/a?Signature=hunter2"
        found = read_tfrecord(url, include_path_column=True)["path"].compute()
    assert set(found) == {f"{server.url}/a"}


# --- features nobody expected ----------------------------------------------------------------------------


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """Many files; only the sixth has the features y and z."""
    folder = tmp_path / "extra"
    folder.mkdir()
    for number in range(20):
        record: dict[str, Any] = {"n": ("int64", [number])}
        if number == 6:
            record |= {
                "y": ("float", [oracle.float_bits(0.5), oracle.float_bits(1.5)]),
                "z": ("bytes", [b"abc"]),
            }
        (folder / f"{number:02d}").write_bytes(oracle.features_file([{"n": ("int64", [-1])}, record]))
    sampled = read_tfrecord(folder, extra="ignore")
    assert list(sampled.columns) == ["n"]
    return folder


def test_a_feature_that_is_no_column_raises_with_the_schema_that_reads_it(extra: Path) -> None:
    with pytest.raises(SchemaError, match=r"06, record 1 \(byte \d+\): feature '[yz]'.*schema=") as caught:
        read_tfrecord(extra).compute()
    assert 'extra="ignore"' in str(caught.value)
    given = {"y": pa.list_(pa.float32()), "z": pa.string()}
    assert read_tfrecord(extra, schema=given).compute()["y"].dropna().tolist() == [[0.5, 1.5]]
    with pytest.raises(SchemaError, match=r"feature 'z'.*\{\"z\": pa\.(string|binary)\(\)\}"):
        read_tfrecord(extra, schema={"y": pa.list_(pa.float32())}).compute()


def test_features_may_be_ignored(extra: Path) -> None:
    assert len(read_tfrecord(extra, extra="ignore").compute()) == 40
    assert len(read_tfrecord(extra, schema=pa.schema({"n": pa.int64()})).compute()) == 40


def test_a_projection_does_not_look_at_what_it_does_not_read(extra: Path) -> None:
    """A read of one column succeeds even if a read of all columns would raise."""
    ddf = read_tfrecord(extra, schema={"m": pa.int64()})
    assert len(ddf[["n"]].compute()) == 40
    with pytest.raises(SchemaError, match=r"feature '[yz]'"):
        ddf.compute()


def test_an_unexpected_feature_is_no_damage(extra: Path) -> None:
    with pytest.raises(SchemaError, match=r"feature '[yz]'"):
        read_tfrecord(extra, on_corrupt="skip").compute()


def test_origin_and_partition_columns_are_no_features(extra: Path, tmp_path: Path) -> None:
    options = {"include_path_column": True, "include_offset_column": True}
    assert len(read_tfrecord(extra, extra="ignore", **options).compute()) == 40
    with pytest.raises(SchemaError, match=r"feature '[yz]'"):
        read_tfrecord(extra, **options).compute()


# --- limits ----------------------------------------------------------------------------------------------


def read(path: Path, **options: Any) -> pd.DataFrame:
    schema = pa.schema({"n": pa.int64()})
    return read_tfrecord(path, schema=schema, record_type="example", **options).compute()


def test_verify_crc_off_leaves_checksums_of_payloads_unverified(tmp_path: Path) -> None:
    """The checksums of lengths are always verified."""
    good, other = frames(100, 2)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    (tmp_path / "a").write_bytes(damaged + other)
    with pytest.raises(CorruptRecordError, match="checksum of the record data"):
        read(tmp_path / "a")
    assert read(tmp_path / "a", verify_crc=False)["n"].tolist() == [100, 101]
    damaged[8] ^= 1
    (tmp_path / "a").write_bytes(damaged + other)
    with pytest.raises(CorruptRecordError, match="checksum of the record length"):
        read(tmp_path / "a", verify_crc=False)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_record_longer_than_max_record_bytes_raises(tmp_path: Path, compression: str | None) -> None:
    short, long = frames(1, 1)[0], frames(5_000, 1)[0]
    (tmp_path / "a").write_bytes(oracle.compress(short + long + short, compression))
    size = len(long) - 16
    assert len(read(tmp_path / "a", max_record_bytes=size)) == 3
    assert len(read(tmp_path / "a", max_record_bytes="1 MB")) == 3
    with pytest.raises(CorruptRecordError, match="longer than max_record_bytes") as caught:
        read(tmp_path / "a", max_record_bytes=size - 1)
    assert (caught.value.record, caught.value.offset) == (1, len(short))
    with pytest.warns(CorruptRecordWarning, match=f"{len(long):,} bytes"):
        found = read(tmp_path / "a", max_record_bytes=size - 1, on_corrupt="skip")
    assert len(found) == 2


@pytest.mark.parametrize("wrong", [0, -1, 2**31, "3 GiB", "much", None, True])
def test_limits_that_mean_nothing_are_refused(tmp_path: Path, wrong: Any) -> None:
    (tmp_path / "a").write_bytes(frames(0, 1)[0])
    with pytest.raises(TFRecordError, match="max_record_bytes="):
        read(tmp_path / "a", max_record_bytes=wrong)


MEASURE = """
import sys
import pyarrow as pa
from memory import peak_kib
from dask_tfrecord import CorruptRecordError, read_tfrecord

def read(path):
    schema = pa.schema({"n": pa.int64()})
    options = {"schema": schema, "record_type": "example", "max_record_bytes": "1 MiB"}
    try:
        return len(read_tfrecord(path, **options).compute(scheduler="sync"))
    except CorruptRecordError as error:
        return "longer than max_record_bytes" in str(error)

assert read("good") == 1
normal = peak_kib()
assert read("bomb") is True
print(peak_kib() - normal)
"""


def test_a_decompression_bomb_takes_little_memory(tmp_path: Path) -> None:
    """A compressed file of a megabyte holds a record of a gigabyte of zeros."""
    size = 2**30
    length = struct.pack("<Q", size)
    with gzip.open(tmp_path / "bomb", "wb", compresslevel=1) as file:
        file.write(length + struct.pack("<I", oracle.masked_crc(length)))
        for _ in range(64):
            file.write(bytes(size // 64))
    assert os.path.getsize(tmp_path / "bomb") < size // 100
    (tmp_path / "good").write_bytes(gzip.compress(frames(1, 1)[0]))
    assert growth(MEASURE, tmp_path) < 16 * 1024
