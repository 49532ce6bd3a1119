"""Define the logical types of columns, and convert their values to and from the features that store them."""
