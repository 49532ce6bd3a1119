"""What several test modules share: the hypothesis profile, the folder of foreign files, a local directory."""

import os
import platform
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# TensorFlow's start-up chatter would bury a failing test's output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

settings.register_profile(
    "default",
    deadline=None,
    max_examples=int(os.environ.get("DASK_TFRECORD_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")

# Where pip has a wheel of tensorflow-cpu; the `test` extra installs it there and only there.
TENSORFLOW = sys.platform == "linux" and platform.machine() == "x86_64"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tensorflow: needs TensorFlow, which has no wheel for every platform")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if TENSORFLOW:
        return
    missing = pytest.mark.skip(reason="tensorflow-cpu has no wheel for this platform")
    for item in items:
        if "tensorflow" in item.keywords:
            item.add_marker(missing)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of files that other writers made."""
    return Path(__file__).parent / "data"
