"""A process that runs commands in forks of itself, so that they share one import of the library.

``python command_server.py SOCKET SCRIPT MODULE...`` imports the modules and writes an executable script. The
script sends its arguments, directory, environment, stdin, stdout and stderr to the process, and ends with
the exit code of the command, which is the function ``main`` of the first module. The process that forks has
started no threads.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

# It imports little, and no site-packages, so that it starts quickly.
_SCRIPT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [json.dumps([os.getcwd(), dict(os.environ), sys.argv]).encode()], [0, 1, 2])
    server.shutdown(socket.SHUT_WR)
    code = server.recv(1)
sys.exit(code[0] if code else "the command was killed")
"""


@contextmanager
def quick_command(script: Path, *modules: str) -> Iterator[None]:
    """Let the script run ``main`` of the first module, in forks of a process that imported all modules."""
    command = [sys.executable, __file__, script.with_suffix(".socket"), script, *modules]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.terminate()


def run(main: Callable[[], object], connection: socket.socket) -> NoReturn:
    """Run one command, and end this process."""
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    directory, environment, sys.argv = json.loads(message)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    code: object = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([code if isinstance(code, int) else 1]))
        os._exit(0)


def serve(address: str, script: Path, main: Callable[[], object]) -> None:
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
                    run(main, connection)


if __name__ == "__main__":
    modules = [importlib.import_module(name) for name in sys.argv[3:]]
    serve(sys.argv[1], Path(sys.argv[2]), modules[0].main)
