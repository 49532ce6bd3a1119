"""Read and write with Dask: expressions, pandas partitions, the scheduler."""
