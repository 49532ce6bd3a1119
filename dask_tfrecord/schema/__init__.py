"""The logical types of columns, and how a feature of TFRecord stores them."""
