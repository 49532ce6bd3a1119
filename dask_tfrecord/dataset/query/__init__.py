"""Conditions on columns: what they mean, and which files may hold matching rows."""
