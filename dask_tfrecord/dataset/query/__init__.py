"""Evaluate filters on the rows of tables, and find the files that may contain matching rows."""
