"""Arrow tables as pandas partitions: Arrow-backed by default, NumPy dtypes with `dtype_backend="numpy"`.

Modules: collection.frames.arrow_to_pandas, collection.frames.pandas_to_arrow.
"""

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import every_dtype
import numpy as np
import oracle
import pandas as pd
import pyarrow as pa
import pytest
from planned_frames import frame_of, plan, planned

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.collection.frames import arrow_to_pandas
from dask_tfrecord.collection.frames.arrow_to_pandas import empty_meta, to_pandas
from dask_tfrecord.collection.frames.pandas_to_arrow import to_table
from dask_tfrecord.schema.fields import Schema

TEXT = "str" if int(pd.__version__.partition(".")[0]) >= 3 else "object"


pytestmark = pytest.mark.usefixtures("one_thread")


def of(frame: pd.DataFrame, root: Path, **arguments: Any) -> Any:
    """Write the frame in three partitions, and read it with NumPy dtypes."""
    with dask.config.set({"dataframe.convert-string": False}):
        ddf = dd.from_pandas(frame, npartitions=3, sort=False)
    to_tfrecord(ddf, root, lossy="allow", **arguments)
    return read_tfrecord(root, dtype_backend="numpy", blocksize=None)


ARROW = "arrow"
EXPECTED: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "bool": (pa.bool_(), [True, False, True], "bool"),
    "missing bool": (pa.bool_(), [True, None, True], ARROW),
    "int8": (pa.int8(), [1, -2, 3], "int8"),
    "uint64": (pa.uint64(), [1, 2**63 - 1, 3], "uint64"),
    "missing int64": (pa.int64(), [1, 2, None], ARROW),
    "float16": (pa.float16(), [np.float16(0.5), None, np.float16(2)], "float16"),
    "float32": (pa.float32(), [0.5, None, 2.0], "float32"),
    "float64": (pa.float64(), [0.5, float("nan"), None], "float64"),
    "seconds": (pa.timestamp("s"), [1, None, 2], "datetime64[s]"),
    "zoned": (pa.timestamp("us", "Europe/Warsaw"), [1, None, 2], "datetime64[us, Europe/Warsaw]"),
    "nanoseconds": (pa.timestamp("ns"), [1, None, 2], "datetime64[ns]"),
    "duration": (pa.duration("ms"), [1, None, 2], "timedelta64[ms]"),
    "string": (pa.string(), ["a", None, "c"], TEXT),
    "large_string": (pa.large_string(), ["a", None, "c"], TEXT),
    "binary": (pa.binary(), [b"a", None, b"\xff"], "object"),
    "list": (pa.list_(pa.int64()), [[1], None, []], "object"),
    "pairs": (pa.list_(pa.float32(), 2), [[1, 2], None, [3, 4]], "object"),
    "date": (pa.date32(), [1, None, 2], ARROW),
    "time": (pa.time64("us"), [1, None, 2], ARROW),
    "decimal": (pa.decimal128(5, 2), [1, None, 2], ARROW),
    "decimals": (pa.list_(pa.decimal128(5, 2)), [[1], None, []], ARROW),
    "dates": (pa.list_(pa.date32()), [[1], None, []], ARROW),
}


def test_each_type_has_the_dtype_that_holds_it(tmp_path: Path) -> None:
    arrays = {name: pa.array(values, type_) for name, (type_, values, _) in EXPECTED.items()}
    frame = pa.table(arrays).to_pandas(types_mapper=pd.ArrowDtype)
    ddf = of(frame, tmp_path / "data")
    for name, (type_, _, dtype) in EXPECTED.items():
        assert ddf[name].dtype == (pd.ArrowDtype(type_) if dtype == ARROW else dtype), name
    for part in ddf.partitions:
        assert part.compute().dtypes.equals(ddf.dtypes)
    found = ddf.compute()
    for name, (type_, _, _) in EXPECTED.items():
        kept = [value for value in arrays[name].to_pylist() if value is not None and value == value]
        back = pa.array(found[name].reset_index(drop=True), type_, from_pandas=True)
        assert back.drop_null().to_pylist() == kept, name
        assert back.null_count == len(back) - len(kept), name


def test_every_dtype_comes_in_the_dtype_of_the_meta(tmp_path: Path) -> None:
    ddf = of(every_dtype.frame(), tmp_path / "data", record_type="sequence_example")
    assert not [
        name for name in ddf.columns if "float" in name and isinstance(ddf[name].dtype, pd.ArrowDtype)
    ]
    for one in (ddf, read_tfrecord(tmp_path / "data", dtype_backend="pyarrow", blocksize=None)):
        for part in one.partitions:  # whatever the categories
            assert part.compute().dtypes.astype(str).equals(one.dtypes.astype(str))
        assert one.compute().shape == every_dtype.frame().shape


