"""The breakdown of the benchmarks finds the functions of each step, and counts no time twice."""

from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pytest
from benchmark_modules import benchmark_module

import dask_tfrecord

breakdown: Any = benchmark_module("breakdown")


@pytest.fixture
def ddf() -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"key": [0, 1] * 50, "value": range(100)}), npartitions=3)


def test_every_step_of_a_write_happens(ddf: dd.DataFrame, tmp_path: Path) -> None:
    with dask.config.set(scheduler="threads"):
        spent = breakdown.breakdown(
            lambda: dask_tfrecord.to_tfrecord(ddf, tmp_path / "data", compression="gzip"), breakdown.WRITE
        )
    assert set(spent) == set(breakdown.WRITE)
    assert all(seconds >= 0 for seconds in spent.values())


def test_every_step_of_a_read_happens(ddf: dd.DataFrame, tmp_path: Path) -> None:
    dask_tfrecord.to_tfrecord(ddf, tmp_path, compression="gzip")
    with dask.config.set(scheduler="threads"):
        spent = breakdown.breakdown(lambda: dask_tfrecord.read_tfrecord(tmp_path).compute(), breakdown.READ)
    assert set(spent) == {*breakdown.READ, breakdown.REST}


def test_a_step_inside_another_step_counts_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10))
    monkeypatch.setattr(breakdown.time, "thread_time", lambda: next(clock))
    monkeypatch.setattr(breakdown.time, "process_time", iter([0, 7]).__next__)
    monkeypatch.setattr(breakdown, "_inner", lambda: None, raising=False)
    monkeypatch.setattr(breakdown, "_outer", lambda: breakdown._inner(), raising=False)
    steps = {"outer": [f"{breakdown.__name__}._outer"], "inner": [f"{breakdown.__name__}._inner"]}
    spent = breakdown.breakdown(lambda: breakdown._outer(), steps)
    assert spent == {"outer": 2, "inner": 1, breakdown.REST: 4}


def test_shares_are_sorted_and_small_ones_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [{"plan": 0.0, "encode": 99.5, "commit": 0.1}, {"plan": 3.0, "encode": 97.0, "commit": 0.4}]
    breakdown.show(runs)
    assert capsys.readouterr().out.splitlines() == [
        "  100.000 CPU s: encode 98%, plan 2%",
        "  with the GIL: at most 2%, enough for 57.1 threads",
    ]
