"""Convert pandas partitions to Arrow tables of a planned schema, and back."""
