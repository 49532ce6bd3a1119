"""Run Apache Beam on its local runner. google.protobuf creates and parses the Examples for Beam."""

import logging
from functools import partial
from typing import Any

from benchmarks.peer_jobs import Pass, Ways, Work
from benchmarks.peer_jobs.protobuf import example_class, parsed, serialized

logging.disable(logging.WARNING)
_example_classes: list[Any] = []

# The runner's threads share these variables with this module.
_counts: list[int] = []
_rows: list[dict[str, Any]] = []


def _example() -> Any:
    """Return the class of Example messages, which Beam cannot send to its threads."""
    if not _example_classes:
        _example_classes.append(example_class())
    return _example_classes[0]


def _source(_: Any) -> list[dict[str, Any]]:
    return _rows


def _serialize(row: dict[str, Any], features: dict[str, list[Any]]) -> bytes:
    return serialized(row, _example(), features)


def _parse(record: bytes, columns: list[str], features: dict[str, list[Any]]) -> dict[str, Any]:
    return parsed(record, _example(), columns, features)


def _pipeline() -> Any:
    import apache_beam as beam

    # This runner is named because the default local runner is a program that Beam would download.
    return beam.Pipeline(runner="FnApiRunner")


def _counted(work: Work, *steps: Any) -> int:
    """Read the files, apply the steps, and return the number of elements that come out."""
    import apache_beam as beam

    _counts.clear()
    with _pipeline() as pipeline:
        elements = pipeline | beam.io.ReadFromTFRecord(f"{work.root}/{work.files}/part-*")
        for step in steps:
            elements |= step
        elements | beam.combiners.Count.Globally() | beam.Map(_collect)
    return sum(_counts)


def _collect(number: int) -> None:
    _counts.append(number)


def read(work: Work) -> Pass:
    import apache_beam as beam

    step = partial(_parse, columns=work.columns, features=work.features)
    return lambda _: _counted(work, "Parse" >> beam.Map(step))


def count(work: Work) -> Pass:
    return lambda _: _counted(work)


def write(work: Work) -> Pass:
    import apache_beam as beam

    rows = work.python_rows()
    step = partial(_serialize, features=work.features)
    suffix = ".tfrecord.gz" if work.codec else ".tfrecord"

    def write_all(path: str) -> int:
        _rows[:] = rows
        with _pipeline() as pipeline:
            # Beam compresses and sends the elements of a Create, but these rows stay in this process.
            start = pipeline | beam.Create([None], reshuffle=False)
            records = start | beam.FlatMap(_source) | beam.Map(step)
            records | beam.io.WriteToTFRecord(f"{path}/part", file_name_suffix=suffix)
        return len(rows)

    return write_all


WAYS: Ways = {"": {"read": read, "count": count, "write": write}}
