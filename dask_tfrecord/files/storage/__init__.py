"""Filesystems of fsspec: opening, listing and atomic creation of files. Knows no TFRecord."""
