"""Read and write single TFRecord files as Arrow data, on any filesystem. These modules know no datasets."""
