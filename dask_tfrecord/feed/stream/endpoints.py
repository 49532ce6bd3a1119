"""Open the endpoints of a stream server: sockets and file descriptors.

The module `endpoints` sends bytes and does not know Arrow.
"""

import os
import socket
import stat
import time
from contextlib import suppress

from dask_tfrecord.errors import TFRecordError

_KINDS = "'tcp://host:port', 'unix://path' or 'fd://number'"


class ClientLeftError(Exception):
    """Signal that the client has closed its end of the stream."""


class Sink:
    """Send a stream to one client, which reads from the other end of a socket or of a pipe.

    Parameters
    ----------
    number : int
        The file descriptor of the socket or of the pipe. The sink closes the descriptor.
    connection : socket.socket, optional
        The socket. None for a pipe.
    """

    def __init__(self, number: int, connection: socket.socket | None = None) -> None:
        self._number = number
        self._connection = connection

    def send(self, data: memoryview) -> None:
        """Send all bytes of ``data``. Block until the client has received or buffered the bytes."""
        try:
            while data:
                data = data[os.write(self._number, data) :]
        except OSError as error:
            raise ClientLeftError(str(error)) from None

    def interrupt(self) -> None:
        """Make the current and all later calls of `send` fail, unless the sink writes to a pipe.

        A write to a pipe cannot be interrupted from another thread.
        """
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor. The client receives what was sent, and sees the end of the stream."""
        if self._connection is not None:
            self._connection.close()
        else:
            with suppress(OSError):
                os.close(self._number)


class Listener:
    """Accept the connections of clients to a socket.

    Attributes
    ----------
    endpoint : str
        The address at which clients connect, with the actual port number.
    """

    def __init__(self, endpoint: str) -> None:
        self._closed = False
        self._path: str | None = None
        kind, _, place = endpoint.rpartition("://")
        if kind == "unix":
            self._path = os.path.abspath(place)
            self._socket = _unix_socket(self._path)
            self.endpoint = f"unix://{self._path}"
        else:
            self._socket = _tcp_socket(endpoint, place)
            host, port = self._socket.getsockname()
            self.endpoint = f"tcp://{host}:{port}"

    def accept(self) -> Sink | None:
        """Wait for the next client, and return the connection to this client.

        If `close` was called, return None.
        """
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
                connection.setblocking(True)  # `socket.setdefaulttimeout` makes it non-blocking for os.write
                return Sink(connection.fileno(), connection)
            except OSError:  # the socket was closed meanwhile, or too many files are open at the moment
                time.sleep(0.01)
        return None

    def close(self) -> None:
        """Refuse further clients, and remove the file of a Unix socket."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # this wakes the thread that waits in accept
        self._socket.close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)


def open_endpoint(endpoint: str) -> Listener | Sink:
    """Open one endpoint of a stream server.

    Raises
    ------
    TFRecordError
        If the text is not an endpoint, or if the endpoint cannot be opened.
    """
    kind = endpoint.rpartition("://")[0] if isinstance(endpoint, str) else None
    if kind not in ("", "tcp", "unix", "fd"):
        raise TFRecordError(f"{endpoint!r} is not an endpoint", f"pass {_KINDS}")
    if kind == "fd":
        return Sink(_descriptor(endpoint))
    try:
        return Listener(endpoint)
    except OSError as error:
        raise TFRecordError(
            f"the endpoint {endpoint!r} cannot be opened: {error.strerror or error}",
            "choose another port or path, or pass 'tcp://127.0.0.1:0' to get a free port",
        ) from None


def _tcp_socket(endpoint: str, place: str) -> socket.socket:
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise TFRecordError(f"{endpoint!r} has no port number from 0 to 65535", "pass 'tcp://host:port'")
    if ":" in host:
        raise TFRecordError(
            f"{endpoint!r} has an IPv6 address, which TensorFlow I/O cannot reach", "pass an IPv4 address"
        )
    address = (host or "127.0.0.1", int(port))
    return socket.create_server(address, family=socket.AF_INET)


def _unix_socket(path: str) -> socket.socket:
    """Return a Unix socket that only the user of this process may connect to."""
    _remove_unused(path)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        server.listen()
    except BaseException:
        server.close()
        raise
    return server


def _remove_unused(path: str) -> None:
    """Remove the Unix socket that a server left at a path, unless the server still runs."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(0, "there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(0, "another server listens there")


def _descriptor(endpoint: str) -> int:
    text = endpoint.removeprefix("fd://")
    try:
        number = int(text)
        os.fstat(number)
        os.set_blocking(number, True)
    except (ValueError, OSError):
        raise TFRecordError(
            f"{endpoint!r} is not an open file descriptor", "pass 'fd://1' for the standard output"
        ) from None
    return number
