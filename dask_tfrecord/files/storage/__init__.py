"""Open, list and atomically create files on fsspec filesystems.

The modules of `dask_tfrecord.files.storage` know nothing about the TFRecord format.
"""
