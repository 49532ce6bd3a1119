"""The snapshot of a dataset: its content, its Parquet file, and the rule which files are committed."""
