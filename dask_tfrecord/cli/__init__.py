"""The subcommands of `dask-tfrecord`. `dask_tfrecord_cli` has the command itself, and imports them."""
