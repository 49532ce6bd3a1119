"""Recognise files of other formats beside the data files, such as scripts, notes, indexes and images.

A file is left out only if its name differs from the names of data files and its first bytes are no record.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from posixpath import commonprefix
from typing import Literal

import numpy as np

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import decompressor, detect, is_frame
from dask_tfrecord.codec.other_formats import LOOK_BYTES, looks_like
from dask_tfrecord.errors import CorruptRecordError, TFRecordError, warn_caller
from dask_tfrecord.files.damage import LEAVE_OUT, not_tfrecord
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.storage.paths import name_of
from dask_tfrecord.storage.store import Store

logger = logging.getLogger(__name__)

# What the first bytes of a file show: a record ("data"), no bytes at all ("empty"), another format that is
# known ("other") or not known ("strange"), or nothing, because the bytes cannot be read ("unreadable").
_Verdict = Literal["data", "empty", "other", "strange", "unreadable"]

_CODECS = {"gz", "gzip", "zz", "zlib", "zst", "zstd", "lz4", "bz2", "xz", "deflate", "snappy", "sz"}

# Matches numbers such as "-00000-of-00009" at the end of a name.
_NUMBER = re.compile(r"[-_.]?\d++((-of-|[-_.])\d++)*+$")
_SUFFIX = re.compile(r".*(\.[^.]*[a-z][^.]*)", re.DOTALL)

# A file with one of these suffixes is a data file, whatever it contains.
_DATA_SUFFIX = re.compile(r"\.(tf_?rec.*|tfr|records?|tfexamples?)")

# Suffixes, and names without a suffix, that data files rarely have.
_SIDE_NAME = re.compile(
    r"\.(txt|md|rst|log|csv|tsv|html?|xml|ya?ml|json|jsonl|ndjson|pbtxt|textproto|idx|index|png|jpe?g|gif)"
    r"|readme|licen[cs]e|changelog|citation|notice|authors|build|makefile|dockerfile|checkpoint|.*sums?"
)

# The kinds of files without a suffix. A number at the end of a name, as in "part-00000", marks a data file.
_NUMBERED = "a number"
_WORD = "a word"

# The first bytes of at most this many files are read at the same time, of each kind, and in total.
_THREADS = 16
_MOST_OF_KIND = 64
_MOST = 1024

# The largest number of file names in a message.
_MOST_NAMES = 20


def without_side_files(
    store: Store, files: FileList, *, data: Iterable[str] = (), is_known: bool = False
) -> FileList:
    """Return the file list that `data_only` returns, and report the files that are left out."""
    found = data_only(store, files, data=data)
    report_left_out(store, files, found, is_known=is_known)
    return found


def data_only(
    store: Store, files: FileList, *, data: Iterable[str] = (), keep: Collection[str] = ()
) -> FileList:
    """Return a file list without the files that are not TFRecord files.

    A file is left out if no data file has its suffix, and its first bytes are no record. A file without a
    suffix is left out only if its first bytes are those of another known format, and if no such file is a
    data file, except a file with a name such as README. If the list contains no data file, only files whose
    names and first bytes both show another format are left out, and at least one file is kept.

    ``data`` contains paths of known data files that are not in ``files``. ``keep`` contains paths of files
    that must not be left out.
    """
    paths = files.paths
    kinds = [_kind(path) for path in paths]
    data_kinds = {kind for kind in {*kinds} if kind == _NUMBERED or _DATA_SUFFIX.fullmatch(kind)}
    if data_kinds.issuperset(kinds):
        return files
    has_data = not data_kinds.isdisjoint(kinds) or not {*keep}.isdisjoint(paths)
    for path in data:
        data_kinds.add(_kind(path))
        has_data = True
    others: dict[str, list[int]] = defaultdict(list)
    for at, (path, kind) in enumerate(zip(paths, kinds, strict=True)):
        if kind not in data_kinds and path not in keep:
            others[kind].append(at)
    if not others or (not has_data and len(others) == 1):
        return files
    verdicts = _judge_all(store, files, others)
    data_kinds |= {kinds[at] for at, verdict in verdicts.items() if verdict == "data"}
    has_data = has_data or "data" in verdicts.values()
    left_out = []
    for kind in others.keys() - data_kinds:
        of_kind = {verdicts[at] for at in others[kind] if at in verdicts}
        left_out += [
            at
            for at in others[kind]
            if _is_left_out(kind, {verdicts[at]} if at in verdicts else of_kind, has_data)
        ]
    if not left_out or (not has_data and len(left_out) == len(files)):
        return files
    mask = np.ones(len(files), bool)
    mask[left_out] = False
    return files.filter(mask)


def _kind(path: str) -> str:
    """Return the suffix of a path. Without a suffix, return a name that data files rarely have, or what the
    name is.
    """
    name = name_of(path).lower()
    start, dot, suffix = name.rpartition(".")
    while suffix in _CODECS and dot:
        name = start
        start, dot, suffix = name.rpartition(".")
    # These checks are much faster than regular expressions, and suffice for most data files.
    if dot and suffix.startswith("tfrecord"):
        return ".tfrecord"
    if not dot and name[-1:].isdecimal():
        return _NUMBERED
    stem = _NUMBER.sub("", name)
    if found := _SUFFIX.fullmatch(stem):
        return found[1]
    return _NUMBERED if stem != name else name if _is_side(name) else _WORD


def _is_left_out(kind: str, verdicts: Set[_Verdict], has_data: bool) -> bool:
    """Decide about a file by its look or, if nobody looked at it, by the looks at the files of its kind."""
    if not verdicts:
        return False
    if has_data and kind.startswith("."):
        return verdicts <= {"other", "strange"} or (verdicts <= {"other", "empty"} and _is_side(kind))
    return verdicts <= {"other"} and (has_data or _is_side(kind))


def _is_side(kind: str) -> bool:
    return _SIDE_NAME.fullmatch(kind) is not None


def _judge_all(store: Store, files: FileList, others: dict[str, list[int]]) -> dict[int, _Verdict]:
    """Look at the first bytes of files. Map the index of each file to the look."""
    chosen: list[int] = []
    for of_kind in others.values():
        count = min(len(of_kind), _MOST_OF_KIND)
        chosen += [of_kind[at * len(of_kind) // count] for at in range(count)]
    del chosen[_MOST:]
    infos = files.take(np.array(chosen, np.int64)).infos
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(chosen, pool.map(partial(_judge, store), infos), strict=True))


def _judge(store: Store, file: FileInfo) -> _Verdict:
    if file.size == 0:
        return "empty"
    try:
        with store.open(file.path, file.size, 0, _end(file, LOOK_BYTES)) as source:
            head = source.peek(LOOK_BYTES)
        content = first_bytes(store, file, head)
    except (TFRecordError, OSError):  # the function that later reads the file will raise this error
        return "unreadable"
    if not content:
        return "empty"
    if is_frame(content):
        return "data"
    found = looks_like(head)
    if found is not None and found.may_be_data:
        return "unreadable"
    return "strange" if found is None else "other"


def _end(file: FileInfo, count: int) -> int | None:
    """Return where the first ``count`` bytes of a file end, or None if the size of the file is unknown."""
    return None if file.size is None else min(file.size, count)


def side_file_error(store: Store, file: FileInfo) -> CorruptRecordError:
    """Return the error for a file that is not a TFRecord file."""
    with store.open(file.path, file.size, 0, _end(file, LOOK_BYTES)) as source:
        found = looks_like(source.peek(LOOK_BYTES))
    error = CorruptRecordError("not a TFRecord file", LEAVE_OUT) if found is None else not_tfrecord(found)
    return error.replaced(path=store.public(file.path))


def report_left_out(store: Store, files: FileList, found: FileList, *, is_known: bool = False) -> None:
    """Warn once that a read leaves out the files of ``files`` that are not in ``found``.

    If ``is_known`` is True, a snapshot tells which files are data, and a log message replaces the warning.
    """
    if len(found) == len(files):
        return
    kept = {*found.paths}
    paths = sorted(path for path in files.paths if path not in kept)
    start = commonprefix(paths).rpartition("/")[0]
    names = [path.removeprefix(start).lstrip("/") for path in paths]
    listed = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    problem = f"{store.public(start)}: left out what is not a TFRecord file: {listed}{more}"
    if is_known:
        logger.info("%s", problem)
    else:
        warn_caller(
            f"{problem}; to read without this warning, pass the data files or a glob of them, or give the "
            'other files names that begin with "_" or "."'
        )


def first_bytes(store: Store, file: FileInfo, head: bytes | None = None) -> bytes:
    """Return the first ``HEADER_BYTES`` bytes of a file's decompressed content, or all bytes of shorter
    content.

    ``head`` contains the first stored bytes of the file, or is None if the caller has not read these bytes.
    """
    if head is None:
        with store.open(file.path, file.size, 0, _end(file, HEADER_BYTES)) as source:
            head = source.peek(HEADER_BYTES)
    compression = detect(head)
    if compression is None:
        return head[:HEADER_BYTES]
    with replace(store, is_sparing=True).open(file.path, file.size) as source:
        stream = decompressor(source.readinto, compression)
        content = bytearray()
        view = memoryview(bytearray(HEADER_BYTES))
        while len(content) < HEADER_BYTES and (count := stream.readinto(view)):
            content += view[:count]
        return bytes(content)
