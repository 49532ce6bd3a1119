"""PyTorch: the tensors hold the values of every type, and a value replaces nulls only where it fits.

Modules: feed.torch, feed.numpy_columns.
"""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import dask_tfrecord  # noqa: E402
from dask_tfrecord import SchemaError, TFRecordError  # noqa: E402
from dask_tfrecord.feed.torch import TFRecordBatches, TFRecordTable, to_tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*prototype stage.*")


def test_tensors_hold_the_values_of_every_type() -> None:
    batch = pa.record_batch(
        {
            "bool": pa.array([True, False, True]),
            "int8": pa.array([1, -2, 3], pa.int8()),
            "uint16": pa.array([1, 2, 65535], pa.uint16()),
            "int64": pa.array([1, 2, 2**62]),
            "half": pa.array(np.array([1, 2, 0.5], np.float16)),
            "float": pa.array([0.5, None, 2.5], pa.float32()),
            "text": pa.array(["a", None, "ü"]),
            "bytes": pa.array([b"\x01\x02", b"", b"\x03"]),
            "ragged": pa.array([[1, 2], [], [3]], pa.list_(pa.int64())),
            "fixed": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            "time": pa.array([1, 2, 3], pa.timestamp("ms")),
            "words": pa.array([["a"], [], ["b", "c"]]),
        }
    ).slice(1)
    found = to_tensors(batch)
    assert found["bool"].tolist() == [False, True]
    assert (found["int8"].dtype, found["int8"].tolist()) == (torch.int8, [-2, 3])
    assert (found["uint16"].dtype, found["uint16"].tolist()) == (torch.uint16, [2, 65535])
    assert found["int64"].tolist() == [2, 2**62]
    assert (found["half"].dtype, found["half"].tolist()) == (torch.float16, [2, 0.5])
    assert torch.equal(found["float"].isnan(), torch.tensor([True, False]))
    assert found["text"] == ["", "ü"]
    assert [one.tolist() for one in found["bytes"]] == [[], [3]]
    assert [one.tolist() for one in found["ragged"].unbind()] == [[], [3]]
    assert found["ragged"].to_padded_tensor(0).tolist() == [[0], [3]]
    assert found["fixed"].tolist() == [[3, 4], [5, 6]]
    assert found["time"].tolist() == [2, 3]
    assert found["words"] == [[], ["b", "c"]]


def test_text_of_several_chunks_becomes_one_list() -> None:
    first = pa.table({"text": ["a", None], "bytes": [b"\x01", b""], "x": [1, 2]})
    second = pa.table({"text": ["ü"], "bytes": [b"\x02\x03"], "x": [3]})
    found = to_tensors(pa.concat_tables([first, second.slice(0, 1)]))
    assert found["text"] == ["a", "", "ü"]
    assert [one.tolist() for one in found["bytes"]] == [[1], [], [2, 3]]
    assert found["x"].tolist() == [1, 2, 3]


def test_numbers_are_not_copied() -> None:
    column = pa.array(np.arange(100))
    assert to_tensors(pa.record_batch({"x": column}))["x"].data_ptr() == column.buffers()[1].address


def test_missing_integers_need_a_value() -> None:
    batch = pa.record_batch({"x": pa.array([1, None])})
    with pytest.raises(SchemaError, match=r"pass fill_nulls=\{.x.: -1\} to replace null"):
        to_tensors(batch)
    assert to_tensors(batch, {"x": -1})["x"].tolist() == [1, -1]
    with pytest.raises(SchemaError, match="fill_nulls= gives 'a'"):
        to_tensors(batch, {"x": "a"})


def test_a_fixed_value_replaces_null() -> None:
    batch = pa.record_batch(
        {
            "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
            "floats": pa.array([None, [3, 4], None], pa.list_(pa.float32(), 2)),
            "bytes": pa.array([b"a", None, b"b"]),
            "sized": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "price": pa.array([Decimal("29.99"), None, Decimal("-0.01")], pa.decimal128(9, 2)),
        }
    )
    tensors = to_tensors(batch.slice(1), {"fixed": -1, "bytes": b"zz", "price": 0})
    assert tensors["fixed"].tolist() == [[-1, -1], [3, 4]]
    assert str(tensors["floats"].tolist()) == "[[3.0, 4.0], [nan, nan]]"
    assert [bytes(one.tolist()) for one in tensors["bytes"]] == [b"zz", b"b"]
    assert [bytes(one.tolist()) for one in tensors["sized"]] == [b"", b"cd"]
    assert tensors["price"].tolist() == [0, -0.01]
    assert to_tensors(batch, {"fixed": 0})["price"][0] == 29.99


def test_fill_nulls_without_effect_is_refused(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([[1], [2, 3], None], pa.list_(pa.int64())), "x": [1.0, None, 2.0]})
    dask_tfrecord.to_tfrecord(table, tmp_path, lossy="allow")
    with pytest.raises(TFRecordError, match="call to_tensors"):
        TFRecordBatches(str(tmp_path), 2, fill_nulls={"x": 0.0}, convert=lambda batch: batch)
    for loader, size in ((TFRecordBatches, {"batch_size": 2}), (TFRecordTable, {})):
        given: dict[str, Any] = {"path": str(tmp_path), **size}
        with pytest.raises(SchemaError, match="fill_nulls= has no effect on the lists of 't'"):
            loader(**given, fill_nulls={"t": 0})
        loader(**given, fill_nulls={"x": 0.0})


@pytest.mark.parametrize("fill", [1.5, np.float32(-0.5), math.nan, math.inf])
def test_a_fraction_does_not_fill_integers(fill: Any) -> None:
    batch = pa.record_batch({"n": pa.array([1, None])})
    with pytest.raises(SchemaError, match="which is no int64"):
        to_tensors(batch, {"n": fill})
    assert to_tensors(batch, {"n": 2.0})["n"].tolist() == [1, 2]
