"""Read and write single TFRecord files as Arrow data, on any filesystem.

The modules of `dask_tfrecord.files` handle single files, and know nothing about datasets.
"""
