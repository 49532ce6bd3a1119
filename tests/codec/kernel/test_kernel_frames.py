"""The kernel's reader of frames: truncation, flipped bits, windows of any size, absurd lengths, checksums.

Modules: codec.
"""

import itertools
import random
import struct
import zlib
from collections.abc import Callable

import oracle
import pytest
from guard import exact
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord.codec import Column, Decoder, Inference, _kernel, scan

COLUMNS = [Column("a", "int64", 1), Column("s", "string", 0)]
RECORDS = [
    {"a": ("int64", [1, 2**40]), "s": ("bytes", [b"x"])},
    {"s": ("bytes", ["é".encode()])},
    {},
    {"a": ("int64", [-1])},
]
ROWS = {"a": [[1, 2**40], None, None, [-1]], "s": ["x", "é", None, None]}
FILE = oracle.features_file(RECORDS)
# Where each record starts, and the end of the file.
STARTS = [len(oracle.features_file(RECORDS[:n])) for n in range(len(RECORDS) + 1)]


def test_every_truncation_is_damage_unless_it_ends_a_record() -> None:
    """If more bytes may follow, an unfinished record waits for the next window."""
    for cut in range(len(FILE)):
        whole = max(n for n, start in enumerate(STARTS) if start <= cut)
        data = exact(FILE[:cut])
        decoded, found = Decoder(COLUMNS, "example").decode(data, final=True), scan(data, final=True)
        assert decoded.batch.to_pydict() == {name: values[:whole] for name, values in ROWS.items()}, cut
        assert found.records == whole, cut
        for damage in (decoded.damage, found.damage):
            assert (damage is None) == (cut in STARTS), cut
            if damage:
                assert damage.record == whole, cut
                assert STARTS[whole] <= damage.offset <= cut, cut
        for result in (Decoder(COLUMNS, "example").decode(data, final=False), scan(data, final=False)):
            assert (result.consumed, result.damage) == (STARTS[whole], None), cut
        assert Inference("example").feed(data, final=False) == (whole, STARTS[whole], None), cut


def test_every_flipped_bit_is_damage() -> None:
    for byte in range(len(FILE)):
        record = max(n for n, start in enumerate(STARTS) if start <= byte)
        for bit in range(8):
            flipped = bytearray(FILE)
            flipped[byte] ^= 1 << bit
            decoded = Decoder(COLUMNS, "example").decode(exact(bytes(flipped)), final=True)
            assert decoded.damage is not None, byte
            assert decoded.damage.record == record, byte
            assert STARTS[record] <= decoded.damage.offset <= byte, byte
            assert decoded.batch.num_rows == record, byte
            found = scan(exact(bytes(flipped)), final=True)
            assert (found.records, found.damage and found.damage.record) == (record, record), byte
            records, _, damage = Inference("example").feed(exact(bytes(flipped)), final=True)
            assert (records, damage and damage.record) == (record, record), byte


@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 12, 2**64 - 1])
@pytest.mark.parametrize("final", [True, False])
def test_an_absurd_length_is_damage_or_a_wish_for_more_but_never_an_over_read(
    length: int, final: bool
) -> None:
    """The checksum of the length is right, but the bytes of the payload are missing."""
    header = struct.pack("<Q", length)
    data = FILE + header + struct.pack("<I", oracle.masked_crc(header)) + b"0123456789"
    decoded = Decoder(COLUMNS, "example").decode(exact(data), final=final)
    assert decoded.batch.num_rows == len(RECORDS)
    if final or length > 2**31 - 1:
        assert decoded.damage is not None
        assert (decoded.damage.record, decoded.damage.offset) == (len(RECORDS), len(FILE))
    else:
        assert (decoded.damage, decoded.consumed) == (None, len(FILE))


def test_max_records_stops_inference_where_it_says() -> None:
    inference = Inference("example", max_records=2)
    assert inference.feed(FILE, final=True) == (2, STARTS[2], None)
    assert inference.feed(FILE[STARTS[2] :], final=True) == (0, 0, None)


def test_verify_crc_off_leaves_checksums_of_payloads_unverified_and_no_others() -> None:
    damaged = FILE[: STARTS[1] - 1] + bytes([FILE[STARTS[1] - 1] ^ 1]) + FILE[STARTS[1] :]
    decoded = Decoder(COLUMNS, "example", verify_crc=False).decode(damaged, final=True)
    assert (decoded.batch.to_pydict(), decoded.damage) == (ROWS, None)
    assert scan(damaged, final=True, verify_crc=False).damage is None
    for start in STARTS[:-1]:
        for byte in range(start, start + 12):
            damaged = FILE[:byte] + bytes([FILE[byte] ^ 1]) + FILE[byte + 1 :]
            found = scan(damaged, final=True, verify_crc=False)
            assert found.damage is not None, byte
            assert found.damage.offset == found.consumed == start, byte


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 200), st.integers(0, 50), st.booleans())
def test_offsets_for_blocks_are_as_far_apart_as_asked_and_no_further_than_a_record_more(
    sizes: list[int], every: int, cut: int, final: bool
) -> None:
    file = oracle.records_file([bytes(size) for size in sizes])
    file = file[: max(0, len(file) - cut)]
    everything = scan(exact(file), final=final, offsets=True)
    starts = everything.offsets.to_pylist()
    expected: list[tuple[int, int]] = []
    for number, start in enumerate(starts):
        if not expected or start - expected[-1][0] >= every:
            expected.append((start, number))
    found = scan(exact(file), final=final, every=every)
    assert found[:3] == everything[:3]
    assert (everything.numbers, scan(file, final=final)[3:]) == (None, (None, None))
    assert list(zip(found.offsets.to_pylist(), found.numbers.to_pylist(), strict=True)) == expected


