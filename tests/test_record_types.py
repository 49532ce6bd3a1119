"""`record_type="infer"` of `to_tfrecord`: records that were read are written with their old record type.

Modules: writer, reader.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import read_tfrecord, to_tfrecord

pytestmark = pytest.mark.usefixtures("one_thread")

PAYLOADS = [b"\xff", b"", b"not a message", b"\0\1"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Files of another writer, whose records are not protobuf messages."""
    root = tmp_path / "notes"
    for at in range(2):
        (root / f"part={at}").mkdir(parents=True)
        (root / f"part={at}" / "0.tfrecord").write_bytes(oracle.records_file(PAYLOADS[at * 2 : at * 2 + 2]))
    return root


def payloads(root: Path) -> list[bytes]:
    return [one for path in sorted(root.rglob("part-*")) for one in oracle.read_payloads(path)]


@pytest.mark.parametrize(
    "made",
    [
        lambda ddf: ddf[["record"]],
        lambda ddf: ddf[ddf["part"] < 2][["record"]],
        lambda ddf: ddf[["record"]].rename(columns={"record": "note"}),
        lambda ddf: ddf[["record"]].repartition(npartitions=1),
    ],
)
@pytest.mark.parametrize("backend", ["pyarrow", "numpy"])
def test_records_of_bytes_are_written_as_they_were_read(
    notes: Path, tmp_path: Path, backend: Any, made: Callable[[Any], Any]
) -> None:
    ddf = made(read_tfrecord(notes, record_type="bytes", dtype_backend=backend))
    snapshot = to_tfrecord(ddf, tmp_path / "out")
    assert snapshot.schema.record_type == "bytes"
    assert payloads(tmp_path / "out") == PAYLOADS


def test_records_of_bytes_stay_that_in_directories(notes: Path, tmp_path: Path) -> None:
    to_tfrecord(read_tfrecord(notes), tmp_path / "out", partition_on="part")
    assert payloads(tmp_path / "out") == PAYLOADS
    again = read_tfrecord(tmp_path / "out")
    assert again.compute()["record"].tolist() == PAYLOADS


@pytest.mark.parametrize("computed", [False, True])
def test_records_that_become_features_warn(notes: Path, tmp_path: Path, computed: bool) -> None:
    ddf = read_tfrecord(notes)
    ddf = ddf[["record"]].persist() if computed else ddf
    with pytest.warns(UserWarning, match="each value of 'record' was read as a whole record") as caught:
        to_tfrecord(ddf, tmp_path / "a")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_tfrecord(ddf, tmp_path / "b", record_type="example")
        to_tfrecord(ddf[["record"]], tmp_path / "c", record_type="bytes")
    assert payloads(tmp_path / "c") == PAYLOADS


def test_what_is_derived_from_records_is_written_as_examples(notes: Path, tmp_path: Path) -> None:
    ddf = read_tfrecord(notes)
    sizes = ddf.assign(size=ddf["record"].map(len, meta=("size", "int64")))[["size"]]
    assert to_tfrecord(sizes, tmp_path / "out").schema.record_type == "example"


def test_sequence_examples_are_written_as_they_were_read(tmp_path: Path) -> None:
    steps = pd.array([[[1, 2], []], None], pd.ArrowDtype(pa.list_(pa.list_(pa.int64()))))
    ddf = dd.from_pandas(pd.DataFrame({"id": [1, 2], "steps": steps}), npartitions=1)
    to_tfrecord(ddf, tmp_path / "a", record_type="sequence_example")
    read = read_tfrecord(tmp_path / "a")
    assert to_tfrecord(read, tmp_path / "b").schema.record_type == "sequence_example"
    assert to_tfrecord(read[["id"]], tmp_path / "c").schema.record_type == "example"
    assert read_tfrecord(tmp_path / "b")["steps"].compute().tolist()[0] == [[1, 2], []]
