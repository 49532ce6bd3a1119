"""Handle partition columns: convert values to directory names and back, and group rows by directory."""
