"""Recognise files of other formats beside the data files, such as scripts, notes, indexes and images.

A file is left out only if its name differs from the names of data files and its first bytes are not a record.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Set
from dataclasses import replace
from functools import partial
from posixpath import commonprefix
from typing import Literal

import numpy as np

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import CODECS, SUFFIXES, decompressor, detect, is_frame
from dask_tfrecord.codec.other_formats import LOOK_BYTES, looks_like
from dask_tfrecord.errors import CorruptRecordError, TFRecordError, short_list, warn_caller
from dask_tfrecord.files.damage import LEAVE_OUT, not_tfrecord
from dask_tfrecord.files.file_list import FileInfo, FileList
from dask_tfrecord.storage.paths import name_of
from dask_tfrecord.storage.store import Store

logger = logging.getLogger(__name__)

# The verdict on the first bytes of a file: a record ("data"), no bytes at all ("empty"), another format that
# is known ("other") or not known ("strange"), or nothing, because the bytes cannot be read ("unreadable").
_Verdict = Literal["data", "empty", "other", "strange", "unreadable"]

_CODECS = {*CODECS, *SUFFIXES, "deflate", "snappy", "sz"}

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

# The first bytes of at most this many files are read, of each kind, and in total.
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

    All files with the same suffix are kept or left out together, and so are all files without a suffix,
    except those with a name such as README. Files with a suffix are left out if their first bytes are not a
    record, files without a suffix only if their first bytes are those of another known format. If the list
    contains no data file, only files whose names and first bytes both show another format are left out, and
    at least one file is kept.

    ``data`` contains paths of known data files that are not in ``files``. ``keep`` contains paths of files
    that must not be left out.
    """
    paths = files.paths
    kinds = [_kind(path) for path in paths]
    data_kinds = {kind for kind in {*kinds} if _DATA_SUFFIX.fullmatch(kind)}
    if data_kinds.issuperset(kinds):
        return files
    data_kinds.update(map(_kind, data))
    has_data = bool(data_kinds) or not {*keep}.isdisjoint(paths)
    others: dict[str, list[int]] = defaultdict(list)
    for at, (path, kind) in enumerate(zip(paths, kinds, strict=True)):
        if kind not in data_kinds and path not in keep:
            others[kind].append(at)
    if not others or (not has_data and len(others) == 1):
        return files
    verdicts = _judge_all(store, files, others)
    has_data = has_data or any("data" in found for found in verdicts.values())
    left_out_kinds = [kind for kind, found in verdicts.items() if _is_left_out(kind, found, has_data)]
    left_out = [at for kind in left_out_kinds for at in others[kind]]
    if not has_data and len(left_out) == len(files):
        return files
    mask = np.ones(len(files), bool)
    mask[left_out] = False
    return files.filter(mask)


def _kind(path: str) -> str:
    """Return the suffix of a path. Without a suffix, return a name that data files rarely have, or the suffix
    of data files for a number at the end, as in "part-00000", or "".
    """
    name = name_of(path).lower()
    start, dot, suffix = name.rpartition(".")
    while suffix in _CODECS and dot:
        name = start
        start, dot, suffix = name.rpartition(".")
    # These checks are much faster than regular expressions, and suffice for most data files.
    if suffix.startswith("tfrecord") if dot else name[-1:].isdecimal():
        return ".tfrecord"
    stem = _NUMBER.sub("", name)
    if found := _SUFFIX.fullmatch(stem):
        return found[1]
    return ".tfrecord" if stem != name else name if _is_side(name) else ""


def _is_left_out(kind: str, verdicts: Set[_Verdict], has_data: bool) -> bool:
    """Decide about all files of a kind, given the verdicts on some of them."""
    if has_data and kind.startswith("."):
        return verdicts <= {"other", "strange", "empty"} and (verdicts != {"empty"} or _is_side(kind))
    return verdicts <= {"other"} and (has_data or _is_side(kind))


def _is_side(kind: str) -> bool:
    return _SIDE_NAME.fullmatch(kind) is not None


def _judge_all(store: Store, files: FileList, others: dict[str, list[int]]) -> dict[str, set[_Verdict]]:
    """Look at the first bytes of some files of each kind. ``others`` contains the indices of these files."""
    chosen: list[tuple[str, int]] = []
    for kind, of_kind in others.items():
        chosen += [(kind, at) for at in of_kind[:: -(-len(of_kind) // _MOST_OF_KIND)]]
    del chosen[_MOST:]
    infos = files.take(np.array([at for _, at in chosen], np.int64)).infos
    verdicts: dict[str, set[_Verdict]] = defaultdict(set)
    for (kind, _), verdict in zip(chosen, store.for_each(partial(_judge, store), infos), strict=True):
        verdicts[kind].add(verdict)
    return verdicts


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
    """Return where the first ``count`` bytes of a file end, or None if its size is unknown."""
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
    names = short_list([path.removeprefix(start).lstrip("/") for path in paths], _MOST_NAMES)
    problem = f"{store.public(start)}: left out what is not a TFRecord file: {names}"
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
