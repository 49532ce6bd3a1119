"""A column is written in the form in which it was read: TFDS in, TFDS out, whoever brings the rows.

The records and descriptions of TensorFlow Datasets are the expected values. If TensorFlow Datasets is
installed, its reader reads what was written.

Modules: schema.form_encoding, schema.form_transport, schema.struct_types, schema.tfds, dataset.export,
collection.frames.schema_plan, dataset.write.append_schema.
"""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from other_writers import fill

import dask_tfrecord
from dask_tfrecord import (
    DestinationError,
    Field,
    Schema,
    SchemaError,
    TFRecordError,
    Writer,
    open_dataset,
    read_tfrecord,
    to_tfrecord,
)
from dask_tfrecord.schema.form_encoding import encode
from dask_tfrecord.schema.storage_values import MisfitError
from dask_tfrecord.schema.stored_form import RowPartition, StoredForm

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:TFRecord has 32-bit floats only"),
]

SAMPLES = ["scalars", "tensors", "sequences", "mixed", "images", "labels"]


def records(*paths: Path) -> list[oracle.Record]:
    return [oracle.parse(payload) for path in sorted(paths) for payload in oracle.frames(path.read_bytes())]


def sample(data: Path, name: str) -> Path:
    return data / "tfds" / name / "1.0.0"


def as_written_by_tfds(source: Path) -> list[oracle.Record]:
    return records(*source.glob("*-train.tfrecord*"))


def described(path: Any, form: Callable[[Any], Any] = lambda ddf: ddf) -> Any:
    return form(read_tfrecord(path, split="train"))


def without_attributes(ddf: dd.DataFrame) -> pd.DataFrame:
    frame = ddf.compute()
    frame.attrs.clear()
    return frame


WAYS: dict[str, Callable[[Path], Any]] = {
    "a collection": lambda path: described(path),
    "a filter": lambda path: described(path, lambda ddf: ddf[ddf[ddf.columns[0]].notnull()]),
    "assigned": lambda path: described(path, lambda ddf: ddf.assign(**{ddf.columns[0]: ddf[ddf.columns[0]]})),
    "mapped": lambda path: described(path, lambda ddf: ddf.map_partitions(lambda part: part[part.columns])),
    "meta": lambda path: described(
        path, lambda ddf: ddf.map_partitions(list_of_all, meta=ddf.dtypes.to_dict())
    ),
    "persisted": lambda path: described(path, lambda ddf: ddf.persist()),
    "two partitions": lambda path: described(path, lambda ddf: ddf.repartition(npartitions=2)),
    "pandas": lambda path: described(path, lambda ddf: ddf.compute()),
    "of pandas": lambda path: dd.from_pandas(described(path).compute(), npartitions=1),
    "pandas rows": lambda path: described(path, lambda ddf: ddf.compute().iloc[:].reset_index(drop=True)),
    "a table": lambda path: open_dataset(path, split="train").to_table(),
    "a table of pandas": lambda path: pa.Table.from_pandas(described(path).compute(), preserve_index=False),
    "batches": lambda path: open_dataset(path, split="train").to_table().to_reader(),
}


def list_of_all(part: pd.DataFrame) -> pd.DataFrame:
    return part[list(part.columns)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, "a collection") for name in SAMPLES]
    + [("tensors" if number % 2 else "sequences", way) for number, way in enumerate(WAYS)]
    + [(name, way) for name in ("labels", "mixed") for way in ("pandas", "a table", "persisted")],
)
def test_rows_of_tensorflow_datasets_are_written_as_they_were_stored(
    data: Path, tmp_path: Path, name: str, way: str
) -> None:
    source = sample(data, name)
    to_tfrecord(WAYS[way](source), tmp_path / "copy")
    assert records(*(tmp_path / "copy").glob("part-*")) == as_written_by_tfds(source)
    copy, original = open_dataset(tmp_path / "copy"), open_dataset(source, split="train")
    assert copy.record_type == "example"
    assert copy.schema == original.schema
    if name != "scalars":  # a NaN is not equal to itself
        assert copy.to_table().equals(original.to_table())


def _polars(table: pa.Table) -> Any:
    return pytest.importorskip("polars").from_arrow(table)