def test_partition_columns_and_projections_follow(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": range(6), "year": [1, 2] * 3, "word": list("abcdef"), "maybe": [1, None] * 3})
    frame["maybe"] = frame["maybe"].astype(pd.ArrowDtype(pa.int64()))
    frame["some"] = pd.array([1, None] * 3, pd.ArrowDtype(pa.int64()))
    ddf = of(frame, tmp_path / "data", partition_on=["year", "maybe"])
    assert ddf.dtypes.astype(str).to_dict() == {
        "n": "int64",
        "year": "int64",
        "word": TEXT,
        "maybe": "int64[pyarrow]",
        "some": "int64[pyarrow]",
    }
    assert ddf[["word", "year"]].compute().dtypes.equals(ddf[["word", "year"]].dtypes)
    assert ddf[ddf.year == 2].n.sum().compute() == 9
    assert len(ddf[ddf.word != "a"].compute()) == 5


def test_integers_of_others_are_numpys_only_when_that_is_said(tmp_path: Path) -> None:
    records = [{"n": ("int64", [n]), "x": ("float", [])} if n else {"x": ("float", [])} for n in (2, 1, 0)]
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "a").write_bytes(oracle.features_file(records[:2]))
    (tmp_path / "b").write_bytes(oracle.features_file(records))
    assert read_tfrecord(tmp_path / "whole", dtype_backend="numpy")["n"].dtype == pd.ArrowDtype(pa.int64())
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    whole = read_tfrecord(tmp_path / "whole", schema=schema, dtype_backend="numpy")
    assert whole["n"].dtype == whole["n"].compute().dtype == np.dtype("int64")
    assert whole["n"].compute().tolist() == [2, 1]
    with pytest.raises(SchemaError, match="null, which NumPy's int64 cannot hold") as caught:
        read_tfrecord(tmp_path / "b", schema=schema, dtype_backend="numpy").compute()
    error = caught.value
    assert (error.path, error.record, error.feature) == (f"{tmp_path}/b", 2, "n")


BIG = 2**53 + 1  # the first integer that a float64 rounds

# Two stored values of each type.
ELEMENTS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    **{type_: [-5, 7] for type_ in (pa.int8(), pa.int16(), pa.int32())},
    **{type_: [0, 7] for type_ in (pa.uint8(), pa.uint16(), pa.uint32())},
    pa.int64(): [BIG, -BIG],
    pa.uint64(): [2**63 - 1, BIG],
    pa.float16(): [np.float16(0.5), np.float16(-2)],
    pa.float32(): [float(np.float32(0.1)), math.inf],
    pa.float64(): [0.5, -0.0],
    pa.decimal128(5, 2): [Decimal("1.25"), Decimal("-7.50")],
    pa.date32(): [0, 10**6],
    pa.date64(): [0, 86_400_000],
    pa.time32("s"): [1, 2],
    pa.time64("ns"): [1, 2],
    **{pa.timestamp(unit, "UTC"): [BIG // 10**6, -1] for unit in ("s", "ns")},
    **{pa.timestamp(unit): [BIG if unit != "s" else 10**12, -1] for unit in ("s", "ms", "us", "ns")},
    **{pa.duration(unit): [BIG, -1] for unit in ("s", "ms", "us", "ns")},
    pa.string(): ["a", ""],
    pa.large_string(): ["a", "ä"],
    pa.binary(): [b"a", b""],
    pa.binary(2): [b"ab", b"cd"],
}


def elements(type_: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(type_):
        return pa.array(ELEMENTS[type_], pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
    return pa.array(ELEMENTS[type_], type_)


def lists_of(type_: pa.DataType, form: str) -> pa.Array:
    """Two lists of the two values of a type, in both orders."""
    both = elements(type_)
    inner = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), both.take(pa.array([0, 1, 1, 0])))
    fixed = pa.FixedSizeListArray.from_arrays(inner.flatten(), 2)
    return {
        "list": inner,
        "large": inner.cast(pa.large_list(type_)),
        "fixed": fixed,
        "list of fixed": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), fixed),
        "fixed of list": pa.FixedSizeListArray.from_arrays(inner, 1),
        "fixed of fixed": pa.FixedSizeListArray.from_arrays(fixed, 1),
    }[form]


def plain(cell: Any, type_: pa.DataType) -> Any:
    """Check the dtype of a NumPy list, and return its plain values; timestamps become numbers."""
    if cell is None or cell is pd.NA:
        return None
    if isinstance(cell, np.ndarray) and cell.dtype == object and isinstance(cell[0], np.ndarray):
        return [plain(one, type_) for one in cell]
    values = cell if isinstance(cell, pa.Array) else pa.array(cell)
    if pa.types.is_large_string(type_):
        values = values.cast(type_)
    assert values.type == type_, f"{values.type} instead of {type_}"
    assert isinstance(cell, pa.Array) or pa.types.is_nested(type_) or _has_right_dtype(cell, type_)
    return [str(value.value) if hasattr(value, "value") else repr(value.as_py()) for value in values]


def _has_right_dtype(cell: Any, type_: pa.DataType) -> bool:
    objects = pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_binary(type_)
    return bool(cell.dtype == (object if objects else type_.to_pandas_dtype()))


