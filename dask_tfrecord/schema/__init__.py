"""The logical types of columns, and how the features of TFRecord store them."""
