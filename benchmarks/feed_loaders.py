"""Define the loaders that `benchmarks.feeds` compares, and the process in which a loader runs."""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask_tfrecord
from benchmarks.peer_jobs.tensorflow import in_interleave, in_one_thread, usual
from benchmarks.workers import measured, serve

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", HF_HUB_OFFLINE="1")

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
    """

    table: str
    codec: str | None
    path: str
    batch_size: int

    def files(self) -> list[str]:
        """Return the paths of the TFRecord files."""
        return sorted(map(str, Path(self.path).glob("part-*")))


# One pass over the rows: the number of rows of each batch.
Epoch = Callable[[], Iterable[int]]


# -- This package --------------------------------------------------------------------------------------------


def ours_arrow(work: Work, shuffle: Any = None) -> Epoch:
    """Read Arrow batches with `iter_batches` of this package."""
    return lambda: (
        batch.num_rows for batch in dask_tfrecord.iter_batches(work.path, work.batch_size, shuffle=shuffle)
    )


def ours_tensorflow(work: Work, shuffle: int | None = None) -> Epoch:
    """Read a tf.data dataset that this package decodes."""
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    return _tensorflow_epoch(tensorflow_dataset(work.path, work.batch_size, engine="kernel", shuffle=shuffle))


def ours_torch(work: Work, shuffle: int | None = None) -> Epoch:
    """Read `TFRecordBatches` of this package as tensors of PyTorch."""
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordBatches

    batches = TFRecordBatches(work.path, work.batch_size, shuffle=shuffle)
    return _torch_epoch(DataLoader(batches, batch_size=None))


def ours_torch_shuffled(work: Work) -> Epoch:
    """Read `TFRecordTable` of this package, with all rows shuffled."""
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordTable

    table = TFRecordTable(work.path)
    return _torch_epoch(DataLoader(table, work.batch_size, shuffle=True, collate_fn=table.collate))


def ours_torch_blocks(work: Work) -> Epoch:
    """Read `TFRecordTable` of this package, with the rows of groups of blocks shuffled."""
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import BlockSampler, TFRecordTable

    data = TFRecordTable(work.path)
    sampler = BlockSampler(data.table, work.batch_size)
    return _torch_epoch(DataLoader(data, batch_sampler=sampler, collate_fn=data.collate))


# -- TensorFlow ----------------------------------------------------------------------------------------------


def tensorflow(work: Work, make: Callable[..., Any]) -> Epoch:
    """Read with TensorFlow's own reader and parser."""
    codec = work.codec and work.codec.upper()
    return _tensorflow_epoch(make(work.files(), codec, work.batch_size, _tensorflow_spec(work.table)))


def _tensorflow_spec(table: str) -> dict[str, Any]:
    import tensorflow as tf

    types = {"int": tf.int64, "float": tf.float32, "byte": tf.string}
    return {
        feature: tf.io.FixedLenFeature([values] if values > 1 else [], types[kind])
        for feature, (kind, values) in FEATURES[table].items()
    }


def _tensorflow_epoch(dataset: Any) -> Epoch:
    return lambda: (int(batch["label"].shape[0]) for batch in dataset)


# -- PyTorch -------------------------------------------------------------------------------------------------


def vahidk(work: Work, *, workers: int) -> Epoch:
    """Read with the tfrecord package, in Python. The workers share a file by means of its index."""
    from tfrecord.torch.dataset import TFRecordDataset
    from torch.utils.data import DataLoader

    [file] = Path(f"{work.path}.sample").glob("part-*")
    index = str(file.parent / "_idx" / f"{file.name}.idx") if workers else None
    features = {feature: kind for feature, (kind, _) in FEATURES[work.table].items()}
    dataset = TFRecordDataset(str(file), index, features, compression_type=work.codec)
    return _torch_epoch(DataLoader(dataset, work.batch_size, num_workers=workers, collate_fn=_collated))


def _collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate rows of arrays to tensors, faster than PyTorch's default collation."""
    import numpy as np
    import torch

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: column if isinstance(column[0], bytes) else torch.from_numpy(np.stack(column))
        for name, column in columns.items()
    }


