"""The snapshot of a dataset: its content, its file, and which files are committed."""
