"""Read and write with Dask: expressions, pandas partitions and the scheduler."""
