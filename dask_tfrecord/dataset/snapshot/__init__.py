"""Define what a snapshot of a dataset contains, how a Parquet file stores the snapshot, and which files of
the dataset are committed.
"""
