"""A process that runs the command line in forks of itself, so that commands share one import of the library.

``python command_server.py SOCKET SCRIPT`` writes an executable script, which takes the place of
`dask-tfrecord`. The script sends its arguments, directory, environment, stdin, stdout and stderr to the
process, and ends with the exit code of the command. The process that forks has started no threads.
"""

import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

# It imports little, and no site-packages, so that it starts quickly.
_SCRIPT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:]]).encode()], [0, 1, 2])
    server.shutdown(socket.SHUT_WR)
    code = server.recv(1)
sys.exit(code[0] if code else "the command was killed")
"""


def run(connection: socket.socket) -> NoReturn:
    """Run one command, and end this process."""
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    directory, environment, arguments = json.loads(message)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["dask-tfrecord", *arguments]
    code: object = 1
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([code if isinstance(code, int) else 1]))
        os._exit(0)


def serve(address: str, script: Path) -> None:
    """Run commands until this process is ended."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        script.write_text(_SCRIPT.format(python=sys.executable, address=address))
        script.chmod(0o700)
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                if os.fork() == 0:
                    server.close()
                    run(connection)


if __name__ == "__main__":
    from dask_tfrecord.cli import convert, maintenance, show  # noqa: F401  # the commands import them
    from dask_tfrecord_launcher import main

    serve(sys.argv[1], Path(sys.argv[2]))
