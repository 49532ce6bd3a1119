"""Read and write single TFRecord files as Arrow data, on any filesystem.

The modules of `dask_tfrecord.files` do not know datasets.
"""
