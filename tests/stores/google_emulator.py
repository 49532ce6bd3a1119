"""gcp-storage-emulator with two additions: conditional creation of objects, and cancelled uploads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import HTTPServer
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.storage import Storage

_UPLOADS = ["_media_upload", "_multipart_upload", "_create_resumable_upload"]

# The status that the real store answers to the cancellation of an upload.
_CLIENT_CLOSED_REQUEST = SimpleNamespace(value=499, phrase="Client Closed Request")


class _Server(HTTPServer):
    request_queue_size = 128  # if the queue is full, a client waits for a second before it connects again

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not print every closed connection."""


@contextmanager
def emulator() -> Iterator[str]:
    """Run the server in this process; yields its URL."""
    uploads = next(handlers for pattern, handlers in server.HANDLERS if pattern.startswith("^/upload/"))
    with (
        patch.multiple(objects, **{name: _checked(getattr(objects, name)) for name in _UPLOADS}),
        patch.dict(uploads, {server.DELETE: _give_up}),
        patch.object(server, "server", SimpleNamespace(HTTPServer=_Server)),
        patch.object(Storage, "_write_config_to_file"),  # of all objects, at every change; nothing reads it
        server.create_server("127.0.0.1", 0, in_memory=True) as running,
    ):
        yield f"http://127.0.0.1:{running._api._httpd.server_port}"


def _checked(upload: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the handler of an upload: reject the upload if the object must be new but exists."""

    def checked(request: Any, response: Any, storage: Any) -> Any:
        name = request.query["name"][0] if "name" in request.query else request.data["meta"]["name"]
        wanted = request.query.get("ifGenerationMatch") == ["0"]
        if wanted and _is_there(storage, request.params["bucket_name"], name):
            response.status = HTTPStatus.PRECONDITION_FAILED
            response.json({"error": {"code": 412, "message": "conditionNotMet"}})
            return None
        return upload(request, response, storage)

    return checked


def _is_there(storage: Any, bucket: str, name: str) -> bool:
    try:
        storage.get_file_obj(bucket, name)
    except NotFound:
        return False
    return True


def _give_up(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
    storage.delete_resumable_file_obj(request.query["upload_id"][0])
    response.status = _CLIENT_CLOSED_REQUEST
