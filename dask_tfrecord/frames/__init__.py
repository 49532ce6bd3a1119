"""A pandas partition <-> an Arrow table with one planned schema."""
