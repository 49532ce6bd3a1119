"""The README, its plots and the pages of comparisons show what was measured."""

import copy
from typing import Any

import pytest
from benchmark_modules import ROOT, benchmark_module


def _rates(rates: list[float], **more: Any) -> dict[str, Any]:
    return {"cpu": rates, "wall": rates, "memory": [100], "rows": 1000, **more}


RESULTS: dict[str, Any] = {
    "machine": {"date": "2026-01-01"},
    "peers": {"dask_tfrecord": "", "parquet": "", "ray": "", "beam": "not installed"},
    "tables": {
        table: {
            "write": {
                "others": 0.1,
                "peers": {
                    "dask_tfrecord": {
                        # 1,000 rows take 20 seconds, and 500 of these rows take 11 seconds
                        "ours": _rates(
                            rates,
                            shares={"write()": 0.6, "plan": 0.01},
                            smaller_rows=500,
                            smaller_seconds=[11, 11],
                        )
                    },
                    "parquet": {"parquet": _rates([10, 10])},
                    # 1,000 rows take 200 seconds, and 200 of these rows take 120 seconds
                    "tfx-bsl": {"": _rates([5, 5], smaller_rows=200, smaller_seconds=[120, 120])},
                    "ray": {"": {"cpu": [], "wall": [], "memory": [], "error": "out of memory"}},
                },
            }
        }
        for table, rates in {"tabular": [40.0, 60.0], "wide": [20.0, 20.0]}.items()
    },
}


def test_the_readme_and_the_page_of_comparisons_show_the_stored_figures() -> None:
    readme, stored = benchmark_module("reports.readme"), benchmark_module("reports.results").stored
    begin, end = benchmark_module("reports").region(readme.COMMAND)
    reasons = readme.reasons(stored("peers"), stored("feeds"))
    assert begin + reasons + end in (ROOT / "README.md").read_text()
    table = benchmark_module("reports.peers").short_table(stored("peers"))
    assert begin + table + end in (ROOT / "docs" / "comparison.md").read_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_plots_show_the_stored_figures(theme: str) -> None:
    picture = benchmark_module("reports.readme").picture(
        benchmark_module("reports.results").stored("peers"), theme
    )
    assert picture == (ROOT / "benchmarks" / f"peers-{theme}.svg").read_text()


def test_the_bars_of_the_plot_have_the_ratios_of_the_claims() -> None:
    bars = benchmark_module("reports.readme").rates(RESULTS, "tabular", "write")
    assert bars == {"dask_tfrecord": 5, "parquet": 1}


def test_the_page_of_results_shows_the_stored_figures() -> None:
    page = benchmark_module("reports.results").page()
    assert page == (ROOT / "benchmarks" / "RESULTS.md").read_text()


def test_a_ratio_compares_rows_per_cpu_second_round_by_round() -> None:
    report = benchmark_module("reports.peers")
    assert report.ratios(RESULTS["tables"]["tabular"]["write"], "parquet") == [4, 6]
    lines = report.short_table(RESULTS).splitlines()
    assert "| Dask's Parquet functions | 2.0 to 5.0 |" in lines


def test_the_start_of_a_tool_does_not_count_for_this_package() -> None:
    found = RESULTS["tables"]["tabular"]["write"]
    compared = benchmark_module("reports.ratios")
    assert compared.ratios(found, "tfx-bsl") == [8, 12]
    assert compared.row_ratio(found, "tfx-bsl") == pytest.approx((80 / 800) / (9 / 500))
    assert compared.claim(found, "tfx-bsl") == compared.row_ratio(found, "tfx-bsl")
    assert compared.row_ratio(found, "parquet") is None


def test_a_ratio_above_100_is_not_printed() -> None:
    compared = benchmark_module("reports.ratios")
    assert [compared.capped(ratio) for ratio in (0.5, 99.96, 100, 100.1, 2e4)] == [
        "0.5",
        "100.0",
        "100.0",
        "> 100",
        "> 100",
    ]
    assert compared.capped_spread([90.0, 110.0, 120.0]) == "> 100 (90.0 to > 100)"


def test_the_pages_say_first_where_another_tool_is_faster() -> None:
    report = benchmark_module("reports.peers")
    slower = copy.deepcopy(RESULTS)
    slower["disk"] = {"wide": copy.deepcopy(slower["tables"]["wide"])}
    slower["disk"]["wide"]["write"]["peers"]["dask_tfrecord"]["ours"]["cpu"] = [4, 6]
    lines = report.sections(slower)
    assert lines[0] == "## Where other tools are faster"
    assert "| write | wide | on disk | Dask's Parquet functions | 0.5 (0.4 to 0.6) |  |" in lines
    assert "| Dask's Parquet functions | **0.5 to 5.0** |" in report.short_table(slower).splitlines()


def test_a_peer_that_fails_is_listed_with_its_error() -> None:
    lines = benchmark_module("reports.peers").sections(RESULTS)
    assert "- Apache Beam: not installed" in lines
    assert "- Ray Data, write, tabular: out of memory" in lines


def test_a_missed_goal_is_named_with_the_steps_that_take_the_time() -> None:
    verdict = benchmark_module("reports.goals").verdict
    found = RESULTS["tables"]["tabular"]["write"]
    assert verdict(found, "parquet", 5.0) == "met"
    assert verdict(found, "parquet", 5.1) == "missed: 60% write()"
    assert verdict(found, "beam", 5.0) == "not measured"
    uneven = copy.deepcopy(found)
    uneven["peers"]["dask_tfrecord"]["ours"]["cpu"] = [39, 70]
    assert verdict(uneven, "parquet", 5.0) == "missed in a round: 60% write()"