def expected_of(value: pa.Scalar, type_: pa.DataType) -> Any:
    if not value.is_valid:
        return None
    values = value.values
    if values.type == type_:
        return plain(values, type_)
    return [expected_of(one, type_) for one in values]


@pytest.mark.sampled
@pytest.mark.parametrize("missing", ["none", "some", "all", "no rows"])
@pytest.mark.parametrize(
    "form", ["list", "large", "fixed", "list of fixed", "fixed of list", "fixed of fixed"]
)
def test_lists_hold_the_same_values_whatever_is_missing(form: str, missing: str) -> None:
    rows = {"none": [0, 1], "some": [0, None, 1, None], "all": [None, None], "no rows": []}[missing]
    for type_ in ELEMENTS:
        lists = lists_of(type_, form)
        schema = Schema.from_arrow(pa.schema([("x", lists.type)]), "sequence_example")
        stored = schema.to_storage(
            pa.record_batch({"x": lists.take(pa.array(rows, pa.int64()))}), lossy="allow"
        )
        batch = schema.from_storage(stored)  # the elements of a null list of fixed size are null
        table = pa.Table.from_batches([batch, batch.slice(1)])
        expected = [expected_of(value, type_) for value in table["x"]]
        dtypes = dict.fromkeys(arrow_to_pandas.numpy_names(schema, ()), arrow_to_pandas.NUMPY)
        found = arrow_to_pandas.to_pandas(table, schema, dtypes=dtypes)["x"]
        if isinstance(found.dtype, pd.ArrowDtype):
            assert pa.chunked_array(pa.array(found.array)).equals(table["x"]), type_
        else:
            assert [plain(cell, type_) for cell in found] == expected, type_


@pytest.mark.parametrize(
    "type_", [pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.duration("us"), pa.list_(pa.duration("s"))]
)
def test_a_value_that_numpy_takes_for_missing_is_refused(tmp_path: Path, type_: pa.DataType) -> None:
    (tmp_path / "a").write_bytes(oracle.features_file([{"x": ("int64", [-(2**63)])}]))
    arrow = read_tfrecord(tmp_path, schema={"x": type_}).compute()
    assert not arrow["x"].isna().any()
    with pytest.raises(SchemaError, match=r"-2\^63, which is NumPy's NaT.*dtype_backend=\"pyarrow\""):
        read_tfrecord(tmp_path, schema={"x": type_}, dtype_backend="numpy").compute()


@pytest.mark.parametrize("backend", ["pyarrow", "numpy"])
def test_categories_keep_their_time_zone(tmp_path: Path, backend: Any) -> None:
    moments = pd.DatetimeIndex(["2026-03-29 02:30", "2026-01-01"], tz="UTC").tz_convert("Europe/Warsaw")
    frame = pd.DataFrame({"x": pd.Categorical([moments[1], None, moments[0]], categories=moments)})
    to_tfrecord(dd.from_pandas(frame, npartitions=1), tmp_path / "data")
    found = read_tfrecord(tmp_path / "data", dtype_backend=backend).compute()
    pd.testing.assert_series_equal(found["x"], frame["x"], check_categorical=False)
    assert found["x"].cat.categories.dtype == moments.dtype


@pytest.mark.parametrize("none", [[], [None]])
@pytest.mark.parametrize(
    ("value", "ordered"), [("a", True), (b"a", False), (1, True), (0.5, False), (dt.date(2024, 1, 1), True)]
)
def test_partitions_without_a_category_go_together_with_others(
    value: Any, ordered: bool, none: list[Any]
) -> None:
    encoded = [pa.array(values, pa.scalar(value).type).dictionary_encode() for values in ([value], none)]
    arrays = [pa.DictionaryArray.from_arrays(e.indices, e.dictionary, ordered=ordered) for e in encoded]
    some, nothing = (to_pandas(pa.table({"x": one}), planned(one.type))["x"] for one in arrays)
    assert nothing.cat.categories.dtype == some.cat.categories.dtype
    assert nothing.cat.ordered == ordered


def test_an_order_holds_in_meta_partitions_and_empty_partitions() -> None:
    dtype = pd.CategoricalDtype(["low", "high"], ordered=True)
    frame = frame_of(["high", None, "low"], dtype)
    schema = plan(frame)
    table = to_table(frame, schema, write_index=False)
    for some in (to_pandas(table, schema), to_pandas(table.slice(0, 0), schema), empty_meta(schema)):
        assert some["x"].cat.ordered
        assert some["x"].cat.categories.tolist() == ["low", "high"]


def test_chunks_of_different_categories() -> None:
    chunks = [pa.array([value]).dictionary_encode() for value in ("a", "b")]
    frame = to_pandas(pa.table({"x": pa.chunked_array(chunks)}), planned(chunks[0].type))
    assert frame["x"].tolist() == ["a", "b"]
    assert frame["x"].cat.categories.tolist() == ["a", "b"]
