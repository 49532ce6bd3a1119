"""A read with ``dtype_backend=None`` gives the dtypes that were written.

Modules: schema.dtypes, collection.frames.arrow_to_pandas, dataset.write.append_schema.
"""

import datetime
import decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import SchemaError, Writer, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

ROWS = 5
NUMBERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
MASKED = ["Int8", "Int64", "UInt32", "Float32", "Float64"]
UNITS = ("s", "ms", "us", "ns")
DAYS = pd.Series(pd.date_range("2020", periods=ROWS))
HOURS = pd.Series(pd.timedelta_range("1h", periods=ROWS))

COLUMNS: dict[str, Any] = {
    **{name: np.arange(ROWS).astype(name) for name in (*NUMBERS, "float16", "float32", "float64")},
    **{name: pd.array([1, None, 3, 4, 5], dtype=name) for name in MASKED},
    **{f"datetime {unit}": DAYS.astype(f"M8[{unit}]") for unit in UNITS},
    **{f"timedelta {unit}": HOURS.astype(f"m8[{unit}]") for unit in UNITS},
    **{f"zone {zone}": DAYS.dt.tz_localize(zone) for zone in ("UTC", "Europe/Berlin")},
    "bool": np.array([True, False, True, True, False]),
    "boolean": pd.array([True, None, False, True, True], dtype="boolean"),
    "text": pd.Series(["a", None, "c", "", "e"], dtype="str"),
    "string": pd.Series(["a", None, "c", "", "e"], dtype="string[pyarrow]"),
    "string of Python": pd.Series(["a", None, "c", "", "e"], dtype="string[python]"),
    "NaT": pd.Series([pd.NaT, pd.Timestamp("2020"), pd.NaT, pd.NaT, pd.NaT]),
    "NaN": np.array([1, np.nan, 3, 4, 5], "float32"),
    "category": pd.Categorical(list("abcab")),
    "ordered category": pd.Categorical(list("abcab"), ordered=True),
    "category of numbers": pd.Categorical([1, 2, 3, 1, 2]),
    "Arrow": pd.array([1, None, 3, 4, 5], dtype="int64[pyarrow]"),
}
OBJECTS = {
    "date": [datetime.date(2020, 1, 1)] * ROWS,
    "decimal": [decimal.Decimal("1.00")] * ROWS,
    "bytes": [b"x", None, b"", b"y", b"z"],
    "list": [np.array([1, 2])] * ROWS,
    "int": [1, None, 3, 4, 5],
    "text": ["1", None, "", "d", "e"],
    "time": [datetime.time(1, 2)] * ROWS,
}


def as_written(path: Path, **options: Any) -> dd.DataFrame:
    return read_tfrecord(path, dtype_backend=None, **options)


def frame_of(values: Any, dtype: Any = None) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(values, dtype=dtype)})


@pytest.mark.parametrize("name", COLUMNS)
def test_dtype_backend_none_restores_each_dtype(name: str, tmp_path: Path) -> None:
    frame = frame_of(COLUMNS[name])
    ddf = dd.from_pandas(frame, npartitions=2)
    ddf.to_tfrecord(tmp_path / "dask", lossy="allow")
    to_tfrecord(frame, tmp_path / "pandas", lossy="allow")
    for path, expected in (("dask", ddf.compute()), ("pandas", frame)):
        found = as_written(tmp_path / path)
        rows = found.compute().reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, expected)
        if "category" not in name:
            assert found.dtypes["x"] == rows.dtypes["x"]


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_come_back_as_objects(name: str, tmp_path: Path) -> None:
    frame = frame_of(OBJECTS[name], object)
    with dask.config.set({"dataframe.convert-string": False}):
        dd.from_pandas(frame, npartitions=1).to_tfrecord(tmp_path, lossy="allow")
        pd.testing.assert_frame_equal(as_written(tmp_path).compute(), frame)


