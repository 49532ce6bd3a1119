"""The README and the page of results show the comparison with other tools that was measured."""

import copy
from typing import Any

from benchmark_modules import ROOT, benchmark_module

RESULTS: dict[str, Any] = {
    "machine": {"date": "2026-01-01"},
    "peers": {"dask_tfrecord": "", "parquet": "", "ray": "", "beam": "not installed"},
    "tables": {
        table: {
            "write": {
                "others": 0.1,
                "peers": {
                    "dask_tfrecord": {"ours": {"cpu": rates, "wall": rates, "memory": [100], "rows": 10}},
                    "parquet": {"parquet": {"cpu": [10, 10], "wall": [5, 5], "memory": [100], "rows": 10}},
                    "ray": {"": {"cpu": [], "wall": [], "memory": [], "error": "out of memory"}},
                },
            }
        }
        for table, rates in {"tabular": [40, 60], "wide": [20, 20]}.items()
    },
}


def test_the_readme_shows_the_stored_figures() -> None:
    report = benchmark_module("reports.peers")
    begin, end = benchmark_module("reports").region(report.COMMAND)
    table = report.short_table(benchmark_module("reports.results").stored("peers"))
    assert begin + table + end in (ROOT / "README.md").read_text()


def test_the_page_of_results_shows_the_stored_figures() -> None:
    page = benchmark_module("reports.results").page()
    assert page == (ROOT / "benchmarks" / "RESULTS.md").read_text()


def test_a_ratio_compares_rows_per_cpu_second_round_by_round() -> None:
    report = benchmark_module("reports.peers")
    assert report.ratios(RESULTS["tables"]["tabular"]["write"], "parquet") == [4, 6]
    lines = report.short_table(RESULTS).splitlines()
    assert "| Dask's Parquet functions | 2.0 to 5.0 | - | - | - | - |" in lines


def test_a_peer_that_fails_is_listed_with_its_error() -> None:
    lines = benchmark_module("reports.peers").sections(RESULTS)
    assert "- Apache Beam: not installed" in lines
    assert "- Ray Data, write, tabular: out of memory" in lines


def test_a_missed_goal_is_named_with_its_reason() -> None:
    report = benchmark_module("reports.peers")
    goal = "write, wide: relative to Dask's Parquet functions"
    [line] = [line for line in report.sections(RESULTS) if goal in line]
    assert f"| missed: {report.REASONS['write', 'wide']} |" in line
    met = copy.deepcopy(RESULTS)
    met["tables"]["wide"]["write"]["peers"]["dask_tfrecord"]["ours"]["cpu"] = [30, 30]
    [line] = [line for line in report.sections(met) if goal in line]
    assert line.endswith("| met |")
