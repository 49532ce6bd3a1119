"""Access files on any fsspec filesystem: write them atomically, read them forward, and detect changes.

The module also lists and aborts uploads to S3 that killed writes have left unfinished. The module does not
know the content of the files. Messages of this module contain no credentials.
"""

import io
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from glob import has_magic
from operator import and_
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, TypeVar

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import tokenize

from dask_tfrecord.codec import crc32c
from dask_tfrecord.errors import DestinationError
from dask_tfrecord.files.storage.filesystem import (
    ArrowFileSystem,
    Filesystem,
    open_path,
    removes_full_directories,
)
from dask_tfrecord.files.storage.open_file import (
    REQUEST_BYTES,
    ExpectedFile,
    FileReader,
    open_unbuffered,
    read_byte_ranges,
    removed,
)
from dask_tfrecord.files.storage.paths import check_url, name_of, parent_of, path_text
from dask_tfrecord.files.storage.store_failures import is_precondition_failure, without_credentials
from dask_tfrecord.lazy import cached_property

_T = TypeVar("_T")

# Protocols of stores on which a rename is a copy, and an upload becomes visible only when it is complete. On
# all other stores, a new file is written under a temporary name in its directory and then renamed.
_UPLOADING = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})

# A directory is made again at most this often if other writes remove the directory while it is empty.
_ATTEMPTS = 100

# The number of concurrent requests if each file needs one request.
_THREADS = 16

# A thread holds this lock from the check that a file does not exist until the rename that creates the file.
_CREATION = Lock()