def test_the_index_and_partition_columns_have_their_dtypes(tmp_path: Path) -> None:
    index = pd.Index(np.arange(ROWS, dtype="int32"), name="id")
    frame = pd.DataFrame({"key": np.array([1, 1, 2, 2, 2], "int16"), "x": np.float32(1.5)}, index)
    to_tfrecord(frame, tmp_path, partition_on=["key"])
    pd.testing.assert_frame_equal(as_written(tmp_path).compute(), frame)
    loaded = as_written(tmp_path, index=False, columns=["id", "key"]).compute()
    assert loaded.dtypes.astype(str).to_dict() == {"id": "int32", "key": "int16"}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("int64", "int64", "int64"),
        ("int64", "Int64", "Int64"),
        ("bool", "boolean", "boolean"),
        ("float32", "Float32", "Float32"),
        ("int64", "int64[pyarrow]", "int64[pyarrow]"),
        ("int64[pyarrow]", "int64", "int64[pyarrow]"),
    ],
)
def test_an_append_gives_the_dtype_that_holds_both(
    first: str, second: str, expected: str, tmp_path: Path
) -> None:
    for dtype in (first, second):
        to_tfrecord(frame_of([0, 1], dtype), tmp_path, append=True)
    assert str(as_written(tmp_path).dtypes["x"]) == expected
    assert [*as_written(tmp_path).compute()["x"]] == [0, 1, 0, 1]
    dask_tfrecord.open_dataset(tmp_path).compact()
    assert str(as_written(tmp_path).compute().dtypes["x"]) == expected


def test_a_wider_type_and_a_new_column_have_dtypes_that_hold_all_rows(tmp_path: Path) -> None:
    to_tfrecord(frame_of([1], "int32"), tmp_path)
    more = frame_of([2], "int64").assign(new=np.array([True]))
    to_tfrecord(more, tmp_path, append=True, schema_change="add")
    found = as_written(tmp_path).compute()
    assert found.dtypes.astype(str).to_dict() == {"x": "int64", "new": "boolean"}
    assert found["new"].isna().tolist() == [True, False]


def test_a_null_that_the_dtype_cannot_hold_makes_the_dtype_nullable(tmp_path: Path) -> None:
    to_tfrecord(frame_of([1], "int64"), tmp_path)
    with Writer(tmp_path) as writer:
        writer.write([{"x": 2}])
        writer.commit()
        assert str(as_written(tmp_path).dtypes["x"]) == "int64"
        writer.write([{"x": None}])
    assert str(as_written(tmp_path).dtypes["x"]) == "Int64"
    assert as_written(tmp_path).compute()["x"].isna().tolist() == [False, False, True]


def test_dtype_backend_numpy_nullable_is_what_pandas_calls_so(tmp_path: Path) -> None:
    names = ["uint8", "Int64", "float32", "Float64", "bool", "text", "datetime us", "zone UTC", "category"]
    frame = pd.DataFrame({name: COLUMNS[name] for name in names})
    to_tfrecord(frame, tmp_path / "data", lossy="allow")
    frame.to_parquet(tmp_path / "file.parquet")
    expected = pd.read_parquet(tmp_path / "file.parquet", dtype_backend="numpy_nullable")
    found = read_tfrecord(tmp_path / "data", dtype_backend="numpy_nullable")
    pd.testing.assert_frame_equal(found.compute(), expected)
    assert found.dtypes.drop("category").equals(expected.dtypes.drop("category"))


def test_what_shows_no_dtype_stays_backed_by_arrow(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"x": [1, 2]}), tmp_path / "arrow")
    to_tfrecord(frame_of([1, 2], "int64"), tmp_path / "pandas")
    found = [
        as_written(tmp_path / "arrow"),
        as_written(tmp_path / "pandas", use_snapshot=False),
        as_written(tmp_path / "pandas", schema={"x": pa.int32()}),
    ]
    assert {str(ddf.dtypes["x"]) for ddf in found} == {"int64[pyarrow]", "int32[pyarrow]"}


def test_a_stored_dtype_that_pandas_does_not_know_is_left_out(tmp_path: Path) -> None:
    to_tfrecord(frame_of([1], "int64"), tmp_path)
    schema = Snapshot.open(tmp_path).schema
    stored = schema.to_json()
    for dtype in ("no dtype", "", 5):
        changed = dask_tfrecord.Schema.from_json({**stored, "dtypes": {"x": dtype}})
        assert changed == schema
        assert len(as_written(tmp_path, schema=changed).compute()) == 1
    with pytest.raises(SchemaError, match="not readable"):
        dask_tfrecord.Schema.from_json({**stored, "dtypes": 5})
