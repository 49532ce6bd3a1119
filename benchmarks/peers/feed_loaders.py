"""Define the loaders and the data of the suite `feeds`, and run a loader in a process of its own."""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord
from benchmarks.peers.tools.tensorflow import Source, in_interleave, in_one_thread, usual
from benchmarks.peers.workers import measured, serve

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", HF_HUB_OFFLINE="1")

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
    """Describe the data that a loader reads. Files of other formats have names that start with ``path``."""

    table: str
    codec: str | None
    path: str  # the directory of the TFRecord files
    batch_size: int
    rows: int
    sample: int  # the rows that a loader reads if it takes long for each row

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
        dask_tfrecord.open_dataset(f"{work.path}.sample").export("idx")
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


# -- Loaders -------------------------------------------------------------------------------------------------

# One pass over the rows: the number of rows of each batch.
Epoch = Callable[[], Iterable[int]]

# The orders of the rows. A buffer holds as many rows as `iter_batches` does by default.
PLAIN, BUFFER, BLOCKS, ALL = "", "shuffled", "shuffled blocks", "all rows shuffled"
BUFFER_ROWS = 65_536
SHUFFLES: dict[str, Any] = {PLAIN: None, BUFFER: "buffer", BLOCKS: "blocks"}


# -- This package --------------------------------------------------------------------------------------------


def ours_arrow(work: Work, order: str) -> Epoch:
    """Read Arrow batches with `iter_batches` of this package."""
    return lambda: (
        batch.num_rows
        for batch in dask_tfrecord.feed.iter_batches(work.path, work.batch_size, shuffle=SHUFFLES[order])
    )


def ours_table(work: Work, order: str) -> Epoch:
    """Read random Arrow batches from a `RecordTable` of this package."""
    table = dask_tfrecord.feed.RecordTable(work.path)
    random = np.random.default_rng(0)

    def epoch() -> Iterator[int]:
        rows = table.block_order(seed=1) if order == BLOCKS else random.permutation(len(table))
        for start in range(0, _rows_of_random(work) if order == ALL else len(table), work.batch_size):
            yield table.batch(rows[start : start + work.batch_size]).num_rows

    return epoch


def _rows_of_random(work: Work) -> int:
    """Return the rows of a pass in a uniform order, in which almost every row decompresses a block."""
    return work.sample if work.codec else work.rows


def ours_tensorflow(work: Work, order: str) -> Epoch:
    """Read a tf.data dataset that this package decodes."""
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    shuffle = SHUFFLES[order]
    return _label_epoch(tensorflow_dataset(work.path, work.batch_size, shuffle=shuffle))


def ours_torch(work: Work, order: str) -> Epoch:
    """Read `TFRecordBatches` of this package as tensors of PyTorch."""
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordBatches

    batches = TFRecordBatches(work.path, work.batch_size, shuffle=SHUFFLES[order])
    return _label_epoch(DataLoader(batches, batch_size=None))


def ours_torch_table(work: Work, order: str) -> Epoch:
    """Read `TFRecordTable` of this package, with all rows or the rows of groups of blocks shuffled."""
    from torch.utils.data import DataLoader, RandomSampler

    from dask_tfrecord.feed.torch import TFRecordTable

    data = TFRecordTable(work.path)
    if order == BLOCKS:
        rows = data.table.block_order(seed=1)
        batches = np.split(rows, range(work.batch_size, len(rows), work.batch_size))
        return _label_epoch(DataLoader(data, batch_sampler=batches, collate_fn=data.collate))
    rows = RandomSampler(data, num_samples=_rows_of_random(work))
    return _label_epoch(DataLoader(data, work.batch_size, sampler=rows, collate_fn=data.collate))


# -- TensorFlow ----------------------------------------------------------------------------------------------


def tensorflow(work: Work, order: str, *, make: Callable[..., Any]) -> Epoch:
    """Read with TensorFlow's own reader and parser. The shuffle buffer holds records that are not parsed."""
    import tensorflow as tf

    types = {"int": tf.int64, "float": tf.float32, "byte": tf.string}
    spec = {
        feature: tf.io.FixedLenFeature([values] if values > 1 else [], types[kind])
        for feature, (kind, values) in FEATURES[work.table].items()
    }
    codec = work.codec and work.codec.upper()
    shuffle = BUFFER_ROWS if order == BUFFER else 0
    return _label_epoch(make(Source(work.files(), codec, work.batch_size, spec, shuffle)))


