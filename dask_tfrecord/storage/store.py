"""Create, move and remove files on any fsspec filesystem, so that a file appears complete or not at all.

Messages of this module contain no credentials.
"""

import io
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from glob import has_magic
from itertools import groupby
from operator import and_, attrgetter
from typing import Any, BinaryIO, ClassVar, TypeVar

import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from dask_tfrecord.errors import DestinationError, TFRecordError
from dask_tfrecord.storage.failures import is_precondition_failure
from dask_tfrecord.storage.filesystem import (
    Filesystem,
    Hidden,
    Info,
    open_path,
    protocols_of,
    source_of,
)
from dask_tfrecord.storage.forked import fork_safe_locks
from dask_tfrecord.storage.found_files import FoundFiles, VisibleFiles
from dask_tfrecord.storage.local_disk import (
    METADATA_BYTES,
    LinkFollowingDisk,
    check_loop,
    open_regular,
    read_regular,
    without_duplicates,
)
from dask_tfrecord.storage.location import Location
from dask_tfrecord.storage.paths import check_url, name_of, parent_of, path_text
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.reader import ExpectedFile, rewritten
from dask_tfrecord.storage.uploading import Uploads

_S = TypeVar("_S")
_T = TypeVar("_T")

# The protocols of the object stores to which files are uploaded.
_UPLOADING = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})

# If other writes remove a new, empty directory, the directory is created again at most this many times.
_ATTEMPTS = 100

# A thread holds this lock while it checks that a file does not exist, and then creates the file by a rename.
_CREATION = fork_safe_locks(1)


