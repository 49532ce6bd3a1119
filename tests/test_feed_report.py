"""The table of speeds in the guide is the one that the stored figures give."""

import importlib.util
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def test_the_guide_shows_the_stored_figures() -> None:
    spec = importlib.util.spec_from_file_location("feed_report", ROOT / "benchmarks" / "feed_report.py")
    assert spec is not None
    assert spec.loader is not None
    report: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    results = json.loads((ROOT / "benchmarks" / "feeds.json").read_text())
    made = report.BEGIN + report.short_table(results) + report.END
    assert made in (ROOT / "docs" / "training.md").read_text()
    assert report.full_tables(results) == (ROOT / "benchmarks" / "feeds.md").read_text()
