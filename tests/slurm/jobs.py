"""What docs/cluster.md says about SLURM, as jobs. Started by `run`. Each statement is checked and printed."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
from dask_jobqueue import SLURMCluster
from distributed import Client
from distributed.scheduler import NoWorkerError

import dask_tfrecord

PARTITIONS, ROWS = 40, 100


def cluster(*lifetime: str, **options: Any) -> SLURMCluster:
    # Everything runs on this machine, so the workers and the scheduler talk on the loopback interface.
    return SLURMCluster(
        cores=1,
        processes=1,
        memory="1GiB",
        walltime="00:03:00",
        interface="lo",
        log_directory="logs",
        scheduler_options={"dashboard": False},
        worker_extra_args=["--no-dashboard", *lifetime],
        **options,
    )


def partition(number: int) -> pd.DataFrame:
    """A partition that takes two seconds."""
    time.sleep(2)
    rows = range(number * ROWS, (number + 1) * ROWS)
    return pd.DataFrame({"n": rows, "job": int(os.environ["SLURM_JOB_ID"])})


def readings() -> dd.DataFrame:
    meta = pd.DataFrame({"n": pd.Series(dtype="int64"), "job": pd.Series(dtype="int64")})
    return dd.from_map(partition, range(PARTITIONS), meta=meta)


def chosen_python(client: Client) -> str | None:
    client.wait_for_workers(1, timeout=120)
    [found] = client.run(lambda: os.environ.get("CHOSEN_PYTHON")).values()
    return str(found) if found else None


def check_the_python_of_the_workers() -> None:
    other = Path("other/bin")
    other.mkdir(parents=True)
    activate, python = other / "activate", other / "python"
    activate.write_text(f"PATH={other.absolute()}:$PATH\n")
    python.write_text(f'#!/bin/sh\nCHOSEN_PYTHON=other exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with cluster(job_script_prologue=[f"source {activate.absolute()}"]) as started:
        started.scale(jobs=1)
        with started.get_client() as client:
            assert chosen_python(client) is None
    print("'source .../activate' does not choose the Python of the workers", flush=True)
    with cluster(python=str(python.absolute())) as started:
        started.scale(jobs=1)
        with started.get_client() as client:
            assert chosen_python(client) == "other"
    print("python= chooses the Python of the workers", flush=True)


def check_scale() -> None:
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "30s"}):
        started = cluster("--lifetime", "20s", "--lifetime-stagger", "2s")
    with started:
        started.scale(jobs=2)
        with started.get_client():
            try:
                dask_tfrecord.to_tfrecord(readings(), "scaled")
            except NoWorkerError as error:
                print(f"scale() starts no new jobs: {error}", flush=True)
            else:
                raise AssertionError("the write ended although no worker was left")
    assert not dask_tfrecord.exists("scaled")


def check_adapt() -> None:
    with cluster("--lifetime", "60s", "--lifetime-stagger", "25s") as started:
        started.adapt(minimum_jobs=2, maximum_jobs=2)
        with started.get_client():
            before = time.monotonic()
            for number in range(3):  # if all workers end at the same time, only one write is repeated
                dask_tfrecord.to_tfrecord(readings(), "adapted", append=number > 0)
            seconds = time.monotonic() - before
    rows = dask_tfrecord.read_tfrecord("adapted").compute(scheduler="threads")
    assert sorted(rows["n"]) == sorted([*range(PARTITIONS * ROWS)] * 3)
    jobs = rows["job"].nunique()
    assert jobs > 2, jobs
    print(f"adapt() starts new jobs: {jobs} jobs wrote {len(rows):,} rows in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    check_the_python_of_the_workers()
    check_scale()
    check_adapt()
