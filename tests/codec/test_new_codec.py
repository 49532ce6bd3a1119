"""One record adds a codec: its files are named, written, detected and read in parts.

Modules: codec.codecs.
"""

import io
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pytest

import dask_tfrecord
from dask_tfrecord import TFRecordError
from dask_tfrecord.codec.codecs import CODECS, Codec, Compressor, FrameCompressor, ReadInto

MAGIC = b"TOY!"
INVERTED = bytes(range(255, -1, -1))


def compress(level: int) -> Compressor:
    """A frame is the magic bytes, the content's size, and the content with inverted bits."""
    return FrameCompressor(
        lambda content: MAGIC + len(content).to_bytes(8, "little") + bytes(content).translate(INVERTED)
    )


def decompress(readinto: ReadInto, *, inside: bool) -> io.BytesIO:
    stored = bytearray()
    view = memoryview(bytearray(1 << 16))
    while count := readinto(view):
        stored += view[:count]
    content = b""
    while stored:
        assert stored.startswith(MAGIC)
        end = 12 + int.from_bytes(stored[4:12], "little")
        content += stored[12:end].translate(INVERTED)
        del stored[:end]
    return io.BytesIO(content)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(CODECS, "toy", Codec(".toy", (MAGIC,), range(1, 3), 1, compress, decompress))
    return "toy"


def test_a_codec_of_one_record_writes_and_reads_a_dataset(toy: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": range(300_000), "name": [f"row {n}" for n in range(300_000)]})
    with pytest.warns(UserWarning, match="TensorFlow reads only"):
        dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data", compression=toy)
    (file,) = (tmp_path / "data").glob("*.tfrecord.toy")
    assert file.read_bytes().startswith(MAGIC)
    split = dask_tfrecord.read_tfrecord(tmp_path / "data", blocksize="4 MiB")
    assert split.npartitions > 1
    assert split["x"].compute().tolist() == frame["x"].tolist()
    foreign = tmp_path / "other name"
    file.rename(foreign)
    assert len(dask_tfrecord.read_tfrecord(foreign)) == len(frame)


def test_levels_of_a_new_codec_are_checked(toy: str, tmp_path: Path) -> None:
    frame = dd.from_pandas(pd.DataFrame({"x": [1]}), npartitions=1)
    with pytest.raises(TFRecordError, match="give a level from 1 to 2 for toy"):
        dask_tfrecord.to_tfrecord(frame, tmp_path / "data", compression=toy, compression_level=3)
