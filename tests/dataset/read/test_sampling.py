"""Which records show the columns of a dataset: a bounded sample, or with `infer="all"` every record.

If records outside the sample differ, the read raises, and the arguments that it names read all values.

Modules: dataset.read.sample, dataset.read.plan, dataset.read.discovery, dataset.read.columns,
dataset.read.inferred_schema, dataset.read.schema_sources.
"""

import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import hypothesis.strategies as st
import oracle
import pyarrow as pa
import pytest
from hypothesis import example, given
from inferred import directory_of, file_of, infer, sequence_file, types
from oracle import Feature, Record
from other_writers import advised, fill, read

import dask_tfrecord
from dask_tfrecord import CorruptRecordError, SchemaError, TFRecordError, open_dataset, read_tfrecord
from dask_tfrecord.dataset.listing import list_files
from dask_tfrecord.dataset.read import sample
from dask_tfrecord.dataset.read.columns import ReadRequest
from dask_tfrecord.dataset.read.discovery import one_by_one, open_path
from dask_tfrecord.dataset.read.sample import sample_all, take_sample
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.inference import AskedType, Sample


def test_a_string_column_holds_control_characters_where_the_sample_did_not(tmp_path: Path) -> None:
    files = [file_of({"a": ("bytes", [b"text"])})] * 40
    files[23] = file_of({"a": ("bytes", [b"\x01\x02"])})
    assert types(infer(tmp_path, *files)) == {"a": pa.string()}
    assert set(read_tfrecord(tmp_path)["a"].compute(scheduler="sync")) == {"text", "\x01\x02"}
    assert types(infer(tmp_path, *files, infer="all")) == {"a": pa.binary()}


def test_the_same_files_give_the_same_schema_also_of_the_last_file(tmp_path: Path) -> None:
    files = [file_of({f"f{number}": ("int64", [1])}) for number in range(40)]
    first = infer(tmp_path, *files)
    assert first == open_path(tmp_path).schema
    assert 2 < len(first.names) < 10
    assert "f9" in first.names  # the last path


def test_the_sample_of_a_large_file_is_bounded_and_of_whole_records(tmp_path: Path) -> None:
    large = file_of({"a": ("bytes", [bytes(100_000)])})
    assert infer(tmp_path, large * 100 + file_of({"late": ("int64", [1])})).names == ["a"]
    whole = file_of({"a": ("bytes", [bytes(5 << 20)]), "b": ("int64", [1])})
    assert sorted(infer(tmp_path, whole).names) == ["a", "b"]


