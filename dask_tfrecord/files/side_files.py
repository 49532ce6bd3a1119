"""Recognise non-TFRecord files beside the data files, such as text, JSON, indexes and images.

A file is skipped only if both its name and its first bytes show that the file is not a TFRecord file.
"""

import logging
import re
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import LOOK_BYTES, decompressor, detect, is_frame, looks_like
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.file_list import FileInfo, FileList
from dask_tfrecord.files.storage.paths import name_of
from dask_tfrecord.files.storage.store import Store

logger = logging.getLogger(__name__)

_SIDE_NAME = re.compile(
    r"(readme|licen[cs]e|changelog|citation|notice)|.*(\.(txt|md|rst|log|csv|tsv|html?|xml|ya?ml|json|jsonl|ndjson"
    r"|pbtxt|textproto|idx|index|png|jpe?g|gif)(\.gz)?)",
    re.IGNORECASE,
)

# The first bytes of at most this many files are read at the same time.
_THREADS = 16

# The largest number of file names in a log message.
_MOST_NAMES = 5


def without_side_files(
    store: Store, files: FileList, *, data: Iterable[str] = (), keep: Collection[str] = ()
) -> FileList:
    """Return a file list without files that are clearly not TFRecord files, and log the skipped names.

    A file is kept if any data file has the same suffix. If ``data`` is empty, ``keep`` contains none of the
    files, and every file name looks like that of a side file, all files are kept. ``data`` contains paths of
    known data files that are not in ``files``. ``keep`` contains paths of files that must not be skipped.
    """
    is_candidate = np.array([_suffix(path) is not None for path in files.paths], bool)
    candidates = [file for file in files.filter(is_candidate).infos if file.path not in keep]
    suffixes = {_suffix(path) for path in data} if candidates else set()
    if not candidates or (len(candidates) == len(files) and not suffixes):
        return files
    with ThreadPoolExecutor(_THREADS) as pool:
        plain = list(pool.map(lambda file: _is_plainly_other(store, file), candidates))
    pairs = list(zip(candidates, plain, strict=True))
    suffixes |= {_suffix(file.path) for file, is_plain in pairs if not is_plain}
    skipped = {file.path for file, is_plain in pairs if is_plain and _suffix(file.path) not in suffixes}
    if skipped:
        names = ", ".join(sorted(map(name_of, skipped))[:_MOST_NAMES])
        more = f" and {len(skipped) - _MOST_NAMES} more" if len(skipped) > _MOST_NAMES else ""
        logger.info(
            "%s: skipped %d files that are no TFRecord files: %s%s", store.public(), len(skipped), names, more
        )
    return files.without(skipped)


def _suffix(path: str) -> str | None:
    """Return the suffix or file name that marks a path as a possible side file, or None."""
    match = _SIDE_NAME.fullmatch(name_of(path))
    return (match[2] or match[1]).lower() if match else None


def _is_plainly_other(store: Store, file: FileInfo) -> bool:
    """Return True if a file is empty or its first bytes look like another known format, not like a record."""
    if file.size == 0:
        return True
    try:
        with store.open(file.path, file.size) as source:
            head = source.peek(LOOK_BYTES)
        return looks_like(head) is not None and not is_frame(first_bytes(store, file, head))
    except (TFRecordError, OSError):  # the function that later reads the file will raise this error
        return False


def first_bytes(store: Store, file: FileInfo, head: bytes | None = None) -> bytes:
    """Return the first ``HEADER_BYTES`` bytes of a file's decompressed content, or all bytes of shorter
    content.

    ``head`` contains the first stored bytes of the file, or is None if the caller has not read these bytes.
    """
    if head is None:
        with store.open(file.path, file.size, 0, min(file.size or HEADER_BYTES, HEADER_BYTES)) as source:
            head = source.peek(HEADER_BYTES)
    compression = detect(head)
    if compression is None:
        return head[:HEADER_BYTES]
    with store.open(file.path, file.size) as source:
        stream = decompressor(source.readinto, compression)
        content = bytearray()
        view = memoryview(bytearray(HEADER_BYTES))
        while len(content) < HEADER_BYTES and (count := stream.readinto(view)):
            content += view[:count]
        return bytes(content)
