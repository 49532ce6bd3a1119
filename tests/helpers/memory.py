"""The peak memory of a new process; run scripts with :func:`growth`."""

import os
import subprocess
import sys
from pathlib import Path


def peak_kib() -> int:
    """The peak resident memory of this process. On Linux, ru_maxrss also counts the memory of the parent."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def growth(script: str, folder: Path, *arguments: str) -> int:
    """The number of KiB that a script prints, run in its own process; it may import this module."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr
    return int(result.stdout)
