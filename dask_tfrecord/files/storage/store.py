"""Files on any filesystem that fsspec opens: written whole or not at all, read forward and checked for size.

Knows nothing of what is in the files. Nothing it says contains a credential.
"""

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from glob import has_magic
from inspect import signature
from threading import Lock
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

from fsspec import AbstractFileSystem, available_protocols, get_filesystem_class
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile
from fsspec.utils import tokenize

from dask_tfrecord.errors import DestinationError, TFRecordError
from dask_tfrecord.files.storage.open_file import REQUEST_BYTES, ExpectedFile, FileReader
from dask_tfrecord.files.storage.paths import name_of, parent_of
from dask_tfrecord.files.storage.redaction import redact_errors, without_credentials

# Stores where a rename is a copy, and where an upload becomes visible as a whole when it is completed.
# All others rename, and a new file is written beside its place first.
_UPLOADING = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})

# Credentials before the name of a bucket, which s3fs and gcsfs take for a part of the name. A secret of AWS
# may hold slashes, and an ARN in place of the bucket holds colons.
_BUCKET_WITH_USER = re.compile(r"(?:^|::)(?:s3a?|gs|gcs)://(?:[^/]*@|(?!arn:)[^/:]*:.*@)")

# Requests at a time, where each file takes one.
_THREADS = 16

# Held between the look whether a file is there and the rename that puts it there.
_CREATION = Lock()


