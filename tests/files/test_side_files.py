"""Files beside the data: what plainly is no TFRecord is skipped by every reader, all else raises.

Modules: files.side_files.
"""

import bz2
import gzip
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
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
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord_launcher import main

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = oracle.features_file([{"n": ("int64", [1])}])

SIDE: dict[str, bytes] = {
    "label.labels.txt": b"cat\ndog\n",
    "README.md": b"# Data\n",
    "README": b"Data\n",
    "labels.csv": b"a,b\n1,2\n",
    "empty.txt": b"",
    "info.json": b'{"a": 1}',
    "zz/meta.JSON": b"[1]",
    "label_map.pbtxt": b"item { id: 1 }\n",
    "a.tfrecord.idx": b"0 30\n30 30\n",
    "deep/cat.png": b"\x89PNG\r\n\x1a\n" + bytes(30),
    "cat.jpg": b"\xff\xd8\xff\xe0" + bytes(30),
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


def test_every_reader_skips_what_plainly_is_no_tfrecord(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, {f"x-{n}.tfrecord": ONE for n in range(9)} | SIDE)
    with caplog.at_level(logging.INFO, "dask_tfrecord"):
        ddf = read_tfrecord(tmp_path)
    (message,) = [one.message for one in caplog.records if "skipped" in one.message]
    assert f"skipped {len(SIDE)} files that are no TFRecord files: README, README.md, " in message
    assert list(ddf.columns) == ["n"]
    uses: list[Callable[[], Any]] = [
        lambda: len(ddf),
        lambda: len(ddf.compute()),
        lambda: len(read_tfrecord(f"{tmp_path}/*")),
        lambda: len(read_tfrecord([tmp_path])),
        lambda: len(open_dataset(tmp_path).verify()),
        lambda: len(RecordTable(tmp_path)),
        lambda: sum(batch.num_rows for batch in iter_batches(tmp_path, 4)),
    ]
    for snapshot in (False, True):
        assert [use() for use in uses] == [9] * len(uses)
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


def test_an_append_adopts_only_the_data(place: str) -> None:
    store = Store.at(place)
    store.fs.makedirs(store.root, exist_ok=True)
    for name, content in {"a.tfrecord": ONE, "label.labels.txt": b"cat\n"}.items():
        store.fs.pipe_file(store.join(name), content)
    for _ in range(2):
        to_tfrecord(dd.from_dict({"n": [2]}, npartitions=1), place, append=True)
    assert sorted(read_tfrecord(place)["n"].compute()) == [1, 2, 2]
    assert store.fs.exists(store.join("label.labels.txt"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.tfrecord", b"text"),
        ("model.pb", b"\x08\x01\x12\x03abc"),
        ("data.parquet", b"PAR1" + bytes(50)),
        ("labels.zip", b"PK\x03\x04" + bytes(50)),
        ("unknown.txt", bytes(range(200, 256)) * 2),
        ("cut.txt", ONE[:20]),
        ("flipped.idx", bytes([ONE[0] ^ 255]) + ONE[1:]),
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
    assert len(read_tfrecord(tmp_path)) == 2
    fill(tmp_path, {"c.txt": b"text that claims the suffix of data"})
    with pytest.raises(CorruptRecordError, match=r"c\.txt.*looks like text"):
        read_tfrecord(tmp_path).compute()
    (tmp_path / "c.txt").unlink()
    open_dataset(tmp_path).add_snapshot()
    fill(tmp_path, {"c.txt": b"text", "more.json": b"{}"})
    with pytest.raises(TFRecordError, match=r"c\.txt.*does not list 1 of"):
        read_tfrecord(tmp_path)