# --- CRC-32C -------------------------------------------------------------------------------------------

BLOCK = bytes((i * 167 + (i >> 8) * 29) & 0xFF for i in range(20_000))


@pytest.mark.parametrize("implementation", _kernel.crc32c_implementations())
def test_every_implementation_computes_the_checksum_of_the_definition(implementation: str) -> None:
    """At every length to 700 and around the edges of blocks, at every alignment, and from any value."""
    crcs = [*itertools.accumulate(BLOCK, lambda crc, byte: oracle.crc32c(bytes([byte]), crc), initial=0)]
    # From the catalogue of parametrised CRC algorithms, CRC-32/ISCSI
    assert _kernel.crc32c(b"123456789", 0, implementation) == 0xE3069283
    edges = [edge + n for edge in (1024, 3072, 4096, 6144, 8192, 12288, 16384) for n in range(-32, 160)]
    for length in [*range(701), *edges]:
        assert _kernel.crc32c(exact(BLOCK[:length]), 0, implementation) == crcs[length], length
    for length, start in itertools.product([0, 1, 7, 8, 63, 64, 255, 777, 6200], range(65)):
        part = memoryview(BLOCK)[start : start + length]
        found = _kernel.crc32c(part, crcs[start], implementation)
        assert found == crcs[start + length], (length, start)
    for split in [*range(300), 1023, 1024, 3071, 6143, 6144, 6239, 12288]:
        rest = memoryview(BLOCK)[split:13_000]
        assert _kernel.crc32c(rest, crcs[split], implementation) == crcs[13_000], split


def test_the_portable_checksum_is_always_there_and_an_unknown_one_is_refused() -> None:
    assert _kernel.crc32c_implementations()[-1] == "table"
    with pytest.raises(ValueError, match="quantum"):
        _kernel.crc32c(b"", 0, "quantum")


def crc32c_by_bits(data: bytes) -> int:
    """The definition of CRC-32C: a division by the polynomial, one bit after the other."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_combined_crcs_of_parts_are_the_crc_of_the_whole(parts: list[bytes]) -> None:
    total = 0
    for part in parts:
        total = _kernel.crc32c_combine(total, crc32c_by_bits(part), len(part))
    assert total == crc32c_by_bits(b"".join(parts))


@pytest.mark.parametrize(
    ("checksum", "combine"),
    [
        (_kernel.crc32c, _kernel.crc32c_combine),
        (zlib.crc32, _kernel.crc32_combine),
        (zlib.adler32, _kernel.adler32_combine),
    ],
    ids=["crc32c", "crc32", "adler32"],
)
def test_combined_checksums_are_right_for_long_second_parts(
    checksum: Callable[[bytes], int], combine: Callable[[int, int, int], int]
) -> None:
    for first in [b"", b"first", b"\xff" * 70_000]:
        for size in [0, 1, 255, 256, 4097, 65_520, 65_521, 65_522, (1 << 24) + 3]:
            second = b"\xff" * size
            assert combine(checksum(first), checksum(second), size) == checksum(first + second), (first, size)


def test_combined_crcs_of_more_than_32_bits_of_bytes() -> None:
    """Combining is associative: three equal parts of 2**33 bytes give one CRC in either order."""
    part = _kernel.crc32c(bytes(1 << 20))
    for power in range(20, 33):
        part = _kernel.crc32c_combine(part, part, 1 << power)
    whole = _kernel.crc32c_combine(part, part, 1 << 33)
    three = _kernel.crc32c_combine(part, whole, 1 << 34)
    assert three == _kernel.crc32c_combine(whole, part, 1 << 33)
    assert _kernel.crc32c_combine(part, 0, 0) == part


@given(
    st.lists(st.sampled_from([0, 1, 300, 2047, 2048, 2049, 5000]), max_size=6),
    st.binary(max_size=3000),
    st.integers(0, 2**32 - 1),
    st.randoms(use_true_random=False),
)
def test_the_checksum_from_those_of_records_is_that_of_all_bytes(
    sizes: list[int], rest: bytes, before: int, rng: random.Random
) -> None:
    """The bytes after the last record are read, because no intact record has them."""
    whole = b"".join(oracle.frame(rng.randbytes(size)) for size in sizes)
    cut = oracle.frame(rest)[: rng.randrange(len(rest) + 16)]
    for data in (whole, whole + cut):
        for records in (0, len(sizes)):
            assert _kernel.crc32c_of_records(exact(data), records, before) == oracle.crc32c(data, before)