@dataclass(frozen=True, repr=False)
class Store:
    """A filesystem, and a directory on it. Paths are the filesystem's own, without protocol.

    It travels in tasks, so that workers open what the client opened; its repr and its token show no
    storage options.
    """

    fs: AbstractFileSystem
    root: str

    @classmethod
    @redact_errors
    def at(cls, path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> "Store":
        """The store and root that a path or URL names; listings that fsspec remembers are forgotten."""
        text = os.fspath(path)
        _check_url(text)
        fs, root = url_to_fs(text, **(storage_options or {}))
        fs.invalidate_cache()
        return cls(fs, root)

    def __repr__(self) -> str:
        return f"Store({self.public(self.root)!r})"

    def __dask_tokenize__(self) -> tuple[str, ...]:
        fs = self.fs
        return type(fs).__qualname__, tokenize(fs.storage_args, fs.storage_options), self.root

    def join(self, relative: str) -> str:
        """The path of what lies at ``relative`` below the root."""
        return f"{self.root.rstrip('/')}/{relative}"

    def relative(self, path: str) -> str:
        """Return the path below the root of a file that lies below the root: the inverse of `join`."""
        return path[len(self.join("")) :]

    def public(self, path: str) -> str:
        """How messages and results call a path: a URL without user, password and query."""
        if self.local:
            return path
        scheme, _, rest = str(self.fs.unstrip_protocol(path)).partition("://")
        if scheme in ("http", "https"):
            rest = rest.partition("?")[0]
        host, slash, tail = rest.partition("/")
        return without_credentials(f"{scheme}://{host.rpartition('@')[2]}{slash}{tail}")

    @cached_property
    def local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @cached_property
    def renames(self) -> bool:
        """Whether new files are renamed into place; otherwise an upload puts them there."""
        return _UPLOADING.isdisjoint(self._protocols)

    def names(self, directory: str) -> list[str]:
        """What lies directly in a directory below the root, now; nothing if there is no such directory."""
        if "://" in self.root and not self.root.endswith("/"):  # over HTTP any file could be asked for that
            return []
        path = self.join(directory)
        self.fs.invalidate_cache(path)
        try:
            found = [name_of(one.rstrip("/")) for one in self.fs.ls(path, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in found if name]

    # -- Writing ---------------------------------------------------------------------------------------------

    @contextmanager
    def create(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        """A new file, which is at ``path`` when the block ends, and nowhere if it raises.

        A file that is there already is replaced in one step. A file that is not ``durable`` may be lost in a
        power cut.
        """
        try:
            with (
                self._create_by_rename(path, durable)
                if self.renames
                else self._create_by_upload(path) as file
            ):
                yield file
        except OSError as error:
            if error.errno is not None and error.filename is None:  # as a full disk's
                error.filename = self.public(path)
            raise
        except NotImplementedError:  # of fsspec, on what can only be read, such as HTTP
            raise DestinationError("files cannot be written here", path=self.public(path)) from None

    @contextmanager
    def _create_by_rename(self, path: str, durable: bool) -> Iterator[BinaryIO]:
        parent, _, name = path.rpartition("/")
        self.fs.makedirs(parent, exist_ok=True)
        temporary = f"{parent}/.{name}.{uuid4().hex}"
        try:
            with self.fs.open(temporary, "wb") as file:
                yield file
                if self.local and durable:
                    file.flush()
                    os.fsync(file.fileno())
            self.move(temporary, path)
        except BaseException:
            with suppress(Exception):
                self.fs.rm_file(temporary)
            raise

    @contextmanager
    def _create_by_upload(self, path: str) -> Iterator[BinaryIO]:
        file = self.fs.open(path, "wb", block_size=REQUEST_BYTES, autocommit=False)
        try:
            yield file
            file.close()
            file.commit()
        except BaseException:
            with suppress(Exception):
                file.discard()
            file.closed = True  # or fsspec's finalizer would publish what was written so far
            raise

    def create_exclusively(self, path: str, data: bytes) -> None:
        """Make a file with this content, or raise FileExistsError and leave the one that is there.

        Of several at once exactly one succeeds on local disks with hard links, in memory and on object
        stores; elsewhere a check comes before the rename, and only the threads of one process wait for each
        other.
        """
        if not self.renames:
            self.fs.pipe_file(path, data, mode="create")
            return
        if self.fs.exists(path):
            raise FileExistsError(self.public(path))
        parent, _, name = path.rpartition("/")
        temporary = f"{parent}/.{name}.{uuid4().hex}"
        with self.create(temporary) as file:
            file.write(data)
        try:
            if not self._link(temporary, path):
                with _CREATION:
                    if self.fs.exists(path):
                        raise FileExistsError(self.public(path))
                    self.move(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                self.fs.rm_file(temporary)
        self.sync_directory(parent)

    def _link(self, source: str, target: str) -> bool:
        """Give a file a second name, which must be free; False on a disk without hard links."""
        if not self.local:
            return False
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:
            return False
        return True

    def move(self, source: str, target: str) -> None:
        """Rename a file, over the one that is there."""
        if self.local:
            os.replace(source, target)
        elif type(self.fs).mv is AbstractFileSystem.mv:  # which takes the paths for patterns
            self.fs.cp_file(source, target)
            with suppress(OSError):  # the file is in its place; `cleanup` removes what waits
                self.fs.rm_file(source)
        else:
            self.fs.mv(source, target)

    def place(self, source: str, target: str) -> None:
        """Rename a file into a directory that may not be there yet, or be removed as empty at this moment."""
        while True:
            self.fs.makedirs(parent_of(target), exist_ok=True)
            try:
                return self.move(source, target)
            except FileNotFoundError:
                if not self.fs.exists(source):
                    raise

    def sync_directory(self, path: str) -> None:
        """Make renames into this directory survive a power cut, where that is ours to do."""
        if self.local and hasattr(os, "O_DIRECTORY"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, many in one request where the store can; those that are not there are passed over.

        Directories that are empty then go, too, up to the root.
        """
        alone = list(paths)
        if not self.renames:
            # A list of paths goes out in batches, but fsspec takes each of them for a pattern.
            together = [path for path in alone if not has_magic(path)]
            alone = [path for path in alone if has_magic(path)]
            try:
                if together:
                    self.fs.rm(together)
            except FileNotFoundError:
                alone += together
        if len(alone) > 1 and not self.renames:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(self._remove_one, alone))
        else:
            for path in alone:
                self._remove_one(path)
        if self.renames:
            self.remove_empty({parent_of(path) for path in alone})

    def _remove_one(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def remove_tree(self, directory: str) -> None:
        """Remove a directory below the root and all that lies in it."""
        path = self.join(directory)
        self.fs.invalidate_cache()
        try:
            found = self.fs.find(path, withdirs=True, detail=True)
        except FileNotFoundError:
            return
        self.remove(name for name, info in found.items() if info["type"] != "directory")
        if self.renames:
            below = (name for name, info in found.items() if info["type"] == "directory")
            self.remove_empty({path, *below})

    def uploads(self) -> list["Upload"]:
        """The uploads to below the root that were begun and neither completed nor given up, if S3 has any."""
        if not hasattr(self.fs, "call_s3"):
            return []
        bucket, _, key = self.join("").partition("/")
        found: list[Upload] = []
        page: dict[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
            start = {name: page[last] for name, last in markers.items() if page.get(last)}
            page = self.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, **start)
            found += [
                Upload(f"{bucket}/{one['Key']}", one["UploadId"], one["Initiated"])
                for one in page.get("Uploads", ())
            ]
        return found

    def abort(self, upload: "Upload") -> None:
        """Give up an upload."""
        bucket, _, key = upload.path.partition("/")
        with suppress(FileNotFoundError):  # it is completed, or was given up, since
            self.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)

    def remove_empty(self, directories: set[str]) -> None:
        """Remove directories that are empty, and those above that are so then, up to the root."""
        for directory in sorted(directories, key=len, reverse=True):
            while directory.startswith(self.join("")):
                try:
                    self.fs.rmdir(directory)
                except OSError:  # not empty, or gone
                    break
                directory = parent_of(directory)

    # -- Reading ---------------------------------------------------------------------------------------------

    @contextmanager
    def open(
        self, path: str, size: int | None, start: int = 0, stop: int | None = None, stamp: str = ""
    ) -> Iterator[FileReader]:
        """A file to read forward from ``start`` to ``stop``.

        ``size`` (None if nobody knows) and ``stamp`` (empty if there is none) are those of the file that is
        meant; FileChangedError tells that it is another one now.
        """
        expected = ExpectedFile(
            self.public(path), size, stamp, not start and stop is None, lambda: self.look(path)
        )
        with ExitStack() as stack:
            with expected.explained():
                file = stack.enter_context(self._open(path, expected))
                expected.check(self._details(file, path))
                if start:
                    file.seek(start)
            yield FileReader(file, expected, start, stop)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """The bytes of these ranges: path, start and stop. Stores that can are asked for all at once."""
        paths, starts, stops = map(list, zip(*ranges, strict=True)) if ranges else ([], [], [])
        found: list[bytes] = self.fs.cat_ranges(paths, starts, stops, on_error="raise")
        for one in found:  # asynchronous filesystems return errors whatever they are asked for
            if isinstance(one, Exception):
                raise one
        return found

    def _open(self, path: str, expected: ExpectedFile) -> Any:
        options: dict[str, Any] = {
            "block_size": REQUEST_BYTES,
            "cache_type": "none",
        }  # FileReader buffers
        if "http" in self._protocols:
            if expected.whole:
                options["block_size"] = 0  # one request, which servers without ranges answer, too
            elif expected.size is not None:
                options["size"] = expected.size + 1  # so that a byte too many does not go unnoticed
        file = self.fs.open(path, "rb", **options)
        # fsspec gives all readers of a file in memory the same object, with one position.
        return io.BytesIO(file.getvalue()) if isinstance(file, MemoryFile) else file

    def _details(self, file: Any, path: str) -> dict[str, Any]:
        """What an open file tells of itself without another request."""
        if self.local:
            status = os.fstat(file.fileno())
            return {"size": status.st_size, "mtime": status.st_mtime}
        if isinstance(file, io.BytesIO):
            return self.look(path)
        return {} if self.renames else dict(getattr(file, "details", None) or {})

    def look(self, path: str) -> dict[str, Any]:
        """What the store tells of a file now; of a link, what it tells of the file behind it."""
        if self.local:
            status = os.stat(path)
            return {"size": status.st_size, "mtime": status.st_mtime}
        self.fs.invalidate_cache(path)
        return dict(self.fs.info(path))

    @property
    def _protocols(self) -> frozenset[str]:
        protocol = self.fs.protocol
        return frozenset([protocol] if isinstance(protocol, str) else protocol)


def _check_url(text: str) -> None:
    """Refuse what fsspec would silently take for another place, or send to a store as a name."""
    if "\0" in text:
        raise TFRecordError(f"{without_credentials(text)!r} contains a null character and is not a path")
    if _BUCKET_WITH_USER.search(text):
        raise TFRecordError(
            "the URL of a bucket cannot hold credentials",
            path=without_credentials(text),
            advice='pass them in storage_options, such as {"key": ..., "secret": ...} for S3',
        )
    *outer, _ = text.split("::")
    for part in outer:
        protocol, found, _ = part.partition("://")
        if not _wraps(protocol if found or part in available_protocols() else "file"):
            raise TFRecordError(
                "'::' chains filesystems for fsspec, and what comes before it does not read from another one",
                path=without_credentials(text),
                advice="rename the file or directory so that its name does not contain '::'",
            )


def _wraps(protocol: str) -> bool:
    """Whether a filesystem reads what another one holds, such as a cache or an archive."""
    try:
        kind = get_filesystem_class(protocol)
    except (ValueError, ImportError):  # fsspec says which
        return True
    parameters = {name for one in kind.__mro__ for name in signature(one.__init__).parameters}
    return not parameters.isdisjoint({"fo", "target_protocol"})


class Upload(NamedTuple):
    """An upload to S3 that is not completed."""

    path: str
    id: str
    started: datetime
