"""Which records show the columns of a dataset: a bounded sample, or with `infer="all"` every record.

Modules: dataset.read.sample, dataset.read.discovery, dataset.read.requested_columns.
"""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import hypothesis.strategies as st
import oracle
import pyarrow as pa
import pytest
from encoded import encoded_views
from hypothesis import given
from inferred import directory_of, file_of, infer, sequence_file, types
from oracle import Feature, Record

from dask_tfrecord import read_tfrecord
from dask_tfrecord.codec import Column, Encoder
from dask_tfrecord.dataset.read.discovery import one_by_one, open_dataset
from dask_tfrecord.dataset.read.requested_columns import ReadRequest
from dask_tfrecord.dataset.read.sample import sample_all, take_sample
from dask_tfrecord.errors import CorruptRecordError, SchemaError
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.inference import AskedType, RecordPosition, Sample
from dask_tfrecord.files.storage.listing import list_files


def test_a_string_column_holds_control_characters_where_the_sample_did_not(tmp_path: Path) -> None:
    files = [file_of({"a": ("bytes", [b"text"])})] * 40
    files[23] = file_of({"a": ("bytes", [b"\x01\x02"])})
    assert types(infer(tmp_path, *files)) == {"a": pa.string()}
    assert set(read_tfrecord(tmp_path)["a"].compute(scheduler="sync")) == {"text", "\x01\x02"}
    assert types(infer(tmp_path, *files, infer="all")) == {"a": pa.binary()}


def test_the_last_file_is_looked_at(tmp_path: Path) -> None:
    one, other = file_of({"a": ("int64", [1])}), file_of({"b": ("int64", [1])})
    assert infer(tmp_path, *[one] * 9, other).names == ["a", "b"]


def test_the_same_files_give_the_same_schema(tmp_path: Path) -> None:
    files = [file_of({f"f{number}": ("int64", [1])}) for number in range(40)]
    first = infer(tmp_path, *files)
    assert first == open_dataset(tmp_path).schema
    assert 2 < len(first.names) < 10


def test_the_sample_of_a_large_file_is_bounded(tmp_path: Path) -> None:
    large = oracle.frame(oracle.serialize(Record({"a": Feature("bytes", [bytes(100_000)])})))
    late = file_of({"late": ("int64", [1])})
    assert infer(tmp_path, large * 100 + late).names == ["a"]


def test_a_record_longer_than_the_sample_is_read_whole(tmp_path: Path) -> None:
    payload = oracle.serialize(Record({"a": Feature("bytes", [bytes(5 << 20)]), "b": Feature("int64", [1])}))
    (framed,) = encoded_views(
        Encoder([Column("record", "bytes", 0)], "bytes"), pa.record_batch({"record": [payload]})
    )
    assert sorted(infer(tmp_path, bytes(framed)).names) == ["a", "b"]


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_compressed_files_are_sampled(tmp_path: Path, compression: str) -> None:
    content = oracle.compress(file_of({"a": ("int64", [1])}), compression)
    assert infer(tmp_path, content).names == ["a"]


def test_damage_in_the_sample_says_where(tmp_path: Path) -> None:
    content = file_of({"a": ("int64", [1])}, {"a": ("int64", [2])})
    half = len(content) // 2
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, content, content[:-1])
    error = caught.value
    assert (error.path, error.record, error.offset) == (f"{tmp_path}/1.tfrecord", 1, half)


def sampled(tmp_path: Path, record_type: AskedType, *files: bytes, everything: bool = True) -> Sample:
    """Sample files of this content: all records, or the default sample."""
    tmp_path.mkdir(exist_ok=True)
    for number, content in enumerate(files):
        (tmp_path / f"{number:02d}.tfrecord").write_bytes(content)
    store, found, *_ = list_files(tmp_path)
    if not everything:
        return take_sample(store, found, record_type=record_type, options=ReadOptions())
    return sample_all(store, found, record_type=record_type, options=ReadOptions(), compute_each=one_by_one)


FEATURES = st.one_of(
    st.builds(Feature, st.just("int64"), st.lists(st.integers(0, 9), max_size=3)),
    st.builds(Feature, st.just("bytes"), st.lists(st.sampled_from([b"", b"a", b"\xff"]), max_size=3)),
    st.just(Feature()),
)


RECORDS = st.builds(
    Record,
    st.dictionaries(st.sampled_from("abc"), FEATURES, max_size=3),
    st.dictionaries(st.sampled_from("cde"), st.lists(FEATURES, max_size=3), max_size=2),
)


@pytest.mark.parametrize("record_type", ["infer", "example", "sequence_example"])
@given(st.lists(st.lists(RECORDS, max_size=4), min_size=1, max_size=5))
def test_samples_of_files_merge_to_that_of_one_file(
    tmp_path_factory: pytest.TempPathFactory, record_type: AskedType, parts: list[list[Record]]
) -> None:
    tmp_path = tmp_path_factory.mktemp("files")
    if record_type == "example":  # a record with feature lists and no features is no Example
        parts = [[replace(record, lists={}) for record in part] for part in parts]
    contents = [sequence_file(*part) for part in parts]
    divided = sampled(tmp_path / "divided", record_type, *contents)
    together = sampled(tmp_path / "together", record_type, b"".join(contents))
    assert facts(divided) == facts(together)
    assert places(divided, tmp_path / "divided", contents) == places(
        together, tmp_path / "together", [b"".join(contents)]
    )


