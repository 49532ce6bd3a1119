"""The table of speeds in the guide is the one that the stored figures give."""

import json

from benchmark_modules import ROOT, benchmark_module


def test_the_guide_shows_the_stored_figures() -> None:
    report = benchmark_module("reports.feeds")
    results = json.loads((ROOT / "benchmarks" / "feeds.json").read_text())
    begin, end = benchmark_module("reports").region(report.COMMAND)
    assert begin + report.short_table(results) + end in (ROOT / "docs" / "training.md").read_text()
    assert report.full_tables(results) == (ROOT / "benchmarks" / "feeds.md").read_text()
