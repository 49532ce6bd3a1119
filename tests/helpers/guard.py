"""Buffers before a protected page: an access one byte past the end kills the process."""

import ctypes
import mmap
import sys

import numpy as np

_PAGE = mmap.PAGESIZE


def room(size: int) -> np.ndarray:
    if sys.platform == "win32":  # Windows has no mprotect
        return np.zeros(size, np.uint8)
    inside = -(-size // _PAGE) * _PAGE
    pages = np.frombuffer(mmap.mmap(-1, inside + _PAGE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(pages.ctypes.data + inside), ctypes.c_size_t(_PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return pages[inside - size : inside]


def exact(data: bytes) -> np.ndarray:
    buffer = room(len(data))
    buffer[:] = np.frombuffer(data, np.uint8)
    return buffer
