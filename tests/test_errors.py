"""An error says what is wrong, where, and what to do: in its message, its repr and after pickling.

Modules: errors, keywords.public_functions.
"""

import copy
import pickle
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import (
    Call,
    ConcurrentWriteError,
    CorruptRecordError,
    FileRemovedError,
    Remedy,
    SchemaError,
    TFRecordError,
    literal,
    located,
)
from dask_tfrecord.keywords.public_functions import calling


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "is wrong"),
        ({"path": "a/b.tfrecord"}, "a/b.tfrecord: is wrong"),
        ({"record": 1234567}, "record 1,234,567: is wrong"),
        ({"offset": 0}, "byte 0: is wrong"),
        ({"feature": "age"}, "feature 'age': is wrong"),
        ({"advice": "pass schema="}, "is wrong; pass schema="),
        (
            {"path": "p", "record": 17, "offset": 4096, "feature": "age", "advice": "mend it"},
            "p, record 17 (byte 4,096): feature 'age': is wrong; mend it",
        ),
    ],
)
def test_a_message_has_the_file_record_and_offset_if_known(place: dict[str, object], text: str) -> None:
    assert str(TFRecordError("is wrong", **place)) == text


def test_a_missing_snapshot_names_the_call_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        Snapshot.open(tmp_path)
    error = pickle.loads(pickle.dumps(raised.value))
    assert error.calls == (Call("add_snapshot", str(tmp_path), {}, "to make a snapshot"),)
    assert (
        f"no snapshot; check the path, or call dask_tfrecord.open_dataset('{tmp_path}').add_snapshot() to"
        in str(error)
    )


@pytest.mark.parametrize("kind", [TFRecordError, CorruptRecordError, FileRemovedError, ConcurrentWriteError])
def test_an_error_survives_the_way_from_a_worker_and_its_repr_says_what_the_message_says(
    kind: type[TFRecordError],
) -> None:
    """The logs of workers show the repr of an error. Dask and pandas raise ValueError for unreadable data."""
    fields = {"path": "p", "record": 3, "offset": 7, "feature": "x", "advice": "mend it"}
    error = kind("is wrong", **fields)
    assert isinstance(error, ValueError)
    for one in (error, pickle.loads(pickle.dumps(error)), error.replaced(path="p"), copy.deepcopy(error)):
        assert type(one) is kind
        assert {name: getattr(one, name) for name in fields} == fields
        assert repr(one) == f"{kind.__name__}({str(error)!r})"


def test_python_may_add_notes_causes_and_tracebacks_to_an_error() -> None:
    cause = KeyError("x")
    with pytest.raises(SchemaError) as caught:
        raise SchemaError("is wrong") from cause
    error = caught.value
    error.add_note("seen by the caller")
    assert error.__cause__ is cause
    assert error.__notes__ == ["seen by the caller"]
    assert error.with_traceback(None).__traceback__ is None


def test_copies_leave_the_error_as_it_was() -> None:
    error = CorruptRecordError("is wrong", record=0)
    changed = error.replaced(record=5, advice="mend it")
    assert (changed.record, changed.advice, str(error)) == (5, "mend it", "record 0: is wrong")
    assert error.fields() == copy.copy(error).fields()


SKIP = Remedy("on_corrupt", "skip", "read the others")
TYPE = Remedy("schema", {"a": pa.list_(pa.float32()), "b": None}, "read both")


def read(path: str, on_corrupt: str) -> None:
    with calling(read):
        raise pickle.loads(pickle.dumps(SchemaError("is wrong", advice="mend it", remedies=[SKIP, TYPE])))


def test_a_message_shows_the_remedies_and_which_function_has_them() -> None:
    text = 'schema={"a": pa.list_(pa.float32()), "b": None} to read both'
    error = SchemaError("is wrong", advice="mend it", remedies=[SKIP, TYPE])
    assert str(error) == (
        f'is wrong; mend it, or pass on_corrupt="skip" to read_tfrecord to read the others, or {text}'
    )
    with pytest.raises(SchemaError) as caught:
        read("p", "raise")
    assert (caught.value.remedies, caught.value.other_remedies) == ((SKIP,), (TYPE,))
    assert str(caught.value) == (
        f'is wrong; mend it, or pass on_corrupt="skip" to read the others; read_tfrecord takes {text}'
    )


def test_remedies_to_be_passed_together_are_accepted_together() -> None:
    both = SchemaError(
        "is wrong", remedies=[Remedy("use_snapshot", False), Remedy("infer", "all", "see all")]
    )
    assert 'pass use_snapshot=False and infer="all" to read_tfrecord to see all' in str(both)
    assert both.called_as("take", lambda remedy: remedy.keyword == "infer").remedies == ()


def test_a_write_has_no_remedy_of_a_read() -> None:
    """`to_tfrecord` also has a keyword ``schema``, for the columns that it writes."""

    def to_tfrecord(schema: object) -> None:
        with calling(to_tfrecord):
            raise SchemaError("is wrong", TYPE, function="read_tfrecord")

    to_tfrecord.__qualname__ = "to_tfrecord"
    with pytest.raises(SchemaError, match="wrong; read_tfrecord takes schema="):
        to_tfrecord(None)


SCALARS = [pa.int8(), pa.bool_(), pa.float16(), pa.float64(), pa.date64(), pa.time32("s"), pa.time64("ns")]
SCALARS += [pa.timestamp("us", "Europe/Zurich"), pa.timestamp("s"), pa.duration("ms"), pa.decimal128(9, 2)]
SCALARS += [pa.decimal256(40, 2), pa.binary(4), pa.large_binary(), pa.null()]
NESTED = [pa.list_(pa.large_string()), pa.large_list(pa.list_(pa.binary())), pa.list_(pa.float32(), 3)]
NESTED += [pa.fixed_shape_tensor(pa.int32(), [2, 2]), pa.dictionary(pa.int32(), pa.string(), ordered=True)]


@pytest.mark.parametrize("type_", [*SCALARS, *NESTED], ids=str)
def test_the_code_of_a_type_makes_the_type(type_: pa.DataType) -> None:
    assert eval(literal({"x": pa.list_(type_)}), {"pa": pa}) == {"x": pa.list_(type_)}


def test_located_fills_in_only_what_was_not_known_and_counts_records_from_the_first() -> None:
    with pytest.raises(CorruptRecordError) as caught, located(path="p", record=9, offset=9):
        raise CorruptRecordError("is wrong", record=0, offset=0)
    error = caught.value
    assert (error.path, error.record, error.offset) == ("p", 0, 0)
    with pytest.raises(SchemaError, match="t, record 105: is wrong"), located(first=100, path="t"):
        raise SchemaError("is wrong", record=5, path="p")


def test_a_public_function_adds_the_path_unless_the_error_is_about_a_keyword(tmp_path: Path) -> None:
    frame = pd.DataFrame({0: [1]})
    for path in (tmp_path / "x", f"file://{tmp_path}/x"):
        with pytest.raises(SchemaError, match="column names must be strings") as caught:
            to_tfrecord(frame, path)
        assert (caught.value.path, caught.value.keyword) == (str(path), None)
    with pytest.raises(TFRecordError, match=r"^append=True keeps the existing data") as raised:
        to_tfrecord(frame, tmp_path / "x", append=True, overwrite=True)
    assert (raised.value.path, raised.value.keyword) == (None, "append")
