"""The encoder, statistics and `take_bytes`: slices, bitmaps, and the ends of input and output.

Modules: codec.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import oracle
import pyarrow as pa
import pytest
from guard import exact, room

from dask_tfrecord.codec import MAX_RECORD_BYTES, SPARE_BYTES, Column, Encoder, take_bytes
from dask_tfrecord.errors import SchemaError

COUNT = 40


def _valid(i: int) -> bool:
    """A validity mask in which no two slices have the same nulls at the same bits."""
    return (i * i + i // 3) % 5 != 0


def _columns() -> Iterator[tuple[Column, pa.Array]]:
    """A column with nulls for every kind, depth and layout, 40 rows of different values."""
    ints = [(-1) ** i * (3**i) if _valid(i) else None for i in range(COUNT)]
    yield Column("x", "int64", 0), pa.array(ints, pa.int64())
    floats = [i / 4 if _valid(i) else None for i in range(COUNT)]
    yield Column("x", "float", 0), pa.array(floats, pa.float32())
    texts = ["é" * (i % 13) + str(i) if _valid(i) else None for i in range(COUNT)]
    for type_ in (pa.string(), pa.large_string()):
        yield Column("x", "string", 0), pa.array(texts, type_)
    for type_ in (pa.binary(), pa.large_binary()):
        yield Column("x", "bytes", 0), pa.array([t and t.encode() for t in texts], type_)
    for kind, leaf in (("int64", pa.int64()), ("float", pa.float32()), ("bytes", pa.binary())):
        lists = [[_leaf(kind, i + j) for j in range(i % 4)] if _valid(i) else None for i in range(COUNT)]
        pairs = [[_leaf(kind, i), _leaf(kind, -i)] if _valid(i) else None for i in range(COUNT)]
        nested = [[lists[j] or [] for j in range(i % 3)] if _valid(i) else None for i in range(COUNT)]
        yield Column("x", kind, 1), pa.array(lists, pa.list_(leaf))
        yield Column("x", kind, 1), pa.array(lists, pa.large_list(leaf))
        yield Column("x", kind, 1), pa.array(pairs, pa.list_(leaf, 2))
        yield Column("x", kind, 2), pa.array(nested, pa.list_(pa.large_list(leaf)))
        yield (
            Column("x", kind, 2),
            pa.array([row and [row] for row in pairs], pa.large_list(pa.list_(leaf, 2))),
        )


def _leaf(kind: str, i: int) -> Any:
    return {"int64": i * 1000, "float": i / 8, "bytes": b"v" * (abs(i) % 19)}[kind]


COLUMNS = {f"{column.kind} {array.type}": (column, array) for column, array in _columns()}
columns = pytest.mark.parametrize(("column", "array"), COLUMNS.values(), ids=COLUMNS.keys())


def written(column: Column, batch: Any, rows: int) -> list[Any]:
    """Encode a column, and return the values that protobuf reads from the records."""
    encoder = Encoder([column], "sequence_example")
    encoder.bind(batch)
    out = bytearray(1 << 16)
    row, size, need = encoder.encode_into(0, out)
    assert (row, need) == (rows, 0)
    records = [oracle.parse(payload, "sequence_example") for payload in oracle.frames(bytes(out[:size]))]
    return oracle.column_values(records, "x", column.depth)


def wanted(array: pa.Array) -> list[Any]:
    return [oracle.canonical(value) for value in array.to_pylist()]


@columns
def test_a_slice_at_any_bit_is_written_as_its_rows(column: Column, array: pa.Array) -> None:
    """A batch may have an offset, in addition to the offsets of its columns."""
    for start in (0, 1, 7, 8, 9, 15, 17, 31):
        for stop in (start, start + 1, start + 8, COUNT):
            part = array[start:stop]
            assert written(column, pa.record_batch([part], ["x"]), len(part)) == wanted(part)
    for inner, start in itertools.product((0, 1, 9), (0, 1, 7, 8, 13)):
        part = pa.StructArray.from_arrays([array[inner:]], ["x"])[start:]
        assert written(column, part, len(part)) == wanted(array[inner + start :])


@columns
def test_statistics_of_a_slice_are_those_of_its_rows(column: Column, array: pa.Array) -> None:
    encoder = Encoder([column], "sequence_example")
    for inner in (0, 3, 9):
        whole = pa.StructArray.from_arrays([array[inner:]], ["x"])
        for start in (0, 1, 8, 13):
            part = array[inner + start :]
            encoder.bind(whole[start:])
            for first, end in ((0, len(part)), (0, 0), (2, 3), (1, 12), (5, 14)):
                rows = part[first:end].to_pylist()
                values = [len(row) if column.depth else row for row in rows if row is not None]
                [found] = encoder.statistics([first, end])
                assert found.nulls == [rows.count(None)]
                assert found[1:] == ([min(values, default=None)], [max(values, default=None)])


@columns
def test_every_size_of_output_gets_the_records_that_fit(column: Column, array: pa.Array) -> None:
    """A store may write past the record, but not past the buffer, which ends at a protected page."""
    array = pa.concat_arrays([array, array[:0]])
    encoder = Encoder([column], "sequence_example")
    encoder.bind(pa.record_batch([array[:12]], ["x"]))
    whole = bytearray(1 << 16)
    _, size, _ = encoder.encode_into(0, whole)
    ends = np.cumsum([len(payload) + 16 for payload in oracle.frames(bytes(whole[:size]))])
    for space in range(size + SPARE_BYTES + 2):
        out = room(space)
        row, used, need = encoder.encode_into(0, out)
        fitting = int((ends + SPARE_BYTES <= space).sum())
        assert (row, used) == (fitting, ends[fitting - 1] if fitting else 0)
        assert need == (0 if fitting else ends[0] + SPARE_BYTES)
        assert bytes(out[:used]) == bytes(whole[:used])


@pytest.mark.parametrize("length", [1, 8, 9, 10, 24, 25, 26, 41, 42, 60, 130])
def test_a_name_of_any_length_is_written_inside_the_output(length: int) -> None:
    for kind, value in (("int64", 0), ("int64", -1), ("float", 0.5), ("bytes", b""), ("bytes", b"x" * 16)):
        column = Column("k" * length, kind, 0)
        type_ = {"int64": pa.int64(), "float": pa.float32(), "bytes": pa.binary()}[kind]
        for depth, values in ((0, [value] * 2), (1, [[value], []]), (1, [[], [value]])):
            encoder = Encoder([column._replace(depth=depth)], "example")
            encoder.bind(pa.record_batch([pa.array(values, pa.list_(type_) if depth else type_)], ["x"]))
            whole = bytearray(1 << 12)
            _, size, _ = encoder.encode_into(0, whole)
            out = room(size + SPARE_BYTES)
            assert encoder.encode_into(0, out)[:2] == (2, size)
            assert bytes(out[:size]) == bytes(whole[:size])


def guarded(array: pa.Array) -> pa.Array:
    """Copy the array into buffers that end at a protected page."""
    buffers = [
        None if buffer is None else pa.py_buffer(exact(buffer.to_pybytes())) for buffer in array.buffers()
    ]
    return pa.Array.from_buffers(array.type, len(array), buffers)


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_values_at_the_end_of_memory_are_written_compared_and_taken(type_: pa.DataType) -> None:
    is_text = type_ in (pa.string(), pa.large_string())
    for n in range(40):
        values = [b"a" * n, b"a" * (n // 2), b"", b"a" * n]
        array = pa.array(values, pa.large_binary() if pa.types.is_large_binary(type_) else pa.binary())
        array = guarded(array.cast(type_))
        column = Column("x", "string" if is_text else "bytes", 0)
        assert written(column, pa.record_batch([array], ["x"]), 4) == values
        encoder = Encoder([column], "example")
        encoder.bind(pa.record_batch([array], ["x"]))
        [[_, [least], [greatest]]] = encoder.statistics([0, 4])
        assert (least, greatest) == (("", "a" * n) if is_text else (b"", b"a" * n))
        rows = np.array([3, 2, 1, 0], np.int64)
        assert take_bytes(array, rows).to_pylist() == array.to_pylist()[::-1]


def test_bounds_of_byte_strings_are_those_of_python() -> None:
    """The kernel compares eight bytes at once; a shorter string sorts before the same string with a zero."""
    alike = [
        b"",
        b"\0",
        b"\0\0",
        b"a",
        b"a\0",
        b"a\0\0\0\0\0\0\0",
        b"a\0\0\0\0\0\0\0\0",
        b"aaaaaaaa",
        b"aaaaaaaab",
    ]
    alike += [b"aaaaaaa", b"aaaaaaaa\0", b"\xff", b"\xff" * 8, b"\xff" * 9, b"\x7f", b"\x80"]
    encoder = Encoder([Column("x", "bytes", 0)], "example")
    for one in alike:
        for other in alike:
            for values in ([one, other], [b"aaaaaaaaa", one, other]):
                encoder.bind(pa.record_batch([guarded(pa.array(values, pa.binary()))], ["x"]))
                [[_, [least], [greatest]]] = encoder.statistics([0, len(values)])
                assert (least, greatest) == (min(values), max(values))


def test_the_bounds_of_numbers_may_be_anywhere() -> None:
    """The kernel compares several numbers at once if there are no nulls. NaN hides no bound."""
    for type_, kind in ((pa.int64(), "int64"), (pa.float32(), "float")):
        encoder = Encoder([Column("x", kind, 0)], "example")

        def bounds(values: list[Any], encoder: Encoder = encoder, type_: pa.DataType = type_) -> list[Any]:
            encoder.bind(pa.record_batch([guarded(pa.array(values, type_))], ["x"]))
            [[_, [least], [greatest]]] = encoder.statistics([0, len(values)])
            return [least, greatest]

        for count, extreme in itertools.product(range(1, 36), (-5, 5)):
            for at in range(count):
                values: list[Any] = [0] * at + [extreme] + [0] * (count - 1 - at)
                assert bounds(values) == [min(values), max(values)], (count, at)
        for at, other in itertools.product(range(20), range(20)) if kind == "float" else ():
            values = [0.0] * 20
            values[other], values[at] = 5.0, math.nan
            expected = 0.0 if at == other else 5.0
            assert bounds(values)[1] == expected, (at, other)
            assert bounds([-one for one in values])[0] == -expected, (at, other)


def test_rows_of_a_slice_are_taken_with_their_nulls() -> None:
    for type_ in (pa.binary(), pa.large_string()):
        array = pa.array(
            [None if not _valid(i) else str(i) * (i % 5) for i in range(COUNT)], pa.string()
        ).cast(type_)
        for start in (0, 1, 7, 8, 9):
            part = array[start:]
            order = np.random.default_rng(start).permutation(len(part)).astype(np.int64)
            taken = take_bytes(part, order)
            taken.validate(full=True)
            assert taken.to_pylist() == part.take(pa.array(order)).to_pylist()
        for row in (-1, COUNT):
            with pytest.raises(IndexError):
                take_bytes(array, np.array([row], np.int64))


def test_text_that_is_not_utf8_is_refused_wherever_it_stands() -> None:
    for n in (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 65):
        for at in range(n):
            bad = b"a" * at + b"\xff" + b"a" * (n - 1 - at)
            for values in ([b"ok", bad], [b"ok", b"", "é".encode(), b"", bad, b"ok"]):
                array = guarded(pa.array(values, pa.binary()).view(pa.string()))
                lists = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), array)
                found = _refused(Column("x", "string", 0), array), _refused(Column("x", "string", 1), lists)
                assert found == (values.index(bad), values.index(bad)), (n, at)


@pytest.mark.parametrize(("character", "at"), [(c, at) for c in "é€🙂" for at in range(1, len(c.encode()))])
def test_a_character_that_goes_on_in_the_next_value_is_not_utf8(character: str, at: int) -> None:
    parts = character.encode()[:at], character.encode()[at:]
    halves = pa.array([b"ok", *parts], pa.binary()).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), halves)
    column = Column("x", "string", 0)
    assert (_refused(column, halves), _refused(column, halves[2:])) == (1, 0)
    assert _refused(Column("x", "string", 1), lists) == 2
    assert written(column, pa.record_batch([halves[:1]], ["x"]), 1) == [b"ok"]


def test_text_below_a_null_need_not_be_utf8() -> None:
    texts = pa.StringArray.from_buffers(
        3, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"a\xffb"), pa.py_buffer(b"\x05")
    )
    assert written(Column("x", "string", 0), pa.record_batch([texts], ["x"]), 3) == [b"a", None, b"b"]
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()),
        pa.array([b"a", b"\xff", b"b"], pa.binary()).view(pa.string()),
        mask=pa.array([False, True, False]),
    )
    assert written(Column("x", "string", 1), pa.record_batch([lists], ["x"]), 3) == [[b"a"], None, [b"b"]]


def _refused(column: Column, array: pa.Array) -> int | None:
    encoder = Encoder([column], "example")
    encoder.bind(pa.record_batch([array], ["x"]))
    with pytest.raises(SchemaError, match="not valid UTF-8") as caught:
        encoder.encode_into(0, bytearray(1 << 12))
    # The rows before the bad one can be written.
    assert encoder.encode_into(0, bytearray(1 << 12), caught.value.record)[0] == caught.value.record
    return caught.value.record


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda leaf: pa.list_(leaf, 2)])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["int64", "float", "bytes"])
def test_a_null_below_a_list_is_refused_wherever_it_stands(kind: Any, depth: int, make: Any) -> None:
    column = Column("x", kind, depth)
    type_ = make({"int64": pa.int64(), "float": pa.float32(), "bytes": pa.binary()}[kind])
    usual: list[Any] = [[_leaf(kind, i), _leaf(kind, i + 1)] for i in range(20)]
    bads: list[Any] = [[None, _leaf(kind, 1)], [_leaf(kind, 1), None]]
    if depth == 2:
        bads = [pair for bad in bads for pair in ([bad, usual[0]], [usual[0], bad])]
        bads += [[None], [usual[0], None]]
        usual, type_ = [[row, row] for row in usual], pa.list_(type_)
    for bad, start, more in itertools.product(bads, (0, 1, 8, 9), (0, 1, 7, None)):
        at = 19 if more is None else start + more
        array = pa.array([*usual[:at], bad, *usual[at + 1 :]], type_)[start:]
        encoder = Encoder([column], "sequence_example")
        encoder.bind(pa.record_batch([array], ["x"]))
        with pytest.raises(SchemaError, match="cannot hold a null") as caught:
            encoder.encode_into(0, bytearray(1 << 16))
        assert (caught.value.record, caught.value.feature) == (at - start, "x")
        for part in (array[: at - start], array[at - start + 1 :]):  # slices without a null
            assert written(column, pa.record_batch([part], ["x"]), len(part)) == wanted(part)


def _claiming(size: int) -> pa.Array:
    """A value that claims this number of bytes, none of which can be read."""
    nothing = exact(b"x")
    data = pa.foreign_buffer(nothing.ctypes.data + 1, size, nothing)
    return pa.Array.from_buffers(
        pa.large_binary(), 1, [None, pa.py_buffer(np.array([0, size], np.int64)), data]
    )


@pytest.mark.parametrize(("record_type", "head"), [("bytes", 0), ("example", 33), ("sequence_example", 35)])
def test_the_largest_record_is_as_long_as_protobuf_lets_it_be(record_type: Any, head: int) -> None:
    """``head`` counts the bytes around the value: 5 lengths of 5 bytes, 6 tags, a name and its length."""
    encoder = Encoder([Column("x", "bytes", 0)], record_type)
    encoder.bind(pa.record_batch([_claiming(MAX_RECORD_BYTES - head)], ["x"]))
    assert encoder.encode_into(0, room(100)) == (0, 0, MAX_RECORD_BYTES + 16 + SPARE_BYTES)
    encoder.bind(pa.record_batch([_claiming(MAX_RECORD_BYTES - head + 1)], ["x"]))
    with pytest.raises(SchemaError, match="longer than 2 GiB - 1") as caught:
        encoder.encode_into(0, room(100))
    assert caught.value.record == 0
