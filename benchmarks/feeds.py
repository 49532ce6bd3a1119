"""Batches for training: rows per CPU second and per second, against the loaders that people use today.

Every loader runs in a process of its own, because frameworks keep threads, and reads the same rows in batches
of the same size. Loaders whose package is not installed are left out. Rows per CPU second are the figure that
other work on the machine disturbs least. The files are in memory where the system has such a place.

    python -m benchmarks.feeds [--rounds 3] [--scale 1.0] [--plot FILE] [tabular vectors wide images ...]
"""

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")

PARTITIONS = 4


class Job(NamedTuple):
    """A dataset and how it is read."""

    rows: int
    batch_size: int
    compression: str | None = None


JOBS = {
    "tabular": Job(1_000_000, 8192),
    "tabular gzip": Job(1_000_000, 8192, "gzip"),
    "vectors": Job(200_000, 8192),
    "wide": Job(50_000, 8192),
    "images": Job(5_000, 32),
}

# The features of each dataset for TensorFlow's parser and for vahidk's reader: kind, and values a row.
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


def make(name: str, rows: int) -> pd.DataFrame:
    """Draw the rows of a dataset."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for feature, (kind, values) in FEATURES[name.split()[0]].items():
        if kind == "byte":
            data = [random.bytes(100_000) for _ in range(rows)]
            columns[feature] = pd.array(data, pd.ArrowDtype(pa.binary()))
        elif values > 1:
            flat = pa.array(random.random(rows * values, dtype=np.float32))
            columns[feature] = pd.arrays.ArrowExtensionArray(pa.FixedSizeListArray.from_arrays(flat, values))
        else:
            columns[feature] = (
                random.integers(0, 1000, rows) if kind == "int" else random.random(rows, dtype=np.float32)
            )
    return pd.DataFrame(columns)


def files_of(path: str) -> list[str]:
    """The data files of a dataset."""
    return sorted(map(str, Path(path).glob("part-*")))


def arrow(name: str, path: str, batch_size: int) -> Iterable[int]:
    """Our batches as Arrow."""
    return (batch.num_rows for batch in dask_tfrecord.iter_batches(path, batch_size))


def ours_tensorflow(name: str, path: str, batch_size: int) -> Iterable[int]:
    """Our decoder behind tf.data."""
    from dask_tfrecord.feed.tensorflow import tensorflow_dataset

    return (int(batch["label"].shape[0]) for batch in tensorflow_dataset(path, batch_size, engine="ours"))


def native_tensorflow(name: str, path: str, batch_size: int) -> Iterable[int]:
    """TensorFlow's reader at its best: batches are made and parsed in the interleave."""
    import tensorflow as tf

    spec = _tensorflow_spec(name)
    codec = "GZIP" if "gzip" in name else None

    def read(file: Any) -> Any:
        records = tf.data.TFRecordDataset(file, codec, buffer_size=1 << 22).batch(batch_size)
        return records.map(lambda batch: tf.io.parse_example(batch, spec))

    found = tf.data.Dataset.from_tensor_slices(files_of(path))
    found = found.interleave(read, cycle_length=2, num_parallel_calls=2).prefetch(2)
    return (int(batch["label"].shape[0]) for batch in found)


def usual_tensorflow(name: str, path: str, batch_size: int) -> Iterable[int]:
    """TensorFlow's reader as most people write it."""
    import tensorflow as tf

    spec = _tensorflow_spec(name)
    codec = "GZIP" if "gzip" in name else None
    found = tf.data.TFRecordDataset(files_of(path), codec, num_parallel_reads=tf.data.AUTOTUNE).batch(
        batch_size
    )
    found = found.map(lambda batch: tf.io.parse_example(batch, spec), tf.data.AUTOTUNE).prefetch(2)
    return (int(batch["label"].shape[0]) for batch in found)


def _tensorflow_spec(name: str) -> dict[str, Any]:
    import tensorflow as tf

    types = {"int": tf.int64, "float": tf.float32, "byte": tf.string}
    return {
        feature: tf.io.FixedLenFeature([values] if values > 1 else [], types[kind])
        for feature, (kind, values) in FEATURES[name.split()[0]].items()
    }


def ours_torch(name: str, path: str, batch_size: int) -> Iterable[int]:
    """Our batches as tensors of PyTorch."""
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordBatches

    loader = DataLoader(TFRecordBatches(path, batch_size), batch_size=None)
    return (len(batch["label"]) for batch in loader)


def ours_torch_shuffled(name: str, path: str, batch_size: int) -> Iterable[int]:
    """Our map-style dataset, all rows shuffled."""
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordTable

    table = TFRecordTable(path)
    loader = DataLoader(table, batch_size, shuffle=True, collate_fn=table.collate)
    return (len(batch["label"]) for batch in loader)


def vahidk(name: str, path: str, batch_size: int) -> Iterable[int]:
    """The tfrecord package, which reads records in Python; one file of the dataset."""
    from tfrecord.torch.dataset import TFRecordDataset
    from torch.utils.data import DataLoader

    features = {feature: kind for feature, (kind, _) in FEATURES[name.split()[0]].items()}
    file = files_of(path)[0]
    found = TFRecordDataset(file, None, features, compression_type="gzip" if "gzip" in name else None)
    loader = DataLoader(found, batch_size, collate_fn=lambda rows: rows)
    return (len(batch) for batch in loader)


def hugging_face(name: str, path: str, batch_size: int) -> Iterable[int]:
    """The datasets package on the same rows as Parquet."""
    import datasets
    from torch.utils.data import DataLoader

    datasets.disable_progress_bars()
    found = datasets.load_dataset(
        "parquet", data_files=f"{path}.parquet", split="train", cache_dir=f"{path}.hf"
    )
    loader = DataLoader(found.with_format("torch"), batch_size)
    return (len(batch["label"]) for batch in loader)


