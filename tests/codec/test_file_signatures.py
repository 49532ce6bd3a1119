"""Files of other formats in a dataset: the error names the file and its format.

Modules: codec.other_formats.
"""

import bz2
import contextlib
import gzip
import io
import json
import sqlite3
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from dask_tfrecord import CorruptRecordError, CorruptRecordWarning, open_dataset, read_tfrecord
from dask_tfrecord.codec.other_formats import LOOK_BYTES, looks_like

TABLE = pa.table({"a": [1, 2], "b": ["x", "y"]})
CSV = b'"a","b"\n1,"x"\n2,"y"\n'
GOOD = oracle.features_file([{"a": ("int64", [1])}] * 3)


pytestmark = pytest.mark.usefixtures("one_thread")


def _content(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def _sqlite(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("a"))


OTHERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "parquet": ("a Parquet file", lambda path: pq.write_table(TABLE, path)),
    "feather": ("an Arrow IPC or Feather file", lambda path: pyarrow.feather.write_feather(TABLE, path)),
    # The first bytes from the specifications of the formats
    "arrow stream": (
        "an Arrow IPC stream",
        _content(b"\xff\xff\xff\xff\xa8\0\0\0\x10\0\0\0\0\0\x0a\0" + bytes(99)),
    ),
    "zip": ("a zip archive", _content(b"PK\x03\x04" + bytes(99))),
    "csv": ("text such as CSV", lambda path: pyarrow.csv.write_csv(TABLE, path)),
    "csv in gzip": ("text such as CSV, compressed with gzip", _content(gzip.compress(CSV))),
    "csv in zlib": ("text such as CSV, compressed with zlib", _content(zlib.compress(CSV))),
    "csv in bz2": ("text such as CSV, compressed with bz2", _content(bz2.compress(CSV))),
    "json": ("JSON", _content(json.dumps({"a": [1]}, indent=2).encode())),
    "json lines": ("JSON", lambda path: pd.DataFrame({"a": [1]}).to_json(path, orient="records", lines=True)),
    "json in gzip": ("JSON, compressed with gzip", _content(gzip.compress(b"[1, 2]"))),
    "text": ("text", _content("zażółć gęślą jaźń\n".encode() * 99)),
    "text that begins like zlib": ("text", _content(b"x^2 is a square\n")),
    "text with a mark": ("text such as CSV", _content("a;b\n1;2\n".encode("utf-8-sig"))),
    "utf-16": ("text in UTF-16", _content("a,b\n".encode("utf-16"))),
    "html": ("an HTML page", _content(b"<!DOCTYPE html><html><body>404</body></html>")),
    "xml": ("XML", _content(b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>')),
    "zeros": ("zeros", _content(bytes(4096))),
    "hdf5": ("an HDF5 file", _content(b"\x89HDF\r\n\x1a\n" + bytes(99))),
    "avro": ("an Avro file", _content(b"Obj\x01\x04\x16avro.schema" + bytes(99))),
    "orc": ("an ORC file", lambda path: pyarrow.orc.write_table(TABLE, path)),
    "npy": ("a NumPy array", lambda path: path.write_bytes(_saved(np.save, np.arange(3)))),
    "npz": ("a zip archive", lambda path: path.write_bytes(_saved(np.savez, a=np.arange(3)))),
    "pickle": ("a pickle", lambda path: pd.DataFrame({"a": [1]}).to_pickle(path)),
    "sqlite": ("an SQLite database", lambda path: _sqlite(path)),
    "tar": ("a tar archive", lambda path: _tar(path)),
    "sequence file": (
        "a SequenceFile of Hadoop",
        _content(b"SEQ\x06\x19org.apache.hadoop.io.Text" + bytes(99)),
    ),
    # The first bytes of a file that array_record 0.8.3 wrote
    "array record": (
        "an ArrayRecord or Riegeli file",
        _content(bytes.fromhex("83af70d10d884a3f00000000000000004000000000000000") + bytes(range(1, 99))),
    ),
    "lfs": (
        "a Git LFS pointer",
        _content(b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4371177\n"),
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("where", ["alone", "among others", "whole schema"])
def test_another_format_is_named(tmp_path: Path, name: str, where: str) -> None:
    looks, make = OTHERS[name]
    strange = tmp_path / "06"
    make(strange)
    for number in range(20) if where == "among others" else ():
        if number != 6:
            (tmp_path / f"{number:02d}").write_bytes(GOOD)
    options = {"schema": pa.schema({"a": pa.int64()}), "record_type": "example"}
    with pytest.raises(CorruptRecordError) as caught:
        read_tfrecord(tmp_path, **(options if where == "whole schema" else {})).compute()
    error = caught.value
    assert (error.path, error.record, error.offset) == (str(strange), 0, 0)
    assert f"not a TFRecord file: it looks like {looks}" in str(error)
    assert error.advice is not None


@pytest.mark.parametrize(("content", "looks"), [(b"a,b\n1,2\n", "text such as CSV"), (bytes(4096), "zeros")])
def test_another_format_is_named_where_damage_does_not_raise(
    tmp_path: Path, content: bytes, looks: str
) -> None:
    (tmp_path / "a").write_bytes(GOOD)
    (tmp_path / "b").write_bytes(content)
    (tmp_path / "c").write_bytes(gzip.compress(content))
    expected = f"not a TFRecord file: it looks like {looks}"
    reasons = open_dataset(tmp_path).verify().set_index("path")["reason"]
    assert reasons[f"{tmp_path}/b"].startswith(expected)
    assert reasons[f"{tmp_path}/c"].startswith(expected)
    assert reasons[f"{tmp_path}/c"].endswith(", compressed with gzip")
    kept = tmp_path / "_kept"
    ddf = read_tfrecord(
        tmp_path,
        schema=pa.schema({"a": pa.int64()}),
        on_corrupt="quarantine",
        read_options={"quarantine_path": kept},
    )
    with pytest.warns(CorruptRecordWarning):
        assert len(ddf.compute()) == len(read_tfrecord(tmp_path / "a").compute())
    assert set(pq.read_table(kept)["reason"].to_pylist()) == set(reasons.dropna())


def test_a_format_is_guessed_only_from_what_shows_it(data: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptRecordError, match="a file that Hadoop compressed with lz4 or Snappy"):
        read_tfrecord(data / "spark" / "example_lz4").compute()
    for content in (np.random.default_rng(0).bytes(999), b"ORC!" + bytes(99)):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(CorruptRecordError, match="check that it is a TFRecord file"):
            read_tfrecord(tmp_path)


def test_a_tfrecord_file_with_a_damaged_start_is_not_taken_for_another(tmp_path: Path) -> None:
    for flipped in range(12):
        for bit in range(8):
            content = bytearray(GOOD)
            content[flipped] ^= 1 << bit
            (tmp_path / "a").write_bytes(content)
            with pytest.raises(CorruptRecordError, match=r"checksum|record's length is"):
                read_tfrecord(tmp_path, schema=pa.schema({"a": pa.int64()}), record_type="example").compute()


@pytest.mark.parametrize("payload", [b"{}", b"PAR1", b"a,b", b"<html>"])
def test_records_that_hold_other_formats_are_records(tmp_path: Path, payload: bytes) -> None:
    (tmp_path / "a").write_bytes(oracle.frame(payload))
    assert read_tfrecord(tmp_path, record_type="bytes")["record"].compute().tolist() == [payload]
    (tmp_path / "a").write_bytes(oracle.frame(payload)[:-1])
    with pytest.raises(CorruptRecordError) as caught:
        read_tfrecord(tmp_path, record_type="bytes").compute()
    assert "looks like" not in str(caught.value)


def test_text_cut_inside_a_character_is_text() -> None:
    for cut in range(1, LOOK_BYTES, 7):
        found = looks_like(("ż🦉" * LOOK_BYTES).encode()[:cut])
        assert (found and found.name) == ("text" if cut > 1 else None), cut


ADVICE = {
    "parquet": "dask.dataframe.read_parquet",
    "csv": "dask.dataframe.read_csv",
    "avro": "dask.bag.read_avro",
    "npz": "numpy.load",
    "sequence file": "spark.sparkContext.sequenceFile",
    "array record": "ArrayRecordDataSource",
    "lfs": "run `git lfs pull` in its repository",
}


@pytest.mark.parametrize("name", ADVICE)
def test_the_error_names_what_reads_the_format(tmp_path: Path, name: str) -> None:
    OTHERS[name][1](tmp_path / "train.tfrecord")
    with pytest.raises(CorruptRecordError) as caught:
        read_tfrecord(tmp_path)
    assert ADVICE[name] in (caught.value.advice or "")


def test_what_the_advice_names_reads_the_file(tmp_path: Path) -> None:
    readers: dict[str, Callable[[Path], Any]] = {
        "parquet": dd.read_parquet,
        "feather": pyarrow.feather.read_table,
        "orc": dd.read_orc,
        "npy": np.load,
        "npz": np.load,
        "pickle": pd.read_pickle,
        "csv": dd.read_csv,
    }
    for name, reader in readers.items():
        OTHERS[name][1](tmp_path / name)
        assert len(reader(tmp_path / name)) > 0
        with pytest.raises(CorruptRecordError) as caught:
            read_tfrecord(tmp_path / name)
        assert reader.__name__ in (caught.value.advice or "")
