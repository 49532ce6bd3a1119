"""The modules of ``benchmarks/``, which are not installed."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent.parent


def benchmark_module(name: str) -> ModuleType:
    """Import ``benchmarks.NAME`` from the checkout; the package under test keeps its place on the path."""
    sys.path.append(str(ROOT))
    try:
        return importlib.import_module(f"benchmarks.{name}")
    finally:
        sys.path.remove(str(ROOT))