def webdataset(name: str, path: str, batch_size: int) -> Iterable[int]:
    """The webdataset package on the same rows as a tar file of NumPy arrays."""
    import webdataset as wds

    found = (
        wds.WebDataset(f"{path}.tar", shardshuffle=False, empty_check=False).decode().to_tuple("x.npy", "cls")
    )
    return (len(batch[1]) for batch in found.batched(batch_size))


# Each loader: the package that it needs, and the datasets that it reads (all by default).
LOADERS: dict[str, tuple[Callable[[str, str, int], Iterable[int]], str | None, set[str]]] = {
    "arrow": (arrow, None, set()),
    "tensorflow, ours": (ours_tensorflow, "tensorflow", set()),
    "tensorflow, best native": (native_tensorflow, "tensorflow", set()),
    "tensorflow, usual": (usual_tensorflow, "tensorflow", set()),
    "torch, ours": (ours_torch, "torch", set()),
    "torch, ours, all rows shuffled": (ours_torch_shuffled, "torch", set()),
    "torch, vahidk": (vahidk, "tfrecord", set()),
    "torch, HF datasets": (hugging_face, "datasets", {"vectors"}),
    "torch, webdataset": (webdataset, "webdataset", {"vectors"}),
}


def measure(loader: str, name: str, path: str, batch_size: int) -> dict[str, float]:
    """Read a dataset twice, and return the figures of the faster time. Runs in a process of its own."""
    read, *_ = LOADERS[loader]
    best: dict[str, float] = {}
    for _ in range(2):
        start, busy = time.perf_counter(), _cpu()
        rows = sum(read(name, path, batch_size))
        figures = {"cpu": rows / (_cpu() - busy), "wall": rows / (time.perf_counter() - start), "rows": rows}
        best = max(best, figures, key=lambda one: one.get("cpu", 0))
    return best


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write(name: str, job: Job, path: str, scale: float) -> None:
    """Write a dataset, and the forms of it that other loaders read."""
    frame = make(name, max(PARTITIONS, int(job.rows * scale)))
    dask_tfrecord.to_tfrecord(
        dd.from_pandas(frame, npartitions=PARTITIONS), path, compression=job.compression
    )
    if name == "vectors" and importlib.util.find_spec("datasets"):
        frame.to_parquet(f"{path}.parquet")
    if name == "vectors" and importlib.util.find_spec("webdataset"):
        import webdataset as wds

        with wds.TarWriter(f"{path}.tar") as tar:
            for row, (x, label) in enumerate(zip(frame["x"], frame["label"], strict=True)):
                tar.write({"__key__": f"{row:08}", "x.npy": np.asarray(x, np.float32), "cls": int(label)})


def run(name: str, scale: float, rounds: int, folder: str | None) -> dict[str, dict[str, float]]:
    """Measure all loaders on one dataset, in turns."""
    job = JOBS[name]
    batch_size = max(1, min(job.batch_size, int(job.rows * scale)))
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as root:
        path = f"{root}/data"
        write(name, job, path, scale)
        usable = [
            loader
            for loader, (_, package, names) in LOADERS.items()
            if (package is None or importlib.util.find_spec(package)) and (not names or name in names)
        ]
        for _ in range(rounds):
            for loader in usable:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.feeds",
                    "--measure",
                    loader,
                    name,
                    path,
                    str(batch_size),
                ]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                figures = json.loads(output.splitlines()[-1])
                found[loader] = max(found.get(loader, figures), figures, key=lambda one: one["cpu"])
    return found


def plot(results: dict[str, dict[str, dict[str, float]]], path: str) -> None:
    """Draw rows per CPU second as an SVG of bars, on a logarithmic scale."""
    lines, y = [], 20
    for name, found in results.items():
        lines.append(f'<text x="10" y="{y}" font-weight="bold">{name}</text>')
        for loader, figures in found.items():
            y += 18
            width = 60 * np.log10(max(figures["cpu"], 10))
            colour = "#2a7" if "ours" in loader or loader == "arrow" else "#888"
            lines.append(f'<text x="20" y="{y}">{loader}</text>')
            lines.append(f'<rect x="240" y="{y - 11}" width="{width:.0f}" height="13" fill="{colour}"/>')
            lines.append(f'<text x="{246 + width:.0f}" y="{y}">{figures["cpu"]:,.0f}</text>')
        y += 30
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{y}" {style}>'
    Path(path).write_text("\n".join([head, *lines, "</svg>", ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ", ".join(JOBS)
    parser.add_argument("datasets", nargs="*", metavar="dataset", help=f"of {known}; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of rows")
    parser.add_argument("--plot", metavar="FILE", help="write the figures as an SVG")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        loader, name, path, batch_size = arguments.measure
        print(json.dumps(measure(loader, name, path, int(batch_size))))
        return
    memory = "/dev/shm"
    folder = memory if os.access(memory, os.W_OK) else None
    print(f"dask-tfrecord {dask_tfrecord.__version__}, best of {arguments.rounds} rounds")
    print(f"{'':34}{'rows per CPU s':>16}{'rows per s':>14}")
    results = {}
    for name in arguments.datasets or JOBS:
        results[name] = run(name, arguments.scale, arguments.rounds, folder)
        best = results[name].get("tensorflow, best native")
        print(name)
        for loader, figures in results[name].items():
            ratio = f"   {figures['cpu'] / best['cpu']:.2f} x TensorFlow's best" if best else ""
            print(f"  {loader:32}{figures['cpu']:16,.0f}{figures['wall']:14,.0f}{ratio}")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
