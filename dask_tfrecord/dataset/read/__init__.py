"""From a path to a plan, and from a plan to the tables of its partitions; no Dask."""
