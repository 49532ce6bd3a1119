"""Read a dataset without Dask: create a read plan for a path, and read the plan's partitions as tables."""
