"""Create the virtual environment of each peer, with pinned versions."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.workers import last_error

COMMON = ("numpy", "psutil==7.2.2", "pyarrow")


class Environment(NamedTuple):
    """Describe the packages of a peer's environment.

    Attributes
    ----------
    packages : tuple of str
        Requirements for pip; the first is the peer.
    alone : tuple of str
        Requirements that pip installs without their dependencies.
    """

    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


TENSORFLOW = "tensorflow-cpu==2.21.0"
METADATA = "tensorflow-metadata==1.21.0"

ENVIRONMENTS = {
    "tensorflow": Environment((TENSORFLOW,)),
    # The dependencies include Beam and the clients of Google Cloud, which the coders do not import.
    "tfx_bsl": Environment((TENSORFLOW, METADATA, "absl-py", "pandas"), ("tfx-bsl==1.21.0",)),
    "ray": Environment(("ray[data]==2.60.0", "crc32c==2.9.post0", TENSORFLOW, METADATA)),
    "beam": Environment(("apache-beam==2.77.0", "google-crc32c==1.9.0")),
    "vahidk": Environment(("tfrecord==1.14.6",)),
    "protobuf": Environment(("protobuf==7.36.2", "google-crc32c==1.9.0")),
    "spark": Environment(("pyspark==3.5.8", "pandas", "setuptools")),
}


def default_cache() -> Path:
    """Return the default directory of the environments."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dask-tfrecord-peers"


def pins(module: str) -> list[str]:
    """Return the requirements of a peer that name a version."""
    environment = ENVIRONMENTS[module]
    return [one.replace("==", " ") for one in (*environment.packages, *environment.alone) if "==" in one]


def interpreter(module: str, cache: Path) -> Path | None:
    """Return the interpreter of a peer's environment, or None if the environment is not installed."""
    folder = _folder(module, cache)
    return folder / "bin" / "python" if (folder / "complete").exists() else None


def install(module: str, cache: Path) -> None:
    """Create the virtual environment of a peer, if it does not exist.

    Raises
    ------
    RuntimeError
        If pip fails. The error has pip's last message.
    """
    if interpreter(module, cache):
        return
    folder, environment = _folder(module, cache), ENVIRONMENTS[module]
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([*pip, *COMMON, *environment.packages])
        if environment.alone:
            _run([*pip, "--no-deps", *environment.alone])
    except RuntimeError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (folder / "complete").touch()


def _folder(module: str, cache: Path) -> Path:
    """Return the directory of a peer's environment, which differs for each version of the requirements."""
    wanted = repr((COMMON, ENVIRONMENTS[module], sys.version_info[:2]))
    return cache / f"{module}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(last_error(done.stderr))
