"""Maintain a dataset after it was written: build a snapshot of its files, and verify the files."""
