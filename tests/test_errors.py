"""An error says what, where and what to do, wherever it is read."""

import pickle

import pytest

from dask_tfrecord.errors import (
    ConcurrentWriteError,
    CorruptRecordError,
    DestinationError,
    SchemaError,
    TFRecordError,
)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "is wrong"),
        ({"path": "a/b.tfrecord"}, "a/b.tfrecord: is wrong"),
        ({"record": 1234567}, "record 1,234,567: is wrong"),
        ({"offset": 0}, "byte 0: is wrong"),
        ({"record": 0, "offset": 4096}, "record 0 (byte 4,096): is wrong"),
        ({"feature": "age"}, "feature 'age': is wrong"),
        ({"advice": "pass schema="}, "is wrong; pass schema="),
        (
            {"path": "p", "record": 17, "offset": 4096, "feature": "age", "advice": "mend it"},
            "p, record 17 (byte 4,096): feature 'age': is wrong; mend it",
        ),
    ],
)
def test_message_is_a_sentence_with_the_known_parts_of_the_place(place: dict[str, object], text: str) -> None:
    assert str(TFRecordError("is wrong", **place)) == text


@pytest.mark.parametrize("kind", [TFRecordError, CorruptRecordError, SchemaError, DestinationError])
def test_error_survives_the_way_from_a_worker(kind: type[TFRecordError]) -> None:
    place = {"path": "p", "record": 3, "offset": 7, "feature": "x", "advice": "do"}
    error = pickle.loads(pickle.dumps(kind("is wrong", **place)))
    assert type(error) is kind
    assert {name: getattr(error, name) for name in ("problem", *place)} == {"problem": "is wrong", **place}
    assert str(error) == str(kind("is wrong", **place))


@pytest.mark.parametrize("kind", [TFRecordError, CorruptRecordError, SchemaError, ConcurrentWriteError])
def test_a_repr_says_what_the_message_says(kind: type[TFRecordError]) -> None:
    """Logs of workers show an error by its repr."""
    error = kind("is wrong", path="p", record=3, offset=7, feature="x", advice="mend it")
    for one in (error, pickle.loads(pickle.dumps(error)), error.located(path="q")):
        assert repr(one) == f"{kind.__name__}({str(error)!r})"


def test_located_fills_in_only_what_was_not_known() -> None:
    error = CorruptRecordError("is wrong", record=0, offset=0).located(path="p", record=9, offset=9)
    assert type(error) is CorruptRecordError
    assert (error.path, error.record, error.offset) == ("p", 0, 0)


def test_every_error_is_a_value_error() -> None:
    """As Dask and pandas raise for data that cannot be read."""
    assert issubclass(TFRecordError, ValueError)
    for kind in (CorruptRecordError, SchemaError, DestinationError):
        assert issubclass(kind, TFRecordError)