def test_damage_is_found_in_the_sample_and_anywhere_if_everything_is_looked_at(tmp_path: Path) -> None:
    content = file_of({"a": ("int64", [1])}) * 9
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, content, content[:-1])
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/1.tfrecord", 8)
    assert caught.value.offset == len(content) // 9 * 8
    files = [content] * 40
    files[17] += content[:-1]
    infer(tmp_path, *files)
    with pytest.raises(CorruptRecordError) as caught:
        infer(tmp_path, *files, infer="all")
    assert (caught.value.record, caught.value.offset) == (17, len(content) // 9 * 17)


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
    together = [b"".join(contents)]
    found = [
        facts(sampled(tmp_path / str(len(files)), record_type, *files), tmp_path / str(len(files)), files)
        for files in (contents, [*together, b""] if len(contents) == 1 else together)
    ]
    assert found[0] == found[1]


def facts(sample: Sample, root: Path, contents: list[bytes]) -> list[Any]:
    """The facts of a sample; the first record of each kind is an offset in the concatenated files."""
    starts = {f"{root}/{n:02d}.tfrecord": sum(map(len, contents[:n])) for n in range(len(contents))}
    return [
        (sample.record_type, sample.records, sample.payload),
        *(
            (
                replace(one, path="", kinds=dict.fromkeys(one.kinds)),
                {kind: starts[first.path] + first.offset for kind, first in one.kinds.items()},
            )
            for one in sample.features
        ),
    ]


def test_everything_is_looked_at_when_asked_for(tmp_path: Path) -> None:
    common = file_of({"a": ("int64", [1])})
    files = [common] * 40
    files[23] = common * 3 + file_of({"a": ("int64", [1, 2]), "late": ("bytes", [b"\xff"])})
    assert types(infer(tmp_path, *files)) == {"a": pa.int64()}
    schema = infer(tmp_path, *files, infer="all")
    assert types(schema) == {"a": pa.list_(pa.int64()), "late": pa.binary()}
    files[17] = common * 5 + file_of({"a": ("float", [0])})
    with pytest.raises(SchemaError, match=r"holds int64 here and float in .*/17.tfrecord, record 5"):
        infer(tmp_path, *files, infer="all")


def test_everything_is_looked_at_in_tasks_of_many_files(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04d}").write_bytes(file_of({"a": ("int64", [1])}))
    tasks: list[Any] = []

    def noting(function: Any, arguments: Any) -> list[Any]:
        tasks.extend(arguments)
        return [pickle.loads(pickle.dumps(function))(argument) for argument in tasks]

    assert open_path(tmp_path, ReadRequest(infer="all"), compute_each=noting).schema.names == ["a"]
    assert 1 < len(tasks) < 20
    assert [split.file.path[-4:] for task in tasks for split in task] == [f"{n:04d}" for n in range(1000)]


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
        assert list(read_tfrecord(path, read_options={"infer": "sample"}).columns) == ["a"]
        assert not ran
        assert list(read_tfrecord(path, read_options={"infer": "all"}).columns) == ["a"]
        assert ran


LISTS = pa.list_(pa.list_(pa.int64()))


@pytest.mark.usefixtures("one_thread")
def test_a_feature_list_that_the_sample_did_not_hold_raises_and_says_how_to_read_it(tmp_path: Path) -> None:
    """The sample shows Examples, and an Example has no feature lists: the list would be lost silently."""
    files = [sequence_file(Record({"a": Feature("int64", [1])}))] * 40
    files[23] += sequence_file(Record({"a": Feature("int64", [2])}, {"steps": [Feature("int64", [3])]}))
    assert types(infer(tmp_path, *files)) == {"a": pa.int64()}
    advice = r'schema=\{"steps": pa.list_\(pa.list_\(pa.int64\(\)\)\)\}'
    with pytest.raises(SchemaError, match=advice) as caught:
        read_tfrecord(tmp_path).compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)
    assert caught.value.feature == "steps"
    steps = read_tfrecord(tmp_path, schema={"steps": LISTS})["steps"].compute().dropna()
    assert [[list(step) for step in record] for record in steps] == [[[3]]]
    assert len(read_tfrecord(tmp_path, extra="ignore").compute()) == 41
    assert len(read_tfrecord(tmp_path, record_type="example").compute()) == 41


BOTH = Record({"a": Feature("int64", [1]), "x": Feature("int64", [2])}, {"x": [Feature("int64", [3])]})
MAPS = {"context": replace(BOTH, lists={}), "feature lists": Record({"a": Feature("int64", [1])}, BOTH.lists)}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("usual", "other"), [("context", "feature lists"), ("feature lists", "context")])
@pytest.mark.parametrize("has_both", [False, True])
def test_a_column_in_the_other_map_of_a_record_outside_the_sample_raises(
    tmp_path: Path, usual: str, other: str, has_both: bool
) -> None:
    """The context and the feature lists are two maps: a name known in one is unknown in the other."""
    files = [sequence_file(MAPS[usual])] * 40
    files[23] += sequence_file(BOTH if has_both else MAPS[other])
    directory_of(tmp_path, *files)
    message = f"record has the feature in the {other}, the column reads it from the {usual}"
    with pytest.raises(SchemaError, match=message) as caught:
        read_tfrecord(tmp_path).compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)
    assert caught.value.feature == "x"
    # The two ways that the message offers: read one of the maps, or choose the map by a type.
    kept = read_tfrecord(tmp_path, extra="ignore")["x"].compute()
    assert (len(kept), kept.isna().sum()) == (41, not has_both)
    if not has_both:
        return
    with pytest.raises(SchemaError, match=r'both a feature of the context and .*extra="ignore"'):
        read_tfrecord(tmp_path, read_options={"infer": "all"})
    for name, type_, value in (("context", pa.int64(), 2), ("feature lists", LISTS, [[3]])):
        found = read_tfrecord(tmp_path, read_options={"infer": "all"}, schema={"x": type_}, extra="ignore")[
            "x"
        ].compute()
        count = 41 if name == usual else 1
        assert pa.array(found.dropna(), type_).to_pylist() == [value] * count


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("type_", "value"), [(pa.int64(), 2), (LISTS, [[3]])], ids=["context", "lists"])
def test_a_choice_of_one_of_two_maps_does_not_drop_the_other_in_silence(
    tmp_path: Path, type_: pa.DataType, value: Any
) -> None:
    path = directory_of(tmp_path, sequence_file(*MAPS.values(), BOTH))
    with pytest.raises(SchemaError, match="feature 'x': the record has the feature in"):
        read_tfrecord(path, schema={"x": type_}).compute()
    chosen = read_tfrecord(path, schema={"x": type_}, extra="ignore")["x"].compute()
    assert chosen.isna().tolist() == [type_ == LISTS, type_ != LISTS, False]
    open_dataset(directory_of(tmp_path, sequence_file(BOTH)), schema={"x": type_}).add_snapshot()
    with pytest.raises(SchemaError, match="feature 'x': the record has the feature in"):
        read_tfrecord(tmp_path).compute()
    for options in ({"extra": "ignore"}, {"columns": ["x"]}, {"columns": ["a", "x"], "extra": "ignore"}):
        assert pa.array(read_tfrecord(tmp_path, **options)["x"].compute(), type_).to_pylist() == [value]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["path", "offset"])
