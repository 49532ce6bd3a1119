"""Recognise other file formats by their first bytes, and know what reads them."""

from codecs import getincrementaldecoder
from typing import NamedTuple

# `looks_like` needs this many bytes from the start of a file.
LOOK_BYTES = 512


class OtherFormat(NamedTuple):
    """A file format. ``name`` completes the sentence "it looks like ...", and ``advice`` says how to read the
    format, if it holds data. If ``may_be_data`` is True, the file may hold records that are lost or cannot be
    read.
    """

    name: str
    advice: str | None = None
    may_be_data: bool = False

    @property
    def problem(self) -> str:
        return f"not a TFRecord file: it looks like {self.name}"


_CONVERT = "or convert it with `dask-tfrecord convert`"
_UNPACK = "unpack it, and read the unpacked files"
_LFS_POINTER = OtherFormat("a Git LFS pointer", "run `git lfs pull` in its repository to download the data")

# Maps the offset and first bytes of a format to the format. The map contains formats that downloads, exports
# and copies may leave among data files.
_MAGIC: dict[tuple[int, bytes], OtherFormat] = {
    (0, b"PAR1"): OtherFormat("a Parquet file", f"read it with dask.dataframe.read_parquet, {_CONVERT}"),
    (0, b"PARE"): OtherFormat("an encrypted Parquet file", "read it with pyarrow.parquet.read_table"),
    (0, b"ARROW1"): OtherFormat("an Arrow IPC or Feather file", "read it with pyarrow.feather.read_table"),
    (0, b"FEA1"): OtherFormat("a Feather file", "read it with pyarrow.feather.read_table"),
    (0, b"\xff\xff\xff\xff"): OtherFormat("an Arrow IPC stream", "read it with pyarrow.ipc.open_stream"),
    # ArrayRecord is the first 16 bytes of Riegeli's signature.
    (0, b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f" + bytes(8)): OtherFormat(
        "an ArrayRecord or Riegeli file",
        "read it with array_record.python.array_record_data_source.ArrayRecordDataSource, or prepare a "
        'dataset of TensorFlow Datasets with file_format="tfrecord"',
    ),
    **{
        (0, b"SEQ" + bytes([version])): OtherFormat(
            "a SequenceFile of Hadoop", "read it with spark.sparkContext.sequenceFile"
        )
        for version in (3, 4, 5, 6)
    },
    (0, b"\x0a\x23\xd7\xce"): OtherFormat(
        "a RecordIO file of MXNet", "read it with mxnet.recordio.MXRecordIO"
    ),
    (0, b"Obj\x01"): OtherFormat("an Avro file", "read it with dask.bag.read_avro"),
    (0, b"ORC\n"): OtherFormat("an ORC file", "read it with dask.dataframe.read_orc"),
    (0, b"\x89HDF\r\n\x1a\n"): OtherFormat(
        "an HDF5 file", "read it with h5py.File, or with dask.dataframe.read_hdf if pandas wrote it"
    ),
    (0, b"CDF\x01"): OtherFormat("a NetCDF file", "read it with xarray.open_dataset"),
    (0, b"CDF\x02"): OtherFormat("a NetCDF file", "read it with xarray.open_dataset"),
    (0, b"\x93NUMPY"): OtherFormat("a NumPy array", "read it with numpy.load"),
    (0, b"PK\x03\x04"): OtherFormat("a zip archive", f"read an .npz file with numpy.load; else {_UNPACK}"),
    (257, b"ustar"): OtherFormat("a tar archive", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c"): OtherFormat("a 7-Zip archive", _UNPACK),
    (0, b"Rar!\x1a\x07"): OtherFormat("a RAR archive", _UNPACK),
    (0, b"\xff\x06\0\0sNaPpY"): OtherFormat("a file that was compressed with Snappy", _UNPACK, True),
    (0, b"SQLite format 3\0"): OtherFormat("an SQLite database", "read it with pandas.read_sql"),
    (16, b"\xde\xc0\xef\xbe"): OtherFormat("an LMDB database", "read it with lmdb.open"),
    **{
        (0, b"\x80" + version): OtherFormat("a pickle", "read it with pandas.read_pickle")
        for version in (b"\2}", b"\2]", b"\2c", b"\3}", b"\3]", b"\3c", b"\4\x95", b"\5\x95")
    },
    (0, b"\x89PNG\r\n\x1a\n"): OtherFormat("a PNG image"),
    (0, b"\xff\xd8\xff"): OtherFormat("a JPEG image"),
    (0, b"GIF8"): OtherFormat("a GIF image"),
    (0, b"II*\0"): OtherFormat("a TIFF image"),
    (0, b"MM\0*"): OtherFormat("a TIFF image"),
    (8, b"WAVE"): OtherFormat("a WAV recording"),
    (8, b"WEBP"): OtherFormat("a WebP image"),
    (4, b"ftyp"): OtherFormat("a video such as MP4"),
    (0, b"OggS"): OtherFormat("an Ogg recording"),
    (0, b"fLaC"): OtherFormat("a FLAC recording"),
    (0, b"ID3"): OtherFormat("an MP3 recording"),
    (0, b"%PDF-"): OtherFormat("a PDF document"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"): OtherFormat("a document of Microsoft Office"),
    (0, b"\x7fELF"): OtherFormat("a program or a library"),
    (0, b"\xff\xfe"): OtherFormat("text in UTF-16"),
    (0, b"\xfe\xff"): OtherFormat("text in UTF-16"),
    (0, b"\x1f\x8b"): OtherFormat("a gzip file"),
}

# The maximum size in bytes of a block in a file that a Hadoop codec compressed. Such a file begins with two
# big-endian integers: the sizes of the first block and of its first chunk.
_HADOOP_BLOCK_BYTES = 1 << 26

_WHITESPACE = b"\t\n\r\f"


def looks_like(head: bytes) -> OtherFormat | None:
    """Return the format of a file, given its first ``LOOK_BYTES`` bytes, or None if it is unknown.

    The result is meaningless for a TFRecord file, because a record header may look like another format.
    """
    for (start, magic), found in _MAGIC.items():
        if head.startswith(magic, start):
            return found
    if head and not head.strip(b"\0"):
        return OtherFormat("zeros, as a crash leaves them", may_be_data=True)
    if _is_text(head):
        return _kind_of_text(head.removeprefix(b"\xef\xbb\xbf").strip())
    size, chunk = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    if len(head) >= 8 and 0 < chunk <= size + size // 100 + 64 and size <= _HADOOP_BLOCK_BYTES:
        return OtherFormat("a file that Hadoop compressed with lz4 or Snappy", may_be_data=True)
    return None


def _is_text(head: bytes) -> bool:
    if not head or any(byte < 32 and byte not in _WHITESPACE for byte in head) or b"\x7f" in head:
        return False
    try:  # ``head`` may end within a character of the text
        return bool(getincrementaldecoder("utf-8")().decode(head))
    except UnicodeDecodeError:
        return False


def _kind_of_text(head: bytes) -> OtherFormat:
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return _LFS_POINTER
    if head.startswith((b"{", b"[")):
        return OtherFormat("JSON", f"read it with dask.dataframe.read_json, {_CONVERT}")
    if head.lower().startswith((b"<!doctype html", b"<html")):
        return OtherFormat("an HTML page, such as a server's message")
    if head.startswith(b"<"):
        return OtherFormat("XML")
    first = head.partition(b"\n")[0]
    if any(sign in first for sign in (b",", b"\t", b";")):
        return OtherFormat("text such as CSV", f"read it with dask.dataframe.read_csv, {_CONVERT}")
    return OtherFormat("text")
