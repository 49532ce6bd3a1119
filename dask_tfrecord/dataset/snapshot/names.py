"""Where things lie below a dataset's root and what they are called; which files belong to which write."""

import json
import re

from dask_tfrecord.dataset.snapshot.model import OWN
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.files.entry import is_inside
from dask_tfrecord.files.storage.store import Store

# Holds a directory for each write that runs, or that broke off.
STAGING = f"{OWN}/staging"

# What such a directory is called. Anything else beside it is not ours.
_RUN = re.compile(r"[0-9a-f]{32}")

# In such a directory: what a write replaces, which is to be removed after its commit.
_REPLACED = "replaced.json"

# For those who wait for a whole dataset as Hadoop and Spark write it; readers here do not look at it.
SUCCESS = "_SUCCESS"


def open_runs(store: Store) -> list[str]:
    """The runs that have not cleared up: they are under way, or broke off."""
    return [name for name in store.names(STAGING) if _RUN.fullmatch(name)]


def staged(run: str, name: str) -> str:
    """Where something of a write waits for its commit, below the root."""
    return f"{STAGING}/{run}/{name}"


def replaced_by(store: Store, run: str) -> list[str]:
    """The files below the root that a run replaces and has not removed yet."""
    path = store.join(staged(run, _REPLACED))
    try:
        found = json.loads(store.fs.cat_file(path))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise TFRecordError(f"not a list of replaced files ({error})", path=store.public(path)) from None
    if not isinstance(found, list) or not all(isinstance(one, str) and is_inside(one) for one in found):
        raise TFRecordError("not a list of replaced files", path=store.public(path))
    return found
