"""Paths as text, in the form that filesystems of fsspec use. Asks no filesystem."""


def parent_of(path: str) -> str:
    """Return the directory part of a path: all before the last slash, or "" if the path has no slash.

    Unlike `posixpath.dirname`, the result is "" for a path directly below "/", and double slashes, which keys
    of object stores may contain, are kept.
    """
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    """Return the last part of a path: all after the last slash."""
    return path.rpartition("/")[2]
