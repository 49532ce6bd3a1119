"""Define filters on columns: how a filter is evaluated, and which files may hold matching rows."""
