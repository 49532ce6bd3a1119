"""OpenSSH's server on the loopback interface, with a key and a configuration of its own."""

import getpass
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from time import monotonic, sleep
from typing import Any

import pytest

SSHD = which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

needs_sshd = pytest.mark.skipif(SSHD is None, reason="OpenSSH's server, sshd, is not installed")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def sftp_server(directory: Path) -> Iterator[dict[str, Any]]:
    """The storage options of an SFTP server, which shows the whole disk to the user of the tests."""
    pytest.importorskip("paramiko")
    assert SSHD is not None
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd changes to this empty directory if root starts it
    host_key, user_key = (directory / name for name in ("host_key", "user_key"))
    for key in (host_key, user_key):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    port = free_port()
    config = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": host_key,
        "AuthorizedKeysFile": f"{user_key}.pub",
        "PidFile": "none",
        "StrictModes": "no",  # temporary directories may be writable for others
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "MaxStartups": 100,
        "Subsystem": "sftp internal-sftp",
    }
    file = directory / "sshd_config"
    file.write_text("".join(f"{name} {value}\n" for name, value in config.items()))
    log = directory / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen([SSHD, "-D", "-e", "-f", str(file)], stderr=errors) as process,
    ):
        try:
            _wait_for(port, process, log)
            yield {
                "host": "127.0.0.1",
                "port": port,
                "username": getpass.getuser(),
                "key_filename": str(user_key),
                "look_for_keys": False,
                "allow_agent": False,
            }
        finally:
            process.terminate()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = monotonic() + 30
    while True:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert monotonic() < end, log.read_text()
            sleep(0.02)
        else:
            return