def test_a_feature_called_as_the_offset_column_raises_outside_the_sample_too(
    tmp_path: Path, name: str
) -> None:
    files = [file_of({"a": ("int64", [1])})] * 40
    files[23] += file_of({"a": ("int64", [1]), name: ("int64", [7])})
    added = {
        "path": {"include_path_column": True},
        "offset": {"read_options": {"include_offset_column": True}},
    }
    ddf = read_tfrecord(directory_of(tmp_path, *files), **added[name])
    with pytest.raises(SchemaError, match=r"has the name of another column; pass .*include_") as caught:
        ddf.compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/23.tfrecord", 1)


VALUES = {
    "int64": [0, 1, -5, 2**40],
    "float": [oracle.float_bits(0.5), oracle.float_bits(-2.0)],
    "bytes": [b"text", b"", b"\xff", b"\x01", b"x" * 30],
}


def random_files(chance: random.Random) -> dict[str, list[Record]]:
    """Files of records with the same features; some records of one file differ."""
    kinds = {name: chance.choice([*VALUES]) for name in "abcd"[: chance.randint(1, 4)]}
    widths = {name: chance.choice([1, 1, 1, 3]) for name in kinds}
    style = chance.choice(["usual", "a null column", "empty"])
    mixed, lists = chance.random() < 0.3, chance.random() < 0.3

    def feature(name: str, odd: bool) -> Feature:
        kind, width, dice = kinds[name], widths[name], chance.random()
        if odd and dice < 0.15:
            return Feature()
        if odd and dice < 0.25:
            width = chance.choice([0, 1, 2])
        elif odd and mixed and dice < 0.3:
            kind = chance.choice([*VALUES])
        return Feature(kind, [chance.choice(VALUES[kind]) if odd else VALUES[kind][0] for _ in range(width)])

    def usual() -> Record:
        if style == "empty":
            return Record()
        features = {name: feature(name, False) for name in kinds}
        return Record(features | {"a": Feature()} if style == "a null column" else features)

    def odd() -> Record:
        features = {name: feature(name, True) for name in kinds if chance.random() < 0.8}
        if chance.random() < 0.3:
            features["new"] = Feature("int64", [1] * chance.choice([1, 2]))
        if not lists:
            return Record(features)
        steps = [feature("a", True) for _ in range(chance.randint(0, 2))]
        return Record(features, {chance.choice("ssta"): steps})

    count = chance.choice([1, 2, 7, 12])
    files = {f"{n:02d}.tfrecord": [usual() for _ in range(chance.choice([0, 1, 4]))] for n in range(count)}
    strange = files[f"{chance.randrange(count):02d}.tfrecord"]
    strange += [odd() for _ in range(chance.randint(1, 5))]
    chance.shuffle(strange)
    return files


