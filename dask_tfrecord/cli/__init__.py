"""Hold the subcommands of `dask-tfrecord`. The launcher imports a subcommand only when it is used."""
