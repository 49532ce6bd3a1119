"""Random frames cast to random types: each value is read back equal, or the write raises and names it.

Modules: collection.frames.pandas_to_arrow.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cast_table import OBJECTS, SOURCES, TARGETS, Value, array_of
from hypothesis import given, reject
from hypothesis import strategies as st

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.schema.logical_types import canonical_type

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:Dask.s dataframe.convert-string:UserWarning"),
]

_PLAIN = [type_ for type_ in TARGETS if not pa.types.is_dictionary(type_)]
_FINITE = st.floats(allow_nan=False, allow_infinity=False)


def _more_values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """More values than the table has, for types with many values."""
    if pa.types.is_integer(type_):
        limits = np.iinfo(type_.to_pandas_dtype())
        return st.integers(int(limits.min), int(limits.max))
    if pa.types.is_float64(type_):
        return _FINITE | st.integers(-1000, 1000).map(lambda n: n / 8)
    if pa.types.is_string(type_):
        return st.text(max_size=4) | st.integers().map(str) | _FINITE.map(str)
    if pa.types.is_binary(type_):
        return st.binary(max_size=3) | st.text(max_size=2).map(str.encode)
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        return st.integers(-(2**50), 2**50) | st.integers(-400, 400).map(lambda day: day * 86_400)
    return st.nothing()


@st.composite
def columns(draw: Callable[..., Any], rows: int) -> tuple[pa.Array, pa.DataType | None]:
    """A column of one type, and perhaps another type for ``schema=``."""
    type_, values = draw(st.sampled_from(SOURCES))
    some = st.none() | st.sampled_from(values) | _more_values(type_)
    found = [array_of(draw(some), type_).slice(1) for _ in range(rows)]
    target = draw(st.none() | st.sampled_from(_PLAIN))
    return pa.concat_arrays(found), target


def _write_and_read(frame: pd.DataFrame, cuts: int, **options: Any) -> pa.Table:
    pieces = np.array_split(np.arange(len(frame)), cuts)
    ddf = dd.from_map(lambda rows: frame.iloc[rows], pieces, meta=frame.iloc[:0])
    with TemporaryDirectory() as place:
        path = Path(place) / "data"
        to_tfrecord(ddf, path, lossy="raise", **options)
        found = read_tfrecord(path).compute()
    table = {name: pa.array(found[name]) for name in found.columns}
    return pa.table(table).sort_by("row")


@given(data=st.data(), rows=st.integers(1, 6), cuts=st.integers(1, 3), shuffle=st.booleans())
def test_any_frame_comes_back_equal_or_is_refused_for_a_reason(
    data: st.DataObject, rows: int, cuts: int, shuffle: bool
) -> None:
    drawn = {f"c{number}": data.draw(columns(rows)) for number in range(data.draw(st.integers(1, 3)))}
    arrays = {name: pd.Series(pd.arrays.ArrowExtensionArray(array)) for name, (array, _) in drawn.items()}
    frame = pd.DataFrame({"row": np.arange(rows), **arrays})
    schema = {name: target for name, (_, target) in drawn.items() if target is not None}
    keys = data.draw(st.lists(st.sampled_from([*drawn]), unique=True, max_size=1))
    options = {"schema": schema, "shuffle": shuffle, "partition_on": keys or None}
    try:
        table = _write_and_read(frame, cuts, **options)
    except OverflowError:  # pandas 2 cannot concatenate dates beyond those of Python
        assert pd.__version__ < "3"
        reject()
    except SchemaError as error:
        name = error.feature
    else:
        for name, (array, target) in drawn.items():
            found = table[name].combine_chunks()
            assert found.type == canonical_type(target or array.type)
            for row in range(rows):
                assert array[row].is_valid == found[row].is_valid
                assert not array[row].is_valid or Value(array, row).equals(Value(found, row))
        return
    assert name in drawn
    alone = frame[["row", name]]
    one_type = {name: schema[name]} if name in schema else None
    one_key = [name] if name in keys else None
    refused = 0
    for row in range(rows):
        try:
            _write_and_read(alone.iloc[[row]], 1, schema=one_type, partition_on=one_key)
        except SchemaError:
            refused += 1
    assert refused


@given(st.lists(st.none() | st.sampled_from(OBJECTS), min_size=1, max_size=4), st.integers(1, 2))
def test_any_objects_come_back_equal_or_are_refused(values: list[Any], cuts: int) -> None:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    frame = pd.DataFrame({"row": np.arange(len(values)), "x": pd.Series(column, dtype=object)})
    pieces = [frame.iloc[rows] for rows in np.array_split(np.arange(len(frame)), cuts)]
    with dask_objects():
        ddf = dd.from_map(lambda piece: piece, pieces, meta=frame.iloc[:0])
    with TemporaryDirectory() as place:
        try:
            to_tfrecord(ddf, f"{place}/data", lossy="raise")
        except SchemaError:
            return
        table = pa.Table.from_pandas(
            read_tfrecord(f"{place}/data", dtype_backend="pyarrow").compute(), preserve_index=False
        )
    found = table.sort_by("row")["x"].combine_chunks()
    for row, value in enumerate(values):
        assert found[row].is_valid == (value is not None)
        assert value is None or Value(found, row).is_object(value)


def dask_objects() -> Any:
    """Switch off Dask's conversion of objects to text."""
    return dask.config.set({"dataframe.convert-string": False})
