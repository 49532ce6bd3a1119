"""Which files of a directory are read: with a snapshot, without one, and with uncommitted files.

A snapshot decides the type of a column, too, unless the read leaves it out.

Modules: dataset.snapshot.check, dataset.snapshot.visibility, dataset.snapshot.moved_files.
"""

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import operations
import oracle
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

pytestmark = pytest.mark.usefixtures("one_thread")

RUN = "0123abcd" * 4


def write(root: Path, *numbers: int, **options: Any) -> Path:
    frame = pd.DataFrame({"n": list(numbers), "k": [n % 2 for n in numbers]})
    to_tfrecord(dd.from_pandas(frame, npartitions=2), root, **options)
    return root


def row(n: int) -> bytes:
    return oracle.features_file([{"n": ("int64", [n]), "k": ("int64", [n % 2])}])


def numbers(path: object, **options: object) -> list[int]:
    return sorted(read_tfrecord(path, **options)["n"].compute())


def a_dead_write(root: Path) -> Path:
    """Leave a file of a dead write at its final path, as on an object store."""
    (root / "_tfrecord" / "staging" / RUN).mkdir(parents=True)
    path = root / f"part-{RUN}-00000-of-00001.tfrecord"
    path.write_bytes(row(99))
    return path


@pytest.mark.parametrize(
    ("harm", "left"),
    [("missing", [2, 3]), ("longer", [0, 1, 2, 3, 10]), ("unlisted", [0, 1, 2, 3, 10])],
)
def test_a_file_that_is_not_as_the_snapshot_says_raises_and_says_how_to_read_the_rest(
    tmp_path: Path, harm: str, left: list[int]
) -> None:
    path = min(write(tmp_path, *range(4)).glob("part-*"))
    if harm == "missing":
        path.unlink()
    elif harm == "longer":
        path.write_bytes(path.read_bytes() + row(10))
    else:
        path = tmp_path / "others.tfrecord"
        path.write_bytes(row(10))
    with pytest.raises(TFRecordError, match="use_snapshot=False") as caught:
        read_tfrecord(tmp_path)
    assert caught.value.path == str(path)
    assert numbers(tmp_path, use_snapshot=False) == left


def test_a_glob_gives_no_files_of_a_write_that_broke_off(tmp_path: Path) -> None:
    own = write(tmp_path / "own", *range(4))
    dead = a_dead_write(own)
    for name in ("part-*", "*", "{part,x}*", "**/*.tfrecord"):
        assert numbers(own) == numbers(f"{own}/{name}") == [0, 1, 2, 3]
        assert numbers(f"{own}/{name}", use_snapshot=False) == [0, 1, 2, 3]
        assert numbers([own, f"{own}/{name}"]) == sorted([0, 1, 2, 3] * 2)
    assert numbers(dead) == numbers([dead]) == [99]


@pytest.mark.parametrize("root", ["own", "run=5/own", "own/run=5"])
def test_a_partitioned_dataset_is_recognised_from_its_directories(tmp_path: Path, root: str) -> None:
    own = write(tmp_path / root, *range(4), partition_on=["k"])
    (own / "_tfrecord" / "staging" / RUN).mkdir(parents=True)
    (own / "k=0" / f"part-{RUN}-00000-of-00001.tfrecord").write_bytes(row(98))
    assert numbers(f"{own}/k=*/*") == numbers(f"{own}/k=*") == [0, 1, 2, 3]
    assert numbers(f"{own}/k=0/*") == numbers(own / "k=0") == [0, 2]


def test_a_directory_of_datasets_gives_what_is_committed_in_each(tmp_path: Path) -> None:
    for name, rows in {"a": (0, 1), "b": (2, 3)}.items():
        a_dead_write(write(tmp_path / name, *rows))
    assert numbers(tmp_path) == numbers(f"{tmp_path}/*") == [0, 1, 2, 3]


def test_a_directory_with_nothing_but_an_unfinished_write_says_so_and_how_to_mend_it(tmp_path: Path) -> None:
    """On a disk the files of the write are staged; a write that died early leaves an empty directory."""
    staging = tmp_path / "_tfrecord" / "staging" / RUN
    staging.mkdir(parents=True)
    name = f"part-{RUN}-00000-of-00001.tfrecord"
    calls = [operations.add_snapshot, Snapshot.open, lambda root: dask_tfrecord.open_dataset(root).take([0])]
    for is_staged in (False, True):
        if is_staged:
            (staging / name).write_bytes(row(1))
        for path in (tmp_path, f"{tmp_path}/*", f"{tmp_path}/*.tfrecord"):
            for call in (read_tfrecord, operations.verify, *(calls if path == tmp_path else ())):
                with pytest.raises(FileNotFoundError, match=r"has not finished.*\.cleanup\("):
                    call(path)
    assert not dask_tfrecord.exists(tmp_path)
    (tmp_path / name).write_bytes(row(99))  # as on an object store
    for path in (tmp_path, f"{tmp_path}/*.tfrecord"):
        with pytest.raises(FileNotFoundError, match="write that has not finished"):
            read_tfrecord(path)
    open_dataset(tmp_path).cleanup(older_than="0s")
    with pytest.raises(FileNotFoundError, match="no visible file"):
        read_tfrecord(tmp_path)


def test_a_part_of_a_write_without_its_snapshot_is_read(tmp_path: Path) -> None:
    path = tmp_path / f"part-{RUN}-00000-of-00002.tfrecord"
    path.write_bytes(row(5))
    assert numbers(tmp_path) == numbers(tmp_path, use_snapshot=False) == numbers(f"{tmp_path}/*") == [5]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (pa.timestamp("s"), pa.timestamp("ns")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.date32()),
        (pa.date32(), pa.timestamp("s")),
        (pa.date32(), pa.date64()),
        (pa.time32("s"), pa.time64("us")),
        (pa.duration("s"), pa.duration("ms")),
        (pa.list_(pa.timestamp("s")), pa.list_(pa.timestamp("ms"))),
        (pa.dictionary(pa.int32(), pa.timestamp("s")), pa.timestamp("ms")),
    ],
    ids=str,
)
def test_times_are_never_taken_for_times_of_another_unit(
    tmp_path: Path, stored: pa.DataType, wanted: pa.DataType
) -> None:
    to_tfrecord(pa.table({"x": pa.nulls(2, stored), "n": [1, 2]}), tmp_path)
    with pytest.raises(dask_tfrecord.SchemaError, match=r"'x'.*the records store.*give no type"):
        read_tfrecord(tmp_path, schema={"x": wanted})
    assert read_tfrecord(tmp_path, schema={"x": stored}).compute()["x"].isna().all()
    taken = read_tfrecord(tmp_path, schema={"x": wanted}, use_snapshot=False)
    assert taken["n"].sum().compute() == 3


def test_a_time_may_be_read_in_another_zone_and_as_its_number(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"x": pa.array([5], pa.timestamp("s", "UTC"))}), tmp_path)
    moment = read_tfrecord(tmp_path, schema={"x": pa.timestamp("s", "Europe/Warsaw")}).compute()
    assert moment["x"][0].timestamp() == 5
    assert read_tfrecord(tmp_path, schema={"x": pa.int64()}).compute()["x"].tolist() == [5]
