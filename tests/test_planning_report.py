"""The prediction of large jobs: its arithmetic, and the tables of the guide."""

import json
from typing import Any

import pytest
from benchmark_modules import ROOT, benchmark_module

# A task costs the scheduler 1 ms, and 10,000 tasks cost the client 5 s.
COSTS = {"graph_seconds": 5.0, "task_ms": 1.0, "commit_ms": {"local": 0.5}}


@pytest.fixture(scope="module")
def report() -> Any:
    return benchmark_module("reports.planning")


def test_a_write_is_limited_by_the_cores_and_then_by_the_scheduler(report: Any) -> None:
    job = report.write_job(COSTS, rate=1e8, size=1e12, partition=1e8, cores=100)
    assert (job.tasks, job.graph, job.compute, job.scheduler, job.commit) == (10_000, 5, 100, 10, 5)
    assert (job.seconds, job.limit) == (110, "compute")
    job = report.write_job(COSTS, rate=1e8, size=1e12, partition=1e8, cores=10_000)
    assert (job.compute, job.seconds, job.limit) == (1, 20, "scheduler")


def test_a_write_is_limited_by_the_network_of_the_workers(report: Any) -> None:
    job = report.write_job(COSTS, rate=1e8, size=1e12, partition=1e8, cores=1_000, bandwidth=1e10)
    assert (job.compute, job.network, job.seconds, job.limit) == (10, 100, 110, "network")


def test_a_last_wave_of_tasks_takes_as_long_as_the_others(report: Any) -> None:
    assert report.write_job(COSTS, rate=1e8, size=5e8, partition=1e8, cores=4).compute == 2


def test_a_scheduler_keeps_cores_busy_in_proportion_to_the_partition(report: Any) -> None:
    assert report.most_cores(COSTS, rate=1e8, partition=1e8) == 1_000
    assert report.most_cores(COSTS, rate=1e8, partition=1e9) == 10_000


def test_the_guide_shows_the_stored_constants(report: Any) -> None:
    found = json.loads((ROOT / "benchmarks" / "planning.json").read_text())
    begin, end = benchmark_module("reports").region(report.COMMAND)
    assert begin + report.tables(found) + end in (ROOT / "docs" / "planning.md").read_text()
