"""What keeps a dataset in order after it was written: index and verify."""
