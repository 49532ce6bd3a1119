"""Files beside the data that are no TFRecord files: text, labels, JSON, protobuf text, indexes and images.

A name alone leaves nothing out: the content must also be what no TFRecord file begins with.
"""

import logging
import re
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import decompressor, detect, is_frame
from dask_tfrecord.codec.file_signatures import LOOK_BYTES, looks_like
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.storage.listing import FileInfo, column_paths, path_column, table_infos
from dask_tfrecord.files.storage.paths import name_of
from dask_tfrecord.files.storage.store import Store

logger = logging.getLogger(__name__)

_SIDE_NAME = re.compile(
    r"(readme|licen[cs]e|changelog|citation|notice)|.*(\.(txt|md|rst|log|csv|tsv|html?|xml|ya?ml|json|jsonl|ndjson"
    r"|pbtxt|textproto|idx|index|png|jpe?g|gif)(\.gz)?)",
    re.IGNORECASE,
)

# Files that are opened at the same time.
_THREADS = 16

# The most names in a message.
_MOST_NAMES = 5


def without_side_files(
    store: Store, files: pa.Table, *, data: Iterable[str] = (), keep: Collection[str] = ()
) -> pa.Table:
    """Return the files without those that plainly are no TFRecord files, and log which they are.

    A file is kept if a data file has the same suffix, and all files are kept if none has another suffix.

    Parameters
    ----------
    store : Store
        The place of the files.
    files : pyarrow.Table
        The file list.
    data : iterable of str
        Paths of other files, which are known to be data.
    keep : collection of str
        Paths of files that are kept.
    """
    of_files = map(_suffix, column_paths(files["path"]))
    is_candidate = [suffix is not None for suffix in of_files]
    candidates = [
        file
        for file in table_infos(files.filter(pa.array(is_candidate, pa.bool_())))
        if file.path not in keep
    ]
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
            "%s: skipped %d files that are no TFRecord files: %s%s",
            store.public(store.root),
            len(skipped),
            names,
            more,
        )
    return files.filter(pc.invert(pc.is_in(files["path"], path_column(skipped))))


def _suffix(path: str) -> str | None:
    """Return the suffix of a name that files beside the data have; None for other names."""
    match = _SIDE_NAME.fullmatch(name_of(path))
    return (match[2] or match[1]).lower() if match else None


def _is_plainly_other(store: Store, file: FileInfo) -> bool:
    """Return True for an empty file, and if the content begins as that of a known format."""
    if file.size == 0:
        return True
    try:
        with store.open(file.path, file.size) as source:
            head = source.peek(LOOK_BYTES)
        return looks_like(head) is not None and not is_frame(first_bytes(store, file, head))
    except (TFRecordError, OSError):  # the reader of the file raises
        return False


def first_bytes(store: Store, file: FileInfo, head: bytes | None = None) -> bytes:
    """Return the first bytes of the decompressed content, as many as the header of a record has.

    ``head`` are the first stored bytes, if they are known.
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
