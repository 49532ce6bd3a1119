"""Read and write bytes on any filesystem of fsspec.

The modules of `dask_tfrecord.storage` know nothing about the TFRecord format, snapshots or datasets.
"""