@dataclass(frozen=True, repr=False)
class Store:
    """A filesystem and a root directory. Paths are written as on the filesystem, without protocol.

    Tasks contain stores, so that workers open the same filesystem as the client. The repr of a store shows no
    storage options. The token of a store contains only a hash of the options.
    """

    fs: AbstractFileSystem
    root: str

    @classmethod
    def at(
        cls,
        path: str | os.PathLike[str],
        storage_options: dict[str, Any] | None = None,
        filesystem: Filesystem = None,
    ) -> "Store":
        """Open the filesystem of a path or URL, with the path as root. Cached listings are dropped."""
        text = path_text(path)
        check_url(text)
        fs, root = open_path(text, storage_options, filesystem)
        fs.invalidate_cache()
        return cls(fs, root)

    def __repr__(self) -> str:
        return f"Store({self.public()!r})"

    def __dask_tokenize__(self) -> tuple[str, ...]:
        fs = self.fs
        return type(fs).__qualname__, tokenize(fs.storage_args, fs.storage_options), self.root

    def join(self, relative: str) -> str:
        return f"{self.root.rstrip('/')}/{relative}"

    def relative(self, path: str) -> str:
        """Convert a full path below the root to a path relative to the root.

        This is the inverse of `join`.
        """
        return path[len(self.join("")) :]

    def public(self, path: str | None = None) -> str:
        """Return a path, or the root, for messages and results: a URL without credentials and query."""
        path = self.root if path is None else path
        if self.local:
            return path
        scheme, _, rest = without_credentials(str(self.fs.unstrip_protocol(path))).partition("://")
        if scheme in ("http", "https"):
            rest = rest.partition("?")[0]
        host, slash, tail = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{tail}"

    def public_paths(self, paths: Sequence[str]) -> list[str]:
        """Convert several paths as `public` does.

        To save time, `public` is called once for each directory.
        """
        known: dict[str, str] = {}

        def public(path: str) -> str:
            if "?" in path:  # what follows may be a query with a secret
                return self.public(path)
            parent = parent_of(path)
            if parent not in known:
                known[parent] = self.public(f"{parent}/")
            return f"{known[parent]}{name_of(path)}"

        return [*map(public, paths)]

    @cached_property
    def local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @cached_property
    def renames(self) -> bool:
        """True if new files are renamed to their final path; False if they are uploaded to it."""
        return _UPLOADING.isdisjoint(self._protocols)

    def names(self, directory: str) -> list[str]:
        """List the names in a directory below the root, without a cache. A missing directory has no names."""
        # Over HTTP, a file would be listed as a directory.
        if "://" in self.root and not self.root.endswith("/"):
            return []
        path = self.join(directory)
        self.fs.invalidate_cache(path)
        try:
            if type(self.fs) is LocalFileSystem:  # much faster than fsspec
                return os.listdir(path)
            # On S3, `isdir` lists the directory into the cache. `ls` would also list the parent of a missing
            # directory, which may hold many files.
            if hasattr(self.fs, "call_s3") and "/" in path.strip("/") and not self.fs.isdir(path):
                return []
            found = self.fs.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for one in found if (name := name_of(one.rstrip("/")))]

    def has_file(self, path: str) -> bool:
        """Ask the store, without a cache, if a file exists."""
        if not hasattr(self.fs, "call_s3"):
            self.fs.invalidate_cache(path)
            return bool(self.fs.exists(path))
        bucket, _, key = path.partition("/")
        try:
            # `exists` would also list the directory of this name.
            self.fs.call_s3("head_object", Bucket=bucket, Key=key, **self.fs.req_kw)
        except FileNotFoundError:
            return False
        return True

    # -- Writing ---------------------------------------------------------------------------------------------

    def refuse_links(self, paths: Iterable[str], *, files: bool = False) -> None:
        """Raise DestinationError if a path leads out of the root, or through a link below the root.

        All methods that create, move or remove files call `refuse_links` at the moment of the change. The
        root itself may be reached through links. A path that is itself a link is refused only with ``files``,
        because replacing or removing a link does not change the target.
        """
        is_link = os.path.islink if self.local else getattr(self.fs, "is_link", None)
        if is_link is None:  # a filesystem without links
            return
        top, paths = self.join(""), list(paths)
        for directory in {parent_of(path) for path in paths if not self._is_root(path)}:
            names = directory[len(top) :].split("/") if len(directory) >= len(top) else []
            if not f"{directory}/".startswith(top) or ".." in names:
                problem = f"the path leads out of the directory {self.public()!r}"
                advice = "check where the metadata of the directory comes from"
                raise DestinationError(problem, advice, path=self.public(directory))
            for count in range(1, len(names) + 1):
                if is_link(link := top + "/".join(names[:count])):
                    raise self._link_error(link, "the directory is a link, and files behind a link")
        for path in filter(is_link, paths if files else ()):
            raise self._link_error(path, "the file is a link, and links to files")

    def _is_root(self, path: str) -> bool:
        """True for the root itself, and for the temporary file beside a root that is a file."""
        name, _, end = path.rpartition(".")
        return path == self.root or (name == _temporary_name(self.root) and "/" not in end)

    def _link_error(self, link: str, what: str) -> DestinationError:
        problem = f"{what} are never changed, moved or removed"
        advice = "remove the link, or put the files in its place"
        return DestinationError(problem, advice, path=self.public(link))

    @contextmanager
    def create(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        """Create a file that appears at ``path`` when the ``with`` block ends, and not at all if the block
        raises.

        An existing file is replaced atomically. A ``durable`` local file is flushed to the disk before it
        appears, so that it survives a power cut. Raise DestinationError if the filesystem is read-only, as
        HTTP is, or if `refuse_links` refuses the path.
        """
        self.refuse_links([path])
        try:
            made = self._create_by_rename(path, durable) if self.renames else self._create_by_upload(path)
            with made as file:
                yield file
        except OSError as error:
            if error.errno is not None and error.filename is None:  # an error such as a full disk
                error.filename = self.public(path)
            raise
        except NotImplementedError:  # how fsspec reports that a filesystem, such as HTTP, cannot write
            raise DestinationError(
                "files cannot be written here: the filesystem is read-only", path=self.public(path)
            ) from None

    @contextmanager
    def _create_by_rename(self, path: str, durable: bool) -> Iterator[BinaryIO]:
        parent = parent_of(path)
        temporary = f"{_temporary_name(path)}.{secrets.token_hex(16)}"
        try:
            with self._in_directory(parent, lambda: self._open_new(temporary)) as file:
                yield file
                if self.local and durable:
                    file.flush()
                    os.fsync(file.fileno())
            self.move(temporary, path)
        except BaseException:  # also on KeyboardInterrupt, so that no incomplete file remains
            # A failure to remove the incomplete file is not raised, because the first failure is raised.
            with suppress(Exception):
                self.remove_file(temporary)
            raise

    def _open_new(self, path: str) -> BinaryIO:
        if type(self.fs) is LocalFileSystem:
            # The default buffering would ask the system whether the file is a terminal.
            return open(path, "xb", buffering=io.DEFAULT_BUFFER_SIZE)
        file: BinaryIO = self.fs.open(path, "wb")
        return file

    @contextmanager
    def _create_by_upload(self, path: str) -> Iterator[BinaryIO]:
        # A file that is smaller than a block needs one request, and a longer file needs one for each block.
        file = self.fs.open(path, "wb", block_size=REQUEST_BYTES)
        try:
            yield file
            file.close()
        except BaseException:  # also on KeyboardInterrupt, so that no incomplete upload remains
            # A failure to remove the incomplete file is not raised, because the first failure is raised.
            with suppress(Exception):
                file.discard()
            file.closed = True  # otherwise fsspec's finalizer would publish the incomplete file
            raise

    def create_exclusively(self, path: str, data: bytes) -> None:
        """Create a file with these bytes. If the file exists, leave it unchanged and raise FileExistsError.

        On local disks with hard links, over SFTP, in memory and on object stores, exactly one of several
        concurrent calls succeeds. Elsewhere, this is true only of the threads of one process.
        """
        self.refuse_links([path])
        if not self.renames:
            try:
                self.fs.pipe_file(path, data, mode="create")
            except OSError as error:
                if is_precondition_failure(error):
                    raise FileExistsError(self.public(path)) from None
                raise
            return
        if self.fs.exists(path):
            raise FileExistsError(self.public(path))
        parent = parent_of(path)
        temporary = f"{_temporary_name(path)}.{secrets.token_hex(16)}"
        with self.create(temporary) as file:
            file.write(data)
        try:
            if not self._move_new(temporary, path):
                with _CREATION:
                    if self.fs.exists(path):
                        raise FileExistsError(self.public(path))
                    self.move(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                self.fs.rm_file(temporary)
        self.sync_directory(parent)

    def _move_new(self, source: str, target: str) -> bool:
        """Move or link a file to a new path in one step. Raise FileExistsError if the path exists.

        Return False if the filesystem needs more than one step.
        """
        move_new = os.link if self.local else getattr(self.fs, "rename_new", None)
        try:
            if move_new is not None:
                move_new(source, target)
        except OSError as error:
            if not self.local or isinstance(error, FileExistsError):
                raise
            return False
        return move_new is not None

    def move(self, source: str, target: str) -> None:
        """Rename a file. An existing file at ``target`` is replaced."""
        self.refuse_links([source, target])
        if self.local:
            os.replace(source, target)
        # Fsspec's default mv() would treat the paths as globs.
        elif type(self.fs).mv is AbstractFileSystem.mv:
            self.fs.cp_file(source, target)
            with suppress(OSError):  # the target exists already, and `cleanup` removes the source
                self.fs.rm_file(source)
        else:
            self.fs.mv(source, target)

    def place(self, source: str, target: str) -> None:
        """Rename a file to a path in another directory, which is made if it does not exist."""
        self.refuse_links([source, target])
        self._in_directory(parent_of(target), lambda: self.move(source, target), source)

    def copy(self, source: str, target: str) -> None:
        """Copy a file. The directory of ``target`` must exist."""
        self.refuse_links([source, target])
        self.fs.cp_file(source, target)

    def touch(self, path: str) -> None:
        """Create an empty file. A file or a link at its path is replaced.

        An existing file is not emptied instead, because it may be a hard link to a file outside of the root.
        """
        if self.renames:
            with self.create(path, durable=False):
                pass
        else:
            self.fs.pipe_file(path, b"")

    def _in_directory(self, directory: str, create: Callable[[], _T], source: str | None = None) -> _T:
        """Call a function that creates a file in a directory, and make the directory if it does not exist.

        Other writes may remove the directory as long as it is empty. The function is then called again,
        unless the ``source`` of the file is missing.
        """
        failures = 0
        while True:
            try:
                if failures or not self.local:  # on a local disk, most directories exist already
                    self.fs.makedirs(directory, exist_ok=True)
                return create()
            except (FileNotFoundError, FileExistsError):
                failures += 1
                if failures > _ATTEMPTS or (source is not None and not self.fs.exists(source)):
                    raise

    def copy_permissions(self, sources: Iterable[str], target: str) -> None:
        """Give a local file the permissions that all sources share, and the group of the first source.

        What the system does not permit stays unchanged.
        """
        if self.local:
            self.refuse_links([target])
            with suppress(OSError):  # another write may have moved a source
                found = [*map(os.stat, sources)]
                os.chmod(target, reduce(and_, (stat.S_IMODE(one.st_mode) for one in found)))
                os.chown(target, -1, found[0].st_gid)

    def sync_directory(self, path: str) -> None:
        """Flush a local directory to the disk, so that renames into it survive a power cut."""
        if self.local and hasattr(os, "O_DIRECTORY"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, with one request for many files if the store supports this.

        Missing files are ignored. Directories that become empty are also removed, up to the root.
        """
        alone = list(paths)
        self.refuse_links(alone)
        if not self.renames:
            # fsspec removes a list of paths in batches, but treats each path of the list as a glob.
            together = [path for path in alone if not has_magic(path)]
            alone = [path for path in alone if has_magic(path)]
            try:
                if together:
                    self.fs.rm(together)
            except FileNotFoundError:
                alone += together
        if len(alone) > 1 and not self.renames:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(self.remove_file, alone))
        else:
            for path in alone:
                self.remove_file(path)
        if self.renames:
            self.remove_empty({parent_of(path) for path in alone})

    def remove_file(self, path: str) -> None:
        """Remove a file, but not its directory. A missing file is ignored."""
        self.refuse_links([path])
        with suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def remove_tree(self, directory: str) -> None:
        path = self.join(directory)
        self.refuse_links([f"{path}/"])
        self.fs.invalidate_cache()
        try:
            if removes_full_directories(self.fs):
                self.fs.rmdir(path)
                return
            found = self.fs.find(path, withdirs=True, detail=True)
        except FileNotFoundError:
            return
        self.remove(name for name, info in found.items() if info["type"] != "directory")
        if self.renames:
            below = (name for name, info in found.items() if info["type"] == "directory")
            self.remove_empty({path, *below})

    def remove_empty(self, directories: set[str]) -> None:
        """Remove empty directories and all parents that become empty, up to the root.

        Do nothing on filesystems whose `rmdir` also removes files that another process has just created in
        the directory.
        """
        if removes_full_directories(self.fs):
            return
        self.refuse_links(directories)
        for directory in sorted(directories, key=len, reverse=True):
            while directory.startswith(self.join("")):
                try:
                    self.fs.rmdir(directory)
                except OSError:  # the directory is not empty, or was already removed
                    break
                directory = parent_of(directory)

    # -- Reading ---------------------------------------------------------------------------------------------

    @contextmanager
    def open(
        self, path: str, size: int | None, start: int = 0, stop: int | None = None, stamp: str = ""
    ) -> Iterator[FileReader]:
        """Open a file to read the stored bytes from ``start`` to before ``stop``. By default, the whole file
        is read.

        ``size`` and ``stamp`` come from a listing. Raise FileChangedError if a known size or stamp differs
        from the current size or stamp.
        """
        expected = ExpectedFile(
            self.public(path), size, stamp, not start and stop is None, lambda: Store.look(self, path)
        )
        with ExitStack() as stack:
            try:
                is_http = "http" in self._protocols
                file = stack.enter_context(
                    open_unbuffered(self.fs, path, expected, is_http=is_http, uploads=not self.renames)
                )
                expected.check(self._details(file, path, expected))
                if start:
                    file.seek(start)
            except Exception as error:  # fsspec and the libraries of stores raise exceptions of many classes
                expected.explain(error)
            yield FileReader(file, expected, start, stop)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Read byte ranges of files, concurrently if possible.

        A range is a path, a start and a stop. Raise FileChangedError if a file was removed.
        """
        try:
            return read_byte_ranges(self.fs, ranges)
        except FileNotFoundError as error:
            gone = next((path for path, _, _ in ranges if not self.fs.exists(path)), ranges[0][0])
            raise removed(self.public(gone)) from error

    def follow(self, path: str, read: Callable[[str], _T]) -> _T:
        """Call ``read`` with the current path of a listed file. Raise FileChangedError if the file was
        removed.
        """
        try:
            return read(path)
        except FileNotFoundError as error:
            raise removed(self.public(path)) from error

    def _details(self, file: Any, path: str, expected: ExpectedFile) -> dict[str, Any]:
        """Return the current info of an open file, if possible without another request."""
        if self.local:
            status = os.fstat(file.fileno())
            return {"size": status.st_size, "mtime": status.st_mtime}
        if isinstance(file, io.BytesIO) and not expected.stamp and len(file.getbuffer()) == expected.size:
            return {}
        # Open files of pyarrow do not say when they were written.
        if isinstance(file, io.BytesIO) or isinstance(self.fs, ArrowFileSystem):
            return self.look(path)
        may_be_old = self.renames and isinstance(file, AbstractBufferedFile)
        return {} if may_be_old else dict(getattr(file, "details", None) or {})

    def look(self, path: str) -> dict[str, Any]:
        """Return the current info of a file, or of the target of a link, from the store."""
        if self.local:
            status = os.stat(path)
            return {"size": status.st_size, "mtime": status.st_mtime}
        self.fs.invalidate_cache(path)
        return dict(self.fs.info(path))

    @property
    def _protocols(self) -> frozenset[str]:
        protocol = self.fs.protocol
        return frozenset([protocol] if isinstance(protocol, str) else protocol)


class FoundFiles:
    """The files below a directory of a store, which one listing has found.

    On an object store, a listing takes one request for each thousand files.

    Parameters
    ----------
    store : Store
        The store that is listed.
    directory : str, default ""
        The directory, relative to the root of the store.

    Attributes
    ----------
    root : str
        The full path of the listed directory.
    infos : dict of str to dict
        Maps the full path of each file to the info of the filesystem.
    """

    def __init__(self, store: Store, directory: str = "") -> None:
        store.fs.invalidate_cache()
        self._store, self.directory = store, directory
        self.root = store.join(directory) if directory else store.root
        found: dict[str, dict[str, Any]] = store.fs.find(self.root, detail=True)
        self.infos = {path: info for path, info in found.items() if info["type"] != "directory"}

    def names(self, directory: str) -> list[str]:
        """Return what `Store.names` returns for a directory below the listed directory."""
        start = self._store.join(f"{directory}/" if directory else "")
        below = (path[len(start) :] for path in self.infos if path.startswith(start))
        return [*dict.fromkeys(name.partition("/")[0] for name in below)]


def _temporary_name(path: str) -> str:
    """Return the path of the temporary file for a new file, without the random end of the name."""
    return f"{parent_of(path)}/.{name_of(path)}"


class Upload(NamedTuple):
    path: str
    id: str
    started: datetime


def unfinished_uploads(store: Store) -> list[Upload]:
    """List the unfinished multipart uploads below the root, which only S3 has."""
    if not hasattr(store.fs, "call_s3"):
        return []
    bucket, _, key = store.join("").partition("/")
    found: list[Upload] = []
    page: dict[str, Any] = {"IsTruncated": True}
    while page.get("IsTruncated"):
        markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        start = {name: page[last] for name, last in markers.items() if page.get(last)}
        page = store.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, **start)
        found += [
            Upload(f"{bucket}/{one['Key']}", one["UploadId"], one["Initiated"])
            for one in page.get("Uploads", ())
        ]
    return found


def abort(store: Store, upload: Upload) -> None:
    bucket, _, key = upload.path.partition("/")
    with suppress(FileNotFoundError):  # the upload was completed or aborted in the meantime
        store.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)


@dataclass
class Checksum:
    """The first bytes of a file, and the count and the CRC-32C of all bytes read so far."""

    head: bytes = b""
    bytes: int = 0
    crc32c: int = 0


@dataclass(frozen=True, repr=False)
class ChecksumStore(Store):
    """A store that computes the CRC-32C of a file while it is read. Only one file may be open at a time."""

    checksum: Checksum = field(default_factory=Checksum)

    @contextmanager
    def open(self, *args: Any) -> Iterator[FileReader]:
        with super().open(*args) as reader:
            yield ChecksumReader(reader, self.checksum)


class ChecksumReader(FileReader):
    def __init__(self, reader: FileReader, checksum: Checksum) -> None:
        self._reader = reader
        self._checksum = checksum
        self.size = reader.size

    def peek(self, count: int) -> bytes:
        self._checksum.head = self._reader.peek(count)
        return self._checksum.head

    def readinto(self, view: memoryview) -> int:
        count = self._reader.readinto(view)
        self._checksum.bytes += count
        self._checksum.crc32c = crc32c(view[:count], self._checksum.crc32c)
        return count
