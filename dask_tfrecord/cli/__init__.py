"""The subcommands of `dask-tfrecord`. The launcher imports them when they are used."""
