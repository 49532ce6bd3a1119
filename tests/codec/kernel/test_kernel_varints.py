"""Varints of every size, as values, lengths and tags: the kernel accepts what protobuf accepts.

Modules: codec.
"""

from typing import Any

import oracle
import pytest
from decoded import BOUNDARY_INTEGERS, decoded_rows
from guard import exact
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed, tag, varint

from dask_tfrecord.codec import Column, Decoder, Inference


@pytest.mark.parametrize("after", [0, 1, 100])
def test_lists_of_integers_of_all_sizes_in_all_orders(after: int) -> None:
    pairs = [[one, other] for one in BOUNDARY_INTEGERS for other in BOUNDARY_INTEGERS]
    lists = [values for pair in pairs for values in (pair, pair * 2)]
    payloads = [example_of(entry("x", int64_list(packed(*values)))) for values in lists]
    file = oracle.records_file(payloads) + oracle.frame(b"") * after
    rows, _ = decoded_rows([Column("x", "int64", 1)], file)
    assert rows == lists + [None] * after
    for values, payload in zip(lists, payloads, strict=True):
        inference = Inference("example")
        assert inference.feed(exact(oracle.records_file([payload] * 2)), final=True)[2] is None
        assert inference.features()[0].max_values == len(values)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("usual", [1, 2**20, 2**55, 2**62, -1])
def test_a_chunk_of_any_bytes_means_what_protobuf_says(depth: int, usual: int) -> None:
    """Varints that do not end, varints longer than needed, and several varints in the place of one."""
    column = Column("x", "int64", depth)
    before = example_of(entry("x", int64_list(packed(usual))))
    for n in range(1, 13):
        for chunk in (
            *(b"\xff" * (n - 1) + bytes([last]) for last in (0, 1, 2, 0x7F, 0x80, 0xFF)),
            b"\x80" * (n - 1) + b"\0",
            b"\1" + b"\x81" * (n - 1),
            *(b"\xff" * at + b"\1" + b"\xff" * (n - 2 - at) + b"\1" for at in range(n - 1)),
        ):
            payload = example_of(entry("x", int64_list(block(1, chunk))))
            file = oracle.records_file([before] * 2 + [payload] + [before] * 2)
            decoded = Decoder([column], "example").decode(exact(file), final=True)
            records, _, seen = Inference("example").feed(exact(file), final=True)
            assert (seen is None, records) == ((True, 5) if _is_whole(chunk) else (False, 2)), chunk
            if not _is_whole(chunk):
                assert decoded.damage is not None, chunk
                assert (decoded.damage.record, decoded.damage.reason) == (2, "malformed protobuf message")
                continue
            values = oracle.parse(payload).features["x"].values
            if depth or len(values) == 1:
                assert decoded.damage is None, chunk
                assert decoded.batch["x"].to_pylist()[2] == (values if depth else values[0]), chunk
            else:
                assert decoded.damage is not None
                assert (decoded.damage.reason, decoded.damage.found) == ("not a scalar", str(len(values)))


def _is_whole(chunk: bytes) -> bool:
    try:
        oracle.parse(example_of(entry("x", int64_list(block(1, chunk)))))
    except oracle.DecodeError:
        return False
    return True


@pytest.mark.parametrize("length", [1, 10, 40])
@pytest.mark.parametrize("kind", ["int64", "float", "bytes", None])
def test_lengths_of_one_byte_that_would_need_two_are_not_taken_as_one(length: int, kind: Any) -> None:
    """The prediction expects lengths of one byte; a byte of 0x80 and above begins a length of two bytes."""
    name = b"k" * length
    text = block(1, name)
    columns = [Column(name.decode(), kind, 1)] if kind else []
    list_tag = {"int64": 0x1A, "float": 0x12}.get(kind, 0x0A)
    usual = {"int64": int64_list(packed(1, 2)), "float": float_list(block(1, bytes(8)))}.get(
        kind, bytes_list(block(1, b"ab"))
    )
    before = example_of(entry(name, usual))
    refused = 0
    for n in range(60, 250):
        if n % 4 and kind == "float":
            continue
        lengths = [len(text) + 5 + n + 1, 4 + n, 2 + n, n]
        if max(lengths) > 255:
            break
        whole, feature, list_, chunk = (bytes([size]) for size in lengths)
        inside = bytes([list_tag]) + list_ + b"\x0a" + chunk + b"\1" * n
        payload = example_of(b"\x0a" + whole + text + b"\x12" + feature + inside)
        decoded = Decoder(columns, "example").decode(
            exact(oracle.records_file([before] * 3 + [payload])), final=True
        )
        try:
            record = oracle.parse(payload)
        except oracle.DecodeError:
            refused += 1
            assert decoded.damage is not None, n
            continue
        assert decoded.damage is None
        if kind:
            found = oracle.canonical(decoded.batch.columns[0].to_pylist()[3])
            assert found == oracle.column_values([record], name.decode(), 1)[0]
    assert refused


def test_lengths_and_tags_of_more_bytes_than_needed_are_read() -> None:
    for large in (0x10, 0x20, 0x7F):  # a tag has 32 bits
        with pytest.raises(oracle.DecodeError):
            oracle.parse(b"\xca\x80\x80\x80" + bytes([large, 0]) + example_of())
        file = exact(oracle.frame(b"\xca\x80\x80\x80" + bytes([large, 0]) + example_of()))
        assert Decoder([], "example").decode(file, final=True).damage is not None
    for size in (6, 7):
        for payload in (_padded(0x0A, size) + b"\0", b"\x0a" + _padded(0, size)):
            with pytest.raises(oracle.DecodeError):
                oracle.parse(payload)
            assert Decoder([], "example").decode(exact(oracle.frame(payload)), final=True).damage is not None
    for size in (1, 2, 3, 4, 5):
        length = _padded(len(entry("x", int64_list(packed(7)))), size)
        tags = _padded(0x0A, size)
        payload = tags + length + entry("x", int64_list(packed(7)))
        assert oracle.parse(payload).features["x"].values == [7]
        assert decoded_rows([Column("x", "int64", 0)], oracle.frame(payload))[0] == [7]
        zero = tag(0, 2)[:1] if size == 1 else _padded(2, size)
        with pytest.raises(oracle.DecodeError):
            oracle.parse(zero + b"\0" + payload)
        # In an unknown group, protobuf's Python runtime accepts a field number 0; its C++ runtime does not.
        for number_0 in (zero + b"\0", tag(9, 3) + _padded(0, size) + b"\0" + tag(9, 4)):
            file = exact(oracle.frame(number_0 + payload))
            assert Decoder([], "example").decode(file, final=True).damage is not None


def _padded(value: int, size: int) -> bytes:
    """A varint of exactly ``size`` bytes."""
    digits = [value >> 7 * i & 0x7F for i in range(size)]
    assert varint(value) == bytes(
        [*(d | 0x80 for d in digits[: len(varint(value)) - 1]), digits[len(varint(value)) - 1]]
    )
    return bytes([*(d | 0x80 for d in digits[:-1]), digits[-1]])
