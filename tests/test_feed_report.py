"""The tables of speeds show the stored figures, and all loaders read the same rows."""

import json

import pyarrow as pa
import pytest
from benchmark_modules import ROOT, benchmark_module


def test_the_guide_shows_the_stored_figures() -> None:
    report = benchmark_module("reports.feeds")
    results = json.loads((ROOT / "benchmarks" / "feeds.json").read_text())
    begin, end = benchmark_module("reports").region(report.COMMAND)
    assert begin + report.short_table(results) + end in (ROOT / "docs" / "training.md").read_text()
    assert report.full_tables(results) == (ROOT / "benchmarks" / "feeds.md").read_text()


@pytest.mark.parametrize("table", ["tabular", "vectors", "wide", "images"])
def test_other_loaders_read_the_rows_of_the_table(table: str) -> None:
    data = benchmark_module("feed_data")
    frame = data.make(table, 5)
    columns = data.unpacked(table, list(data.packed(table, frame)))
    for name in frame:
        found = list(map(bytes, columns[name])) if name == "image" else columns[name].tolist()
        assert found == pa.array(frame[name]).to_pylist()
