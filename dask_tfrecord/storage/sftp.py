"""Extend fsspec's SFTP filesystem with a shared connection, errors for failures, and exclusive creation.

This module uses private names of paramiko and the module `paramiko.sftp`, and was checked with paramiko 5.1.
"""

import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem
from fsspec.utils import infer_storage_options
from paramiko.sftp import CMD_DATA, CMD_READ, SFTP_EOF, int64

# The time limits in seconds for connecting to a server and for each request. A server that exceeds a time
# limit counts as lost.
_CONNECT, _ANSWER = 10, 60

# The maximum number of bytes that one request transfers, and that all requests sent together transfer. A
# thread that sends requests locks the connection until all answers have arrived.
_REQUEST, _BUFFER = 1 << 15, 1 << 20


class SFTP(SFTPFileSystem):
    """fsspec's SFTP filesystem, which the threads of a process can share.

    The threads share one connection. If two threads wait for answers at the same time, paramiko drops the
    answer of one thread, which then waits forever. A lock prevents concurrent requests.
    """

    def __init__(self, host: str, **options: Any) -> None:
        self._lock = RLock()
        self._pid = os.getpid()  # processes cannot share the connection
        super().__init__(host, **options)

    def is_link(self, path: str) -> bool:
        try:
            return stat.S_ISLNK(self.ftp.lstat(path).st_mode or 0)
        except FileNotFoundError:
            return False

    @property
    def ftp(self) -> "_Client":
        """The connection to the server. A lost connection is opened again."""
        with self._lock:
            if self._client.get_channel().closed:
                self._connect()
            return _Client(self)

    @ftp.setter
    def ftp(self, client: paramiko.SFTPClient) -> None:
        self._client = client

    def _connect(self) -> None:
        self.ssh_kwargs.setdefault("timeout", _CONNECT)
        try:
            super()._connect()
        except OSError as error:
            raise paramiko.SSHException(str(error)) from error
        self._client.get_channel().settimeout(_ANSWER)
        # paramiko sends a write of 32 KiB in two packets. By default, the second packet waits 40 ms for an
        # answer to the first packet.
        with suppress(AttributeError, OSError):  # The connection may be a proxy command instead of a socket.
            self.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function that sends requests and waits for the answers."""
        with self._lock:
            try:
                return function(*args, **options)
            except TimeoutError as error:
                self.client.close()  # a late answer would be mistaken for the answer to the next request
                raise paramiko.SSHException("the server does not answer") from error
            except OSError as error:
                if self._client.get_channel().closed:
                    raise paramiko.SSHException("the connection was closed") from error
                # If an OSError has no error number, its text is the server's answer.
                if type(error) is OSError and error.errno is None:
                    path = args[0] if args and isinstance(args[0], str) else None
                    raise OSError(errno.EIO, f"the SFTP server answers {str(error)!r}", path) from error
                raise

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        """Return the path of a URL. "?" and "#" belong to the path, because file names may contain them."""
        protocol, found, rest = path.partition("://")
        if found and protocol in cls.protocol:
            path = f"/{rest.partition('/')[2]}"
        return path.rstrip("/") or path[:1]

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, Any]:
        protocol, _, rest = url.partition("://")
        options = infer_storage_options(f"{protocol}://{rest.partition('/')[0]}/")
        return {name: options[name] for name in ("host", "port", "username", "password") if name in options}

    def unstrip_protocol(self, path: str) -> str:
        """Return the URL of a path, with host and port, and without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = self.ssh_kwargs.get("port")
        return f"sftp://{host}{f':{port}' if port else ''}/{self._strip_protocol(path).lstrip('/')}"

    # -- Directories -----------------------------------------------------------------------------------------

    def exists(self, path: str, **options: Any) -> bool:
        """Return True if a path exists. Raise if the request fails, unlike fsspec, which returns False."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        """List a directory. A symbolic link to a file gets the size and the times of its target."""
        path = self._strip_protocol(path)
        infos = [self._decode_stat(one, path) for one in self.ftp.listdir_attr(path)]
        infos = [self._target(info) if info["type"] == "link" else info for info in infos]
        return infos if detail else sorted(info["name"] for info in infos)

    def _target(self, link: dict[str, Any]) -> dict[str, Any]:
        """Return the info of the file to which a link leads. If the link does not lead to a file, return its
        own info without size and times.

        Links to directories are reported as links, so that no search leaves its starting directory.
        """
        with suppress(FileNotFoundError):
            info: dict[str, Any] = self.info(link["name"])
            if info["type"] != "directory":
                return info
        return {**link, "size": None, "mtime": None}

    def walk(self, path: str, *args: Any, **options: Any) -> Any:
        """Walk as fsspec does, but raise if an existing directory cannot be listed."""

        def fail(error: Exception) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        return super().walk(path, *args, **{"on_error": fail, **options})

    def makedirs(self, path: str, exist_ok: bool = False, mode: int = 0o777) -> None:
        """Make a directory and its parents.

        Other processes may make or remove the same directories at the same time.
        """
        path = self._strip_protocol(path)
        if self.isdir(path):
            if exist_ok:
                return
            raise FileExistsError(path)
        self.makedirs(self._parent(path), exist_ok=True, mode=mode)
        try:
            self.ftp.mkdir(path, mode)
        except OSError:
            if not self.isdir(path):  # an SFTP server does not report why a request is refused
                raise

    # -- Files -----------------------------------------------------------------------------------------------

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "_File":
        return _File(self, path, mode)

    def rm_file(self, path: str) -> None:
        """Remove a file, a link or, as fsspec's method does, an empty directory."""
        path = self._strip_protocol(path)
        try:
            self.ftp.remove(path)
        except FileNotFoundError:
            raise
        except OSError:
            if not self.isdir(path):
                raise
            self.ftp.rmdir(path)

    def rename_new(self, source: str, target: str) -> None:
        """Rename a file to a path at which no file exists, or raise FileExistsError.

        OpenSSH implements this rename with a hard link, which only one of several processes can create.
        """
        try:
            self.ftp.rename(source, target)
        except FileNotFoundError:
            raise
        except OSError:
            if self.exists(target):
                raise FileExistsError(self.unstrip_protocol(target)) from None
            raise


