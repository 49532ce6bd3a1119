"""No row is lost, doubled or changed while clients change one dataset and processes are killed and stopped.

    DASK_TFRECORD_SOAK_MINUTES=20 pytest -s tests/soak [-k local]

In each round, two client processes do random operations on a cluster of processes, while processes are killed
and stopped. A model says what each read may return. At the end of a round, when nothing runs, the dataset and
some of its versions are read, verified and cleaned up.

Each case takes this many minutes; with 0, each case does one round. Without the variable, the cases are
skipped. DASK_TFRECORD_SOAK_SEED repeats the choices of an earlier run, but not the times of its processes.
"""

import logging
import os
import random
import time
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import dask
import fsspec
import pytest
import soak_client
from distributed import Client, LocalCluster
from servers import s3_server
from soak import CONTEXT, WORKERS, Soak

import dask_tfrecord

MINUTES = os.environ.get("DASK_TFRECORD_SOAK_MINUTES")
SEED = int(os.environ.get("DASK_TFRECORD_SOAK_SEED", random.SystemRandom().randrange(1_000_000)))
LOG = 80  # events that a failure prints: at least a round
CONFIG = {
    "distributed.worker.multiprocessing-method": "forkserver",
    # Dask fails a task that was on this many killed workers. The default is 3.
    "distributed.scheduler.allowed-failures": 1_000,
    # LocalCluster closes the nanny of a worker that is not connected this long after it was lost, even if the
    # worker has been back meanwhile and was killed again. The default is 15 seconds.
    "distributed.deploy.lost-worker-timeout": "1 day",
}


@pytest.fixture(params=["local", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Return the path of the dataset, and environment variables."""
    if request.param != "s3":
        yield f"{tmp_path}/data", {}
        return
    with s3_server() as options:
        environment = {"AWS_ENDPOINT_URL": options["endpoint_url"], "AWS_DEFAULT_REGION": "us-east-1"}
        environment |= {"AWS_ACCESS_KEY_ID": options["key"], "AWS_SECRET_ACCESS_KEY": options["secret"]}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("soak")
        yield "s3://soak/data", environment | {"AWS_EC2_METADATA_DISABLED": "true"}


@pytest.mark.seconds(60 * float(MINUTES or 0))
@pytest.mark.skipif(MINUTES is None, reason="DASK_TFRECORD_SOAK_MINUTES says how long this test runs")
def test_no_row_is_lost_while_processes_are_killed(
    store: tuple[str, Mapping[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    path, environment = store
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it warns of killed workers
    caplog.set_level(logging.CRITICAL, logger="distributed")
    print(f"\ndask-tfrecord {dask_tfrecord.__version__}, {path}, DASK_TFRECORD_SOAK_SEED={SEED}", flush=True)
    # A new process is a copy of a process that has imported these modules.
    CONTEXT.set_forkserver_preload(["dask_tfrecord", "dask.dataframe", "distributed.nanny", "s3fs"])
    forkserver.ensure_running()
    options: dict[str, Any] = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": ":0"}
    options |= {"memory_limit": 0, "silence_logs": logging.CRITICAL, "env": dict(environment)}
    with dask.config.set(CONFIG), LocalCluster(**options) as cluster, Client(cluster) as client:
        soak = Soak(cluster, client, path, SEED, environment)
        right = False
        try:
            right = run_rounds(soak, float(MINUTES or 0))
        except Exception:  # also a failure at rest needs the seed and the log
            soak.log.append(traceback.format_exc())
        for process in soak.clients:
            process.kill()
        print_result(soak)
    if not right:
        pytest.fail("\n".join([f"seed {SEED}; the last events:", *soak.log[-LOG:]]), pytrace=False)


def run_rounds(soak: Soak, minutes: float) -> bool:
    """Run rounds until the time is over or something is wrong, but at least one round."""
    end = time.monotonic() + 60 * minutes
    number = 0
    while number == 0 or (soak.right and time.monotonic() < end):
        soak.round()
        number += 1
        counts = f"{soak.outcomes.total()} operations, {soak.faults.total()} faults"
        print(f"round {number}: {counts}", flush=True)
    return soak.right


def print_result(soak: Soak) -> None:
    columns = ["succeeded", "failed as promised", "failed otherwise", "client killed"]
    print(f"{'operation':14}", *columns, sep="  ")
    for kind in soak_client.WEIGHTS:
        counts = [f"{soak.outcomes[kind, column]:{len(column)}}" for column in columns]
        print(f"{kind:14}", *counts, sep="  ")
    for name, count in {**soak.faults, "faults injected": soak.faults.total(), **soak.model.wrong}.items():
        print(f"{name}: {count}")
