"""Runnable as ``python -m benchmarks.NAME``; every figure is measured beside what it is compared with."""
