"""Time the kernel on one core: encoding, decoding, and the codecs with their levels."""

import time
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dask_tfrecord.codec import Decoder, Encoder, Inference, _kernel, scan
from dask_tfrecord.codec.codecs import compressor

from .tables import TABLES, Table, encoded_views, scaled, scaled_table

WINDOW_BYTES = 4 << 20  # as much as a reader holds of a file
LEVELS = [
    *(f"gzip {level}" for level in (1, 2, 3, 6, 9)),
    *("none", "zstd 1", "zstd 3", "zstd 9", "lz4 1", "lz4 9", "bz2 9", "xz 1", "xz 6"),
    *(f"parquet {codec}" for codec in ("none", "snappy", "gzip 1", "gzip 6", "gzip 9", "zstd 1", "zstd 3")),
]
LEVEL_ROWS = {"tabular": 50_000, "recsys": 10_000, "wide": 5_000, "images": 50}


class Kernel:
    """Encode and decode the rows of a table, in memory that stays in the cache."""

    params = tuple(TABLES)
    param_names = ("table",)
    timer = time.thread_time

    def setup(self, name: str) -> None:
        self.table = scaled_table(name)
        self.encoder = Encoder(self.table.columns, "example")
        self.records = b"".join(map(bytes, encoded_views(self.encoder, self.table.batch)))
        starts = scan(self.records, final=True, offsets=True).offsets.to_numpy()
        cuts = np.unique(starts // WINDOW_BYTES, return_index=True)[1]
        bounds = [*starts[cuts].tolist(), len(self.records)]
        view = memoryview(self.records)
        self.windows = [view[start:stop] for start, stop in pairwise(bounds)]

    def time_encode(self, name: str) -> None:
        for _ in encoded_views(self.encoder, self.table.batch):
            pass

    def time_decode(self, name: str) -> None:
        self._decode(Decoder(self.table.columns, "example"))

    def time_decode_few_columns(self, name: str) -> None:
        wanted = [column for column in self.table.columns if column.name in self.table.projection]
        self._decode(Decoder(wanted, "example"))

    def _decode(self, decoder: Decoder) -> None:
        for window in self.windows:
            decoder.decode(window, final=True)

    def time_infer(self, name: str) -> None:
        for window in self.windows:
            Inference("example").feed(window, final=True)

    def time_scan(self, name: str) -> None:
        for window in self.windows:
            scan(window, final=True)

    def time_crc_and_copy(self, name: str) -> None:
        """Copy the records and compute their checksum, which is the least that a decoder must do."""
        buffer = bytearray(max(map(len, self.windows)))
        for window in self.windows:
            buffer[: len(window)] = window
            _kernel.crc32c(window)

    def track_bytes_of_a_record(self, name: str) -> float:
        return len(self.records) / self.table.batch.num_rows


class Levels:
    """Encode and compress the rows of a table, or write them as Parquet."""

    params = (["tabular", "recsys"], LEVELS)
    param_names = ("table", "codec")
    timer = time.process_time

    def setup(self, name: str, level: str) -> None:
        self.table = TABLES[name](scaled(LEVEL_ROWS[name]))
        codec, _, number = level.removeprefix("parquet ").partition(" ")
        write = _parquet if level.startswith("parquet") else _tfrecord
        self.write = partial(write, self.table, codec, int(number) if number else None)

    def time_write(self, name: str, level: str) -> None:
        self.write()

    def track_bytes_of_a_row(self, name: str, level: str) -> float:
        return self.write() / self.table.batch.num_rows


def _tfrecord(table: Table, codec: str, level: int | None) -> int:
    views = encoded_views(Encoder(table.columns, "example"), table.batch)
    if codec == "none":
        return sum(map(len, views))
    file = compressor(codec, level)  # type: ignore[arg-type]  # each name in LEVELS is a codec, but mypy sees a str, because `setup` splits a text
    size = len(file.head)
    for view in views:
        file.add(view)
        size += len(file.compress(view))
    return size + len(file.tail())


def _parquet(table: Table, codec: str, level: int | None) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(table.batch), sink, compression=codec, compression_level=level)
    return int(sink.getvalue().size)