# -- Other packages ------------------------------------------------------------------------------------------


def vahidk(work: Work, order: str, *, workers: int) -> Epoch:
    """Read with the tfrecord package, in Python. The workers share a file by means of its index."""
    from tfrecord.torch.dataset import TFRecordDataset
    from torch.utils.data import DataLoader

    [file] = Path(f"{work.path}.sample").glob("part-*")
    index = str(file.parent / "_idx" / f"{file.name}.idx") if workers else None
    features = {feature: kind for feature, (kind, _) in FEATURES[work.table].items()}
    queue = BUFFER_ROWS if order == BUFFER else None
    dataset = TFRecordDataset(str(file), index, features, queue, compression_type=work.codec)
    return _label_epoch(DataLoader(dataset, work.batch_size, num_workers=workers, collate_fn=_collated))


def _collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate rows of arrays to tensors, faster than PyTorch's default collation."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return _tensors(
        {name: one if isinstance(one[0], bytes) else np.stack(one) for name, one in columns.items()}
    )


def _tensors(columns: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {
        name: torch.from_numpy(column) if isinstance(column, np.ndarray) else column
        for name, column in columns.items()
    }


def hugging_face(work: Work, order: str, *, form: str) -> Epoch:
    """Read Parquet files with the datasets package, which copies the rows into a memory-mapped cache.

    The package's own iteration takes less CPU time than a DataLoader, which asks for single rows. A
    shuffle of all rows gathers every row by its number, so that only a sample of the rows is read.
    """
    import datasets

    datasets.disable_progress_bars()
    found = datasets.load_dataset(
        "parquet", data_files=f"{work.path}.parquet", split="train", cache_dir=f"{work.path}.cache"
    )
    buffered = found.to_iterable_dataset(num_shards=PARTITIONS).shuffle(0, buffer_size=BUFFER_ROWS)
    seeds = count()

    def epoch() -> Iterator[int]:
        seed, data = next(seeds), buffered if order == BUFFER else found
        if order == BUFFER:
            data.set_epoch(seed)
        elif order == ALL:
            data = found.shuffle(seed, keep_in_memory=True).take(min(work.sample, work.rows))
        for batch in data.with_format(form).iter(work.batch_size):
            yield len((_arrow_tensors(batch) if form == "arrow" else batch)["label"])

    return epoch


def _arrow_tensors(table: Any) -> dict[str, Any]:
    """Return the columns of an Arrow table as tensors and bytes. Numbers are not copied."""
    found = {}
    for name, column in zip(table.column_names, table.combine_chunks().columns, strict=True):
        values = column.chunk(0)
        if pa.types.is_nested(values.type):
            found[name] = values.flatten().to_numpy().reshape(len(values), -1)
        else:
            found[name] = values.to_pylist() if pa.types.is_binary(values.type) else values.to_numpy()
    return _tensors(found)


def webdataset(work: Work, order: str, *, workers: int) -> Epoch:
    """Read packed records from tar files with the webdataset package."""
    import webdataset as wds

    tars = sorted(map(str, Path(work.path).parent.glob(f"{Path(work.path).name}-*.tar")))
    found = wds.WebDataset(tars, shardshuffle=len(tars) if order == BUFFER else False, empty_check=False)
    if order == BUFFER:
        found = found.shuffle(BUFFER_ROWS, initial=BUFFER_ROWS)
    batches = found.to_tuple("bin").batched(
        work.batch_size, collation_fn=partial(_unpacked_tuples, work.table)
    )
    # PyTorch's default would convert each byte of an image to a Python object.
    return _label_epoch(wds.WebLoader(batches, batch_size=None, num_workers=workers, collate_fn=_unchanged))


def _unchanged(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


def _unpacked_tuples(table: str, rows: list[tuple[bytes]]) -> dict[str, Any]:
    return _unpacked(table, [record for (record,) in rows])


def mosaic(work: Work, order: str, *, workers: int) -> Epoch:
    """Read packed records with the streaming package of MosaicML."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    # Two datasets may not share a directory.
    local = Path(f"{work.path}.mds.{workers}.{order or 'plain'}")
    local.symlink_to(f"{work.path}.mds")
    data = StreamingDataset(local=str(local), shuffle=order == BLOCKS, batch_size=work.batch_size)
    collate = partial(_unpacked_dicts, work.table)
    return _label_epoch(DataLoader(data, work.batch_size, num_workers=workers, collate_fn=collate))


def _unpacked_dicts(table: str, rows: list[dict[str, bytes]]) -> dict[str, Any]:
    return _unpacked(table, [row["record"] for row in rows])


def _unpacked(table: str, records: list[bytes]) -> dict[str, Any]:
    from torch.utils.data import get_worker_info

    columns = _tensors(unpacked(table, records))
    if get_worker_info() and "image" in columns:  # a worker cannot send views to another process
        columns["image"] = list(map(bytes, columns["image"]))
    return columns


def grain(work: Work, order: str, *, threads: int) -> Epoch:
    """Read packed records of an ArrayRecord file with Grain, a batch at a time.

    Grain's own `shuffle` and `batch` take several times as long, because they handle every record in Python.
    """
    import grain.python as grain
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource(f"{work.path}.array_record")
    random = np.random.default_rng(0)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)

    def epoch() -> Iterator[int]:
        rows = random.permutation(len(source)) if order == ALL else np.arange(len(source))
        batches = [rows[start : start + work.batch_size] for start in range(0, len(rows), work.batch_size)]
        read = grain.MapDataset.source(batches).map(
            lambda batch: unpacked(work.table, source.__getitems__(batch.tolist()))
        )
        return _label_epoch(read.to_iter_dataset(options))()

    return epoch


def _label_epoch(batches: Iterable[Any]) -> Epoch:
    return lambda: (int(batch["label"].shape[0]) for batch in batches)


# -- All of them ---------------------------------------------------------------------------------------------

# Makes the function that reads all rows in an order.
Make = Callable[[Work, str], Epoch]


class Loader(NamedTuple):
    """Describe a loader, and the measured ways to use this loader. The fastest way counts."""

    packages: tuple[str, ...]
    ways: dict[str, Make]
    orders: tuple[str, ...] = (PLAIN, BUFFER)
    # "sample" is TFRecord with fewer rows, for loaders that handle each row in Python. So is "packed".
    reads: str = "tfrecord"


def _workers(make: Callable[..., Epoch]) -> dict[str, Make]:
    return {"one process": partial(make, workers=0), "2 workers": partial(make, workers=2)}


LOADERS = {
    "arrow, ours": Loader((), {"threads": ours_arrow}, (PLAIN, BUFFER, BLOCKS)),
    "arrow, RecordTable": Loader((), {"one thread": ours_table}, (BLOCKS, ALL)),
    "tensorflow, ours": Loader(("tensorflow",), {"threads": ours_tensorflow}),
    "tensorflow, best native": Loader(
        ("tensorflow",),
        {
            "interleaved": partial(tensorflow, make=in_interleave),
            "one thread": partial(tensorflow, make=in_one_thread),
        },
    ),
    "tensorflow, usual": Loader(("tensorflow",), {"AUTOTUNE": partial(tensorflow, make=usual)}),
    "torch, ours": Loader(("torch",), {"threads": ours_torch}),
    "torch, RecordTable": Loader(("torch",), {"one thread": ours_torch_table}, (BLOCKS, ALL)),
    "torch, vahidk/tfrecord": Loader(("torch", "tfrecord"), _workers(vahidk), reads="sample"),
    "torch, HF datasets": Loader(
        ("torch", "datasets"),
        {"torch": partial(hugging_face, form="torch"), "arrow": partial(hugging_face, form="arrow")},
        (PLAIN, BUFFER, ALL),
        "parquet",
    ),
    "torch, webdataset": Loader(("torch", "webdataset"), _workers(webdataset), reads="packed"),
    "torch, MosaicML streaming": Loader(("torch", "streaming"), _workers(mosaic), (PLAIN, BLOCKS), "packed"),
    "arrays, Grain with ArrayRecord": Loader(
        ("grain", "array_record"),
        {"one thread": partial(grain, threads=1), "2 threads": partial(grain, threads=2)},
        (PLAIN, ALL),
        "packed",
    ),
}


def serve_loader(loader: str, way: str, work: Work) -> None:
    """Read all rows in the order that each question names, and answer with the figures of the pass."""
    for package in LOADERS[loader].packages:  # while the other processes also start
        importlib.import_module(package)
    epochs: dict[str, Epoch] = {}

    def answer(order: str) -> dict[str, Any]:
        if order not in epochs:
            epochs[order] = LOADERS[loader].ways[way](work, order)
        return measured(lambda: sum(epochs[order]()))

    serve(answer)


if __name__ == "__main__":
    serve_loader(sys.argv[1], sys.argv[2], Work(*json.loads(sys.argv[3])))
