"""Rows that move between the partitions of a write, through sorted files at the destination."""
