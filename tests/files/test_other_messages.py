"""Records that may be messages of another type: every read of a file judges each of them alike.

Modules: files.damage, files.inference.
"""

import random
from itertools import product
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from oracle import block, bytes_list, entry, example_of, int64_list, packed
from wire_messages import UNKNOWN

from dask_tfrecord import CorruptRecordError, read_tfrecord
from dask_tfrecord.dataset.read.discovery import open_dataset
from dask_tfrecord.dataset.read.requested_columns import ReadRequest
from dask_tfrecord.files.damage import DamagePolicy
from dask_tfrecord.files.file_options import ReadOptions

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::dask_tfrecord.CorruptRecordWarning"),
]

SKIP = ReadOptions(damage=DamagePolicy("skip"))
TYPES = pa.schema({"id": pa.int64(), "k": pa.list_(pa.int64()), "name": pa.string()})


def ordinary(number: int) -> bytes:
    """A record with all features."""
    return example_of(
        entry("id", int64_list(packed(number))),
        entry("k", int64_list(packed(number, 1))),
        entry("name", bytes_list(block(1, b"n%d" % number))),
    )


def odd(number: int) -> bytes:
    """A record without a value of any column; protobuf parses all of them."""
    return [
        example_of(block(1, block(1, b"k"))),
        example_of(entry("k", b"")),
        example_of(block(1, block(1, b"new"))),
        example_of(entry("other", int64_list(packed(number)))),
        example_of(),
    ][number % 5]


def foreign(number: int) -> bytes:
    """A record of another type."""
    return [
        example_of(entry("k", b"")) + UNKNOWN["varint"],
        example_of(entry("name", UNKNOWN["fixed32"])),
        UNKNOWN["length"],
        example_of(block(1, block(1, b"k"), block(1, b"\n\x03abc"))),
    ][number % 4]


@pytest.mark.parametrize("seed", range(2))
def test_skipped_records_do_not_depend_on_blocksize_and_columns(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    judged = [(ordinary(n), True) for n in range(200)]
    judged += [(odd(n), True) for n in range(60)] + [(foreign(n), False) for n in range(60)]
    random_.shuffle(judged)
    judged[:0] = [(ordinary(0), True)]  # the file is a file of Examples
    judged += [(odd(0), True)] * 100  # some writers leave out an empty value
    path = tmp_path / "data.tfrecord"
    path.write_bytes(oracle.records_file([payload for payload, _ in judged]))
    records = [oracle.parse(payload) for payload, is_example in judged if is_example]
    options: dict[str, Any] = {"schema": TYPES, "record_type": "example", "on_corrupt": "skip"}
    for blocksize, columns in product((None, 400, 2_500), (None, ["id"], ["k"], ["name", "id"], [])):
        ddf = read_tfrecord(path, blocksize=blocksize, columns=columns, **options)
        frame = ddf.compute()
        assert len(frame) == len(ddf) == len(records)
        table = pa.Table.from_pandas(frame, preserve_index=False)
        for name in table.column_names:
            found = [oracle.canonical(value) for value in table[name].to_pylist()]
            assert found == oracle.column_values(records, name, name == "k")
    inferred = open_dataset(path, ReadRequest(record_type="example", infer="all", options=SKIP))
    assert [field.name for field in inferred.schema.fields][:3] == ["id", "k", "name"]


@pytest.mark.parametrize("kind", range(4))
def test_a_record_of_another_type_raises_whichever_columns_are_read(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(oracle.records_file([ordinary(n) for n in range(30)] + [foreign(kind)]))
    for options in product((None, 500), (None, ["id"], ["k"], ["name"])):
        read = dict(zip(("blocksize", "columns"), options, strict=True))
        with pytest.raises(CorruptRecordError, match="not an Example") as caught:
            read_tfrecord(path, schema=TYPES, record_type="example", **read).compute()
        assert caught.value.record == 30


@pytest.mark.parametrize("infer", ["sample", "all"])
def test_skipped_records_add_nothing_to_the_inferred_schema(tmp_path: Path, infer: Any) -> None:
    ghost = bytes_list(block(1, b"ghost"))
    refused = [
        example_of(entry("new", b"")) + UNKNOWN["varint"],
        example_of(entry("id", int64_list(packed(1, 2))), entry("new", ghost), entry("k", b"\xff")),
        example_of(entry("id", ghost), entry("name", bytes_list(block(1, b"\xff")))) + b"\xff",
    ]
    path = tmp_path / "data.tfrecord"
    path.write_bytes(oracle.records_file([ordinary(0), *refused, ordinary(1)]))
    ddf = read_tfrecord(path, record_type="example", infer=infer, on_corrupt="skip")
    expected = {"id": pa.int64(), "k": pa.list_(pa.int64()), "name": pa.string()}
    assert {name: dtype.pyarrow_dtype for name, dtype in ddf.dtypes.items()} == expected
    assert ddf["id"].compute().tolist() == [0, 1]
