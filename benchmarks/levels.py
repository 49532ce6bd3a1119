"""Compare the levels of all codecs, and those of Parquet on the same rows: speed, and bytes.

A speed is the number of thousand rows that one core encodes and compresses in a second of CPU time, in the
best round. The files are in memory. TFRecord blocks have 1 MiB, as in written files. Parquet files have the
defaults of pyarrow apart from the codec.

    python -m benchmarks.levels [--rounds 3] [--scale 1.0] [tabular recsys wide images]
"""

import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tables import TABLES, Table, encoded_views, table_parser
from dask_tfrecord.codec import Encoder
from dask_tfrecord.codec.codecs import CODECS, Compression, compressor

ROWS = {"tabular": 50_000, "recsys": 10_000, "wide": 5_000, "images": 50}
LEVELS: dict[Compression, tuple[int, ...]] = {
    "gzip": (1, 2, 3, 6, 9),
    "zstd": (1, 3, 9),
    "lz4": (1, 9),
    "bz2": (9,),
    "xz": (1, 6),
}
PARQUET = (("none", None), ("snappy", None), ("gzip", 1), ("gzip", 6), ("gzip", 9), ("zstd", 1), ("zstd", 3))


def tfrecord(table: Table, codec: Compression | None, level: int | None) -> int:
    """Encode and compress a table. Return the number of bytes of the file."""
    views = encoded_views(Encoder(table.columns, "example"), table.batch)
    if codec is None:
        return sum(map(len, views))
    file = compressor(codec, level)
    size = len(file.head)
    for view in views:
        file.add(view)
        size += len(file.compress(view))
    return size + len(file.tail())


def parquet(table: Table, codec: str, level: int | None) -> int:
    """Write a table as Parquet. Return the number of bytes of the file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(table.batch), sink, compression=codec, compression_level=level)
    return sink.getvalue().size


def measure(write: Callable[[], int], rounds: int) -> tuple[float, int]:
    """Return the CPU seconds of the best round, and the number of bytes."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        size = write()
        best = min(best, time.process_time() - start)
    return best, size


def main() -> None:
    arguments = table_parser(__doc__, rounds=3).parse_args()
    for name in arguments.tables or TABLES:
        rows = max(1, int(ROWS[name] * arguments.scale))
        table = TABLES[name](rows)
        ways: list[tuple[str, Callable[[], int]]] = [("TFRecord", partial(tfrecord, table, None, None))]
        for codec, levels in LEVELS.items():
            for level in levels:
                default = " (default)" * (level == CODECS[codec].default_level)
                title = f"TFRecord {codec} {level}{default}"
                ways.append((title, partial(tfrecord, table, codec, level)))
        for kind, level in PARQUET:
            title = f"Parquet {kind}{'' if level is None else f' {level}'}"
            ways.append((title, partial(parquet, table, kind, level)))
        plain = None
        print(f"{name:28}{'1,000 rows/s':>14}{'bytes/row':>12}{'of TFRecord':>13}")
        for title, write in ways:
            took, size = measure(write, arguments.rounds)
            plain = plain or size
            print(f"{title:28}{rows / took / 1e3:14,.0f}{size / rows:12,.1f}{size / plain:13.3f}")
        print()


if __name__ == "__main__":
    main()
