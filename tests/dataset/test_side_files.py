"""Files beside the data: what is no TFRecord is left out by every reader with a warning, all else raises.

Modules: dataset.side_files.
"""

import bz2
import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from other_writers import fill

from dask_tfrecord import (
    CorruptRecordError,
    DestinationError,
    TFRecordError,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.errors import _shown
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord_launcher import main

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = oracle.features_file([{"n": ("int64", [1])}])

ARRAY_RECORD = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9") + bytes(99)

SIDE: dict[str, bytes] = {
    "to_tfrecord.py": b"import sys\n",
    "look.ipynb": b'{"cells": []}',
    "a.tfrecord.md5": b"d41d8cd98f00b204e9800998ecf8427e\n",
    "SHA256SUMS": b"e3b0c44298fc1c14 a.tfrecord\n",
    "BUILD": b"licenses\n",
    "model.npz": b"PK\x03\x04" + bytes(50),
    "model.pb": b"\x08\x01\x12\x03abc",
    "model.ckpt-1.data-00000-of-00001": bytes(range(200, 256)),
    "model.h5": b"\x89HDF\r\n\x1a\n" + bytes(99),
    "vocab.dict": b"\x80\x04\x95" + bytes(20),
    "data.parquet": b"PAR1" + bytes(50),
    "labels.txt": b"cat\ndog\n",
    "README": b"Data\n",
    "labels.csv": b"a,b\n1,2\n",
    "info.json": b'{"a": 1}',
    "zz/meta.JSON": b"[1]",
    "a.tfrecord.idx": b"0 30\n30 30\n",
    "empty.txt": b"",
    "deep/cat.png": b"\x89PNG\r\n\x1a\n" + bytes(30),
    "notes.txt.gz": gzip.compress(b"notes", mtime=0),
}

COMMANDS = {
    "count": "9\n",
    "head": "n",
    "schema": "n: int64",
    "describe": "9",
    "verify": "9 files are intact",
}


def run(command: str, path: Path) -> str:
    result = CliRunner().invoke(main, [command, str(path)])
    assert result.exit_code == 0, result.output
    return result.output


def names_in(warned: Any) -> list[str]:
    """Return the names in the warnings about files that are left out, of which each text comes once."""
    texts = {str(one.message) for one in warned if "left out what is not a TFRecord file" in str(one.message)}
    assert len(texts) <= 1
    return [name for text in texts for name in text.partition("file: ")[2].partition(";")[0].split(", ")]


@pytest.mark.filterwarnings("ignore")
def test_every_reader_leaves_out_what_is_no_tfrecord(tmp_path: Path) -> None:
    fill(tmp_path, {f"x-{n}.tfrecord": ONE for n in range(9)} | SIDE)
    uses: dict[str, Callable[[], Any]] = {
        "read": lambda: len(read_tfrecord(tmp_path)),
        "compute": lambda: len(read_tfrecord(tmp_path).compute()),
        "glob": lambda: len(read_tfrecord(f"{tmp_path}/*")),
        "list": lambda: len(read_tfrecord([tmp_path])),
        "skip": lambda: len(read_tfrecord(tmp_path, on_corrupt="skip")),
        "verify": lambda: len(open_dataset(tmp_path).verify()),
        "table": lambda: len(RecordTable(tmp_path)),
        "batches": lambda: sum(batch.num_rows for batch in iter_batches(tmp_path, 4)),
    }
    for snapshot in (False, True):
        for name, use in uses.items():
            _shown.clear()
            with pytest.WarningsRecorder(_ispytest=True) as warned:
                assert use() == 9, name
            is_named = not snapshot or name in ("glob", "list")
            assert names_in(warned) == (sorted(SIDE) if is_named else []), name
        assert {name: text for name, text in COMMANDS.items() if text not in run(name, tmp_path)} == {}
        if not snapshot:
            assert open_dataset(tmp_path).add_snapshot().rows == 9
            with pytest.raises(DestinationError, match="up to date"):
                open_dataset(tmp_path).add_snapshot()
    assert len(open_dataset(tmp_path).take([8, 0])) == 2


def test_a_directory_of_tfds_with_labels_is_read(data: Path, tmp_path: Path) -> None:
    root = tmp_path / "labels"
    shutil.copytree(data / "tfds" / "labels" / "1.0.0", root)
    assert len(read_tfrecord(root, split="train")) == 7
    advice = r"open_dataset\(.*, split=\"all\"\)\.add_snapshot\(\) first, and append"
    with pytest.raises(TFRecordError, match=advice):
        to_tfrecord(pd.DataFrame({"num": [1]}), root, append=True)
    assert open_dataset(root, split="all").add_snapshot().rows == len(read_tfrecord(root)) == 12


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.tfrecord", b"text"),
        ("pointer.record", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        ("zeros.dat", bytes(999)),
        ("cut.txt", ONE[:20]),
        ("flipped.tfrec", bytes([ONE[0] ^ 255]) + ONE[1:]),
        ("data.snappy", b"\xff\x06\0\0sNaPpY" + bytes(50)),
        ("part-00000", b"text\n"),
        ("cut.txt.gz", gzip.compress(ONE, mtime=0)[:12]),
    ],
)
def test_what_may_be_data_is_never_skipped(tmp_path: Path, name: str, content: bytes) -> None:
    """Nor text that is alone, or that the caller named."""
    fill(tmp_path / "text", {"a.txt": b"text", "b.json": b"{}"})
    for path in (tmp_path / "text", tmp_path / "text" / "a.txt", [tmp_path / "text" / "a.txt"]):
        with pytest.raises(CorruptRecordError, match="looks like"):
            read_tfrecord(path)
    shutil.rmtree(tmp_path / "text")
    fill(tmp_path, {"a.tfrecord": ONE, name: content})
    with pytest.raises(TFRecordError) as caught:
        read_tfrecord(tmp_path).compute()
    assert caught.value.path == str(tmp_path / name)
    with pytest.raises(TFRecordError):
        open_dataset(tmp_path).add_snapshot()


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
def test_data_with_the_name_of_a_side_file_is_data(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    fill(tmp_path, {"a.tfrecord": ONE, "b.txt": compress(ONE), "info.json": b"{}"})
    with pytest.warns(UserWarning, match=r"left out what is not a TFRecord file: info\.json;"):
        assert len(read_tfrecord(tmp_path)) == 2
    (tmp_path / "info.json").unlink()
    fill(tmp_path, {"c.txt": b"text that claims the suffix of data"})
    with pytest.raises(CorruptRecordError, match=r"c\.txt.*looks like text"):
        read_tfrecord(tmp_path).compute()
    (tmp_path / "c.txt").unlink()
    open_dataset(tmp_path).add_snapshot()
    fill(tmp_path, {"c.txt": b"text", "more.json": b"{}"})
    with pytest.raises(TFRecordError, match=r"c\.txt.*does not list 1 of"):
        read_tfrecord(tmp_path)


@pytest.mark.parametrize("content", [ONE, ONE[:20], gzip.compress(ONE, mtime=0)[:12]])
def test_a_kind_with_one_file_that_may_be_data_is_kept_whole(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path, {"a.tfrecord": ONE, "b.txt": b"text", "c.txt": content, "d.txt": b"text", "e.md": b"text"})
    with (
        pytest.warns(UserWarning, match=r"TFRecord file: e\.md;"),
        pytest.raises(CorruptRecordError) as caught,
    ):
        read_tfrecord(tmp_path).compute()
    assert caught.value.path == str(tmp_path / "b.txt")


def test_a_few_files_of_each_kind_are_looked_at(tmp_path: Path, opened: list[str]) -> None:
    images = {f"images/{n:04d}.jpg": b"\xff\xd8\xff" + bytes(20) for n in range(500)}
    hashes = {f"{n * 7919:x}x": ONE for n in range(200)}  # data files without a suffix
    fill(tmp_path, {"train.tfrecord": ONE, **images, **hashes})
    with pytest.warns(UserWarning, match=r"images: left out .*: 0000\.jpg, .* and 480 more;"):
        found = open_dataset(tmp_path).files
    assert len(found) == 201
    assert len({path for path in opened if path.endswith(".jpg")}) <= 64
    assert len(opened) < 200


EMPTY: dict[str, dict[str, bytes]] = {
    "csv": {"part-0.csv": b"a,b\n1,2\n"},
    "parquet": {"part.0.parquet": b"PAR1" + bytes(50)},
    "images": {"a.png": b"\x89PNG\r\n\x1a\n", "b.png": b"\x89PNG\r\n\x1a\n"},
    "array record": {"x.array_record-00000-of-00001": ARRAY_RECORD},
    "hidden": {"_SUCCESS": b"", ".part-0.crc": b"crc"},
    "unfinished": {"_tfrecord/staging/0/a": b""},
    "nothing": {},
}
USES: dict[str, Callable[[Any], Any]] = {
    "read": read_tfrecord,
    "facts": lambda paths: open_dataset(paths).schema,
    "verify": lambda paths: open_dataset(paths).verify(),
    "batches": lambda paths: list(iter_batches(paths, 4)),
    "table": RecordTable,
    "skip": lambda paths: read_tfrecord(paths, on_corrupt="skip"),
    "schema": lambda paths: read_tfrecord(paths, schema=pa.schema({"n": pa.int64()}), record_type="example"),
}
COMBINATIONS = [
    *((name, [*USES][at % len(USES)]) for at, name in enumerate(EMPTY)),
    *(([*EMPTY][at % 4], name) for at, name in enumerate(USES)),
]


@pytest.mark.parametrize("is_glob", [False, True], ids=["directory", "glob"])
@pytest.mark.parametrize(("name", "use"), COMBINATIONS)
def test_a_named_path_without_tfrecord_files_raises_beside_one_with_them(
    tmp_path: Path, name: str, use: str, is_glob: bool
) -> None:
    fill(
        tmp_path,
        {"data/a.tfrecord": ONE, **{f"other/{path}": content for path, content in EMPTY[name].items()}},
    )
    (tmp_path / "other").mkdir(exist_ok=True)
    other = f"{tmp_path}/other/*" if is_glob else str(tmp_path / "other")
    for paths in ([str(tmp_path / "data"), other], [other, str(tmp_path / "data")]):
        with pytest.raises((CorruptRecordError, FileNotFoundError), match=re.escape(f"{tmp_path}/other")):
            USES[use](paths)
    if use in ("read", "verify"):
        command = {"read": "count", "verify": "verify"}[use]
        result = CliRunner().invoke(main, [command, str(tmp_path / "data"), other])
        assert (result.exit_code, result.stdout) == (1, "")
