"""Read and write one TFRecord file, and its column file."""
