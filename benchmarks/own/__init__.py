"""Benchmarks of this package alone, for asv."""
