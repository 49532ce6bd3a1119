"""The snapshot of a dataset: its content, its file, and which files it makes visible."""
