"""Find the fsspec filesystem of a path, which `filesystem=` and `storage_options=` determine."""

import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow.fs as pafs
from fsspec import AbstractFileSystem, available_protocols, get_filesystem_class
from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from dask_tfrecord.errors import DestinationError, TFRecordError, did_you_mean
from dask_tfrecord.storage.paths import glob_start, wraps
from dask_tfrecord.storage.redaction import without_credentials

Info = dict[str, Any]

# Tells from the name of a directory whether readers ignore the files in it.
Hidden = Callable[[str], bool]

# The types that the public functions accept as `filesystem=`.
Filesystem: TypeAlias = AbstractFileSystem | pafs.FileSystem | Literal["fsspec"] | None

# The protocols of the filesystems that this package extends.
_EXTENDED_PROTOCOLS = frozenset({"abfs", "abfss", "az", "sftp", "ssh"})

# Maps a protocol to the extra of this package, such as "s3", that installs its library.
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
    **dict.fromkeys(("sftp", "ssh"), "sftp"),
}

# The connections to S3 that each process may have. One reader uses more than botocore's default of 10.
_CONNECTIONS = 32


class ArrowFileSystem(ArrowFSWrapper):
    """Wrap a pickled pyarrow filesystem as an fsspec filesystem.

    Because the argument is pickled, equal filesystems have equal tokens, and a worker process opens each
    filesystem only once.
    """

    def __init__(self, pickled: bytes, **options: Any) -> None:
        super().__init__(pickle.loads(pickled), **options)


def open_path(
    path: str, storage_options: dict[str, Any] | None, filesystem: Filesystem
) -> tuple[AbstractFileSystem, str]:
    """Return the filesystem of a path or URL, and the path in the notation of this filesystem.

    Raise TFRecordError if ``filesystem`` is not a filesystem, is passed together with ``storage_options``, or
    does not fit the URL.
    """
    if not isinstance(storage_options, Mapping | None) or not all(
        isinstance(name, str) for name in storage_options or ()
    ):
        # The message does not contain the options, because options may contain credentials.
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
    """Open the filesystem of a URL.

    If the filesystem cannot be opened, raise an error that says what is missing.
    """
    protocol, found, _ = url.partition("://")
    try:
        if found and "::" not in url:
            _check_known(protocol, url)
        return _opened(url, options)
    except TFRecordError:
        raise
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        advice = f'pip install "dask-tfrecord[{extra}]"' if extra else "install the package"
        raise _unusable(url, f"a package for {protocol}:// is missing ({error})", advice) from error
    except OSError as error:
        if protocol not in ("hdfs", "viewfs"):
            raise
        problem = f"{protocol}:// needs the native libraries of Java and Hadoop, which cannot be loaded"
        advice = "set JAVA_HOME, HADOOP_HOME and CLASSPATH, as pyarrow.fs.HadoopFileSystem says"
        raise _unusable(url, problem, advice) from error
    except ValueError as error:
        if protocol not in _EXTRAS:
            raise
        advice = "pass the account, the credentials or the endpoint in storage_options="
        raise _unusable(url, f"the filesystem cannot be opened: {error}", advice) from error


def _check_known(protocol: str, url: str) -> None:
    try:
        get_filesystem_class(protocol)
    except ValueError:
        advice = did_you_mean(protocol, available_protocols())
        raise _unusable(url, f"no filesystem is known for {protocol}://", advice) from None


def _unusable(url: str, problem: str, advice: str) -> TFRecordError:
    return TFRecordError(problem, advice, path=without_credentials(url))