def facts(sample: Sample) -> list[Any]:
    """The facts of a sample without the places of records."""
    return [
        (sample.record_type, sample.records, sample.payload),
        *(replace(one, path="", kinds=dict.fromkeys(one.kinds)) for one in sample.features),
    ]


def places(sample: Sample, root: Path, contents: list[bytes]) -> list[dict[str, int]]:
    """For each feature the first record of each kind, as an offset in the concatenated files."""
    starts = {f"{root}/{n:02d}.tfrecord": sum(map(len, contents[:n])) for n in range(len(contents))}
    return [
        {kind: starts[first.path] + first.offset for kind, first in one.kinds.items()}
        for one in sample.features
    ]


def test_the_record_and_offset_of_a_kind_are_those_of_its_record(tmp_path: Path) -> None:
    """The record is beyond the first window, also in a compressed file."""
    padding = file_of({"a": ("bytes", [bytes(1 << 20)])})
    content = padding * 9 + file_of({"a": ("int64", [1])})
    for compression in (None, "gzip"):
        sample = sampled(tmp_path, "infer", oracle.compress(content, compression))
        path = f"{tmp_path}/00.tfrecord"
        assert sample.features[0].kinds == {
            "bytes": RecordPosition(path, 0, 0),
            "int64": RecordPosition(path, 9, 9 * len(padding)),
        }


def test_everything_is_looked_at_when_asked_for(tmp_path: Path) -> None:
    common = file_of({"a": ("int64", [1])})
    files = [common] * 40
    files[23] = common * 3 + file_of({"a": ("int64", [1, 2]), "late": ("bytes", [b"\xff"])})
    assert types(infer(tmp_path, *files)) == {"a": pa.int64()}
    schema = infer(tmp_path, *files, infer="all")
    assert types(schema) == {"a": pa.list_(pa.int64()), "late": pa.binary()}


def test_everything_is_looked_at_in_tasks_of_many_files(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04d}").write_bytes(file_of({"a": ("int64", [1])}))
    tasks: list[Any] = []

    def noting(function: Any, arguments: Any) -> list[Any]:
        tasks.extend(arguments)
        return [pickle.loads(pickle.dumps(function))(argument) for argument in tasks]

    assert open_dataset(tmp_path, ReadRequest(infer="all"), compute_each=noting).schema.names == ["a"]
    assert 1 < len(tasks) < 20
    assert [split.file.path[-4:] for task in tasks for split in task] == [f"{n:04d}" for n in range(1000)]


def test_two_kinds_far_apart_are_refused_with_both_records(tmp_path: Path) -> None:
    common = file_of({"a": ("int64", [1])})
    files = [common] * 40
    files[17] = common * 5 + file_of({"a": ("float", [0])})
    with pytest.raises(SchemaError) as caught:
        infer(tmp_path, *files, infer="all")
    assert "holds int64 here and float in" in str(caught.value)
    assert "/17.tfrecord, record 5" in str(caught.value)


def test_damage_anywhere_is_found_when_everything_is_looked_at(tmp_path: Path) -> None:
    common = file_of({"a": ("int64", [1])})
    files = [common * 9] * 40
    files[17] = common * 9 + common[:-1]
    infer(tmp_path, *files)
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, *files, infer="all")
    assert (caught.value.record, caught.value.offset) == (9, 9 * len(common))


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_empty_files_are_not_sampled_where_others_are(tmp_path: Path, compression: str | None) -> None:
    """Spark writes a file for each task, and most of the files may be empty."""
    empty = oracle.compress(b"", compression)
    content = oracle.compress(file_of({"a": ("int64", [1])}), compression)
    assert infer(tmp_path, *[empty] * 20, content, *[empty] * 20).names == ["a"]


def test_a_sample_is_bounded_in_records_too(tmp_path: Path) -> None:
    many = oracle.frame(b"") * 100_000
    usual = file_of({"a": ("int64", [1])}) * 200_000
    assert sampled(tmp_path, "example", usual, everything=False).records == 100_000
    (tmp_path / "00.tfrecord").unlink()
    assert infer(tmp_path, many + file_of({"late": ("int64", [1])})).names == ["late"]  # others are empty


def test_tasks_look_at_everything_by_the_active_scheduler(tmp_path: Path) -> None:
    path = directory_of(tmp_path, file_of({"a": ("int64", [1])}))
    ran: list[Any] = []

    def scheduler(graph: Any, keys: Any, **options: Any) -> Any:
        ran.append(keys)
        return dask.get(graph, keys, **options)

    with dask.config.set(scheduler=scheduler):
        assert list(read_tfrecord(path, infer="sample").columns) == ["a"]
        assert not ran
        assert list(read_tfrecord(path, infer="all").columns) == ["a"]
        assert ran
