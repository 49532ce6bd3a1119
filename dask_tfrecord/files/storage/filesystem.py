"""Find the fsspec filesystem of a path from the arguments `filesystem=` and `storage_options=`."""

import pickle
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import pyarrow.fs as pafs
from fsspec import AbstractFileSystem, get_filesystem_class
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.errors import DestinationError, TFRecordError
from dask_tfrecord.files.storage.paths import glob_start, wraps
from dask_tfrecord.files.storage.redaction import without_credentials

# The types that the public functions accept as `filesystem=`.
Filesystem: TypeAlias = AbstractFileSystem | pafs.FileSystem | Literal["fsspec"] | None

# The protocols of the filesystems that this package extends.
_EXTENDED_PROTOCOLS = frozenset({"abfs", "abfss", "az", "sftp", "ssh"})


class ArrowFileSystem(ArrowFSWrapper):
    """Wrap a pyarrow filesystem as an fsspec filesystem.

    The argument of `ArrowFileSystem` is the pickled pyarrow filesystem. Equal filesystems therefore have
    equal tokens, and a worker process opens each filesystem only once.
    """

    def __init__(self, pickled: bytes, **options: Any) -> None:
        super().__init__(pickle.loads(pickled), **options)


def open_path(
    path: str, storage_options: dict[str, Any] | None, filesystem: Filesystem
) -> tuple[AbstractFileSystem, str]:
    """Return the filesystem of a path or URL, and the path in the form that this filesystem uses.

    Raises
    ------
    TFRecordError
        If ``filesystem`` is not a filesystem, if both ``filesystem`` and ``storage_options`` are given, or if
        the path is a URL of a filesystem other than ``filesystem``.
    """
    if not isinstance(storage_options, Mapping | None) or not all(
        isinstance(name, str) for name in storage_options or ()
    ):
        # The message does not show the options, because they may hold credentials.
        kind = type(storage_options).__name__
        raise TFRecordError(f"storage_options= is not a dict with string keys (got {kind})")
    if filesystem is None or (isinstance(filesystem, str) and filesystem == "fsspec"):
        return _open_url(path, storage_options or {})
    if storage_options:
        raise TFRecordError(
            "filesystem= and storage_options= are both given",
            "construct the filesystem with these options, and leave storage_options= out",
        )
    fs, directory = _unwrapped(filesystem)
    _check_protocol(path, fs, directory)
    if not directory:
        return fs, str(fs._strip_protocol(path))
    if ".." in path.split("/"):
        problem = "the path leaves the directory that filesystem= is limited to"
        raise TFRecordError(problem, "leave '..' out of the path", path=path)
    if glob_start(path) < len(path) and glob_start(directory) < len(directory):
        raise TFRecordError(
            f"the directory {directory!r} of filesystem= has glob characters in its name, so a glob below it "
            "is ambiguous",
            "pass a directory or a list of files",
            path=path,
        )
    return fs, str(fs._strip_protocol(f"{directory.rstrip('/')}/{path.lstrip('/')}"))


