"""Define the subcommands of `dask-tfrecord`.

The launcher imports the module of a subcommand only when it is used.
"""
