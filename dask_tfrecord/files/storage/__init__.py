"""Open, list and atomically create files on fsspec filesystems. These modules know nothing of TFRecord."""
