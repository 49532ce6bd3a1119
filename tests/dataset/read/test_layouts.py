"""Directories of TensorFlow Datasets and TFX: their splits and versions are never mixed in silence.

A directory or a glob that lacks members of a numbered set, such as ``a-00001-of-00002``, says so.

Modules: dataset.read.layouts.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from other_writers import fill

import dask_tfrecord
from dask_tfrecord import TFRecordError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.storage.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def tfds(data: Path) -> Path:
    """What TensorFlow Datasets and TensorFlow wrote."""
    return data / "tfds"


ONE = oracle.features_file([{"n": ("int64", [1])}])


def shard(split: str, number: int = 0, count: int = 1) -> str:
    return f"x-{split}.tfrecord-{number:05d}-of-{count:05d}"


def describe(root: Path, *splits: dict[str, Any]) -> None:
    (root / "dataset_info.json").write_text(json.dumps({"name": "x", "splits": list(splits)}))


def rows(path: Any, **keywords: Any) -> dict[str | None, list[int]]:
    """The values of the column "n" or "num" of each split."""
    frame = read_tfrecord(path, **keywords).compute()
    name = "num" if "num" in frame else "n"
    if "split" not in frame:
        return {None: frame[name].tolist()}
    return {key: group[name].tolist() for key, group in frame.groupby("split", dropna=False)}


LABELS = {"train": [3, 1, 4, 1, 0, 2, 0], "test": [2, 0, 1], "validation": [1, 0]}


def test_splits_of_tfds_are_chosen(tfds: Path) -> None:
    path = tfds / "labels" / "1.0.0"
    for split, expected in LABELS.items():
        assert rows(path, split=split) == {None: expected}
        assert len(read_tfrecord(path, split=split)) == len(expected)
    assert rows(path, split="all") == rows(path) == rows(tfds / "labels") == LABELS
    assert rows(tfds / "labels", split=["test", "train"]) == {key: LABELS[key] for key in ("test", "train")}
    assert rows(path, split=["test"]) == {"test": LABELS["test"]}
    assert rows(path / "labels-test.*") == {None: LABELS["test"]}
    files = sorted(path.glob("*tfrecord*"))
    assert len(read_tfrecord(files)) == 12


NO_SLICES = r'slices such as "train\[:10%\]" and sums .*not supported'


@pytest.mark.parametrize(
    ("split", "whole", "problem"),
    [
        ("train[:10%]", "train", NO_SLICES),
        ("train[1:2]", "train", NO_SLICES),
        ("train+test", ("train", "test"), NO_SLICES),
        ("train[:50%] + test[50%:] + train[50%:]", ("train", "test"), NO_SLICES),
        (["train[:10%]", "test"], ("train", "test"), NO_SLICES),
        ("train[:10%]+none", None, NO_SLICES),
        ([], None, r"split=\[\] names no split; pass split=None to read all splits"),
    ],
)
def test_slices_and_sums_of_splits_are_refused_with_whole_splits(
    tfds: Path, split: Any, whole: Any, problem: str
) -> None:
    with pytest.raises(TFRecordError, match=problem) as caught:
        read_tfrecord(tfds / "labels", split=split)
    if whole is not None:
        assert [remedy.value for remedy in caught.value.remedies] == [whole]
        names = [whole] if isinstance(whole, str) else whole
        expected = sum(len(LABELS[name]) for name in names)
        assert len(read_tfrecord(tfds / "labels", split=whole)) == expected


@pytest.mark.parametrize("name", ["1.0.0.incompleteAB12CD", "1.0.0.incomplete.x", "labels.incomplete"])
def test_an_unfinished_download_is_not_read(tmp_path: Path, tfds: Path, name: str) -> None:
    shutil.copytree(tfds / "labels" / "1.0.0", tmp_path / "labels" / "1.0.0")
    unfinished = tmp_path / "labels" / name
    fill(unfinished, {shard("train"): ONE, f"incomplete.{'0a' * 16}.{shard('test')}": ONE})
    fill(tmp_path / "labels" / "1.0.0", {f"{shard('test')}.incomplete": ONE})
    assert len(read_tfrecord(tmp_path / "labels")) == 12
    assert len(read_tfrecord(f"{tmp_path}/labels/*", split="all")) == 12
    shutil.rmtree(tmp_path / "labels" / "1.0.0")
    with pytest.raises(dask_tfrecord.NotFoundError):
        read_tfrecord(tmp_path / "labels")
    assert len(read_tfrecord(unfinished)) == 1


def test_partition_values_may_look_like_unfinished_downloads(tmp_path: Path) -> None:
    values = ["1.0.0.incompleteABC", "incomplete", "x.incomplete"]
    to_tfrecord(pa.table({"n": [1, 2, 3], "v": values}), tmp_path, partition_on="v")
    assert sorted(read_tfrecord(tmp_path, use_snapshot=False).compute()["v"]) == values


def test_the_column_of_splits_prunes_and_partitions(tfds: Path, opened: list[str]) -> None:
    path = tfds / "labels" / "1.0.0"
    ddf = read_tfrecord(path, split="all", columns=["num", "split"], partition_by="split")
    assert ddf.npartitions == 3
    opened.clear()
    assert ddf[ddf.split == "test"].compute()["num"].tolist() == LABELS["test"]
    assert {name.rpartition("/")[2].partition(".")[0] for name in opened} == {"labels-test"}
    assert rows(path, split="all", filters=[("split", "in", ["test"])]) == {"test": LABELS["test"]}
    assert "split" not in read_tfrecord(path, split="all", schema={"split": None}).columns
    typed = read_tfrecord(path, split="all", schema={"split": pa.dictionary(pa.int8(), pa.string())})
    assert isinstance(typed.dtypes["split"], pd.CategoricalDtype)


EXAMPLES = "taxi/CsvExampleGen/examples/1"


@pytest.mark.parametrize(
    "path",
    [
        ["labels"],
        "labels/1.0.0/*",
        "labels/*/*.tfrecord-*",
        "labels/1.0.0/*.tfrecord*1-of*",
        f"{EXAMPLES}/*",
        f"{EXAMPLES}/Split-*/*.gz",
    ],
)
def test_several_splits_without_a_choice_raise_with_remedies_that_read_them(tfds: Path, path: Any) -> None:
    path = [str(tfds / name) for name in path] if isinstance(path, list) else str(tfds / path)
    with pytest.raises(TFRecordError, match=r"holds the splits '\w+' \(files: \d\), 'train'") as caught:
        read_tfrecord(path)
    remedies = {value: {keyword: value} for keyword, value, _ in caught.value.remedies}
    assert [*remedies] == ["train", "all"]
    one, every = (len(read_tfrecord(path, **keywords)) for keywords in remedies.values())
    assert 0 < one < every
    glob = str(caught.value).partition('such as "')[2].partition('"')[0]
    assert len(read_tfrecord(glob)) == len(RecordTable(glob)) == one
    for use in (lambda: iter_batches(path, 9), lambda: RecordTable(path)):
        with pytest.raises(TFRecordError, match="holds the splits"):
            use()


def test_splits_of_tfx_are_chosen_and_artifacts_are_not_mixed(tmp_path: Path, tfds: Path) -> None:
    found = read_tfrecord(tfds / "taxi", columns=["fare", "split"]).compute()
    assert {key: len(part) for key, part in found.groupby("split")} == {"eval": 3, "train": 8}
    assert len(read_tfrecord(tfds / EXAMPLES / "Split-eval")) == 3
    assert len(read_tfrecord([tfds / EXAMPLES / f"Split-{one}" for one in ("eval", "train")])) == 11
    expected = read_tfrecord(tfds / EXAMPLES / "Split-train", columns="fare").compute().tolist()
    for path in (tfds / "taxi", tfds / EXAMPLES):
        assert read_tfrecord(path, split="train", columns="fare").compute().tolist() == expected
        assert len(read_tfrecord(path, split=["eval"])) == 3
        assert len(read_tfrecord(path, filters=[("split", "==", "eval")])) == 3
    for number in "12":
        shutil.copytree(tfds / EXAMPLES / "Split-eval", tmp_path / number / "Split-eval")
    with pytest.raises(TFRecordError, match="2 datasets, versions or configurations"):
        read_tfrecord(tmp_path)


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("configs", None),
        ("configs/large", "train"),
        ("configs/*/1.0.0", "all"),
        ("configs/*/1.0.0/*train*", None),
        (".", "train"),
    ],
)
def test_several_versions_or_configurations_raise_with_their_names(
    tfds: Path, path: str, split: str | None
) -> None:
    with pytest.raises(TFRecordError, match=r"\d datasets, versions or configurations: '.*large/1.0.0', '"):
        read_tfrecord(tfds / path, split=split)
    assert len(read_tfrecord(tfds / "configs/large/1.0.0", split="train")) == 6
    both = [tfds / "configs/large/1.0.0", tfds / "configs/small/1.0.0"]
    assert len(read_tfrecord(both, split="test", columns=[])) == 4


def test_names_show_the_splits_if_the_description_lists_none(tmp_path: Path) -> None:
    fill(tmp_path, {shard("train"): ONE * 2, shard("train_extra"): ONE})
    assert len(read_tfrecord(tmp_path)) == 3  # without a description, names are names
    with pytest.raises(TFRecordError, match="not divided into splits"):
        read_tfrecord(tmp_path, split="train")
    fill(tmp_path, {"features.json": b"{}"})
    with pytest.raises(TFRecordError, match=r"'train' .*'train_extra'"):
        read_tfrecord(tmp_path / "*")
    assert rows(tmp_path) == {"train": [1, 1], "train_extra": [1]}
    assert rows(tmp_path, split="train") == {None: [1, 1]}
    fill(tmp_path, {"dataset_info.json": b'{"splits": {"train": {"num_examples": 3}}}'})
    assert rows(tmp_path, split="all") == {"train": [1, 1], "train_extra": [1]}
    describe(tmp_path, *[{"name": "train", "shardLengths": ["1"]}] * 2)
    with pytest.raises(TFRecordError, match=r"dataset_info\.json: .* two splits with the name 'train'"):
        read_tfrecord(tmp_path)
    fill(tmp_path, {"dataset_info.json": b"{"})
    with pytest.raises(TFRecordError, match="not valid JSON"):
        read_tfrecord(tmp_path)


def test_only_the_files_that_a_description_lists_are_read(tmp_path: Path) -> None:
    neighbours = {shard("train_extra"): ONE, "more.tfrecord": ONE * 2}
    fill(tmp_path, {shard("train"): ONE} | neighbours)
    describe(tmp_path, {"name": "train", "shardLengths": ["1"]})
    for keywords in ({}, {"split": "all"}):
        with pytest.warns(UserWarning, match="these 2 files are not read: more.tfrecord, x-train_extra"):
            assert rows(tmp_path, **keywords) == {"train": [1]}
    with (
        pytest.warns(UserWarning, match="2 files are not read"),
        pytest.raises(TFRecordError, match=r"more\.tfrecord: the description .* does not list 2 files"),
    ):
        open_dataset(tmp_path).add_snapshot()
    assert rows(tmp_path, split="train") == {None: [1]}
    with pytest.raises(TFRecordError, match=r"'train' \(files: 1\), and files of no split \(2\)"):
        read_tfrecord(tmp_path / "*")


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (None, "x-train.tfrecord-0000{}-of-00002"),
        ("{SPLIT}/{SHARD_INDEX}-{NUM_SHARDS}.{FILEFORMAT}", "train/0000{}-00002.tfrecord"),
        ("a+b.{SPLIT}-{SHARD_X_OF_Y}", "a+b.train-0000{}-of-00002"),
    ],
)
def test_a_missing_shard_raises(tmp_path: Path, template: str | None, names: str) -> None:
    split = {"name": "train", "shardLengths": ["2", "1"], "filepathTemplate": template}
    fill(tmp_path, {names.format(0): ONE * 2, names.format(1): ONE})
    describe(tmp_path, split, {"name": "test", "shardLengths": ["4"]})
    assert len(read_tfrecord(tmp_path, split="train")) == 3
    (tmp_path / names.format(0)).unlink()
    for keywords in ({}, {"split": "train"}, {"split": "all"}):
        with pytest.raises(dask_tfrecord.CorruptRecordError, match="is missing, but dataset_info") as caught:
            read_tfrecord(tmp_path, **keywords)
        assert caught.value.path == str(tmp_path / names.format(0))
    glob = str(caught.value).partition('exist as "')[2].partition('"')[0]
    assert len(read_tfrecord(glob)) == 1


@pytest.mark.parametrize("lengths", [["2"], ["2", "1"]])
@pytest.mark.parametrize(
    "use",
    [
        read_tfrecord,
        lambda path: read_tfrecord(path, split="all"),
        lambda path: read_tfrecord(path, split="train"),
        lambda path: read_tfrecord(path, split=["train", "test"]),
        lambda path: read_tfrecord([path]),
        lambda path: read_tfrecord(path / "*"),
        lambda path: read_tfrecord(path.parent),
        lambda path: open_dataset(path).count_rows(),
        lambda path: open_dataset(path).add_snapshot(),
        lambda path: RecordTable(path),
        lambda path: next(iter_batches(path, 9)),
    ],
)
def test_a_split_without_any_file_raises_and_the_others_are_read_by_name(
    tmp_path: Path, lengths: list[str], use: Any
) -> None:
    path = tmp_path / "x" / "1.0.0"
    fill(path, {shard("test"): ONE * 3})
    describe(path, {"name": "train", "shardLengths": lengths}, {"name": "test", "shardLengths": ["3"]})
    with pytest.raises(
        dask_tfrecord.CorruptRecordError, match="lists it as a file of the split 'train'"
    ) as caught:
        use(path)
    assert caught.value.path == str(path / shard("train", 0, len(lengths)))
    remedies = (*caught.value.remedies, *caught.value.other_remedies)
    assert [remedy.value for remedy in remedies] == ["test"] * len(remedies)
    assert rows(path, split="test") == {None: [1, 1, 1]}
    assert rows(path, split=["test"]) == {"test": [1, 1, 1]}


def test_verify_reports_a_split_without_any_file(tmp_path: Path) -> None:
    fill(tmp_path, {shard("test"): ONE})
    describe(tmp_path, {"name": "train", "shardLengths": ["2"]}, {"name": "test", "shardLengths": ["1"]})
    report = open_dataset(tmp_path).verify()
    assert report["path"].tolist() == [str(tmp_path / shard(one)) for one in ("test", "train")]
    assert report["damaged"].tolist() == [0, 1]


@pytest.mark.parametrize("others", [{}, {"label.labels.txt": b"cat\ndog\n"}])
@pytest.mark.parametrize("keywords", [{}, {"split": "train"}, {"split": "all"}])
def test_a_description_without_any_data_file_names_a_missing_file(
    tmp_path: Path, others: dict[str, bytes], keywords: dict[str, Any]
) -> None:
    fill(tmp_path, {"features.json": b"{}", **others})
    if not others:
        with pytest.raises(FileNotFoundError, match="no visible files to read here"):
            read_tfrecord(tmp_path)
    describe(tmp_path, {"name": "train", "shardLengths": ["2"]}, {"name": "none", "shardLengths": []})
    with pytest.raises(dask_tfrecord.CorruptRecordError, match="is missing, but dataset_info") as caught:
        read_tfrecord(tmp_path, **keywords)
    assert caught.value.path == str(tmp_path / shard("train"))
    assert not caught.value.remedies


MIXED = "the rows of the directories 'eval/', 'train/'.* are mixed"


@pytest.mark.parametrize("path", ["examples", "examples/8", "examples/*", "examples/8/*/*", ["examples"]])
def test_directories_named_like_splits_are_chosen_and_never_mixed_in_silence(
    tmp_path: Path, path: Any
) -> None:
    fill(tmp_path / "examples/8", {"train/a.tfrecord": ONE * 2, "eval/a.tfrecord": ONE})
    path = [str(tmp_path / name) for name in path] if isinstance(path, list) else str(tmp_path / path)
    with pytest.warns(UserWarning, match=MIXED) as caught:
        assert rows(path) == {None: [1, 1, 1]}
    [one, every] = caught[0].message.remedies  # type: ignore[union-attr]
    assert rows(path, split=one.value) == {None: [1, 1]}
    assert rows(path, split=every.value) == {"eval": [1], "train": [1, 1]}
    assert rows(path, split=["eval"]) == {"eval": [1]}
    with pytest.raises(TFRecordError, match="splits are: 'eval', 'train'"):
        read_tfrecord(path, split="test")


@pytest.mark.parametrize("name", ["train", "test", "eval", "val", "valid", "validation", "dev"])
def test_one_directory_named_like_a_split_causes_no_warning(tmp_path: Path, name: str) -> None:
    fill(tmp_path / "a" / name, {"a.tfrecord": ONE})
    assert rows(tmp_path) == rows(tmp_path, split=name) == {None: [1]}
    assert rows([tmp_path / "a" / name]) == {None: [1]}
    with pytest.raises(TFRecordError, match="not divided into splits; pass split=None"):
        read_tfrecord(tmp_path / "a" / name, split=name)


def test_files_beside_directories_named_like_splits_belong_to_no_split(tmp_path: Path) -> None:
    fill(tmp_path, {"train/a.tfrecord": ONE, "eval/b.tfrecord": ONE, "more.tfrecord": ONE})
    with pytest.warns(UserWarning, match=MIXED):
        assert len(read_tfrecord(tmp_path)) == 3
    assert read_tfrecord(tmp_path, split="all").compute()["split"].isna().sum() == 1
    assert rows(tmp_path, split="train") == {None: [1]}
    assert len(read_tfrecord([tmp_path / "train", tmp_path / "eval"])) == 2  # asked for by name
    with pytest.raises(TFRecordError, match=r'split="all"\)\.add_snapshot\(\) first'):
        to_tfrecord(pa.table({"n": [2]}), tmp_path, append=True)
    open_dataset(tmp_path, split="all").add_snapshot()
    assert rows(tmp_path, split="eval") == {None: [1]}


def test_a_feature_named_split_beside_directories_named_like_splits(tmp_path: Path) -> None:
    one = oracle.features_file([{"split": ("int64", [7]), "n": ("int64", [1])}])
    fill(tmp_path, {"train/a.tfrecord": one, "eval/a.tfrecord": one})
    with pytest.warns(UserWarning, match=MIXED):
        assert read_tfrecord(tmp_path).compute()["split"].tolist() == [7, 7]
    assert read_tfrecord(tmp_path, split="train").compute()["split"].tolist() == [7]


def test_a_feature_with_the_name_of_the_column_is_not_hidden(tmp_path: Path) -> None:
    one = oracle.features_file([{"split": ("int64", [7])}])
    fill(tmp_path, {shard("train"): one, shard("test"): one, "features.json": b"{}"})
    with pytest.raises(dask_tfrecord.SchemaError, match='split="train"'):
        read_tfrecord(tmp_path, split="all")
    assert read_tfrecord(tmp_path, split="train").compute()["split"].tolist() == [7]


def test_writes_to_indexed_splits_replace_and_add_rows_of_their_split(tmp_path: Path) -> None:
    fill(tmp_path, {shard("train"): ONE * 2, shard("test"): ONE, "features.json": b"{}"})
    table = pa.table({"n": [8, 9], "split": ["train", "new"]})
    with pytest.raises(
        TFRecordError, match=r"split=\"all\"\)\.add_snapshot\(\) first.*partition_on=\['split'\]"
    ):
        to_tfrecord(table.select(["n"]), tmp_path, append=True)
    open_dataset(tmp_path, split="all").add_snapshot()
    snapshot = Snapshot.open(tmp_path)
    assert (snapshot.partition_on, snapshot.partitions, snapshot.records) == (("split",), 2, 3)
    assert rows(tmp_path, split="train") == {None: [1, 1]}
    assert (
        rows(tmp_path, filters=[("split", "==", "test")]) == rows(tmp_path, split=["test"]) == {"test": [1]}
    )
    to_tfrecord(table, tmp_path, append=True, partition_on="split")
    assert rows(tmp_path) == {"train": [1, 1, 8], "test": [1], "new": [9]}
    (tmp_path / "features.json").unlink()  # an overwrite would refuse
    to_tfrecord(table, tmp_path, overwrite="partitions", partition_on="split")
    assert rows(tmp_path) == {"train": [8], "test": [1], "new": [9]}


@pytest.mark.parametrize("partitioned", [False, True])
def test_what_was_exported_for_tfds_is_read_by_its_splits(place: str, partitioned: bool) -> None:
    ddf = dd.from_dict({"n": range(6), "split": ["train", "test"] * 3}, npartitions=1)
    if partitioned:
        to_tfrecord(ddf, place, partition_on="split")
    else:
        to_tfrecord(ddf[["n"]], place)
    dask_tfrecord.open_dataset(place).export("tfds")
    expected = {"train": [0, 2, 4], "test": [1, 3, 5]} if partitioned else {"train": [*range(6)]}
    for use_snapshot in (True, False):
        keywords: dict[str, Any] = {"use_snapshot": use_snapshot}
        assert rows(place, split="train", **keywords) == {None: expected["train"]}
        assert rows(place, split="all", **keywords) == expected
        whole = {None: expected["train"]} if use_snapshot and not partitioned else expected
        assert rows(place, **keywords) == whole
    if partitioned:
        assert rows(place, hive=False, use_snapshot=False) == expected
    store = Store.at(place)
    store.fs.rm(store.join("_tfrecord"), recursive=True)
    assert rows(place, split="all") == expected


def member(number: int, count: int, end: str = ".tfrecord", start: str = "a") -> str:
    return f"{start}-{number:05d}-of-{count:05d}{end}"


@pytest.mark.parametrize("files", [[member(0, 3), member(2, 3)], ["a-1-of-3"], [member(7, 3)]], ids=str)
def test_numbers_in_names_are_no_promise_of_files(tmp_path: Path, files: list[str]) -> None:
    fill(tmp_path, dict.fromkeys(files, ONE))
    assert len(read_tfrecord(tmp_path)) == len(files)


WRITES: list[tuple[dict[str, Any], str]] = [
    ({}, "*.tfrecord"),
    ({"write_options": {"max_rows_per_file": 7}}, "*.tfrecord"),
    ({"name_function": lambda number: f"label{number}"}, "*.tfrecord"),
    ({"shuffle": True, "seed": 1, "write_options": {"npartitions": 2}, "compression": "gzip"}, "*.gz"),
    ({"partition_on": "key"}, "key=a/*"),
    ({"partition_on": "key", "colocate": True, "write_options": {"max_rows_per_file": 7}}, "**/*.tfrecord"),
    ({"split": {"train": 0.9, "eval": 0.1}, "write_options": {"split_by": "key"}}, "split=*"),
]


@pytest.mark.parametrize(("write", "glob"), WRITES)
def test_files_of_this_library_never_cause_a_warning(tmp_path: Path, write: Any, glob: str) -> None:
    frame = pd.DataFrame({"x": range(60), "key": ["a", "b", "c"] * 20})
    ddf = dd.from_pandas(frame, npartitions=3)
    to_tfrecord(ddf, tmp_path, **write)
    to_tfrecord(ddf.partitions[0], tmp_path, append=True, **write)
    keywords: dict[str, Any] = {"split": "all"} if glob.startswith("split") else {}
    for use_snapshot in (True, False):
        read_tfrecord(tmp_path, filters=[("key", "==", "a")], use_snapshot=use_snapshot, **keywords)
    read_tfrecord(tmp_path / glob, **keywords)
    shutil.rmtree(tmp_path / "_tfrecord")
    read_tfrecord(tmp_path, filters=[("key", "==", "a")], **keywords)
