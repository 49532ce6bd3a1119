"""Files without some of their records: the others are unchanged, and the statistics are true.

Modules: files.splice, files.window.
"""

import gzip
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from stored_rows import ROWS, SCHEMA, check, foreign, write

from dask_tfrecord.codec.codecs import CODECS, Compression
from dask_tfrecord.errors import CorruptRecordError, FileChangedError
from dask_tfrecord.files import file_writer, splice
from dask_tfrecord.files.entry import Block, FileEntry
from dask_tfrecord.files.splice import RecordMask, remove_records
from dask_tfrecord.files.storage.store import Store

every = pytest.mark.parametrize("compression", [None, *CODECS])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(splice, "BLOCK_BYTES", 10_000)


def removed(root: Path, source: FileEntry, mask: RecordMask, compression: Compression | None) -> FileEntry:
    store = Store.at(root)
    return remove_records(store, source, mask, SCHEMA, compression, store.join("new"), "new")


def check_statistics(entry: FileEntry, rows: pa.Table) -> None:
    """Check that the numbers of nulls and the bounds are exact."""
    assert len(entry.statistics) == rows.num_columns
    for one in entry.statistics:
        values: list[Any] = [value for value in rows[one.name].to_pylist() if value is not None]
        assert one.nulls == len(rows) - len(values)
        bounds, is_list = one[1:3], one.name == "list"
        values = (
            [len(value) for value in values] if is_list else [value for value in values if value == value]
        )
        low, high = one[4:] if is_list else bounds
        if not values:
            assert (low, high) == (None, None)
        else:
            assert (low, high) == (min(values), max(values))


def some(*gone: int | slice) -> RecordMask:
    mask = np.zeros(len(ROWS), bool)
    for rows in gone:
        mask[rows] = True
    return mask


MASKS = {
    "none": some(),
    "first": some(0),
    "last": some(-1),
    "one": some(1230),
    "scattered": some(slice(5, None, 50)),
    "clustered": some(slice(400, 900)),
    "all but one": ~some(77),
    "all with values": ~np.array([value is None for value in ROWS["n"].to_pylist()]),
    "extremes": np.array([value in (0, 999) for value in ROWS["n"].to_pylist()]),
}


@pytest.mark.parametrize(
    ("compression", "name"),
    [
        *itertools.product([None, "gzip"], MASKS),
        *((codec, "clustered") for codec in CODECS if codec != "gzip"),
    ],
)
def test_other_records_and_true_statistics_are_left(
    tmp_path: Path, compression: Compression | None, name: str
) -> None:
    mask = MASKS[name]
    source = write(tmp_path, ROWS, "source", compression)
    entry = removed(tmp_path, source, mask, compression)
    left = ROWS.filter(pa.array(~mask))
    check(tmp_path, entry, left)
    check_statistics(entry, left)
    if name == "none":
        assert entry.crc32c == source.crc32c


def test_records_of_files_of_other_tools_are_removed(tmp_path: Path) -> None:
    write(tmp_path, ROWS, "plain", None)
    content = (tmp_path / "plain").read_bytes()
    mask = MASKS["scattered"]
    sources: list[tuple[str, bytes, Compression | None]]
    sources = [("a", gzip.compress(content), "gzip"), ("b", content, None)]
    for name, data, codec in sources:
        entry = removed(tmp_path, foreign(tmp_path, name, data, len(ROWS)), mask, codec)
        left = ROWS.filter(pa.array(~mask))
        check(tmp_path, entry, left)
        check_statistics(entry, left)


@every
def test_a_changed_source_is_not_written_again(tmp_path: Path, compression: Compression | None) -> None:
    source = write(tmp_path, ROWS, "source", compression)
    good = (tmp_path / "source").read_bytes()
    for place in (2, len(good) // 2, len(good) - 2):
        changed = good[:place] + bytes([good[place] ^ 8]) + good[place + 1 :]
        (tmp_path / "source").write_bytes(changed)
        with pytest.raises((CorruptRecordError, FileChangedError)):
            removed(tmp_path, source, MASKS["one"], compression)
    assert not (tmp_path / "new").exists()


def test_blocks_with_other_numbers_of_records_are_refused(tmp_path: Path) -> None:
    """Otherwise, other records than the chosen ones would be removed."""
    source = write(tmp_path, ROWS, "source", None)
    lie = list(source.blocks)
    lie[2] = lie[2]._replace(record=lie[2].record - 1)
    with pytest.raises(CorruptRecordError, match="a block has"):
        removed(tmp_path, replace(source, blocks=tuple(lie)), MASKS["last"], None)
    inside = Block(source.blocks[2].offset + 1, source.blocks[2].content + 1, source.blocks[2].record)
    with pytest.raises(CorruptRecordError):
        removed(tmp_path, replace(source, blocks=(*lie[:2], inside, *lie[3:])), MASKS["last"], None)
