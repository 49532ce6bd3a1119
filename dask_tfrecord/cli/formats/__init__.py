"""The formats that `convert` reads and writes beside TFRecord."""
