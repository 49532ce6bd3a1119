"""A program may end while its daemon threads run the kernel, which works without the GIL.

Modules: codec.
"""

import subprocess
import sys
from pathlib import Path

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
