"""`dtype_backend="numpy"`: dtypes that are decided before anything is read, and hold what is read."""

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

from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord

TEXT = "str" if int(pd.__version__.partition(".")[0]) >= 3 else "object"


pytestmark = pytest.mark.usefixtures("one_thread")


def of(frame: pd.DataFrame, root: Path, **arguments: Any) -> Any:
    """The frame, written in three partitions and read for numpy."""
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
    for part in ddf.partitions:
        assert part.compute().dtypes.astype(str).equals(ddf.dtypes.astype(str))  # whatever the categories
    assert ddf.compute().shape == every_dtype.frame().shape
    assert not [
        name for name in ddf.columns if "float" in name and isinstance(ddf[name].dtype, pd.ArrowDtype)
    ]


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
    with pytest.raises(SchemaError, match="missing, which numpy's int64 cannot hold") as caught:
        read_tfrecord(tmp_path / "b", schema=schema, dtype_backend="numpy").compute()
    error = caught.value
    assert (error.path, error.record, error.feature) == (f"{tmp_path}/b", 2, "n")


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    backend: Any = "numpy_nullable"
    with pytest.raises(TFRecordError, match=r"unknown dtype_backend 'numpy_nullable'; known are 'pyarrow'"):
        read_tfrecord(tmp_path, dtype_backend=backend)
