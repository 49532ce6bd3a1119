"""Open only regular files of the local disk, so that no pipe or device in a directory blocks a read."""

import errno
import os
import stat

from dask_tfrecord.errors import TFRecordError

# The largest size of a JSON or text file that describes a dataset. The list of the paths of a million files
# has about 100 MiB.
METADATA_BYTES = 1 << 28


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. The function can be passed as ``opener=`` to `open`.

    Raise TFRecordError for a directory, pipe, socket or device, and for links that lead in a loop. Raise
    FileNotFoundError if the file, or a directory above it, does not exist.
    """
    try:
        # Opening a pipe would wait for a writer, and opening a device could have side effects.
        _check_regular(path, os.stat(path))
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, "a parent is not a directory", path) from error
    except OSError as error:
        check_loop(error, path)
        raise
    try:
        _check_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_loop(error: OSError, path: str) -> None:
    """Raise TFRecordError if an operation has failed because links lead in a loop."""
    if error.errno == errno.ELOOP:
        raise TFRecordError("the links lead in a loop", "remove the links", path=path) from None


def _check_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    what = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
    advice = "remove it, or put a regular file in its place"
    raise TFRecordError(f"is {what}, not a regular file", advice, path=path)


def read_regular(path: str, most_bytes: int) -> bytes:
    """Return the content of a regular file. Raise ValueError if it is larger than ``most_bytes``, and the
    errors of `open_regular` as ValueError without the path.
    """
    try:
        descriptor = open_regular(path)
    except TFRecordError as error:
        raise ValueError(error.problem) from None
    with open(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size > most_bytes:
            raise too_large(most_bytes)
        return file.read(size)  # a file that grows meanwhile is read up to its old size


def too_large(most_bytes: int) -> ValueError:
    return ValueError(f"the file is larger than the limit of {most_bytes:,} bytes")