APPENDS: dict[str, Callable[[Path, Path], Any]] = {
    "a collection": lambda path, to: to_tfrecord(described(path), to, append=True),
    "pandas": lambda path, to: to_tfrecord(described(path, without_attributes), to, append=True),
    "a table": lambda path, to: to_tfrecord(table_of(path), to, append=True),
    "polars": lambda path, to: to_tfrecord(_polars(table_of(path)), to, append=True),
    "a Writer": lambda path, to: _write(table_of(path), to),
    "dicts": lambda path, to: _write(table_of(path).to_pylist(), to),
}


def table_of(path: Path) -> pa.Table:
    return open_dataset(path, split="train").to_table()


def _write(rows: Any, path: Path) -> None:
    with Writer(path) as writer:
        writer.write(rows)


def only_train(source: Path, target: Path) -> Path:
    """Copy a TFDS directory with only the split "train"."""
    shutil.copytree(source, target)
    info = json.loads((target / "dataset_info.json").read_text())
    info["splits"] = [one for one in info["splits"] if one["name"] == "train"]
    (target / "dataset_info.json").write_text(json.dumps(info))
    for path in target.glob("*tfrecord*"):
        if "-train." not in path.name:
            path.unlink()
    return target


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, "pandas") for name in SAMPLES]
    + [("mixed", way) for way in APPENDS]
    + [("labels", way) for way in ("polars", "dicts")],
)
def test_rows_are_appended_to_a_directory_of_tensorflow_datasets_in_its_form(
    data: Path, tmp_path: Path, name: str, way: str
) -> None:
    target = only_train(sample(data, name), tmp_path / "x")
    count = len(read_tfrecord(target, split="train"))
    with pytest.raises(DestinationError, match=r"split=\"train\"\)\.add_snapshot\(\) first") as caught:
        APPENDS[way](sample(data, name), target)
    [call] = caught.value.calls
    open_dataset(call.path, **call.keywords).add_snapshot()
    APPENDS[way](sample(data, name), target)
    assert records(*target.glob("part-*")) == as_written_by_tfds(sample(data, name))
    assert len(read_tfrecord(target)) == 2 * count
    APPENDS[way](sample(data, name), target)
    table = open_dataset(target).to_table()
    assert len(table) == 3 * count
    if name != "scalars":
        assert table.slice(count, count).equals(table.slice(2 * count))


def test_polars_and_dicts_take_the_form_of_a_schema(data: Path, tmp_path: Path) -> None:
    source = sample(data, "mixed")
    with pytest.raises(SchemaError, match=r"pass schema=dask_tfrecord\.open_dataset\(\.\.\.\)\.schema"):
        to_tfrecord(_polars(table_of(source)), tmp_path / "refused")
    to_tfrecord(_polars(table_of(source)), tmp_path / "a", schema=Schema.from_tfds(source))
    with Writer(tmp_path / "b", schema=open_dataset(source, split="train").schema) as writer:
        writer.write(table_of(source).to_pylist())
    for path in (tmp_path / "a", tmp_path / "b"):
        assert records(*path.glob("part-*")) == as_written_by_tfds(source)


@pytest.mark.parametrize("name", ["tensors", "sequences", "labels"])
def test_rewrites_keep_the_form(data: Path, tmp_path: Path, name: str) -> None:
    path, source = tmp_path / "x", sample(data, name)
    for _ in range(2):
        to_tfrecord(described(source), path, append=path.exists())
    once = as_written_by_tfds(source)
    open_dataset(path).compact()
    assert records(*path.glob("part-*")) == [*once, *once]
    to_tfrecord(open_dataset(path).to_table().slice(1, 3), path, overwrite=True)
    assert records(*path.glob("part-*")) == [*once, *once][1:4]
    to_tfrecord(read_tfrecord(path), tmp_path / "y", shuffle=True, write_options={"npartitions": 2})
    assert len(records(*(tmp_path / "y").glob("part-*"))) == 3
    assert all(one in once for one in records(*(tmp_path / "y").glob("part-*")))


