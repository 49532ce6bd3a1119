"""Benchmarks, run as ``python -m benchmarks.NAME``. Each figure is measured beside its reference."""
