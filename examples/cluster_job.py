"""A batch job for an operator: readings of sensors are cleaned and written as one dataset, by a cluster.

Run it with ``python examples/cluster_job.py [OUTPUT] [--scheduler ADDRESS] [--days DAYS]``. ADDRESS is that
of a running scheduler, such as tcp://10.0.0.5:8786; without it, the job starts two worker processes. OUTPUT
is a directory or a URL that all workers reach, such as s3://bucket/readings. The workers make the data.

The job may be killed and run again at any time: a run replaces the output as a whole, or leaves it unchanged.
The exit code is 0 after success, 1 if the job failed and 2 if the arguments are wrong.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import dask
import dask.dataframe as dd
import pandas as pd
from distributed import Client, LocalCluster

import dask_tfrecord


def readings(days: int) -> dd.DataFrame:
    """Return the readings of some days, a partition for each hour."""
    end = pd.Timestamp("2026-01-01") + pd.Timedelta(days=days)
    return dask.datasets.timeseries("2026-01-01", str(end.date()), partition_freq="1h", seed=0)


def clean(part: pd.DataFrame) -> pd.DataFrame:
    """Prepare one partition: the time becomes a column, and outliers are dropped."""
    part = part.rename_axis("time").reset_index()
    return part[part["x"].abs() < 0.99]


def run(output: str, days: int) -> None:
    """Write the dataset, and read it once to prove it."""
    if dask_tfrecord.exists(output):
        # Remove the files of earlier runs that were killed more than a day ago.
        dask_tfrecord.open_dataset(output).cleanup()
    ddf = readings(days).map_partitions(clean)
    written = dask_tfrecord.to_tfrecord(
        ddf,
        output,
        overwrite=True,
        write_options={"npartitions": 4 * days},
        compression="gzip",
        lossy="allow",
        compute_kwargs={"retries": 3},
    )
    print(written)
    by_name = dask_tfrecord.read_tfrecord(output)["name"].value_counts().compute()
    assert by_name.sum() == written.rows
    print(f"{len(by_name)} names, {by_name.sum():,} readings")


def connect(scheduler: str | None) -> Client:
    """Return a client of the scheduler, or of two processes on this machine, which it closes at the end."""
    if scheduler is not None:
        return Client(scheduler, timeout="30 s")
    return Client(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0"))


def main() -> int:
    """Run the job with the arguments of the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description="Write cleaned readings as TFRecord files.")
    parser.add_argument("output", nargs="?", help="directory or URL of the dataset")
    parser.add_argument("--scheduler", help="address of a running scheduler")
    parser.add_argument("--days", type=int, default=2, help="days of data to make")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("dask_tfrecord").setLevel(logging.INFO)
    output = options.output or str(Path(tempfile.mkdtemp()) / "readings")
    try:
        with connect(options.scheduler) as client:
            try:
                run(output, options.days)
            finally:
                if client.cluster is not None:
                    client.cluster.close()
    except (dask_tfrecord.TFRecordError, OSError) as error:  # OSError: no scheduler, or no store
        print(f"cluster_job: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
