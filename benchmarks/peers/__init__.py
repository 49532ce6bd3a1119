"""Comparisons with other tools. `python -m benchmarks.peers` runs them."""
