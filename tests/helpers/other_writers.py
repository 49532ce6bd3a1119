"""Files of other writers, and the arguments that an error advises."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from oracle import Feature, Record

from dask_tfrecord import TFRecordError, read_tfrecord

_Field = descriptor_pb2.FieldDescriptorProto


def _classes() -> tuple[Any, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="others.proto", package="others", syntax="proto3")
    many, one = _Field.LABEL_REPEATED, _Field.LABEL_OPTIONAL
    elwc = file.message_type.add(name="ExampleListWithContext")
    elwc.field.add(name="examples", number=1, type=_Field.TYPE_BYTES, label=many)
    elwc.field.add(name="context", number=2, type=_Field.TYPE_BYTES, label=one)
    event = file.message_type.add(name="Event")
    event.field.add(name="wall_time", number=1, type=_Field.TYPE_DOUBLE, label=one)
    event.field.add(name="step", number=2, type=_Field.TYPE_INT64, label=one)
    event.field.add(name="file_version", number=3, type=_Field.TYPE_STRING, label=one)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"others.{name}") for name in ("ExampleListWithContext", "Event"))
    example_list, event_class = map(message_factory.GetMessageClass, found)
    return example_list, event_class


ExampleListWithContext, Event = _classes()

Features = dict[str, tuple[str | None, list[Any]]]


def example(features: Features) -> bytes:
    return oracle.serialize(Record({name: Feature(*one) for name, one in features.items()}))


def elwc(examples: Iterable[Features], context: Features | None = None) -> bytes:
    message = ExampleListWithContext(examples=[example(one) for one in examples])
    if context is not None:
        message.context = example(context)
    payload: bytes = message.SerializeToString()
    return payload


def events(count: int) -> bytes:
    found = [Event(wall_time=1.7e9, file_version="brain.Event:2")]
    found += [Event(wall_time=1.7e9 + step, step=step) for step in range(1, count)]
    return oracle.records_file([one.SerializeToString() for one in found])


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def advised(error: TFRecordError) -> dict[str, Any]:
    """The arguments of an error's first remedy."""
    found = {}
    for remedy in error.remedies or error.other_remedies:
        found[remedy.keyword] = remedy.value
        if remedy.effect:
            break
    assert found, error
    return found


def hide(error: TFRecordError) -> None:
    """Hide the file that an error is about, as its advice says."""
    assert error.advice is not None
    assert 'a name that begins with "_"' in error.advice
    path = Path(str(error.path))
    path.rename(path.with_name(f"_{path.name}"))


def read(path: Any, **options: Any) -> dict[str, list[Any]]:
    """Read all rows, as the oracle represents values."""
    frame = read_tfrecord(path, **options).compute(scheduler="sync")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return {
        name: [oracle.canonical(value) for value in table[name].to_pylist()] for name in table.column_names
    }


def features_of(row: dict[str, Any]) -> dict[str, tuple[str, list[Any]]]:
    """The features of a record whose values show their kinds."""
    kinds = {bytes: "bytes", float: "float", int: "int64"}
    return {
        name: (
            kinds[type(values[0])],
            [oracle.float_bits(one) if isinstance(one, float) else one for one in values],
        )
        for name, values in row.items()
    }
