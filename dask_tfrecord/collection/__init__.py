"""Implement `read_tfrecord` and `to_tfrecord` with Dask: arguments, plans, expressions, pandas partitions."""
