"""Run Apache Beam on its local runner. google.protobuf creates and parses the Examples for Beam."""

import logging
from functools import partial
from typing import Any

from benchmarks.peers.tools import Pass, Used, Ways, Work
from benchmarks.peers.tools.protobuf import Serializer, example_class, parsed

USED = (
    Used(
        "`ReadFromTFRecord` and `WriteToTFRecord` with google-crc32c; Examples as in the loop with protobuf",
        "https://beam.apache.org/releases/pydoc/current/apache_beam.io.tfrecordio.html",
    ),
    Used(
        "the local runner in one process, which was faster than its threads and its processes; a pipeline "
        "takes 0.1 to 0.2 CPU seconds before its first row, so that 3,906 rows of tabular were written at "
        "17 thousand rows per CPU second (2 thousand with two processes), and 62,500 rows at 52 thousand",
        "https://beam.apache.org/documentation/runners/direct/",
    ),
)

logging.getLogger("apache_beam").setLevel(logging.ERROR)
_example_classes: list[Any] = []
_serializers: list[Serializer] = []

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


def _serialize(row: dict[str, Any]) -> bytes:
    return _serializers[0](row)


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
    suffix = ".tfrecord.gz" if work.codec else ".tfrecord"

    def write_all(path: str) -> int:
        _rows[:] = rows
        _serializers[:] = [Serializer(_example(), work.features, work.row_bytes())]
        with _pipeline() as pipeline:
            # Beam compresses and sends the elements of a Create, but these rows stay in this process.
            start = pipeline | beam.Create([None], reshuffle=False)
            records = start | beam.FlatMap(_source) | beam.Map(_serialize)
            records | beam.io.WriteToTFRecord(f"{path}/part", file_name_suffix=suffix)
        return len(rows)

    return write_all


WAYS: Ways = {"": {"read": read, "count": count, "write": write}}