def _open_url(url: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    protocol, found, _ = url.partition("://")
    is_alone = protocol in _EXTENDED_PROTOCOLS and found and "::" not in url
    library = get_filesystem_class(protocol) if is_alone else AbstractFileSystem
    if (kind := _extended(library)) is not library:
        named = kind._get_kwargs_from_urls(url)
        if different := [name for name, value in named.items() if options.get(name, value) != value]:
            problem = f"the URL and storage_options= differ in {' and '.join(different)}"
            raise TFRecordError(problem, "give each option once", path=without_credentials(url))
        return kind(**{**named, **options}), str(kind._strip_protocol(url))
    fs, root = url_to_fs(url, **options)
    return fs, root


def _extended(kind: type[AbstractFileSystem]) -> type[AbstractFileSystem]:
    """Return this package's extension of a filesystem class, or the class if it needs no extension.

    The extensions import the libraries of their stores, so they are imported only if they are used.
    """
    match f"{kind.__module__}.{kind.__name__}":
        case "adlfs.spec.AzureBlobFileSystem":
            from dask_tfrecord.files.storage.azure import Azure

            return Azure
        case "fsspec.implementations.sftp.SFTPFileSystem":
            from dask_tfrecord.files.storage.sftp import SFTP

            return SFTP
    return kind


def removes_full_directories(fs: AbstractFileSystem) -> bool:
    """Return True if `rmdir` also removes the files in a directory, as fsspec's HDFS filesystem does."""
    return isinstance(fs, ArrowFSWrapper)


def check_writable(fs: AbstractFileSystem) -> None:
    """Raise if a filesystem cannot create files atomically.

    Raises
    ------
    DestinationError
        If the filesystem is a cache or an archive, or a pyarrow filesystem that is neither local nor HDFS.
        pyarrow can neither discard an upload nor create an object exclusively.
    """
    if isinstance(fs, ArrowFileSystem) and fs.fs.type_name != "hdfs":
        raise DestinationError(
            f"pyarrow's {type(fs.fs).__name__} can be read but not written: it cannot discard an upload",
            "pass a filesystem of fsspec, such as s3fs.S3FileSystem, or storage_options=",
        )
    if wraps(type(fs)):
        problem = f"{type(fs).__name__} wraps another filesystem; it can be read but not written"
        raise DestinationError(problem, "pass the filesystem that it wraps")


def _unwrapped(filesystem: Any) -> tuple[AbstractFileSystem, str]:
    """Return the fsspec filesystem without wrappers, and the directory to which its paths are relative, or
    "".
    """
    if isinstance(filesystem, DirFileSystem):
        return _below(filesystem.fs, filesystem.path or "")
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return _below(filesystem.base_fs, filesystem.base_path)
    if isinstance(filesystem, pafs.PyFileSystem) and isinstance(filesystem.handler, pafs.FSSpecHandler):
        return _unwrapped(filesystem.handler.fs)
    if isinstance(filesystem, pafs.LocalFileSystem):
        return LocalFileSystem(), ""
    if isinstance(filesystem, pafs.FileSystem):
        return ArrowFileSystem(pickle.dumps(filesystem)), ""
    if type(filesystem) is ArrowFSWrapper:
        return _unwrapped(filesystem.fs)
    if not isinstance(filesystem, AbstractFileSystem):
        shown = repr(filesystem) if isinstance(filesystem, str) else type(filesystem).__name__
        raise TFRecordError(
            f"filesystem= is not a filesystem (got {shown})",
            "pass an instance such as s3fs.S3FileSystem(...) or pyarrow.fs.S3FileSystem(...), or pass "
            "a URL as path and the options as storage_options=",
        )
    if getattr(filesystem, "asynchronous", False):
        problem = "filesystem= works only inside an event loop"
        raise TFRecordError(problem, "construct the filesystem without asynchronous=True")
    if (kind := _extended(type(filesystem))) is not type(filesystem):
        return kind(*filesystem.storage_args, **filesystem.storage_options), ""
    return filesystem, ""


def _below(filesystem: Any, directory: str) -> tuple[AbstractFileSystem, str]:
    fs, above = _unwrapped(filesystem)
    if above:
        directory = f"{above.rstrip('/')}/{directory.lstrip('/')}"
    return fs, str(directory)


def _check_protocol(path: str, fs: AbstractFileSystem, directory: str) -> None:
    """Raise if a path is a URL of a filesystem other than ``fs``, because fsspec would treat the URL as a
    file name.
    """
    protocol, found, _ = path.partition("://")
    known = {fs.protocol} if isinstance(fs.protocol, str) else {*fs.protocol}
    if not found or (not directory and (protocol in known or wraps(type(fs)))):
        return
    kind = "limited to a directory" if directory else f"for {' and '.join(map(repr, sorted(known)))}"
    problem = f"the path is a URL of {protocol!r}, but filesystem= is {kind}"
    advice = "pass the path inside the filesystem, without protocol"
    raise TFRecordError(problem, advice, path=without_credentials(path))
