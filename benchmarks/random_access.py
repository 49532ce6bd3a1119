"""Compare random batches of records with ArrayRecord and with HF datasets, in rows per CPU second.

All readers run in one process, and take turns: in each round, one reader after the other reads the same
random rows in batches of 256. The values of a batch end in contiguous memory. ArrayRecord and HF datasets
hold the plain values and not Examples. A reader that is not installed is left out.

    python -m benchmarks.random_access [--rounds 7] [--scale 1.0] [floats ints images ...]
"""

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord
from benchmarks.reports import round_ratios
from benchmarks.workers import memory_folder

BATCH_SIZE = 256

# The number of rows of each table, and the number of rows that a round reads.
TABLES = {"floats": (60_000, 20_000), "ints": (30_000, 10_000), "images": (2_000, 2_000)}

# Reads the rows with these numbers, and returns their values.
Read = Callable[[Any], Any]


def make(table: str, rows: int) -> pa.Array:
    """Generate the rows of a table: 512 floats, 1,000 integers, or an image of 100 KB."""
    random = np.random.default_rng(0)
    if table == "images":
        return pa.array([random.bytes(100_000) for _ in range(rows)], pa.binary())
    if table == "floats":
        return pa.FixedSizeListArray.from_arrays(random.random(rows * 512, np.float32), 512)
    return pa.FixedSizeListArray.from_arrays(random.integers(0, 50_000, rows * 1000), 1000)


def ours(values: pa.Array, path: str) -> Read:
    """Read a `RecordTable` of this package."""
    frame = pd.DataFrame({"x": pd.arrays.ArrowExtensionArray(values)})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=4), path)
    return dask_tfrecord.RecordTable(path).batch


def array_record(values: pa.Array, path: str) -> Read:
    """Read ArrayRecord, with one record in each chunk. Lists of numbers become one NumPy array."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from array_record.python.array_record_module import ArrayRecordWriter

    is_list = pa.types.is_fixed_size_list(values.type)
    writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
    for row in values:
        writer.write(row.values.to_numpy().tobytes() if is_list else row.as_py())
    writer.close()
    source = ArrayRecordDataSource(path)
    if not is_list:
        return lambda rows: source.__getitems__(rows.tolist())
    dtype = values.type.value_type.to_pandas_dtype()
    return lambda rows: np.frombuffer(b"".join(source.__getitems__(rows.tolist())), dtype)


def hugging_face(values: pa.Array, path: str, form: str | None) -> Read:
    """Read the memory-mapped Arrow file of HF datasets."""
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(pa.table({"x": values})).save_to_disk(path)
    data = datasets.load_from_disk(path).with_format(form)
    if form is None:
        return lambda rows: data[rows]["x"]
    return lambda rows: data[rows]["x"].combine_chunks()


def measure(table: str, rounds: int, scale: float, folder: str) -> dict[str, list[float]]:
    """Return the rows per CPU second of each reader, for each round."""
    count, wanted = (max(BATCH_SIZE, int(rows * scale)) for rows in TABLES[table])
    values = make(table, count)
    readers = {"ours": ours(values, f"{folder}/{table}")}
    if importlib.util.find_spec("array_record"):
        readers["ArrayRecord"] = array_record(values, f"{folder}/{table}.array_record")
    if importlib.util.find_spec("datasets"):
        readers["HF datasets, Arrow"] = hugging_face(values, f"{folder}/{table}.arrow", "arrow")
        if table == "images":
            readers["HF datasets, bytes"] = hugging_face(values, f"{folder}/{table}.python", None)
    found: dict[str, list[float]] = {name: [] for name in readers}
    random = np.random.default_rng(1)
    for number in range(rounds + 1):
        rows = random.permutation(count)[: wanted // BATCH_SIZE * BATCH_SIZE].reshape(-1, BATCH_SIZE)
        for name, read in readers.items():
            start = time.process_time()
            for batch in rows:
                read(batch)
            if number:  # the first round warms up
                found[name].append(rows.size / (time.process_time() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of rows")
    arguments = parser.parse_args()
    for table in arguments.tables or TABLES:
        with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            found = measure(table, arguments.rounds, arguments.scale, folder)
        print(table)
        for name, rates in found.items():
            ratio = median(round_ratios(found["ours"], rates))
            print(f"  {name:22}{median(rates):12,.0f} rows per CPU s   ours: {ratio:.2f} x")


if __name__ == "__main__":
    main()