def _opened(url: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    protocol, found, _ = url.partition("://")
    is_alone = protocol in _EXTENDED_PROTOCOLS and found and "::" not in url
    library = get_filesystem_class(protocol) if is_alone else AbstractFileSystem
    if (kind := _extended(library)) is not library:
        named = kind._get_kwargs_from_urls(url)
        if different := [name for name, value in named.items() if options.get(name, value) != value]:
            problem = f"the URL and storage_options= differ in {' and '.join(different)}"
            raise TFRecordError(problem, "give each option once", path=without_credentials(url))
        return kind(**{**named, **options}), str(kind._strip_protocol(url))
    if protocol in ("s3", "s3a") and "::" not in url:
        configured = options.get("config_kwargs") or {}
        options = {**options, "config_kwargs": {"max_pool_connections": _CONNECTIONS, **configured}}
    fs, root = url_to_fs(url, **options)
    return fs, root


def _extended(kind: type[AbstractFileSystem]) -> type[AbstractFileSystem]:
    """Return this package's extension of a filesystem class, or the class itself if there is none.

    The module of an extension imports the library of a store, so it is imported only when needed.
    """
    match f"{kind.__module__}.{kind.__name__}":
        case "adlfs.spec.AzureBlobFileSystem":
            from dask_tfrecord.storage.azure import Azure

            return Azure
        case "fsspec.implementations.sftp.SFTPFileSystem":
            from dask_tfrecord.storage.sftp import SFTP

            return SFTP
    return kind


def source_of(fs: AbstractFileSystem) -> AbstractFileSystem:
    """Return the filesystem that an fsspec cache reads from. Return any other filesystem itself."""
    if not isinstance(fs, CachingFileSystem):
        return fs
    source = source_of(fs.fs)
    kind = _extended(type(source))
    return source if kind is type(source) else kind(*source.storage_args, **source.storage_options)


def protocols_of(fs: AbstractFileSystem) -> frozenset[str]:
    return frozenset([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def is_web(fs: AbstractFileSystem) -> bool:
    """Return True for web servers, which need not support range requests."""
    return "http" in protocols_of(fs)


def find_all(fs: AbstractFileSystem, path: str) -> dict[str, Info]:
    """Find all files below a directory. Raise if a directory cannot be listed."""
    infos = _walk(fs, path) if _lists_one_by_one(fs) else fs.find(path, detail=True)
    return {path: info for path, info in infos.items() if info["type"] != "directory"}


def glob_all(fs: AbstractFileSystem, pattern: str) -> dict[str, Info]:
    """Find the files and directories that match a glob."""
    if not _lists_one_by_one(fs):
        return dict(fs.glob(pattern, detail=True))
    root = pattern[: pattern.rfind("/", 0, glob_start(pattern)) + 1]
    depth = None if "**" in pattern else pattern.count("/", len(root)) + 1
    matching = re.compile(glob_translate(pattern)).match
    try:
        infos = _walk(fs, root, depth)
    except FileNotFoundError:
        return {}
    end = "/" if pattern.endswith("/") else ""
    return {path: info for path, info in infos.items() if matching(path.rstrip("/") + end)}


def _lists_one_by_one(fs: AbstractFileSystem) -> bool:
    """Return True if fsspec would list each directory separately, and silently omit those it cannot list."""
    kind = type(fs)
    return bool(
        kind._find is AsyncFileSystem._find if fs.async_impl else kind.find is AbstractFileSystem.find
    )


def _walk(fs: AbstractFileSystem, root: str, depth: int | None = None) -> dict[str, Info]:
    """Find all files and directories up to ``depth`` levels below ``root``. Raise if a listing fails."""
    found: dict[str, Info] = {}
    level, waiting = 0, [root]
    while waiting and level != depth:
        level, below = level + 1, []
        for directory in waiting:
            try:
                infos = fs.ls(directory, detail=True)
            except FileNotFoundError:
                if directory == root:
                    raise
                continue  # the directory was removed, or a web page contains a broken link to the directory
            for info in infos:
                path = info["name"]
                if path in found or (
                    info["type"] == "directory" and path.rstrip("/") == directory.rstrip("/")
                ):
                    continue
                found[path] = info
                below += [path] if info["type"] == "directory" else []
        waiting = below
    return found


def check_writable(fs: AbstractFileSystem) -> None:
    """Raise DestinationError if a filesystem cannot create files atomically.

    Caches and archives cannot create files atomically. pyarrow's filesystems, except local disks and HDFS,
    can neither discard an upload nor create an object exclusively. obstore's filesystem accepts a request for
    exclusive creation, but replaces the object.
    """
    if any(kind.__module__.startswith("obstore.") for kind in type(fs).__mro__):
        raise DestinationError(
            f"obstore's {type(fs).__name__} can be read but not written: it cannot create a file exclusively",
            "pass a filesystem of fsspec, such as s3fs.S3FileSystem, or storage_options=",
        )
    if isinstance(fs, ArrowFileSystem) and fs.fs.type_name != "hdfs":
        raise DestinationError(
            f"pyarrow's {type(fs.fs).__name__} can be read but not written: it cannot discard an upload",
            "pass a filesystem of fsspec, such as s3fs.S3FileSystem, or storage_options=",
        )
    if wraps(type(fs)):
        problem = f"{type(fs).__name__} wraps another filesystem; it can be read but not written"
        raise DestinationError(problem, "pass the filesystem that it wraps")


def _unwrapped(filesystem: Any) -> tuple[AbstractFileSystem, str]:
    """Return the filesystem inside all wrappers, and the directory to which they limit paths, or ""."""
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
    """Raise if a path is a URL of another filesystem, because fsspec would treat the URL as a file name."""
    protocol, found, _ = path.partition("://")
    known = protocols_of(fs)
    if not found or (not directory and (protocol in known or wraps(type(fs)))):
        return
    kind = "limited to a directory" if directory else f"for {' and '.join(map(repr, sorted(known)))}"
    problem = f"the path is a URL of {protocol!r}, but filesystem= is {kind}"
    advice = "pass the path inside the filesystem, without protocol"
    raise TFRecordError(problem, advice, path=without_credentials(path))
