"""Define filters on columns: evaluate them on rows, and find the files that may contain matching rows."""
