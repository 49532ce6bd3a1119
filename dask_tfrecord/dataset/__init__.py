"""Files <-> tables: what a path means and how to read its parts. Knows files and Arrow, no Dask."""
