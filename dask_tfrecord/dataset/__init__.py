"""Read and write datasets of TFRecord files as Arrow tables. The package `dataset` does not import Dask."""