class Store(Location, ABC):
    """The files of a filesystem below a root directory. A store does not know what the files contain.

    Most methods take full paths, which `join` makes from paths relative to the root. A reader has these:

    - Names: `join`, `relative`, `listed_name`, and `public` for messages.
    - Listings: `names` and `infos` of one directory, `find` and `glob` of the files that readers see,
      `find_everything`, `list_visible`. `has_file` and `info` ask for one file.
    - Content: `open` reads a range from start to end, after `reading_ahead` with requests for the next ranges
      in flight. `read_ranges` reads many ranges at once, `read_file` a small file, `read_ends` the
      ends of files. `map_file` maps a local file into memory.

    A writer has these, all of which refuse to leave the root through a link (`refuse_links`):

    - New files, which appear complete or not at all: `create`, and `write_file` for bytes.
      `create_exclusively` fails if the file exists. In `finishing_together`, several uploads end at once.
    - Existing files: `move`, `copy`, `remove`, `remove_file`, `remove_tree` and `remove_empty`. Only local
      disks have `copy_permissions` and `sync_directory`.

    `Store.at` opens a path or URL. The subclasses differ in how files appear, move and vanish: on local
    disks, on remote filesystems that can rename files, such as SFTP, on HDFS, and on object stores.
    """

    # False on object stores: `move` only copies, an interrupted `create` leaves nothing, and the root of the
    # filesystem contains only buckets.
    can_rename: ClassVar[bool] = True

    @staticmethod
    def at(
        path: str | os.PathLike[str],
        storage_options: dict[str, Any] | None = None,
        filesystem: Filesystem = None,
    ) -> "Store":
        """Open the filesystem of a path or URL. The path becomes the root. Cached directory listings are
        dropped.
        """
        text = path_text(path)
        check_url(text)
        fs, root = open_path(text, storage_options, filesystem)
        source = source_of(fs)
        source.invalidate_cache()
        store = Store.of(source, root)
        return store if source is fs else replace(store, cache=fs)

    @staticmethod
    def of(fs: AbstractFileSystem, root: str) -> "Store":
        if isinstance(fs, LocalFileSystem):
            return LocalStore(fs, root)
        if not _UPLOADING.isdisjoint(protocols_of(fs)):
            return UploadingStore(fs, root)
        return (HadoopStore if isinstance(fs, ArrowFSWrapper) else RenamingStore)(fs, root)

    def list_visible(self, is_hidden: Hidden) -> FoundFiles:
        """List all files that readers see in one listing, as `find` does."""
        return VisibleFiles(self, self.find_everything())

    # -- Writing ---------------------------------------------------------------------------------------------

    def refuse_links(self, paths: Iterable[str], *, files: bool = False) -> None:
        """Raise DestinationError if a path leads out of the root, or through a link below the root.

        All methods that create, move or remove files call `refuse_links` at the moment of the change. The
        root itself may be reached through links. A path that is itself a link is refused only if ``files`` is
        True, because replacing or removing a link does not change its target.
        """
        if (is_link := self._is_link) is None:  # this filesystem does not support links
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

    def refuse_file(self, directory: str) -> None:
        """Raise DestinationError if a file, pipe or device has the name of a directory."""
        with suppress(OSError):  # nothing has the name
            if self.fs.info(directory)["type"] in ("file", "other"):
                problem = "a file has the name of a directory"
                raise DestinationError(problem, "move the file elsewhere", path=self.public(directory))

    @property
    def _is_link(self) -> Callable[[str], bool] | None:
        return getattr(self.fs, "is_link", None)

    def _is_root(self, path: str) -> bool:
        """Return True for the root itself. If the root is a file, also return True for its temporary file."""
        name, _, end = path.rpartition(".")
        return path == self.root or (name == _temporary_name(self.root) and "/" not in end)

    def _link_error(self, link: str, what: str) -> DestinationError:
        problem = f"{what} are never changed, moved or removed"
        advice = "remove the link, or put the files in its place"
        return DestinationError(problem, advice, path=self.public(link))

    @contextmanager
    def create(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        """Create a file that appears at ``path`` when the ``with`` block ends. If the block raises, the file
        never appears.

        An existing file is replaced atomically. If ``durable`` is True, a local file is flushed to the disk
        before it appears, so that the file survives a power cut. Raise DestinationError if the filesystem is
        read-only, as HTTP is, or if `refuse_links` refuses the path.
        """
        self.refuse_links([path])
        try:
            with self._create(path, durable) as file:
                yield file
        except OSError as error:
            # Some errors, such as a full disk, name no path.
            if error.errno is not None and error.filename is None:
                error.filename = self.public(path)
            raise
        except NotImplementedError:  # some filesystems, such as HTTP, cannot write
            raise DestinationError(
                "files cannot be written here: the filesystem is read-only", path=self.public(path)
            ) from None

    @contextmanager
    def finishing_together(self) -> Iterator["Store"]:
        """Yield a store for files that need not have appeared when the ``with`` block of `create` ends.

        All files have appeared when the ``with`` block of `finishing_together` ends. An object store then
        finishes several uploads at a time.
        """
        yield self

    @abstractmethod
    def _create(self, path: str, durable: bool) -> AbstractContextManager[BinaryIO]: ...

    def create_exclusively(self, path: str, data: bytes) -> None:
        """Create a file with the content ``data``. If the file exists, leave it unchanged and raise
        FileExistsError.

        On local disks with hard links, over SFTP, in memory and on object stores, exactly one of several
        concurrent calls succeeds. On any other filesystem, exclusive creation works only among the threads of
        one process.
        """
        self.refuse_links([path])
        self._create_exclusively(path, data)

    @abstractmethod
    def _create_exclusively(self, path: str, data: bytes) -> None: ...

    def write_file(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create a file with the content ``data``. The file exists when the call returns."""
        with self.create(path, durable=durable) as file:
            file.write(data)

    @abstractmethod
    def move(self, source: str, target: str, *, overwrite: bool = True) -> str | None:
        """Move a file to ``target``, in a directory that is created if it does not exist.

        Raise FileExistsError if ``target`` exists and ``overwrite`` is False. An object store only copies the
        file, and returns ``source``, which the caller must remove.
        """

    def copy(self, source: str, target: str) -> None:
        """Copy a file to ``target``, whose directory must exist."""
        self.refuse_links([source, target])
        self.fs.cp_file(source, target)

    def copy_permissions(self, sources: Iterable[str], target: str) -> None:
        """Give a local file the permissions that all sources share, and the group of the first source.

        Ignore changes that the system does not permit.
        """

    def sync_directory(self, path: str) -> None:
        """Flush a local directory to the disk, so that renames into the directory survive a power cut."""

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, with one request for many files if the store supports bulk requests.

        Missing files are ignored. Directories below the root that become empty are removed together with the
        files.
        """
        listed = list(paths)
        self.refuse_links(listed)
        self._remove(listed)

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self.remove_file(path)
        self.remove_empty({parent_of(path) for path in paths})

    def remove_file(self, path: str) -> None:
        """Remove a file, but not its directory. A missing file is ignored."""
        self.refuse_links([path])
        with suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def remove_tree(self, directory: str) -> None:
        path = self.join(directory)
        self.refuse_links([f"{path}/"])
        self.fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._remove_tree(path)

    def _remove_tree(self, path: str) -> None:
        infos = self.fs.find(path, withdirs=True, detail=True)
        directories = {name for name, info in infos.items() if info["type"] == "directory"}
        self.remove(name for name in infos if name not in directories)
        self.remove_empty({path, *directories})

    def remove_empty(self, directories: set[str]) -> None:
        """Remove empty directories, and all parents that become empty, up to the root.

        Do nothing on object stores and on HDFS.
        """


class RenamingStore(Store):
    """A remote filesystem that can rename a file in one step.

    A new file is written under a temporary name in its final directory, and then renamed.
    """

    @contextmanager
    def _create(self, path: str, durable: bool) -> Iterator[BinaryIO]:
        temporary = f"{_temporary_name(path)}.{secrets.token_hex(16)}"
        try:
            with self._in_directory(parent_of(path), lambda: self._open_new(temporary)) as file:
                yield file
                if durable:
                    self._sync(file)
            self.refuse_links([temporary, path])
            self._move(temporary, path)
        # Handle every exception, even KeyboardInterrupt, so that no incomplete file remains.
        except BaseException:
            # A failure to remove the incomplete file must not hide the original exception.
            with suppress(Exception):
                self.remove_file(temporary)
            raise

    def _open_new(self, path: str) -> BinaryIO:
        file: BinaryIO = self.fs.open(path, "wb")
        return file

    def _sync(self, file: BinaryIO) -> None:
        """Flush a local file to the disk."""

    def _create_exclusively(self, path: str, data: bytes) -> None:
        if self.has_file(path):
            raise FileExistsError(self.public(path))
        temporary = f"{_temporary_name(path)}.{secrets.token_hex(16)}"
        with self.create(temporary) as file:
            file.write(data)
        try:
            self._move_exclusively(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                self.fs.rm_file(temporary)
        self.sync_directory(parent_of(path))

    def move(self, source: str, target: str, *, overwrite: bool = True) -> None:
        def is_moved() -> bool:
            try:
                (self._move if overwrite else self._move_exclusively)(source, target)
            except FileExistsError:
                return False
            return True

        self.refuse_links([source, target])
        if not self._in_directory(parent_of(target), is_moved, source):
            raise FileExistsError(self.public(target))

    def _move_exclusively(self, source: str, target: str) -> None:
        if not self._move_new(source, target):
            with _CREATION[0]:
                if self.has_file(target):
                    raise FileExistsError(self.public(target))
                self._move(source, target)

    def _move(self, source: str, target: str) -> None:
        # fsspec's default `mv` would treat the paths as globs.
        if type(self.fs).mv is AbstractFileSystem.mv:
            self.fs.cp_file(source, target)
            with suppress(OSError):  # the target exists, so `cleanup` can remove the source later
                self.fs.rm_file(source)
        else:
            self.fs.mv(source, target)

    def _move_new(self, source: str, target: str) -> bool:
        """Move a file to a new path. Raise FileExistsError if the path exists.

        Return False if the filesystem has no operation that does this.
        """
        if not hasattr(self.fs, "rename_new"):
            return False
        self.fs.rename_new(source, target)
        return True

    def _in_directory(self, directory: str, create: Callable[[], _T], source: str | None = None) -> _T:
        """Call a function that creates a file in a directory. Create the directory if it does not exist.

        Another write can remove the directory while it is still empty. If the directory is missing, the
        function is called again, unless the ``source`` of the file is missing.
        """
        failures = 0
        while True:
            try:
                if failures or self.is_remote:  # a local directory usually exists, so try `create` first
                    self.fs.makedirs(directory, exist_ok=True)
                return create()
            except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
                failures += 1
                parent = "" if isinstance(error, FileNotFoundError) else directory
                while parent.startswith(self.join("")):
                    self.refuse_file(parent)
                    parent = parent_of(parent)
                if failures > _ATTEMPTS or (source is not None and not self.fs.exists(source)):
                    raise

    def remove_empty(self, directories: set[str]) -> None:
        self.refuse_links(directories)
        for directory in sorted(directories, key=len, reverse=True):
            while directory.startswith(self.join("")):
                try:
                    self.fs.rmdir(directory)
                except OSError:  # the directory is not empty, or another process removed it
                    break
                directory = parent_of(directory)

    def _details(self, file: Any, path: str, expected: ExpectedFile) -> Info:
        # The info in fsspec's buffered file may come from an old listing.
        return {} if isinstance(file, AbstractBufferedFile) else super()._details(file, path, expected)


class LocalStore(RenamingStore):
    """A local disk. Readers follow links, but writes never change a file through a link below the root."""

    is_remote = False
    request_cost = 1 << 16
    move_keeps_stamp = True

    @property
    def _is_plain(self) -> bool:
        """True if the much faster functions of the operating system can replace fsspec's methods."""
        return type(self.fs) is LocalFileSystem

    def public(self, path: str | None = None) -> str:
        return self.root if path is None else path

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def for_each(self, function: Callable[[_S], _T], items: Iterable[_S]) -> list[_T]:
        return [*map(function, items)]

    def _ls(self, path: str) -> dict[str, Info | None]:
        try:
            return dict.fromkeys(os.listdir(path)) if self._is_plain else super()._ls(path)
        except OSError as error:
            check_loop(error, path)
            raise

    def find(self, path: str, is_hidden: Hidden, *, with_hidden: bool = False) -> dict[str, Info]:
        return without_duplicates(LinkFollowingDisk(is_hidden).find(path, withdirs=with_hidden, detail=True))

    def list_visible(self, is_hidden: Hidden) -> FoundFiles:
        disk = LinkFollowingDisk(is_hidden)
        infos = disk.find(self.root, withdirs=True, detail=True)
        return VisibleFiles(self, without_duplicates(infos), disk.links)

    def find_everything(self, directory: str = "") -> dict[str, Info]:
        disk, found, waiting = LinkFollowingDisk(), {}, [self.join(directory)]
        while waiting:
            with suppress(FileNotFoundError, NotADirectoryError):  # another process has removed the directory
                for info in disk.ls(waiting.pop(), detail=True):
                    if info["type"] == "directory":
                        waiting.append(info["name"])
                    else:
                        found[info["name"]] = info
        return found

    def glob(self, pattern: str, is_hidden: Hidden) -> dict[str, Info]:
        return dict(LinkFollowingDisk(is_hidden).glob(pattern, detail=True))

    _is_link = staticmethod(os.path.islink)

    def _open_new(self, path: str) -> BinaryIO:
        if not self._is_plain:
            return super()._open_new(path)
        # With the default buffering, Python would ask the system whether the file is a terminal.
        return open(path, "xb", buffering=io.DEFAULT_BUFFER_SIZE)

    def _sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    _link = staticmethod(os.link)

    def _move_new(self, source: str, target: str) -> bool:
        try:
            self._link(source, target)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError:  # the filesystem does not support hard links
            return False
        os.unlink(source)
        return True

    def _move(self, source: str, target: str) -> None:
        os.replace(source, target)

    def copy_permissions(self, sources: Iterable[str], target: str) -> None:
        self.refuse_links([target])
        with suppress(OSError):  # another write may have moved a source file
            stats = [*map(os.stat, sources)]
            os.chmod(target, reduce(and_, (stat.S_IMODE(one.st_mode) for one in stats)))
            os.chown(target, -1, stats[0].st_gid)

    def sync_directory(self, path: str) -> None:
        if hasattr(os, "O_DIRECTORY"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _open_file(self, path: str, expected: ExpectedFile, start: int, stop: int | None) -> Any:
        if self._is_plain:
            return open(path, "rb", buffering=0, opener=open_regular)
        return super()._open_file(path, expected, start, stop)

    def _details(self, file: Any, path: str, expected: ExpectedFile) -> Info:
        return self._info(file.fileno())

    def _read_ranges(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        if not self._is_plain:
            return super()._read_ranges(ranges)
        parts = []
        # With fsspec, a file would be opened again for each range.
        for (path, stamp), group in groupby(ranges, key=attrgetter("path", "stamp")):
            file = open_regular(path)
            try:
                status = os.fstat(file)
                if stamp not in ("", str(status.st_mtime)):
                    raise rewritten(self.public(path))
                size = status.st_size  # reserve no memory for bytes that the file does not have
                parts += [os.pread(file, max(0, min(one.stop, size) - one.start), one.start) for one in group]
            finally:
                os.close(file)
        return parts

    def read_file(self, path: str, most_bytes: int = METADATA_BYTES) -> bytes:
        return read_regular(path, most_bytes) if self._is_plain else super().read_file(path, most_bytes)

    def read_ends(self, paths: Sequence[str], count: int) -> list[bytes | Exception]:
        def read(path: str) -> bytes | Exception:
            try:
                with open(path, "rb", buffering=0, opener=open_regular) as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - count))
                    return file.read(count)
            except (OSError, TFRecordError) as error:
                return error

        return [*map(read, paths)] if self._is_plain else super().read_ends(paths, count)

    def map_file(self, path: str, size: int | None) -> pa.Buffer:
        def read(at: str) -> pa.Buffer:
            os.close(open_regular(at))
            return pa.memory_map(at).read_buffer()

        mapped = self.with_current_path(path, read)
        if size not in (None, mapped.size):
            raise self._resized(path, size or 0, f"{mapped.size:,}")
        return mapped

    def _info(self, path: str | int) -> Info:
        status = os.stat(path)
        return {"size": status.st_size, "mtime": status.st_mtime}


class HadoopStore(RenamingStore):
    """HDFS, whose `rmdir` removes a directory together with the files in it."""

    def _remove_tree(self, path: str) -> None:
        self.fs.rmdir(path)

    def remove_empty(self, directories: set[str]) -> None:
        """Do nothing, because `rmdir` would also remove a file that another process has just created."""


@dataclass(frozen=True, repr=False)
class UploadingStore(Store):
    """An object store: an upload becomes visible only when it is complete, and a rename is a copy.

    An object store has no directories.
    """

    can_rename = False

    # The uploads that end together, or None to wait for each file.
    uploads: Uploads | None = field(default=None, compare=False)

    @contextmanager
    def _create(self, path: str, durable: bool) -> Iterator[BinaryIO]:
        with (
            Uploads() if self.uploads is None else nullcontext(self.uploads) as uploads,
            uploads.create(self.fs, path, self.public(path)) as file,
        ):
            yield file

    @contextmanager
    def finishing_together(self) -> Iterator[Store]:
        with Uploads() as uploads:
            yield replace(self, uploads=uploads)

    def _create_exclusively(self, path: str, data: bytes) -> None:
        try:
            self.fs.pipe_file(path, data, mode="create")
        except OSError as error:
            if is_precondition_failure(error):
                raise FileExistsError(self.public(path)) from None
            raise

    def write_file(self, path: str, data: bytes, *, durable: bool = True) -> None:
        # The mark of a task must exist before the files that the task uploads next.
        Store.write_file(replace(self, uploads=None), path, data, durable=durable)

    def move(self, source: str, target: str, *, overwrite: bool = True) -> str:
        if not overwrite and self.has_file(target):
            raise FileExistsError(self.public(target))
        self.copy(source, target)
        return source

    def _remove(self, paths: list[str]) -> None:
        # fsspec removes a list of paths in batches, but treats each as a glob.
        together = [path for path in paths if not has_magic(path)]
        alone = [path for path in paths if has_magic(path)]
        try:
            if together:
                self.fs.rm(together)
        except FileNotFoundError:
            alone += together
        self.for_each(self.remove_file, alone)

    def list_visible(self, is_hidden: Hidden) -> FoundFiles:
        return FoundFiles(self)


def _temporary_name(path: str) -> str:
    """Return the path of the temporary file for a new file, without the random suffix."""
    return f"{parent_of(path)}/.{name_of(path)}"
