"""Define what a snapshot of a dataset contains, how its Parquet file stores the content, and which files of
the dataset are committed.
"""
