"""One TFRecord file <-> Arrow, on any filesystem. Knows no datasets."""
