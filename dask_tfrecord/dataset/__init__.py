"""Read and write datasets of TFRecord files as Arrow tables. This package does not import Dask."""
