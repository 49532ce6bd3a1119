"""`distributed` is an optional dependency: everything that needs no cluster works without it.

Modules: scheduler.
"""

import subprocess
import sys
from pathlib import Path

# Makes ``import distributed`` fail as it does where distributed is not installed.
HIDE_DISTRIBUTED = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "distributed":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""

WRITE_SHUFFLE_READ = """
from dask import dataframe as dd
import dask_tfrecord

ddf = dd.from_dict({"n": list(range(20)), "name": ["x", "y"] * 10}, npartitions=4)
assert dask_tfrecord.to_tfrecord(ddf, "plain").records == 20
assert dask_tfrecord.to_tfrecord(ddf, "shuffled", shuffle=0).records == 20
assert dask_tfrecord.to_tfrecord(ddf, "colocated", partition_on="name", colocate=True).partitions == 2
for path in ("plain", "shuffled", "colocated"):
    back = dask_tfrecord.read_tfrecord(path)
    assert back.n.sum().compute() == 190
    assert len(back[back.n > 9]) == 10
assert dask_tfrecord.verify("plain").agrees.all()
assert "distributed" not in sys.modules
"""


def test_writes_shuffles_and_reads_work_without_distributed(tmp_path: Path) -> None:
    code = HIDE_DISTRIBUTED + WRITE_SHUFFLE_READ
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)