def describe(path: Path, features: Any, rows: list[Any]) -> Path:
    """Write a TFDS directory with one split of one file."""
    info = {"name": "x", "version": "1.0.0", "fileFormat": "tfrecord"}
    split = {"name": "train", "shardLengths": [str(len(rows))], "numBytes": "1"}
    texts = {"features.json": features, "dataset_info.json": {**info, "splits": [split]}}
    fill(path, {name: json.dumps(value).encode() for name, value in texts.items()})
    fill(path, {"x-train.tfrecord-00000-of-00001": oracle.features_file(rows)})
    return path


def test_nulls_of_required_columns_are_written_in_a_new_dataset_and_refused_in_an_append(
    tmp_path: Path,
) -> None:
    content = {"shape": {"dimensions": ["2"]}, "dtype": "float32", "encoding": "none"}
    features = {name: {"pythonClassName": "x.Tensor", "tensor": content} for name in ("pair", "other")}
    one = {name: ("float", [*map(oracle.float_bits, (1, 2))]) for name in features}
    describe(
        tmp_path / "x", {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": features}}, [one]
    )
    frame = read_tfrecord(tmp_path / "x", split="train").compute()
    frame.loc[0, "pair"] = None
    to_tfrecord(frame, tmp_path / "new")
    assert [*records(*(tmp_path / "new").glob("part-*"))[0].features] == ["other"]
    assert open_dataset(tmp_path / "new").to_table()["pair"].to_pylist() == [None]
    with pytest.raises(TFRecordError, match="has no nulls, and the column has 1 nulls"):
        open_dataset(tmp_path / "new").export("tfds")
    open_dataset(tmp_path / "x", split="train").add_snapshot()
    with pytest.raises(SchemaError, match="'pair': the value is null, but every record"):
        to_tfrecord(frame, tmp_path / "x", append=True)
    with pytest.raises(SchemaError, match="'pair': every record of the dataset must have"):
        to_tfrecord(frame[["other"]], tmp_path / "x", append=True)
    assert len(read_tfrecord(tmp_path / "x")) == 1


def test_lists_of_lists_of_pandas_are_written_as_either_record_type(tmp_path: Path) -> None:
    frame = pd.DataFrame({"deep": [[[1, 2], []], [[3]]]})
    with pytest.raises(SchemaError, match="nests lists deeper") as caught:
        to_tfrecord(frame, tmp_path / "refused")
    for remedy in caught.value.remedies:
        path = tmp_path / remedy.value
        to_tfrecord(frame, path, **{remedy.keyword: remedy.value})
        assert open_dataset(path).record_type == remedy.value
        assert open_dataset(path).to_table()["deep"].to_pylist() == frame["deep"].tolist()
    found = records(*(tmp_path / "example").glob("part-*"))[0].features
    assert {name: one.values for name, one in found.items()} == {
        "deep/ragged_flat_values": [1, 2],
        "deep/ragged_row_lengths_0": [2, 0],
    }
    lists = read_tfrecord(tmp_path / "sequence_example")
    with pytest.raises(TFRecordError, match='write the dataset with record_type="example"'):
        open_dataset(tmp_path / "sequence_example").export("tfds")
    to_tfrecord(lists, tmp_path / "again", record_type="example")
    assert open_dataset(tmp_path / "again").export("tfds")
    assert records(*(tmp_path / "again").glob("part-*")) == records(*(tmp_path / "example").glob("part-*"))


def test_three_levels_of_lists_are_written_to_examples(tmp_path: Path) -> None:
    rows = [[[[1], [2, 3]], []], [], None, [[[4]]]]
    table = pa.table({"deep": rows})
    with pytest.raises(SchemaError, match="nests lists deeper") as caught:
        to_tfrecord(table, tmp_path / "a")
    assert [remedy.value for remedy in caught.value.remedies] == ["example"]
    to_tfrecord(table, tmp_path / "a", record_type="example")
    assert open_dataset(tmp_path / "a").to_table()["deep"].to_pylist() == rows


def test_features_of_two_columns_never_collide(tmp_path: Path) -> None:
    table = pa.table({"x": [[[1]]], "x/ragged_flat_values": [1]})
    with pytest.raises(SchemaError, match="have the name of this feature") as caught:
        to_tfrecord(table, tmp_path / "a", record_type="example")
    assert caught.value.feature == "x/ragged_flat_values"


def test_advice_for_features_that_tfds_cannot_read_is_followed(tmp_path: Path) -> None:
    row = {"v": ("int64", [1, 2, 3]), "k": ("int64", [2, 1])}
    fill(tmp_path, {"a.tfrecord": oracle.features_file([row])})
    by_lengths = (RowPartition("row_lengths", "k"),)
    form = StoredForm(INT, lengths=(None, None), value_feature="v", partitions=by_lengths)
    source = open_dataset(tmp_path / "a.tfrecord", schema=Schema((Field.in_form("r", form),)))
    ddf = source.to_dask()
    for number, rows in enumerate((ddf, ddf.compute(), source.to_table())):
        to_tfrecord(rows, tmp_path / f"x{number}")
        assert open_dataset(tmp_path / f"x{number}").record_type == "example"
        assert records(*(tmp_path / f"x{number}").glob("part-*")) == records(tmp_path / "a.tfrecord")
        advice = r'schema=\{"r": pa.list_\(pa.list_\(pa.int64\(\)\)\)\} and record_type="example"'
        with pytest.raises(SchemaError, match=advice):
            open_dataset(tmp_path / f"x{number}").export("tfds")
        nested = pa.list_(pa.list_(pa.int64()))
        to_tfrecord(rows, tmp_path / f"y{number}", schema={"r": nested}, record_type="example")
        assert open_dataset(tmp_path / f"y{number}").export("tfds")
        assert open_dataset(tmp_path / f"y{number}").to_table()["r"].to_pylist() == [[[1, 2], [3]]]


# -- Values to features --------------------------------------------------------------------------------------

LISTS = [[[1, 2], [], [3]], [[4]], []]
LENGTHS = {
    "row_lengths": [[2, 0, 1], [1], []],
    "row_starts": [[0, 2, 2], [0], []],
    "row_limits": [[2, 2, 3], [1], []],
    "row_splits": [[0, 2, 2, 3], [0, 1], [0]],
    "value_rowids": [[0, 0, 2], [0], []],
}
INT, LABELS = pa.int64(), pa.array(["cat", "dog"])


@pytest.mark.parametrize(
    ("form", "rows", "features"),
    [
        *(
            (
                StoredForm(INT, lengths=(None, None), partitions=(RowPartition(kind, "k"),)),  # type: ignore[arg-type]  # the keys of LENGTHS
                LISTS,
                [[[1, 2, 3], [4], []], integers],
            )
            for kind, integers in LENGTHS.items()
        ),
        (
            StoredForm(INT, lengths=(None, 2), partitions=(None,)),
            [[[1, 2], [3, 4]], []],
            [[[1, 2, 3, 4], []]],
        ),
        (StoredForm(INT, (2, 2)), [[[1, 2], [3, 4]]], [[[1, 2, 3, 4]]]),
        (StoredForm(INT, (2, None)), [[[1], [2]], [[], []]], [[[1, 2], []]]),
        (StoredForm(INT, (2,), (None,)), [[[1, 2], [3, 4]], []], [[[1, 2, 3, 4], []]]),
        (StoredForm(pa.int8(), (2,), encoding="bytes"), [[1, -1]], [[b"\x01\xff"]]),
        (StoredForm(pa.bool_(), (None,), encoding="bytes"), [[True, False], []], [[b"\x01\x00", b""]]),
        (StoredForm(pa.uint64(), is_optional=True), [2**64 - 1, None, 1], [[-1, None, 1]]),
        (StoredForm(pa.bool_(), spellings=("no", "yes")), [True, False], [[b"yes", b"no"]]),
        (StoredForm(INT, categories=LABELS), ["dog", None, "cat"], [[1, -1, 0]]),
        (StoredForm(INT, lengths=(None,), categories=LABELS), [["dog", None], []], [[[1, -1], []]]),
        (
            StoredForm(pa.int16(), (None, None), encoding="bytes"),
            [{"data": [1, 2], "shape": [2, 1]}],
            [[b"\x01\x00\x02\x00"], [[2, 1]]],
        ),
        (
            StoredForm(INT, lengths=(None, None, None)),
            [[[[1], [2, 3]], []], [[[4]]]],
            [[[1, 2, 3], [4]], [[2, 0], [1]], [[1, 2], [1]]],
        ),
    ],
)
def test_values_become_features_and_come_back(form: StoredForm, rows: Any, features: Any) -> None:
    array = pa.array(rows, form.type) if not form.has_codes else _labels(rows, form.type)
    found = encode(form, array, exact=True)
    assert [one.to_pylist() for one in found] == features
    assert len(found) == len(form.columns("x"))
    assert form.load([one.cast(_decoded(one.type)) for one in found]).to_pylist() == rows
    # A slice has other buffers than an array.
    twice = pa.concat_arrays([array, array]).slice(len(rows))
    assert [one.to_pylist() for one in encode(form, twice, exact=True)] == features


def _labels(rows: list[Any], type_: pa.DataType) -> pa.Array:
    if not pa.types.is_list(type_):
        return pa.array(rows).dictionary_encode()
    values = pa.array([one for row in rows for one in row]).dictionary_encode()
    return pa.ListArray.from_arrays([0, *pd.Series(map(len, rows)).cumsum()], values)


def _decoded(type_: pa.DataType) -> pa.DataType:
    return pa.binary() if pa.types.is_large_binary(type_) else type_


@pytest.mark.parametrize(
    ("form", "rows", "row", "problem"),
    [
        (StoredForm(INT, (2,)), [[1, 2], None], 1, "the value is null, but every record"),
        (StoredForm(INT, (2,)), [[1, 2], [1, None]], 1, "the list holds a null"),
        (StoredForm(INT, lengths=(None, None)), [[[1]], [[2], None]], 1, "the list holds a null"),
        (StoredForm(INT, (2, None)), [[[1], [2]], [[1], [2, 3]]], 1, "different lengths"),
        (StoredForm(INT, (None, 0)), [[], [[], []]], 1, "number of empty lists"),
        (
            StoredForm(INT, lengths=(None, None), partitions=(RowPartition("value_rowids", "k"),)),
            [[[1]], [[2], []]],
            1,
            "the last inner list is empty",
        ),
        (
            StoredForm(pa.int8(), (None, None), encoding="bytes"),
            [{"data": [1], "shape": [1, 1]}, {"data": [1], "shape": [2, 1]}],
            1,
            "contradicts the declared shape",
        ),
        (StoredForm(INT, categories=LABELS), ["cat", "cow"], 1, "'cow' is not one of the class names"),
    ],
)
def test_a_value_that_would_not_come_back_names_its_row(
    form: StoredForm, rows: Any, row: int, problem: str
) -> None:
    array = _labels(rows, form.type) if form.has_codes else pa.array(rows, form.type)
    with pytest.raises(MisfitError, match=problem) as caught:
        encode(form, array, exact=True)
    assert caught.value.row == row


# -- Descriptions --------------------------------------------------------------------------------------------


def exported(source: Path, target: Path, **keywords: Any) -> Path:
    to_tfrecord(described(source), target, **keywords)
    open_dataset(target).export("tfds")
    return target


@pytest.mark.parametrize("name", SAMPLES)
def test_the_description_of_tensorflow_datasets_is_exported_again(
    data: Path, tmp_path: Path, name: str
) -> None:
    source, target = sample(data, name), exported(sample(data, name), tmp_path / "x")
    found, original = (json.loads((path / "features.json").read_text()) for path in (target, source))
    if name == "mixed":  # a translation is exported as the dict of texts that it is
        del (
            found["featuresDict"]["features"]["translation"],
            original["featuresDict"]["features"]["translation"],
        )
    assert found == original
    for path in source.glob("*.labels.txt"):
        if path.name in {one.name for one in target.iterdir()}:
            assert (target / path.name).read_text().split() == path.read_text().split()
    again = read_tfrecord(target, use_snapshot=False, split="train")
    assert again.dtypes.to_dict() == described(source).dtypes.to_dict()


@pytest.mark.skipif(not find_spec("tensorflow_datasets"), reason="tensorflow_datasets is not installed")
@pytest.mark.parametrize("name", SAMPLES)
def test_tensorflow_datasets_reads_the_same_rows(data: Path, tmp_path: Path, name: str) -> None:
    import tensorflow_datasets as tfds

    found = []
    for path in (sample(data, name), exported(sample(data, name), tmp_path / "x")):
        rows = tfds.as_numpy(tfds.builder_from_directory(path).as_dataset(split="train"))
        found.append([repr(_plain(row)) for row in rows])
    assert found[0] == found[1] != []


def _plain(value: Any) -> Any:
    """Convert a row of TensorFlow Datasets, in which a dataset of steps may be nested, to Python objects."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if hasattr(value, "to_list"):
        return value.to_list()
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, bytes | str) else [_plain(one) for one in value]


EPISODES = [0, 1, 2, 3]


def write_episodes(path: Path) -> Path:
    """Write a directory of RLDS: each record is an episode, whose steps are stored flat."""

    def of(class_: str, **content: Any) -> dict[str, Any]:
        return {"pythonClassName": f"tensorflow_datasets.core.features.{class_}", **content}

    def tensor(dtype: str, *shape: int) -> dict[str, Any]:
        dimensions = {"dimensions": [*map(str, shape)]} if shape else {}
        return of("tensor_feature.Tensor", tensor={"shape": dimensions, "dtype": dtype, "encoding": "none"})

    def group(**features: Any) -> dict[str, Any]:
        return of("features_dict.FeaturesDict", featuresDict={"features": features})

    text = of("text_feature.Text", text={})
    step = group(action=tensor("float32", 2), is_first=tensor("bool"), observation=group(text=text))
    steps = of("dataset_feature.Dataset", sequence={"feature": step, "length": "-1"})
    rows = [
        {
            "id": ("int64", [size]),
            "steps/action": ("float", [*map(oracle.float_bits, range(2 * size))]),
            "steps/is_first": ("int64", [int(not one) for one in range(size)]),
            "steps/observation/text": ("bytes", [b"go"] * size),
        }
        for size in EPISODES
    ]
    return describe(path, group(id=tensor("int64"), steps=steps), rows)


def episodes(path: Path) -> list[Any]:
    """Return the number of steps of each episode, as TensorFlow Datasets or else protobuf reads it."""
    if not find_spec("tensorflow_datasets"):
        found = records(*path.glob("*.tfrecord*"))
        return [len(one.features["steps/is_first"].values) for one in found]
    import tensorflow_datasets as tfds

    rows = tfds.as_numpy(tfds.builder_from_directory(path).as_dataset(split="train"))
    return [len(_plain(row)["steps"]) for row in rows]


def test_episodes_are_filtered_appended_compacted_and_deleted_and_stay_episodes(tmp_path: Path) -> None:
    source = write_episodes(tmp_path / "rl")
    ddf = read_tfrecord(source, split="train")
    long = ddf[ddf.id > 1]
    target = tmp_path / "long"
    to_tfrecord(long, target)
    open_dataset(target).export("tfds")
    features = [json.loads((path / "features.json").read_text()) for path in (source, target)]
    assert features[0] == features[1]
    assert episodes(target) == [2, 3]
    to_tfrecord(ddf, target, append=True)
    with pytest.raises(TFRecordError, match=r"call compact\(\), or"):
        open_dataset(target).export("tfds")
    open_dataset(target).compact()
    open_dataset(target).export("tfds")
    assert episodes(target) == [2, 3, *EPISODES]
    open_dataset(target).delete([("id", "==", 3)], keep_versions=False)
    open_dataset(target).export("tfds")
    assert episodes(target) == [2, 0, 1, 2]
    open_dataset(source, split="train").add_snapshot()
    to_tfrecord(long, source, append=True)
    open_dataset(source).compact(keep_versions=False)
    open_dataset(source).export("tfds")
    assert episodes(source) == [*EPISODES, 2, 3]


def test_a_partition_column_and_new_columns_are_exported_beside_described_columns(tmp_path: Path) -> None:
    ddf = read_tfrecord(write_episodes(tmp_path / "rl"))
    to_tfrecord(ddf.assign(weight=1.5), tmp_path / "x", partition_on="split", lossy="allow")
    open_dataset(tmp_path / "x").export("tfds")
    found = json.loads((tmp_path / "x" / "features.json").read_text())["featuresDict"]["features"]
    assert sorted(found) == ["id", "steps", "weight"]
    assert len(read_tfrecord(tmp_path / "x", use_snapshot=False, split="train")) == len(EPISODES)
    assert dask_tfrecord.Schema.from_tfds(tmp_path / "x").names == [*ddf.columns.drop("split"), "weight"]
