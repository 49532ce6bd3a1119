"""An S3 server of moto for the soak, in a process of its own."""

import logging
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start an S3 server, and return the environment variables that name it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_s3, args=(theirs,), daemon=True)
    process.start()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ours.recv()}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        process.kill()
        process.join()


def serve_s3(port: Connection) -> None:
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the server would log each request
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True)
    port.send(server.server_port)
    server.serve_forever()
