"""A write of a dataset: what it finds at its destination, its plan, and its commit."""
