"""Benchmarks, run as ``python -m benchmarks.NAME``. Each benchmark also measures a reference."""