def hugging_face(work: Work) -> Epoch:
    """Read Parquet files with the datasets package, which copies the rows into a memory-mapped cache.

    The package's own iteration takes less CPU time than a DataLoader, which asks for single rows.
    """
    import datasets

    datasets.disable_progress_bars()
    found = datasets.load_dataset(
        "parquet", data_files=f"{work.path}.parquet", split="train", cache_dir=f"{work.path}.cache"
    ).with_format("torch")
    return lambda: (len(batch["label"]) for batch in found.iter(work.batch_size))


def webdataset(work: Work, *, workers: int) -> Epoch:
    """Read the same rows from tar files with the webdataset package."""
    import webdataset as wds

    tars = sorted(map(str, Path(work.path).parent.glob(f"{Path(work.path).name}-*.tar")))
    found = wds.WebDataset(tars, shardshuffle=False, empty_check=False).decode()
    names = {"vectors": ("x.npy", "cls"), "images": ("bin", "cls")}.get(work.table, ("json",))
    collate = _collated_rows if names == ("json",) else _collated_pairs
    batches = found.to_tuple(*names).batched(work.batch_size, collation_fn=collate)
    return lambda: map(len, _labels(wds.WebLoader(batches, batch_size=None, num_workers=workers)))


def _labels(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch["label"]


def _collated_pairs(rows: list[tuple[Any, int]]) -> dict[str, Any]:
    import numpy as np
    import torch

    values, labels = zip(*rows, strict=True)
    first = list(values) if isinstance(values[0], bytes) else torch.from_numpy(np.stack(values))
    return {"x": first, "label": torch.tensor(labels)}


def _collated_rows(rows: list[tuple[dict[str, Any]]]) -> dict[str, Any]:
    import torch

    return {name: torch.tensor([row[name] for (row,) in rows]) for name in rows[0][0]}


def _torch_epoch(loader: Any) -> Epoch:
    return lambda: (len(batch["label"]) for batch in loader)


# -- All of them ---------------------------------------------------------------------------------------------


class Loader(NamedTuple):
    """Describe a loader, and the measured ways to use this loader.

    Attributes
    ----------
    package : str or None
        The package that the loader needs besides this package.
    ways : dict of str to callable
        The functions that use the loader. The fastest way counts, for CPU time and for wall time separately.
    reads : "tfrecord", "sample", "parquet" or "tar"
        The kind of files that the loader reads. A sample has fewer rows, for loaders that handle every row in
        Python.
    """

    package: str | None
    ways: dict[str, Callable[[Work], Epoch]]
    reads: str = "tfrecord"


LOADERS = {
    "arrow, ours": Loader(None, {"threads": ours_arrow}),
    "arrow, ours, shuffled": Loader(None, {"threads": partial(ours_arrow, shuffle=1)}),
    "arrow, ours, shuffled blocks": Loader(None, {"threads": partial(ours_arrow, shuffle="blocks")}),
    "tensorflow, ours": Loader("tensorflow", {"threads": ours_tensorflow}),
    "tensorflow, ours, shuffled": Loader("tensorflow", {"threads": partial(ours_tensorflow, shuffle=1)}),
    "tensorflow, best native": Loader(
        "tensorflow",
        {
            "interleaved": partial(tensorflow, make=in_interleave),
            "one thread": partial(tensorflow, make=in_one_thread),
        },
    ),
    "tensorflow, usual": Loader("tensorflow", {"AUTOTUNE": partial(tensorflow, make=usual)}),
    "torch, ours": Loader("torch", {"threads": ours_torch}),
    "torch, ours, shuffled": Loader("torch", {"threads": partial(ours_torch, shuffle=1)}),
    "torch, ours, all rows shuffled": Loader("torch", {"one thread": ours_torch_shuffled}),
    "torch, ours, shuffled blocks": Loader("torch", {"one thread": ours_torch_blocks}),
    "torch, vahidk/tfrecord": Loader(
        "tfrecord",
        {"one process": partial(vahidk, workers=0), "2 workers": partial(vahidk, workers=2)},
        "sample",
    ),
    "torch, HF datasets": Loader("datasets", {"iter": hugging_face}, "parquet"),
    "torch, webdataset": Loader(
        "webdataset",
        {"one process": partial(webdataset, workers=0), "2 workers": partial(webdataset, workers=2)},
        "tar",
    ),
}


def serve_loader(loader: str, way: str, work: Work) -> None:
    """Read all rows once for each question on standard input, and answer with the figures of the pass."""
    epoch = LOADERS[loader].ways[way](work)
    serve(lambda _: measured(lambda: sum(epoch())))
