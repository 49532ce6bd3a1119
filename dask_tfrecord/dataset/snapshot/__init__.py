"""Define what a snapshot of a dataset contains and how a Parquet file stores it. Find the committed files of
a dataset.
"""