def assert_all_values(found: dict[str, list[Any]], records: list[Record], left_out: set[str]) -> None:
    """Check that the read returned every value, except for columns that its arguments left out."""
    places = {(name, False) for record in records for name in record.features}
    places |= {(name, True) for record in records for name in record.lists}
    for name, is_list in sorted(places):
        if name in left_out:
            assert name not in found
        elif name not in found:  # a feature that no sampled record has, and no record gives a value
            assert not _has_values(records, name, is_list)
        elif (name, not is_list) in places and not _has_values(records, name, is_list):
            continue  # the column reads the other map, whose feature this loop also checks
        elif is_list:
            assert found[name] == oracle.column_values(records, name, 2)
        else:
            expected = oracle.column_values(records, name, 1)
            values = [[one] if one is not None and not isinstance(one, list) else one for one in found[name]]
            scalar = not any(isinstance(one, list) for one in found[name])
            assert values == [None if scalar and one == [] else one for one in expected]


def _has_values(records: list[Record], name: str, is_list: bool) -> bool:
    found = [step for one in records for step in one.lists.get(name, [])]
    if not is_list:
        found = [one.features[name] for one in records if name in one.features]
    return any(feature.kind for feature in found)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:the records do not look like Examples")
# Empty values of a feature in the context, and a feature list of the same name.
@example(chance=random.Random(1_635_929_196), compression=None)
@given(chance=st.integers(0, 2**32).map(random.Random), compression=st.sampled_from([None, "gzip"]))
@pytest.mark.parametrize("more_bytes", [0, 1 << 26], ids=["a small sample", "a sample that may grow"])
def test_all_values_are_read_by_defaults_or_in_one_step(
    tmp_path_factory: pytest.TempPathFactory, more_bytes: int, chance: random.Random, compression: str | None
) -> None:
    files = dict(sorted(random_files(chance).items()))
    contents = {name: sequence_file(*records) for name, records in files.items()}
    root: Path = tmp_path_factory.mktemp("files")
    fill(root, {name: data and oracle.compress(data, compression) for name, data in contents.items()})
    options: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sample, "_MORE_BYTES", more_bytes)
        try:
            found = read(root)
        except TFRecordError as error:
            options = advised(error)
            found = read(root, **options)
    if list(found) == ["record"]:
        assert found["record"] == [one for data in contents.values() for one in oracle.frames(data)]
    elif options.get("extra") != "ignore":
        left_out = {name for name, type_ in options.get("schema", {}).items() if type_ is None}
        assert_all_values(found, [one for records in files.values() for one in records], left_out)


def empty_records(root: Path, records: list[int], name: str) -> Path:
    """Write files of records without features: for each file their number."""
    files = [oracle.features_file([{}] * count) for count in records]
    return fill(root, {name.format(number): content for number, content in enumerate(files)})


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["k={}/a.tfrecord", "{}.tfrecord"])
@pytest.mark.parametrize("records", [[2, 0, 3], [0, 0]], ids=["records", "no records"])
def test_an_index_of_records_without_features_reads_as_the_files_do(
    tmp_path: Path, name: str, records: list[int]
) -> None:
    root = empty_records(tmp_path / "files", records, name)
    before = read_tfrecord(root).compute()
    open_dataset(root).add_snapshot()
    snapshot = Snapshot.open(root)
    assert (snapshot.records, len(snapshot.files)) == (sum(records), len(records))
    ddf = read_tfrecord(root)
    assert ddf.compute().equals(before)
    assert len(ddf) == len(before) == sum(records)
    assert read_tfrecord(root, columns=[]).compute().shape == (sum(records), 0)
    assert list(ddf.columns) == (["k"] if "=" in name else [])
    assert open_dataset(root).take([]).shape == (0, len(ddf.columns))
    report = dask_tfrecord.open_dataset(root).verify()
    assert report["rows"].tolist() == records
    assert report["agrees"].all()
    if sum(records):
        assert open_dataset(root).take([-1, 0]).shape == (2, len(ddf.columns))
    else:
        with pytest.raises(IndexError, match="0 rows"):
            open_dataset(root).take([0])


def test_without_columns_there_is_nothing_to_filter_or_to_write(tmp_path: Path) -> None:
    root = empty_records(tmp_path / "files", [2, 0, 3], "{}.tfrecord")
    open_dataset(root).add_snapshot()
    with pytest.raises(SchemaError, match="no column is named 'k'; there are none"):
        read_tfrecord(root, filters=[("k", "==", 1)])
    with pytest.raises(SchemaError, match="there are no columns to store"):
        dask_tfrecord.to_tfrecord(read_tfrecord(root), tmp_path / "copy")
