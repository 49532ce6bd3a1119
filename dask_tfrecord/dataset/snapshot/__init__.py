"""Define the snapshot of a dataset: its content, its Parquet file, and the rule for which files are
committed.
"""
