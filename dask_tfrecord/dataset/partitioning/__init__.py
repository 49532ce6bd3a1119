"""Partition columns: values <-> directory names, and rows sorted by them."""
