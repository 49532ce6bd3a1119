"""The subcommands of `dask-tfrecord`. The folder `dask_tfrecord_cli` has the command, which imports them."""
