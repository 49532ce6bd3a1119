"""Files of other writers: all values are read, or the error's advice reads them in one step.

Modules: dataset.read.discovery, dataset.read.layouts.
"""

from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from inferred import file_of, sequence_file
from oracle import Feature, Record, block
from other_writers import advised, elwc, events, fill, hide, read

from dask_tfrecord import CorruptRecordError, SchemaError, Snapshot, index, read_tfrecord, verify
from dask_tfrecord.dataset.read.discovery import open_dataset

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = oracle.features_file([{"a": ("int64", [1])}])


# --- a sample that shows no feature --------------------------------------------------------------------

EMPTY = oracle.frame(b"")


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_features_of_records_between_empty_ones_are_read(tmp_path: Path, compression: str | None) -> None:
    files = {f"{n:02d}": EMPTY * 3 for n in range(40)} | {"17": EMPTY * 2 + ONE}
    fill(tmp_path, {name: oracle.compress(content, compression) for name, content in files.items()})
    assert [one for one in read(tmp_path)["a"] if one is not None] == [1]
    assert len(read_tfrecord(tmp_path)) == 120


@pytest.fixture
def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample no additional files, as in a very large dataset."""
    monkeypatch.setattr("dask_tfrecord.dataset.read.sample._MORE_BYTES", 0)


@pytest.mark.usefixtures("_blind")
@pytest.mark.parametrize("record_type", ["infer", "example", "sequence_example"])
@pytest.mark.parametrize("blocksize", ["128 MiB", 20])
@pytest.mark.parametrize("folder", ["", "day=1/"])
def test_features_that_no_sampled_record_holds_raise(
    tmp_path: Path, record_type: Any, blocksize: Any, folder: str
) -> None:
    fill(tmp_path, {f"{folder}{n:02d}": EMPTY * 3 for n in range(40)} | {f"{folder}17": EMPTY * 2 + ONE})
    options = {"record_type": record_type, "blocksize": blocksize}
    ddf = read_tfrecord(tmp_path, **options)
    with pytest.raises(SchemaError, match="the record has this feature, the schema does not") as caught:
        ddf.compute()
    assert (caught.value.path, caught.value.record) == (f"{tmp_path}/{folder}17", 2)
    assert [one for one in read(tmp_path, **options, **advised(caught.value))["a"] if one] == [1]
    assert len(read_tfrecord(tmp_path, **options, extra="ignore").compute()) == 120


@pytest.mark.usefixtures("_blind")
def test_feature_lists_that_no_sampled_record_holds_raise(tmp_path: Path) -> None:
    empty = oracle.frame(oracle.serialize(Record(), "sequence_example"))
    steps = sequence_file(Record({}, {"s": [Feature("int64", [1, 2]), Feature("int64", [])]}))
    fill(tmp_path, {f"{n:02d}": empty * 3 for n in range(40)} | {"17": steps})
    with pytest.raises(SchemaError) as caught:
        read_tfrecord(tmp_path).compute()
    assert [one for one in read(tmp_path, **advised(caught.value))["s"] if one] == [[[1, 2], []]]


@pytest.mark.parametrize("files", [{"a": EMPTY * 3}, {"a": b""}, {"a": EMPTY, "b": b"", "k=1/c": EMPTY}])
def test_files_without_any_feature_have_a_snapshot(tmp_path: Path, files: dict[str, bytes]) -> None:
    snapshot = index(fill(tmp_path, files))
    count = sum(len(content) // 16 for content in files.values())
    assert snapshot.records == Snapshot.open(tmp_path).records == count
    assert len(read_tfrecord(tmp_path).compute()) == len(read_tfrecord(tmp_path)) == count


# --- other messages ------------------------------------------------------------------------------------

RANKING = [
    elwc([{"relevance": ("int64", [n]), "tokens": ("bytes", [b"some", b"words"])}] * 2, {"q": ("int64", [n])})
    for n in range(5)
]


@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_lists_of_examples_are_read_as_bytes_and_that_is_said(
    tmp_path: Path, several: bool, context: bool
) -> None:
    one = {"relevance": ("int64", [1]), "price": ("float", [oracle.float_bits(2.0)])}
    payloads = [elwc([one] * (3 if several else 1), {"q": ("bytes", [b"x"])} if context else None)] * 4
    fill(tmp_path, {"a.tfrecord": oracle.records_file(payloads), "b.tfrecord": oracle.records_file(payloads)})
    with pytest.warns(
        UserWarning,
        match=r"read as bytes: .*record 0 is a message of another type; pass record_type=\"bytes\"",
    ):
        assert read(tmp_path) == {"record": payloads * 2}
    assert read(tmp_path, record_type="bytes") == {"record": payloads * 2}
    for record_type in ("example", "sequence_example"):
        with pytest.raises(
            CorruptRecordError, match=r'this undamaged record is not an Example.*record_type="bytes"'
        ):
            read(tmp_path, record_type=record_type)
    assert verify(tmp_path)["drift"].str.contains("read as bytes: .* of another type").tolist() == [
        True,
        True,
    ]


def test_event_files_alone_are_read_as_bytes_and_that_is_said(tmp_path: Path) -> None:
    fill(tmp_path, {"events.out.tfevents.1.host": events(9)})
    with pytest.warns(UserWarning, match="read as bytes"):
        assert read(tmp_path) == {"record": oracle.frames(events(9))}


OTHERS = {
    "events": ("events.out.tfevents.17.host", events(9)),
    "ranking": ("ranking.spec", oracle.records_file(RANKING)),
    "no message": ("notes.rec", oracle.records_file([b"no message"])),
    "text": ("README.tex", b"# Data\n\nSome text.\n"),
    "csv": ("labels.csv.tfrecord", b"a,b\n1,2\n"),
    "json at the end": ("z.conf", b'{"name": "x"}'),
}


NAMES = ["train-{:02d}.tfrecord", "part-{:05d}", "{:02d}", "x.tfrecord-{:05d}-of-00040", "{:02d}.gz"]
FOLDERS = ["", "logs/", "zzz/deep/"]


@pytest.mark.parametrize(
    ("other", "names", "where"),
    [
        (other, NAMES[number % len(NAMES)], FOLDERS[number % len(FOLDERS)])
        for number, other in enumerate(OTHERS)
    ],
)
def test_another_file_beside_examples_is_named_and_can_be_hidden(
    tmp_path: Path, other: str, names: str, where: str
) -> None:
    name, content = OTHERS[other]
    fill(tmp_path, {names.format(n): ONE for n in range(40)} | {where + name: content})
    with pytest.raises(CorruptRecordError) as caught:
        read_tfrecord(tmp_path).compute()
    error = caught.value
    assert (error.path, error.record, error.offset) == (f"{tmp_path}/{where}{name}", 0, 0)
    whole = other in ("events", "ranking", "no message")
    assert error.problem.startswith("the file is a TFRecord file" if whole else "not a TFRecord file")
    assert ('record_type="bytes"' in str(error)) == whole
    report = verify(tmp_path).set_index("path")
    assert report.loc[error.path, "damaged"] > 0
    assert report.drop(error.path)["damaged"].sum() == 0
    hide(error)
    assert read(tmp_path) == {"a": [1] * 40}


@pytest.mark.parametrize(
    "content", [block(2, block(1, b"v1")), b"crc\0\0\1", bytes(range(1, 60)), b"\xd0\xcf\x11\xe0" + bytes(50)]
)
def test_a_file_that_looks_like_nothing_known_is_named(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path, {f"train-{n:02d}.tfrecord": ONE for n in range(9)} | {"saved_model.pb": content})
    with pytest.raises(CorruptRecordError, match="check that it is a TFRecord file") as caught:
        read_tfrecord(tmp_path).compute()
    hide(caught.value)
    assert read(tmp_path) == {"a": [1] * 9}


@pytest.mark.parametrize("other", OTHERS)
def test_an_index_is_advised_to_hide_another_file(tmp_path: Path, other: str) -> None:
    name, content = OTHERS[other]
    fill(tmp_path, {f"train-{n:02d}.tfrecord": ONE for n in range(9)} | {name: content})
    with pytest.raises(CorruptRecordError) as caught:
        index(tmp_path)
    hide(caught.value)
    assert index(tmp_path).records == 9


def test_a_whole_record_among_others_that_is_no_example_is_called_so(tmp_path: Path) -> None:
    fill(tmp_path, {"a": ONE + oracle.frame(b"no message") + ONE})
    with pytest.raises(
        CorruptRecordError, match=r"record 1 .*this undamaged record is not an Example: malformed"
    ) as caught:
        read_tfrecord(tmp_path)
    assert advised(caught.value) == {"record_type": "bytes"}
    assert "on_corrupt" in str(caught.value)


def test_columns_of_a_record_of_feature_lists_only_are_null_in_what_looked_like_examples(
    tmp_path: Path,
) -> None:
    lists_only = sequence_file(Record({}, {"s": [Feature("int64", [1])]}))
    usual = file_of({"a": ("int64", [1]), "b": ("int64", [1])})
    fill(tmp_path, {f"{n:02d}": usual for n in range(40)} | {"17": lists_only})
    assert sorted(read(tmp_path, columns=["a"])["a"], key=str) == [1] * 39 + [None]


# --- what the sample did not show ----------------------------------------------------------------------


def taxi(rare: Any, files: int = 12) -> dict[str, bytes]:
    """Like the taxi trips of TFX: one column has a kind in only one record of one file."""
    usual = {"fare": ("float", [oracle.float_bits(1.5)]), "company": (None, []), "miles": ("int64", [1])}
    contents = {f"data_tfrecord-{n:05d}-of-{files:05d}": file_of(*[usual] * 50) for n in range(files)}
    contents[f"data_tfrecord-{files // 2 + 1:05d}-of-{files:05d}"] += file_of({**usual, "company": rare})
    return contents


RARE = [("int64", [7]), ("bytes", [b"text"]), ("bytes", [b"\0\1"]), ("float", [0]), ("int64", [7, 8])]


@pytest.mark.parametrize("rare", RARE, ids=str)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_column_that_is_null_in_the_sample_has_the_type_of_its_rare_value(
    tmp_path: Path, rare: Any, compression: str | None
) -> None:
    fill(tmp_path, {name: oracle.compress(content, compression) for name, content in taxi(rare).items()})
    found = read(tmp_path)["company"]
    assert (len(found), [one for one in found if one is not None]) == (
        601,
        [rare[1] if len(rare[1]) > 1 else rare[1][0]],
    )
    assert set(verify(tmp_path)["drift"]) == {""}


@pytest.mark.usefixtures("_blind")
@pytest.mark.parametrize("rare", RARE, ids=str)
def test_a_value_in_a_column_that_the_sample_showed_null_raises_with_advice_that_reads_it(
    tmp_path: Path, rare: Any
) -> None:
    fill(tmp_path, taxi(rare))
    with pytest.raises(
        SchemaError, match=f"the record holds {rare[0]}, the column is null because"
    ) as caught:
        read_tfrecord(tmp_path).compute()
    assert (caught.value.feature, caught.value.record) == ("company", 50)
    assert advised(caught.value) == {"infer": "all"}
    value = rare[1] if len(rare[1]) > 1 else rare[1][0]
    assert [one for one in read(tmp_path, infer="all")["company"] if one is not None] == [value]
    error = caught.value.replaced(remedies=caught.value.remedies[1:])
    assert [one for one in read(tmp_path, **advised(error))["company"] if one is not None] == [value]


def test_the_search_for_the_type_of_a_null_column_is_bounded(tmp_path: Path, opened: list[str]) -> None:
    fill(tmp_path, {f"{n:04d}": file_of({"null": (None, []), "a": ("int64", [1])}) for n in range(1000)})
    assert dict(zip(*_types(tmp_path), strict=True)) == {"a": pa.int64(), "null": pa.null()}
    assert 100 < len(opened) < 300
    opened.clear()
    fill(tmp_path, {f"{n:04d}": ONE for n in range(1000)})
    assert _types(tmp_path) == (["a"], [pa.int64()])
    assert len(opened) == 5


def _types(path: Path) -> tuple[list[str], list[pa.DataType]]:
    schema = open_dataset(path).schema.arrow
    return schema.names, schema.types


def test_all_columns_of_a_file_that_differ_are_named_at_once_and_read_in_one_step(tmp_path: Path) -> None:
    names = [f"f{n:02d}" for n in range(14)]
    usual = file_of({name: ("int64", [1]) for name in names})
    strange = file_of(*({name: ("int64", [1, 2])} for name in names), {"new": ("bytes", [b"x"])})
    fill(tmp_path, {f"{n:02d}": usual for n in range(40)} | {"17": usual + strange})
    with pytest.raises(SchemaError) as caught:
        read_tfrecord(tmp_path).compute()
    assert all(name in caught.value.problem or name == caught.value.feature for name in [*names, "new"])
    assert advised(caught.value) == {"infer": "all"}
    found = read(tmp_path, infer="all")
    assert all([2 in one for one in found[name] if one].count(True) == 1 for name in names)
    assert b"x" in found["new"]


def test_text_and_bytes_apart_are_read_in_one_step(tmp_path: Path) -> None:
    fill(tmp_path, {f"{n:02d}": file_of({"t": ("bytes", [b"text"])}) for n in range(40)})
    (tmp_path / "17").write_bytes(file_of({"t": ("bytes", [b"\xff"])}))
    with pytest.raises(SchemaError, match="not valid UTF-8") as caught:
        read_tfrecord(tmp_path).compute()
    assert b"\xff" in read(tmp_path, **advised(caught.value))["t"]


# --- two kinds in one column ---------------------------------------------------------------------------

KINDS = [
    file_of({"a": ("int64", [1]), "good": ("int64", [5])}),
    file_of({"a": ("bytes", [b"1"]), "good": ("int64", [5])}),
]
PLACES = [
    sequence_file(Record({"a": Feature("int64", [1]), "good": Feature("int64", [5])})),
    sequence_file(Record({"good": Feature("int64", [5])}, {"a": [Feature("int64", [1])]})),
]


@pytest.mark.parametrize("where", ["in the sample", "outside of it"])
@pytest.mark.parametrize("pair", [KINDS, PLACES], ids=["kinds", "places"])
@pytest.mark.parametrize("infer", ["sample", "all"])
def test_a_column_that_nothing_can_read_blocks_no_other(
    tmp_path: Path, infer: Any, pair: list[bytes], where: str
) -> None:
    one, other = pair
    fill(tmp_path, {f"{n:02d}": one for n in range(40)} | {"00" if where == "in the sample" else "17": other})
    assert read(tmp_path, columns=["good"], infer=infer) == {"good": [5] * 40}
    assert read_tfrecord(tmp_path, columns="good", infer=infer).compute().tolist() == [5] * 40
    left_out = read_tfrecord(tmp_path, schema={"a": None}, infer=infer)
    assert list(left_out.columns) == ["good"]
    assert left_out.compute()["good"].tolist() == [5] * 40
    with pytest.raises(SchemaError) as caught:
        read_tfrecord(tmp_path, infer=infer).compute()
    assert caught.value.feature == "a"
    assert len(read(tmp_path, **{"infer": infer} | advised(caught.value))["good"]) == 40


def test_a_column_that_nothing_can_read_is_no_filter(tmp_path: Path) -> None:
    fill(tmp_path, dict(zip("ab", KINDS, strict=True)))
    with pytest.raises(SchemaError, match="holds int64 here and bytes in") as caught:
        read_tfrecord(tmp_path, columns=["good"], filters=[("a", "==", 1)])
    assert caught.value.feature == "a"


def test_a_column_that_nothing_can_read_blocks_no_filter_of_another(tmp_path: Path) -> None:
    fill(tmp_path, dict(zip("ab", KINDS, strict=True)))
    for filters in ([("good", ">", 1)], pc.field("good") > 1):
        assert read(tmp_path, columns=["good"], filters=filters) == {"good": [5, 5]}
    with pytest.raises(SchemaError, match="holds int64 here and bytes in"):
        read_tfrecord(tmp_path, columns=["good"], filters=pc.field("a") == 1)


def test_two_kinds_outside_the_sample_are_called_so_and_the_advice_does_not_change(tmp_path: Path) -> None:
    one, other = KINDS
    fill(tmp_path, {f"{n:02d}": one for n in range(40)} | {"17": other})
    with pytest.raises(SchemaError, match="no type reads values of two kinds") as caught:
        read_tfrecord(tmp_path).compute()
    assert advised(caught.value) == {"schema": {"a": None}}
    with pytest.raises(SchemaError, match=r"holds int64 here and bytes in .*/17, record 0") as caught:
        read_tfrecord(tmp_path, infer="all")
    assert advised(caught.value) == {"schema": {"a": None}}


def test_all_columns_of_two_kinds_are_named_at_once(tmp_path: Path) -> None:
    names = [f"f{n}" for n in range(9)]
    fill(
        tmp_path,
        {
            k: file_of({name: (k, [0 if k == "float" else 1]) for name in names} | {"good": ("int64", [1])})
            for k in ("int64", "float")
        },
    )
    with pytest.raises(SchemaError) as caught:
        read_tfrecord(tmp_path)
    assert advised(caught.value) == {"schema": dict.fromkeys(names)}
    assert read(tmp_path, **advised(caught.value)) == {"good": [1, 1]}


def test_a_key_that_is_a_feature_too_blocks_no_other_column(tmp_path: Path) -> None:
    fill(tmp_path, {"day=1/a": file_of({"day": ("int64", [2]), "good": ("int64", [5])})})
    with pytest.raises(SchemaError, match="day"):
        read_tfrecord(tmp_path)
    assert read(tmp_path, columns=["good"]) == {"good": [5]}
    assert read(tmp_path, schema={"day": None}) == {"good": [5]}


def test_an_index_without_a_column_that_nothing_can_read(tmp_path: Path) -> None:
    one, other = KINDS
    fill(tmp_path, {"a": one, "b": other})
    with pytest.raises(SchemaError) as caught:
        index(tmp_path)
    index(tmp_path, **advised(caught.value))
    assert read(tmp_path) == {"good": [5, 5]}


# --- the schema of another dataset ---------------------------------------------------------------------


def test_test_files_are_read_with_the_schema_of_the_training_files(tmp_path: Path) -> None:
    train = fill(tmp_path / "train", {"a": file_of({"x": ("int64", [1, 2]), "t": ("bytes", [b"a"])}, {})})
    test = fill(
        tmp_path / "test",
        {"a": file_of({"x": ("int64", [1]), "t": ("bytes", [b"\xff"]), "y": ("int64", [1])})},
    )
    assert open_dataset(test).schema.arrow.field("x").type == pa.int64()
    snapshot = index(train, schema={"t": pa.binary()})
    for schema in (snapshot, snapshot.schema, snapshot.columns):
        ddf = read_tfrecord(test, schema=schema)
        assert list(ddf.columns) == snapshot.columns.names
        assert ddf.compute()["x"].tolist() == [[1]]
        assert ddf.compute()["t"].tolist() == [b"\xff"]
