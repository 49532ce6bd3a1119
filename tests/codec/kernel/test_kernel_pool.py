"""Memory kept for later batches is bounded and returned; a program may end while daemon threads decode.

Modules: codec.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oracle import frame

from dask_tfrecord.codec import Column, Decoder, _kernel

IDLE_BYTES = 64 << 20
FILE = frame(bytes(1 << 20)) * 120


def decode() -> None:
    assert Decoder((Column("record", "bytes", 0),), "bytes").decode(FILE, final=True).records == 120


def wait_until_idle() -> None:
    deadline = time.monotonic() + 60
    while _kernel.pool_bytes() > IDLE_BYTES:
        assert time.monotonic() < deadline, "the memory is never returned"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _keep_all() -> None:
    _kernel.limit_pool(1 << 30)


def test_an_idle_process_returns_what_it_kept() -> None:
    for _ in range(2):
        decode()
        assert IDLE_BYTES < _kernel.pool_bytes() < 2 * len(FILE)
        wait_until_idle()


def test_a_lower_limit_holds_at_once() -> None:
    decode()
    _kernel.limit_pool(8 << 20)
    assert _kernel.pool_bytes() <= 8 << 20
    decode()
    assert _kernel.pool_bytes() <= 8 << 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
# Python warns of a fork of a process with threads, which is what this test does on purpose.
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_returns_its_copy() -> None:
    decode()
    child = os.fork()
    if not child:
        try:
            decode()
            wait_until_idle()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    wait_until_idle()


@pytest.mark.parametrize(("limit", "end"), [("16 MiB", "limited"), ("many", "TFRecordError")])
def test_the_configuration_sets_the_limit(tmp_path: Path, limit: str, end: str) -> None:
    program = (
        "import dask_tfrecord\n"
        "from dask_tfrecord.codec import Column, Decoder, _kernel\n"
        f"data = open({str(tmp_path / 'a')!r}, 'rb').read()\n"
        "Decoder((Column('record', 'bytes', 0),), 'bytes').decode(data, final=True)\n"
        "assert 0 < _kernel.pool_bytes() <= 16 << 20\n"
        "print('limited')"
    )
    (tmp_path / "a").write_bytes(frame(bytes(1 << 20)) * 40 + frame(bytes(100)) * 9)
    variables = {**os.environ, "DASK_DASK_TFRECORD__MEMORY_POOL": limit}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert end in result.stdout + result.stderr, result.stderr
    assert (result.returncode == 0) == (end == "limited")


_PROGRAM = """
import threading, time
from dask_tfrecord.codec import _kernel

data = bytes(1 << 18)
started = threading.Barrier(9)

def work():
    started.wait()
    while True:
        _kernel.crc32c(data)

for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep(0.1)
print("end")
"""


def test_a_program_that_ends_while_daemon_threads_decode_is_not_aborted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")
