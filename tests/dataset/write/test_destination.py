"""The destination of a write: rejected arguments, and the snapshot of the new dataset.

Modules: dataset.write.destination.
"""

from pathlib import Path
from typing import Any

import pytest
from small_frames import collection

from dask_tfrecord import (
    DestinationError,
    Snapshot,
    TFRecordError,
    to_tfrecord,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"append": True, "overwrite": True}, "pass only one of the two keywords"),
        ({"append": "yes"}, "unknown append 'yes'"),
        ({"overwrite": "some"}, "unknown overwrite 'some'"),
        ({"overwrite": "partitions"}, "requires partition columns; pass partition_on="),
    ],
)
def test_modes_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(TFRecordError, match=problem):
        to_tfrecord(collection(1), tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_the_advice_names_the_modes(place: str) -> None:
    to_tfrecord(collection(1), place)
    with pytest.raises(DestinationError, match="append=True to add to it, or overwrite=True"):
        to_tfrecord(collection(1), place)


# --- snapshots ---------------------------------------------------------------------------------------


def test_each_version_that_is_kept_can_be_opened(place: str) -> None:
    with pytest.raises(FileNotFoundError, match="the directory has no snapshot"):
        Snapshot.open(place)
    first = to_tfrecord(collection(1), place)
    second = to_tfrecord(collection(2), place, append=True)
    assert Snapshot.open(place) == Snapshot.open(place, 2) == second
    assert Snapshot.open(place, 1) == first
    to_tfrecord(collection(3), place, overwrite=True)
    with pytest.raises(FileNotFoundError, match="the dataset has no version 2; it has 3"):
        Snapshot.open(place, 2)


def test_a_snapshot_is_a_table_in_notebooks(tmp_path: Path) -> None:
    ddf = collection(1, 2, **{"<key>": ["a", "b"]})
    html = to_tfrecord(ddf, tmp_path, partition_on="<key>")._repr_html_()
    assert html.startswith("<table><tr><th>files</th><td>2</td></tr>")
    assert "<td>n, &lt;key&gt;</td>" in html
