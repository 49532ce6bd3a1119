"""Every cast by `schema=` is exact, or refused with its row, or a rounding that `lossy=` allows."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cast_table import OBJECTS, SOURCES, TARGETS, Value, array_of

from dask_tfrecord.codec import Decoder, Encoder
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.frame import plan_schema, to_table
from dask_tfrecord.schema import Lossy, Schema


def through_records(frame: pd.DataFrame, type_: pa.DataType, lossy: Lossy) -> pa.Array:
    """The column "x" after a write as this type and a read."""
    schema = Schema.from_arrow(pa.schema([("x", type_)]), "sequence_example")
    table = to_table(frame, schema, write_index=False, lossy=lossy)
    table.validate(full=True)
    (batch,) = table.combine_chunks().to_batches()
    encoder = Encoder(schema.columns, schema.record_type)
    file = b"".join(bytes(view) for view in encoder.encode(schema.to_storage(batch, lossy=lossy)))
    decoded = Decoder(schema.columns, schema.record_type).decode(file, final=True)
    return schema.from_storage(decoded.batch).column(0)


def refused_or(frame: pd.DataFrame, type_: pa.DataType, lossy: Lossy = "raise") -> pa.Array | None:
    """What is read back; None if the write refuses the value of row 1."""
    try:
        return through_records(frame, type_, lossy)
    except SchemaError as error:
        where = (error.record, error.feature)
    assert where == (1, "x")
    return None


def backed_by_arrow(array: pa.Array) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(pd.arrays.ArrowExtensionArray(array))})


def outcome(frame: pd.DataFrame, before: Value, type_: pa.DataType, lossy: Lossy) -> str:
    found = refused_or(frame, type_, lossy)
    if found is None:
        return "refused"
    assert found.type == Schema.from_arrow(pa.schema([("x", type_)])).arrow.field("x").type
    assert not found[0].is_valid
    assert found[1].is_valid
    return "exact" if before.equals(Value(found, 1)) else "changed"


def objects(*values: Any) -> pd.DataFrame:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return pd.DataFrame({"x": pd.Series(column, dtype=object)})


@pytest.mark.parametrize("value", OBJECTS, ids=lambda v: f"{type(v).__name__} {v}")
def test_an_object_is_stored_as_an_equal_value_or_refused(value: Any) -> None:
    for target in TARGETS:
        found = refused_or(objects(None, value), target)
        assert found is None or Value(found, 1).is_object(value), target


def _all_of(partitions: list[pd.DataFrame], names: list[str]) -> Iterator[pd.DataFrame]:
    return (frame[names] for frame in partitions)


@pytest.mark.parametrize("one", OBJECTS, ids=lambda v: f"{type(v).__name__} {v}")
@pytest.mark.parametrize("together", [True, False], ids=["one partition", "two partitions"])
def test_objects_of_two_kinds_stay_equal_or_are_refused(one: Any, together: bool) -> None:
    for other in OBJECTS:
        partitions = [objects(one, other)] if together else [objects(one), objects(other)]
        try:
            schema = plan_schema(
                partitions[0].iloc[:0],
                schema=None,
                record_type="example",
                write_index=False,
                sample=partial(_all_of, partitions),
            )
            tables = [to_table(frame, schema, write_index=False, lossy="raise") for frame in partitions]
        except SchemaError:
            continue
        found = pa.concat_tables(tables)["x"].combine_chunks()
        assert Value(found, 0).is_object(one), other
        assert Value(found, 1).is_object(other), other


@pytest.mark.parametrize(("source", "values"), SOURCES, ids=lambda v: str(v)[:30])
def test_a_value_is_exact_or_refused(source: pa.DataType, values: list[Any]) -> None:
    found: Counter[str] = Counter()
    for value in values:
        array = array_of(value, source)
        before = Value(array, 1)
        for target in TARGETS:
            seen = outcome(backed_by_arrow(array), before, target, "raise")
            assert seen != "changed", f"{value!r} of {source} as {target}"
            found[seen] += 1
    print(source, dict(found))
