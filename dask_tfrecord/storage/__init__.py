"""Read and write bytes on any fsspec filesystem.

The modules of `dask_tfrecord.storage` know nothing about the TFRecord format, snapshots or datasets.
"""
