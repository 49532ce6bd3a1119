"""Which files of a directory are read: with a snapshot, without one, and with uncommitted files.

Modules: dataset.snapshot.visibility.
"""

import os
from pathlib import Path

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, SchemaError, Snapshot, TFRecordError, read_tfrecord, to_tfrecord

RUN = "0123abcd" * 4

pytestmark = pytest.mark.usefixtures("one_thread")


def write(root: Path, *numbers: int, **options: object) -> Path:
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


def test_use_snapshot_off_reads_what_is_there(tmp_path: Path) -> None:
    own = write(tmp_path / "own", *range(4))
    (own / "others.tfrecord").write_bytes(row(10))
    with pytest.raises(TFRecordError, match="use_snapshot=False"):
        read_tfrecord(own)
    assert numbers(own, use_snapshot=False) == [0, 1, 2, 3, 10]
    assert read_tfrecord(own, use_snapshot=False)["n"].dtype == pd.ArrowDtype(pa.int64())


@pytest.mark.parametrize("harm", ["missing", "longer"])
def test_a_file_that_is_not_as_the_snapshot_says_raises_and_says_how_to_read_the_rest(
    tmp_path: Path, harm: str
) -> None:
    own = write(tmp_path / "own", *range(4))
    first = min(own.glob("part-*"))
    if harm == "missing":
        os.remove(first)
    else:
        first.write_bytes(first.read_bytes() + row(10))
    with pytest.raises(CorruptRecordError, match="use_snapshot=False") as caught:
        read_tfrecord(own)
    assert caught.value.path == str(first)
    assert numbers(own, use_snapshot=False) == ([2, 3] if harm == "missing" else [0, 1, 2, 3, 10])


@pytest.mark.parametrize("name", ["part-*", "*", "{part,x}*", "**/*.tfrecord"])
def test_a_glob_gives_no_files_of_a_write_that_broke_off(tmp_path: Path, name: str) -> None:
    own = write(tmp_path / "own", *range(4))
    dead = a_dead_write(own)
    assert numbers(own) == numbers(f"{own}/{name}") == [0, 1, 2, 3]
    assert numbers(f"{own}/{name}", use_snapshot=False) == [0, 1, 2, 3]
    assert numbers([own, f"{own}/{name}"]) == sorted([0, 1, 2, 3] * 2)
    assert numbers(dead) == numbers([dead]) == [99]


def test_a_glob_gives_no_files_that_an_overwrite_has_not_removed_yet(tmp_path: Path) -> None:
    own = write(tmp_path / "own", *range(4))
    kept = {path: path.read_bytes() for path in own.glob("part-*")}
    write(own, 7, 8, overwrite=True)
    for path, content in kept.items():
        path.write_bytes(content)
    assert numbers(own) == numbers(f"{own}/*") == [7, 8]
    assert numbers(f"{own}/*", use_snapshot=False) == [0, 1, 2, 3, 7, 8]


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


def test_a_path_that_holds_only_what_is_not_committed_holds_no_dataset(tmp_path: Path) -> None:
    a_dead_write(tmp_path)
    for path in (tmp_path, f"{tmp_path}/*.tfrecord"):
        with pytest.raises(FileNotFoundError, match="write that has not finished"):
            read_tfrecord(path)


@pytest.mark.parametrize("path", ["{}", "{}/*", "{}/*.tfrecord"])
def test_a_directory_with_nothing_but_an_unfinished_write_says_so_and_how_to_mend_it(
    tmp_path: Path, path: str
) -> None:
    """On a disk the files of the write are staged; a write that died early leaves an empty directory."""
    waiting = tmp_path / "_tfrecord" / "staging" / RUN
    waiting.mkdir(parents=True)
    for content in (None, row(1)):
        if content is not None:
            (waiting / f"part-{RUN}-00000-of-00001.tfrecord").write_bytes(content)
        calls = [read_tfrecord, dask_tfrecord.verify]
        if path == "{}":
            calls += [dask_tfrecord.index, Snapshot.open, lambda root: dask_tfrecord.take(root, [0])]
        for call in calls:
            with pytest.raises(FileNotFoundError, match=r"has not finished.*dask_tfrecord\.cleanup\("):
                call(path.format(tmp_path))
    assert not dask_tfrecord.exists(tmp_path)
    dask_tfrecord.cleanup(tmp_path, older_than="0s")
    with pytest.raises(FileNotFoundError, match="no visible files"):
        read_tfrecord(tmp_path)


def test_a_part_of_a_write_without_its_snapshot_is_read_with_use_snapshot_off(tmp_path: Path) -> None:
    (tmp_path / f"part-{RUN}-00000-of-00002.tfrecord").write_bytes(row(5))
    with pytest.warns(UserWarning, match=r"other files of the same write are missing.* use_snapshot=False"):
        assert numbers(tmp_path) == [5]
    assert numbers(tmp_path, use_snapshot=False) == numbers(f"{tmp_path}/*") == [5]


def test_names_that_look_like_ours_elsewhere_are_anyones(tmp_path: Path) -> None:
    (tmp_path / f"part-{RUN}-00000-of-00001.tfrecord").write_bytes(row(5))
    assert numbers(tmp_path) == numbers(f"{tmp_path}/*") == [5]


TIMES = [
    (pa.timestamp("s"), pa.timestamp("ns")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.timestamp("us"), pa.date32()),
    (pa.date32(), pa.timestamp("s")),
    (pa.date32(), pa.date64()),
    (pa.time32("s"), pa.time64("us")),
    (pa.duration("s"), pa.duration("ms")),
    (pa.list_(pa.timestamp("s")), pa.list_(pa.timestamp("ms"))),
    (pa.dictionary(pa.int32(), pa.timestamp("s")), pa.timestamp("ms")),
]


@pytest.mark.parametrize(("stored", "wanted"), TIMES, ids=str)
def test_times_are_never_taken_for_times_of_another_unit(
    tmp_path: Path, stored: pa.DataType, wanted: pa.DataType
) -> None:
    frame = pd.DataFrame({"x": pd.array([None, None], dtype=pd.ArrowDtype(pa.int64())), "n": [1, 2]})
    dd.from_pandas(frame, npartitions=1).to_tfrecord(tmp_path / "x", schema={"x": stored})
    with pytest.raises(SchemaError, match=r"'x'.*the records store.*give no type"):
        dd.read_tfrecord(tmp_path / "x", schema={"x": wanted})
    same = dd.read_tfrecord(tmp_path / "x", schema={"x": stored}).compute()
    assert same["x"].isna().all()
    taken = dd.read_tfrecord(tmp_path / "x", schema={"x": wanted}, use_snapshot=False)
    assert taken["n"].sum().compute() == 3


def test_a_time_may_be_read_in_another_zone_and_as_its_number(tmp_path: Path) -> None:
    column = pd.array([5], dtype=pd.ArrowDtype(pa.timestamp("s", "UTC")))
    dd.from_pandas(pd.DataFrame({"x": column}), npartitions=1).to_tfrecord(tmp_path / "x")
    moment = dd.read_tfrecord(tmp_path / "x", schema={"x": pa.timestamp("s", "Europe/Warsaw")}).compute()
    assert moment["x"][0].timestamp() == 5
    assert dd.read_tfrecord(tmp_path / "x", schema={"x": pa.int64()}).compute()["x"].tolist() == [5]