class _Client:
    """A proxy for paramiko's SFTP client that makes each call through `SFTP.request`."""

    def __init__(self, fs: SFTP) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs._client, name)
        return lambda *args, **options: self._fs.request(method, *args, **options)


class _File:
    """A file whose reads and writes send several requests before they wait for the first answer."""

    def __init__(self, fs: SFTP, path: str, mode: str) -> None:
        self._fs, self._path = fs, path
        self._file = fs.ftp.open(path, mode, bufsize=0)
        self._position = 0
        self.closed = False
        self.details: dict[str, Any] = {}
        if "r" in mode:
            try:
                self.details = {**fs._decode_stat(fs.request(self._file.stat)), "name": path}
                if self.details["type"] == "directory":
                    raise IsADirectoryError(errno.EISDIR, "a link to a directory is not followed", path)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
        # paramiko ignores the server's answer to the request that closes a file.
        if kind is None and not self.details and self._fs.info(self._path)["size"] != self._position:
            raise OSError(errno.EIO, "the SFTP server has not stored all bytes", self._path)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._fs.request(self._file.close)

    def flush(self) -> None:
        """Do nothing, because each write waits for the answers of the server."""

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.details.get("size", 0)}
        self._position = starts[whence] + offset
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _BUFFER):
            self._fs.request(self._write, view[start : start + _BUFFER])
        return len(view)

    def _write(self, view: memoryview) -> None:
        # The last write is not pipelined: it waits for the answers to all requests, and raises the errors
        # that they report.
        self._file.set_pipelined(True)
        self._file.write(view[:-_REQUEST])
        self._file.set_pipelined(False)
        self._file.write(view[-_REQUEST:])
        self._position += len(view)

    def readinto(self, view: memoryview) -> int:
        """Read the next bytes of the file. Return the number of bytes, which is 0 only at the file's end."""
        count: int = self._fs.request(self._read, view[:_BUFFER])
        self._position += count
        return count

    def _read(self, view: memoryview) -> int:
        """Read like paramiko's `readv`, but in the calling thread, which holds the lock."""
        client, answers = self._file.sftp, _Answers()
        starts = range(0, len(view), _REQUEST)
        sizes = [min(_REQUEST, len(view) - start) for start in starts]
        numbers = [
            client._async_request(answers, CMD_READ, self._file.handle, int64(self._position + start), size)
            for start, size in zip(starts, sizes, strict=True)
        ]
        while len(answers.found) < len(numbers):
            client._read_response()
        end = 0
        for number, size in zip(numbers, sizes, strict=True):
            data = answers.data(number)
            view[end : end + len(data)] = data
            end += len(data)
            # The server may send fewer bytes than requested, even before the end of the file.
            if len(data) < size:
                break
        return end

    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self.details["size"] - self._position)
        data = memoryview(bytearray(rest if size is None or size < 0 else min(size, rest)))
        end = 0
        while end < len(data) and (got := self.readinto(data[end:])):
            end += got
        return bytes(data[:end])


class _Answers:
    """Collect the answers to read requests. paramiko passes each answer to `_async_response`."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[int, Any]] = {}

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        self.found[number] = kind, message

    def data(self, number: int) -> bytes:
        """Return the data in an answer, which is empty after the end of the file."""
        kind, message = self.found[number]
        if kind == CMD_DATA:
            return bytes(message.get_string())
        code, text = message.get_int(), message.get_text()
        if code == SFTP_EOF:
            return b""
        raise OSError(text)
