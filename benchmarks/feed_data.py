"""Generate the rows that `benchmarks.feeds` reads, and write them in the formats of all loaders."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord

PARTITIONS = 4

# The features of each table for TensorFlow's parser and for the tfrecord package: kind, and values a row.
FEATURES = {
    "tabular": {
        **{f"i{k}": ("int", 1) for k in range(4)},
        **{f"f{k}": ("float", 1) for k in range(4)},
        "label": ("int", 1),
    },
    "vectors": {"x": ("float", 200), "label": ("int", 1)},
    "wide": {**{f"c{k:03}": ("float", 1) for k in range(200)}, "label": ("int", 1)},
    "images": {"image": ("byte", 1), "label": ("int", 1)},
}


class Work(NamedTuple):
    """Describe the data that a loader reads.

    Attributes
    ----------
    table : str
        A key of `FEATURES`.
    codec : str or None
        The compression of the TFRecord files.
    path : str
        The directory of the TFRecord files. The files of other loaders have names that start with it.
    batch_size : int
        Number of rows of a batch.
    rows : int
        Number of rows.
    sample : int
        Number of rows that a loader reads if it takes long for each row.
    """

    table: str
    codec: str | None
    path: str
    batch_size: int
    rows: int
    sample: int

    def files(self) -> list[str]:
        """Return the paths of the TFRecord files."""
        return sorted(map(str, Path(self.path).glob("part-*")))


def write(work: Work) -> None:
    """Write a table as TFRecord, and in the formats that other loaders read."""
    frame = make(work.table, work.rows)
    sample = frame.iloc[: work.sample]
    for path, part, npartitions in (work.path, frame, PARTITIONS), (f"{work.path}.sample", sample, 1):
        ddf = dd.from_pandas(part, npartitions=npartitions)
        dask_tfrecord.to_tfrecord(ddf, path, compression=work.codec)
    if work.codec is None:
        dask_tfrecord.export(f"{work.path}.sample", "idx")
        frame.to_parquet(f"{work.path}.parquet")
        for package, write_records in _WRITERS.items():
            if importlib.util.find_spec(package):
                write_records(packed(work.table, sample), work.path)


def make(table: str, rows: int) -> pd.DataFrame:
    """Generate the random rows of a table."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for feature, (kind, values) in FEATURES[table].items():
        if kind == "byte":
            data = [random.bytes(100_000) for _ in range(rows)]
            columns[feature] = pd.array(data, pd.ArrowDtype(pa.binary()))
        elif values > 1:
            flat = pa.array(random.random(rows * values, dtype=np.float32))
            columns[feature] = pd.arrays.ArrowExtensionArray(pa.FixedSizeListArray.from_arrays(flat, values))
        elif kind == "int":
            columns[feature] = random.integers(0, 1000, rows)
        else:
            columns[feature] = random.random(rows, dtype=np.float32)
    return pd.DataFrame(columns)


# -- Packed records: what is fastest to decode in formats that hold any bytes --------------------------------


def _dtype(table: str) -> np.dtype[Any]:
    types = {"int": np.int64, "float": np.float32}
    features = {name: feature for name, feature in FEATURES[table].items() if feature[0] != "byte"}
    return np.dtype(
        [(name, types[kind], values if values > 1 else ()) for name, (kind, values) in features.items()]
    )


def packed(table: str, frame: pd.DataFrame) -> Iterator[bytes]:
    """Yield the numbers of each row, packed, and then the bytes of the image."""
    numbers = np.empty(len(frame), _dtype(table))
    for name in numbers.dtype.names or ():
        column = pa.array(frame[name])
        is_list = pa.types.is_fixed_size_list(column.type)
        numbers[name] = np.asarray(column.flatten() if is_list else column).reshape(numbers[name].shape)
    images = frame["image"] if table == "images" else [b""] * len(frame)
    for row, image in zip(numbers, images, strict=True):
        yield row.tobytes() + image


def unpacked(table: str, records: Sequence[bytes]) -> dict[str, Any]:
    """Return the columns of a batch of packed records: arrays of NumPy, and views of the bytes of images."""
    dtype = _dtype(table)
    columns: dict[str, Any] = {}
    if table == "images":
        columns["image"] = [memoryview(record)[dtype.itemsize :] for record in records]
        records = [record[: dtype.itemsize] for record in records]
    rows = np.frombuffer(b"".join(records), dtype)
    return columns | {name: np.ascontiguousarray(rows[name]) for name in dtype.names or ()}


def _write_array_record(records: Iterator[bytes], path: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(f"{path}.array_record", "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()


def _write_tars(records: Iterator[bytes], path: str) -> None:
    import webdataset as wds

    tars = [wds.TarWriter(f"{path}-{number}.tar") for number in range(PARTITIONS)]
    for key, record in enumerate(records):
        tars[key % PARTITIONS].write({"__key__": f"{key:08}", "bin": record})
    for tar in tars:
        tar.close()


def _write_mosaic(records: Iterator[bytes], path: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=f"{path}.mds", columns={"record": "bytes"}) as writer:
        for record in records:
            writer.write({"record": record})


_WRITERS: dict[str, Callable[[Iterator[bytes], str], None]] = {
    "array_record": _write_array_record,
    "webdataset": _write_tars,
    "streaming": _write_mosaic,
}
